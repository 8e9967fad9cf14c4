//! What a scrape shows beside the counters: this replica as it is now, and the database as it was a moment ago.
//!
//! The database is read at most once in [`EVERY`] for all scrapes together, by the statements that lists for operators
//! use. A scrape waits [`PATIENCE`] for that and then shows what was read last: its age says how old it is.

mod database;

use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use tokio::sync::watch;

use super::{Error, State};
use crate::domain::id::TaskId;
use crate::domain::scope::Transport;
use crate::store::Pool;
use crate::store::enqueue::{Answer, Enqueued};
use crate::store::workflows::Started;
use crate::telemetry::{DatabaseNow, Door, Now, ReplicaNow, Telemetry};

/// Between two reads of the database.
const EVERY: Duration = Duration::from_secs(10);
/// What a scrape waits for a read at most.
const PATIENCE: Duration = Duration::from_secs(2);
/// What a read may take, a connection included: it is over before the next one begins.
const DEADLINE: Duration = Duration::from_secs(8);

/// The counters of this process, and the last read of the database. Clones share them.
#[derive(Clone, Debug, Default)]
pub struct Metrics {
    /// The counters.
    pub telemetry: Arc<Telemetry>,
    reads: Arc<Reads>,
}

#[derive(Debug, Default)]
struct Reads {
    stand: Mutex<Stand>,
    /// Grows when a read ends.
    ended: watch::Sender<u64>,
}

#[derive(Debug, Default)]
struct Stand {
    /// When the last read began, whatever came of it.
    begun: Option<Instant>,
    running: bool,
    /// The last good one, and when it began.
    last: Option<(Instant, Arc<DatabaseNow>)>,
}

/// A read on its way. However it ends, those who wait learn of it.
struct Read {
    metrics: Metrics,
    begun: Instant,
    found: Option<DatabaseNow>,
}

impl Drop for Read {
    fn drop(&mut self) {
        let found = self.found.take();
        let took = self.begun.elapsed();
        self.metrics.telemetry.database.read(found.is_some(), took);
        {
            let mut stand = self.metrics.reads.stand.lock();
            stand.running = false;
            if let Some(found) = found {
                stand.last = Some((self.begun, Arc::new(found)));
            }
        }
        self.metrics.reads.ended.send_modify(|count| *count += 1);
    }
}

impl Metrics {
    /// Over these counters.
    #[must_use]
    pub fn new(telemetry: &Arc<Telemetry>) -> Self {
        Self {
            telemetry: Arc::clone(telemetry),
            ..Self::default()
        }
    }

    /// A read to begin now, if it is time for one; else whether one is on its way.
    fn next(&self, now: Instant) -> Result<Read, bool> {
        let mut stand = self.reads.stand.lock();
        let rests = |begun: Instant| now.saturating_duration_since(begun) < EVERY;
        if stand.running || stand.begun.is_some_and(rests) {
            return Err(stand.running);
        }
        (stand.begun, stand.running) = (Some(now), true);
        Ok(Read {
            metrics: self.clone(),
            begun: now,
            found: None,
        })
    }

    /// Sees to it that the last read is recent, as far as that takes no longer than a scrape waits.
    async fn refresh(&self, pool: &Pool) {
        let mut ended = self.reads.ended.subscribe();
        match self.next(Instant::now()) {
            Ok(mut read) => {
                // The work goes on by itself when nobody waits for it any more.
                let reading = pool.run(DEADLINE, move |client| {
                    Box::pin(async move {
                        read.found = Some(database::read(client).await?);
                        drop(read);
                        Ok(())
                    })
                });
                if let Ok(Err(error)) = tokio::time::timeout(PATIENCE, reading).await {
                    tracing::debug!(%error, "the database was not read for a scrape");
                }
            }
            Err(true) => {
                let _late = tokio::time::timeout(PATIENCE, ended.changed())
                    .await
                    .is_err();
            }
            Err(false) => {}
        }
    }
}

impl State {
    /// Everything for Prometheus, as text.
    pub async fn scrape(&self) -> Result<String, Error> {
        self.metrics.refresh(&self.pool).await;
        let last = self.metrics.reads.stand.lock().last.clone();
        let (begun, database) = last.unzip();
        let now = Now {
            replica: self.replica_now(),
            faults: self.pool.faults().collect(),
            database,
            database_age: begun.map(|begun| begun.elapsed()),
        };
        let printed = self.metrics.telemetry.print(&now);
        printed.map_err(|error| Error::new("FP-114", error.to_string()))
    }

    /// Counts tasks that came in by this door.
    pub(super) fn count_enqueued(&self, door: Door, enqueued: &[Enqueued]) {
        let answers = [Answer::Created, Answer::Existing, Answer::Replaced];
        let answers = answers.map(|answer| {
            let alike = enqueued.iter().filter(|task| task.answer == answer);
            alike.count() as u64
        });
        self.metrics.telemetry.enqueued.add(door, answers);
    }

    /// Counts the members of a workflow that came in by this door, or that existed with it.
    pub(super) fn count_started(&self, door: Door, started: &Started) {
        let members = started.task_ids.len() as u64;
        let answers = if started.created {
            [members, 0, 0]
        } else {
            [0, members, 0]
        };
        self.metrics.telemetry.enqueued.add(door, answers);
    }

    /// Counts members that were added by this door.
    pub(super) fn count_members(&self, door: Door, added: &[TaskId]) {
        let answers = [added.len() as u64, 0, 0];
        self.metrics.telemetry.enqueued.add(door, answers);
    }

    fn replica_now(&self) -> ReplicaNow {
        let pool = self.pool.usage();
        let in_use = pool.open.saturating_sub(pool.idle);
        let mut now = ReplicaNow {
            ready: self.readiness.borrow().ready,
            pool: [pool.size, pool.open, in_use, pool.waiting].map(|number| number as u64),
            ..ReplicaNow::default()
        };
        let hub = self.hub.borrow().clone();
        let strength = hub
            .as_ref()
            .map(|hub| hub.fleet.strength(Instant::now()))
            .unwrap_or_default();
        now.workers = vec![
            (Transport::Grpc, strength.grpc),
            (Transport::WebSocket, strength.websocket),
        ];
        (now.slots, now.slots_free) = (strength.slots, strength.free);
        now.slots_stuck = strength.stuck;
        if let Some(hub) = hub {
            now.draining = hub.is_draining();
            now.in_flight = hub.in_flight.len() as u64;
            now.backlog = hub.settler.backlog() as u64;
        }
        now
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_read_at_a_time_and_none_before_its_time() {
        let (metrics, start) = (Metrics::default(), Instant::now());
        let at = |seconds| start + Duration::from_secs(seconds);
        let first = metrics.next(at(0)).ok().unwrap();
        assert_eq!(metrics.next(at(1)).err(), Some(true), "wait for that one");
        assert_eq!(metrics.next(at(30)).err(), Some(true));
        drop(first);
        assert_eq!(
            metrics.next(at(9)).err(),
            Some(false),
            "a failure rests too"
        );
        let mut second = metrics.next(at(10)).ok().unwrap();
        assert!(metrics.reads.stand.lock().last.is_none());
        second.found = Some(DatabaseNow::default());
        drop(second);
        let last = metrics.reads.stand.lock().last.clone();
        assert_eq!(last.unwrap().0, at(10), "as old as its beginning");
    }
}
