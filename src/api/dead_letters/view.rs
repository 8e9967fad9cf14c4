//! Dead letters and redrives as JSON, for HTTP and for `--output json`.

use serde::Serialize;
use serde_json::value::RawValue;
use utoipa::ToSchema;

use crate::api::view::body;
use crate::store::dead_letters::{Answer, Letter, Listed, Redriven};
use crate::store::history::Failed;
use crate::store::redrives::Redrive;

/// One line of a list. A letter goes by the id of the task that died.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, ToSchema)]
pub struct LetterLineView {
    /// The task that died.
    pub task_id: String,
    /// Tenant.
    pub namespace: String,
    /// Pool of workers.
    pub task_queue: String,
    /// What the worker must know how to do.
    pub task_type: String,
    /// The only node that may run it.
    #[schema(required)]
    pub node: Option<String>,
    /// `failed`, `lost`, `unservable`, `schedule_to_start` or `unserved`.
    pub cause: String,
    /// What went wrong, in a word.
    pub error_class: String,
    /// Failed tries.
    pub attempt: i32,
    /// Deliveries whose worker or replica vanished.
    pub losses: i32,
    /// Its owner has taken the matter up; redriving it needs force.
    pub judged: bool,
    /// The task that was made of it.
    #[schema(required)]
    pub redriven_as: Option<String>,
    /// RFC 3339.
    pub enqueued_at: String,
    /// RFC 3339.
    pub dead_at: String,
}

impl From<Listed> for LetterLineView {
    fn from(letter: Listed) -> Self {
        Self {
            task_id: letter.id.to_string(),
            namespace: letter.namespace,
            task_queue: letter.task_queue,
            task_type: letter.task_type,
            node: letter.node,
            cause: letter.cause,
            error_class: letter.error_class,
            attempt: letter.attempt,
            losses: letter.losses,
            judged: letter.judged,
            redriven_as: letter.redriven_as.map(|id| id.to_string()),
            enqueued_at: letter.enqueued_at,
            dead_at: letter.dead_at,
        }
    }
}

/// A failed or lost delivery.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, ToSchema)]
pub struct FailedView {
    attempt: i32,
    fence: i32,
    #[serde(rename = "move")]
    how: String,
    #[schema(required)]
    worker: Option<String>,
    #[schema(required)]
    node: Option<String>,
    error_class: String,
    #[schema(required)]
    error_message: Option<String>,
    #[schema(required)]
    claimed_at: Option<String>,
    failed_at: String,
}

impl From<Failed> for FailedView {
    fn from(failed: Failed) -> Self {
        Self {
            attempt: failed.attempt,
            fence: failed.fence,
            how: failed.how,
            worker: failed.worker,
            node: failed.node,
            error_class: failed.error_class,
            error_message: failed.error_message,
            claimed_at: failed.claimed_at,
            failed_at: failed.failed_at,
        }
    }
}

/// One of the tasks that a task was redriven as.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, ToSchema)]
struct RedrivenView {
    task_id: String,
    state: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    dead_at: Option<String>,
}

impl From<Redriven> for RedrivenView {
    fn from(task: Redriven) -> Self {
        Self {
            task_id: task.id.to_string(),
            state: task.state,
            dead_at: task.dead_at,
        }
    }
}

/// What its owner knows of a letter.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, ToSchema)]
struct OwnerView {
    /// Its webhook is yet to take the letter.
    pending: bool,
    /// When it took it.
    #[schema(required)]
    told_at: Option<String>,
    /// Why telling it was given up.
    #[schema(required)]
    error: Option<String>,
}

/// One dead letter with its history. Its payload stands inline when it is JSON, else in base64.
#[derive(Serialize, ToSchema)]
pub struct LetterView {
    #[serde(flatten)]
    line: LetterLineView,
    origin: String,
    #[schema(required)]
    error_message: Option<String>,
    priority: i16,
    epoch: i32,
    fence: i32,
    owner: OwnerView,
    #[serde(skip_serializing_if = "Option::is_none")]
    workflow_id: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    run_id: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    ordinal: Option<i32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    concurrency_key: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<std::collections::BTreeMap<String, String>>)]
    labels: Option<Box<RawValue>>,
    content_type: String,
    payload_bytes: i32,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<serde_json::Value>)]
    payload: Option<Box<RawValue>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    payload_base64: Option<String>,
    lost_on: Vec<String>,
    failures: Vec<FailedView>,
    chain: Vec<RedrivenView>,
}

