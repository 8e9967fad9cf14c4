//! Redrives by filter: durable operations that replicas drive in small batches.

use std::time::Duration;

use deadpool_postgres::GenericClient;

use super::dead_letters::Choice;
use super::{Client, Error, storable};

const START_REDRIVE: &str = include_str!("../../sql/start_redrive.sql");
const LIST_REDRIVES: &str = include_str!("../../sql/list_redrives.sql");
const STOP_REDRIVE: &str = include_str!("../../sql/stop_redrive.sql");
const RESUME_REDRIVE: &str = include_str!("../../sql/resume_redrive.sql");
const FIND_REDRIVES: &str = include_str!("../../sql/find_redrives.sql");
const DRIVE_REDRIVE: &str = include_str!("../../sql/drive_redrive.sql");

/// The number of a redrive.
pub type RedriveId = i64;

/// How a redrive by filter goes about it. The database judges the values.
#[derive(Debug, Clone, PartialEq)]
pub struct Plan {
    /// Which letters.
    pub choice: Choice,
    /// Letters a second; none is as fast as it goes.
    pub rate: Option<f64>,
    /// So many go first.
    pub canary: Option<i32>,
    /// Halts when more than this share of them die again; none is half.
    pub canary_share: Option<f64>,
    /// Takes judged letters too.
    pub forced: bool,
    /// To the route without the node.
    pub clear_pin: bool,
    /// Who.
    pub by: String,
    /// Why.
    pub reason: String,
}

/// Starts a redrive, or only counts. Answers its id, unless it was only counted, and how many letters it takes.
pub async fn start(
    client: &Client,
    plan: &Plan,
    dry_run: bool,
) -> Result<(Option<RedriveId>, i64), Error> {
    let statement = client.prepare_cached(START_REDRIVE).await?;
    let row = client
        .query_one(
            &statement,
            &[
                &plan.choice.filter,
                &plan.choice.all,
                &plan.rate,
                &plan.canary,
                &plan.canary_share,
                &plan.forced,
                &plan.clear_pin,
                &storable(&plan.by),
                &storable(&plan.reason),
                &dry_run,
            ],
        )
        .await?;
    Ok((row.try_get("redrive_id")?, row.try_get("total")?))
}

/// A redrive by filter.
#[derive(Debug, Clone, PartialEq)]
pub struct Redrive {
    /// Its number.
    pub id: RedriveId,
    /// What it takes, as JSON.
    pub filter: String,
    /// Takes judged letters too.
    pub forced: bool,
    /// To the route without the node.
    pub clear_pin: bool,
    /// Letters a second.
    pub rate: Option<f64>,
    /// So many go first.
    pub canary: Option<i32>,
    /// Halts when more than this share of them die again.
    pub canary_share: f64,
    /// The first ones have not died again, or somebody let it go on all the same.
    pub canary_passed: bool,
    /// `running`, `stopped`, `halted` or `done`.
    pub state: String,
    /// Why it is stopped or halted.
    pub detail: String,
    /// Who.
    pub by: String,
    /// Why.
    pub reason: String,
    /// Letters that it takes, fixed at its start.
    pub total: i64,
    /// Tasks made.
    pub redriven: i64,
    /// Letters that could not be redriven any more when their turn came.
    pub skipped: i64,
    /// RFC 3339.
    pub started_at: String,
    /// RFC 3339.
    pub updated_at: String,
    /// RFC 3339.
    pub ended_at: Option<String>,
}

/// Lists redrives below an id, the newest first, or one of them.
pub async fn list(
    client: &Client,
    id: Option<RedriveId>,
    before: Option<RedriveId>,
    limit: u32,
) -> Result<Vec<Redrive>, Error> {
    let statement = client.prepare_cached(LIST_REDRIVES).await?;
    let before = before.unwrap_or(i64::MAX);
    let rows = client
        .query(&statement, &[&id, &before, &i64::from(limit)])
        .await?;
    rows.iter()
        .map(|row| {
            Ok(Redrive {
                id: row.try_get("redrive_id")?,
                filter: row.try_get("filter")?,
                forced: row.try_get("forced")?,
                clear_pin: row.try_get("clear_pin")?,
                rate: row.try_get("rate")?,
                canary: row.try_get("canary")?,
                canary_share: row.try_get("canary_share")?,
                canary_passed: row.try_get("canary_passed")?,
                state: row.try_get("state")?,
                detail: row.try_get("detail")?,
                by: row.try_get("started_by")?,
                reason: row.try_get("reason")?,
                total: row.try_get("total")?,
                redriven: row.try_get("redriven")?,
                skipped: row.try_get("skipped")?,
                started_at: row.try_get("started_at")?,
                updated_at: row.try_get("updated_at")?,
                ended_at: row.try_get("ended_at")?,
            })
        })
        .collect()
}

/// Stops a redrive; false when there is none.
pub async fn stop(client: &Client, id: RedriveId, reason: &str) -> Result<bool, Error> {
    let statement = client.prepare_cached(STOP_REDRIVE).await?;
    let row = client
        .query_one(&statement, &[&id, &storable(reason)])
        .await?;
    Ok(row.try_get::<_, Option<String>>("state")?.is_some())
}

/// Lets a redrive go on; false when there is none.
pub async fn resume(client: &Client, id: RedriveId) -> Result<bool, Error> {
    let statement = client.prepare_cached(RESUME_REDRIVE).await?;
    let row = client.query_one(&statement, &[&id]).await?;
    Ok(row.try_get::<_, Option<String>>("state")?.is_some())
}

/// The running redrives with the time until each is due, the longest due first.
pub async fn find_running(
    client: &impl GenericClient,
    limit: i64,
) -> Result<Vec<(RedriveId, Duration)>, Error> {
    let statement = client.prepare_cached(FIND_REDRIVES).await?;
    let rows = client.query(&statement, &[&limit]).await?;
    rows.iter()
        .map(|row| {
            let due: i64 = row.try_get("due_in_ms")?;
            let due = Duration::from_millis(u64::try_from(due).unwrap_or(0));
            Ok((row.try_get("redrive_id")?, due))
        })
        .collect()
}

/// What one batch of a redrive came to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Driven {
    /// Its state now.
    pub state: String,
    /// Letters that were taken up.
    pub took: i32,
}

/// Moves a redrive on by one batch, a transaction of its own; none where it is not due or another replica is at it.
pub async fn drive(
    client: &impl GenericClient,
    id: RedriveId,
    batch: i32,
) -> Result<Option<Driven>, Error> {
    let statement = client.prepare_cached(DRIVE_REDRIVE).await?;
    let row = client.query_opt(&statement, &[&id, &batch]).await?;
    row.map(|row| {
        Ok(Driven {
            state: row.try_get("state")?,
            took: row.try_get("took")?,
        })
    })
    .transpose()
}
