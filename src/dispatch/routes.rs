//! Routes by number, as this replica last read them.

use std::collections::HashMap;
use std::sync::Arc;

use deadpool_postgres::GenericClient;
use parking_lot::Mutex;

use super::hub::DATABASE_DEADLINE;
use crate::domain::id::RouteId;
use crate::domain::route::Route;
use crate::store::{self, Pool};
use crate::telemetry::Telemetry;

/// The routes that had work since this process started. Clones share them.
#[derive(Clone, Debug, Default)]
pub struct Routes {
    known: Arc<Mutex<HashMap<RouteId, Arc<Route>>>>,
    /// Gives each of them its series.
    telemetry: Arc<Telemetry>,
}

impl Routes {
    /// None yet.
    pub(super) fn new(telemetry: &Arc<Telemetry>) -> Self {
        Self {
            telemetry: Arc::clone(telemetry),
            ..Self::default()
        }
    }

    /// These routes, read from the database where they are not known yet. A route that does not exist is missing.
    ///
    /// # Errors
    /// Those of the database.
    pub async fn get(
        &self,
        pool: &Pool,
        wanted: impl IntoIterator<Item = RouteId>,
    ) -> Result<HashMap<RouteId, Arc<Route>>, store::Error> {
        let wanted: Vec<RouteId> = wanted.into_iter().collect();
        let unknown = self.unknown(&wanted);
        if !unknown.is_empty() {
            self.read(pool, unknown).await?;
        }
        Ok(self.known(&wanted))
    }

    /// As [`Routes::get`], by a connection that is at hand.
    ///
    /// # Errors
    /// Those of the database.
    pub async fn get_by(
        &self,
        client: &impl GenericClient,
        wanted: &[RouteId],
    ) -> Result<HashMap<RouteId, Arc<Route>>, store::Error> {
        let unknown = self.unknown(wanted);
        if !unknown.is_empty() {
            self.learn(store::routes::read(client, &unknown).await?);
        }
        Ok(self.known(wanted))
    }

    fn unknown(&self, wanted: &[RouteId]) -> Vec<RouteId> {
        let known = self.known.lock();
        let unknown = wanted.iter().filter(|id| !known.contains_key(id));
        unknown.copied().collect()
    }

    fn known(&self, wanted: &[RouteId]) -> HashMap<RouteId, Arc<Route>> {
        let known = self.known.lock();
        let found = wanted
            .iter()
            .filter_map(|id| Some((*id, Arc::clone(known.get(id)?))));
        found.collect()
    }

    fn learn(&self, routes: Vec<Route>) {
        let mut known = self.known.lock();
        for route in routes {
            self.telemetry.meet(&route);
            known.insert(route.id, Arc::new(route));
        }
    }

    /// Reads all known routes again, so that changed settings take effect.
    ///
    /// # Errors
    /// Those of the database.
    pub async fn refresh(&self, pool: &Pool) -> Result<(), store::Error> {
        let known: Vec<RouteId> = self.known.lock().keys().copied().collect();
        if known.is_empty() {
            Ok(())
        } else {
            self.read(pool, known).await
        }
    }

    /// This route, if it is known.
    #[must_use]
    pub fn one(&self, id: RouteId) -> Option<Arc<Route>> {
        self.known.lock().get(&id).map(Arc::clone)
    }

    /// Those of these routes that stand under a quota, as far as is known.
    #[must_use]
    pub fn under_quota(&self, ids: impl IntoIterator<Item = RouteId>) -> Vec<RouteId> {
        let known = self.known.lock();
        let has_quota = |id: &RouteId| known.get(id).is_some_and(|route| route.has_quota());
        ids.into_iter().filter(has_quota).collect()
    }

    async fn read(&self, pool: &Pool, ids: Vec<RouteId>) -> Result<(), store::Error> {
        let routes = pool
            .run(DATABASE_DEADLINE, move |client| {
                Box::pin(async move { store::routes::read(client, &ids).await })
            })
            .await?;
        self.learn(routes);
        Ok(())
    }
}
