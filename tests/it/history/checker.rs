//! Reads a recorded run and says which rules it broke. Plain data in, plain data out.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use fencepost::worker::Outcome;
use fencepost::worker::ledger::{Answer, Run};

use crate::support::tasks::{CANCELLED, DONE, FAILED};

/// All that is known after a run.
#[derive(Clone, Debug, Default)]
pub struct History {
    /// The producers' own list.
    pub enqueued: Vec<i64>,
    /// Tasks that somebody may have asked to cancel.
    pub asked: BTreeSet<i64>,
    /// The budget of each task.
    pub max_attempts: i32,
    /// Unfinished tasks.
    pub live: Vec<i64>,
    /// One for each row of `outcome`.
    pub ends: Vec<End>,
    /// One for each row of `failure`.
    pub failures: Vec<Failed>,
    /// Ids of the dead letters.
    pub dead: Vec<i64>,
    /// What the workers wrote down of each start, over all processes.
    pub runs: Vec<Run>,
}

#[derive(Clone, Debug)]
pub struct End {
    pub id: i64,
    pub state: i16,
    pub attempt: i32,
    pub epoch: Option<i32>,
    pub fence: Option<i32>,
}

#[derive(Clone, Debug)]
pub struct Failed {
    pub id: i64,
    pub attempt: i32,
    pub fence: i32,
    pub how: String,
}

impl Failed {
    /// Whether it took one of the task's attempts; else it is a loss only.
    fn spends(&self) -> bool {
        matches!(
            self.how.as_str(),
            "retry" | "time_out" | "retry_at_once" | "dead_letter"
        )
    }

    /// Whether the task may still be done by the delivery that it names: nobody knows that it failed.
    fn leaves_open(&self) -> bool {
        self.how == "re_arm"
    }
}

/// The rules, each of which a run can break.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Rule {
    /// What was enqueued is unfinished or has ended.
    NothingIsLost,
    /// A task ends at most once.
    EndsOnce,
    /// No task is live and has ended.
    LiveOrEnded,
    /// Nothing is there that nobody enqueued.
    NothingFromNowhere,
    /// No task ends as cancelled that nobody asked to cancel.
    CancelledIsAsked,
    /// The failed ones, and only they, are dead letters.
    FailedIsDead,
    /// No attempt beyond the budget, on the wire or in the tables.
    WithinBudget,
    /// Attempts in the failures that spend one grow by one with the fences, up to that of the end; a cancelled task may
    /// have failed once more, which leaves no failure.
    AttemptsAddUp,
    /// What the wire calls attempt n has n − 1 spent before it.
    WireCounts,
    /// A delivery is settled once.
    OneSettleAFence,
    /// A delivery is started once.
    OneStartAFence,
    /// At most one success of a task is recorded.
    OneSuccess,
    /// What a worker was told is what the tables say.
    AnswersHold,
}

