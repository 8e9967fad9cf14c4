//! What the chores look for, and the partitions.

use std::time::Duration;

use deadpool_postgres::GenericClient;

use super::{Error, millis};
use crate::domain::id::{DispatcherId, RouteId, TaskId, Token};

const TRY_CHORES: &str = include_str!("../../sql/try_chores.sql");
const FIND_ORPHANS: &str = include_str!("../../sql/find_orphans.sql");
const FIND_LAST_DEATH: &str = include_str!("../../sql/find_last_death.sql");
const FIND_OVERDUE: &str = include_str!("../../sql/find_overdue.sql");
const FIND_CLAIMS: &str = include_str!("../../sql/find_claims.sql");
const FIND_CANCELLED: &str = include_str!("../../sql/find_cancelled.sql");
const MAKE_PARTITIONS: &str = include_str!("../../sql/make_partitions.sql");
const RAISE_HORIZON: &str = include_str!("../../sql/raise_horizon.sql");
const SET_LIMITS: &str = include_str!("../../sql/set_limits.sql");

/// Wins or loses this tick's chores, until the end of the transaction that `client` is in.
pub async fn try_chores(client: &impl GenericClient) -> Result<bool, Error> {
    let statement = client.prepare_cached(TRY_CHORES).await?;
    Ok(client.query_one(&statement, &[]).await?.get("won"))
}

/// A claimed row whose owner is dead.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Orphan {
    /// The delivery.
    pub token: Token,
    /// The dead owner.
    pub owner: DispatcherId,
    /// The owner had said that it drains.
    pub gentle: bool,
}

/// Claimed rows whose owner is dead.
pub async fn find_orphans(client: &impl GenericClient, limit: i32) -> Result<Vec<Orphan>, Error> {
    let statement = client.prepare_cached(FIND_ORPHANS).await?;
    let rows = client.query(&statement, &[&limit]).await?;
    let orphans = rows.iter().map(|row| Orphan {
        token: read_token(row),
        owner: row.get("dispatcher"),
        gentle: row.get("gentle"),
    });
    Ok(orphans.collect())
}

/// When a replica was last declared dead or said goodbye, by a number that grows with the database's clock.
pub async fn find_last_death(client: &impl GenericClient) -> Result<Option<i64>, Error> {
    let statement = client.prepare_cached(FIND_LAST_DEATH).await?;
    Ok(client.query_one(&statement, &[]).await?.get("died_at"))
}

/// A claimed row past its deadline.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Overdue {
    /// The delivery.
    pub token: Token,
    /// Its owner.
    pub owner: DispatcherId,
    /// Its route.
    pub route: RouteId,
    /// Failed tries so far.
    pub attempt: u32,
}

/// Claimed rows past their deadline.
pub async fn find_overdue(client: &impl GenericClient, limit: i32) -> Result<Vec<Overdue>, Error> {
    let statement = client.prepare_cached(FIND_OVERDUE).await?;
    let rows = client.query(&statement, &[&limit]).await?;
    let overdue = rows.iter().map(|row| Overdue {
        token: read_token(row),
        owner: row.get("dispatcher"),
        route: row.get("route_id"),
        attempt: u32::try_from(row.get::<_, i32>("attempt")).unwrap_or(0),
    });
    Ok(overdue.collect())
}

/// What sweeps of unknown outcome have claimed after all.
pub async fn find_claims(
    client: &impl GenericClient,
    dispatcher: DispatcherId,
    sweeps: &[i64],
) -> Result<Vec<Token>, Error> {
    let statement = client.prepare_cached(FIND_CLAIMS).await?;
    let rows = client.query(&statement, &[&dispatcher, &sweeps]).await?;
    Ok(rows.iter().map(read_token).collect())
}

/// Running tasks of this replica that somebody asked to cancel.
pub async fn find_cancelled(
    client: &impl GenericClient,
    dispatcher: DispatcherId,
) -> Result<Vec<Token>, Error> {
    let statement = client.prepare_cached(FIND_CANCELLED).await?;
    let rows = client.query(&statement, &[&dispatcher]).await?;
    Ok(rows.iter().map(read_token).collect())
}

/// Makes the day partitions that are missing, up to `days` ahead.
pub async fn make_partitions(client: &impl GenericClient, days: i32) -> Result<(), Error> {
    let statement = client.prepare_cached(MAKE_PARTITIONS).await?;
    client.query(&statement, &[&days]).await?;
    Ok(())
}

/// Lets ids use new partitions once every producer knows of them. True: nothing is left to raise.
pub async fn raise_horizon(client: &impl GenericClient) -> Result<bool, Error> {
    let statement = client.prepare_cached(RAISE_HORIZON).await?;
    Ok(client.query_one(&statement, &[]).await?.get("raised"))
}

/// Stores the limits that every door checks: (payload, result) in bytes, which it answers, and how long dispatch keys of
/// new tasks are remembered. None keeps what is there.
pub async fn set_limits(
    client: &impl GenericClient,
    (payload, result): (Option<i32>, Option<i32>),
    remember: Option<Duration>,
) -> Result<(i32, i32), Error> {
    let statement = client.prepare_cached(SET_LIMITS).await?;
    let row = client
        .query_one(&statement, &[&payload, &result, &remember.map(millis)])
        .await?;
    Ok((row.get("payload_bytes"), row.get("result_bytes")))
}

fn read_token(row: &tokio_postgres::Row) -> Token {
    Token {
        id: row.get::<_, TaskId>("id"),
        epoch: row.get("epoch"),
        fence: row.get("fence"),
    }
}
