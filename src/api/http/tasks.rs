//! `/v1/tasks`: from members and parameters to calls, and back.

use std::collections::HashSet;
use std::time::Duration;

use axum::extract::{Path, Query, Request, State as Extract};
use axum::http::{StatusCode, Uri};
use axum::response::Response;
use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use bytes::Bytes;
use serde::Serialize;
use serde::de::DeserializeOwned;
use utoipa::ToSchema;

use super::body::{self, Members};
use super::{json, read_body, read_bytes};
use crate::api::traces::context_of;
use crate::api::{CancelView, Error, ListedView, State, TaskView, duration, instant};
use crate::store::enqueue::{Enqueued, NewTask};
use crate::store::tasks::{Filter, Parts};
use crate::telemetry::Door;

/// How long `/wait` waits unless told.
const WAIT: Duration = Duration::from_secs(30);

/// Lines of a list unless told.
pub(super) const PAGE: u32 = 100;

/// A page of tasks.
#[derive(Serialize, ToSchema)]
pub(super) struct TasksPage {
    tasks: Vec<ListedView>,
    /// Where the next page begins; null at the end.
    #[schema(required)]
    next: Option<String>,
    /// How many tasks this page has looked at.
    looked_at: i64,
    /// When the last of them was enqueued: nothing that is younger was left out. Null where there was none.
    #[schema(required)]
    looked_back_to: Option<String>,
}

/// What an enqueue has come to.
#[derive(Serialize, ToSchema)]
pub(super) struct EnqueuedView {
    task_id: String,
    created: bool,
    /// `created`, `existing` or `replaced`.
    answer: &'static str,
}

impl From<Enqueued> for EnqueuedView {
    fn from(task: Enqueued) -> Self {
        Self {
            task_id: task.task_id.to_string(),
            created: task.created,
            answer: task.answer.name(),
        }
    }
}

/// `POST /v1/tasks`: one object is answered with one, a list with a list. 201 when a task was created, 200 when their
/// dispatch keys named tasks that existed.
pub(super) async fn enqueue(
    Extract(state): Extract<State>,
    request: Request,
) -> Result<Response, Error> {
    let context = context_of(request.headers());
    let split = body::split(&read_body(&state, request).await?)?;
    let tasks = new_tasks(split.objects)?;
    let enqueued = state.take_tasks(Door::Http, context, tasks).await?;
    let status = if enqueued.iter().any(|task| task.created) {
        StatusCode::CREATED
    } else {
        StatusCode::OK
    };
    let mut views = enqueued.into_iter().map(EnqueuedView::from);
    if split.is_list {
        return Ok(json(status, &views.collect::<Vec<_>>()));
    }
    match views.next() {
        Some(view) => Ok(json(status, &view)),
        None => Err(Error::new("FP-114", "the database answered nothing.")),
    }
}

/// `GET /v1/tasks/{id}?payload=true`: with payload and result when asked for, and where operators may see them.
pub(super) async fn read(
    Extract(state): Extract<State>,
    Path(id): Path<String>,
    uri: Uri,
) -> Result<Response, Error> {
    let mut with_payload = false;
    for (name, value) in parameters(&uri)? {
        match name.as_str() {
            "payload" => {
                with_payload = value.parse().map_err(|_| {
                    Error::invalid_value("payload", "payload must be true or false.")
                })?;
            }
            _ => return Err(Error::unknown_field(&name)),
        }
    }
    if with_payload {
        state.may_show_payloads()?;
    }
    let parts = Parts {
        payload: with_payload,
        result: with_payload,
    };
    let task = state.get(task_id(&id)?, parts).await?;
    Ok(json(StatusCode::OK, &TaskView::from(task)))
}

/// `GET /v1/tasks/{id}/wait?timeout=30s`: 200 with `ended` true or false, and the result.
pub(super) async fn wait(
    Extract(state): Extract<State>,
    Path(id): Path<String>,
    uri: Uri,
) -> Result<Response, Error> {
    let mut time = WAIT;
    for (name, value) in parameters(&uri)? {
        match name.as_str() {
            "timeout" => time = duration::span("timeout", &value)?,
            _ => return Err(Error::unknown_field(&name)),
        }
    }
    let task = state.wait(task_id(&id)?, time).await?;
    Ok(json(StatusCode::OK, &TaskView::from(task)))
}

