//! A claimed task: its narrow row, and its body.

use bytes::Bytes;
use chrono::{DateTime, Utc};

use super::id::{RouteId, TaskId, Token};

/// What a claim took: the narrow row as it is now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Claim {
    /// Names this delivery.
    pub token: Token,
    /// Where the task goes.
    pub route: RouteId,
    /// Its lane, 0 (first) to 3.
    pub priority: i16,
    /// When it was due: its place in the line.
    pub visible_after: DateTime<Utc>,
    /// Failed tries so far.
    pub attempt: u32,
}

/// What is delivered: written once at enqueue. `Debug` leaves the payload out.
#[derive(Clone, PartialEq)]
pub struct Body {
    /// The task.
    pub id: TaskId,
    /// The task that this one is a redrive of, else its own id.
    pub origin: TaskId,
    /// Tries before a dead letter.
    pub max_attempts: Option<u32>,
    /// Milliseconds from acceptance; 0 for none.
    pub run_timeout_ms: Option<i32>,
    /// Milliseconds between two reports of progress; 0 for none.
    pub heartbeat_timeout_ms: Option<i32>,
    /// Done as soon as a worker has accepted it.
    pub settle_accepted: bool,
    /// (workflow, run, ordinal) of a workflow's member.
    pub member: Option<(i64, i64, i32)>,
    /// Media type of the payload.
    pub content_type: String,
    /// A JSON object of strings.
    pub labels: Option<String>,
    /// A JSON object of settings.
    pub options: Option<String>,
    /// Opaque.
    pub payload: Bytes,
}

impl std::fmt::Debug for Body {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Body")
            .field("id", &self.id)
            .field("bytes", &self.payload.len())
            .finish_non_exhaustive()
    }
}
