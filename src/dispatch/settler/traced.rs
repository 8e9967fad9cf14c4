//! What a settlement came to, for the spans of its deliveries.

use std::collections::HashMap;

use super::Report;
use super::writer::Written;
use crate::domain::id::TaskId;
use crate::domain::settlement::Settlement;
use crate::store::settle::{Goes, Returned};
use crate::telemetry::trace::{BUILT_IN, Ending};

impl Written {
    /// Ends the spans of these reports, but of those whose row somebody else has locked.
    pub(super) fn end_spans(&self, reports: &[Report]) {
        if !BUILT_IN || !reports.iter().any(|report| report.span.is_recording()) {
            return;
        }
        let returned = self.returned.iter().map(|task| (task.id, task));
        let returned: HashMap<TaskId, &Returned> = returned.collect();
        let cancelled = self.completed.iter().map(|task| (task.id, task.cancelled));
        let cancelled: HashMap<TaskId, bool> = cancelled.collect();
        for report in reports.iter().filter(|report| !self.is_busy(report.token)) {
            let outcome = if self.is_recorded(report.token) {
                let id = report.token.id;
                outcome(
                    report,
                    cancelled.get(&id).copied(),
                    returned.get(&id).copied(),
                )
            } else {
                "superseded"
            };
            let failure =
                failure(report).filter(|_| !matches!(outcome, "superseded" | "cancelled"));
            report.span.end(Ending { outcome, failure });
        }
    }
}

/// What became of the task; where only the second look has found it, what was reported of it.
fn outcome(report: &Report, cancelled: Option<bool>, returned: Option<&Returned>) -> &'static str {
    match (&report.settlement, returned.map(|task| task.goes)) {
        (_, Some(Goes::Dead)) => "failed",
        (_, Some(Goes::Cancelled)) => "cancelled",
        (Settlement::Return { how, .. }, None) if how.ends() => "failed",
        (Settlement::Return { how, .. }, _) => how.name(),
        (Settlement::Complete { .. }, _) if cancelled == Some(true) => "cancelled",
        (Settlement::Complete { .. }, _) => "done",
    }
}

/// The class of what went wrong, where something has.
fn failure(report: &Report) -> Option<&str> {
    match &report.settlement {
        Settlement::Return {
            how,
            error: Some(error),
            ..
        } if how.fails() => Some(&error.class),
        _ => None,
    }
}
