//! Chores of whichever replica wins the tick. Each is safe to do twice and to leave half done.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use deadpool_postgres::GenericClient;
use parking_lot::Mutex;

use super::snapshots::Snapshots;
use super::unserved::{self, Watch};
use super::walk::Walk;
use super::{keys, workflows};
use crate::dispatch::settler;
use crate::dispatch::{DATABASE_DEADLINE, Hub, counts};
use crate::domain::id::{RouteId, TaskId};
use crate::domain::outcome::{Failure, Outcome};
use crate::domain::policy::{Defaults, Policy};
use crate::domain::route::Route;
use crate::domain::settlement::{Settlement, decide};
use crate::store::cancel::{self, How, Only};
use crate::store::settle::{self, Goes, Return, Returned};
use crate::store::{Error, claim, dispatchers, pauses, routes, upkeep};

/// Rows that one transaction moves at most, so that it holds few locks for a short time.
pub(super) const BATCH: i32 = 500;
/// Partitions are looked after this often, and kept this many days ahead.
const PARTITIONS_EVERY: Duration = Duration::from_secs(60);
const DAYS_AHEAD: i32 = 14;

/// Does chores until the term ends.
pub async fn run(hub: Arc<Hub>, tick: Duration) {
    let mut partitions_at = Instant::now();
    let ended = hub.ended.clone();
    let watch = Watch::new(hub.settings.dead_after, hub.settings.reconnect_grace);
    let watch = Arc::new(Mutex::new(watch));
    let (mut walks, mut snapshots) = (Walks::default(), Snapshots::default());
    let mut wait = tick;
    loop {
        let jittered = wait.mul_f64(0.8 + 0.4 * fastrand::f64());
        if ended
            .run_until_cancelled(tokio::time::sleep(jittered))
            .await
            .is_none()
        {
            return;
        }
        let partitions = Instant::now() >= partitions_at;
        wait = match do_chores(&hub, &watch, &mut walks, partitions).await {
            Ok(done) => {
                if partitions && done.raised {
                    partitions_at = Instant::now() + PARTITIONS_EVERY;
                    if let Err(error) = snapshots.look(&hub).await {
                        settler::said(&error, "who holds snapshots is looked at later");
                    }
                }
                // A full batch has more behind it.
                if done.full { Duration::ZERO } else { tick }
            }
            Err(error) => {
                settler::said(&error, "chores are tried again");
                tick
            }
        };
    }
}

