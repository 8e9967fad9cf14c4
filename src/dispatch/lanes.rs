//! Which lanes may have work, and how far each has been read: hints in memory, renewed by wakes and polls.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use chrono::{DateTime, TimeDelta, Utc};

use crate::domain::id::{RouteId, TaskId};
use crate::domain::placement::Nodes;
use crate::domain::route::Route;
use crate::fleet::GroupDemand;
use crate::store::claim::{ClaimRequest, Claimed, LaneRequest};
use crate::store::routes::DueLane;

/// The mark stays this far behind the database's clock: a row is stamped at its insert and seen at its commit.
const LATE_COMMITS: TimeDelta = TimeDelta::seconds(2);
/// A mark is taken back after this long, so that no row stays overlooked below it for longer.
const RESET_INTERVAL: Duration = Duration::from_secs(5);
/// A lane that comes up empty while slots are free takes its mark back at most this often.
const EMPTY_RESET_INTERVAL: Duration = Duration::from_millis(250);
/// First rest of a route whose claims could not be placed; it doubles, up to the longest.
const REST: Duration = Duration::from_millis(50);
const REST_MAX: Duration = Duration::from_secs(5);
/// Priorities, 0 first.
const PRIORITIES: std::ops::Range<i16> = 0..4;

/// A route at one priority.
type Lane = (RouteId, i16);
/// A place in a lane: due time, then id.
type Place = (DateTime<Utc>, TaskId);

const START: Place = (DateTime::UNIX_EPOCH, 0);

#[derive(Debug)]
struct State {
    /// It may have work.
    active: bool,
    /// Claims start behind this row: what lies before it is taken, or dead and not yet vacuumed.
    mark: Place,
    reset_at: Instant,
    reset_from_empty: Instant,
}

/// The lanes that have had work since this replica started; few of them are active at a time.
#[derive(Debug, Default)]
pub(super) struct Lanes {
    lanes: BTreeMap<Lane, State>,
    /// Routes whose claims could not be placed: how often in a row, and until when they rest.
    resting: BTreeMap<RouteId, (u32, Instant)>,
    /// Which of equal lanes comes first turns with every sweep.
    turn: usize,
}

impl Lanes {
    /// Rows were enqueued on this route, or put `back` to it, which may be below the marks.
    pub(super) fn note_route(&mut self, route: RouteId, back: bool, now: Instant) {
        for priority in PRIORITIES {
            let state = self.activate((route, priority), now);
            if back {
                state.mark = START;
            }
        }
    }

    /// The lanes that have ready rows, by the database. Answers the time until the first row of a lane is due
    /// that is not due yet.
    pub(super) fn note_due(&mut self, due: &[DueLane], now: Instant) -> Option<Duration> {
        for lane in due.iter().filter(|lane| lane.due_in.is_zero()) {
            self.activate((lane.route, lane.priority), now);
        }
        due.iter()
            .map(|lane| lane.due_in)
            .filter(|wait| !wait.is_zero())
            .min()
    }

    /// The routes of all lanes that may have work.
    #[must_use]
    pub(super) fn routes(&self) -> BTreeSet<RouteId> {
        let active = self.lanes.iter().filter(|(_, state)| state.active);
        active.map(|((route, _), _)| *route).collect()
    }

    /// Claims of these routes could not be placed (the free workers take no frame of that size): each rests, longer
    /// with every time in a row, so that claiming and putting back is no hot loop.
    pub(super) fn rest(&mut self, routes: &BTreeSet<RouteId>, now: Instant) {
        self.resting
            .retain(|route, (_, until)| routes.contains(route) || now < *until + REST_MAX);
        for route in routes {
            let (times, until) = self.resting.entry(*route).or_insert((0, now));
            *until = now + REST.saturating_mul(1 << (*times).min(10)).min(REST_MAX);
            *times += 1;
        }
    }

    /// When the next resting route is looked at again.
    pub(super) fn next_rested(&self, now: Instant) -> Option<Instant> {
        let ends = self.resting.values().map(|(_, until)| *until);
        ends.filter(|until| *until > now).min()
    }