impl From<Letter> for LetterView {
    fn from(letter: Letter) -> Self {
        let lost_on = letter.lost_on();
        let (payload, payload_base64) = body(letter.payload, Some(&letter.content_type));
        Self {
            line: letter.listed.into(),
            origin: letter.origin.to_string(),
            error_message: letter.error_message,
            priority: letter.priority,
            epoch: letter.epoch,
            fence: letter.fence,
            owner: OwnerView {
                pending: letter.telling,
                told_at: letter.told_at,
                error: letter.tell_error,
            },
            workflow_id: letter.workflow.map(|workflow| workflow.0.to_string()),
            run_id: letter.workflow.map(|workflow| workflow.1.to_string()),
            ordinal: letter.workflow.map(|workflow| workflow.2),
            concurrency_key: letter.concurrency_key,
            labels: letter
                .labels
                .and_then(|labels| RawValue::from_string(labels).ok()),
            content_type: letter.content_type,
            payload_bytes: letter.payload_bytes,
            payload,
            payload_base64,
            lost_on,
            failures: letter.failures.into_iter().map(Into::into).collect(),
            chain: letter.chain.into_iter().map(Into::into).collect(),
        }
    }
}

/// What a redrive of one letter came to.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, ToSchema)]
pub struct AnswerView {
    /// The letter.
    pub task_id: String,
    /// The new task.
    #[schema(required)]
    pub redriven_as: Option<String>,
    /// Why there is none: `not_found`, `already_redriven`, `judged`, `workflow_is_over` or `queue_not_declared`.
    #[schema(required)]
    pub refused: Option<String>,
}

impl From<Answer> for AnswerView {
    fn from(answer: Answer) -> Self {
        Self {
            task_id: answer.id.to_string(),
            redriven_as: answer.task.map(|id| id.to_string()),
            refused: answer.refused,
        }
    }
}

/// A redrive by filter.
#[derive(Debug, Clone, Serialize, ToSchema)]
pub struct RedriveView {
    /// Its number.
    pub redrive_id: String,
    /// `running`, `stopped`, `halted` or `done`.
    pub state: String,
    /// Why it is stopped or halted.
    pub detail: String,
    /// What it takes.
    #[schema(value_type = Option<serde_json::Value>, required)]
    pub filter: Option<Box<RawValue>>,
    /// Letters that it takes, fixed at its start.
    pub total: i64,
    /// Tasks made.
    pub redriven: i64,
    /// Letters that could not be redriven any more when their turn came.
    pub skipped: i64,
    /// Letters whose turn is to come.
    pub remaining: i64,
    /// Letters a second; null is as fast as it goes.
    #[schema(required)]
    pub rate: Option<f64>,
    /// So many go first.
    #[schema(required)]
    pub canary: Option<i32>,
    /// Halts when more than this share of them die again.
    pub canary_share: f64,
    /// The first ones have not died again, or somebody let it go on all the same.
    pub canary_passed: bool,
    /// Takes judged letters too.
    pub forced: bool,
    /// To the route without the node.
    pub clear_pin: bool,
    /// Who.
    pub by: String,
    /// Why.
    pub reason: String,
    /// RFC 3339.
    pub started_at: String,
    /// RFC 3339.
    pub updated_at: String,
    /// RFC 3339.
    #[schema(required)]
    pub ended_at: Option<String>,
}

impl From<Redrive> for RedriveView {
    fn from(redrive: Redrive) -> Self {
        Self {
            redrive_id: redrive.id.to_string(),
            state: redrive.state,
            detail: redrive.detail,
            filter: RawValue::from_string(redrive.filter).ok(),
            total: redrive.total,
            redriven: redrive.redriven,
            skipped: redrive.skipped,
            remaining: redrive.total - redrive.redriven - redrive.skipped,
            rate: redrive.rate,
            canary: redrive.canary,
            canary_share: redrive.canary_share,
            canary_passed: redrive.canary_passed,
            forced: redrive.forced,
            clear_pin: redrive.clear_pin,
            by: redrive.by,
            reason: redrive.reason,
            started_at: redrive.started_at,
            updated_at: redrive.updated_at,
            ended_at: redrive.ended_at,
        }
    }
}
