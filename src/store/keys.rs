//! Concurrency keys: letting their tasks go, and finding those that nobody has looked at.

use std::time::Duration;

use chrono::{DateTime, Utc};
use deadpool_postgres::GenericClient;

use super::{Error, storable};
use crate::domain::id::{KeyHash, RouteId, TaskId};

const FREE: &str = include_str!("../../sql/free_keys.sql");
const FIND_LOOKS: &str = include_str!("../../sql/find_key_looks.sql");
const WALK: &str = include_str!("../../sql/walk_keys.sql");
const RESUME: &str = include_str!("../../sql/resume_key.sql");
const LIST_STOPPED: &str = include_str!("../../sql/list_stopped_keys.sql");

/// A key that somebody asked to look at: one row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Look {
    /// The row.
    pub id: i64,
    /// The key.
    pub key: KeyHash,
    /// When it was to be looked at.
    pub due_at: DateTime<Utc>,
}

/// What became of one key.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Freed {
    /// The key.
    pub key: KeyHash,
    /// Somebody else is at it, so that it is to be looked at again soon.
    pub again: bool,
    /// Routes that have a ready row more.
    pub routes: Vec<RouteId>,
    /// How many it let go.
    pub tasks: i32,
    /// When the token comes that its next task waits for, and how long that is.
    pub token: Option<(DateTime<Utc>, Duration)>,
}

/// Lets go of these keys what may go now; the rows of `looks` are answered with that. It waits for nobody but a statement
/// that removes full buckets.
pub async fn free(
    client: &impl GenericClient,
    keys: &[KeyHash],
    looks: &[i64],
) -> Result<Vec<Freed>, Error> {
    let statement = client.prepare_cached(FREE).await?;
    let rows = client.query(&statement, &[&keys, &looks]).await?;
    let freed = rows.iter().map(|row| {
        Ok(Freed {
            key: row.try_get("key_hash")?,
            again: row.try_get("again")?,
            routes: row
                .try_get::<_, Option<Vec<RouteId>>>("routes")?
                .unwrap_or_default(),
            tasks: row.try_get("tasks")?,
            token: row
                .try_get::<_, Option<DateTime<Utc>>>("token_at")?
                .zip(row.try_get::<_, Option<i64>>("token_in_ms")?)
                .map(|(at, ms)| (at, Duration::from_millis(u64::try_from(ms).unwrap_or(0)))),
        })
    });
    freed.collect()
}

/// The first `limit` rows behind this one that ask to look at a key and are due, and how long until the next one is.
pub async fn find_looks(
    client: &impl GenericClient,
    after: Option<Look>,
    limit: i32,
) -> Result<(Vec<Look>, Option<Duration>), Error> {
    let statement = client.prepare_cached(FIND_LOOKS).await?;
    let (due_at, id) = (after.map(|look| look.due_at), after.map(|look| look.id));
    let (mut due, mut next) = (Vec::new(), None);
    for row in client.query(&statement, &[&limit, &due_at, &id]).await? {
        match u64::try_from(row.try_get::<_, i64>("due_in_ms")?) {
            Ok(ms) if ms > 0 => {
                next = Some(Duration::from_millis(ms));
                break;
            }
            _ => due.push(Look {
                id: row.try_get("look_id")?,
                key: row.try_get("key_hash")?,
                due_at: row.try_get("due_at")?,
            }),
        }
    }
    Ok((due, next))
}

/// Keys from this number on that have tasks waiting for them, in order, and whether one of these may go.
pub async fn walk(
    client: &impl GenericClient,
    from: KeyHash,
    limit: i32,
) -> Result<Vec<(KeyHash, bool)>, Error> {
    let statement = client.prepare_cached(WALK).await?;
    let rows = client.query(&statement, &[&from, &limit]).await?;
    rows.iter()
        .map(|row| Ok((row.try_get("key_hash")?, row.try_get("has_room")?)))
        .collect()
}

/// Lets a key go on that dead letters have stopped; answers how many had.
pub async fn resume(
    client: &impl GenericClient,
    namespace: Option<&str>,
    key: &str,
) -> Result<i32, Error> {
    let statement = client.prepare_cached(RESUME).await?;
    let row = client
        .query_one(&statement, &[&namespace.map(storable), &storable(key)])
        .await?;
    Ok(row.try_get("lifted")?)
}

/// A dead letter that stops its key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stopped {
    /// The letter.
    pub letter: TaskId,
    /// Since when.
    pub since: DateTime<Utc>,
    /// Tenant.
    pub namespace: String,
    /// Where the task went.
    pub task_queue: String,
    /// What it was.
    pub task_type: String,
    /// The node that it was pinned to.
    pub node: Option<String>,
    /// The key.
    pub key: Option<String>,
    /// Why it is dead, in a word.
    pub error_class: String,
}

/// The dead letters that stop their keys, the longest first.
pub async fn list_stopped(
    client: &impl GenericClient,
    namespace: Option<&str>,
    limit: i64,
    after: Option<(DateTime<Utc>, TaskId)>,
) -> Result<Vec<Stopped>, Error> {
    let statement = client.prepare_cached(LIST_STOPPED).await?;
    let rows = client
        .query(
            &statement,
            &[
                &namespace.map(storable),
                &limit,
                &after.map(|(since, _)| since),
                &after.map(|(_, letter)| letter),
            ],
        )
        .await?;
    let stopped = rows.iter().map(|row| {
        Ok(Stopped {
            letter: row.try_get("letter_id")?,
            since: row.try_get("stopped_at")?,
            namespace: row.try_get("namespace")?,
            task_queue: row.try_get("task_queue")?,
            task_type: row.try_get("task_type")?,
            node: row.try_get("node")?,
            key: row.try_get("concurrency_key")?,
            error_class: row.try_get("error_class")?,
        })
    });
    stopped.collect()
}