/// The rules that this run broke, with a task for each.
pub fn check(history: &History) -> BTreeMap<Rule, i64> {
    let mut broken = BTreeMap::new();
    let mut must = |rule, task, holds: bool| {
        if !holds {
            broken.entry(rule).or_insert(task);
        }
    };
    let known: BTreeSet<i64> = history.enqueued.iter().copied().collect();
    let live: BTreeSet<i64> = history.live.iter().copied().collect();
    let dead: BTreeSet<i64> = history.dead.iter().copied().collect();
    let mut ends: HashMap<i64, &End> = HashMap::new();
    for end in &history.ends {
        must(Rule::EndsOnce, end.id, ends.insert(end.id, end).is_none());
        must(Rule::LiveOrEnded, end.id, !live.contains(&end.id));
        must(
            Rule::FailedIsDead,
            end.id,
            (end.state == FAILED) == dead.contains(&end.id),
        );
        must(
            Rule::CancelledIsAsked,
            end.id,
            end.state != CANCELLED || history.asked.contains(&end.id),
        );
        must(
            Rule::WithinBudget,
            end.id,
            end.attempt <= history.max_attempts,
        );
    }
    for id in &history.enqueued {
        must(
            Rule::NothingIsLost,
            *id,
            live.contains(id) || ends.contains_key(id),
        );
    }
    let named = history
        .ends
        .iter()
        .map(|end| end.id)
        .chain(live.iter().copied());
    let named = named.chain(history.failures.iter().map(|failed| failed.id));
    for id in named
        .chain(dead.iter().copied())
        .chain(history.runs.iter().map(|run| run.task_id))
    {
        must(Rule::NothingFromNowhere, id, known.contains(&id));
    }
    for id in &dead {
        must(
            Rule::FailedIsDead,
            *id,
            ends.get(id).is_some_and(|end| end.state == FAILED),
        );
    }

    let mut failures: BTreeMap<i64, Vec<&Failed>> = BTreeMap::new();
    for failed in &history.failures {
        failures.entry(failed.id).or_default().push(failed);
    }
    for (id, failures) in &mut failures {
        failures.sort_by_key(|failed| failed.fence);
        let end = ends.get(id);
        // A re-armed delivery may still report while nobody else has claimed the task, which a pause makes long.
        let settled = failures.iter().filter(|failed| !failed.leaves_open());
        let mut fences: Vec<i32> = settled.map(|failed| failed.fence).collect();
        let settles = fences.len();
        fences.dedup();
        must(Rule::OneSettleAFence, *id, fences.len() == settles);
        let done = end
            .filter(|end| end.state == DONE)
            .and_then(|end| end.fence);
        let settled_too = |failed: &&Failed| Some(failed.fence) == done && !failed.leaves_open();
        must(
            Rule::OneSettleAFence,
            *id,
            !failures.iter().any(settled_too),
        );
        let spent: Vec<i32> = failures
            .iter()
            .filter(|failed| failed.spends())
            .map(|failed| failed.attempt)
            .collect();
        must(
            Rule::AttemptsAddUp,
            *id,
            spent.iter().zip(1..).all(|(attempt, nth)| *attempt == nth),
        );
        must(
            Rule::WithinBudget,
            *id,
            spent.iter().all(|attempt| *attempt <= history.max_attempts),
        );
    }
    let spent_before = |id: i64, fence: i64| {
        let of_task = failures.get(&id).into_iter().flatten();
        of_task
            .filter(|failed| failed.spends() && i64::from(failed.fence) < fence)
            .count()
    };
    for end in &history.ends {
        let spent = spent_before(end.id, i64::MAX);
        must(
            Rule::AttemptsAddUp,
            end.id,
            usize::try_from(end.attempt)
                .is_ok_and(|told| told == spent || (end.state == CANCELLED && told == spent + 1)),
        );
    }

    let mut started = BTreeSet::new();
    let mut successes: HashMap<i64, (i64, i64)> = HashMap::new();
    for run in &history.runs {
        let (id, token) = (run.task_id, (run.epoch, run.fence));
        must(Rule::OneStartAFence, id, started.insert((id, token)));
        let attempt = i32::try_from(run.attempt).unwrap_or(i32::MAX);
        must(
            Rule::WithinBudget,
            id,
            (1..=history.max_attempts).contains(&attempt),
        );
        must(
            Rule::WireCounts,
            id,
            run.attempt as usize == spent_before(id, run.fence) + 1,
        );
        let Some(answer) = run.answer else { continue };
        let end = ends.get(&id);
        let ended_by_it = end.is_some_and(|end| {
            (end.epoch.map(i64::from), end.fence.map(i64::from)) == (Some(token.0), Some(token.1))
        });
        let recorded = answer == Answer::Recorded;
        match run.outcome {
            Some(Outcome::Succeeded) => {
                if recorded {
                    let first = *successes.entry(id).or_insert(token);
                    must(Rule::OneSuccess, id, first == token);
                }
                // The report of a success ends a task that is being cancelled too, as cancelled.
                let counts = |state| state == DONE || state == CANCELLED;
                let ended = ended_by_it && end.is_some_and(|end| counts(end.state));
                must(Rule::AnswersHold, id, recorded == ended);
            }
            Some(Outcome::Retryable | Outcome::Terminal) if recorded => {
                let row = failures
                    .get(&id)
                    .into_iter()
                    .flatten()
                    .any(|failed| i64::from(failed.fence) == run.fence);
                let cancelled = ended_by_it && end.is_some_and(|end| end.state == CANCELLED);
                must(Rule::AnswersHold, id, row || cancelled);
            }
            _ => {}
        }
    }
    broken
}

/// Each rule has a history that breaks it, and no other rule where that can be.
mod tests {
    use super::*;

