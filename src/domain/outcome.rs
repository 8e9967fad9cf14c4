//! What happened to one delivery, or to a task that gets none.

use std::time::Duration;

use bytes::Bytes;

/// What happened to one delivery, as seen by the replica that holds its claim; the last two happen to tasks that
/// nobody has claimed.
#[derive(Clone, Debug, PartialEq)]
pub enum Outcome {
    /// The worker reports success.
    Succeeded {
        /// The result and its media type, if there is one.
        result: Option<(Bytes, String)>,
    },
    /// The worker reports a failure that another try may mend.
    Failed {
        /// What went wrong.
        error: Failure,
        /// The worker's own wait, in place of the backoff.
        retry_after: Option<Duration>,
    },
    /// The worker reports a failure that no try can mend.
    Terminal(Failure),
    /// The worker's result cannot be stored: it is too large, or not what it says it is.
    ResultRefused(Failure),
    /// The worker stopped because it was asked to.
    Stopped,
    /// The worker was asked to stop it, and has not within the grace.
    Ignored,
    /// The worker wants the same attempt later.
    Snoozed(Duration),
    /// The worker did not take it, or this replica never sent it.
    NotTaken,
    /// The workers that are free here take no frame of its size, but others do, here or elsewhere.
    Misfit,
    /// Neither accepted nor refused in time.
    NotAccepted,
    /// The worker is gone: it did not come back in time, or came back without the task.
    ConnectionLost {
        /// Whether it had accepted the task.
        accepted: bool,
    },
    /// It ran longer than it may, or was silent for longer than it may.
    TimedOut(Failure),
    /// No connection can carry it.
    Unservable(Failure),
    /// The replica that held the claim is dead.
    ReplicaGone {
        /// It had said that it drains.
        announced: bool,
    },
    /// Nobody serves its route, which is `strict`.
    Unserved(Failure),
    /// It has not started by its deadline for that.
    Expired(Failure),
}

/// Why a delivery failed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Failure {
    /// A short stable name, for filters.
    pub class: String,
    /// A sentence for people.
    pub message: String,
}

impl Failure {
    /// A failure of this class.
    pub fn new(class: impl Into<String>, message: impl Into<String>) -> Self {
        Self {
            class: class.into(),
            message: message.into(),
        }
    }
}
