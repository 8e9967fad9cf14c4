//! Which quotas hold back, which others take all the time, and where their counts may start.

use std::collections::{BTreeMap, HashMap};
use std::time::{Duration, Instant};

use chrono::{DateTime, Utc};

use super::RESET_INTERVAL;
use crate::domain::id::{NamespaceId, RouteId};
use crate::domain::quota::{Limited, Usage};
use crate::store::quotas::Ask;

/// Quotas that one claim takes at most, so that a replica never keeps many from the others; tenants whose quotas are left
/// out come first in the next one.
const QUOTAS: usize = 32;
/// A quota that is used up is looked at again after this long, though nobody has said that it is freed.
const HELD_BACK: Duration = Duration::from_millis(250);
/// One that another replica had is tried again after about this long, doubled with every loss in a row: a claim holds one
/// for little more than a commit.
const LOST: Duration = Duration::from_millis(2);
/// After so many losses in a row it is waited for.
const PATIENCE: u32 = 3;
/// No claim's clock is further behind its commit: the longest statement.
const LATE: chrono::TimeDelta = chrono::TimeDelta::seconds(20);
/// Quotas that are remembered; beyond them, those that do not rest are forgotten.
const KEPT: usize = 4096;

#[derive(Debug, Default)]
struct Memory {
    /// Nothing is claimed under it until then.
    rests_until: Option<Instant>,
    /// It rests since it is used up.
    used_up: bool,
    losses: u32,
    /// As in [`Ask`], until the time at which a count starts from the beginning again.
    from: Option<(DateTime<Utc>, DateTime<Utc>, Instant)>,
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
        let memory = self.known.get(&of);
        memory.is_some_and(|memory| memory.rests_until.is_some_and(|until| now < until))
    }

    /// When each one that rests is looked at again.
    pub(super) fn rests(&self) -> impl Iterator<Item = Instant> {
        self.known.values().filter_map(|memory| memory.rests_until)
    }

    /// Whether one that is used up holds back.
    pub(super) fn hold_back(&self, now: Instant) -> bool {
        self.known
            .values()
            .any(|memory| memory.used_up && memory.rests_until.is_some_and(|until| now < until))
    }

    pub(super) fn freed(&mut self, namespace: NamespaceId, route: RouteId, here: bool) {
        if here {
            self.freed_here.insert(route, namespace);
        }
        for of in [Limited::Namespace(namespace), Limited::Route(route)] {
            if let Some(memory) = self.known.get_mut(&of)
                && memory.used_up
            {
                (memory.rests_until, memory.used_up) = (None, false);
            }
        }
    }

    /// Of the routes whose tasks have ended here those whose quotas are free still, after a look: somebody else may have a
    /// use for them. One that another replica had at that look is kept for the next one.
    pub(super) fn left_over(&mut self, now: Instant) -> Vec<RouteId> {
        let (known, mut left) = (&self.known, Vec::new());
        self.freed_here.retain(|route, namespace| {
            let above = [Limited::Namespace(*namespace), Limited::Route(*route)];
            let resting = |of| {
                known.get(of).is_some_and(|memory: &Memory| {
                    memory.rests_until.is_some_and(|until| now < until)
                })
            };
            let mut resting = above.iter().filter(|of| resting(of)).peekable();
            if resting.peek().is_none() {
                left.push(*route);
                return false;
            }
            resting.all(|of| known.get(of).is_some_and(|memory| !memory.used_up))
        });
        left
    }

    /// Whatever rests is looked at: quotas may be others by now.
    pub(super) fn changed(&mut self) {
        for memory in self.known.values_mut().filter(|memory| memory.used_up) {
            (memory.rests_until, memory.used_up) = (None, false);
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

    /// The one that was lost most often in a row, if that is too often.
    pub(super) fn awaited(&self, asked: &[Ask]) -> Option<Limited> {
        let losses = |of| self.known.get(&of).map_or(0, |memory| memory.losses);
        let most = asked.iter().map(|ask| (losses(ask.of), ask.of)).max();
        most.filter(|(losses, _)| *losses >= PATIENCE)
            .map(|(_, of)| of)
    }

    /// Somebody else had it.
    pub(super) fn lose(&mut self, of: Limited, now: Instant) {
        let memory = self.remember(of);
        let rest = LOST * (1 << memory.losses.min(PATIENCE));
        memory.losses += 1;
        memory.used_up = false;
        memory.rests_until = Some(now + rest.mul_f64(0.5 + fastrand::f64()));
    }

    /// It was counted, and so many more were claimed. True: it is used up.
    pub(super) fn count(&mut self, usage: &Usage, taken: i32, now: Instant) -> bool {
        let used_up = usage.left().is_some_and(|left| taken >= left);
        let memory = self.remember(usage.of);
        memory.losses = 0;
        memory.used_up = used_up;
        memory.rests_until = used_up.then(|| now + HELD_BACK.mul_f64(0.8 + 0.4 * fastrand::f64()));
        // A count from a start that was given does not see what lies before; its reset does.
        let until = match memory.from {
            Some((_, _, until)) if now < until => until,
            _ => now + RESET_INTERVAL.mul_f64(0.8 + 0.4 * fastrand::f64()),
        };
        let latest = usage.at - LATE;
        memory.from = Some((usage.oldest.unwrap_or(latest).min(latest), usage.at, until));
        used_up
    }

    fn remember(&mut self, of: Limited) -> &mut Memory {
        if self.known.len() > KEPT {
            self.known
                .retain(|_, memory| memory.rests_until.is_some() || memory.losses > 0);
        }
        self.known.entry(of).or_default()
    }
}

#[cfg(test)]
mod tests;
