//! Terms: from a registration in the database until others declare it dead, or the replica stops.

use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tokio::task::{JoinError, JoinSet};

use super::{Error, Replica};
use crate::dispatch::{
    self, BootTime, DATABASE_DEADLINE, Hub, direct, freed, reconcile, sweep, watchdog,
};
use crate::domain::id::DispatcherId;
use crate::store::{self, dispatchers, upkeep};
use crate::upkeep::{chores, ends, heartbeat, keys, listener, orders, owners, redrives, retention};

/// Waits between two tries to register.
const RETRY_WAITS: (Duration, Duration) = (Duration::from_millis(200), Duration::from_secs(3));
/// The announcement of a drain must not hold it up.
const ANNOUNCE_DEADLINE: Duration = Duration::from_secs(1);
/// How often a drain looks whether all is done.
const DRAIN_TICK: Duration = Duration::from_millis(20);
/// Looks in a row that must find nothing: a report on its way from the deliveries to the settler is in neither.
const QUIET_LOOKS: u32 = 2;

/// Runs term after term until `shutdown`, then drains the last one.
pub(super) async fn run_terms(
    replica: &Arc<Replica>,
    shutdown: impl Future<Output = ()>,
) -> Result<(), Error> {
    let mut shutdown = pin!(shutdown);
    loop {
        let registered = tokio::select! {
            registered = register(replica) => registered,
            () = &mut shutdown => return Ok(()),
        };
        let settings = dispatch::Settings {
            max_payload_bytes: registered.max_payload_bytes,
            max_result_bytes: registered.max_result_bytes,
            ..replica.settings.dispatch.clone()
        };
        let hub = Arc::new(Hub::new(
            registered.dispatcher,
            settings,
            replica.pool.clone(),
            replica.settler.clone(),
            Arc::clone(&replica.wakes),
            registered.sent,
        ));
        tracing::info!(
            dispatcher = hub.dispatcher,
            name = replica.settings.name,
            "registered"
        );
        let mut loops = start_loops(replica, &hub);
        replica.hub.send_replace(Some(Arc::clone(&hub)));
        let ended = tokio::select! {
            ended = loops.join_next() => ended,
            () = &mut shutdown => {
                let drained = drain(replica, &hub, &mut loops).await;
                hub.ended.cancel();
                loops.join_all().await;
                return drained;
            }
        };
        // Nothing of this term is written any more: its claims belong to whoever takes them up.
        replica.hub.send_replace(None);
        hub.ended.cancel();
        hub.in_flight.clear();
        check(ended, &hub)?;
        loops.join_all().await;
    }
}

/// One loop of a term, and whether its end is in order.
type Loops = JoinSet<bool>;

fn start_loops(replica: &Replica, hub: &Arc<Hub>) -> Loops {
    let mut loops = JoinSet::new();
    let beat = replica.settings.beat;
    loops.spawn(heartbeat::run(
        Arc::clone(hub),
        beat,
        replica.health.clone(),
    ));
    let mut endless = |run: std::pin::Pin<Box<dyn Future<Output = ()> + Send>>| {
        let ended = hub.ended.clone();
        loops.spawn(async move {
            run.await;
            ended.is_cancelled()
        });
    };
    endless(Box::pin(sweep::run(Arc::clone(hub))));
    endless(Box::pin(direct::run(Arc::clone(hub))));
    endless(Box::pin(freed::run(Arc::clone(hub))));
    endless(Box::pin(watchdog::run(Arc::clone(hub))));
    endless(Box::pin(reconcile::run(Arc::clone(hub))));
    endless(Box::pin(chores::run(Arc::clone(hub), beat)));
    endless(Box::pin(redrives::run(Arc::clone(hub), beat)));
    endless(Box::pin(keys::run(Arc::clone(hub))));
    endless(Box::pin(owners::run(Arc::clone(hub), beat)));
    endless(Box::pin(retention::run(
        Arc::clone(hub),
        replica.settings.retention,
    )));
    endless(Box::pin(ends::run(
        Arc::clone(hub),
        replica.awaiting.clone(),
    )));
    endless(Box::pin(orders::run(Arc::clone(hub))));
    if hub.settings.listen {
        endless(Box::pin(listener::run(Arc::clone(hub))));
    }
    loops
}

/// A loop that panicked, or ended by itself, is a defect that must not go unseen.
fn check(ended: Option<Result<bool, JoinError>>, hub: &Hub) -> Result<(), Error> {
    match ended {
        Some(Ok(true)) | None => Ok(()),
        Some(Ok(false)) => Err(Error::Crashed(format!(
            "a loop of dispatcher {} ended",
            hub.dispatcher
        ))),
        Some(Err(error)) => Err(Error::Crashed(error.to_string())),
    }
}

