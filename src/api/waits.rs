//! Waiting for the ends of tasks: one poller a process asks for all who wait.
//!
//! It asks soon after this replica has settled a batch, at most once in [`RATE`], and every [`FALLBACK`] for
//! tasks that other replicas settle. With nobody waiting it asks nothing.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::{Notify, watch};
use tokio::time::{Instant, sleep, sleep_until, timeout_at};
use tokio_util::sync::CancellationToken;

use super::Error;
use crate::store::tasks::{BATCH, read_ended};
use crate::store::{self, Pool};

/// Batches settle a hundred times a second and more; nobody who waits over a network sees 10 ms.
const RATE: Duration = Duration::from_millis(10);

/// The longest that an end on another replica goes unnoticed: below what a person feels.
const FALLBACK: Duration = Duration::from_millis(200);

/// A look that takes longer is given up and taken again.
const LOOK_DEADLINE: Duration = Duration::from_secs(5);

/// Waits at once in a replica: each one holds a connection of a client, and this many are five statements.
const MOST_WAITS: usize = 10_000;

/// The waits of a process; clones share them.
#[derive(Clone, Debug)]
pub struct Waits {
    registry: Arc<Registry>,
}

#[derive(Debug)]
struct Registry {
    waited: Mutex<HashMap<i64, Waited>>,
    arrived: Notify,
    shutdown: CancellationToken,
}

/// One task that somebody waits for.
#[derive(Debug)]
struct Waited {
    waiting: usize,
    ended: watch::Sender<bool>,
}

impl Waits {
    /// The registry, and the poller that its owner has to run. `settled` counts the batches that this replica has
    /// settled: a hint that costs nothing when it never changes. When `shutdown` comes, all waits end.
    #[must_use]
    pub fn new(
        pool: Pool,
        settled: watch::Receiver<u64>,
        shutdown: CancellationToken,
    ) -> (Self, Poller) {
        let registry = Arc::new(Registry {
            waited: Mutex::default(),
            arrived: Notify::new(),
            shutdown,
        });
        let poller = Poller {
            registry: Arc::clone(&registry),
            pool,
            settled,
        };
        (Self { registry }, poller)
    }

    /// From here on no end of the task is missed. Refused beyond [`MOST_WAITS`].
    pub(super) fn subscribe(&self, id: i64) -> Result<Waiting, Error> {
        let mut waited = self.registry.waited.lock();
        // Counted by task: many may wait for one.
        if waited.len() >= MOST_WAITS && !waited.contains_key(&id) {
            let message = format!("{MOST_WAITS} tasks are being waited for already; try later.");
            return Err(Error::new("FP-115", message));
        }
        let entry = waited.entry(id).or_insert_with(|| Waited {
            waiting: 0,
            ended: watch::Sender::new(false),
        });
        entry.waiting += 1;
        let ended = entry.ended.subscribe();
        drop(waited);
        self.registry.arrived.notify_one();
        Ok(Waiting {
            registry: Arc::clone(&self.registry),
            id,
            ended,
        })
    }
}

/// One who waits; leaves the registry when dropped.
#[derive(Debug)]
pub(super) struct Waiting {
    registry: Arc<Registry>,
    id: i64,
    ended: watch::Receiver<bool>,
}

impl Waiting {
    /// Whether the task ended before the time was over.
    pub(super) async fn ended(&mut self, until: Instant) -> bool {
        let shutdown = self.registry.shutdown.clone();
        tokio::select! {
            seen = timeout_at(until, self.ended.wait_for(|ended| *ended)) => matches!(seen, Ok(Ok(_))),
            () = shutdown.cancelled() => false,
        }
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        let mut waited = self.registry.waited.lock();
        if let Some(entry) = waited.get_mut(&self.id) {
            entry.waiting -= 1;
            if entry.waiting == 0 {
                waited.remove(&self.id);
            }
        }
    }
}

/// Asks the database on behalf of all who wait.
#[derive(Debug)]
pub struct Poller {
    registry: Arc<Registry>,
    pool: Pool,
    settled: watch::Receiver<u64>,
}

impl Poller {
    /// Runs until the shutdown.
    pub async fn run(mut self) {
        let shutdown = self.registry.shutdown.clone();
        loop {
            tokio::select! {
                () = shutdown.cancelled() => return,
                () = self.next_look() => {}
            }
            let earliest = Instant::now() + RATE;
            if let Err(error) = self.look().await {
                // The pool's owner reports the outage; waits go on until their time is over.
                tracing::debug!(%error, "could not look for ended tasks");
            }
            sleep_until(earliest).await;
        }
    }

    /// Returns when there is a reason to look.
    async fn next_look(&mut self) {
        while self.registry.unended().is_empty() {
            self.registry.arrived.notified().await;
        }
        let settled = async {
            if self.settled.changed().await.is_err() {
                // Nobody settles here.
                std::future::pending::<()>().await;
            }
        };
        tokio::select! {
            () = settled => {}
            () = sleep(FALLBACK.mul_f64(0.5 + fastrand::f64() / 2.0)) => {}
        }
    }

    async fn look(&self) -> Result<(), store::Error> {
        for ids in self.registry.unended().chunks(BATCH) {
            let ids = ids.to_vec();
            let ended = self
                .pool
                .run(LOOK_DEADLINE, move |client| {
                    Box::pin(async move { read_ended(client, &ids).await })
                })
                .await?;
            let waited = self.registry.waited.lock();
            for entry in ended.iter().filter_map(|id| waited.get(id)) {
                entry.ended.send_replace(true);
            }
        }
        Ok(())
    }
}

impl Registry {
    /// The tasks that are waited for and not known to have ended.
    fn unended(&self) -> Vec<i64> {
        let waited = self.waited.lock();
        let unended = waited.iter().filter(|(_, entry)| !*entry.ended.borrow());
        unended.map(|(id, _)| *id).collect()
    }
}
