//! Concurrency keys whose tasks have ended here: lets the next ones go, after the settle's commit.
//!
//! A key in here is looked at once, however many of its tasks have ended since the last look. What is lost with this
//! process is found by a chore of whichever replica lives.

mod line;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use line::{Ask, Line};

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
