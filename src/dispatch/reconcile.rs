//! Puts back what sweeps of unknown outcome have claimed after all.
//!
//! A claim whose answer never came may have been committed. Its rows carry the sweep's number and nobody delivers
//! them, so they are looked for and put back, until the server can no longer be at that statement.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::{Instant, MissedTickBehavior};

use super::counts;
use super::hub::{DATABASE_DEADLINE, Hub};
use super::settler;
use crate::domain::settlement::Move;
use crate::store::settle::{self, Goes, Return, Returned};
use crate::store::{self, upkeep};

const TICK: Duration = Duration::from_secs(2);
/// A statement that was given up has ended by then: the server's own timeout is shorter than our deadline.
const SETTLED_AFTER: Duration = DATABASE_DEADLINE;

/// Reconciles until the term ends.
pub async fn run(hub: Arc<Hub>) {
    let mut ticks = tokio::time::interval(TICK);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let ended = hub.ended.clone();
    while ended.run_until_cancelled(ticks.tick()).await.is_some() {
        if let Err(error) = reconcile(&hub).await {
            settler::said(&error, "reconciling is tried again");
        }
    }
}

async fn reconcile(hub: &Hub) -> Result<(), store::Error> {
    if hub.given_up.lock().is_empty() {
        return Ok(());
    }
    // No adoption in between: it keeps the token, so the guard below could not tell it from the one given up.
    let _alone = hub.adoptions.write().await;
    let looked = Instant::now();
    let sweeps: Vec<i64> = hub
        .given_up
        .lock()
        .iter()
        .map(|(sweep, _)| *sweep)
        .collect();
    if sweeps.is_empty() {
        return Ok(());
    }
    let (dispatcher, max_losses) = (hub.dispatcher, hub.settings.max_losses);
    let returned = hub
        .pool
        .run(DATABASE_DEADLINE, move |client| {
            Box::pin(async move {
                let tokens = upkeep::find_claims(client, dispatcher, &sweeps).await?;
                let release = |token| Return {
                    token,
                    owner: Some(dispatcher),
                    how: Move::Release,
                    delay: None,
                    error: None,
                    worker: None,
                    node: None,
                };
                let releases: Vec<Return> = tokens.into_iter().map(release).collect();
                settle::give_back(client, &releases, max_losses).await
            })
        })
        .await?;
    counts::returned(&hub.telemetry, &returned);
    hub.settler
        .runs()
        .look_at(returned.iter().filter_map(Returned::ended_in));
    hub.settler
        .keys()
        .look_at(returned.iter().filter_map(|task| task.key));
    if !returned.is_empty() {
        tracing::info!(
            tasks = returned.len(),
            "claims of unknown outcome are put back"
        );
    }
    for task in returned.iter().filter(|task| task.goes == Goes::Ready) {
        hub.wakes.route(task.route, true);
    }
    hub.given_up
        .lock()
        .retain(|(_, since)| looked - *since < SETTLED_AFTER);
    Ok(())
}
