//! Runs of workflows whose members have ended here: looks whether the run has ended too, after the settle's commit.
//!
//! A run in here is looked at once, however many of its members have ended since the last look. What is lost with this
//! process is found by a chore of whichever replica lives.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use futures_util::StreamExt as _;
use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::counts;
use super::hub::DATABASE_DEADLINE;
use super::settler::said;
use super::wakes::Wakes;
use crate::domain::id::RunId;
use crate::store::runs::{self, Done, Step};
use crate::store::{Error, Pool, dispatchers};
use crate::telemetry::Telemetry;

/// Runs in one look.
const BATCH: usize = 500;
/// Steps at the same time, each with a connection of its own: while one waits for its commit another one works.
const CONCURRENT: usize = 2;
/// First wait for a run whose row somebody else has; doubles at each try.
const PAUSE: Duration = Duration::from_millis(20);
/// Tries before it is left to the chores: some five seconds.
const TRIES: u32 = 8;

/// The way to the loop. Clones lead to the same one.
#[derive(Clone, Debug)]
pub struct Runs {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    pool: Pool,
    wakes: Arc<Wakes>,
    telemetry: Arc<Telemetry>,
    /// What a member that runs gets to stop.
    grace: Duration,
    /// Runs to look at, and how often that was put off.
    waiting: Mutex<BTreeMap<RunId, u32>>,
    working: AtomicBool,
    arrived: Notify,
    tracker: TaskTracker,
    stop: CancellationToken,
}

impl Runs {
    /// Starts the loop on `tracker`. It ends when `stop` fires.
    pub(super) fn start(
        pool: &Pool,
        grace: Duration,
        (wakes, telemetry): (&Arc<Wakes>, &Arc<Telemetry>),
        tracker: &TaskTracker,
        stop: &CancellationToken,
    ) -> Self {
        let runs = Self {
            shared: Arc::new(Shared {
                pool: pool.clone(),
                wakes: Arc::clone(wakes),
                telemetry: Arc::clone(telemetry),
                grace,
                waiting: Mutex::default(),
                working: AtomicBool::new(false),
                arrived: Notify::new(),
                tracker: tracker.clone(),
                stop: stop.clone(),
            }),
        };
        let (looping, stop) = (runs.clone(), stop.clone());
        tracker.spawn(async move {
            stop.run_until_cancelled(looping.run()).await;
        });
        runs
    }

    /// These runs may need something. Never waits; equal ones collapse, and their number is bounded by that of the runs
    /// whose members end within one look.
    pub fn look_at(&self, runs: impl IntoIterator<Item = RunId>) {
        let mut waiting = self.shared.waiting.lock();
        let before = waiting.len();
        for run in runs {
            waiting.insert(run, 0);
        }
        let grown = waiting.len() > before;
        drop(waiting);
        if grown {
            self.shared.arrived.notify_one();
        }
    }

    /// Whether all that was handed over has been looked at, but for what somebody else has locked.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        let waiting = self.shared.waiting.lock();
        waiting.is_empty() && !self.shared.working.load(Ordering::Acquire)
    }

    async fn run(&self) {
        loop {
            let taken = self.take();
            if taken.is_empty() {
                self.shared.arrived.notified().await;
                continue;
            }
            if let Err(error) = self.work(&taken).await {
                said(&error, "workflows are looked at again");
                for (run, tries) in taken {
                    self.put_off(run, tries_after(&error, tries));
                }
            }
            self.shared.working.store(false, Ordering::Release);
        }
    }

    fn take(&self) -> BTreeMap<RunId, u32> {
        let mut waiting = self.shared.waiting.lock();
        let rest = match waiting.keys().nth(BATCH) {
            Some(first) => {
                let first = *first;
                waiting.split_off(&first)
            }
            None => BTreeMap::new(),
        };
        let taken = std::mem::replace(&mut *waiting, rest);
        // Under the lock, so that a run is never in neither.
        self.shared
            .working
            .store(!taken.is_empty(), Ordering::Release);
        taken
    }

    /// One look at all, then what each needs.
    async fn work(&self, taken: &BTreeMap<RunId, u32>) -> Result<(), Error> {
        let ids: Vec<RunId> = taken.keys().copied().collect();
        let steps = self
            .shared
            .pool
            .run(DATABASE_DEADLINE, move |client| {
                Box::pin(async move { runs::look(client, &ids).await })
            })
            .await?;
        futures_util::stream::iter(steps)
            .for_each_concurrent(CONCURRENT, |(run, step)| {
                let tries = taken.get(&run).copied().unwrap_or_default();
                async move {
                    match self.take_step(run, step).await {
                        Ok(done) if done.busy => self.put_off(run, tries),
                        // There may be more of it, or what follows an end.
                        Ok(done) if done.moved => self.look_at([run]),
                        Ok(_) => {}
                        Err(error) => {
                            said(&error, "a workflow is looked at again");
                            self.put_off(run, tries_after(&error, tries));
                        }
                    }
                }
            })
            .await;
        Ok(())
    }

    async fn take_step(&self, run: RunId, step: Step) -> Result<Done, Error> {
        let grace = self.shared.grace;
        let done = self
            .shared
            .pool
            .run(DATABASE_DEADLINE, move |client| {
                Box::pin(async move {
                    let done = runs::take_step(client, run, step, grace).await?;
                    if !done.routes.is_empty() {
                        dispatchers::wake_sleepers(client, &done.routes, 0).await?;
                    }
                    Ok(done)
                })
            })
            .await?;
        counts::cancelled(&self.shared.telemetry, done.cancelled.iter().copied());
        for route in &done.routes {
            self.shared.wakes.route(*route, true);
        }
        if let Some(state) = &done.ended {
            tracing::debug!(run, state, "a workflow has ended");
        }
        Ok(done)
    }

    /// The same again later; after some tries it is the chores' to find.
    fn put_off(&self, run: RunId, tries: u32) {
        if tries >= TRIES {
            return;
        }
        let pause = PAUSE * 2_u32.saturating_pow(tries);
        let runs = self.clone();
        self.shared.tracker.spawn(async move {
            let stop = runs.shared.stop.clone();
            let slept = stop
                .run_until_cancelled(tokio::time::sleep(pause.mul_f64(0.5 + fastrand::f64())))
                .await;
            if slept.is_some() {
                runs.shared
                    .waiting
                    .lock()
                    .entry(run)
                    .or_insert(tries.saturating_add(1));
                runs.shared.arrived.notify_one();
            }
        });
    }
}

/// An outage says nothing of the run: what was to be looked at when it began is still so when it ends, and the chores
/// would come to it much later.
fn tries_after(error: &Error, tries: u32) -> u32 {
    if error.is_transient() {
        tries.min(TRIES - 1)
    } else {
        tries
    }
}
