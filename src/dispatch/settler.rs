//! The settler: reports go in, rows are written in batches, answers go out.
//!
//! A report that is in here is kept until the database has said what it is worth, however long that takes; a
//! completed result is never lost because the database blinked. Above the high-water mark sweeps stop claiming
//! until the backlog is below the low one, so the backlog is bounded by what is in flight besides.

mod slow;
mod writer;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use tokio::sync::{Mutex, mpsc, watch};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::wakes::Wakes;
use crate::domain::id::{DispatcherId, Token};
use crate::domain::settlement::Settlement;
use crate::fleet::Session;
use crate::store::Pool;
use slow::SlowLane;
use writer::Writer;

/// Groups of reports that may wait for a writer. Senders wait beyond that, which slows their streams down.
const QUEUE: usize = 1024;
/// Batches that are written at the same time: while one waits for its commit another one is worked on.
const WRITERS: usize = 2;

/// How settling is done.
#[derive(Clone, Copy, Debug)]
pub struct Settings {
    /// Reports in one batch at most; the design's bound is 2,000 ids.
    pub batch: usize,
    /// Backlog above which sweeps stop.
    pub high_water: usize,
    /// Backlog below which they go on.
    pub low_water: usize,
    /// As in the hub's settings.
    pub max_losses: i32,
}

/// What is to be written about one delivery.
#[derive(Clone, Debug)]
pub struct Report {
    /// The delivery.
    pub token: Token,
    /// What to write.
    pub settlement: Settlement,
    /// None for a worker's own report; else the owner of the claim.
    pub owner: Option<DispatcherId>,
    /// The worker that had it, and its node.
    pub worker: Option<(String, String)>,
    /// Who waits for the answer.
    pub reply: Option<Session>,
}

/// The way to the settler. Clones lead to the same one.
#[derive(Clone, Debug)]
pub struct Settler {
    queue: mpsc::Sender<Vec<Report>>,
    gauge: Arc<Gauge>,
}

/// How much is in the settler, for those who wait for it to change.
#[derive(Debug)]
pub(super) struct Gauge {
    backlog: AtomicUsize,
    high_water: usize,
    low_water: usize,
    accepting: watch::Sender<bool>,
    settled: watch::Sender<u64>,
}

impl Gauge {
    fn add(&self, reports: usize) {
        let backlog = self.backlog.fetch_add(reports, Ordering::Relaxed) + reports;
        if backlog > self.high_water {
            self.accepting
                .send_if_modified(|accepting| std::mem::replace(accepting, false));
        }
    }

    fn remove(&self, reports: usize) {
        let backlog = self.backlog.fetch_sub(reports, Ordering::Relaxed) - reports;
        if backlog <= self.low_water {
            self.accepting
                .send_if_modified(|accepting| !std::mem::replace(accepting, true));
        }
        self.settled.send_modify(|count| *count += 1);
    }
}

impl Settler {
    /// Starts the settler's loops on `tracker`. They end when `stop` fires and give up what they have then.
    #[must_use]
    pub fn start(
        pool: &Pool,
        settings: Settings,
        wakes: &Arc<Wakes>,
        tracker: &TaskTracker,
        stop: &CancellationToken,
    ) -> Self {
        let (queue, reports) = mpsc::channel(QUEUE);
        let gauge = Arc::new(Gauge {
            backlog: AtomicUsize::new(0),
            high_water: settings.high_water,
            low_water: settings.low_water,
            accepting: watch::Sender::new(true),
            settled: watch::Sender::new(0),
        });
        let slow = SlowLane::new(
            pool.clone(),
            settings,
            Arc::clone(wakes),
            Arc::clone(&gauge),
            tracker,
            stop,
        );
        let reports = Arc::new(Mutex::new(reports));
        for _ in 0..WRITERS {
            let writer = Writer { slow: slow.clone() };
            let (reports, stop) = (Arc::clone(&reports), stop.clone());
            tracker.spawn(async move {
                stop.run_until_cancelled(write_all(writer, reports)).await;
            });
        }
        Self { queue, gauge }
    }

    /// Hands reports over; waits while the queue is full.
    pub async fn report(&self, reports: Vec<Report>) {
        if reports.is_empty() {
            return;
        }
        let count = reports.len();
        self.gauge.add(count);
        if self.queue.send(reports).await.is_err() {
            self.gauge.remove(count);
            tracing::warn!(
                count,
                "reports came after the settler had stopped; their tasks run again"
            );
        }
    }

    /// Reports that are not settled yet.
    #[must_use]
    pub fn backlog(&self) -> usize {
        self.gauge.backlog.load(Ordering::Relaxed)
    }

    /// Waits until sweeps may claim.
    pub async fn accepting(&self) {
        let mut accepting = self.gauge.accepting.subscribe();
        // The sender lives as long as this handle.
        let _open = accepting.wait_for(|accepting| *accepting).await.is_ok();
    }

    /// Grows whenever something has been settled here.
    #[must_use]
    pub fn settled(&self) -> watch::Receiver<u64> {
        self.gauge.settled.subscribe()
    }

    /// Waits until everything handed over has been settled.
    pub async fn flushed(&self) {
        let mut settled = self.settled();
        while self.backlog() > 0 {
            if settled.changed().await.is_err() {
                return;
            }
        }
    }
}

async fn write_all(writer: Writer, reports: Arc<Mutex<mpsc::Receiver<Vec<Report>>>>) {
    loop {
        let mut batch = Vec::new();
        {
            let mut reports = reports.lock().await;
            let Some(first) = reports.recv().await else {
                return;
            };
            batch.extend(first);
            while batch.len() < writer.slow.settings.batch
                && let Ok(more) = reports.try_recv()
            {
                batch.extend(more);
            }
        }
        let count = batch.len();
        let handed_on = writer.write(batch).await;
        writer.slow.gauge.remove(count - handed_on);
    }
}
