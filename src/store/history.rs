//! The life of one task, for those who look at it.

use tokio_postgres::Row;

use super::{Client, Error};
use crate::domain::id::{DispatcherId, RunId, TaskId, WorkflowId};

const READ_HISTORY: &str = include_str!("../../sql/read_history.sql");
const LIST_FAILURES: &str = include_str!("../../sql/list_failures.sql");

/// Failures of one task that are shown: more than any has unless something loops.
const SHOWN: i64 = 1_000;

/// A failed or lost delivery.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Failed {
    /// The try, from one.
    pub attempt: i32,
    /// The delivery.
    pub fence: i32,
    /// What was done about it.
    pub how: String,
    /// Who had it.
    pub worker: Option<String>,
    /// Where.
    pub node: Option<String>,
    /// What went wrong, in a word.
    pub error_class: String,
    /// What went wrong.
    pub error_message: Option<String>,
    /// RFC 3339.
    pub claimed_at: Option<String>,
    /// RFC 3339.
    pub failed_at: String,
}

/// What stands beside a task, and how its deliveries went.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct History {
    /// The task.
    pub id: TaskId,
    /// The task that it is a redrive of, else its own id.
    pub origin: TaskId,
    /// RFC 3339, as all times here.
    pub enqueued_at: String,
    /// Tasks with the same key run one after the other.
    pub concurrency_key: Option<String>,
    /// Its own bound, where it has one.
    pub max_attempts: Option<i32>,
    /// Its own, in milliseconds.
    pub run_timeout_ms: Option<i32>,
    /// Its own, in milliseconds.
    pub heartbeat_timeout_ms: Option<i32>,
    /// Its group of tasks, the run and its place in it.
    pub workflow: Option<(WorkflowId, RunId, i32)>,
    /// Of the payload.
    pub payload_bytes: i32,
    /// Of the result, where there is one.
    pub result_bytes: Option<i32>,
    /// Failed tries.
    pub attempt: i32,
    /// Deliveries whose worker or replica vanished, where that is still known.
    pub losses: Option<i32>,
    /// Deliveries so far; gone with its row once it has ended without a report.
    pub fence: Option<i32>,
    /// Who has it now.
    pub dispatcher: Option<DispatcherId>,
    /// The name of that replica.
    pub replica: Option<String>,
    /// When its present or last delivery was claimed.
    pub claimed_at: Option<String>,
    /// When the present delivery is given up at the latest.
    pub deadline: Option<String>,
    /// It has to have started by then.
    pub start_by: Option<String>,
    /// Why it died, where its letter is there.
    pub letter_cause: Option<String>,
    /// The task that was made of its letter.
    pub redriven_as: Option<TaskId>,
    /// Its failed and lost deliveries, the first at first.
    pub failures: Vec<Failed>,
}

/// Reads the history of a task; none when there never was one, or when it has left history.
///
/// # Errors
/// [`Error`].
pub async fn read(client: &Client, id: TaskId) -> Result<Option<History>, Error> {
    let statement = client.prepare_cached(READ_HISTORY).await?;
    let Some(row) = client.query_opt(&statement, &[&id]).await? else {
        return Ok(None);
    };
    let failures = failures(client, id).await?;
    let workflow: Option<WorkflowId> = row.try_get("workflow_id")?;
    let (run, ordinal): (Option<RunId>, Option<i32>) =
        (row.try_get("run_id")?, row.try_get("ordinal")?);
    let (fence, ended): (Option<i32>, Option<i32>) =
        (row.try_get("fence")?, row.try_get("ended_fence")?);
    Ok(Some(History {
        id,
        origin: row.try_get("origin")?,
        enqueued_at: row.try_get("enqueued_at")?,
        concurrency_key: row.try_get("concurrency_key")?,
        max_attempts: row.try_get("max_attempts")?,
        run_timeout_ms: row.try_get("run_timeout_ms")?,
        heartbeat_timeout_ms: row.try_get("heartbeat_timeout_ms")?,
        workflow: workflow
            .zip(run)
            .zip(ordinal)
            .map(|((workflow, run), ordinal)| (workflow, run, ordinal)),
        payload_bytes: row.try_get("payload_bytes")?,
        result_bytes: row.try_get("result_bytes")?,
        attempt: row.try_get("attempt")?,
        losses: row.try_get("losses")?,
        fence: fence.or(ended),
        dispatcher: row.try_get("dispatcher")?,
        replica: row.try_get("replica")?,
        claimed_at: row.try_get("claimed_at")?,
        deadline: row.try_get("deadline")?,
        start_by: row.try_get("start_by")?,
        letter_cause: row.try_get("letter_cause")?,
        redriven_as: row.try_get("redriven_as")?,
        failures,
    }))
}

/// The failed and lost deliveries of a task, dead or not, the first at first.
pub async fn failures(client: &Client, id: TaskId) -> Result<Vec<Failed>, Error> {
    let statement = client.prepare_cached(LIST_FAILURES).await?;
    let rows = client.query(&statement, &[&id, &SHOWN]).await?;
    rows.iter().map(failed).collect()
}

fn failed(row: &Row) -> Result<Failed, Error> {
    Ok(Failed {
        attempt: row.try_get("attempt")?,
        fence: row.try_get("fence")?,
        how: row.try_get("move")?,
        worker: row.try_get("worker")?,
        node: row.try_get("node")?,
        error_class: row.try_get("error_class")?,
        error_message: row.try_get("error_message")?,
        claimed_at: row.try_get("claimed_at")?,
        failed_at: row.try_get("failed_at")?,
    })
}
