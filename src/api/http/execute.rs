//! `/v1/execute`: from members to a direct request, and its result back.

use std::time::Duration;

use axum::extract::{Request, State as Extract};
use axum::http::{StatusCode, Uri};
use axum::response::Response;
use bytes::Bytes;
use serde::Serialize;
use serde_json::value::RawValue;
use utoipa::ToSchema;

use super::body::{self, Members};
use super::operators::page;
use super::tasks::{base64, typed};
use super::{json, read_body};
use crate::api::{Direct, Error, State, duration, view};

/// A page of the direct requests of one replica.
#[derive(Serialize, ToSchema)]
pub(super) struct RequestsPage {
    requests: Vec<EntryView>,
    /// Where the next page begins; null at the end.
    #[schema(required)]
    next: Option<String>,
}

/// A result; it stands inline when it is JSON, else in base64, and is null when there is none.
#[derive(Serialize, ToSchema)]
pub(super) struct ReplyView {
    #[serde(skip_serializing_if = "Option::is_none")]
    payload_base64: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<serde_json::Value>)]
    payload: Option<Box<RawValue>>,
    #[schema(required)]
    content_type: Option<String>,
    worker: String,
    #[schema(required)]
    node: Option<String>,
    deliveries: u32,
}

/// A request that waits or runs, and for how long.
#[derive(Serialize, ToSchema)]
struct EntryView {
    state: &'static str,
    namespace: String,
    task_queue: String,
    task_type: String,
    #[schema(required)]
    node: Option<String>,
    #[schema(required)]
    worker: Option<String>,
    deliveries: u32,
    age_ms: u64,
    left_ms: u64,
}

/// `POST /v1/execute`: 200 with the result, once a worker has it.
pub(super) async fn execute(
    Extract(state): Extract<State>,
    request: Request,
) -> Result<Response, Error> {
    let mut split = body::split(&read_body(&state, request).await?)?;
    let members = match split.objects.pop() {
        Some(members) if !split.is_list => members,
        _ => return Err(Error::invalid_body("the body must be one JSON object.")),
    };
    let reply = state.execute(read(members)?).await?;
    let (bytes, content_type) = reply.result.unzip();
    let (payload, payload_base64) = view::body(bytes.map(Vec::from), content_type.as_deref());
    let view = ReplyView {
        payload_base64,
        payload,
        content_type,
        worker: reply.worker,
        node: given(reply.node),
        deliveries: reply.deliveries,
    };
    Ok(json(StatusCode::OK, &view))
}

/// `GET /v1/execute?after=&limit=`: what waits and what runs on this replica, in order of arrival.
pub(super) async fn list(Extract(state): Extract<State>, uri: Uri) -> Result<Response, Error> {
    let page = state.direct_requests(&page(&uri, |_, _| None)?)?;
    let requests = page.lines.into_iter().map(|entry| EntryView {
        state: if entry.worker.is_some() {
            "running"
        } else {
            "parked"
        },
        namespace: entry.route.namespace.clone(),
        task_queue: entry.route.task_queue.clone(),
        task_type: entry.route.task_type.clone(),
        node: given(entry.route.node.clone()),
        worker: entry.worker,
        deliveries: entry.deliveries,
        age_ms: milliseconds(entry.age),
        left_ms: milliseconds(entry.left),
    });
    let view = RequestsPage {
        requests: requests.collect(),
        next: page.next,
    };
    Ok(json(StatusCode::OK, &view))
}

fn given(text: String) -> Option<String> {
    (!text.is_empty()).then_some(text)
}

fn milliseconds(span: Duration) -> u64 {
    u64::try_from(span.as_millis()).unwrap_or(u64::MAX)
}

fn read(members: Members) -> Result<Direct, Error> {
    let mut direct = Direct {
        // As the payload of a task that names none.
        payload: Bytes::from_static(b"null"),
        ..Direct::default()
    };
    let mut seen: Vec<String> = Vec::with_capacity(members.len());
    for (name, value) in members {
        // The two spellings of the time, or of a payload, are one field.
        let field = name
            .strip_suffix("_ms")
            .or_else(|| name.strip_suffix("_base64"))
            .unwrap_or(&name);
        if seen.iter().any(|seen| seen == field) {
            let message = format!("{field} is given more than once.");
            return Err(Error::invalid_value(field, message));
        }
        seen.push(field.to_owned());
        read_member(&mut direct, &name, value)?;
    }
    Ok(direct)
}

fn read_member(direct: &mut Direct, name: &str, value: Bytes) -> Result<(), Error> {
    let text = |value: &Bytes| typed::<String>(name, value, "a string");
    match name {
        "namespace" => direct.namespace = text(&value)?,
        "task_queue" => direct.task_queue = text(&value)?.unwrap_or_default(),
        "task_type" => direct.task_type = text(&value)?.unwrap_or_default(),
        "node" => direct.node = text(&value)?,
        "payload" => direct.payload = value,
        "payload_base64" => {
            direct.payload = base64(name, &value)?;
            direct
                .content_type
                .get_or_insert_with(|| "application/octet-stream".to_owned());
        }
        "content_type" => {
            if let Some(given) = text(&value)? {
                direct.content_type = Some(given);
            }
        }
        "labels" => {
            direct.labels = serde_json::from_slice::<Option<_>>(&value)
                .map_err(|_| {
                    Error::new("FP-008", "labels must be an object of strings.").at("labels")
                })?
                .unwrap_or_default();
        }
        "timeout" => {
            let given = typed::<String>(name, &value, "a duration such as \"30s\"")?;
            direct.timeout = given
                .map(|given| duration::span("timeout", &given))
                .transpose()?;
        }
        "timeout_ms" => {
            let given = typed::<u64>(name, &value, "a number of milliseconds")?;
            direct.timeout = given.map(Duration::from_millis);
        }
        _ => return Err(Error::unknown_field(name)),
    }
    Ok(())
}
