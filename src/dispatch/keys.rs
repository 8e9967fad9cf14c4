//! Concurrency keys whose tasks have ended here: lets the next ones go, after the settle's commit.
//!
//! A key in here is looked at once, however many of its tasks have ended since the last look. What is lost with this
//! process is found by a chore of whichever replica lives.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::Notify;
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

/// The way to the loops. Clones lead to the same ones.
#[derive(Clone, Debug)]
pub struct Keys {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    pool: Pool,
    wakes: Arc<Wakes>,
    waiting: Mutex<BTreeMap<KeyHash, Ask>>,
    working: AtomicUsize,
    arrived: Notify,
    tracker: TaskTracker,
    stop: CancellationToken,
}

/// Why a key is looked at.
#[derive(Clone, Debug, Default)]
struct Ask {
    /// Rows that this answers.
    looks: Vec<i64>,
    /// How often it was put off.
    tries: u32,
}

impl Ask {
    fn add(&mut self, other: Self) {
        for look in other.looks {
            // A walk finds again what waits here.
            if !self.looks.contains(&look) {
                self.looks.push(look);
            }
        }
        self.tries = self.tries.min(other.tries);
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
                waiting: Mutex::default(),
                working: AtomicUsize::new(0),
                arrived: Notify::new(),
                tracker: tracker.clone(),
                stop: stop.clone(),
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
                looks: vec![look.id],
                tries: 0,
            };
            (look.key, ask)
        });
        self.add(asks);
    }

    fn add(&self, asks: impl Iterator<Item = (KeyHash, Ask)>) {
        let mut waiting = self.shared.waiting.lock();
        let mut any = false;
        for (key, ask) in asks {
            waiting.entry(key).or_insert_with(|| ask.clone()).add(ask);
            any = true;
        }
        drop(waiting);
        if any {
            self.shared.arrived.notify_one();
        }
    }

    /// Whether all that was handed over has been looked at, but for what somebody else is at.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        let waiting = self.shared.waiting.lock();
        waiting.is_empty() && self.shared.working.load(Ordering::Acquire) == 0
    }

    async fn run(&self) {
        loop {
            let taken = self.take();
            if taken.is_empty() {
                self.shared.arrived.notified().await;
                continue;
            }
            match self.free(&taken).await {
                Ok(freed) => {
                    for freed in freed {
                        for route in freed.routes {
                            self.shared.wakes.route(route, false);
                        }
                        if let Some(ask) = taken.get(&freed.key).filter(|_| freed.again) {
                            self.put_off(freed.key, ask.clone());
                        }
                    }
                }
                Err(error) => {
                    said(&error, "concurrency keys are looked at again");
                    for (key, ask) in taken {
                        self.put_off(key, ask);
                    }
                }
            }
            self.shared.working.fetch_sub(1, Ordering::AcqRel);
        }
    }

    fn take(&self) -> BTreeMap<KeyHash, Ask> {
        let mut waiting = self.shared.waiting.lock();
        let rest = match waiting.keys().nth(BATCH) {
            Some(first) => {
                let first = *first;
                waiting.split_off(&first)
            }
            None => BTreeMap::new(),
        };
        if !rest.is_empty() {
            // For the other loop.
            self.shared.arrived.notify_one();
        }
        let taken = std::mem::replace(&mut *waiting, rest);
        if !taken.is_empty() {
            // Under the lock, so that a key is never in neither.
            self.shared.working.fetch_add(1, Ordering::AcqRel);
        }
        taken
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

    /// The same again later.
    fn put_off(&self, key: KeyHash, mut ask: Ask) {
        let pause = PAUSES.0 * 2_u32.saturating_pow(ask.tries.min(16));
        let pause = pause.min(PAUSES.1);
        ask.tries = ask.tries.saturating_add(1);
        let keys = self.clone();
        self.shared.tracker.spawn(async move {
            let stop = keys.shared.stop.clone();
            let slept = stop
                .run_until_cancelled(tokio::time::sleep(pause.mul_f64(0.5 + fastrand::f64())))
                .await;
            if slept.is_some() {
                keys.add(std::iter::once((key, ask)));
            }
        });
    }
}
