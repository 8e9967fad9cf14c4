//! The settler: reports go in, rows are written in batches, answers go out.
//!
//! A report that is in here is kept until the database has said what it is worth, however long that takes; a
//! completed result is never lost because the database blinked. Above the high-water mark sweeps stop claiming
//! until the backlog is below the low one, so the backlog is bounded by what is in flight besides.

mod counted;
mod freed;
mod slow;
mod traced;
mod writer;

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use parking_lot::Mutex;
use tokio::sync::{Notify, watch};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::keys::Keys;
use super::routes::Routes;
use super::runs::Runs;
use super::wakes::Wakes;
use crate::domain::id::{DispatcherId, RouteId, Token};
use crate::domain::settlement::Settlement;
use crate::fleet::{Reply, Slot};
use crate::store::{self, Pool};
use crate::telemetry::Telemetry;
use crate::telemetry::trace::DeliverySpan;
use slow::SlowLane;
use writer::Writer;
pub use writer::said;

/// Batches that are written at the same time: while one waits for its commit another one is worked on. Each has a
/// connection.
const WRITERS: usize = store::ENDS;

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
    /// What a member of a workflow that is over gets to stop.
    pub cancel_grace: std::time::Duration,
}

/// What is to be written about one delivery.
#[derive(Clone, Debug)]
pub struct Report {
    /// The delivery.
    pub token: Token,
    /// What to write.
    pub settlement: Settlement,
    /// Where the task goes, where the one who reports knows it: a quota above it may be free then.
    pub route: Option<RouteId>,
    /// None for a worker's own report; else the owner of the claim.
    pub owner: Option<DispatcherId>,
    /// The worker that had it, and its node.
    pub worker: Option<(String, String)>,
    /// Who waits for the answer.
    pub reply: Option<Reply>,
    /// The slot of a task under a quota: both are free again at the same instant, or a stranger would take the slot while
    /// the quota is not free yet.
    pub slot: Option<Arc<Slot>>,
    /// Ends when this is written.
    pub span: DeliverySpan,
}

impl Report {
    /// What is known of a delivery whatever it came to; the rest is nobody and nothing.
    #[must_use]
    pub fn new(token: Token, route: Option<RouteId>, settlement: Settlement) -> Self {
        Self {
            token,
            settlement,
            route,
            owner: None,
            worker: None,
            reply: None,
            slot: None,
            span: DeliverySpan::default(),
        }
    }
}

impl Report {
    /// The worker that had it.
    fn worker_name(&self) -> Option<&str> {
        self.worker.as_ref().map(|(worker, _)| worker.as_str())
    }
}

/// The way to the settler. Clones lead to the same one.
#[derive(Clone, Debug)]
pub struct Settler {
    queue: Arc<Queue>,
    gauge: Arc<Gauge>,
    runs: Runs,
    keys: Keys,
    routes: Routes,
    telemetry: Arc<Telemetry>,
}

/// Reports that wait for a writer. Handing one over never waits, or a database that is slow would keep sessions from
/// reading answers to pings; the high-water mark and what is in flight bound their number.
#[derive(Debug, Default)]
struct Queue {
    reports: Mutex<VecDeque<Report>>,
    arrived: Notify,
}

impl Queue {
    fn push(&self, reports: Vec<Report>) {
        self.reports.lock().extend(reports);
        self.arrived.notify_one();
    }

    /// Up to `most` reports, as soon as there is one.
    async fn take(&self, most: usize) -> Vec<Report> {
        loop {
            let taken: Vec<Report> = {
                let mut reports = self.reports.lock();
                let count = reports.len().min(most);
                let taken = reports.drain(..count).collect();
                if !reports.is_empty() {
                    // For the other writer.
                    self.arrived.notify_one();
                }
                taken
            };
            if !taken.is_empty() {
                return taken;
            }
            self.arrived.notified().await;
        }
    }
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
        telemetry: &Arc<Telemetry>,
        tracker: &TaskTracker,
        stop: &CancellationToken,
    ) -> Self {
        let queue = Arc::new(Queue::default());
        let gauge = Arc::new(Gauge {
            backlog: AtomicUsize::new(0),
            high_water: settings.high_water,
            low_water: settings.low_water,
            accepting: watch::Sender::new(true),
            settled: watch::Sender::new(0),
        });
        let runs = Runs::start(
            pool,
            settings.cancel_grace,
            (wakes, telemetry),
            tracker,
            stop,
        );
        let keys = Keys::start(pool, wakes, tracker, stop);
        let routes = Routes::new(telemetry);
        let slow = SlowLane::new(
            pool.clone(),
            settings,
            (Arc::clone(wakes), routes.clone(), Arc::clone(telemetry)),
            Arc::clone(&gauge),
            (runs.clone(), keys.clone()),
            tracker,
            stop,
        );
        for _ in 0..WRITERS {
            let writer = Writer { slow: slow.clone() };
            let (queue, stop) = (Arc::clone(&queue), stop.clone());
            tracker.spawn(async move {
                stop.run_until_cancelled(write_all(writer, queue)).await;
            });
        }
        Self {
            queue,
            gauge,
            runs,
            keys,
            routes,
            telemetry: Arc::clone(telemetry),
        }
    }

    /// Runs of workflows that may have ended with their members.
    #[must_use]
    pub fn runs(&self) -> &Runs {
        &self.runs
    }

    /// Concurrency keys that may have room.
    #[must_use]
    pub fn keys(&self) -> &Keys {
        &self.keys
    }

    /// The routes that are known here, whose quotas it looks at.
    #[must_use]
    pub fn routes(&self) -> &Routes {
        &self.routes
    }

    /// What this process counts.
    #[must_use]
    pub fn telemetry(&self) -> &Arc<Telemetry> {
        &self.telemetry
    }

    /// Hands reports over.
    pub fn report(&self, reports: Vec<Report>) {
        if !reports.is_empty() {
            self.gauge.add(reports.len());
            self.queue.push(reports);
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

async fn write_all(writer: Writer, queue: Arc<Queue>) {
    loop {
        let batch = queue.take(writer.slow.settings.batch).await;
        let count = batch.len();
        let handed_on = writer.write(batch).await;
        writer.slow.gauge.remove(count - handed_on);
    }
}
