//! Quotas that are free again behind a settlement.

use std::collections::HashSet;

use super::Report;
use super::writer::{Writer, Written};
use crate::dispatch::hub::DATABASE_DEADLINE;
use crate::domain::id::{NOBODY, RouteId};
use crate::store::quotas;

impl Writer {
    /// Routes under quotas of which tasks are claimed no longer; the sweep here learns of them at once.
    pub(super) fn freed(&self, round: &[Report], written: &Written) -> Vec<RouteId> {
        let ended = round
            .iter()
            .filter(|report| written.is_recorded(report.token));
        let routes: HashSet<RouteId> = ended
            .filter_map(|report| report.route)
            .chain(written.returned.iter().map(|task| task.route))
            .collect();
        let freed = self.slow.routes.limited(routes);
        if !freed.is_empty() {
            self.slow.wakes.freed(freed.iter().copied());
        }
        freed
    }

    /// Tells the replicas that these quotas hold back.
    pub(super) async fn tell_freed(&self, freed: Vec<RouteId>) {
        if freed.is_empty() {
            return;
        }
        let told = self.slow.pool.run(DATABASE_DEADLINE, move |client| {
            Box::pin(async move { quotas::wake_held_back(client, &freed, NOBODY).await })
        });
        if let Err(error) = told.await {
            // Advice only: they look again by themselves.
            tracing::debug!(%error, "other replicas were not told of a quota that is free");
        }
    }
}
