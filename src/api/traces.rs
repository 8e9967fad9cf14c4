//! The trace contexts of what comes in: from the headers of a request into its tasks.

use std::collections::HashMap;

use axum::http::{HeaderMap, HeaderValue};
use bytes::Bytes;
use serde_json::value::RawValue;

use super::{Error, State};
use crate::domain::id::{RunId, TaskId, WorkflowId};
use crate::domain::trace_context::TraceParent;
use crate::store::enqueue::{Enqueued, NewTask};
use crate::store::workflows::{NewWorkflow, Started};
use crate::telemetry::Door;
use crate::telemetry::trace::{EnqueueSpan, Incoming};

/// The option that carries it, and the header that it comes with.
const OPTION: &str = "trace_context";
const HEADER: &str = "traceparent";

/// The context that a request comes with, where it has a valid one.
pub(super) fn context_of(headers: &HeaderMap) -> Option<TraceParent> {
    let values = headers.get_all(HEADER).iter();
    TraceParent::of_headers(values.map(HeaderValue::as_bytes))
}

impl State {
    /// [`State::enqueue`] for what came in by this door with this context; counts it.
    pub(super) async fn take_tasks(
        &self,
        door: Door,
        context: Option<TraceParent>,
        mut tasks: Vec<NewTask>,
    ) -> Result<Vec<Enqueued>, Error> {
        let span = self.trace("enqueue", context, &mut tasks);
        let enqueued = self.enqueue(tasks).await;
        span.end(|| match enqueued.as_deref() {
            Ok([task]) => Ok(Some(task.task_id)),
            Ok(_) => Ok(None),
            Err(error) => Err(error.code.code),
        });
        let enqueued = enqueued?;
        self.count_enqueued(door, &enqueued);
        Ok(enqueued)
    }

    /// [`State::start_workflow`] for what came in by this door with this context; counts it.
    pub(super) async fn take_workflow(
        &self,
        door: Door,
        context: Option<TraceParent>,
        mut workflow: NewWorkflow,
    ) -> Result<Started, Error> {
        let span = self.trace("start_workflow", context, &mut workflow.members);
        let started = self.start_workflow(workflow).await;
        span.end(|| started.as_ref().map(|_| None).map_err(code));
        let started = started?;
        self.count_started(door, &started);
        Ok(started)
    }

    /// [`State::add_members`] for what came in by this door with this context; counts it.
    pub(super) async fn take_members(
        &self,
        door: Door,
        context: Option<TraceParent>,
        workflow: WorkflowId,
        mut members: Vec<NewTask>,
    ) -> Result<(RunId, Vec<TaskId>), Error> {
        let span = self.trace("add_members", context, &mut members);
        let added = self.add_members(workflow, members).await;
        span.end(|| added.as_ref().map(|_| None).map_err(code));
        let added = added?;
        self.count_members(door, &added.1);
        Ok(added)
    }

    /// Begins the span of tasks that come in, and has those carry it that carry nothing of their own. Without traces they
    /// carry the caller's.
    fn trace(
        &self,
        operation: &'static str,
        context: Option<TraceParent>,
        tasks: &mut [NewTask],
    ) -> EnqueueSpan {
        let tracing = &self.metrics.telemetry.tracing;
        let span = tracing.enqueue(context, || Incoming {
            operation,
            namespace: common(tasks, |task| task.namespace.as_deref()),
            task_queue: common(tasks, |task| task.task_queue.as_deref()),
            task_type: common(tasks, |task| task.task_type.as_deref()),
            tasks: tasks.len(),
        });
        if let Some(context) = span.context() {
            for task in tasks {
                task.options = Some(carrying(task.options.take(), context));
            }
        }
        span
    }
}

fn code(error: &Error) -> &'static str {
    error.code.code
}

/// What all tasks have in this field.
fn common<'t>(
    tasks: &'t [NewTask],
    field: impl Fn(&'t NewTask) -> Option<&'t str>,
) -> Option<&'t str> {
    let first = field(tasks.first()?)?;
    let same = tasks.iter().all(|task| field(task) == Some(first));
    same.then_some(first)
}

/// Options with this context, unless they have one, or are none that the database will take: those stay as they came.
fn carrying(options: Option<Bytes>, context: TraceParent) -> Bytes {
    let Some(options) = options else {
        return format!("{{\"{OPTION}\":\"{context}\"}}").into();
    };
    let with_context = || {
        let given: HashMap<String, &RawValue> = serde_json::from_slice(&options).ok()?;
        if given.contains_key(OPTION) {
            return None;
        }
        // Before a brace stands space alone, and behind it everything else, byte for byte.
        let brace = options.iter().position(|byte| *byte == b'{')?;
        let (head, rest) = options.split_at_checked(brace + 1)?;
        let comma = if given.is_empty() { "" } else { "," };
        let own = format!("\"{OPTION}\":\"{context}\"{comma}");
        Some(Bytes::from([head, own.as_bytes(), rest].concat()))
    };
    with_context().unwrap_or(options)
}

#[cfg(test)]
mod tests {
    use super::*;

    const CONTEXT: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";

    fn carried(options: Option<&'static str>) -> String {
        let context = TraceParent::parse(CONTEXT).unwrap();
        let carried = carrying(options.map(Bytes::from), context);
        String::from_utf8(carried.to_vec()).unwrap()
    }

    #[test]
    fn a_context_is_added_to_options_that_stay_as_they_came() {
        let own = format!("\"trace_context\":\"{CONTEXT}\"");
        assert_eq!(carried(None), format!("{{{own}}}"));
        assert_eq!(carried(Some("{}")), format!("{{{own}}}"));
        assert_eq!(carried(Some(" { } ")), format!(" {{{own} }} "));
        assert_eq!(
            carried(Some(
                "{ \"max_losses\": 1e2, \"x\": {\"trace_context\": 1}}"
            )),
            format!("{{{own}, \"max_losses\": 1e2, \"x\": {{\"trace_context\": 1}}}}")
        );
    }

    #[test]
    fn what_has_a_context_or_is_no_object_stays_as_it_came() {
        for options in [
            "{\"trace_context\": \"x\"}",
            "{\"trace\\u005fcontext\": null}",
            "",
            "[]",
            "null",
            "{\"a\": 1",
            "{\"a\": 1} {}",
        ] {
            assert_eq!(carried(Some(options)), options);
        }
    }
}
