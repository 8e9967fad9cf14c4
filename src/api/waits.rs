//! Waiting for the ends of tasks: one poller a process asks for all who wait.
//!
//! It asks soon after this replica has settled a batch, or another one says that it has, at most once in [`RATE`]; soon
//! after somebody has begun to wait, then more and more rarely, since what others say is advice. With nobody waiting it
//! asks nothing.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::{Notify, watch};
use tokio::time::{Instant, sleep, timeout_at};
use tokio_util::sync::CancellationToken;

use super::Error;
use crate::store::tasks::{BATCH, read_ended};
use crate::store::{self, Pool};

/// Batches settle a hundred times a second and more; nobody who waits over a network sees 10 ms.
const RATE: Duration = Duration::from_millis(10);

/// The first wait between two looks that nothing asked for, doubled at each further one. Whoever settles elsewhere learns
/// within this time that somebody waits here.
const FIRST: Duration = Duration::from_millis(100);

/// The longest that an end elsewhere goes unnoticed where others say what they settle: a word can be lost with its
/// connection, and of ends by a cancel, a chore or SQL none is said.
const TOLD: Duration = Duration::from_secs(1);

/// The same where nobody says so: below what a person feels.
const UNTOLD: Duration = Duration::from_millis(200);

/// Looks take this part of the time at most, however many wait.
const SHARE: u32 = 10;

/// A look that takes longer is given up and taken again.
const LOOK_DEADLINE: Duration = Duration::from_secs(5);

/// Waits at once in a replica: each one holds a call of a client, and this many tasks are five statements a look.
const MOST_WAITS: usize = 10_000;

/// The waits of a process; clones share them.
#[derive(Clone, Debug)]
pub struct Waits {
    registry: Arc<Registry>,
}

#[derive(Debug)]
struct Registry {
    waited: Mutex<Table>,
    arrived: Notify,
    /// Whether anybody waits.
    busy: watch::Sender<bool>,
    leaving: CancellationToken,
}

/// What tells a process that tasks may have ended.
#[derive(Debug)]
pub struct Hints {
    /// Grows with each batch that this process settles.
    pub settled: watch::Receiver<u64>,
    /// Grows whenever another replica says that it has settled something; none where nobody listens to that.
    pub told: Option<watch::Receiver<u64>>,
}

impl Hints {
    /// For a process that settles nothing and hears nothing.
    #[must_use]
    pub fn none() -> Self {
        Self {
            settled: watch::channel(0).1,
            told: None,
        }
    }
}

/// Who waits for what.
#[derive(Debug, Default)]
struct Table {
    tasks: HashMap<i64, Entry>,
    /// Over all tasks.
    waiting: usize,
}

/// One task that somebody waits for.
#[derive(Debug)]
struct Entry {
    waiting: usize,
    ended: watch::Sender<bool>,
}

impl Waits {
    /// The registry, and the poller that its owner has to run, until it stops it. When `leaving` comes, all waits end.
    #[must_use]
    pub fn new(pool: Pool, hints: Hints, leaving: CancellationToken) -> (Self, Poller) {
        let registry = Arc::new(Registry {
            waited: Mutex::default(),
            arrived: Notify::new(),
            busy: watch::Sender::new(false),
            leaving,
        });
        let poller = Poller {
            registry: Arc::clone(&registry),
            pool,
            hints,
            pace: FIRST,
        };
        (Self { registry }, poller)
    }

    /// Whether anybody waits here.
    #[must_use]
    pub fn busy(&self) -> watch::Receiver<bool> {
        self.registry.busy.subscribe()
    }

