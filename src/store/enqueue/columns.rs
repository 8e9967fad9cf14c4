//! Tasks as arrays, a column each.

use std::borrow::Cow;

use tokio_postgres::types::ToSql;

use super::NewTask;

/// Tasks as the statements take them: an array for each field, in the order of `enqueue_tasks.sql`.
pub(in crate::store) struct Columns<'t> {
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

type Texts<'t> = Option<Vec<Option<Cow<'t, str>>>>;

impl<'t> Columns<'t> {
    /// Where the namespace stands: a workflow's members have none of their own.
    pub(in crate::store) const NAMESPACE: usize = 4;

    pub(in crate::store) fn of(tasks: &'t [NewTask]) -> Self {
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

    pub(in crate::store) fn values(&self) -> [&(dyn ToSql + Sync); 18] {
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
pub(in crate::store) fn refusable(text: &str) -> Cow<'_, str> {
    if text.contains('\0') {
        text.replace('\0', "\u{1}").into()
    } else {
        text.into()
    }
}
