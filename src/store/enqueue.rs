//! Enqueueing through the SQL functions that every producer calls: what is valid is decided there alone.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bytes::Bytes;
use tokio_postgres::types::ToSql;

use super::{Client, Error, Pool};

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
    let mut pause = PAUSE;
    for _ in 1..TRIES {
        match attempt(pool, Arc::clone(&tasks), deadline).await {
            Err(EnqueueError::Store(Error::Conflict(_))) => {}
            Err(EnqueueError::UnknownOutcome(_)) if repeatable => {}
            decided => return decided,
        }
        tokio::time::sleep(pause.mul_f64(fastrand::f64())).await;
        pause *= 2;
    }
    attempt(pool, tasks, deadline).await
}

async fn attempt(
    pool: &Pool,
    tasks: Arc<[NewTask]>,
    deadline: Duration,
) -> Result<Vec<Enqueued>, EnqueueError> {
    let sent = Arc::new(AtomicBool::new(false));
    let sending = Arc::clone(&sent);
    let done = pool
        .run(deadline, move |client| {
            Box::pin(async move { enqueue_tasks(client, &tasks, &sending).await })
        })
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

/// One statement, one transaction. `sent` is set when it leaves.
async fn enqueue_tasks(
    client: &Client,
    tasks: &[NewTask],
    sent: &AtomicBool,
) -> Result<Vec<Enqueued>, Error> {
    let statement = client
        .prepare_cached(include_str!("../../sql/enqueue_tasks.sql"))
        .await?;
    let delays = column(tasks, |task| task.delay_ms);
    let priorities = column(tasks, |task| task.priority);
    let attempts = column(tasks, |task| task.max_attempts);
    let run_timeouts = column(tasks, |task| task.run_timeout_ms);
    let heartbeats = column(tasks, |task| task.heartbeat_timeout_ms);
    let starts = column(tasks, |task| task.schedule_to_start_ms);
    // Required fields are sent even where no task has one: their arrays say how many tasks there are.
    let queues = texts(tasks, |task| {
        Some(task.task_queue.as_deref().unwrap_or_default())
    });
    let types = texts(tasks, |task| {
        Some(task.task_type.as_deref().unwrap_or_default())
    });
    let payloads: Vec<Option<&[u8]>> = tasks.iter().map(|task| task.payload.as_deref()).collect();
    let labels = column(tasks, |task| task.labels.as_deref());
    let options = column(tasks, |task| task.options.as_deref());
    let values: [&(dyn ToSql + Sync); 18] = [
        &queues,
        &types,
        &payloads,
        &texts(tasks, |task| task.content_type.as_deref()),
        &texts(tasks, |task| task.namespace.as_deref()),
        &texts(tasks, |task| task.dispatch_key.as_deref()),
        &delays,
        &texts(tasks, |task| task.run_at.as_deref()),
        &priorities,
        &texts(tasks, |task| task.node.as_deref()),
        &attempts,
        &run_timeouts,
        &heartbeats,
        &starts,
        &texts(tasks, |task| task.settle.as_deref()),
        &texts(tasks, |task| task.concurrency_key.as_deref()),
        &labels,
        &options,
    ];
    sent.store(true, Ordering::Release);
    let rows = client.query(&statement, &values).await?;
    rows.iter()
        .map(|row| {
            Ok(Enqueued {
                task_id: row.try_get("task_id")?,
                created: row.try_get("created")?,
            })
        })
        .collect()
}

/// One value a task, or nothing at all where no task has one.
fn column<'t, T>(
    tasks: &'t [NewTask],
    value: impl Fn(&'t NewTask) -> Option<T>,
) -> Option<Vec<Option<T>>> {
    let values: Vec<Option<T>> = tasks.iter().map(value).collect();
    values.iter().any(Option::is_some).then_some(values)
}

/// PostgreSQL's text can't hold NUL and would refuse the whole statement without naming a field. No text field
/// allows control characters, so another one in its place gets the refusal of that field's own rule.
fn texts<'t>(
    tasks: &'t [NewTask],
    value: impl Fn(&'t NewTask) -> Option<&'t str>,
) -> Option<Vec<Option<std::borrow::Cow<'t, str>>>> {
    column(tasks, |task| {
        value(task).map(|text| {
            if text.contains('\0') {
                text.replace('\0', "\u{1}").into()
            } else {
                text.into()
            }
        })
    })
}
