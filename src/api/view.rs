//! Tasks as JSON, for HTTP and for `--output json`. Ids are strings, since they pass 2^53.

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use serde::Serialize;
use serde_json::value::RawValue;
use utoipa::ToSchema;

use crate::store::tasks::{Listed, Task};

/// One task. Payload and result stand inline when they are JSON, else in base64.
#[derive(Serialize, ToSchema)]
pub struct TaskView {
    task_id: String,
    namespace: String,
    task_queue: String,
    task_type: String,
    #[schema(required)]
    node: Option<String>,
    state: String,
    ended: bool,
    attempt: i32,
    #[serde(skip_serializing_if = "Option::is_none")]
    priority: Option<i16>,
    cancel_requested: bool,
    enqueued_at: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    visible_after: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    ended_at: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    worker: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    error_class: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    error_message: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    dispatch_key: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<std::collections::BTreeMap<String, String>>)]
    labels: Option<Box<RawValue>>,
    content_type: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<serde_json::Value>)]
    payload: Option<Box<RawValue>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    payload_base64: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    result_content_type: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<serde_json::Value>)]
    result: Option<Box<RawValue>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    result_base64: Option<String>,
    /// There was a result, and it is kept no longer.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    result_expired: bool,
}

impl From<Task> for TaskView {
    fn from(task: Task) -> Self {
        let (payload, payload_base64) = body(task.payload, Some(&task.content_type));
        let (result, result_base64) = body(task.result, task.result_type.as_deref());
        Self {
            task_id: task.id.to_string(),
            namespace: task.namespace,
            task_queue: task.task_queue,
            task_type: task.task_type,
            node: task.node,
            state: task.state,
            ended: task.ended,
            attempt: task.attempt,
            priority: task.priority,
            cancel_requested: task.cancel_requested,
            enqueued_at: task.enqueued_at,
            visible_after: task.visible_after,
            ended_at: task.ended_at,
            worker: task.worker,
            error_class: task.error_class,
            error_message: task.error_message,
            dispatch_key: task.dispatch_key,
            labels: task
                .labels
                .and_then(|labels| RawValue::from_string(labels).ok()),
            content_type: task.content_type,
            payload,
            payload_base64,
            result_content_type: task.result_type,
            result,
            result_base64,
            result_expired: task.result_expired,
        }
    }
}

/// JSON is passed through as PostgreSQL stores it, numbers of any size and nesting of any depth included.
pub(super) fn body(
    bytes: Option<Vec<u8>>,
    content_type: Option<&str>,
) -> (Option<Box<RawValue>>, Option<String>) {
    let Some(bytes) = bytes else {
        return (None, None);
    };
    if content_type == Some("application/json") {
        let text = std::str::from_utf8(&bytes).ok();
        let raw = text.and_then(|text| RawValue::from_string(text.to_owned()).ok());
        if raw.is_some() {
            return (raw, None);
        }
    }
    (None, Some(BASE64_STANDARD.encode(bytes)))
}

/// One line of a list.
#[derive(Serialize, ToSchema)]
pub struct ListedView {
    task_id: String,
    namespace: String,
    task_queue: String,
    task_type: String,
    #[schema(required)]
    node: Option<String>,
    state: String,
    attempt: i32,
    #[serde(skip_serializing_if = "Option::is_none")]
    priority: Option<i16>,
    enqueued_at: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    ended_at: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    error_class: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    dispatch_key: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    concurrency_key: Option<String>,
}

impl From<Listed> for ListedView {
    fn from(task: Listed) -> Self {
        Self {
            task_id: task.id.to_string(),
            namespace: task.namespace,
            task_queue: task.task_queue,
            task_type: task.task_type,
            node: task.node,
            state: task.state,
            attempt: task.attempt,
            priority: task.priority,
            enqueued_at: task.enqueued_at,
            ended_at: task.ended_at,
            error_class: task.error_class,
            dispatch_key: task.dispatch_key,
            concurrency_key: task.concurrency_key,
        }
    }
}
