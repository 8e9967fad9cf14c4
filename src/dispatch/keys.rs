//! Concurrency keys whose tasks have ended here: lets the next ones go, after the settle's commit.
//!
//! A key in here is looked at once, however many of its tasks have ended since the last look. What is lost with this
//! process is found by a chore of whichever replica lives.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use chrono::{DateTime, Utc};
use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::hub::DATABASE_DEADLINE;
use super::settler::said;
use super::wakes::Wakes;
use crate::domain::id::KeyHash;
use crate::store::keys::{self, Freed, Look};
use crate::store::{Error, Pool};

/// Keys in one call. Whoever adds to the line of one of them waits for its end, so it is to take a few milliseconds.
const BATCH: usize = 64;
/// Calls at the same time, each with a connection of its own: while one waits for its commit another one works.
const CONCURRENT: usize = 2;
/// First wait for a key that somebody else is at; doubles at each try up to the last. It goes on for as long as that
/// one's transaction is open.
const PAUSES: (Duration, Duration) = (Duration::from_millis(2), Duration::from_secs(1));
/// Rows that one look at a key answers. Whoever finds its turn taken leaves one, so there may be any number.
const LOOKS: usize = 500;
/// Keys that wait for a look here while rows are still read: a part of a second's work, and little memory.
const BACKLOG: usize = 5_000;

/// The way to the loops. Clones lead to the same ones.
#[derive(Clone, Debug)]
pub struct Keys {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    pool: Pool,
    wakes: Arc<Wakes>,
    line: Mutex<Line>,
    working: AtomicUsize,
    arrived: Notify,
}

/// Why a key is looked at.
#[derive(Clone, Debug, Default)]
struct Ask {
    /// Rows that this answers.
    looks: BTreeSet<i64>,
    /// How often it was put off.
    tries: u32,
    /// The time of the token that it was put off for, where nothing else has called since.
    token: Option<DateTime<Utc>>,
}

impl Ask {
    fn add(&mut self, other: Self) {
        let room = LOOKS.saturating_sub(self.looks.len());
        // What has no room is read again.
        self.looks.extend(other.looks.into_iter().take(room));
        self.tries = self.tries.min(other.tries);
        self.token = self.token.and(other.token);
    }
}

/// Keys that are to be looked at. Each one waits for that in one place.
#[derive(Debug, Default)]
struct Line {
    now: BTreeMap<KeyHash, Ask>,
    /// Somebody else is at it, or its token is still to come: then.
    later: BTreeMap<KeyHash, (Instant, Ask)>,
    /// The same in the order of their times.
    due: BTreeSet<(Instant, KeyHash)>,
}

impl Line {
    /// Answers whether there is something to do now. Rows are read again for as long as they stand, so that one which is
    /// known does not call a key back that was put off; a new one, or the end of a task, does.
    fn add(&mut self, key: KeyHash, mut ask: Ask) -> bool {
        if let Some((_, put_off)) = self.later.get(&key) {
            let known = &put_off.looks;
            let is_news =
                ask.looks.is_empty() || known.len() < LOOKS && !ask.looks.is_subset(known);
            if !is_news {
                return false;
            }
            if let Some((_, put_off)) = self.come_back(key) {
                ask.add(put_off);
            }
        }
        self.call(key, ask);
        true
    }

    fn call(&mut self, key: KeyHash, ask: Ask) {
        match self.now.entry(key) {
            Entry::Occupied(mut called) => called.get_mut().add(ask),
            Entry::Vacant(free) => {
                free.insert(ask);
            }
        }
    }

    /// Until then, or until the earlier time that it is put off to already, unless somebody has called for the key
    /// meanwhile. Answers whether it is the next one to come back.
    fn put_off(&mut self, key: KeyHash, mut ask: Ask, mut until: Instant) -> bool {
        if self.now.contains_key(&key) {
            self.call(key, ask);
            return false;
        }
        if let Some((at, other)) = self.come_back(key) {
            until = until.min(at);
            ask.add(other);
        }
        self.later.insert(key, (until, ask));
        self.due.insert((until, key));
        self.due.first() == Some(&(until, key))
    }

    fn come_back(&mut self, key: KeyHash) -> Option<(Instant, Ask)> {
        let (until, ask) = self.later.remove(&key)?;
        self.due.remove(&(until, key));
        Some((until, ask))
    }

    /// Calls those whose time has come; answers when the next one's does.
    fn call_due(&mut self, now: Instant) -> Option<Instant> {
        loop {
            let (until, key) = self.due.first().copied()?;
            if until > now {
                return Some(until);
            }
            if let Some((_, ask)) = self.come_back(key) {
                self.call(key, ask);
            }
        }
    }
}

