//! What bodies hold, for the document alone: the readers beside this module take them apart without parsing them. A
//! test compares both.
#![expect(dead_code, reason = "these types describe bodies and are never made")]

mod groups;
mod operators;

use std::collections::BTreeMap;

use serde::Deserialize;
use serde_json::Value;
use utoipa::ToSchema;

pub(super) use groups::{Discard, NewMembers, NewWorkflow, Redrive, WorkflowOrder};
pub(super) use operators::{NamespaceSettings, NewQueue, StoppedKey};

/// A task to enqueue. Of two spellings of a field, one is given.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct NewTask {
    /// Tenant; `default` unless given. A member of a workflow names none.
    #[schema(min_length = 1, max_length = 200)]
    namespace: Option<String>,
    /// Pool of workers.
    #[schema(min_length = 1, max_length = 200)]
    task_queue: String,
    /// What the worker must know how to do.
    #[schema(min_length = 1, max_length = 200)]
    task_type: String,
    /// Any JSON that PostgreSQL's jsonb can store; null unless given.
    payload: Option<Value>,
    /// Opaque bytes in base64, in place of `payload`.
    payload_base64: Option<String>,
    /// Media type of the payload: `application/json`, or `application/octet-stream` with `payload_base64`.
    content_type: Option<String>,
    /// Idempotency key: at most one unfinished task of a namespace has it.
    #[schema(min_length = 1, max_length = 200)]
    dispatch_key: Option<String>,
    /// Run it after this time, such as `5m`.
    delay: Option<String>,
    /// The same in milliseconds, up to 10 years.
    #[schema(minimum = 0)]
    delay_ms: Option<i64>,
    /// Run it at this time, RFC 3339, in place of a delay.
    run_at: Option<String>,
    /// 0 (first) to 3; 1 unless given.
    #[schema(minimum = 0, maximum = 3)]
    priority: Option<i32>,
    /// The only node that may run it.
    #[schema(min_length = 1, max_length = 200)]
    node: Option<String>,
    /// Tries before it is a dead letter.
    #[schema(minimum = 1, maximum = 1000)]
    max_attempts: Option<i32>,
    /// How long a try may run, such as `5m`; `0` for no limit.
    run_timeout: Option<String>,
    /// The same in milliseconds, up to 24 days.
    #[schema(minimum = 0, maximum = 2_073_600_000)]
    run_timeout_ms: Option<i64>,
    /// How long a try may show no progress; `0` for no limit.
    heartbeat_timeout: Option<String>,
    /// The same in milliseconds, up to 24 days.
    #[schema(minimum = 0, maximum = 2_073_600_000)]
    heartbeat_timeout_ms: Option<i64>,
    /// How long it may wait for a worker.
    schedule_to_start: Option<String>,
    /// The same in milliseconds, up to 10 years.
    #[schema(minimum = 0)]
    schedule_to_start_ms: Option<i64>,
    /// When it is done: `completed` (unless given), or `accepted` by a worker.
    settle: Option<Settle>,
    /// Tasks of the same key run in order, so many at a time as their queue says.
    #[schema(min_length = 1, max_length = 200)]
    concurrency_key: Option<String>,
    /// Free text for people: at most 32 strings of up to 1,000 characters.
    labels: Option<BTreeMap<String, String>>,
    /// Further settings.
    options: Option<TaskOptions>,
}

/// When a task is done.
#[derive(Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
enum Settle {
    Completed,
    Accepted,
}

/// Further settings of a task.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct TaskOptions {
    /// Milliseconds that its dispatch key is remembered after its end.
    #[schema(minimum = 0)]
    dedupe_for_ms: Option<i64>,
    /// `keep` or `replace` a task of the same dispatch key that waits.
    on_duplicate: Option<OnDuplicate>,
}

/// What happens to a task of the same dispatch key that waits.
#[derive(Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
enum OnDuplicate {
    Keep,
    Replace,
}

/// One task, or a list of up to 100,000, of which all are enqueued or none.
#[derive(Deserialize, ToSchema)]
#[serde(untagged)]
pub(super) enum NewTasks {
    /// One.
    One(Box<NewTask>),
    /// Several.
    Many(Vec<NewTask>),
}

