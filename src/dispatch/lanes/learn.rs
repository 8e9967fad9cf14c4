//! What came of a claim.

use std::collections::{HashMap, HashSet};
use std::time::{Duration, Instant};

use super::limits::Left;
use super::{EMPTY_RESET_INTERVAL, LATE_COMMITS, Lane, Lanes, Place, START};
use crate::domain::id::{NamespaceId, RouteId};
use crate::domain::quota::Limited;
use crate::store::claim::{ClaimRequest, Claimed, LaneRequest};

/// What is worth counting of one claim.
#[derive(Debug, Default, PartialEq, Eq)]
pub(in crate::dispatch) struct Learned {
    /// How long the first task of each tenant that had just begun to wait has been due, and its route.
    pub(in crate::dispatch) first_starts: Vec<(RouteId, Duration)>,
    /// Tasks that came before more urgent ones since they had waited for so long.
    pub(in crate::dispatch) aged: usize,
    /// Quotas that are used up.
    pub(in crate::dispatch) used_up: usize,
    /// Rates whose buckets are empty.
    pub(in crate::dispatch) throttled: usize,
    /// Quotas and rates that another replica had.
    pub(in crate::dispatch) lost: usize,
}

/// What was taken, by lane, share and limit.
#[derive(Default)]
struct Taken {
    lanes: HashMap<Lane, (i32, Place, Place)>,
    shares: HashMap<usize, i32>,
    limited: HashMap<Limited, i32>,
}

impl Taken {
    fn of(request: &ClaimRequest, claimed: &Claimed) -> Self {
        let asked: HashMap<Lane, &LaneRequest> = request
            .lanes
            .iter()
            .map(|lane| ((lane.route, lane.priority), lane))
            .collect();
        let mut taken = Self::default();
        for claim in &claimed.claims {
            let key = (claim.route, claim.priority);
            let place = (claim.visible_after, claim.token.id);
            let (count, first, last) = taken.lanes.entry(key).or_insert((0, place, place));
            *count += 1;
            (*first, *last) = (place.min(*first), place.max(*last));
            if let Some(lane) = asked.get(&key) {
                *taken.shares.entry(lane.share).or_default() += 1;
                for of in above(lane) {
                    *taken.limited.entry(of).or_default() += 1;
                }
            }
        }
        taken
    }
}

fn above(lane: &LaneRequest) -> [Limited; 2] {
    [
        Limited::Namespace(lane.namespace),
        Limited::Route(lane.route),
    ]
}

impl Lanes {
    /// Learns from what a claim took: marks move up behind it, and lanes that gave less than they could have are empty
    /// for now, unless a quota or rate stopped them.
    pub(in crate::dispatch) fn learn(
        &mut self,
        request: &ClaimRequest,
        claimed: &Claimed,
        now: Instant,
    ) -> Learned {
        if let Some(at) = claimed.at {
            self.clock = Some((at, now));
        }
        let taken = Taken::of(request, claimed);
        let mut learned = Learned::default();
        let stopped = self.learn_limits(claimed, &taken, &mut learned, now);
        for (number, given) in self.given.iter().enumerate() {
            let used = taken.shares.get(&number).copied().unwrap_or(0);
            if let Some((_, line)) = self.lines.get_mut(given.line) {
                line.settle(given.share, u32::try_from(used).unwrap_or(0));
            }
        }
        self.given.clear();
        for lane in &request.lanes {
            let key = (lane.route, lane.priority);
            let (count, first) = taken
                .lanes
                .get(&key)
                .map_or((0, None), |(count, first, _)| (*count, Some(first.0)));
            if self.aged.contains(&key) {
                learned.aged += usize::try_from(count).unwrap_or(0);
            }
            if let (Some(first), Some(at)) = (first, claimed.at)
                && self.started.insert(lane.namespace)
            {
                learned
                    .first_starts
                    .push((lane.route, (at - first).to_std().unwrap_or_default()));
            }
            let share = request.shares.get(lane.share).copied().unwrap_or(0);
            let unused = taken.shares.get(&lane.share).copied().unwrap_or(0) < share;
            let is_stopped = above(lane).iter().any(|of| stopped.contains(of));
            let exhausted = unused && count < lane.limit && !is_stopped;
            self.learn_lane(key, lane, &taken, claimed, exhausted, now);
        }
        self.forget_started();
        learned
    }

    /// Takes in the quotas; answers those that stop lanes.
    fn learn_limits(
        &mut self,
        claimed: &Claimed,
        taken: &Taken,
        learned: &mut Learned,
        now: Instant,
    ) -> HashSet<Limited> {
        let mut stopped = HashSet::new();
        for of in &claimed.lost {
            self.limits.lose(*of, now);
            stopped.insert(*of);
        }
        learned.lost = stopped.len();
        let counted = claimed.counted.unwrap_or(now);
        for usage in &claimed.usages {
            let more = taken.limited.get(&usage.of).copied().unwrap_or(0);
            match self.limits.count(usage, more, counted) {
                Left::Some => continue,
                Left::NoQuota => learned.used_up += 1,
                Left::NoToken => learned.throttled += 1,
            }
            stopped.insert(usage.of);
        }
        stopped
    }

    fn learn_lane(
        &mut self,
        key: Lane,
        asked: &LaneRequest,
        taken: &Taken,
        claimed: &Claimed,
        exhausted: bool,
        now: Instant,
    ) {
        let Some(state) = self.lanes.get_mut(&key) else {
            return;
        };
        let empty = match (taken.lanes.get(&key), claimed.at) {
            (Some((count, _, end)), Some(at)) => {
                state.mark = state.mark.max((*end).min((at - LATE_COMMITS, 0)));
                state.head = Some(end.0);
                state.deep = *count == asked.limit || (state.deep && !exhausted);
                exhausted
            }
            // Something may lie below the mark: one more look from the start.
            _ if exhausted && state.mark > START && now >= state.reset_from_empty => {
                state.mark = START;
                state.reset_from_empty = now + EMPTY_RESET_INTERVAL;
                state.deep = false;
                false
            }
            _ => exhausted,
        };
        if empty {
            (state.deep, state.head) = (false, None);
            self.active.remove(&key);
            if let Some(left) = self.waiting.get_mut(&asked.namespace) {
                *left = left.saturating_sub(1);
            }
        }
    }

    /// Whoever has nothing more to do begins to wait anew with its next task.
    fn forget_started(&mut self) {
        let waiting = &self.waiting;
        let waits =
            |namespace: &NamespaceId| waiting.get(namespace).is_some_and(|lanes| *lanes > 0);
        self.started.retain(waits);
    }
}