/// One tick.
async fn do_chores(
    hub: &Arc<Hub>,
    watch: &Arc<Mutex<Watch>>,
    walks: &mut Walks,
    partitions: bool,
) -> Result<Tick, Error> {
    hub.routes.refresh_some(&hub.pool).await?;
    hub.direct.refresh(&hub.pool).await?;
    let (defaults, max_losses) = (hub.settings.defaults, hub.settings.max_losses);
    let (looking, watch) = (Arc::clone(hub), Arc::clone(watch));
    let (run, key) = (walks.runs.last(), walks.keys.last());
    let (moved, ended, walked) = hub
        .pool
        .run(DATABASE_DEADLINE, move |client| {
            Box::pin(async move {
                let transaction = client.transaction().await?;
                let won = upkeep::try_chores(&transaction).await?;
                let unserved = unserved::look(&transaction, &looking, &watch).await?;
                if !won {
                    return Ok((Vec::new(), [Vec::new(), Vec::new()], None));
                }
                let mut moved = rearm(&transaction, max_losses).await?;
                moved.extend(end_overdue(&transaction, &defaults, max_losses).await?);
                let ended = unserved::write(&transaction, &unserved, &defaults, max_losses).await?;
                let walked = (
                    workflows::walk(&transaction, run).await?,
                    keys::walk(&transaction, key).await?,
                );
                transaction.commit().await?;
                Ok((moved, ended, Some(walked)))
            })
        })
        .await?;
    let won = walked.is_some();
    let failed = ended.iter().map(Vec::len).max().unwrap_or(0);
    count(hub, moved.iter().chain(ended.iter().flatten())).await;
    let (runs, keys) = (hub.settler.runs(), hub.settler.keys());
    runs.look_at(moved.iter().filter_map(Returned::ended_in));
    keys.look_at(moved.iter().filter_map(|task| task.key));
    let walk_on = walked.is_some_and(|(over_runs, over_keys)| {
        let more_runs = over_runs.take_up(&mut walks.runs, runs);
        over_keys.take_up(&mut walks.keys, keys) || more_runs
    });
    let stopping = won && cancel_paused(hub).await?;
    for task in moved.iter().filter(|task| task.goes == Goes::Ready) {
        hub.wakes.route(task.route, true);
    }
    if failed > 0 || moved.iter().any(|task| task.goes == Goes::Dead) {
        hub.wakes.letter();
    }
    let freed = hub.routes.under_quota(moved.iter().map(|task| task.route));
    hub.wakes.freed_here(&freed, ());
    let own = hub.dispatcher;
    let mut ready: Vec<RouteId> = moved.iter().map(|task| task.route).collect();
    ready.sort_unstable();
    ready.dedup();
    let raised = hub
        .pool
        .run(DATABASE_DEADLINE, move |client| {
            Box::pin(async move {
                if !ready.is_empty() {
                    dispatchers::wake_sleepers(client, &ready, own).await?;
                }
                if partitions {
                    dispatchers::forget(client).await?;
                    upkeep::make_partitions(client, DAYS_AHEAD).await?;
                    return upkeep::raise_horizon(client).await;
                }
                Ok(true)
            })
        })
        .await?;
    Ok(Tick {
        full: walk_on
            || stopping
            || moved.len().max(failed) >= usize::try_from(BATCH).unwrap_or(usize::MAX),
        raised,
    })
}

/// Counts what has moved. Routes that this replica has not met are read first, so that it has their names.
async fn count(hub: &Hub, moved: impl Iterator<Item = &Returned>) {
    let moved: Vec<Returned> = moved.cloned().collect();
    if moved.is_empty() {
        return;
    }
    let routes = moved.iter().map(|task| task.route);
    if let Err(error) = hub.routes.get(&hub.pool, routes).await {
        settler::said(
            &error,
            "what chores have moved is counted without its routes",
        );
    }
    counts::returned(&hub.telemetry, &moved);
}

/// Where the walks of this replica stand.
#[derive(Debug, Default)]
struct Walks {
    runs: Walk,
    keys: Walk,
}

/// What one tick came to.
struct Tick {
    /// There is more to do right away.
    full: bool,
    /// No partition waits for producers that do not know of it yet.
    raised: bool,
}

/// Asks what runs under a pause that wants that to stop: what was claimed or adopted while the pause was on its way, or
/// what whoever paused did not get to. True: there is more.
async fn cancel_paused(hub: &Hub) -> Result<bool, Error> {
    if !hub.pauses.read().iter().any(|pause| pause.cancel_running) {
        return Ok(false);
    }
    let how = How {
        grace: hub.settings.cancel_grace + hub.settings.dead_after,
        reason: "paused".to_owned(),
        only: Some(Only::Running),
    };
    let (found, done) = hub
        .pool
        .run(DATABASE_DEADLINE, move |client| {
            Box::pin(async move {
                let ids = pauses::find_claims(client, BATCH).await?;
                let done = cancel::cancel_batch(client, &ids, &how).await?;
                Ok((ids.len(), done))
            })
        })
        .await?;
    counts::cancelled(&hub.telemetry, done.routes.iter().copied());
    if found > 0 {
        tracing::info!(
            found,
            requested = done.requested,
            "what runs under a pause is asked to stop"
        );
    }
    // What is locked for long is left to the next tick.
    Ok(found >= usize::try_from(BATCH).unwrap_or(usize::MAX) && done.requested > 0)
}

