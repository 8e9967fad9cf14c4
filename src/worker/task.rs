//! One delivery of a task, as its handler sees it.

use std::collections::HashMap;
use std::fmt;
use std::time::Duration;

use bytes::Bytes;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use super::Failure;
use crate::proto::worker as proto;
use crate::telemetry::trace::HandlerSpan;

/// A delivered task. Debug output leaves out the payload.
pub struct Task {
    wire: proto::Task,
    cancelled: CancellationToken,
    progress: mpsc::Sender<proto::Progress>,
}

impl Task {
    pub(super) fn new(
        wire: proto::Task,
        cancelled: CancellationToken,
        progress: mpsc::Sender<proto::Progress>,
    ) -> Self {
        Self {
            wire,
            cancelled,
            progress,
        }
    }

    /// Begins the span of its handler, below what it carries.
    pub(super) fn begin_span(&mut self) -> HandlerSpan {
        HandlerSpan::begin(&mut self.wire)
    }

    pub(super) fn wire_token(&self) -> Bytes {
        self.wire.token.clone()
    }

    /// The task's id.
    #[must_use]
    pub fn id(&self) -> i64 {
        self.wire.task_id
    }

    /// Names this delivery: the first argument of the SQL function
    /// `fencepost.complete(token, result)`, which settles the task in the handler's own
    /// transaction. Empty if the dispatcher sent a token that is not text.
    #[must_use]
    pub fn token(&self) -> &str {
        std::str::from_utf8(&self.wire.token).unwrap_or_default()
    }

    /// The namespace that the task was enqueued in.
    #[must_use]
    pub fn namespace(&self) -> &str {
        &self.wire.namespace
    }

    /// The task queue.
    #[must_use]
    pub fn queue(&self) -> &str {
        &self.wire.task_queue
    }

    /// The task type: the name that the handler was registered under.
    #[must_use]
    pub fn task_type(&self) -> &str {
        &self.wire.task_type
    }

    /// The node that the task is pinned to.
    #[must_use]
    pub fn node(&self) -> Option<&str> {
        Some(self.wire.node.as_str()).filter(|node| !node.is_empty())
    }

    /// The payload as enqueued; a JSON payload is in PostgreSQL's normal form.
    #[must_use]
    pub fn payload(&self) -> &Bytes {
        &self.wire.payload
    }

    /// The payload's content type.
    #[must_use]
    pub fn content_type(&self) -> &str {
        &self.wire.content_type
    }

    /// Decodes a JSON payload.
    ///
    /// # Errors
    /// Terminal, class `invalid_payload`: a task's payload never changes, so no attempt can help.
    pub fn json<T: serde::de::DeserializeOwned>(&self) -> Result<T, Failure> {
        serde_json::from_slice(&self.wire.payload)
            .map_err(|error| Failure::terminal("invalid_payload", error.to_string()))
    }

    /// Which attempt this is, from 1.
    #[must_use]
    pub fn attempt(&self) -> u32 {
        self.wire.attempt
    }

    /// Attempts that the task has in all.
    #[must_use]
    pub fn max_attempts(&self) -> u32 {
        self.wire.max_attempts
    }

    /// Free text labels of the task.
    #[must_use]
    pub fn labels(&self) -> &HashMap<String, String> {
        &self.wire.labels
    }

    /// Grows with every delivery of the task: a handler's own writes can compare it.
    #[must_use]
    pub fn fence(&self) -> i64 {
        self.wire.fence
    }

    /// The same over all attempts, deliveries and redrives of the task.
    #[must_use]
    pub fn idempotency_key(&self) -> &str {
        &self.wire.idempotency_key
    }

    /// How long the task may run, counted from its acceptance; the dispatcher asks to cancel it
    /// then.
    #[must_use]
    pub fn run_timeout(&self) -> Option<Duration> {
        millis(self.wire.run_timeout_ms)
    }

    /// The longest allowed silence between two calls of [`Task::progress`].
    #[must_use]
    pub fn heartbeat_timeout(&self) -> Option<Duration> {
        millis(self.wire.heartbeat_timeout_ms)
    }

    /// The workflow and run that the task belongs to, and its place in it.
    #[must_use]
    pub fn workflow(&self) -> Option<(&str, &str, u32)> {
        let ordinal = self.wire.ordinal?;
        Some((&self.wire.workflow_id, &self.wire.run_id, ordinal))
    }

    /// For the handler's own spans: a W3C traceparent as a rule, empty where there is none. It is the producer's, as it was given, or that of the
    /// delivery where the dispatcher is traced; built with the feature `otel` it is that of the span around the handler,
    /// which is the current one of the handler's `opentelemetry` context too.
    #[must_use]
    pub fn trace_context(&self) -> &str {
        &self.wire.trace_context
    }

    /// Tells the dispatcher that the task is alive, and how far it is. Never waits: a report is
    /// dropped while too many others are queued, as in a long disconnection.
    pub fn progress(&self, text: impl Into<String>, percent: Option<u32>) {
        let report = proto::Progress {
            token: self.wire.token.clone(),
            text: text.into(),
            percent,
        };
        self.progress.try_send(report).ok();
    }

    /// Fires when the dispatcher asks to stop this task, or the worker's drain times out. A
    /// handler that stops for it answers [`Failure::Cancelled`].
    #[must_use]
    pub fn cancelled(&self) -> &CancellationToken {
        &self.cancelled
    }
}

impl fmt::Debug for Task {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Task")
            .field("token", &self.token())
            .field("namespace", &self.namespace())
            .field("queue", &self.queue())
            .field("task_type", &self.task_type())
            .field("attempt", &self.attempt())
            .field("payload_bytes", &self.wire.payload.len())
            .finish_non_exhaustive()
    }
}

fn millis(value: u64) -> Option<Duration> {
    (value > 0).then(|| Duration::from_millis(value))
}