impl Keys {
    /// Starts the loops on `tracker`. They end when `stop` fires.
    pub(super) fn start(
        pool: &Pool,
        wakes: &Arc<Wakes>,
        tracker: &TaskTracker,
        stop: &CancellationToken,
    ) -> Self {
        let keys = Self {
            shared: Arc::new(Shared {
                pool: pool.clone(),
                wakes: Arc::clone(wakes),
                line: Mutex::default(),
                working: AtomicUsize::new(0),
                arrived: Notify::new(),
            }),
        };
        for _ in 0..CONCURRENT {
            let (looping, stop) = (keys.clone(), stop.clone());
            tracker.spawn(async move {
                stop.run_until_cancelled(looping.run()).await;
            });
        }
        keys
    }

    /// These keys may have room. Never waits; equal ones collapse, and their number is bounded by that of the keys whose
    /// tasks end within one look.
    pub fn look_at(&self, keys: impl IntoIterator<Item = KeyHash>) {
        self.add(keys.into_iter().map(|key| (key, Ask::default())));
    }

    /// The same, for rows that ask for it.
    pub fn answer(&self, looks: impl IntoIterator<Item = Look>) {
        let asks = looks.into_iter().map(|look| {
            let ask = Ask {
                looks: BTreeSet::from([look.id]),
                ..Ask::default()
            };
            (look.key, ask)
        });
        self.add(asks);
    }

    fn add(&self, asks: impl Iterator<Item = (KeyHash, Ask)>) {
        let mut line = self.shared.line.lock();
        let mut any = false;
        for (key, ask) in asks {
            any |= line.add(key, ask);
        }
        drop(line);
        if any {
            self.shared.arrived.notify_one();
        }
    }

    /// Whether there is work enough, so that no more rows are to be read.
    #[must_use]
    pub fn is_full(&self) -> bool {
        self.shared.line.lock().now.len() >= BACKLOG
    }