/// `GET /v1/tasks?namespace=&task_queue=&task_type=&state=&before=&limit=`, and `dispatch_key` (in its namespace),
/// `concurrency_key`, `enqueued_after` and `enqueued_before`: newest first; `next` is the `before` of the next page, and
/// null at the end. A page can be short, or empty, and not be the last: it says how many tasks it looked at, and back to
/// when it has left none out.
pub(super) async fn list(Extract(state): Extract<State>, uri: Uri) -> Result<Response, Error> {
    let mut filter = Filter::default();
    let (mut before, mut limit) = (None, PAGE);
    for (name, value) in parameters(&uri)? {
        match name.as_str() {
            "namespace" => filter.namespace = Some(value),
            "task_queue" => filter.task_queue = Some(value),
            "task_type" => filter.task_type = Some(value),
            "state" => filter.state = Some(value),
            "dispatch_key" => filter.dispatch_key = Some(value),
            "concurrency_key" => filter.concurrency_key = Some(value),
            "enqueued_after" => filter.enqueued_after = Some(instant(&name, &value)?),
            "enqueued_before" => filter.enqueued_before = Some(instant(&name, &value)?),
            "before" => before = Some(number("before", &value)?),
            "limit" => limit = number("limit", &value)?,
            _ => return Err(Error::unknown_field(&name)),
        }
    }
    let page = state.list(filter, before, limit).await?;
    let view = TasksPage {
        tasks: page.tasks.into_iter().map(ListedView::from).collect(),
        next: page.before.map(|id| id.to_string()),
        looked_at: page.looked_at,
        looked_back_to: page.looked_back_to,
    };
    Ok(json(StatusCode::OK, &view))
}

/// `POST /v1/tasks/{id}/cancel`, with `{"reason": "…"}` or without a body.
pub(super) async fn cancel(
    Extract(state): Extract<State>,
    Path(id): Path<String>,
    request: Request,
) -> Result<Response, Error> {
    let id = task_id(&id)?;
    let body = read_bytes(&state, request).await?;
    let mut reason = String::new();
    if !body.trim_ascii().is_empty() {
        let split = body::split(&body)?;
        if split.is_list {
            return Err(Error::invalid_body("the body must be one JSON object."));
        }
        for (name, value) in split.objects.into_iter().flatten() {
            match name.as_str() {
                "reason" => reason = typed(&name, &value, "a string")?.unwrap_or_default(),
                _ => return Err(Error::unknown_field(&name)),
            }
        }
    }
    let view = CancelView {
        task_id: id,
        state: state.cancel(id, reason).await?,
    };
    Ok(json(StatusCode::OK, &view))
}

pub(super) fn parameters(uri: &Uri) -> Result<Vec<(String, String)>, Error> {
    let query = Query::<Vec<(String, String)>>::try_from_uri(uri);
    let Query(all) = query.map_err(|error| Error::invalid_value("query", format!("{error}.")))?;
    let mut names = HashSet::new();
    match all.iter().find(|(name, _)| !names.insert(name)) {
        Some((name, _)) => Err(Error::invalid_value(
            name,
            format!("{name} is given twice."),
        )),
        None => Ok(all),
    }
}

fn task_id(text: &str) -> Result<i64, Error> {
    number("task_id", text)
}

pub(super) fn number<N: std::str::FromStr>(field: &str, text: &str) -> Result<N, Error> {
    text.parse()
        .map_err(|_| Error::invalid_value(field, format!("{field} must be an integer.")))
}

/// Reads tasks; an error says which where there are several.
pub(super) fn new_tasks(objects: Vec<Members>) -> Result<Vec<NewTask>, Error> {
    let count = objects.len();
    let tasks = objects.into_iter().enumerate().map(|(index, members)| {
        new_task(members).map_err(|mut error| {
            if count > 1 {
                error.message = format!("task {}: {}", index + 1, error.message);
            }
            error
        })
    });
    tasks.collect()
}

