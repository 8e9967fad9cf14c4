//! Judges a run by what stands written: the workers' ledgers, the producer's own list of ids, and the outcomes in
//! the database. Nothing here trusts a counter that the dispatcher keeps.

use std::collections::{HashMap, HashSet};

use crate::store::demo::{Stand, State};
use crate::worker::Outcome;
use crate::worker::ledger::{Answer, Run};

/// What the evidence says.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(in crate::cli) struct Evidence {
    /// Handlers started.
    pub(in crate::cli) starts: usize,
    /// Starts that repeat a try whose end was not recorded.
    pub(in crate::cli) reruns: usize,
    /// Reports that came too late.
    pub(in crate::cli) superseded: usize,
    /// Tasks that counted more than once, or ran well twice in one epoch with nobody killed in between.
    pub(in crate::cli) duplicates: usize,
    /// Tasks that are neither ended nor waiting, that ended as done without a run that succeeded, or whose recorded
    /// success is no outcome.
    pub(in crate::cli) lost: usize,
}

/// `runs` in any order; `kills` are the times of the kills in microseconds, by the ledgers' clock.
pub(in crate::cli) fn judge(
    enqueued: impl Iterator<Item = i64>,
    states: &[State],
    mut runs: Vec<Run>,
    kills: &[i64],
) -> Evidence {
    let mut stands: HashMap<i64, Stand> = HashMap::with_capacity(states.len());
    let twice: HashSet<i64> = states
        .iter()
        .filter(|state| stands.insert(state.id, state.stand).is_some())
        .map(|state| state.id)
        .collect();
    runs.sort_by_key(|run| (run.task_id, run.fence));
    let by_task: HashMap<i64, &[Run]> = runs
        .chunk_by(|one, next| one.task_id == next.task_id)
        .filter_map(|runs| Some((runs.first()?.task_id, runs)))
        .collect();

    let mut evidence = Evidence {
        starts: runs.len(),
        superseded: runs
            .iter()
            .filter(|run| run.answer == Some(Answer::Superseded))
            .count(),
        ..Evidence::default()
    };
    for id in enqueued {
        let runs = by_task.get(&id).copied().unwrap_or_default();
        evidence.reruns += reruns(runs);
        if twice.contains(&id) || counted_twice(runs) || ran_well_twice(runs, kills) {
            evidence.duplicates += 1;
        }
        if is_lost(stands.get(&id).copied(), runs) {
            evidence.lost += 1;
        }
    }
    evidence
}

/// A start is called for when it is the task's first, or when a failure was recorded before it.
fn reruns(runs: &[Run]) -> usize {
    let pairs = runs.iter().zip(runs.iter().skip(1));
    pairs
        .filter(|(before, _)| !(is_recorded(before) && before.outcome == Some(Outcome::Retryable)))
        .count()
}

/// An epoch's authority ends with one recorded report, and the task with a recorded success.
fn counted_twice(runs: &[Run]) -> bool {
    let mut recorded = runs.iter().filter(|run| is_recorded(run));
    let Some(mut last) = recorded.next() else {
        return false;
    };
    recorded.any(|run| {
        let again = run.epoch == last.epoch || succeeded(last);
        last = run;
        again
    })
}

/// A kill may cut off the report of a run that was under way, and nothing else may make another one of it.
fn ran_well_twice(runs: &[Run], kills: &[i64]) -> bool {
    let well: Vec<&Run> = runs.iter().filter(|run| succeeded(run)).collect();
    well.iter().zip(well.iter().skip(1)).any(|(first, second)| {
        let killed = kills
            .iter()
            .any(|kill| (first.start_us..second.start_us).contains(kill));
        first.epoch == second.epoch && !killed
    })
}

fn is_lost(stand: Option<Stand>, runs: &[Run]) -> bool {
    let done = stand == Some(Stand::Done);
    stand.is_none()
        || (done && !runs.iter().any(succeeded))
        || (!done && runs.iter().any(|run| succeeded(run) && is_recorded(run)))
}

fn is_recorded(run: &Run) -> bool {
    run.answer == Some(Answer::Recorded)
}

fn succeeded(run: &Run) -> bool {
    run.outcome == Some(Outcome::Succeeded)
}

#[cfg(test)]
mod tests;