    /// Whether all that was handed over has been looked at, but for what somebody else is at.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        let line = self.shared.line.lock();
        line.now.is_empty() && self.shared.working.load(Ordering::Acquire) == 0
    }

    async fn run(&self) {
        loop {
            let (taken, next) = self.take();
            if taken.is_empty() {
                let arrived = self.shared.arrived.notified();
                match next {
                    // A notification that comes too late is one that came at the time.
                    Some(next) => drop(tokio::time::timeout_at(next, arrived).await),
                    None => arrived.await,
                }
                continue;
            }
            match self.free(&taken).await {
                Ok(freed) => {
                    for freed in freed {
                        self.take_up(freed, &taken);
                    }
                }
                Err(error) => {
                    said(&error, "concurrency keys are looked at again");
                    for (key, ask) in taken {
                        self.try_again(key, ask, None);
                    }
                }
            }
            self.shared.working.fetch_sub(1, Ordering::AcqRel);
        }
    }

    fn take_up(&self, freed: Freed, taken: &BTreeMap<KeyHash, Ask>) {
        for route in freed.routes {
            self.shared.wakes.route(route, false);
        }
        let ask = taken.get(&freed.key).cloned().unwrap_or_default();
        if freed.again {
            self.try_again(freed.key, ask, freed.token.map(|(_, wait)| wait));
        } else if let Some((at, wait)) = freed.token {
            // Whoever spent the token that this was put off for waits for the next one.
            let is_spent = freed.tasks == 0 && ask.token.is_some_and(|token| token != at);
            if !is_spent {
                let token = Some(at);
                let ask = Ask {
                    token,
                    ..Ask::default()
                };
                self.put_off(freed.key, ask, wait);
            }
        }
    }

    /// What is to be looked at now, and when the next one is to be that was put off.
    fn take(&self) -> (BTreeMap<KeyHash, Ask>, Option<Instant>) {
        let mut line = self.shared.line.lock();
        let next = line.call_due(Instant::now());
        let rest = match line.now.keys().nth(BATCH) {
            Some(first) => {
                let first = *first;
                line.now.split_off(&first)
            }
            None => BTreeMap::new(),
        };
        if !rest.is_empty() {
            // For the other loop.
            self.shared.arrived.notify_one();
        }
        let taken = std::mem::replace(&mut line.now, rest);
        if !taken.is_empty() {
            // Under the lock, so that a key is never in neither.
            self.shared.working.fetch_add(1, Ordering::AcqRel);
        }
        (taken, next)
    }

    async fn free(&self, taken: &BTreeMap<KeyHash, Ask>) -> Result<Vec<Freed>, Error> {
        let asked: Vec<KeyHash> = taken.keys().copied().collect();
        let looks = taken.values().flat_map(|ask| ask.looks.iter().copied());
        let looks: Vec<i64> = looks.collect();
        self.shared
            .pool
            .run(DATABASE_DEADLINE, move |client| {
                Box::pin(async move { keys::free(client, &asked, &looks).await })
            })
            .await
    }

    /// The same after a pause that doubles, but no later than in the time given.
    fn try_again(&self, key: KeyHash, mut ask: Ask, at_most: Option<Duration>) {
        let pause = PAUSES.0 * 2_u32.saturating_pow(ask.tries.min(16));
        let pause = pause.min(PAUSES.1).mul_f64(0.5 + fastrand::f64());
        ask.tries = ask.tries.saturating_add(1);
        self.put_off(key, ask, at_most.map_or(pause, |most| pause.min(most)));
    }

    fn put_off(&self, key: KeyHash, ask: Ask, pause: Duration) {
        let until = Instant::now() + pause;
        if self.shared.line.lock().put_off(key, ask, until) {
            // For a loop that sleeps until a later one.
            self.shared.arrived.notify_one();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEY: KeyHash = 7;

    fn row(id: i64) -> Ask {
        Ask {
            looks: BTreeSet::from([id]),
            ..Ask::default()
        }
    }

    fn take(line: &mut Line) -> Option<Ask> {
        line.now.remove(&KEY)
    }

    #[test]
    fn a_key_that_was_put_off_has_one_wait_however_often_its_row_is_read() {
        let (mut line, now) = (Line::default(), Instant::now());
        assert!(line.add(KEY, row(1)));
        let mut ask = take(&mut line).unwrap();
        ask.tries = 5;
        assert!(line.put_off(KEY, ask, now + PAUSES.1));
        for _ in 0..100 {
            assert!(!line.add(KEY, row(1)));
        }
        assert_eq!(line.call_due(now), Some(now + PAUSES.1));
        assert!(take(&mut line).is_none());
        assert_eq!(line.call_due(now + PAUSES.1), None);
        assert_eq!(take(&mut line).unwrap().tries, 5);
    }

    #[test]
    fn the_end_of_a_task_and_a_new_row_call_a_key_back_and_its_wait_is_over() {
        let now = Instant::now();
        for (news, known) in [(Ask::default(), vec![1]), (row(2), vec![1, 2])] {
            let mut line = Line::default();
            line.put_off(KEY, row(1), now);
            assert!(line.add(KEY, news));
            assert!(line.due.is_empty() && line.later.is_empty());
            let ask = take(&mut line).unwrap();
            assert_eq!(ask.looks.into_iter().collect::<Vec<_>>(), known);
        }
    }

    #[test]
    fn the_earlier_time_that_a_key_is_put_off_to_counts() {
        let (mut line, now) = (Line::default(), Instant::now());
        assert!(line.put_off(KEY, row(1), now + PAUSES.1));
        line.put_off(KEY, row(2), now + 2 * PAUSES.1);
        assert!(!line.put_off(KEY + 1, row(3), now + 3 * PAUSES.1));
        assert!(line.put_off(KEY + 1, row(3), now + PAUSES.0));
        assert_eq!(line.call_due(now), Some(now + PAUSES.0));
        assert_eq!(line.call_due(now + PAUSES.0), Some(now + PAUSES.1));
        assert_eq!(line.now.len(), 1);
        assert_eq!(line.call_due(now + PAUSES.1), None);
        assert_eq!(take(&mut line).unwrap().looks.len(), 2);
    }

    #[test]
    fn news_are_no_wait_for_a_token() {
        let token = || Ask {
            token: Some(DateTime::UNIX_EPOCH),
            ..Ask::default()
        };
        let (mut line, now) = (Line::default(), Instant::now());
        line.put_off(KEY, token(), now);
        line.call_due(now);
        assert!(take(&mut line).unwrap().token.is_some());
        line.put_off(KEY, token(), now);
        line.add(KEY, Ask::default());
        assert!(take(&mut line).unwrap().token.is_none());
    }

    #[test]
    fn a_look_answers_so_many_rows_and_the_rest_calls_nobody() {
        let (mut line, now) = (Line::default(), Instant::now());
        for id in 0..1_000 {
            line.add(KEY, row(id));
        }
        let ask = take(&mut line).unwrap();
        assert_eq!(ask.looks.len(), LOOKS);
        line.put_off(KEY, ask, now);
        assert!(!line.add(KEY, row(999)));
    }

    #[test]
    fn what_is_called_for_while_it_is_looked_at_is_looked_at_again_at_once() {
        let (mut line, now) = (Line::default(), Instant::now());
        line.add(KEY, row(1));
        let taken = take(&mut line).unwrap();
        line.add(KEY, Ask::default());
        line.put_off(KEY, taken, now + PAUSES.1);
        assert_eq!(line.call_due(now), None);
        assert_eq!(take(&mut line).unwrap().looks.len(), 1);
    }
}
