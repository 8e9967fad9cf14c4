//! Queues, concurrency keys and namespaces.
#![expect(dead_code, reason = "these types describe bodies and are never made")]

use serde::Deserialize;
use utoipa::ToSchema;

/// A number of tasks, or `none`, which lifts what was set.
#[derive(Deserialize, ToSchema)]
#[serde(untagged)]
enum Quota {
    /// Tasks.
    Tasks(u32),
    /// Any number of them.
    None(NoQuota),
}

/// Lifts a quota.
#[derive(Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
enum NoQuota {
    None,
}

/// A queue for one type and node, and its settings; what is not given stays as it is.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(in crate::api::http::openapi) struct NewQueue {
    /// Tenant; `default` unless given.
    #[schema(min_length = 1, max_length = 200)]
    namespace: Option<String>,
    /// Pool of workers.
    #[schema(min_length = 1, max_length = 200)]
    task_queue: String,
    /// What the worker must know how to do.
    #[schema(min_length = 1, max_length = 200)]
    task_type: String,
    /// The only node that may run its tasks.
    #[schema(min_length = 1, max_length = 200)]
    node: Option<String>,
    /// `wait`, or `strict`: due tasks that nobody serves spend an attempt per backoff interval.
    unserved: Option<Unserved>,
    /// Its tasks that may run at the same time, over all replicas.
    max_in_flight: Option<Quota>,
    /// Its tasks that may start in a time, such as `5/s`, or `none`.
    rate: Option<String>,
    /// How many of them may start at once.
    #[schema(minimum = 1, maximum = 1_000_000)]
    burst: Option<i32>,
    /// Its tasks with one concurrency key that are let go at a time.
    #[schema(minimum = 1, maximum = 1_000)]
    key_limit: Option<i32>,
    /// Its tasks with one concurrency key that may start in a time, or `none`.
    key_rate: Option<String>,
    /// How many of these may start at once.
    #[schema(minimum = 1, maximum = 1_000_000)]
    key_burst: Option<i32>,
    /// What a dead letter at the head of a concurrency key does.
    on_dead_key: Option<OnDeadKey>,
}

/// What becomes of due tasks that nobody serves.
#[derive(Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
enum Unserved {
    Wait,
    Strict,
}

/// What a dead letter at the head of a concurrency key does.
#[derive(Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
enum OnDeadKey {
    Skip,
    Stop,
}

/// A concurrency key.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(in crate::api::http::openapi) struct StoppedKey {
    /// Tenant; `default` unless given.
    namespace: Option<String>,
    /// The key.
    concurrency_key: String,
}

/// Settings of a namespace; what is not given stays as it is.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(in crate::api::http::openapi) struct NamespaceSettings {
    /// Where its tasks run: `{"mode": "anywhere"}`, or `prefer` or `require` with `nodes`.
    placement: Option<Placement>,
    /// Whether it takes tasks for declared queues only.
    require_declared_queues: Option<bool>,
    /// An http or https URL to which its dead letters are posted; empty for none.
    dead_letter_webhook: Option<String>,
    /// Signs what is posted.
    dead_letter_webhook_secret: Option<String>,
    /// Whether its dead letters are notified of.
    dead_letter_notify: Option<bool>,
    /// Its share of the slots, relative to others with due work.
    #[schema(minimum = 1, maximum = 1_000)]
    weight: Option<i32>,
    /// Its tasks that may run at the same time, over all replicas.
    max_in_flight: Option<Quota>,
    /// Its tasks that may start in a time, such as `5/s`, or `none`.
    rate: Option<String>,
    /// How many of them may start at once.
    #[schema(minimum = 1, maximum = 1_000_000)]
    burst: Option<i32>,
}

/// Where tasks run.
#[derive(Deserialize, ToSchema)]
struct Placement {
    /// How much the nodes matter.
    mode: PlacementMode,
    /// 1 to 100 different names, for `prefer` and `require`.
    nodes: Option<Vec<String>>,
}

/// How much nodes matter.
#[derive(Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
enum PlacementMode {
    Anywhere,
    Prefer,
    Require,
}
