//! The heartbeat: proves this replica alive, judges the others, takes up orders that came as rows.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::sync::watch;

use super::judge::Judge;
use crate::dispatch::{BootTime, DATABASE_DEADLINE, Hub};
use crate::domain::scope::RemoteGroup;
use crate::store::dispatchers::Dispatcher;
use crate::store::{self, dispatchers, fleet};

/// What was said of the workers here is said again after this long though nothing has changed: nodes are remembered by
/// when they were seen last.
const SAID_AGAIN: Duration = Duration::from_secs(30);

/// Whether the database answers, for readiness and for those who wait for it.
pub type Health = watch::Sender<bool>;

/// Beats until the term ends. Returns true when this replica has been declared dead: its identity is spent.
pub async fn run(hub: Arc<Hub>, beat: Duration, health: Health) -> bool {
    let mut judge = Judge::new(hub.settings.dead_after);
    // A database that is away is tried often enough to be back well before the others' patience ends.
    let retry = beat.min(hub.settings.dead_after / 3);
    let mut said = None;
    loop {
        let wait = match beat_once(&hub, &mut judge, &mut said).await {
            Ok(true) => {
                set_health(&health, true, None);
                beat
            }
            Ok(false) => {
                tracing::warn!(
                    dispatcher = hub.dispatcher,
                    "declared dead by another replica: a new identity is taken"
                );
                return true;
            }
            Err(error) => {
                judge.blinded();
                hub.fitness.missed();
                // Another server may be behind the address by now, without the last commits.
                said = None;
                set_health(&health, false, Some(&error));
                retry
            }
        };
        let jittered = wait.mul_f64(0.9 + 0.2 * fastrand::f64());
        if hub
            .ended
            .run_until_cancelled(tokio::time::sleep(jittered))
            .await
            .is_none()
        {
            return false;
        }
    }
}

/// Says once that the database is away, and once that it is back.
pub fn set_health(health: &Health, well: bool, error: Option<&store::Error>) {
    let turned = health.send_if_modified(|before| std::mem::replace(before, well) != well);
    if !turned {
        return;
    }
    match error {
        Some(error) => {
            tracing::warn!(%error, "the database is away; work goes on by itself when it is back");
        }
        None => tracing::info!("the database answers"),
    }
}

/// What a beat learns.
struct Seen {
    alive: Vec<Dispatcher>,
    elsewhere: Vec<RemoteGroup>,
}

/// What the database was told last of the workers here: their version, and when.
type Said = Option<(u64, Instant)>;

/// One beat. False: this identity is dead.
async fn beat_once(hub: &Hub, judge: &mut Judge, said: &mut Said) -> Result<bool, store::Error> {
    let sent = BootTime::now();
    let was_fit = hub.fitness.allows(sent);
    let (dispatcher, draining) = (hub.dispatcher, hub.is_draining());
    let deadline = DATABASE_DEADLINE.min(hub.settings.dead_after / 3);
    hub.awaited_elsewhere.reading();
    let saying = (hub.fleet.version(), Instant::now());
    let is_known =
        said.is_some_and(|(version, at)| version == saying.0 && at.elapsed() < SAID_AGAIN);
    let workers = (!is_known).then(|| (hub.fleet.groups(saying.1), hub.fleet.workers()));
    let seen = hub
        .pool
        .run(deadline, move |client| {
            Box::pin(async move {
                if !dispatchers::beat(client, dispatcher, draining).await? {
                    return Ok(None);
                }
                if let Some((groups, workers)) = workers {
                    fleet::write_groups(client, dispatcher, &groups).await?;
                    fleet::write_workers(client, dispatcher, &workers).await?;
                }
                Ok(Some(Seen {
                    alive: dispatchers::read(client).await?,
                    elsewhere: fleet::read_groups(client, Some(dispatcher), None).await?,
                }))
            })
        })
        .await?;
    let Some(seen) = seen else { return Ok(false) };
    if !is_known {
        *said = Some(saying);
    }
    hub.fitness.beaten(sent);
    if !was_fit {
        // Frozen, or cut off: beats that stood still meanwhile may be those of others that were frozen too.
        judge.blinded();
        hub.wakes.everything();
    }
    let awaited = |other: &Dispatcher| other.awaiting && other.id != dispatcher;
    let awaited = seen.alive.iter().any(awaited);
    hub.awaited_elsewhere.read(awaited);
    let before = std::mem::replace(&mut *hub.elsewhere.write(), seen.elsewhere.clone());
    if before != seen.elsewhere {
        // A preferred worker may have come or gone somewhere.
        hub.wakes.everything();
    }
    // Read and taken up in one place alone, so that no older look comes after a newer one.
    hub.orders.notify_one();
    let silent = judge.look(dispatcher, &seen.alive, Instant::now());
    if !silent.is_empty() {
        let dead = hub
            .pool
            .run(deadline, move |client| {
                Box::pin(async move { dispatchers::mark_dead(client, &silent).await })
            })
            .await?;
        for id in dead {
            tracing::warn!(
                dispatcher = id,
                "a replica is silent and has been declared dead"
            );
        }
    }
    Ok(true)
}
