//! Looking at tasks.

use chrono::{DateTime, Utc};
use tokio_postgres::Row;

use super::{Client, Error, storable};

/// Tasks that one page of a list looks at, at most: under 200 ms of work however rare its filters are.
pub const LOOKED_AT: i64 = 20_000;

/// Ids in one statement, so that no batch holds its locks for long (design: at most 2,000).
pub const BATCH: usize = 2_000;

/// A task as producers see it.
#[derive(Clone, PartialEq, Eq)]
pub struct Task {
    /// Its id.
    pub id: i64,
    /// The namespace's name.
    pub namespace: String,
    /// The task queue.
    pub task_queue: String,
    /// The task type.
    pub task_type: String,
    /// The only node that may run it.
    pub node: Option<String>,
    /// scheduled, ready, held, running, done, failed or cancelled.
    pub state: String,
    /// Whether the state is one of the last three.
    pub ended: bool,
    /// Failed tries so far.
    pub attempt: i32,
    /// 0 (first) to 3; gone once the task has ended.
    pub priority: Option<i16>,
    /// Whether it runs and was asked to stop.
    pub cancel_requested: bool,
    /// RFC 3339, as all times here.
    pub enqueued_at: String,
    /// When it is due; gone once the task has ended.
    pub visible_after: Option<String>,
    /// When it ended.
    pub ended_at: Option<String>,
    /// Whose report ended it.
    pub worker: Option<String>,
    /// What went wrong, in a word.
    pub error_class: Option<String>,
    /// What went wrong, in a sentence.
    pub error_message: Option<String>,
    /// The caller's idempotency key.
    pub dispatch_key: Option<String>,
    /// A JSON object of strings.
    pub labels: Option<String>,
    /// What the payload is.
    pub content_type: String,
    /// When asked for.
    pub payload: Option<Vec<u8>>,
    /// What the result is.
    pub result_type: Option<String>,
    /// When asked for, and when there is one.
    pub result: Option<Vec<u8>>,
    /// There was a result, and it is kept no longer.
    pub result_expired: bool,
}

/// Payload, labels and result belong to the application and stay out of logs.
impl std::fmt::Debug for Task {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Task")
            .field("id", &self.id)
            .field("state", &self.state)
            .field("attempt", &self.attempt)
            .finish_non_exhaustive()
    }
}

/// What to read of a task besides its columns.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Parts {
    /// The payload.
    pub payload: bool,
    /// The result.
    pub result: bool,
}

/// Reads one task; none when there never was one, or when it has left history.
///
/// # Errors
/// [`Error`].
pub async fn read_task(client: &Client, id: i64, parts: Parts) -> Result<Option<Task>, Error> {
    let statement = client
        .prepare_cached(include_str!("../../sql/read_task.sql"))
        .await?;
    let row = client
        .query_opt(&statement, &[&id, &parts.payload, &parts.result])
        .await?;
    row.as_ref().map(task).transpose()
}

fn task(row: &Row) -> Result<Task, Error> {
    Ok(Task {
        id: row.try_get("id")?,
        namespace: row.try_get("namespace")?,
        task_queue: row.try_get("task_queue")?,
        task_type: row.try_get("task_type")?,
        node: row.try_get("node")?,
        state: row.try_get("state")?,
        ended: row.try_get("ended")?,
        attempt: row.try_get("attempt")?,
        priority: row.try_get("priority")?,
        cancel_requested: row.try_get("cancel_requested")?,
        enqueued_at: row.try_get("enqueued_at")?,
        visible_after: row.try_get("visible_after")?,
        ended_at: row.try_get("ended_at")?,
        worker: row.try_get("worker")?,
        error_class: row.try_get("error_class")?,
        error_message: row.try_get("error_message")?,
        dispatch_key: row.try_get("dispatch_key")?,
        labels: row.try_get("labels")?,
        content_type: row.try_get("content_type")?,
        payload: row.try_get("payload")?,
        result_type: row.try_get("result_type")?,
        result: row.try_get("result")?,
        result_expired: row.try_get("result_expired")?,
    })
}

/// Whether tasks as old as this id have left history.
///
/// # Errors
/// [`Error`].
pub async fn has_left_history(client: &Client, id: i64) -> Result<bool, Error> {
    let statement = client
        .prepare_cached(include_str!("../../sql/has_left_history.sql"))
        .await?;
    Ok(client
        .query_one(&statement, &[&id])
        .await?
        .try_get("has_left")?)
}

/// Which tasks to list; absent is any.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Filter {
    /// The namespace's name.
    pub namespace: Option<String>,
    /// The task queue.
    pub task_queue: Option<String>,
    /// The task type.
    pub task_type: Option<String>,
    /// The state, as [`Task::state`] has it.
    pub state: Option<String>,
    /// The task that this key names, in the namespace or in `default`; found at once.
    pub dispatch_key: Option<String>,
    /// Tasks in the line of this key.
    pub concurrency_key: Option<String>,
    /// Enqueued then or later, to a millisecond.
    pub enqueued_after: Option<DateTime<Utc>>,
    /// Enqueued earlier, to a millisecond.
    pub enqueued_before: Option<DateTime<Utc>>,
}

