//! What the end of a delivery means to its caller: the one place that decides it, as `domain::settlement` does for rows.

use bytes::Bytes;

use super::DirectError;
use crate::domain::json;
use crate::domain::outcome::{Failure, Outcome};

/// What follows from the end of a delivery.
#[derive(Debug)]
pub(super) enum Next {
    /// The caller gets it.
    Reply(Option<(Bytes, String)>),
    /// It has not been started: back into line, at its old place, and perhaps not to that worker.
    Again {
        /// Not to the session that had it.
        elsewhere: bool,
    },
    /// The caller gets that.
    Fail(DirectError),
}

/// Judges how a delivery ended.
pub(super) fn judge(outcome: Outcome) -> Next {
    let failed = |class: &str, message: String| {
        Next::Fail(DirectError::Failed(Failure::new(class, message)))
    };
    match outcome {
        Outcome::Succeeded {
            result: Some((payload, content_type)),
        } if content_type == json::MEDIA_TYPE => match json::check(&payload) {
            Ok(()) => Next::Reply(Some((payload, content_type))),
            Err(error) => Next::Fail(DirectError::Rejected(Failure::new(
                "result_invalid",
                format!("The result is not JSON: {error}."),
            ))),
        },
        Outcome::Succeeded { result } => Next::Reply(result),
        Outcome::Failed { error, .. } => Next::Fail(DirectError::Failed(error)),
        Outcome::Terminal(error) | Outcome::ResultRefused(error) => {
            Next::Fail(DirectError::Rejected(error))
        }
        Outcome::Stopped => failed("stopped", "The worker stopped it.".to_owned()),
        Outcome::Snoozed(wait) => failed(
            "snoozed",
            format!("The worker asks for it again in {} ms.", wait.as_millis()),
        ),
        Outcome::NotTaken | Outcome::Misfit | Outcome::ConnectionLost { accepted: false } => {
            Next::Again { elsewhere: false }
        }
        Outcome::NotAccepted => Next::Again { elsewhere: true },
        // A request is asked to stop when its caller goes: nobody hears the first one.
        Outcome::Ignored | Outcome::TimedOut(_) => Next::Fail(DirectError::TimedOut),
        Outcome::ConnectionLost { accepted: true } | Outcome::ReplicaGone { .. } => {
            Next::Fail(DirectError::Lost)
        }
        // The last two are said of rows alone.
        Outcome::Unservable(error) | Outcome::Unserved(error) | Outcome::Expired(error) => {
            Next::Fail(DirectError::Unservable(error))
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn what_a_worker_may_have_started_is_never_started_again() {
        let failure = || Failure::new("class", "message");
        let again = |outcome| matches!(judge(outcome), Next::Again { .. });
        assert!(again(Outcome::NotTaken));
        assert!(again(Outcome::Misfit));
        assert!(again(Outcome::NotAccepted));
        assert!(again(Outcome::ConnectionLost { accepted: false }));
        assert!(!again(Outcome::ConnectionLost { accepted: true }));
        assert!(!again(Outcome::Failed {
            error: failure(),
            retry_after: Some(Duration::ZERO)
        }));
        assert!(!again(Outcome::Terminal(failure())));
        assert!(!again(Outcome::ResultRefused(failure())));
        assert!(!again(Outcome::Stopped));
        assert!(!again(Outcome::Ignored));
        assert!(!again(Outcome::Snoozed(Duration::ZERO)));
        assert!(!again(Outcome::TimedOut(failure())));
        assert!(!again(Outcome::Unservable(failure())));
        assert!(!again(Outcome::ReplicaGone { announced: true }));
    }

    #[test]
    fn a_result_that_says_json_and_is_none_is_not_passed_on() {
        let of = |payload: &'static str, content_type: &str| {
            judge(Outcome::Succeeded {
                result: Some((payload.into(), content_type.into())),
            })
        };
        assert!(matches!(
            of("{\"a\": 1}", "application/json"),
            Next::Reply(Some(_))
        ));
        assert!(matches!(of("{", "text/plain"), Next::Reply(Some(_))));
        assert!(matches!(
            of("{", "application/json"),
            Next::Fail(DirectError::Rejected(Failure { class, .. })) if class == "result_invalid"
        ));
    }
}