    /// Task 1 fails once, is lost once with its replica, and is done by its third delivery; task 2 fails for good;
    /// task 3 waits.
    fn sound() -> History {
        let run = |task_id, fence, attempt, outcome, answer| Run {
            task_id,
            epoch: fence - 1,
            fence,
            start_us: 0,
            end_us: Some(1),
            outcome: Some(outcome),
            answer,
            attempt,
            task_type: "t".into(),
        };
        let mut lost = run(1, 2, 2, Outcome::Succeeded, Some(Answer::Superseded));
        lost.epoch = 1;
        let mut last = run(1, 3, 2, Outcome::Succeeded, Some(Answer::Recorded));
        last.epoch = 1;
        let failed = |id, fence, attempt, how: &str| Failed {
            id,
            attempt,
            fence,
            how: how.into(),
        };
        History {
            enqueued: vec![1, 2, 3],
            asked: BTreeSet::new(),
            max_attempts: 3,
            live: vec![3],
            ends: vec![
                End {
                    id: 1,
                    state: DONE,
                    attempt: 1,
                    epoch: Some(1),
                    fence: Some(3),
                },
                End {
                    id: 2,
                    state: FAILED,
                    attempt: 1,
                    epoch: Some(0),
                    fence: Some(1),
                },
            ],
            failures: vec![
                failed(1, 1, 1, "retry"),
                failed(1, 2, 2, "re_arm"),
                failed(2, 1, 1, "dead_letter"),
            ],
            dead: vec![2],
            runs: vec![
                run(1, 1, 1, Outcome::Retryable, Some(Answer::Recorded)),
                lost,
                last,
                run(2, 1, 1, Outcome::Terminal, None),
            ],
        }
    }

    fn broken(edit: impl FnOnce(&mut History)) -> Vec<Rule> {
        let mut history = sound();
        edit(&mut history);
        check(&history).into_keys().collect()
    }

    #[test]
    fn a_sound_history_breaks_no_rule() {
        assert_eq!(check(&sound()), BTreeMap::new());
    }

    #[test]
    fn each_rule_can_be_broken() {
        use Rule::*;
        assert_eq!(broken(|h| h.live.clear()), [NothingIsLost]);
        assert_eq!(broken(|h| h.ends.push(h.ends[0].clone())), [EndsOnce]);
        assert_eq!(broken(|h| h.live.push(1)), [LiveOrEnded]);
        assert_eq!(broken(|h| h.live.push(4)), [NothingFromNowhere]);
        assert_eq!(broken(|h| h.runs[3].task_id = 4), [NothingFromNowhere]);
        assert_eq!(broken(|h| h.dead.clear()), [FailedIsDead]);
        assert_eq!(broken(|h| h.dead.push(3)), [FailedIsDead]);
        assert_eq!(broken(|h| h.max_attempts = 1), [WithinBudget]);
        // Task 1 was cancelled while its last delivery ran.
        let cancel = |h: &mut History| {
            h.ends[0].state = CANCELLED;
            h.asked.insert(1);
        };
        assert_eq!(broken(cancel), []);
        assert_eq!(broken(|h| h.ends[0].state = CANCELLED), [CancelledIsAsked]);
        let fails_once_more = |attempt| {
            move |h: &mut History| {
                cancel(h);
                h.ends[0].attempt = attempt;
                h.runs[2].outcome = Some(Outcome::Retryable);
            }
        };
        assert_eq!(broken(fails_once_more(2)), []);
        assert_eq!(broken(fails_once_more(3)), [AttemptsAddUp]);
        assert_eq!(broken(|h| h.ends[0].attempt = 2), [AttemptsAddUp]);
        assert_eq!(broken(|h| h.ends[1].attempt = 0), [AttemptsAddUp]);
        assert_eq!(broken(|h| h.failures[2].attempt = 2), [AttemptsAddUp]);
        assert_eq!(broken(|h| h.runs[1].attempt = 3), [WireCounts]);
        assert_eq!(
            broken(|h| h.failures.push(Failed {
                how: "not_accepted".into(),
                ..h.failures[0].clone()
            })),
            [OneSettleAFence]
        );
        // The delivery that did the task was also put back for another try.
        assert_eq!(
            broken(|h| h.failures[1] = Failed {
                fence: 3,
                how: "not_accepted".into(),
                ..h.failures[1].clone()
            }),
            [OneSettleAFence]
        );
        assert_eq!(broken(|h| h.runs.push(h.runs[3].clone())), [OneStartAFence]);
        assert_eq!(
            broken(|h| h.runs[1].answer = Some(Answer::Recorded)),
            [OneSuccess, AnswersHold]
        );
        // Told that it counts, and it does not; told that it does not, and it does.
        assert_eq!(broken(|h| h.ends[0].fence = Some(2)), [AnswersHold]);
        assert_eq!(
            broken(|h| h.runs[2].answer = Some(Answer::Superseded)),
            [AnswersHold]
        );
        assert_eq!(broken(|h| h.runs[3].fence = 2), [WireCounts]);
        let mut unrecorded = sound();
        unrecorded.runs[3].answer = Some(Answer::Recorded);
        unrecorded.runs[3].epoch = 7;
        assert_eq!(
            check(&unrecorded),
            BTreeMap::new(),
            "a failure is found by its fence"
        );
        assert_eq!(
            broken(|h| {
                h.failures.remove(2);
                h.ends[1].attempt = 0;
                h.runs[3].answer = Some(Answer::Recorded);
            }),
            [AnswersHold]
        );
    }
}