/// A new identity.
struct Registered {
    dispatcher: DispatcherId,
    /// When it was asked for, which is the first proof of life.
    sent: BootTime,
    max_payload_bytes: usize,
    max_result_bytes: usize,
}

/// Registers, however long that takes; the outage and its end are said once.
async fn register(replica: &Replica) -> Registered {
    let mut wait = RETRY_WAITS.0;
    loop {
        match try_register(replica).await {
            Ok(registered) => {
                heartbeat::set_health(&replica.health, true, None);
                replica.migrated.send_replace(true);
                return registered;
            }
            Err(error @ store::Error::NotMigrated(_)) => {
                heartbeat::set_health(&replica.health, true, None);
                if replica.migrated.send_replace(false) {
                    tracing::warn!(%error, "the schema is missing or older than this program; waiting for a migration");
                }
            }
            Err(error) => heartbeat::set_health(&replica.health, false, Some(&error)),
        }
        tokio::time::sleep(wait.mul_f64(0.5 + fastrand::f64())).await;
        wait = (wait * 2).min(RETRY_WAITS.1);
    }
}

async fn try_register(replica: &Replica) -> Result<Registered, store::Error> {
    let sent = BootTime::now();
    let (name, limits, remember) = (
        replica.settings.name.clone(),
        replica.settings.stored_limits,
        replica.settings.stored_remember,
    );
    replica
        .pool
        .run(DATABASE_DEADLINE, move |client| {
            Box::pin(async move {
                let (payload_bytes, result_bytes) =
                    upkeep::set_limits(client, limits, remember).await?;
                let version = env!("CARGO_PKG_VERSION");
                Ok(Registered {
                    dispatcher: dispatchers::register(client, &name, version).await?,
                    sent,
                    max_payload_bytes: usize::try_from(payload_bytes).unwrap_or(0),
                    max_result_bytes: usize::try_from(result_bytes).unwrap_or(0),
                })
            })
        })
        .await
}

/// Takes nothing new, sends the workers elsewhere, settles what comes in, and leaves the rest claimed: whoever takes
/// it up gets it without a loss. A worker that finds no other replica stays and reports here; one that moves closes
/// its stream once it is welcome elsewhere. Heartbeats go on, so that nobody takes this replica for dead meanwhile.
async fn drain(replica: &Replica, hub: &Arc<Hub>, loops: &mut Loops) -> Result<(), Error> {
    let limit = replica.settings.drain_timeout;
    tracing::info!(in_flight = hub.in_flight.len(), "draining");
    // Every session tells its worker, and the next beat the other replicas, so that what stays behind counts as no loss.
    hub.draining.send_replace(true);
    // Said at once, since the drain may be over before the next beat: what it leaves counts as no loss then.
    let dispatcher = hub.dispatcher;
    let announced = replica.pool.run(ANNOUNCE_DEADLINE, move |client| {
        Box::pin(async move { dispatchers::beat(client, dispatcher, true).await })
    });
    if let Err(error) = announced.await {
        tracing::debug!(%error, "the drain was not announced");
    }
    let done = async {
        let mut quiet = 0;
        while quiet < QUIET_LOOKS {
            let busy = !hub.in_flight.is_empty()
                || replica.settler.backlog() > 0
                || !replica.settler.runs().is_idle()
                || !replica.settler.keys().is_idle();
            quiet = if busy { 0 } else { quiet + 1 };
            tokio::time::sleep(DRAIN_TICK).await;
        }
    };
    tokio::select! {
        ended = tokio::time::timeout(limit, done) => if ended.is_err() {
            tracing::warn!(
                in_flight = hub.in_flight.len(),
                unsettled = replica.settler.backlog(),
                "the drain time is over: what is left stays claimed"
            );
        },
        ended = loops.join_next() => check(ended, hub)?,
    }
    // What was left claimed is for its workers to bring to another replica: others wait for the death time before they
    // put it back, and a goodbye would put it back at once.
    if hub.in_flight.is_empty() && hub.left.load(Ordering::Relaxed) == 0 {
        retire(replica, hub.dispatcher).await;
    }
    Ok(())
}

/// Says goodbye in the database. When that fails the others find out by themselves.
async fn retire(replica: &Replica, dispatcher: DispatcherId) {
    let retired = replica
        .pool
        .run(
            DATABASE_DEADLINE.min(replica.settings.dispatch.dead_after),
            move |client| Box::pin(async move { dispatchers::retire(client, dispatcher).await }),
        )
        .await;
    if let Err(error) = retired {
        tracing::debug!(%error, "the goodbye was not stored");
    }
}
