//! What a settlement came to, for telemetry.

use std::time::Duration;

use super::writer::{Writer, Written};
use crate::dispatch::counts;
use crate::telemetry::Telemetry;

impl Writer {
    /// Counts a batch of so many reports.
    pub(super) fn count(&self, written: &Written, reports: usize, took: Duration) {
        let telemetry = &self.slow.telemetry;
        telemetry.reports.written(reports, took);
        telemetry.reports.locked.inc_by(written.busy.len() as u64);
        written.count(telemetry, reports);
    }
}

impl Written {
    /// Counts what has been written of so many reports.
    pub(super) fn count(&self, telemetry: &Telemetry, reports: usize) {
        let (recorded, busy) = (self.recorded.len(), self.busy.len());
        let superseded = reports.saturating_sub(recorded + busy);
        telemetry.reports.judged(recorded, superseded);
        counts::completed(telemetry, &self.completed);
        counts::returned(telemetry, &self.returned);
    }
}