    /// From here on no end of the task is missed. Refused beyond [`MOST_WAITS`].
    pub(super) fn subscribe(&self, id: i64) -> Result<Waiting, Error> {
        let mut waited = self.registry.waited.lock();
        if waited.waiting >= MOST_WAITS {
            let message = format!(
                "this replica has {MOST_WAITS} waits already: try later, or ask another replica."
            );
            return Err(Error::new("FP-115", message));
        }
        waited.waiting += 1;
        let entry = waited.tasks.entry(id).or_insert_with(|| Entry {
            waiting: 0,
            ended: watch::Sender::new(false),
        });
        entry.waiting += 1;
        let ended = entry.ended.subscribe();
        self.registry.set_busy(true);
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

/// How a wait ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Waited {
    /// The task has ended.
    Ended,
    /// The time is over.
    Late,
    /// This replica shuts down.
    Leaving,
}

impl Waiting {
    /// Waits for the end of the task, until then.
    pub(super) async fn ended(&mut self, until: Instant) -> Waited {
        let leaving = self.registry.leaving.clone();
        tokio::select! {
            biased;
            seen = timeout_at(until, self.ended.wait_for(|ended| *ended)) => match seen {
                Ok(Ok(_)) => Waited::Ended,
                _ => Waited::Late,
            },
            () = leaving.cancelled() => Waited::Leaving,
        }
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        let mut waited = self.registry.waited.lock();
        waited.waiting -= 1;
        if let Some(entry) = waited.tasks.get_mut(&self.id) {
            entry.waiting -= 1;
            if entry.waiting == 0 {
                waited.tasks.remove(&self.id);
            }
        }
        if waited.waiting == 0 {
            self.registry.set_busy(false);
        }
    }
}

/// Asks the database on behalf of all who wait.
#[derive(Debug)]
pub struct Poller {
    registry: Arc<Registry>,
    pool: Pool,
    hints: Hints,
    /// The next wait for a look that nothing asks for.
    pace: Duration,
}

impl Poller {
    /// Runs until `stop`.
    pub async fn run(mut self, stop: CancellationToken) {
        stop.run_until_cancelled(async {
            loop {
                self.next_look().await;
                let begun = Instant::now();
                if let Err(error) = self.look().await {
                    // The pool's owner reports the outage; waits go on until their time is over.
                    tracing::debug!(%error, "could not look for ended tasks");
                }
                sleep(RATE.max(begun.elapsed() * SHARE)).await;
            }
        })
        .await;
    }

    /// Returns when there is a reason to look.
    async fn next_look(&mut self) {
        while self.registry.unended().is_empty() {
            self.registry.arrived.notified().await;
            self.pace = FIRST;
        }
        let longest = if self.hints.told.is_some() {
            TOLD
        } else {
            UNTOLD
        };
        let paced = sleep(self.pace.mul_f64(0.5 + fastrand::f64() / 2.0));
        let (settled, told) = (&mut self.hints.settled, self.hints.told.as_mut());
        tokio::select! {
            () = changed(Some(settled)) => {}
            () = changed(told) => {}
            () = paced => self.pace = (self.pace * 2).min(longest),
            // Somebody has come: the end may be one that nobody knew to be waited for.
            () = self.registry.arrived.notified() => self.pace = FIRST,
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
            for entry in ended.iter().filter_map(|id| waited.tasks.get(id)) {
                entry.ended.send_replace(true);
            }
        }
        Ok(())
    }
}

/// Waits for news; for ever where nobody is left to bring any.
async fn changed(news: Option<&mut watch::Receiver<u64>>) {
    if let Some(news) = news
        && news.changed().await.is_ok()
    {
        return;
    }
    std::future::pending::<()>().await;
}

impl Registry {
    fn set_busy(&self, busy: bool) {
        self.busy
            .send_if_modified(|before| std::mem::replace(before, busy) != busy);
    }

    /// The tasks that are waited for and not known to have ended.
    fn unended(&self) -> Vec<i64> {
        let waited = self.waited.lock();
        let unended = waited
            .tasks
            .iter()
            .filter(|(_, entry)| !*entry.ended.borrow());
        unended.map(|(id, _)| *id).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::Settings;

    #[tokio::test]
    async fn waits_are_bounded_over_all_tasks_and_a_freed_one_can_be_taken() {
        let settings = Settings::new("postgres://nobody@localhost/none");
        let pool = Pool::new(&settings).unwrap();
        let (waits, _poller) = Waits::new(pool, Hints::none(), CancellationToken::new());
        let mut all = Vec::new();
        for number in 0..MOST_WAITS {
            // Many for one task, and some for others.
            let id = i64::try_from(number % 3).unwrap();
            all.push(waits.subscribe(id).unwrap());
        }
        let refused = waits.subscribe(1).unwrap_err();
        assert_eq!(refused.code.code, "FP-115");
        assert!(*waits.busy().borrow());
        all.truncate(MOST_WAITS - 1);
        all.push(waits.subscribe(7).unwrap());
        all.clear();
        assert!(!*waits.busy().borrow());
        assert!(waits.registry.waited.lock().tasks.is_empty());
    }
}
