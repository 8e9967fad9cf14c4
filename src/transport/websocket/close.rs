//! How a stream is closed: a code, and a reason for people.

use std::fmt;

use axum::extract::ws::{CloseFrame, Message};
use tokio_tungstenite::tungstenite;

use super::{Denied, Status};
use crate::proto::json::Malformed;

/// Bytes of a reason at most: what RFC 6455 leaves of a control frame.
const REASON: usize = 123;

/// Close codes, from RFC 6455 and the registry that it began.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Code {
    /// This replica shuts down.
    GoingAway = 1001,
    /// What came in is no WebSocket.
    Protocol = 1002,
    /// A message of a kind that carries no frame.
    Unsupported = 1003,
    /// A text that is no frame.
    Malformed = 1007,
    /// The registration is denied for good.
    Policy = 1008,
    /// A message above the limit.
    TooLarge = 1009,
    /// The session is over; a new one may begin at once.
    Restart = 1012,
    /// The registration may be taken later.
    TryAgainLater = 1013,
}

/// The end of a stream.
#[derive(Clone, Debug)]
pub(super) struct Close {
    pub(super) code: Code,
    denied: Denied,
}

impl fmt::Display for Close {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.denied.fmt(f)
    }
}

impl Close {
    fn new(code: Code, why: impl Into<String>) -> Self {
        Self {
            code,
            denied: Denied::invalid("", why),
        }
    }

    pub(super) fn binary() -> Self {
        Self::new(Code::Unsupported, "Frames are text messages.")
    }

    /// A session that ended in order.
    pub(super) fn ended(draining: bool) -> Self {
        if draining {
            Self::new(Code::GoingAway, "This replica is shutting down.")
        } else {
            Self::new(Code::Restart, "The session is over.")
        }
    }

    /// The message that tells a worker why it can't come in.
    pub(super) fn denial(&self) -> String {
        let Denied {
            status,
            field,
            message,
        } = &self.denied;
        let word = match status {
            Status::InvalidArgument => "invalid_argument",
            Status::PermissionDenied => "permission_denied",
            Status::Unavailable => "unavailable",
        };
        let denied = serde_json::json!({
            "status": word,
            "final": status.is_final(),
            "field": field,
            "message": message,
        });
        serde_json::json!({ "denied": denied }).to_string()
    }

    pub(super) fn into_message(self) -> Message {
        let mut reason = self.to_string();
        reason.truncate(reason.floor_char_boundary(REASON));
        Message::Close(Some(CloseFrame {
            code: self.code as u16,
            reason: reason.into(),
        }))
    }
}

impl From<Denied> for Close {
    fn from(denied: Denied) -> Self {
        let code = if denied.status.is_final() {
            Code::Policy
        } else {
            Code::TryAgainLater
        };
        Self { code, denied }
    }
}

impl From<Malformed> for Close {
    fn from(malformed: Malformed) -> Self {
        Self {
            code: Code::Malformed,
            denied: Denied::invalid(malformed.place, malformed.why),
        }
    }
}

impl From<axum::Error> for Close {
    fn from(error: axum::Error) -> Self {
        let error = error.into_inner();
        match error.downcast_ref() {
            Some(tungstenite::Error::Capacity(limit)) => {
                Self::new(Code::TooLarge, limit.to_string())
            }
            Some(tungstenite::Error::Utf8(_)) => Self::new(Code::Malformed, error.to_string()),
            _ => Self::new(Code::Protocol, error.to_string()),
        }
    }
}
