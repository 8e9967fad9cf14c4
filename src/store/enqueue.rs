//! Enqueueing through the SQL functions that every producer calls: what is valid is decided there alone.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bytes::Bytes;
use tokio_postgres::Row;
use tokio_postgres::types::ToSql;

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

/// One statement, one transaction. `sent` is set when it leaves.
async fn enqueue_tasks(
    client: &Client,
    tasks: &[NewTask],
    sent: &AtomicBool,
) -> Result<Vec<Enqueued>, Error> {
    let rows = if let [task] = tasks
        && task.is_plain()
    {
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
        sent.store(true, Ordering::Release);
        let values: [&(dyn ToSql + Sync); 6] = [
            &queue,
            &task_type,
            &payload,
            &content_type,
            &namespace,
            &task.priority,
        ];
        client.query(&statement, &values).await?
    } else {
        let statement = client
            .prepare_cached(include_str!("../../sql/enqueue_tasks.sql"))
            .await?;
        let columns = Columns::of(tasks);
        sent.store(true, Ordering::Release);
        client.query(&statement, &columns.values()).await?
    };
    rows.iter().map(read_enqueued).collect()
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

/// Tasks as the statements take them: an array for each field, in the order of `enqueue_tasks.sql`.
pub(super) struct Columns<'t> {
    queues: Texts<'t>,
    types: Texts<'t>,
    payloads: Vec<Option<&'t [u8]>>,
    content_types: Texts<'t>,
    namespaces: Texts<'t>,
    keys: Texts<'t>,
    delays: Option<Vec<Option<i64>>>,
    times: Texts<'t>,
    priorities: Option<Vec<Option<i32>>>,
    nodes: Texts<'t>,
    attempts: Option<Vec<Option<i32>>>,
    run_timeouts: Option<Vec<Option<i64>>>,
    heartbeats: Option<Vec<Option<i64>>>,
    starts: Option<Vec<Option<i64>>>,
    settles: Texts<'t>,
    concurrency_keys: Texts<'t>,
    labels: Option<Vec<Option<&'t [u8]>>>,
    options: Option<Vec<Option<&'t [u8]>>>,
}

type Texts<'t> = Option<Vec<Option<std::borrow::Cow<'t, str>>>>;

impl<'t> Columns<'t> {
    /// Where the namespace stands: a workflow's members have none of their own.
    pub(super) const NAMESPACE: usize = 4;

    pub(super) fn of(tasks: &'t [NewTask]) -> Self {
        Self {
            queues: texts(tasks, |task| task.task_queue.as_deref()),
            types: texts(tasks, |task| task.task_type.as_deref()),
            payloads: tasks.iter().map(|task| task.payload.as_deref()).collect(),
            content_types: texts(tasks, |task| task.content_type.as_deref()),
            namespaces: texts(tasks, |task| task.namespace.as_deref()),
            keys: texts(tasks, |task| task.dispatch_key.as_deref()),
            delays: column(tasks, |task| task.delay_ms),
            // One a task: they are read before they are spread, and what can't be read is named by its task.
            times: column(tasks, |task| task.run_at.as_deref().map(refusable)),
            priorities: column(tasks, |task| task.priority),
            nodes: texts(tasks, |task| task.node.as_deref()),
            attempts: column(tasks, |task| task.max_attempts),
            run_timeouts: column(tasks, |task| task.run_timeout_ms),
            heartbeats: column(tasks, |task| task.heartbeat_timeout_ms),
            starts: column(tasks, |task| task.schedule_to_start_ms),
            settles: texts(tasks, |task| task.settle.as_deref()),
            concurrency_keys: texts(tasks, |task| task.concurrency_key.as_deref()),
            labels: column(tasks, |task| task.labels.as_deref()),
            options: column(tasks, |task| task.options.as_deref()),
        }
    }

    pub(super) fn values(&self) -> [&(dyn ToSql + Sync); 18] {
        [
            &self.queues,
            &self.types,
            &self.payloads,
            &self.content_types,
            &self.namespaces,
            &self.keys,
            &self.delays,
            &self.times,
            &self.priorities,
            &self.nodes,
            &self.attempts,
            &self.run_timeouts,
            &self.heartbeats,
            &self.starts,
            &self.settles,
            &self.concurrency_keys,
            &self.labels,
            &self.options,
        ]
    }
}

/// One value a task, or nothing at all where no task has one.
fn column<'t, T>(
    tasks: &'t [NewTask],
    value: impl Fn(&'t NewTask) -> Option<T>,
) -> Option<Vec<Option<T>>> {
    let values: Vec<Option<T>> = tasks.iter().map(value).collect();
    values.iter().any(Option::is_some).then_some(values)
}

/// One value where all tasks have the same: it stands for the whole batch.
fn texts<'t>(tasks: &'t [NewTask], value: impl Fn(&'t NewTask) -> Option<&'t str>) -> Texts<'t> {
    let (first, rest) = tasks.split_first()?;
    let same = rest.iter().all(|task| value(task) == value(first));
    let tasks = if same {
        std::slice::from_ref(first)
    } else {
        tasks
    };
    column(tasks, |task| value(task).map(refusable))
}

/// PostgreSQL's text can't hold NUL and would refuse the whole statement without naming a field. No text field
/// allows control characters, so another one in its place gets the refusal of that field's own rule.
pub(super) fn refusable(text: &str) -> std::borrow::Cow<'_, str> {
    if text.contains('\0') {
        text.replace('\0', "\u{1}").into()
    } else {
        text.into()
    }
}
