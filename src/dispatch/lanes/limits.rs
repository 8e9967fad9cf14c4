//! Which quotas and rates hold back, which of them others take all the time, and where counts may start.

use std::collections::{BTreeMap, HashMap};
use std::time::{Duration, Instant};

use chrono::{DateTime, Utc};

use super::RESET_INTERVAL;
use crate::domain::id::{NamespaceId, RouteId};
use crate::domain::quota::{Limited, Usage};
use crate::store::quotas::Ask;

/// Quotas and rates that one claim takes at most, so that a replica never keeps many from the others; tenants whose quotas are left
/// out come first in the next one.
const QUOTAS: usize = 32;
/// A quota that is used up is looked at again after this long, though nobody has said that it is freed.
const HELD_BACK: Duration = Duration::from_millis(250);
/// A rate whose bucket is empty rests until the database's time for it, and no longer than this: whoever misses that it was
/// raised waits no longer.
const THROTTLED: Duration = Duration::from_secs(5);
/// One that another replica had is tried again after about this long, doubled with every loss in a row: a claim holds one
/// for little more than a commit.
const LOST: Duration = Duration::from_millis(2);
/// After so many losses in a row it is waited for.
const PATIENCE: u32 = 3;
/// The longest wait then. A claim holds one for milliseconds; whoever holds it longer is stuck, and must not stop the sweeps
/// of other tenants.
const LONG_WAIT: Duration = Duration::from_millis(100);
/// The longest wait for one of which a task has ended here: its slot is free with it, and goes to others at a look without
/// it, perhaps for as long as a task lasts. Some claims of other replicas fit in; other tenants here wait as long.
const SHORT_WAIT: Duration = Duration::from_millis(25);
/// No claim's clock is further behind its commit: the longest statement.
const LATE: chrono::TimeDelta = chrono::TimeDelta::seconds(20);
/// Quotas that are remembered; beyond them, those that do not rest are forgotten.
const KEPT: usize = 4096;

/// Why nothing is claimed under a quota or rate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Why {
    /// The quota is used up: when a task ends, it is free.
    UsedUp,
    /// No token is there: nobody can change that but time, and who sets the rate.
    Throttled,
    /// Another replica had it.
    Lost,
}

/// What came of a count and a claim.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Left {
    /// More may be claimed.
    Some,
    /// The quota is used up.
    NoQuota,
    /// The bucket is empty.
    NoToken,
}

#[derive(Debug, Default)]
struct Memory {
    /// Nothing is claimed under it until then.
    rest: Option<(Why, Instant)>,
    losses: u32,
    /// As in [`Ask`], until the time at which a count starts from the beginning again.
    from: Option<(DateTime<Utc>, DateTime<Utc>, Instant)>,
}

impl Memory {
    /// Why it rests now, if it does.
    fn rests(&self, now: Instant) -> Option<Why> {
        let rest = self.rest.filter(|(_, until)| now < *until);
        rest.map(|(why, _)| why)
    }
}

#[derive(Debug, Default)]
pub(super) struct Limits {
    known: HashMap<Limited, Memory>,
    /// Routes of tasks that have ended here, until it is clear whether the quotas above them are used here again.
    freed_here: BTreeMap<RouteId, NamespaceId>,
}

impl Limits {
    /// Whether nothing is to be claimed under it now.
    pub(super) fn rest(&self, of: Limited, now: Instant) -> bool {
        self.why(of, now).is_some()
    }

    fn why(&self, of: Limited, now: Instant) -> Option<Why> {
        self.known.get(&of)?.rests(now)
    }

    /// When each one that rests is looked at again.
    pub(super) fn rests(&self) -> impl Iterator<Item = Instant> {
        let rests = self.known.values().filter_map(|memory| memory.rest);
        rests.map(|(_, until)| until)
    }

    /// Whether a quota that is used up holds back.
    pub(super) fn hold_back(&self, now: Instant) -> bool {
        let mut known = self.known.values();
        known.any(|memory| memory.rests(now) == Some(Why::UsedUp))
    }

    pub(super) fn freed(&mut self, namespace: NamespaceId, route: RouteId, here: bool) {
        if here {
            self.freed_here.insert(route, namespace);
        }
        for of in [Limited::Namespace(namespace), Limited::Route(route)] {
            if let Some(memory) = self.known.get_mut(&of) {
                // Where trying and waiting has been in vain too often it rests all the same.
                let is_waited_for = here && memory.losses < PATIENCE;
                memory.rest.take_if(|(why, _)| match why {
                    Why::UsedUp => true,
                    Why::Lost => is_waited_for,
                    Why::Throttled => false,
                });
            }
        }
    }

