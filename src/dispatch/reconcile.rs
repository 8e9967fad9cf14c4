//! Puts back what sweeps of unknown outcome have claimed after all.
//!
//! A claim whose answer never came may have been committed. Its rows carry the sweep's number and nobody delivers
//! them, so they are looked for and put back, until the server can no longer be at that statement.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::{Instant, MissedTickBehavior};

use super::hub::{DATABASE_DEADLINE, Hub};
use super::settler::Report;
use crate::domain::settlement::{Move, Settlement};
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
            tracing::debug!(%error, "reconciling is tried again");
        }
    }
}

async fn reconcile(hub: &Hub) -> Result<(), store::Error> {
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
    let dispatcher = hub.dispatcher;
    let tokens = hub
        .pool
        .run(DATABASE_DEADLINE, move |client| {
            Box::pin(async move { upkeep::find_claims(client, dispatcher, &sweeps).await })
        })
        .await?;
    // An adoption may have failed half-way: what is in flight here is no orphan of it.
    let known = hub.in_flight.known(&tokens);
    let reports: Vec<Report> = tokens
        .into_iter()
        .filter(|token| !known.contains(token))
        .map(|token| Report {
            token,
            settlement: Settlement::Return {
                how: Move::Release,
                delay: None,
                error: None,
            },
            owner: Some(dispatcher),
            worker: None,
            reply: None,
        })
        .collect();
    if !reports.is_empty() {
        tracing::info!(
            tasks = reports.len(),
            "claims of unknown outcome are put back"
        );
    }
    hub.settler.report(reports).await;
    hub.given_up
        .lock()
        .retain(|(_, since)| looked - *since < SETTLED_AFTER);
    Ok(())
}