impl Filter {
    /// Whether a task may be passed over, so that a page may have to look at more of them than it answers.
    fn passes_over(&self) -> bool {
        [
            &self.namespace,
            &self.task_queue,
            &self.task_type,
            &self.state,
            &self.concurrency_key,
        ]
        .iter()
        .any(|part| part.is_some())
    }
}

/// A line of a list.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Listed {
    /// Its id.
    pub id: i64,
    /// The namespace's name.
    pub namespace: String,
    /// The task queue.
    pub task_queue: String,
    /// The task type.
    pub task_type: String,
    /// The only node that may run it.
    pub node: Option<String>,
    /// As [`Task::state`].
    pub state: String,
    /// Failed tries so far.
    pub attempt: i32,
    /// 0 (first) to 3; gone once the task has ended.
    pub priority: Option<i16>,
    /// RFC 3339.
    pub enqueued_at: String,
    /// RFC 3339.
    pub ended_at: Option<String>,
    /// What went wrong, in a word.
    pub error_class: Option<String>,
    /// The caller's idempotency key.
    pub dispatch_key: Option<String>,
    /// Tasks with the same key run one after the other.
    pub concurrency_key: Option<String>,
}

/// Part of a list, newest first.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Page {
    /// At most as many as were asked for; fewer, even none, do not mean that there are no more.
    pub tasks: Vec<Listed>,
    /// Where the next page begins; none at the end.
    pub before: Option<i64>,
    /// How many tasks were looked at.
    pub looked_at: i64,
    /// When the last of them was enqueued, RFC 3339: nothing that is younger was left out.
    pub looked_back_to: Option<String>,
}

/// Lists tasks with ids below `before`, at most `limit`. The work of a page is bounded: it ends early where the
/// filters match little.
///
/// # Errors
/// [`Error`].
pub async fn list_tasks(
    client: &Client,
    filter: &Filter,
    before: Option<i64>,
    limit: u32,
) -> Result<Page, Error> {
    let statement = client
        .prepare_cached(include_str!("../../sql/list_tasks.sql"))
        .await?;
    let before = before.unwrap_or(i64::MAX);
    let limit = i64::from(limit);
    let most = if filter.passes_over() {
        LOOKED_AT
    } else {
        limit
    };
    let text = |given: &Option<String>| given.as_deref().map(storable);
    let rows = client
        .query(
            &statement,
            &[
                &text(&filter.namespace),
                &text(&filter.task_queue),
                &text(&filter.task_type),
                &text(&filter.state),
                &before,
                &most,
                &limit,
                &text(&filter.dispatch_key),
                &text(&filter.concurrency_key),
                &filter.enqueued_after,
                &filter.enqueued_before,
            ],
        )
        .await?;
    let mut page = Page::default();
    for row in &rows {
        page.looked_at = row.try_get("looked_at")?;
        page.looked_back_to = row.try_get("looked_back_to")?;
        page.before = match page.looked_at {
            looked_at if looked_at == most => row.try_get("last_id")?,
            _ => None,
        };
        if row.try_get::<_, Option<i64>>("id")?.is_some() {
            page.tasks.push(listed(row)?);
        }
    }
    // A full page goes on after its own last task, wherever the look ended.
    if i64::try_from(page.tasks.len()).is_ok_and(|found| found == limit)
        && let Some(last) = page.tasks.last()
    {
        page.before = Some(last.id);
        page.looked_back_to = Some(last.enqueued_at.clone());
    }
    Ok(page)
}

fn listed(row: &Row) -> Result<Listed, Error> {
    Ok(Listed {
        id: row.try_get("id")?,
        namespace: row.try_get("namespace")?,
        task_queue: row.try_get("task_queue")?,
        task_type: row.try_get("task_type")?,
        node: row.try_get("node")?,
        state: row.try_get("state")?,
        attempt: row.try_get("attempt")?,
        priority: row.try_get("priority")?,
        enqueued_at: row.try_get("enqueued_at")?,
        ended_at: row.try_get("ended_at")?,
        error_class: row.try_get("error_class")?,
        dispatch_key: row.try_get("dispatch_key")?,
        concurrency_key: row.try_get("concurrency_key")?,
    })
}

/// Which of the tasks have ended; at most [`BATCH`] ids.
///
/// # Errors
/// [`Error`].
pub async fn read_ended(client: &Client, ids: &[i64]) -> Result<Vec<i64>, Error> {
    let statement = client
        .prepare_cached(include_str!("../../sql/read_ended.sql"))
        .await?;
    let rows = client.query(&statement, &[&ids]).await?;
    rows.iter().map(|row| Ok(row.try_get("id")?)).collect()
}
