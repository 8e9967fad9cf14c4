//! How a handler ends a task, and how that looks on the wire.

use std::error::Error as StdError;
use std::time::Duration;

use bytes::Bytes;

use crate::proto::worker as proto;

/// Failure messages are cut here, as the dispatcher keeps no more (worker.proto, `Failed`).
const MAX_MESSAGE_BYTES: usize = 4096;

/// What a finished task returns to whoever waits for its result.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Success {
    /// The result itself; at most the dispatcher's result limit (1 MiB by default).
    pub payload: Bytes,
    /// Its content type; empty for an empty result.
    pub content_type: String,
}

impl Success {
    /// No result.
    #[must_use]
    pub fn empty() -> Self {
        Self::default()
    }

    /// A result of any content type.
    #[must_use]
    pub fn bytes(payload: impl Into<Bytes>, content_type: impl Into<String>) -> Self {
        Self {
            payload: payload.into(),
            content_type: content_type.into(),
        }
    }

    /// A JSON result; see [`Success::encode`] for a type of your own.
    #[must_use]
    pub fn json(value: impl Into<serde_json::Value>) -> Self {
        Self::bytes(value.into().to_string(), "application/json")
    }

    /// Any serialisable value as a JSON result.
    ///
    /// # Errors
    /// Terminal, class `invalid_result`, when the value has no JSON form.
    pub fn encode(value: &impl serde::Serialize) -> Result<Self, Failure> {
        serde_json::to_vec(value)
            .map(|json| Self::bytes(json, "application/json"))
            .map_err(|error| Failure::terminal("invalid_result", error.to_string()))
    }
}

/// Why a handler did not produce a result, and what is to happen next.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Failure {
    /// Another attempt may succeed: one attempt of the budget is spent.
    Retryable {
        /// A short stable name for the kind of error, for filters.
        class: String,
        /// A sentence for people; kept up to 4 KiB.
        message: String,
        /// Overrides the task's own backoff.
        retry_after: Option<Duration>,
    },
    /// No attempt can succeed: the task becomes a dead letter now.
    Terminal {
        /// A short stable name for the kind of error, for filters.
        class: String,
        /// A sentence for people; kept up to 4 KiB.
        message: String,
    },
    /// The handler stopped because it was asked to; see [`Task::cancelled`](super::Task::cancelled).
    Cancelled,
    /// Not now: the same attempt is delivered again after the delay.
    Snooze {
        /// Time until the next delivery.
        after: Duration,
    },
}

impl Failure {
    /// A retryable failure with the task's own backoff.
    #[must_use]
    pub fn retryable(class: impl Into<String>, message: impl Into<String>) -> Self {
        Self::Retryable {
            class: class.into(),
            message: message.into(),
            retry_after: None,
        }
    }

    /// A failure that no further attempt can mend.
    #[must_use]
    pub fn terminal(class: impl Into<String>, message: impl Into<String>) -> Self {
        Self::Terminal {
            class: class.into(),
            message: message.into(),
        }
    }
}

/// Any error is retryable, class `error`; its message names its sources too.
impl<E: StdError> From<E> for Failure {
    fn from(error: E) -> Self {
        let mut message = error.to_string();
        let mut source = error.source();
        while let Some(cause) = source {
            message.push_str(": ");
            message.push_str(&cause.to_string());
            source = cause.source();
        }
        Self::retryable("error", message)
    }
}

/// The five ways in which a handler can end, as the ledger spells them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Outcome {
    /// `succeeded`
    Succeeded,
    /// `retryable`
    Retryable,
    /// `terminal`
    Terminal,
    /// `cancelled`
    Cancelled,
    /// `snoozed`
    Snoozed,
}

impl Outcome {
    /// The outcome of a handler's answer.
    #[must_use]
    pub fn of(answer: &Result<Success, Failure>) -> Self {
        match answer {
            Ok(_) => Self::Succeeded,
            Err(Failure::Retryable { .. }) => Self::Retryable,
            Err(Failure::Terminal { .. }) => Self::Terminal,
            Err(Failure::Cancelled) => Self::Cancelled,
            Err(Failure::Snooze { .. }) => Self::Snoozed,
        }
    }
}

/// A result too large to be stored would be refused, and the refusal would end the task all the
/// same: so it ends here, without the trip.
pub(super) fn fits(payload: &Bytes, max_bytes: usize) -> Result<(), Failure> {
    if payload.len() <= max_bytes {
        return Ok(());
    }
    let size = payload.len();
    let message = format!("the result has {size} bytes; the limit is {max_bytes}");
    Err(Failure::terminal("result_too_large", message))
}

/// The answer as a Result message for `token`.
pub(super) fn report(token: Bytes, answer: Result<Success, Failure>) -> proto::Result {
    use proto::result::Outcome as Wire;
    let outcome = match answer {
        Ok(success) => Wire::Succeeded(proto::Succeeded {
            payload: success.payload,
            content_type: success.content_type,
        }),
        Err(Failure::Snooze { after }) => Wire::Snoozed(proto::Snoozed {
            after_ms: millis(after),
        }),
        Err(Failure::Retryable {
            class,
            message,
            retry_after,
        }) => Wire::Failed(proto::Failed {
            retry_after_ms: retry_after.map(millis),
            ..failed(proto::FailureKind::Retryable, class, &message)
        }),
        Err(Failure::Terminal { class, message }) => {
            Wire::Failed(failed(proto::FailureKind::Terminal, class, &message))
        }
        Err(Failure::Cancelled) => Wire::Failed(failed(
            proto::FailureKind::Cancelled,
            "cancelled".into(),
            "the handler stopped on request",
        )),
    };
    proto::Result {
        token,
        outcome: Some(outcome),
    }
}

fn failed(kind: proto::FailureKind, class: String, message: &str) -> proto::Failed {
    let cut = message.floor_char_boundary(MAX_MESSAGE_BYTES);
    let (kept, _) = message.split_at(cut);
    proto::Failed {
        kind: kind.into(),
        class,
        // PostgreSQL's text type has no NUL.
        message: kept.replace('\0', " "),
        retry_after_ms: None,
    }
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}
