//! Drives redrives by filter. Every replica tries; the lock on an operation's row lets one at a time move it on, and
//! its pace stands in that row too, so that it is the same however many replicas there are.

use std::sync::Arc;
use std::time::Duration;

use crate::dispatch::settler;
use crate::dispatch::{DATABASE_DEADLINE, Hub};
use crate::store::redrives::{self, Driven, RedriveId};
use crate::store::{Error, Pool};

/// Letters in one transaction at most: few locks for a short time, and a stop waits for no more.
const BATCH: i32 = 500;
/// Operations that one look takes up.
const OPERATIONS: i64 = 16;
/// The shortest wait between two batches that are not full: a slow pace makes small ones.
const PACE: Duration = Duration::from_millis(50);

/// Drives until the term ends.
pub async fn run(hub: Arc<Hub>, tick: Duration) {
    let ended = hub.ended.clone();
    ended.run_until_cancelled(drive_all(&hub, tick)).await;
}

async fn drive_all(hub: &Hub, tick: Duration) {
    loop {
        let wait = match drive_due(&hub.pool).await {
            Ok(Next::At(wait)) => wait.clamp(PACE, tick.max(PACE)),
            Ok(Next::Now) => Duration::ZERO,
            Ok(Next::Whenever) => tick.mul_f64(0.8 + 0.4 * fastrand::f64()),
            Err(error) => {
                settler::said(&error, "redrives are looked at again");
                tick
            }
        };
        tokio::select! {
            () = tokio::time::sleep(wait) => {}
            () = hub.wakes.redrive_due() => {}
        }
    }
}

/// When to look again.
enum Next {
    /// A full batch has more behind it.
    Now,
    /// The first operation is due then.
    At(Duration),
    /// None runs.
    Whenever,
}

/// Moves each operation that is due on by one batch.
async fn drive_due(pool: &Pool) -> Result<Next, Error> {
    let running = pool
        .run(DATABASE_DEADLINE, |client| {
            Box::pin(async move { redrives::find_running(client, OPERATIONS).await })
        })
        .await?;
    let mut next = match running.first() {
        None => return Ok(Next::Whenever),
        Some((_, due)) => Next::At(*due),
    };
    for (id, due) in running {
        if !due.is_zero() {
            break;
        }
        match drive(pool, id).await {
            Ok(Some(driven)) if driven.took >= BATCH && driven.state == "running" => {
                next = Next::Now;
            }
            Ok(_) => {}
            // The others are not to wait for it.
            Err(error) => settler::said(&error, "a batch of a redrive is tried again"),
        }
    }
    Ok(next)
}

async fn drive(pool: &Pool, id: RedriveId) -> Result<Option<Driven>, Error> {
    let driven = pool
        .run(DATABASE_DEADLINE, move |client| {
            Box::pin(async move { redrives::drive(client, id, BATCH).await })
        })
        .await?;
    if let Some(driven) = &driven
        && driven.state != "running"
    {
        tracing::info!(redrive = id, state = driven.state, "a redrive ends");
    }
    Ok(driven)
}
