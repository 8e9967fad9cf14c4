//! The twin for builds without traces: empty values, and methods that do nothing.
#![allow(
    clippy::unused_self,
    clippy::unused_async,
    clippy::unnecessary_wraps,
    clippy::needless_pass_by_ref_mut,
    reason = "as the twin that does something has it"
)]

use std::future::Future;

use super::{Ending, Error, Incoming, Outgoing, Settings, Spans, Step};
use crate::domain::id::TaskId;
use crate::domain::trace_context::TraceParent;
use crate::proto::worker::Task;

/// Begins no spans.
#[derive(Clone, Debug, Default)]
pub struct Tracing(());

impl Tracing {
    /// Never.
    #[must_use]
    pub const fn is_on(&self) -> bool {
        false
    }

    /// Only hands the caller's context on.
    pub fn enqueue<'t>(
        &self,
        parent: Option<TraceParent>,
        _: impl FnOnce() -> Incoming<'t>,
    ) -> EnqueueSpan {
        EnqueueSpan(parent)
    }

    /// Leaves the task's context as it is.
    pub fn delivery<'r>(
        &self,
        _: impl FnOnce() -> Outgoing<'r>,
        _context: &mut String,
    ) -> DeliverySpan {
        DeliverySpan(())
    }
}

/// The caller's context.
#[derive(Debug)]
pub struct EnqueueSpan(Option<TraceParent>);

impl EnqueueSpan {
    /// What the tasks carry.
    #[must_use]
    pub const fn context(&self) -> Option<TraceParent> {
        self.0
    }

    /// Nothing.
    pub fn end(self, _: impl FnOnce() -> Result<Option<TaskId>, &'static str>) {}
}

/// Nothing.
#[derive(Clone, Debug, Default)]
pub struct DeliverySpan(());

impl DeliverySpan {
    /// Never.
    #[must_use]
    pub const fn is_recording(&self) -> bool {
        false
    }

    /// Nothing.
    pub fn worker(&self, _identity: &str) {}

    /// Nothing.
    pub fn step(&self, _step: Step) {}

    /// Nothing.
    #[must_use]
    pub fn reported(&mut self) -> Self {
        Self(())
    }

    /// Nothing.
    pub fn end(&self, _ending: Ending<'_>) {}
}

/// Nothing.
#[derive(Debug)]
pub struct HandlerSpan;

impl HandlerSpan {
    /// Nothing.
    #[must_use]
    pub fn begin(_task: &mut Task) -> Self {
        Self
    }

    /// The handler itself.
    pub fn around<F: Future>(&self, handler: F) -> F {
        handler
    }

    /// Nothing.
    pub fn end<'c>(self, _: impl FnOnce() -> Ending<'c>) {}
}

/// Exports nothing.
#[derive(Debug)]
pub struct Exporter;

impl Exporter {
    /// Nothing to export, and nowhere: the configuration has refused an endpoint.
    ///
    /// # Errors
    /// None.
    pub fn start(_: Option<&Settings>, _: &Spans) -> Result<(Self, Tracing), Error> {
        Ok((Self, Tracing(())))
    }

    /// Nothing.
    pub async fn flush(self) {}
}

/// Refuses: there is nothing to install.
///
/// # Errors
/// Always.
pub fn install(_: &Settings) -> Result<Exporter, Error> {
    Err(Error(
        "this program was built without the feature `otel`".to_owned(),
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_tasks_hold_takes_no_room() {
        assert_eq!(
            size_of::<(Tracing, DeliverySpan, HandlerSpan, Exporter)>(),
            0
        );
        assert!(!std::mem::needs_drop::<DeliverySpan>());
        // What it carries, and nothing more.
        assert_eq!(size_of::<EnqueueSpan>(), size_of::<Option<TraceParent>>());
    }
}