    /// What a sweep asks for: each lane that a group with free slots serves, at most `batch` rows in all. A lane
    /// that several groups serve goes to the one with the most free slots, so that no row is asked for twice.
    pub(super) fn plan<'r>(
        &mut self,
        demand: &[GroupDemand],
        target: impl Fn(RouteId) -> Option<(&'r Route, Nodes<'r>)>,
        batch: i32,
        now: Instant,
    ) -> ClaimRequest {
        let mut left = batch;
        let free = demand.iter().map(|group| {
            let granted = i32::try_from(group.free).unwrap_or(i32::MAX).min(left);
            left -= granted;
            granted
        });
        let mut request = ClaimRequest {
            sweep: 0,
            lanes: Vec::new(),
            free: free.collect(),
        };
        let resting = &self.resting;
        let rests = |route| resting.get(&route).is_some_and(|(_, until)| now < *until);
        for (lane, state) in self.lanes.iter_mut().filter(|(_, state)| state.active) {
            let Some((route, nodes)) = target(lane.0).filter(|(route, _)| !rests(route.id)) else {
                continue;
            };
            let group = (0..demand.len())
                .filter(|at| {
                    demand
                        .get(*at)
                        .is_some_and(|group| group.scope.serves(route, nodes))
                })
                .max_by_key(|at| request.free.get(*at).copied());
            let Some((group, limit)) = group.and_then(|at| Some((at, *request.free.get(at)?)))
            else {
                continue;
            };
            if limit <= 0 {
                continue;
            }
            if now >= state.reset_at {
                state.mark = START;
                state.reset_at = now + RESET_INTERVAL.mul_f64(0.8 + 0.4 * fastrand::f64());
            }
            request.lanes.push(LaneRequest {
                route: lane.0,
                priority: lane.1,
                limit,
                low: state.mark,
                group,
            });
        }
        if !request.lanes.is_empty() {
            self.turn = self.turn.wrapping_add(1);
            let turn = self.turn % request.lanes.len();
            request.lanes.rotate_left(turn);
        }
        request
    }

    /// Learns from what a claim took: marks move up behind it, and lanes of a group that could have taken more
    /// have no more for now.
    pub(super) fn learn(&mut self, request: &ClaimRequest, claimed: &Claimed, now: Instant) {
        let mut ends: BTreeMap<Lane, Place> = BTreeMap::new();
        let mut left = request.free.clone();
        let group_of: BTreeMap<Lane, usize> = request
            .lanes
            .iter()
            .map(|lane| ((lane.route, lane.priority), lane.group))
            .collect();
        for claim in &claimed.claims {
            let lane = (claim.route, claim.priority);
            let place = (claim.visible_after, claim.token.id);
            ends.entry(lane)
                .and_modify(|end| *end = place.max(*end))
                .or_insert(place);
            if let Some(left) = group_of.get(&lane).and_then(|group| left.get_mut(*group)) {
                *left -= 1;
            }
        }
        for lane in &request.lanes {
            let key = (lane.route, lane.priority);
            let Some(state) = self.lanes.get_mut(&key) else {
                continue;
            };
            let exhausted = left.get(lane.group).is_some_and(|left| *left > 0);
            match (ends.get(&key), claimed.at) {
                (Some(end), Some(at)) => {
                    state.mark = state.mark.max((*end).min((at - LATE_COMMITS, 0)));
                    state.active = !exhausted;
                }
                // Something may lie below the mark: one more look from the start.
                _ if exhausted && state.mark > START && now >= state.reset_from_empty => {
                    state.mark = START;
                    state.reset_from_empty = now + EMPTY_RESET_INTERVAL;
                }
                _ => state.active = !exhausted,
            }
        }
    }

    fn activate(&mut self, lane: Lane, now: Instant) -> &mut State {
        let state = self.lanes.entry(lane).or_insert(State {
            active: true,
            mark: START,
            reset_at: now + RESET_INTERVAL,
            reset_from_empty: now,
        });
        state.active = true;
        state
    }
}

#[cfg(test)]
mod tests;
