//! What operators pause and resume.

use chrono::{DateTime, Utc};
use deadpool_postgres::GenericClient;

use super::{Error, storable};
use crate::domain::id::TaskId;
use crate::domain::pause::{Address, Pause};

const SET: &str = include_str!("../../sql/set_pause.sql");
const LIFT: &str = include_str!("../../sql/lift_pause.sql");
const READ: &str = include_str!("../../sql/read_pauses.sql");
const FIND_CLAIMS: &str = include_str!("../../sql/find_paused_claims.sql");

/// What to pause, and what is said of it. The database judges the values.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NewPause {
    /// What does not start any more.
    pub address: Address,
    /// It is meant that the address names nothing.
    pub everything: bool,
    /// Why.
    pub reason: String,
    /// By whom.
    pub by: String,
    /// What runs there is asked to stop.
    pub cancel_running: bool,
}

/// Pauses an address. True: it was not paused before; else who, why, and what becomes of what runs are replaced.
pub async fn pause(client: &impl GenericClient, new: &NewPause) -> Result<bool, Error> {
    let [namespace, task_queue, task_type, node] = names(&new.address);
    let statement = client.prepare_cached(SET).await?;
    let row = client
        .query_one(
            &statement,
            &[
                &namespace,
                &task_queue,
                &task_type,
                &node,
                &storable(&new.reason),
                &storable(&new.by),
                &new.everything,
                &new.cancel_running,
            ],
        )
        .await?;
    Ok(row.try_get("created")?)
}

/// Ends the pause of exactly this address; answers since when it was there.
pub async fn resume(
    client: &impl GenericClient,
    address: &Address,
    everything: bool,
) -> Result<DateTime<Utc>, Error> {
    let [namespace, task_queue, task_type, node] = names(address);
    let statement = client.prepare_cached(LIFT).await?;
    let row = client
        .query_one(
            &statement,
            &[&namespace, &task_queue, &task_type, &node, &everything],
        )
        .await?;
    Ok(row.try_get("paused_at")?)
}

/// Everything that is paused, the widest first.
pub async fn read(client: &impl GenericClient) -> Result<Vec<Pause>, Error> {
    let statement = client.prepare_cached(READ).await?;
    let rows = client.query(&statement, &[]).await?;
    let pauses = rows.iter().map(|row| {
        Ok(Pause {
            address: Address {
                namespace: row.try_get("namespace")?,
                task_queue: row.try_get("task_queue")?,
                task_type: row.try_get("task_type")?,
                node: row.try_get("node")?,
            },
            reason: row.try_get("reason")?,
            by: row.try_get("paused_by")?,
            since: row.try_get("paused_at")?,
            cancel_running: row.try_get("cancel_running")?,
        })
    });
    pauses.collect()
}

/// Running tasks that a pause asks to stop and that nobody has asked yet, by id.
pub async fn find_claims(client: &impl GenericClient, limit: i32) -> Result<Vec<TaskId>, Error> {
    let statement = client.prepare_cached(FIND_CLAIMS).await?;
    let rows = client.query(&statement, &[&limit]).await?;
    rows.iter().map(|row| Ok(row.try_get("id")?)).collect()
}

fn names(address: &Address) -> [Option<String>; 4] {
    let Address {
        namespace,
        task_queue,
        task_type,
        node,
    } = address;
    // Its own rule refuses a control character, which NUL is for the callers.
    let text = |name: &Option<String>| name.as_ref().map(|name| name.replace('\0', "\u{1}"));
    [namespace, task_queue, task_type, node].map(text)
}
