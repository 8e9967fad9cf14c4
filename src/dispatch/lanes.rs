//! Which lanes may have work, and how far each has been read: hints in memory, renewed by wakes and polls.
//!
//! `plan` divides free slots among tenants and their lanes, `learn` takes in what came of it, `limits` remembers which
//! quotas and rates hold back.

mod learn;
mod limits;
mod plan;

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use chrono::{DateTime, TimeDelta, Utc};

pub(super) use self::learn::Learned;
use self::limits::Limits;
use crate::domain::ageing::Ageing;
use crate::domain::fairness::{Line, Share};
use crate::domain::id::{NamespaceId, RouteId, TaskId};
use crate::domain::route::Route;
use crate::domain::scope::Scope;
use crate::store::routes::DuePage;

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
/// Lanes without work that are remembered; beyond them they start anew when they have some.
const KEPT: usize = 4096;

/// A route at one priority.
type Lane = (RouteId, i16);
/// A place in a lane: due time, then id.
type Place = (DateTime<Utc>, TaskId);

const START: Place = (DateTime::UNIX_EPOCH, 0);

#[derive(Debug)]
struct State {
    /// Claims start behind this row: what lies before it is taken, or dead and not yet vacuumed.
    mark: Place,
    reset_at: Instant,
    reset_from_empty: Instant,
    /// No row that is left was due before, as far as is known.
    head: Option<DateTime<Utc>>,
    /// The last claim took all that it asked for: there may be as much again.
    deep: bool,
}

/// What the last plan gave to one tenant at one slot group.
#[derive(Debug)]
struct Given {
    /// Index of the slot group's line.
    line: usize,
    share: Share,
}

/// The lanes that have had work since this replica started; few of them are active at a time.
#[derive(Debug, Default)]
pub(super) struct Lanes {
    lanes: BTreeMap<Lane, State>,
    /// Those that may have work.
    active: BTreeSet<Lane>,
    /// Routes that a pause binds, as far as the last looks at the claim index say: nobody asks for their rows.
    paused: BTreeSet<RouteId>,
    /// Routes whose claims could not be placed: how often in a row, and until when they rest.
    resting: BTreeMap<RouteId, (u32, Instant)>,
    /// The order of tenants at each slot group.
    lines: Vec<(Arc<Scope>, Line)>,
    /// Of this replica alone, so that replicas begin with different tenants.
    seed: u64,
    ageing: Ageing,
    limits: Limits,
    /// The database's clock when it was last seen, and when that was.
    clock: Option<(DateTime<Utc>, Instant)>,
    /// What the last plan gave, as its shares are numbered.
    given: Vec<Given>,
    /// Lanes of the last plan that came before more urgent ones since their first row has waited for so long.
    aged: HashSet<Lane>,
    /// How many lanes each tenant had in the last plan.
    waiting: HashMap<NamespaceId, usize>,
    /// Tenants that have had a start since they began to wait.
    started: HashSet<NamespaceId>,
}

impl Lanes {
    /// None have had work yet.
    pub(super) fn new(ageing: Ageing) -> Self {
        Self {
            ageing,
            seed: fastrand::u64(..),
            ..Self::default()
        }
    }

    /// Rows were enqueued on this route, or put `back` to it, which may be below the marks. False: it is paused, so
    /// that they are no reason to look.
    pub(super) fn note_route(&mut self, route: RouteId, back: bool, now: Instant) -> bool {
        for priority in PRIORITIES {
            let state = self.activate((route, priority), now);
            if back {
                state.mark = START;
                state.head = None;
            }
        }
        !self.paused.contains(&route)
    }

    /// Pauses may be others by now: the next look at the claim index tells.
    pub(super) fn forget_pauses(&mut self) {
        self.paused.clear();
    }

    /// Lanes that have ready rows, by the database. Answers the time until the first row of a lane is due that is not
    /// due yet.
    pub(super) fn note_due(&mut self, page: &DuePage, now: Instant) -> Option<Duration> {
        if let Some(at) = page.at {
            self.clock = Some((at, now));
        }
        let due = &page.lanes;
        for lane in due {
            if lane.paused {
                self.paused.insert(lane.route);
            } else {
                self.paused.remove(&lane.route);
            }
        }
        for lane in due.iter().filter(|lane| lane.is_open()) {
            let state = self.activate((lane.route, lane.priority), now);
            state.head = Some(lane.visible_after);
        }
        if self.lanes.len() > KEPT + 2 * self.active.len() {
            let active = &self.active;
            self.lanes.retain(|lane, _| active.contains(lane));
        }
        due.iter()
            .filter(|lane| !lane.paused)
            .map(|lane| lane.due_in)
            .filter(|wait| !wait.is_zero())
            .min()
    }

    /// The routes of all lanes that may have work. Those of paused routes have none for anybody.
    #[must_use]
    pub(super) fn routes(&self) -> BTreeSet<RouteId> {
        let routes = self.active.iter().map(|(route, _)| *route);
        routes
            .filter(|route| !self.paused.contains(route))
            .collect()
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

    /// When the next route, quota or rate that rests is looked at again.
    pub(super) fn next_rested(&self, now: Instant) -> Option<Instant> {
        let ends = self.resting.values().map(|(_, until)| *until);
        ends.chain(self.limits.rests())
            .filter(|until| *until > now)
            .min()
    }

    /// Tasks of this route have ended, `here` or at another replica: what its quotas held back is looked at again.
    pub(super) fn freed(&mut self, namespace: NamespaceId, route: RouteId, here: bool) {
        self.limits.freed(namespace, route, here);
    }

    /// Routes whose tasks have ended here and whose quotas the last look left free.
    pub(super) fn left_over(&mut self, now: Instant) -> Vec<RouteId> {
        self.limits.left_over(now)
    }

    /// Whether nothing of this route may be claimed now, by a quota or rate above it.
    #[must_use]
    pub(super) fn rests(&self, route: &Route, now: Instant) -> bool {
        route.limits().any(|of| self.limits.rest(of, now))
    }

    /// Quotas and rates may be others by now.
    pub(super) fn settings_changed(&mut self) {
        self.limits.changed();
    }

    /// Whether a quota holds lanes back.
    #[must_use]
    pub(super) fn held_back(&self, now: Instant) -> bool {
        self.limits.hold_back(now)
    }

    fn activate(&mut self, lane: Lane, now: Instant) -> &mut State {
        self.active.insert(lane);
        self.lanes.entry(lane).or_insert(State {
            mark: START,
            reset_at: now + RESET_INTERVAL,
            reset_from_empty: now,
            head: None,
            deep: false,
        })
    }

    /// The database's clock, as far as it is known.
    fn clock(&self, now: Instant) -> DateTime<Utc> {
        self.clock.map_or(DateTime::UNIX_EPOCH, |(at, seen)| {
            let since = TimeDelta::from_std(now.saturating_duration_since(seen));
            at + since.unwrap_or(TimeDelta::zero())
        })
    }
}

#[cfg(test)]
mod tests;
