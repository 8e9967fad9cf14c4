//! Routes by number, as this replica last read them.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicI32, Ordering};

use deadpool_postgres::GenericClient;
use parking_lot::Mutex;

use super::hub::DATABASE_DEADLINE;
use crate::domain::id::RouteId;
use crate::domain::route::Route;
use crate::store::{self, Pool};
use crate::telemetry::Telemetry;

/// Routes that one look for changes reads: what 10,000 tenants would cost each tick otherwise, some 50 ms.
const SLICE: usize = 1000;

/// The routes that had work since this process started. Clones share them.
#[derive(Clone, Debug, Default)]
pub struct Routes {
    known: Arc<Mutex<HashMap<RouteId, Arc<Route>>>>,
    /// The last one that a look for changes has read.
    looked_at: Arc<AtomicI32>,
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

    /// Reads some of the known routes again, in turns, for settings whose notification was lost.
    ///
    /// # Errors
    /// Those of the database.
    pub async fn refresh_some(&self, pool: &Pool) -> Result<(), store::Error> {
        let after = self.looked_at.load(Ordering::Relaxed);
        let known: Vec<RouteId> = self.known.lock().keys().copied().collect();
        let some = slice(known, after);
        let Some(last) = some.last().copied() else {
            return Ok(());
        };
        self.read(pool, some).await?;
        self.looked_at.store(last, Ordering::Relaxed);
        Ok(())
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

/// The next ones behind `after`, and the first ones again behind the last.
fn slice(mut known: Vec<RouteId>, after: RouteId) -> Vec<RouteId> {
    known.sort_unstable_by_key(|id| (*id <= after, *id));
    known.truncate(SLICE);
    known
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn looks_for_changes_go_round() {
        let known: Vec<RouteId> = (1..=2_500).rev().collect();
        let (mut after, mut seen) = (0, Vec::new());
        for _ in 0..5 {
            let some = slice(known.clone(), after);
            assert_eq!(some.len(), SLICE);
            after = *some.last().unwrap();
            seen.extend(some);
        }
        let twice: Vec<RouteId> = (1..=2_500).chain(1..=2_500).collect();
        assert_eq!(seen, twice);
        assert_eq!(slice(vec![7, 3], 5), [7, 3]);
        assert!(slice(Vec::new(), 5).is_empty());
    }
}
