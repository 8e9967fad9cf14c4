//! What leaves history, step by step and batch by batch.

use std::time::Duration;

use super::pool::Client;
use super::{Error, millis};
use crate::domain::id::{DispatcherId, TaskId};

const TAKE_LEASE: &str = include_str!("../../sql/take_lease.sql");
const NOTE_DAYS: &str = include_str!("../../sql/note_days.sql");
const NEXT_STEP: &str = include_str!("../../sql/next_history_step.sql");
const DROP_HISTORY: &str = include_str!("../../sql/drop_history.sql");
const EXPIRE_RESULTS: &str = include_str!("../../sql/expire_results.sql");
const EXPIRE_KEYS: &str = include_str!("../../sql/expire_keys.sql");
const EXPIRE_DEAD_LETTERS: &str = include_str!("../../sql/expire_dead_letters.sql");
const EXPIRE_REDRIVES: &str = include_str!("../../sql/expire_redrives.sql");
const EXPIRE_WORKFLOWS: &str = include_str!("../../sql/expire_workflows.sql");
const EXPIRE_BUCKETS: &str = include_str!("../../sql/expire_buckets.sql");
const EXPIRE_ORDERS: &str = include_str!("../../sql/expire_orders.sql");

/// Takes or renews the lease of a chore for this long. False: another replica has it.
pub async fn take_lease(
    client: &Client,
    chore: &str,
    dispatcher: DispatcherId,
    time: Duration,
) -> Result<bool, Error> {
    let statement = client.prepare_cached(TAKE_LEASE).await?;
    let row = client
        .query_opt(&statement, &[&chore, &dispatcher, &millis(time)])
        .await?;
    Ok(row.is_some())
}

/// Looks which days are over and have nothing unfinished.
pub async fn note_days(client: &Client) -> Result<(), Error> {
    let statement = client.prepare_cached(NOTE_DAYS).await?;
    client.query(&statement, &[]).await?;
    Ok(())
}

/// One step of one partition on its way out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Step {
    /// The table that it is, or was, a partition of.
    pub parent: String,
    /// Its name.
    pub child: String,
    /// What detaches it; none once it is detached and only to be dropped.
    detach: Option<String>,
}

/// The next step, where there is one: what a crash has left half done, then the oldest day that has been finished for
/// `history` (none: for ever).
pub async fn next_step(client: &Client, history: Option<Duration>) -> Result<Option<Step>, Error> {
    let statement = client.prepare_cached(NEXT_STEP).await?;
    let row = client
        .query_opt(&statement, &[&history.map(millis)])
        .await?;
    Ok(row.map(|row| Step {
        parent: row.get("parent"),
        child: row.get("child"),
        detach: row.get("statement"),
    }))
}

/// Takes a step, outside of any transaction. It waits for those who still use the partition, within the lock timeout
/// of the connection, and nobody waits for it. True: the partition is gone.
pub async fn take_step(client: &Client, step: &Step) -> Result<bool, Error> {
    if let Some(detach) = &step.detach {
        client.batch_execute(detach).await?;
        return Ok(false);
    }
    let statement = client.prepare_cached(DROP_HISTORY).await?;
    let row = client
        .query_one(&statement, &[&step.parent, &step.child])
        .await?;
    Ok(row.get("dropped"))
}

/// Removes results that ended longer ago than `keep`, looking at so many outcomes; answers how many it looked at.
pub async fn expire_results(client: &Client, keep: Duration, most: i32) -> Result<i32, Error> {
    let statement = client.prepare_cached(EXPIRE_RESULTS).await?;
    let row = client
        .query_one(&statement, &[&millis(keep), &most])
        .await?;
    Ok(row.get("looked"))
}

/// What one look at dispatch keys came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Keys {
    /// Keys that were looked at.
    pub looked: i64,
    /// The last one's task, to go on after.
    pub last: Option<TaskId>,
    /// Keys that were forgotten.
    pub forgotten: i64,
}

/// Forgets dispatch keys whose time is over, of tasks after this one, looking at so many.
pub async fn expire_keys(client: &Client, after: TaskId, most: i32) -> Result<Keys, Error> {
    let statement = client.prepare_cached(EXPIRE_KEYS).await?;
    let row = client.query_one(&statement, &[&after, &most]).await?;
    Ok(Keys {
        looked: row.get("looked"),
        last: row.get("last_id"),
        forgotten: row.get("forgotten"),
    })
}

/// Forgets up to so many dead letters that died longer ago than `keep`; answers how many.
pub async fn expire_dead_letters(client: &Client, keep: Duration, most: i32) -> Result<u64, Error> {
    let statement = client.prepare_cached(EXPIRE_DEAD_LETTERS).await?;
    Ok(client.execute(&statement, &[&millis(keep), &most]).await?)
}

/// Forgets redrives that have been over for longer than `keep`, up to so many rows; answers how many.
pub async fn expire_redrives(client: &Client, keep: Duration, most: i32) -> Result<i64, Error> {
    let statement = client.prepare_cached(EXPIRE_REDRIVES).await?;
    let row = client
        .query_one(&statement, &[&millis(keep), &most])
        .await?;
    Ok(row.get("gone"))
}

/// Forgets runs of workflows that ended longer ago than `keep` with all their members, up to so many rows; answers how
/// many.
pub async fn expire_workflows(client: &Client, keep: Duration, most: i32) -> Result<i64, Error> {
    let statement = client.prepare_cached(EXPIRE_WORKFLOWS).await?;
    let row = client
        .query_one(&statement, &[&millis(keep), &most])
        .await?;
    Ok(row.get("gone"))
}

/// Forgets at most so many full buckets of concurrency keys; answers how many went.
pub async fn expire_buckets(client: &Client, limit: i32) -> Result<u64, Error> {
    let statement = client.prepare_cached(EXPIRE_BUCKETS).await?;
    Ok(client.execute(&statement, &[&limit]).await?)
}

/// Forgets orders of that many days ago for workers that are nowhere.
pub async fn expire_orders(client: &Client, days: i32) -> Result<u64, Error> {
    let statement = client.prepare_cached(EXPIRE_ORDERS).await?;
    Ok(client.execute(&statement, &[&days]).await?)
}
