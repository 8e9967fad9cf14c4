//! The slow lane: reports whose row somebody else has locked, one a transaction, so that one open handler
//! transaction delays its own task and never the results of strangers.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::writer::{Acks, Written, condemn, said, write_once};
use super::{Gauge, Keys, Report, Runs, Settings};
use crate::dispatch::hub::DATABASE_DEADLINE;
use crate::dispatch::routes::Routes;
use crate::dispatch::wakes::Wakes;
use crate::store::settle::{self, Goes};
use crate::store::{Error, Pool};
use crate::telemetry::Telemetry;

/// Connections that wait for a lock at the same time; the others are for those who need none.
const WAITERS: usize = 2;
/// Between two tries at a row that stays locked, so that every report gets its turn at a connection.
const PAUSE: Duration = Duration::from_millis(100);

/// Where locked reports go. Clones lead to the same lane.
#[derive(Clone, Debug)]
pub(super) struct SlowLane {
    pub(super) pool: Pool,
    pub(super) settings: Settings,
    pub(super) wakes: Arc<Wakes>,
    pub(super) routes: Routes,
    pub(super) telemetry: Arc<Telemetry>,
    pub(super) gauge: Arc<Gauge>,
    pub(super) runs: Runs,
    pub(super) keys: Keys,
    pub(super) tracker: TaskTracker,
    pub(super) stop: CancellationToken,
    waiters: Arc<Semaphore>,
}

impl SlowLane {
    pub(super) fn new(
        pool: Pool,
        settings: Settings,
        (wakes, routes, telemetry): (Arc<Wakes>, Routes, Arc<Telemetry>),
        gauge: Arc<Gauge>,
        (runs, keys): (Runs, Keys),
        tracker: &TaskTracker,
        stop: &CancellationToken,
    ) -> Self {
        let waiters = Arc::new(Semaphore::new(WAITERS));
        Self {
            pool,
            settings,
            wakes,
            routes,
            telemetry,
            gauge,
            runs,
            keys,
            tracker: tracker.clone(),
            stop: stop.clone(),
            waiters,
        }
    }

    /// Takes a report over. Its number is bounded by the high-water mark, which counts it.
    pub(super) fn take(&self, report: Report) {
        let lane = self.clone();
        self.tracker.spawn(async move {
            lane.stop.run_until_cancelled(lane.settle(report)).await;
        });
    }

    /// Waits for the row, again and again, and settles by its newest version.
    async fn settle(&self, mut report: Report) {
        loop {
            match self.try_once(report.clone()).await {
                Ok(written) if !written.is_busy(report.token) => {
                    written.count(&self.telemetry, 1);
                    written.end_spans(std::slice::from_ref(&report));
                    for task in &written.returned {
                        self.wakes.route(task.route, true);
                        if task.goes == Goes::Dead {
                            self.wakes.letter();
                        }
                    }
                    self.wakes
                        .freed_here(&self.routes.under_quota(report.route), ());
                    let mut acks = Acks::default();
                    acks.add(&report, written.is_recorded(report.token));
                    acks.send();
                    self.runs.look_at(written.runs);
                    self.keys.look_at(written.keys);
                    break;
                }
                Ok(_) => {}
                Err(error) if error.is_data() => {
                    if !condemn(&mut report, &error, &self.routes) {
                        break;
                    }
                }
                Err(error) => said(&error, "a locked row is tried again"),
            }
            tokio::time::sleep(PAUSE.mul_f64(0.5 + fastrand::f64())).await;
        }
        self.gauge.remove(1);
    }

    async fn try_once(&self, report: Report) -> Result<Written, Error> {
        let _waiter = self.waiters.acquire().await;
        let max_losses = self.settings.max_losses;
        self.pool
            .run(DATABASE_DEADLINE, move |client| {
                Box::pin(async move {
                    let transaction = client.transaction().await?;
                    settle::lock(&transaction, report.token.id).await?;
                    let written = write_once(&transaction, &[report], max_losses).await?;
                    transaction.commit().await?;
                    Ok(written)
                })
            })
            .await
    }
}