/// A request for a connected worker. Of two spellings of a field, one is given.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct NewRequest {
    /// Tenant; `default` unless given.
    #[schema(min_length = 1, max_length = 200)]
    namespace: Option<String>,
    /// Pool of workers.
    #[schema(min_length = 1, max_length = 200)]
    task_queue: String,
    /// What the worker must know how to do.
    #[schema(min_length = 1, max_length = 200)]
    task_type: String,
    /// The only node that may do it.
    #[schema(min_length = 1, max_length = 200)]
    node: Option<String>,
    /// Any JSON, passed on as it is; null unless given.
    payload: Option<Value>,
    /// Opaque bytes in base64, in place of `payload`.
    payload_base64: Option<String>,
    /// Media type of the payload: `application/json`, or `application/octet-stream` with `payload_base64`.
    content_type: Option<String>,
    /// Free text for people: at most 32 strings of up to 1,000 characters.
    labels: Option<BTreeMap<String, String>>,
    /// How long it may take, the wait for a worker included; 30 s unless given, at most 10 minutes.
    timeout: Option<String>,
    /// The same in milliseconds.
    #[schema(minimum = 1, maximum = 600_000)]
    timeout_ms: Option<u64>,
}

/// Why, for those who look later.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct Because {
    /// Free text.
    reason: Option<String>,
}

/// Why and by whom, for those who look later.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct OrderNote {
    /// Free text.
    reason: Option<String>,
    /// Who orders it.
    by: Option<String>,
}

/// Which unfinished tasks to cancel: by `task_ids`, by `dispatch_key` (with its `namespace`), or by a filter.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct CancelTasks {
    /// At most 1,000 ids.
    #[schema(max_items = 1_000)]
    task_ids: Option<Vec<TaskId>>,
    /// The one task with this key.
    dispatch_key: Option<String>,
    /// Why, for those who look at them later.
    reason: Option<String>,
    /// Tenant.
    namespace: Option<String>,
    /// Pool of workers.
    task_queue: Option<String>,
    /// What the worker must know how to do.
    task_type: Option<String>,
    /// Tasks pinned to this node.
    node: Option<String>,
    /// Tasks in this state.
    state: Option<UnfinishedState>,
    /// Labels that they have.
    labels: Option<BTreeMap<String, String>>,
    /// Enqueued at this time or later, RFC 3339.
    enqueued_after: Option<String>,
    /// Enqueued before this time, RFC 3339.
    enqueued_before: Option<String>,
    /// It is meant that the filter is empty.
    all: Option<bool>,
    /// Only count them.
    dry_run: Option<bool>,
    /// The `next` of the call before.
    after: Option<String>,
}

/// An id, as answers have it or as a number.
#[derive(Deserialize, ToSchema)]
#[serde(untagged)]
enum TaskId {
    /// As answers have it.
    Text(String),
    /// As a number.
    Number(i64),
}

/// What an unfinished task can be.
#[derive(Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
enum UnfinishedState {
    Scheduled,
    Ready,
    Held,
    Running,
}

/// What to pause: an address, or everything. What an address leaves out is any.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct NewPause {
    /// Tenant.
    namespace: Option<String>,
    /// Pool of workers.
    task_queue: Option<String>,
    /// What the worker must know how to do.
    task_type: Option<String>,
    /// Tasks pinned to this node.
    node: Option<String>,
    /// In place of an address.
    everything: Option<bool>,
    /// Why, for those who look later.
    reason: Option<String>,
    /// Who orders it.
    by: Option<String>,
    /// Ask what runs there to stop.
    cancel_running: Option<bool>,
}

/// Exactly the address that was paused.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct PausedAddress {
    /// Tenant.
    namespace: Option<String>,
    /// Pool of workers.
    task_queue: Option<String>,
    /// What the worker must know how to do.
    task_type: Option<String>,
    /// Tasks pinned to this node.
    node: Option<String>,
    /// In place of an address.
    everything: Option<bool>,
}
