//! Every reason to look, gathered in one place for one reader.

use std::collections::{BTreeSet, HashMap};
use std::sync::atomic::{AtomicU8, Ordering};

use parking_lot::Mutex;
use tokio::sync::{Notify, watch};

use crate::domain::id::RouteId;

/// Reasons that have come up since the last look.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Pending {
    /// Routes with news; true where rows were put back, perhaps below a low-water mark.
    pub routes: HashMap<RouteId, bool>,
    /// Look at every lane.
    pub everything: bool,
    /// Routes under quotas of which tasks have ended; true where that was written here, so that others do not know.
    pub freed: HashMap<RouteId, bool>,
    /// Routes and namespaces have other settings.
    pub settings: bool,
}

/// Where notifications, returned rows and timers leave their reasons. None is lost, equal ones collapse.
#[derive(Debug, Default)]
pub struct Wakes {
    pending: Mutex<Pending>,
    notify: Notify,
    left_over: Mutex<BTreeSet<RouteId>>,
    passed_on: Notify,
    redrives: Notify,
    keys: Notify,
    letters: Notify,
    ends: watch::Sender<u64>,
}

impl Wakes {
    /// Tasks were enqueued on this route, or put back to it.
    pub fn route(&self, route: RouteId, back: bool) {
        *self.pending.lock().routes.entry(route).or_default() |= back;
        self.notify.notify_one();
    }

    /// Anything may have happened.
    pub fn everything(&self) {
        self.pending.lock().everything = true;
        self.notify.notify_one();
    }

    /// A redrive may go on.
    pub fn redrive(&self) {
        self.redrives.notify_one();
    }

    /// Waits for [`Wakes::redrive`]; what came since the last wait counts.
    pub async fn redrive_due(&self) {
        self.redrives.notified().await;
    }

    /// Concurrency keys are to be looked at.
    pub fn keys(&self) {
        self.keys.notify_one();
    }

    /// Waits for [`Wakes::keys`]; what came since the last wait counts.
    pub async fn keys_due(&self) {
        self.keys.notified().await;
    }

    /// A task has become a dead letter, and its owner may want to know.
    pub fn letter(&self) {
        self.letters.notify_one();
    }

    /// Waits for [`Wakes::letter`]; what came since the last wait counts.
    pub async fn letter_due(&self) {
        self.letters.notified().await;
    }

    /// Another replica says that tasks have ended there.
    pub fn ended_elsewhere(&self) {
        self.ends.send_modify(|count| *count += 1);
    }

    /// Grows whenever another replica says that tasks have ended there.
    #[must_use]
    pub fn ends(&self) -> watch::Receiver<u64> {
        self.ends.subscribe()
    }

    /// Another replica says that tasks of this route, which stands under quotas, have ended.
    pub fn freed_elsewhere(&self, route: RouteId) {
        self.pending.lock().freed.entry(route).or_default();
        self.notify.notify_one();
    }

    /// Tasks of these routes, which stand under quotas, have ended here. Their slots are free with that: the next look
    /// finds both.
    pub fn freed_here<S>(&self, routes: &[RouteId], slots: S) {
        if !routes.is_empty() {
            let mut pending = self.pending.lock();
            for route in routes {
                pending.freed.insert(*route, true);
            }
        }
        drop(slots);
        if !routes.is_empty() {
            self.notify.notify_one();
        }
    }

    /// The quotas of these routes are free, and nobody here has a use for them.
    pub fn pass_on(&self, routes: Vec<RouteId>) {
        if !routes.is_empty() {
            self.left_over.lock().extend(routes);
            self.passed_on.notify_one();
        }
    }

    /// Waits for [`Wakes::pass_on`] and takes what has been passed on since the last time.
    pub async fn passed_on(&self) -> Vec<RouteId> {
        loop {
            let routes = std::mem::take(&mut *self.left_over.lock());
            if !routes.is_empty() {
                return routes.into_iter().collect();
            }
            self.passed_on.notified().await;
        }
    }

    /// Routes and namespaces have other settings.
    pub fn settings(&self) {
        self.pending.lock().settings = true;
        self.notify.notify_one();
    }

    /// Takes what has come up.
    pub fn take(&self) -> Pending {
        std::mem::take(&mut *self.pending.lock())
    }

    /// Waits until something comes up; what came since the last wait counts.
    pub async fn wait(&self) {
        self.notify.notified().await;
    }
}

/// Whether somebody waits at another replica for the end of a task, as beats read it and as notifications say before the
/// next beat.
#[derive(Debug, Default)]
pub struct Awaited(AtomicU8);

impl Awaited {
    const HOLDS: u8 = 1;
    /// Said since the last beat began to read.
    const TOLD: u8 = 2;

    /// Whether somebody does.
    #[must_use]
    pub fn holds(&self) -> bool {
        self.0.load(Ordering::Relaxed) & Self::HOLDS != 0
    }

    /// Somebody begins to.
    pub fn told(&self) {
        self.0.store(Self::HOLDS | Self::TOLD, Ordering::Relaxed);
    }

    /// A beat is about to look.
    pub fn reading(&self) {
        self.0.fetch_and(!Self::TOLD, Ordering::Relaxed);
    }

    /// What the beat has seen. It is older than a word that came meanwhile, which stands until the next beat.
    pub fn read(&self, awaited: bool) {
        let seen = |state| (state & Self::TOLD == 0).then_some(u8::from(awaited));
        self.0
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, seen)
            .ok();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_beat_undoes_no_word_that_came_while_it_looked() {
        let awaited = Awaited::default();
        awaited.reading();
        awaited.told();
        awaited.read(false);
        assert!(awaited.holds());
        awaited.reading();
        awaited.read(false);
        assert!(!awaited.holds());
        awaited.read(true);
        assert!(awaited.holds());
    }
}
