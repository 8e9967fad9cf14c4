//! What happens, read for those who watch.

use std::time::Duration;

use super::{Client, Error, millis};
use crate::domain::id::{RouteId, TaskId};

const FIND_BUSY_ROUTES: &str = include_str!("../../sql/find_busy_routes.sql");
const READ_FLOW: &str = include_str!("../../sql/read_flow.sql");
const FIND_NEW_LETTERS: &str = include_str!("../../sql/find_new_letters.sql");
const LIST_UNSERVED: &str = include_str!("../../sql/list_unserved.sql");

/// Pages of ends that are read a day of tasks: several thousand ends, some 10 ms of work.
const PAGES: i32 = 32;
/// Enqueued tasks that are read.
const ENQUEUED: i64 = 20_000;

/// Routes that have something unfinished, at most `limit`.
///
/// # Errors
/// [`Error`].
pub async fn find_busy(client: &Client, limit: i32) -> Result<Vec<RouteId>, Error> {
    let statement = client.prepare_cached(FIND_BUSY_ROUTES).await?;
    let rows = client.query(&statement, &[&limit]).await?;
    rows.iter()
        .map(|row| Ok(row.try_get("route_id")?))
        .collect()
}

/// What comes and goes, in tasks a second.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Flow {
    /// Of this route; none stands for all together.
    pub route: Option<RouteId>,
    /// Came.
    pub enqueued: f64,
    /// Ended so.
    pub done: f64,
    /// Ended so.
    pub failed: f64,
    /// Ended so.
    pub cancelled: f64,
    /// From the last claim to the end, of every second one at most this many milliseconds.
    pub run_p50_ms: Option<f64>,
    /// The same, of nineteen in twenty.
    pub run_p95_ms: Option<f64>,
}

/// The flow of the last while, over all replicas, of each route that has any and of all together.
///
/// # Errors
/// [`Error`].
pub async fn read_flow(client: &Client, within: Duration) -> Result<Vec<Flow>, Error> {
    let statement = client.prepare_cached(READ_FLOW).await?;
    let rows = client
        .query(&statement, &[&millis(within), &PAGES, &ENQUEUED])
        .await?;
    let flows = rows.iter().map(|row| {
        Ok(Flow {
            route: row.try_get("route_id")?,
            enqueued: row.try_get("enqueued")?,
            done: row.try_get("done")?,
            failed: row.try_get("failed")?,
            cancelled: row.try_get("cancelled")?,
            run_p50_ms: row.try_get("run_p50_ms")?,
            run_p95_ms: row.try_get("run_p95_ms")?,
        })
    });
    flows.collect()
}

/// Where tasks go.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Address {
    /// Tenant.
    pub namespace: String,
    /// Pool of workers.
    pub task_queue: String,
    /// What the worker must know how to do.
    pub task_type: String,
    /// The only node that may run them.
    pub node: Option<String>,
}

fn address(row: &tokio_postgres::Row) -> Result<Address, Error> {
    Ok(Address {
        namespace: row.try_get("namespace")?,
        task_queue: row.try_get("task_queue")?,
        task_type: row.try_get("task_type")?,
        node: row.try_get("node")?,
    })
}

/// A dead letter, as far as a word about it goes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewLetter {
    /// The task that died.
    pub id: TaskId,
    /// Where it went.
    pub address: Address,
    /// Why it died.
    pub cause: String,
    /// What went wrong, in a word.
    pub error_class: String,
}

/// The dead letters of the last while, the first at first, at most `limit` of the last ones.
///
/// # Errors
/// [`Error`].
pub async fn find_new_letters(
    client: &Client,
    within: Duration,
    limit: i64,
) -> Result<Vec<NewLetter>, Error> {
    let statement = client.prepare_cached(FIND_NEW_LETTERS).await?;
    let rows = client.query(&statement, &[&millis(within), &limit]).await?;
    let letters = rows.iter().map(|row| {
        Ok(NewLetter {
            id: row.try_get("id")?,
            address: address(row)?,
            cause: row.try_get("cause")?,
            error_class: row.try_get("error_class")?,
        })
    });
    letters.collect()
}

/// An address that nobody serves, as judged.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unserved {
    /// The address.
    pub address: Address,
    /// Why.
    pub reason: String,
    /// Since when, RFC 3339.
    pub since: String,
}

/// What is judged to be served by nobody, the longest first.
///
/// # Errors
/// [`Error`].
pub async fn list_unserved(client: &Client, limit: i64) -> Result<Vec<Unserved>, Error> {
    let statement = client.prepare_cached(LIST_UNSERVED).await?;
    let rows = client.query(&statement, &[&limit]).await?;
    let unserved = rows.iter().map(|row| {
        Ok(Unserved {
            address: address(row)?,
            reason: row.try_get("reason")?,
            since: row.try_get("since")?,
        })
    });
    unserved.collect()
}
