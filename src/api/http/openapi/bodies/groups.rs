//! Workflows and dead letters.
#![expect(dead_code, reason = "these types describe bodies and are never made")]

use std::collections::BTreeMap;

use serde::Deserialize;
use serde_json::Value;
use utoipa::ToSchema;

use super::NewTask;

/// A workflow to be.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(in crate::api::http::openapi) struct NewWorkflow {
    /// Tenant; `default` unless given.
    #[schema(min_length = 1, max_length = 200)]
    namespace: Option<String>,
    /// What it is, for people.
    #[schema(min_length = 1, max_length = 200)]
    name: String,
    /// When it ends; `all` unless given.
    mode: Option<WorkflowMode>,
    /// Idempotency key.
    #[schema(min_length = 1, max_length = 200)]
    workflow_key: Option<String>,
    /// Who starts it.
    by: Option<String>,
    /// Stage it paused.
    paused: Option<bool>,
    /// A task that is enqueued at its end and gets the members' results. It has the fields of a task.
    continuation: Option<BTreeMap<String, Value>>,
    /// Its tasks.
    members: Option<Vec<NewTask>>,
}

/// When a workflow ends.
#[derive(Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
enum WorkflowMode {
    All,
    Race,
    FailFast,
}

/// Tasks that join a workflow.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(in crate::api::http::openapi) struct NewMembers {
    /// At least one.
    #[schema(min_items = 1)]
    members: Vec<NewTask>,
}

/// Why and by whom, and what a re-run is about.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(in crate::api::http::openapi) struct WorkflowOrder {
    /// Free text.
    reason: Option<String>,
    /// Who orders it.
    by: Option<String>,
    /// For a re-run: what is run again; `unfinished` unless given.
    members: Option<Rerun>,
}

/// What is run again.
#[derive(Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
enum Rerun {
    /// All that is not done.
    Unfinished,
    All,
}

/// Which dead letters: what is not given is any.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct LetterFilter {
    /// Tenant.
    namespace: Option<String>,
    /// Pool of workers.
    task_queue: Option<String>,
    /// What the worker must know how to do.
    task_type: Option<String>,
    /// Tasks that were pinned to this node.
    node: Option<String>,
    /// `failed`, `lost`, `unservable`, `schedule_to_start` or `unserved`.
    cause: Option<String>,
    /// What went wrong, in a word.
    error_class: Option<String>,
    /// Dead before this time, RFC 3339.
    dead_before: Option<String>,
    /// Dead at this time or later, RFC 3339.
    dead_after: Option<String>,
    /// Dead for longer than so many milliseconds.
    #[schema(minimum = 0, maximum = 1_000_000_000_000i64)]
    older_than_ms: Option<i64>,
    /// Dead for less than so many milliseconds.
    #[schema(minimum = 0, maximum = 1_000_000_000_000i64)]
    newer_than_ms: Option<i64>,
    /// Those that were redriven, or those that were not.
    redriven: Option<bool>,
    /// Those that their owner has taken up, or those that it has not.
    judged: Option<bool>,
}

/// Which letters to redrive, and how. By `ids` they are redriven at once; by `filter` a redrive is started.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(in crate::api::http::openapi) struct Redrive {
    /// 1 to 1,000 letters, by the ids of their tasks.
    ids: Option<Vec<String>>,
    /// All that it takes.
    filter: Option<LetterFilter>,
    /// It is meant that the filter is empty.
    all: Option<bool>,
    /// Take judged letters too.
    forced: Option<bool>,
    /// To the route without the node.
    clear_pin: Option<bool>,
    /// With a filter: letters a second.
    #[schema(minimum = 0.001, maximum = 1_000_000)]
    rate: Option<f64>,
    /// With a filter: so many go first.
    #[schema(minimum = 1, maximum = 10_000)]
    canary: Option<i32>,
    /// With a filter: halt when more than this share of them die again.
    #[schema(minimum = 0, maximum = 1)]
    canary_share: Option<f64>,
    /// With a filter: only count.
    dry_run: Option<bool>,
    /// With a filter: who.
    by: Option<String>,
    /// With a filter: why.
    reason: Option<String>,
}

/// Which letters to discard.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(in crate::api::http::openapi) struct Discard {
    /// 1 to 1,000 letters, by the ids of their tasks.
    ids: Option<Vec<String>>,
    /// All that it takes.
    filter: Option<LetterFilter>,
    /// It is meant that the filter is empty.
    all: Option<bool>,
    /// With a filter: only count.
    dry_run: Option<bool>,
}
