//! Quotas that are free again behind a settlement.

use std::collections::HashSet;

use super::Report;
use super::writer::{Writer, Written};
use crate::domain::id::RouteId;

impl Writer {
    /// The quotas and slots of what has ended are free: the sweep here learns of both at the same instant, and passes on
    /// what it has no use for.
    pub(super) fn free(&self, round: &mut [Report], written: &Written) {
        let ended = round
            .iter()
            .filter(|report| written.is_recorded(report.token));
        let routes: HashSet<RouteId> = ended
            .filter_map(|report| report.route)
            .chain(written.returned.iter().map(|task| task.route))
            .collect();
        let freed = self.slow.routes.under_quota(routes);
        self.slow.wakes.freed_here(&freed, take_slots(round));
    }
}

/// The slots that these reports have kept.
pub(super) fn take_slots(round: &mut [Report]) -> impl Sized {
    let slots = round.iter_mut().map(|report| report.slot.take());
    slots.collect::<Vec<_>>()
}
