//! What a check-up reads. Each statement is bounded, however much waits or is kept.

use deadpool_postgres::GenericClient;

use super::bench::{LiveTable, read_live_table};
use super::{Client, Error};
use crate::domain::checkup::{Contradictions, Facts, Holder, Server, Upkeep};

const FIND_HOLDERS: &str = include_str!("../../sql/find_horizon_holders.sql");

/// Unfinished tasks that are looked at for contradictions.
const LOOKED_AT: i64 = 10_000;
/// A dead replica's claims are put back within a tick or two; beyond that nobody does it.
const ABANDONED_S: i64 = 60;
/// A replica that is silent for so long would have been declared dead by any other one.
const SILENT_S: i64 = 60;
/// Holders that are named.
const HOLDERS: i64 = 5;

/// Reads everything that [`crate::domain::checkup::judge`] judges.
///
/// # Errors
/// [`Error`].
pub async fn read(client: &Client, held_for_s: i64) -> Result<Facts, Error> {
    Ok(Facts {
        server: read_server(client).await?,
        holders: find_holders(client, held_for_s, HOLDERS).await?,
        live: read_live_table(client).await?.into(),
        contradictions: find_contradictions(client).await?,
        upkeep: read_upkeep(client).await?,
    })
}

/// Who has kept dead rows from being vacuumed for so many seconds, the oldest first.
///
/// # Errors
/// [`Error`].
pub async fn find_holders(
    client: &impl GenericClient,
    seconds: i64,
    limit: i64,
) -> Result<Vec<Holder>, Error> {
    let statement = client.prepare_cached(FIND_HOLDERS).await?;
    let rows = client.query(&statement, &[&seconds, &limit]).await?;
    let holders = rows.iter().map(|row| {
        Ok(Holder {
            kind: row.try_get("kind")?,
            pid: row.try_get("pid")?,
            name: row.try_get("name")?,
            state: row.try_get("state")?,
            seconds: row.try_get("seconds")?,
            transactions: row.try_get("transactions")?,
        })
    });
    holders.collect()
}

async fn read_server(client: &Client) -> Result<Server, Error> {
    let text = include_str!("../../sql/read_server_settings.sql");
    let row = client.query_one(text, &[]).await?;
    Ok(Server {
        version: row.try_get("version")?,
        not_durable: row.try_get("not_durable")?,
        autovacuum: row.try_get("autovacuum")?,
        max_connections: row.try_get::<_, i32>("max_connections")?.into(),
        connections: row.try_get("connections")?,
        standby: row.try_get("standby")?,
        clock_ms: row.try_get("clock_ms")?,
        owner: row.try_get("owner")?,
        role: row.try_get("role")?,
        owns: row.try_get("owns")?,
    })
}

async fn find_contradictions(client: &Client) -> Result<Contradictions, Error> {
    let text = include_str!("../../sql/find_contradictions.sql");
    let row = client.query_one(text, &[&LOOKED_AT, &ABANDONED_S]).await?;
    Ok(Contradictions {
        looked_at: row.try_get("looked_at")?,
        ended_too: row.try_get("ended_too")?,
        abandoned: row.try_get("abandoned")?,
    })
}

/// Whether the schema is looked after.
///
/// # Errors
/// [`Error`].
pub async fn read_upkeep(client: &Client) -> Result<Upkeep, Error> {
    let text = include_str!("../../sql/read_upkeep.sql");
    let row = client.query_one(text, &[&SILENT_S]).await?;
    Ok(Upkeep {
        alive: row.try_get("alive")?,
        silent: row.try_get("silent")?,
        days_ahead: row.try_get("days_ahead")?,
        unserved: row.try_get("unserved")?,
    })
}

impl From<LiveTable> for crate::domain::checkup::Live {
    fn from(table: LiveTable) -> Self {
        Self {
            bytes: table.bytes,
            rows: table.live_rows,
            dead_rows: table.dead_rows,
            vacuumed_s: table.vacuumed_s,
        }
    }
}
