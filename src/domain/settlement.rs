//! The one place that decides what an outcome means.

use std::time::Duration;

use bytes::Bytes;

use super::outcome::{Failure, Outcome};
use super::policy::Policy;

/// A task that only busy or distant workers can take is looked at again after about this long.
const MISFIT_WAIT: Duration = Duration::from_millis(500);

/// A move of a task that is not its success: a row of the rule book in `sql/return_tasks.sql`, which
/// says what each does to attempt, epoch and losses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Move {
    /// Another try after a wait.
    Retry,
    /// Another try after a wait; the worker is told to stop.
    TimeOut,
    /// Another try at once: the worker is lost.
    RetryAtOnce,
    /// The same try again: nobody took it.
    NotAccepted,
    /// The same try later.
    Snooze,
    /// The same delivery right again: the worker never saw it.
    Release,
    /// The same delivery right again: its replica drains.
    HandOver,
    /// The same try again: the replica is dead.
    ReArm,
    /// The end, after a try.
    DeadLetter,
    /// The end, before any try.
    Unservable,
    /// The end, before any try: it has not started in time.
    Expire,
}

/// Why a task is a dead letter, as `sql/return_tasks.sql` writes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cause {
    /// Its tries are spent, or its worker says that no try can mend it.
    Failed,
    /// Too many of its deliveries vanished with their worker or replica.
    Lost,
    /// No connection can carry it.
    Unservable,
    /// It has not started by its deadline for that.
    ScheduleToStart,
    /// Nobody serves its route, which is `strict`.
    Unserved,
}

impl Cause {
    /// Every cause.
    pub const ALL: [Self; 5] = [
        Self::Failed,
        Self::Lost,
        Self::Unservable,
        Self::ScheduleToStart,
        Self::Unserved,
    ];

    /// Its name in SQL.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Failed => "failed",
            Self::Lost => "lost",
            Self::Unservable => "unservable",
            Self::ScheduleToStart => "schedule_to_start",
            Self::Unserved => "unserved",
        }
    }
}

impl Move {
    /// Every move.
    pub const ALL: [Self; 11] = [
        Self::Retry,
        Self::TimeOut,
        Self::RetryAtOnce,
        Self::NotAccepted,
        Self::Snooze,
        Self::Release,
        Self::HandOver,
        Self::ReArm,
        Self::DeadLetter,
        Self::Unservable,
        Self::Expire,
    ];

    /// Whether it always ends its task.
    #[must_use]
    pub const fn ends(self) -> bool {
        matches!(self, Self::DeadLetter | Self::Unservable | Self::Expire)
    }

    /// Whether the delivery failed or was lost, which history has a row of unless the task ends as cancelled.
    #[must_use]
    pub const fn fails(self) -> bool {
        !matches!(self, Self::Snooze | Self::Release | Self::HandOver)
    }

    /// Why a task is dead that this move made a dead letter; `claimed` when a replica had it.
    #[must_use]
    pub const fn cause(self, claimed: bool) -> Cause {
        match self {
            Self::Unservable => Cause::Unservable,
            Self::Expire => Cause::ScheduleToStart,
            Self::DeadLetter if claimed => Cause::Failed,
            Self::DeadLetter => Cause::Unserved,
            // What does not end its task by itself does so by one loss too many.
            _ => Cause::Lost,
        }
    }

    /// Its name in SQL.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Retry => "retry",
            Self::TimeOut => "time_out",
            Self::RetryAtOnce => "retry_at_once",
            Self::NotAccepted => "not_accepted",
            Self::Snooze => "snooze",
            Self::Release => "release",
            Self::HandOver => "hand_over",
            Self::ReArm => "re_arm",
            Self::DeadLetter => "dead_letter",
            Self::Unservable => "unservable",
            Self::Expire => "expire",
        }
    }
}

/// What is written.
#[derive(Clone, Debug, PartialEq)]
pub enum Settlement {
    /// The task is done.
    Complete {
        /// The result and its media type.
        result: Option<(Bytes, String)>,
    },
    /// The task goes back to the line, or ends without success.
    Return {
        /// How.
        how: Move,
        /// Until it is due again; `None` keeps its place in the line.
        delay: Option<Duration>,
        /// Why, where there is something to say.
        error: Option<Failure>,
    },
}

/// Turns what happened into what is written. `attempt` counts the failed tries before this one, from 0;
/// `jitter` in `0.0..=1.0` spreads the backoff.
#[must_use]
pub fn decide(outcome: Outcome, attempt: u32, policy: &Policy, jitter: f64) -> Settlement {
    let spent = attempt.saturating_add(1) >= policy.max_attempts;
    let back = |how, delay, error| Settlement::Return { how, delay, error };
    let another_try = |how, delay: Option<Duration>, error: Failure| {
        if spent {
            back(Move::DeadLetter, None, Some(error))
        } else {
            back(how, delay, Some(error))
        }
    };
    match outcome {
        Outcome::Succeeded { result } => Settlement::Complete { result },
        Outcome::Failed { error, retry_after } => {
            let wait = retry_after.unwrap_or_else(|| policy.backoff.delay(attempt, jitter));
            another_try(Move::Retry, Some(wait), error)
        }
        Outcome::TimedOut(error) => another_try(
            Move::TimeOut,
            Some(policy.backoff.delay(attempt, jitter)),
            error,
        ),
        Outcome::ConnectionLost { accepted: true } => another_try(
            Move::RetryAtOnce,
            None,
            Failure::new(
                "connection_lost",
                "The worker's connection ended and it did not come back with the task.",
            ),
        ),
        Outcome::Terminal(error) | Outcome::ResultRefused(error) => {
            back(Move::DeadLetter, None, Some(error))
        }
        Outcome::Unservable(error) => back(Move::Unservable, None, Some(error)),
        Outcome::Snoozed(delay) => back(Move::Snooze, Some(delay), None),
        // A cancel that was asked for ends the task here; a worker that stops on its own gets it back a little later.
        Outcome::Stopped => back(
            Move::Snooze,
            Some(policy.backoff.delay(attempt, jitter)),
            None,
        ),
        // Only a cancel that was asked for comes to this, and that ends the task here.
        Outcome::Ignored => back(
            Move::Snooze,
            Some(policy.backoff.delay(attempt, jitter)),
            Some(Failure::new(
                "cancel_ignored",
                "The worker was asked to stop and had not within the grace.",
            )),
        ),
        Outcome::Unserved(error) => another_try(
            Move::Retry,
            Some(policy.backoff.delay(attempt, jitter)),
            error,
        ),
        Outcome::Expired(error) => back(Move::Expire, None, Some(error)),
        Outcome::NotTaken => back(Move::Release, None, None),
        Outcome::ReplicaGone { announced: true } => back(Move::HandOver, None, None),
        // Others get their chance before it is claimed here again.
        Outcome::Misfit => back(
            Move::Release,
            Some(MISFIT_WAIT.mul_f64(0.5 + jitter / 2.0)),
            None,
        ),
        Outcome::NotAccepted | Outcome::ConnectionLost { accepted: false } => back(
            Move::NotAccepted,
            None,
            Some(Failure::new(
                "not_accepted",
                "The worker neither accepted nor refused the task in time.",
            )),
        ),
        Outcome::ReplicaGone { announced: false } => back(
            Move::ReArm,
            None,
            Some(Failure::new(
                "replica_gone",
                "The replica that held the claim was declared dead.",
            )),
        ),
    }
}

#[cfg(test)]
mod tests;
