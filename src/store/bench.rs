//! What the benchmarks ask the database. Costs grow with the range of ids that is asked for.

use std::ops::RangeInclusive;
use std::time::Duration;

use bytes::Bytes;
use serde::Serialize;

use super::{Client, Error};

const READ_COUNTERS: &str = include_str!("../../sql/read_counters.sql");

/// What a database has done since its statistics began. Sessions report to them about once a second while they are
/// busy, and when they end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Counters {
    /// Transactions in this database, a statement outside of any being one.
    pub transactions: i64,
    /// Bytes of WAL of the whole server.
    pub wal_bytes: i64,
}

/// Reads the counters.
///
/// # Errors
/// [`Error`].
pub async fn read_counters(client: &Client) -> Result<Counters, Error> {
    let statement = client.prepare_cached(READ_COUNTERS).await?;
    let row = client.query_one(&statement, &[]).await?;
    Ok(Counters {
        transactions: row.try_get("transactions")?,
        wal_bytes: row.try_get("wal_bytes")?,
    })
}

/// Process id of this session at the server.
///
/// # Errors
/// [`Error`].
pub async fn read_session(client: &Client) -> Result<i32, Error> {
    let text = include_str!("../../sql/read_session.sql");
    let statement = client.prepare_cached(text).await?;
    Ok(client.query_one(&statement, &[]).await?.try_get("pid")?)
}

/// The first task of the range that has not ended.
///
/// # Errors
/// [`Error`].
pub async fn find_unfinished(
    client: &Client,
    ids: RangeInclusive<i64>,
) -> Result<Option<i64>, Error> {
    let text = include_str!("../../sql/find_unfinished.sql");
    let statement = client.prepare_cached(text).await?;
    let row = client
        .query_opt(&statement, &[ids.start(), ids.end()])
        .await?;
    Ok(row.map(|row| row.try_get("id")).transpose()?)
}

/// Id and result of the tasks of the range that ended well with a result, whoever they belong to.
///
/// # Errors
/// [`Error`].
pub async fn read_results(
    client: &Client,
    ids: RangeInclusive<i64>,
) -> Result<Vec<(i64, Bytes)>, Error> {
    let text = include_str!("../../sql/read_results.sql");
    let statement = client.prepare_cached(text).await?;
    let rows = client.query(&statement, &[ids.start(), ids.end()]).await?;
    rows.iter()
        .map(|row| {
            let result: Vec<u8> = row.try_get("result")?;
            Ok((row.try_get("id")?, result.into()))
        })
        .collect()
}

/// From the first claim to the last end, by the database's clock. None when no task of the range has ended.
///
/// # Errors
/// [`Error`].
pub async fn read_span(
    client: &Client,
    ids: RangeInclusive<i64>,
) -> Result<Option<Duration>, Error> {
    let text = include_str!("../../sql/read_span.sql");
    let statement = client.prepare_cached(text).await?;
    let row = client
        .query_one(&statement, &[ids.start(), ids.end()])
        .await?;
    let span: Option<i64> = row.try_get("span_us")?;
    Ok(span.map(|span| Duration::from_micros(u64::try_from(span).unwrap_or(0))))
}

/// The table of unfinished tasks.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct LiveTable {
    /// With its indexes.
    pub bytes: i64,
    /// Rows, as the statistics have them.
    pub live_rows: i64,
    /// Rows that are gone and not vacuumed.
    pub dead_rows: i64,
    /// Seconds since the last vacuum; none: never.
    pub vacuumed_s: Option<i64>,
}

/// Reads how large it is.
///
/// # Errors
/// [`Error`].
pub async fn read_live_table(client: &Client) -> Result<LiveTable, Error> {
    let text = include_str!("../../sql/read_live_table.sql");
    let statement = client.prepare_cached(text).await?;
    let row = client.query_one(&statement, &[]).await?;
    Ok(LiveTable {
        bytes: row.try_get("bytes")?,
        live_rows: row.try_get("live_rows")?,
        dead_rows: row.try_get("dead_rows")?,
        vacuumed_s: row.try_get("vacuumed_s")?,
    })
}

/// Statistics for the planner, as autovacuum gathers them a little later.
///
/// # Errors
/// [`Error`].
pub async fn analyze(client: &Client) -> Result<(), Error> {
    let text = include_str!("../../sql/analyze_tables.sql");
    client.batch_execute(text).await?;
    Ok(())
}

/// A checkpoint now; it takes a superuser.
///
/// # Errors
/// [`Error`].
pub async fn checkpoint(client: &Client) -> Result<(), Error> {
    let text = include_str!("../../sql/force_checkpoint.sql");
    client.batch_execute(text).await?;
    Ok(())
}

/// Holds a snapshot of this moment until it is dropped, so that no row that dies meanwhile can be vacuumed.
///
/// # Errors
/// [`Error`].
pub async fn hold_snapshot(
    client: &mut Client,
) -> Result<deadpool_postgres::Transaction<'_>, Error> {
    let transaction = client
        .build_transaction()
        .isolation_level(tokio_postgres::IsolationLevel::RepeatableRead)
        .start()
        .await?;
    // A transaction takes its snapshot with its first statement.
    transaction.query_one(READ_COUNTERS, &[]).await?;
    Ok(transaction)
}