    /// Of the routes whose tasks have ended here those whose quotas are free still, after a look: somebody else may have a
    /// use for them. One that another replica had at that look is kept for the next one.
    pub(super) fn left_over(&mut self, now: Instant) -> Vec<RouteId> {
        let mut freed = std::mem::take(&mut self.freed_here);
        let mut left = Vec::new();
        freed.retain(|route, namespace| {
            let above = [Limited::Namespace(*namespace), Limited::Route(*route)];
            let why = above.map(|of| self.why(of, now));
            if why == [None, None] {
                left.push(*route);
            }
            let in_other_hands = why.contains(&Some(Why::Lost));
            in_other_hands && !why.iter().flatten().any(|why| *why != Why::Lost)
        });
        self.freed_here = freed;
        left
    }

    /// Whatever rests is looked at: quotas and rates may be others by now.
    pub(super) fn changed(&mut self) {
        for memory in self.known.values_mut() {
            memory.rest.take_if(|(why, _)| *why != Why::Lost);
        }
    }

    /// Adds the quotas above a lane to those that a claim takes. False: it takes too many already.
    pub(super) fn admit(&self, above: &[Limited], asked: &mut Vec<Ask>, now: Instant) -> bool {
        let new = above
            .iter()
            .filter(|of| !asked.iter().any(|ask| ask.of == **of));
        let new: Vec<Ask> = new.map(|of| self.ask(*of, now)).collect();
        let fits = asked.len() + new.len() <= QUOTAS;
        if fits {
            asked.extend(new);
        }
        fits
    }

    /// How to ask for it.
    fn ask(&self, of: Limited, now: Instant) -> Ask {
        let from = self.known.get(&of).and_then(|memory| memory.from);
        let from = from.filter(|(_, _, until)| now < *until);
        Ask {
            of,
            from: from.map(|(from, at, _)| (from, at)),
        }
    }

    /// The one to wait for, and how long at most: one of which a task has ended here, or else one that was lost too often in
    /// a row.
    pub(super) fn awaited(&self, asked: &[Ask]) -> Option<(Limited, Duration)> {
        let waits = asked.iter().filter_map(|ask| {
            let losses = self.known.get(&ask.of).map_or(0, |memory| memory.losses);
            let (freed, lost) = (self.is_freed_here(ask.of), losses >= PATIENCE);
            let longest = if lost { LONG_WAIT } else { SHORT_WAIT };
            (freed || lost).then_some((freed, losses, ask.of, longest))
        });
        let (.., of, longest) = waits.max()?;
        Some((of, longest))
    }

    /// Whether a task under it has ended here, and no look has told what that leaves.
    fn is_freed_here(&self, of: Limited) -> bool {
        self.freed_here.iter().any(|(route, namespace)| {
            of == Limited::Namespace(*namespace) || of == Limited::Route(*route)
        })
    }

    /// Somebody else had it.
    pub(super) fn lose(&mut self, of: Limited, now: Instant) {
        let memory = self.remember(of, now);
        let rest = LOST * (1 << memory.losses.min(PATIENCE));
        memory.losses += 1;
        memory.rest = Some((Why::Lost, now + rest.mul_f64(0.5 + fastrand::f64())));
    }

    /// It was counted, at `now` by the clock here, and so many more were claimed.
    pub(super) fn count(&mut self, usage: &Usage, taken: i32, now: Instant) -> Left {
        let after = usage.bucket.map(|bucket| bucket.take(taken, usage.at));
        let empty = after.filter(|bucket| bucket.tokens(usage.at) == 0);
        let used_up = usage.quota_left().is_some_and(|left| taken >= left);
        let memory = self.remember(usage.of, now);
        memory.losses = 0;
        let (left, rest) = match empty {
            Some(bucket) => {
                let wait = (bucket.worth_a_look(usage.at) - usage.at).to_std();
                let wait = wait.unwrap_or_default().min(THROTTLED);
                (Left::NoToken, Some((Why::Throttled, now + wait)))
            }
            None if used_up => {
                let wait = HELD_BACK.mul_f64(0.8 + 0.4 * fastrand::f64());
                (Left::NoQuota, Some((Why::UsedUp, now + wait)))
            }
            None => (Left::Some, None),
        };
        memory.rest = rest;
        if usage.quota.is_none() {
            // Nothing was counted, so nothing is known of what is claimed.
            memory.from = None;
            return left;
        }
        // A count from a start that was given does not see what lies before; its reset does.
        let until = match memory.from {
            Some((_, _, until)) if now < until => until,
            _ => now + RESET_INTERVAL.mul_f64(0.8 + 0.4 * fastrand::f64()),
        };
        let latest = usage.at - LATE;
        memory.from = Some((usage.oldest.unwrap_or(latest).min(latest), usage.at, until));
        left
    }

    fn remember(&mut self, of: Limited, now: Instant) -> &mut Memory {
        if self.known.len() > KEPT {
            self.known
                .retain(|_, memory| memory.rests(now).is_some() || memory.losses > 0);
        }
        self.known.entry(of).or_default()
    }
}

#[cfg(test)]
mod tests;
