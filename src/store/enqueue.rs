//! Enqueueing through the SQL functions that every producer calls: what is valid is decided there alone.

mod columns;

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bytes::Bytes;
use tokio_postgres::Row;
use tokio_postgres::types::ToSql;

pub(super) use self::columns::{Columns, refusable};
use super::{Client, Error, Pool, Work};

/// Tries of one enqueue. Whoever was in the way is through after two or three; ten producers that keep
/// running into each other have a disagreement that waiting does not end.
const TRIES: u32 = 5;

/// The first pause between tries; it doubles, with full jitter, so that rivals part.
const PAUSE: Duration = Duration::from_millis(20);

/// A task to be, as a door received it. What is absent takes the default of `fencepost.enqueue_many`, and
/// nothing in it has been judged: names, bounds, JSON and times are read by PostgreSQL.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct NewTask {
    /// Absent: `default`.
    pub namespace: Option<String>,
    /// Required.
    pub task_queue: Option<String>,
    /// Required.
    pub task_type: Option<String>,
    /// Required; with content type `application/json` it must be JSON that PostgreSQL can store.
    pub payload: Option<Bytes>,
    /// Absent: `application/json`.
    pub content_type: Option<String>,
    /// The caller's idempotency key.
    pub dispatch_key: Option<String>,
    /// Milliseconds; excludes `run_at`.
    pub delay_ms: Option<i64>,
    /// RFC 3339; excludes `delay_ms`.
    pub run_at: Option<String>,
    /// 0 (first) to 3; absent: 1.
    pub priority: Option<i32>,
    /// The only node that may run it.
    pub node: Option<String>,
    /// 1 to 1000.
    pub max_attempts: Option<i32>,
    /// Milliseconds from acceptance; 0 for none.
    pub run_timeout_ms: Option<i64>,
    /// Milliseconds between signs of life; 0 for none.
    pub heartbeat_timeout_ms: Option<i64>,
    /// Milliseconds from when it is due.
    pub schedule_to_start_ms: Option<i64>,
    /// `completed` or `accepted`.
    pub settle: Option<String>,
    /// Tasks with the same key run one at a time.
    pub concurrency_key: Option<String>,
    /// A JSON object of strings.
    pub labels: Option<Bytes>,
    /// A JSON object with further settings.
    pub options: Option<Bytes>,
}

impl NewTask {
    /// It has nothing but its address, a payload and perhaps a priority.
    const fn is_plain(&self) -> bool {
        matches!(
            self,
            Self {
                namespace: _,
                task_queue: _,
                task_type: _,
                payload: _,
                content_type: _,
                priority: _,
                dispatch_key: None,
                delay_ms: None,
                run_at: None,
                node: None,
                max_attempts: None,
                run_timeout_ms: None,
                heartbeat_timeout_ms: None,
                schedule_to_start_ms: None,
                settle: None,
                concurrency_key: None,
                labels: None,
                options: None,
            }
        )
    }
}

/// Payload and labels belong to the application and stay out of logs.
impl fmt::Debug for NewTask {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("NewTask")
            .field("namespace", &self.namespace)
            .field("task_queue", &self.task_queue)
            .field("task_type", &self.task_type)
            .field("payload_bytes", &self.payload.as_ref().map(Bytes::len))
            .finish_non_exhaustive()
    }
}

/// A task that exists now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Enqueued {
    /// Its id.
    pub task_id: i64,
    /// False: the dispatch key names a task that existed already.
    pub created: bool,
    /// The same, and whether it has replaced another one.
    pub answer: Answer,
}

/// What an enqueue came to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Answer {
    /// There is a task more.
    Created,
    /// The dispatch key names a task that existed already.
    Existing,
    /// The task has taken the place of one with its dispatch key that waited, which has ended as cancelled.
    Replaced,
}

impl Answer {
    /// Its stable name.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Created => "created",
            Self::Existing => "existing",
            Self::Replaced => "replaced",
        }
    }
}

/// Why tasks are not, or perhaps not, enqueued.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum EnqueueError {
    /// Nothing was written.
    #[error(transparent)]
    Store(#[from] Error),
    /// The connection was lost after the statement had been sent. A task without a dispatch key may exist now,
    /// so only the caller can say whether a second one would do harm; with a key on every task the enqueue
    /// is repeated instead.
    #[error(
        "the tasks may or may not have been enqueued: the database went away before it answered ({0}); give each \
         task a dispatch key to make a repeat safe"
    )]
    UnknownOutcome(Error),
}