/// Reads the members of one task. Only their JSON types are judged here, their values by the database.
fn new_task(members: Members) -> Result<NewTask, Error> {
    let mut task = NewTask::default();
    let mut seen: Vec<String> = Vec::with_capacity(members.len());
    for (name, value) in members {
        // The two spellings of a duration, or of a payload, are one field.
        let field = name
            .strip_suffix("_ms")
            .or_else(|| name.strip_suffix("_base64"))
            .unwrap_or(&name);
        if seen.iter().any(|seen| seen == field) {
            return Err(Error::invalid_value(
                field,
                format!("{field} is given more than once."),
            ));
        }
        seen.push(field.to_owned());
        read_member(&mut task, &name, field, value)?;
    }
    // As `payload jsonb default 'null'` of fencepost.enqueue.
    task.payload.get_or_insert(Bytes::from_static(b"null"));
    Ok(task)
}

fn read_member(task: &mut NewTask, name: &str, field: &str, value: Bytes) -> Result<(), Error> {
    let text = |value: &Bytes| typed::<String>(name, value, "a string");
    let ms = |value: &Bytes| typed::<i64>(name, value, "an integer of milliseconds");
    let span = |value: &Bytes| {
        let given = typed::<String>(name, value, "a duration such as \"5m\"")?;
        given
            .map(|given| duration::milliseconds(field, &given))
            .transpose()
    };
    match name {
        "namespace" => task.namespace = text(&value)?,
        "task_queue" => task.task_queue = text(&value)?,
        "task_type" => task.task_type = text(&value)?,
        "payload" => task.payload = Some(value),
        "payload_base64" => {
            task.payload = Some(base64(name, &value)?);
            // As fencepost.enqueue_bytes has it.
            task.content_type
                .get_or_insert_with(|| "application/octet-stream".into());
        }
        "content_type" => {
            if let Some(given) = text(&value)? {
                task.content_type = Some(given);
            }
        }
        "dispatch_key" => task.dispatch_key = text(&value)?,
        "delay" => task.delay_ms = span(&value)?,
        "delay_ms" => task.delay_ms = ms(&value)?,
        "run_at" => task.run_at = text(&value)?,
        "priority" => task.priority = integer(name, &value)?,
        "node" => task.node = text(&value)?,
        "max_attempts" => task.max_attempts = integer(name, &value)?,
        "run_timeout" => task.run_timeout_ms = span(&value)?,
        "run_timeout_ms" => task.run_timeout_ms = ms(&value)?,
        "heartbeat_timeout" => task.heartbeat_timeout_ms = span(&value)?,
        "heartbeat_timeout_ms" => task.heartbeat_timeout_ms = ms(&value)?,
        "schedule_to_start" => task.schedule_to_start_ms = span(&value)?,
        "schedule_to_start_ms" => task.schedule_to_start_ms = ms(&value)?,
        "settle" => task.settle = text(&value)?,
        "concurrency_key" => task.concurrency_key = text(&value)?,
        "labels" => task.labels = unless_null(value),
        "options" => task.options = unless_null(value),
        _ => return Err(Error::unknown_field(name)),
    }
    Ok(())
}

/// The bytes behind a string in base64.
pub(super) fn base64(field: &str, value: &Bytes) -> Result<Bytes, Error> {
    let encoded: Option<String> = typed(field, value, "a string")?;
    let bytes = BASE64_STANDARD.decode(encoded.unwrap_or_default());
    let bytes = bytes
        .map_err(|_| Error::invalid_value(field, format!("{field} must be base64 (RFC 4648).")))?;
    Ok(bytes.into())
}

pub(super) fn unless_null(value: Bytes) -> Option<Bytes> {
    (value != "null").then_some(value)
}

/// A small integer. One that is too large for its column is cut, so that the bounds of its rule refuse it.
pub(super) fn integer(field: &str, value: &Bytes) -> Result<Option<i32>, Error> {
    let given: Option<i64> = typed(field, value, "an integer")?;
    let cut =
        |given: i64| i32::try_from(given).unwrap_or(if given < 0 { i32::MIN } else { i32::MAX });
    Ok(given.map(cut))
}

/// A value of this JSON type; null counts as absent.
pub(super) fn typed<T: DeserializeOwned>(
    field: &str,
    value: &Bytes,
    what: &str,
) -> Result<Option<T>, Error> {
    serde_json::from_slice(value)
        .map_err(|_| Error::invalid_value(field, format!("{field} must be {what}.")))
}
