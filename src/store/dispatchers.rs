//! Replicas: their rows, their heartbeats, and whether they sleep.

use std::time::Duration;

use super::pool::Client;
use super::{Error, millis};
use crate::domain::id::{DispatcherId, RouteId};

const REGISTER: &str = include_str!("../../sql/register_dispatcher.sql");
const BEAT: &str = include_str!("../../sql/beat.sql");
const READ: &str = include_str!("../../sql/read_dispatchers.sql");
const LIST: &str = include_str!("../../sql/list_replicas.sql");
const MARK_DEAD: &str = include_str!("../../sql/mark_dead.sql");
const RETIRE: &str = include_str!("../../sql/retire_dispatcher.sql");
const FORGET: &str = include_str!("../../sql/forget_dispatchers.sql");
const SET_SLEEPING: &str = include_str!("../../sql/set_sleeping.sql");
const SET_AWAITING: &str = include_str!("../../sql/set_awaiting.sql");
const ANNOUNCE_ENDS: &str = include_str!("../../sql/announce_ends.sql");
const WAKE_SLEEPERS: &str = include_str!("../../sql/wake_sleepers.sql");

/// A replica that nobody has declared dead.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Dispatcher {
    /// This start of it.
    pub id: DispatcherId,
    /// Its configured name.
    pub name: String,
    /// Its heartbeat counter.
    pub beat: i64,
    /// It takes nothing new.
    pub draining: bool,
    /// Somebody waits there for the end of a task.
    pub awaiting: bool,
}

/// Starts a replica's life under a new id.
pub async fn register(client: &Client, name: &str, version: &str) -> Result<DispatcherId, Error> {
    let statement = client.prepare_cached(REGISTER).await?;
    Ok(client
        .query_one(&statement, &[&name, &version])
        .await?
        .get("id"))
}

/// One heartbeat. False: this replica has been declared dead, which is final.
pub async fn beat(client: &Client, id: DispatcherId, draining: bool) -> Result<bool, Error> {
    let statement = client.prepare_cached(BEAT).await?;
    Ok(client
        .query_opt(&statement, &[&id, &draining])
        .await?
        .is_some())
}

/// The replicas that nobody has declared dead.
pub async fn read(client: &Client) -> Result<Vec<Dispatcher>, Error> {
    let statement = client.prepare_cached(READ).await?;
    let rows = client.query(&statement, &[]).await?;
    let dispatchers = rows.iter().map(|row| Dispatcher {
        id: row.get("id"),
        name: row.get("name"),
        beat: row.get("beat"),
        draining: row.get("draining"),
        awaiting: row.get("awaiting"),
    });
    Ok(dispatchers.collect())
}

/// One start of a replica, as operators see it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Replica {
    /// This start of it.
    pub id: DispatcherId,
    /// Its configured name.
    pub name: String,
    /// Of the program.
    pub version: String,
    /// `up`, `draining`, `silent` or `dead`.
    pub state: String,
    /// It waits to be told of new work.
    pub sleeping: bool,
    /// A quota keeps it from claiming.
    pub held_back: bool,
    /// RFC 3339.
    pub started_at: String,
    /// RFC 3339.
    pub dead_at: Option<String>,
    /// Since its last beat.
    pub silent: Duration,
    /// Workers that are connected to it.
    pub workers: i64,
    /// Their slots.
    pub slots: i64,
    /// Of these, taken ones.
    pub busy: i64,
    /// Tasks that it has, counted up to a bound.
    pub claimed: i64,
}

/// The starts of replicas that are kept, the living first; those that are quiet for longer than `silence` count as
/// silent. What each has claimed is counted up to `bound`.
pub async fn list(
    client: &Client,
    silence: Duration,
    limit: i64,
    bound: i64,
) -> Result<Vec<Replica>, Error> {
    let statement = client.prepare_cached(LIST).await?;
    let rows = client
        .query(&statement, &[&millis(silence), &limit, &bound])
        .await?;
    let replicas = rows.iter().map(|row| {
        let silent: i64 = row.try_get("silent_ms")?;
        Ok(Replica {
            id: row.try_get("id")?,
            name: row.try_get("name")?,
            version: row.try_get("version")?,
            state: row.try_get("state")?,
            sleeping: row.try_get("sleeping")?,
            held_back: row.try_get("held_back")?,
            started_at: row.try_get("started_at")?,
            dead_at: row.try_get("dead_at")?,
            silent: Duration::from_millis(u64::try_from(silent).unwrap_or(0)),
            workers: row.try_get("workers")?,
            slots: row.try_get("slots")?,
            busy: row.try_get("busy")?,
            claimed: row.try_get("claimed")?,
        })
    });
    replicas.collect()
}

/// Declares replicas dead that still stand at the given beat; answers those that it declared.
pub async fn mark_dead(
    client: &Client,
    silent: &[(DispatcherId, i64)],
) -> Result<Vec<DispatcherId>, Error> {
    let (ids, beats): (Vec<DispatcherId>, Vec<i64>) = silent.iter().copied().unzip();
    let statement = client.prepare_cached(MARK_DEAD).await?;
    let rows = client.query(&statement, &[&ids, &beats]).await?;
    Ok(rows.iter().map(|row| row.get("id")).collect())
}

/// A replica's own last word, when it leaves nothing claimed.
pub async fn retire(client: &Client, id: DispatcherId) -> Result<(), Error> {
    let statement = client.prepare_cached(RETIRE).await?;
    client.execute(&statement, &[&id]).await?;
    Ok(())
}

/// Deletes replicas that died over an hour ago and own nothing.
pub async fn forget(client: &Client) -> Result<u64, Error> {
    let statement = client.prepare_cached(FORGET).await?;
    Ok(client.execute(&statement, &[]).await?)
}

/// Says whether this replica sleeps, so that producers know whether to notify, and whether a quota holds it back, so that
/// those who free one know.
pub async fn set_sleeping(
    client: &Client,
    id: DispatcherId,
    sleeping: bool,
    held_back: bool,
) -> Result<(), Error> {
    let statement = client.prepare_cached(SET_SLEEPING).await?;
    client
        .execute(&statement, &[&id, &sleeping, &held_back])
        .await?;
    Ok(())
}

/// Tells the other replicas, where one sleeps, that rows of these routes were put back.
pub async fn wake_sleepers(
    client: &Client,
    routes: &[RouteId],
    own: DispatcherId,
) -> Result<(), Error> {
    let statement = client.prepare_cached(WAKE_SLEEPERS).await?;
    client.query(&statement, &[&routes, &own]).await?;
    Ok(())
}

/// Says whether somebody waits at this replica for the end of a task, so that the others know whether to tell; that
/// somebody begins to is told to those that listen.
pub async fn set_awaiting(client: &Client, id: DispatcherId, awaiting: bool) -> Result<(), Error> {
    let statement = client.prepare_cached(SET_AWAITING).await?;
    client.query(&statement, &[&id, &awaiting]).await?;
    Ok(())
}

/// Tells the other replicas, where somebody waits at one, that tasks have ended.
pub async fn announce_ends(client: &Client, own: DispatcherId) -> Result<(), Error> {
    let statement = client.prepare_cached(ANNOUNCE_ENDS).await?;
    client.query(&statement, &[&own]).await?;
    Ok(())
}
