//! Workflows as JSON, for HTTP and for `--output json`. Ids are strings, since they pass 2^53.

use serde::Serialize;
use serde_json::value::RawValue;
use utoipa::ToSchema;

use crate::store::workflows::{Event, Listed, Member, Started, Workflow};

fn raw(json: Option<String>) -> Option<Box<RawValue>> {
    RawValue::from_string(json?).ok()
}

/// A workflow that exists now.
#[derive(Serialize, ToSchema)]
pub struct StartedView {
    workflow_id: String,
    run_id: String,
    state: String,
    created: bool,
    task_ids: Vec<String>,
}

impl From<Started> for StartedView {
    fn from(started: Started) -> Self {
        Self {
            workflow_id: started.workflow_id.to_string(),
            run_id: started.run_id.to_string(),
            state: started.state,
            created: started.created,
            task_ids: started.task_ids.iter().map(i64::to_string).collect(),
        }
    }
}

/// Members that were added.
#[derive(Serialize, ToSchema)]
pub struct AddedView {
    /// The run that they belong to.
    pub run_id: String,
    /// Their tasks, in their order.
    pub task_ids: Vec<String>,
}

/// Members by how they ended.
#[derive(Serialize, ToSchema)]
struct Counts {
    total: i64,
    unfinished: i64,
    done: i64,
    failed: i64,
    cancelled: i64,
}

/// One run of a workflow.
#[derive(Serialize, ToSchema)]
pub struct WorkflowView {
    workflow_id: String,
    run_id: String,
    run_number: i32,
    namespace: String,
    name: String,
    mode: String,
    state: String,
    #[schema(value_type = Option<serde_json::Value>, required)]
    paused: Option<Box<RawValue>>,
    members: Counts,
    #[serde(skip_serializing_if = "Option::is_none")]
    continued_as: Option<String>,
    created_at: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    ended_at: Option<String>,
}

impl From<Workflow> for WorkflowView {
    fn from(run: Workflow) -> Self {
        let [total, done, failed, cancelled] = run.members;
        Self {
            workflow_id: run.workflow_id.to_string(),
            run_id: run.run_id.to_string(),
            run_number: run.run_number,
            namespace: run.namespace,
            name: run.name,
            mode: run.mode,
            state: run.state,
            paused: raw(run.paused),
            members: Counts {
                total,
                unfinished: total - done - failed - cancelled,
                done,
                failed,
                cancelled,
            },
            continued_as: run.continued_as.map(|id| id.to_string()),
            created_at: run.created_at,
            ended_at: run.ended_at,
        }
    }
}

/// One line of a list.
#[derive(Serialize, ToSchema)]
pub struct ListedRunView {
    workflow_id: String,
    run_id: String,
    run_number: i32,
    namespace: String,
    name: String,
    mode: String,
    state: String,
    paused: bool,
    created_at: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    ended_at: Option<String>,
}

impl From<Listed> for ListedRunView {
    fn from(run: Listed) -> Self {
        Self {
            workflow_id: run.workflow_id.to_string(),
            run_id: run.run_id.to_string(),
            run_number: run.run_number,
            namespace: run.namespace,
            name: run.name,
            mode: run.mode,
            state: run.state,
            paused: run.paused,
            created_at: run.created_at,
            ended_at: run.ended_at,
        }
    }
}

/// A member, and the task that stands for it.
#[derive(Serialize, ToSchema)]
pub struct MemberView {
    ordinal: i32,
    task_id: String,
    state: String,
    attempt: i32,
    #[serde(skip_serializing_if = "Option::is_none")]
    error_class: Option<String>,
}

impl From<Member> for MemberView {
    fn from(member: Member) -> Self {
        Self {
            ordinal: member.ordinal,
            task_id: member.task_id.to_string(),
            state: member.state,
            attempt: member.attempt,
            error_class: member.error_class,
        }
    }
}

/// Something that happened to a run.
#[derive(Serialize, ToSchema)]
pub struct EventView {
    event_id: String,
    kind: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    task_id: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    ordinal: Option<i32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<serde_json::Value>)]
    detail: Option<Box<RawValue>>,
    recorded_at: String,
}

impl From<Event> for EventView {
    fn from(event: Event) -> Self {
        Self {
            event_id: event.event_id.to_string(),
            kind: event.kind,
            task_id: event.task_id.map(|id| id.to_string()),
            ordinal: event.ordinal,
            detail: raw(event.detail),
            recorded_at: event.recorded_at,
        }
    }
}
