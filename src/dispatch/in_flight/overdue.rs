//! When a delivery's time is over.

use std::time::{Duration, Instant};

use super::{Delivery, Origin, Stage};
use crate::domain::outcome::{Failure, Outcome};

/// How long each stage may last.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// From sending to acceptance.
    pub accept: Duration,
    /// From the end of the stream to the worker's return.
    pub reconnect: Duration,
    /// From a request to cancel to the end.
    pub cancel: Duration,
}

impl Delivery {
    /// What it means that this delivery still stands where it stands; nothing while it may.
    pub(super) fn overdue(&self, limits: Limits, now: Instant) -> Option<Outcome> {
        if self.cancelled_at.is_some_and(|at| now - at > limits.cancel) {
            // Whose caller has gone has no end that anybody could be told.
            return Some(match self.origin {
                Origin::Durable { .. } => Outcome::Ignored,
                Origin::Direct { .. } => Outcome::Stopped,
            });
        }
        match self.stage {
            Stage::Sent(at) => (now - at > limits.accept).then_some(Outcome::NotAccepted),
            Stage::Orphaned(at, accepted) => {
                (now - at > limits.reconnect).then_some(Outcome::ConnectionLost {
                    accepted: accepted.is_some(),
                })
            }
            Stage::Running(since, heard) => {
                let late = |limit: Option<Duration>, from: Instant| {
                    limit.is_some_and(|limit| now - from > limit)
                };
                if late(self.policy.run_timeout, since) {
                    Some(Outcome::TimedOut(Failure::new(
                        "run_timeout",
                        "The task ran longer than its run timeout.",
                    )))
                } else if late(self.policy.heartbeat_timeout, heard) {
                    Some(Outcome::TimedOut(Failure::new(
                        "heartbeat_timeout",
                        "The task was silent for longer than its heartbeat timeout.",
                    )))
                } else {
                    None
                }
            }
        }
    }
}