/// Puts back what dead replicas hold. The guard names each dead owner, so a row adopted meanwhile stays as it is.
async fn rearm(client: &impl GenericClient, max_losses: i32) -> Result<Vec<Returned>, Error> {
    let orphans = upkeep::find_orphans(client, BATCH).await?;
    if orphans.is_empty() {
        return Ok(Vec::new());
    }
    let returns: Vec<Return> = orphans
        .iter()
        .filter_map(|orphan| {
            let outcome = Outcome::ReplicaGone {
                announced: orphan.gentle,
            };
            to_return(
                decide(outcome, 0, &ANY_POLICY, 0.0),
                orphan.token,
                orphan.owner,
            )
        })
        .collect();
    let moved = settle::give_back(client, &returns, max_losses).await?;
    tracing::info!(
        found = orphans.len(),
        moved = moved.len(),
        "tasks of dead replicas are put back"
    );
    Ok(moved)
}

/// Ends deliveries past the deadline in their row, which their owner should have ended itself.
async fn end_overdue(
    client: &impl GenericClient,
    defaults: &Defaults,
    max_losses: i32,
) -> Result<Vec<Returned>, Error> {
    let overdue = upkeep::find_overdue(client, BATCH).await?;
    if overdue.is_empty() {
        return Ok(Vec::new());
    }
    let tasks: Vec<(TaskId, RouteId)> = overdue
        .iter()
        .map(|late| (late.token.id, late.route))
        .collect();
    let policies = policies(client, &tasks, defaults).await?;
    let returns: Vec<Return> = overdue
        .iter()
        .filter_map(|late| {
            let failure = Failure::new(
                "run_timeout",
                "The task passed its deadline and its replica did not end it.",
            );
            let settlement = decide(
                Outcome::TimedOut(failure),
                late.attempt,
                policies.get(&late.token.id)?,
                fastrand::f64(),
            );
            to_return(settlement, late.token, late.owner)
        })
        .collect();
    let moved = settle::give_back(client, &returns, max_losses).await?;
    tracing::warn!(
        found = overdue.len(),
        moved = moved.len(),
        "tasks past their deadline are ended"
    );
    Ok(moved)
}

/// The limits that tasks run under; none for one whose body or route is gone.
pub(super) async fn policies(
    client: &impl GenericClient,
    tasks: &[(TaskId, RouteId)],
    defaults: &Defaults,
) -> Result<HashMap<TaskId, Policy>, Error> {
    let (ids, mut wanted): (Vec<TaskId>, Vec<RouteId>) = tasks.iter().copied().unzip();
    wanted.sort_unstable();
    wanted.dedup();
    let bodies = claim::read_bodies(client, &ids).await?;
    let bodies: HashMap<TaskId, _> = bodies.into_iter().map(|body| (body.id, body)).collect();
    let routes = routes::read(client, &wanted).await?;
    let routes: HashMap<RouteId, Route> =
        routes.into_iter().map(|route| (route.id, route)).collect();
    let resolved = tasks.iter().filter_map(|(id, route)| {
        let policy = Policy::resolve(bodies.get(id)?, routes.get(route)?, defaults);
        Some((*id, policy))
    });
    Ok(resolved.collect())
}

/// For outcomes whose meaning does not depend on the task's limits.
pub(super) const ANY_POLICY: Policy = Policy {
    max_attempts: 1,
    backoff: crate::domain::backoff::Backoff {
        base: Duration::ZERO,
        multiplier: 1.0,
        max: Duration::ZERO,
    },
    run_timeout: None,
    heartbeat_timeout: None,
};

pub(super) fn to_return(
    settlement: Settlement,
    token: crate::domain::id::Token,
    owner: crate::domain::id::DispatcherId,
) -> Option<Return> {
    let Settlement::Return { how, delay, error } = settlement else {
        return None;
    };
    Some(Return {
        token,
        owner: Some(owner),
        how,
        delay,
        error,
        worker: None,
        node: None,
    })
}
