use std::time::Duration;

use proptest::prelude::*;

use super::*;
use crate::domain::backoff::Backoff;

fn policy(max_attempts: u32) -> Policy {
    Policy {
        max_attempts,
        backoff: Backoff {
            base: Duration::from_secs(1),
            multiplier: 2.0,
            max: Duration::from_secs(600),
        },
        run_timeout: None,
        heartbeat_timeout: None,
    }
}

fn error() -> Failure {
    Failure::new("boom", "it broke")
}

fn how(settlement: &Settlement) -> Option<Move> {
    match settlement {
        Settlement::Complete { .. } => None,
        Settlement::Return { how, .. } => Some(*how),
    }
}

fn every_outcome() -> Vec<Outcome> {
    vec![
        Outcome::Succeeded { result: None },
        Outcome::Failed {
            error: error(),
            retry_after: None,
        },
        Outcome::Terminal(error()),
        Outcome::ResultRefused(error()),
        Outcome::Stopped,
        Outcome::Ignored,
        Outcome::Snoozed(Duration::from_secs(5)),
        Outcome::NotTaken,
        Outcome::Misfit,
        Outcome::NotAccepted,
        Outcome::ConnectionLost { accepted: true },
        Outcome::ConnectionLost { accepted: false },
        Outcome::TimedOut(error()),
        Outcome::Unservable(error()),
        Outcome::ReplicaGone { announced: true },
        Outcome::ReplicaGone { announced: false },
        Outcome::Unserved(error()),
        Outcome::Expired(error()),
    ]
}

#[test]
fn the_table_of_failure_classes() {
    let moves: Vec<_> = every_outcome()
        .into_iter()
        .map(|o| how(&decide(o, 0, &policy(3), 1.0)))
        .collect();
    assert_eq!(
        moves,
        [
            None,
            Some(Move::Retry),
            Some(Move::DeadLetter),
            Some(Move::DeadLetter),
            Some(Move::Snooze),
            Some(Move::Snooze),
            Some(Move::Snooze),
            Some(Move::Release),
            Some(Move::Release),
            Some(Move::NotAccepted),
            Some(Move::RetryAtOnce),
            Some(Move::NotAccepted),
            Some(Move::TimeOut),
            Some(Move::Unservable),
            Some(Move::HandOver),
            Some(Move::ReArm),
            Some(Move::Retry),
            Some(Move::Expire),
        ]
    );
}

#[test]
fn the_last_try_ends_as_a_dead_letter() {
    for outcome in [
        Outcome::Failed {
            error: error(),
            retry_after: Some(Duration::from_secs(1)),
        },
        Outcome::TimedOut(error()),
        Outcome::ConnectionLost { accepted: true },
        Outcome::Unserved(error()),
    ] {
        assert_ne!(
            how(&decide(outcome.clone(), 1, &policy(3), 1.0)),
            Some(Move::DeadLetter),
            "{outcome:?}"
        );
        assert_eq!(
            how(&decide(outcome.clone(), 2, &policy(3), 1.0)),
            Some(Move::DeadLetter),
            "{outcome:?}"
        );
    }
}

#[test]
fn the_workers_own_wait_replaces_the_backoff() {
    let asked = Duration::from_millis(1234);
    let settlement = decide(
        Outcome::Failed {
            error: error(),
            retry_after: Some(asked),
        },
        0,
        &policy(3),
        0.5,
    );
    assert_eq!(
        settlement,
        Settlement::Return {
            how: Move::Retry,
            delay: Some(asked),
            error: Some(error())
        }
    );
}

proptest! {
    /// Waiting for capacity, refusals and the loss of a replica never end a task, however often they happen; only
    /// what its own settings ask for does.
    #[test]
    fn only_spent_tries_end_a_task(attempt: u32, max in 1u32..1000, jitter in 0.0f64..=1.0) {
        for outcome in every_outcome() {
            let ends = matches!(how(&decide(outcome.clone(), attempt, &policy(max), jitter)), Some(Move::DeadLetter | Move::Unservable | Move::Expire));
            let may_end = match outcome {
                Outcome::Terminal(_) | Outcome::ResultRefused(_) | Outcome::Unservable(_) | Outcome::Expired(_) => true,
                Outcome::Failed { .. } | Outcome::TimedOut(_) | Outcome::Unserved(_) | Outcome::ConnectionLost { accepted: true } => {
                    attempt.saturating_add(1) >= max
                }
                _ => false,
            };
            prop_assert_eq!(ends, may_end, "{:?}", outcome);
        }
    }
}