/// Enqueues all tasks or none, and answers in their order. Repeated a few times after a conflict; after a lost
/// answer only when every task has a dispatch key. `deadline` is that of each try.
///
/// # Errors
/// [`EnqueueError`].
pub async fn enqueue(
    pool: &Pool,
    tasks: Vec<NewTask>,
    deadline: Duration,
) -> Result<Vec<Enqueued>, EnqueueError> {
    if tasks.is_empty() {
        return Ok(Vec::new());
    }
    let repeatable = tasks.iter().all(|task| task.dispatch_key.is_some());
    let tasks: Arc<[NewTask]> = tasks.into();
    write(pool, deadline, repeatable, || {
        let tasks = Arc::clone(&tasks);
        move |client: &mut Client, sent: Arc<AtomicBool>| -> Work<'_, _> {
            Box::pin(async move { enqueue_tasks(client, &tasks, &sent).await })
        }
    })
    .await
}

/// Does work that enqueues, in one statement that sets its flag when it leaves; again after a conflict, and after a
/// lost answer where a repeat is safe.
pub(super) async fn write<T, F>(
    pool: &Pool,
    deadline: Duration,
    repeatable: bool,
    work: impl Fn() -> F,
) -> Result<T, EnqueueError>
where
    T: Send + 'static,
    F: for<'c> FnOnce(&'c mut Client, Arc<AtomicBool>) -> Work<'c, T> + Send + 'static,
{
    let mut pause = PAUSE;
    for _ in 1..TRIES {
        match attempt(pool, deadline, work()).await {
            Err(EnqueueError::Store(Error::Conflict(_))) => {}
            Err(EnqueueError::UnknownOutcome(_)) if repeatable => {}
            decided => return decided,
        }
        tokio::time::sleep(pause.mul_f64(fastrand::f64())).await;
        pause *= 2;
    }
    attempt(pool, deadline, work()).await
}

async fn attempt<T, F>(pool: &Pool, deadline: Duration, work: F) -> Result<T, EnqueueError>
where
    T: Send + 'static,
    F: for<'c> FnOnce(&'c mut Client, Arc<AtomicBool>) -> Work<'c, T> + Send + 'static,
{
    let sent = Arc::new(AtomicBool::new(false));
    let sending = Arc::clone(&sent);
    let done = pool
        .run(deadline, move |client| work(client, sending))
        .await;
    done.map_err(|error| {
        if sent.load(Ordering::Acquire) && may_have_committed(&error) {
            EnqueueError::UnknownOutcome(error)
        } else {
            EnqueueError::Store(error)
        }
    })
}

/// A server that says why it failed has rolled back, unless it was being shut down: then the commit may have
/// come first.
fn may_have_committed(error: &Error) -> bool {
    let Error::Unavailable(fault) = error else {
        return false;
    };
    match fault.sqlstate.as_deref() {
        None => true,
        Some(code) => code.starts_with("57P") || code.starts_with("08"),
    }
}

/// One transaction, of one statement that writes. `sent` is set when the first one leaves.
async fn enqueue_tasks(
    client: &Client,
    tasks: &[NewTask],
    sent: &AtomicBool,
) -> Result<Vec<Enqueued>, Error> {
    if let [task] = tasks
        && task.is_plain()
        && let Some(task_id) = enqueue_plain(client, task, sent).await?
    {
        return Ok(vec![Enqueued {
            task_id,
            created: true,
            answer: Answer::Created,
        }]);
    }
    let statement = client
        .prepare_cached(include_str!("../../sql/enqueue_tasks.sql"))
        .await?;
    let columns = Columns::of(tasks);
    sent.store(true, Ordering::Release);
    let rows = client.query(&statement, &columns.values()).await?;
    rows.iter().map(read_enqueued).collect()
}

/// None, and nothing written: the task is for the general statement to judge.
async fn enqueue_plain(
    client: &Client,
    task: &NewTask,
    sent: &AtomicBool,
) -> Result<Option<i64>, Error> {
    let statement = client
        .prepare_cached(include_str!("../../sql/enqueue_task.sql"))
        .await?;
    let [queue, task_type, content_type, namespace] = [
        &task.task_queue,
        &task.task_type,
        &task.content_type,
        &task.namespace,
    ]
    .map(|text| text.as_deref().map(refusable));
    let payload = task.payload.as_deref();
    let values: [&(dyn ToSql + Sync); 6] = [
        &queue,
        &task_type,
        &payload,
        &content_type,
        &namespace,
        &task.priority,
    ];
    sent.store(true, Ordering::Release);
    let row = client.query_one(&statement, &values).await?;
    Ok(row.try_get("task_id")?)
}

fn read_enqueued(row: &Row) -> Result<Enqueued, Error> {
    Ok(Enqueued {
        task_id: row.try_get("task_id")?,
        created: row.try_get("created")?,
        answer: match row.try_get("answer")? {
            "replaced" => Answer::Replaced,
            "existing" => Answer::Existing,
            _ => Answer::Created,
        },
    })
}
