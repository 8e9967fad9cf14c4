//! Workflows.

use utoipa::openapi::Required;

use super::bodies::{NewMembers, NewWorkflow, WorkflowOrder};
use super::operation::{
    BODY, DATABASE, LOOSE_BODY, Operation, PARAMETERS, TASK, id, integer, one_of, text,
};
use crate::api::http::workflows::{EventsPage, MembersPage, WorkflowsPage};
use crate::api::{AddedView, StartedView, WorkflowView};

const ID: &str = "The workflow's id.";
const RUN: &str = "Of this run; the newest one unless given.";

pub(super) fn operations() -> Vec<Operation> {
    let mut all = runs();
    all.extend(parts());
    all
}

fn runs() -> Vec<Operation> {
    let states = one_of(["running", "done", "failed", "cancelled"]);
    vec![
        Operation::post(
            "/v1/workflows",
            ("workflows", "startWorkflow"),
            "Stage a workflow with its members",
        )
        .body::<NewWorkflow>(Required::True)
        .answers::<StartedView>(201, "It was created.")
        .answers::<StartedView>(200, "Its key named one that existed.")
        .refuses(&[
            BODY,
            TASK,
            DATABASE,
            &["FP-030", "FP-033", "FP-034", "FP-111"],
        ]),
        Operation::get(
            "/v1/workflows",
            ("workflows", "listWorkflows"),
            "List runs, newest first",
        )
        .query("namespace", text(), "Runs of this tenant.")
        .query("state", states, "Runs in this state.")
        .query("name", text(), "Runs of workflows with this name.")
        .page("before", id(), 100)
        .answers::<WorkflowsPage>(200, "A page.")
        .refuses(&[PARAMETERS, DATABASE]),
        Operation::get(
            "/v1/workflows/{id}",
            ("workflows", "readWorkflow"),
            "Look at one workflow",
        )
        .path("id", id(), ID)
        .query("run", id(), RUN)
        .answers::<WorkflowView>(200, "The run.")
        .refuses(&[PARAMETERS, DATABASE, &["FP-032"]]),
    ]
}

fn parts() -> Vec<Operation> {
    let actions = one_of(["re-run", "pause", "resume", "cancel"]);
    vec![
        Operation::post(
            "/v1/workflows/{id}/members",
            ("workflows", "addMembers"),
            "Add members to a workflow",
        )
        .path("id", id(), ID)
        .body::<NewMembers>(Required::True)
        .answers::<AddedView>(201, "Their tasks, in their order.")
        .refuses(&[
            BODY,
            TASK,
            DATABASE,
            &["FP-031", "FP-032", "FP-034", "FP-111"],
        ]),
        Operation::get(
            "/v1/workflows/{id}/members",
            ("workflows", "listMembers"),
            "List the members of a run",
        )
        .path("id", id(), ID)
        .query("run", id(), RUN)
        .page("after", integer(0, i64::from(i32::MAX)), 100)
        .answers::<MembersPage>(200, "A page, by ordinal.")
        .refuses(&[PARAMETERS, DATABASE, &["FP-032"]]),
        Operation::get(
            "/v1/workflows/{id}/events",
            ("workflows", "listEvents"),
            "List the events of a run",
        )
        .path("id", id(), ID)
        .query("run", id(), RUN)
        .page("after", id(), 100)
        .answers::<EventsPage>(200, "A page, oldest first.")
        .refuses(&[PARAMETERS, DATABASE, &["FP-032"]]),
        Operation::post(
            "/v1/workflows/{id}/{action}",
            ("workflows", "orderWorkflow"),
            "Pause, resume, cancel or re-run a workflow",
        )
        .path("id", id(), ID)
        .path("action", actions, "What to do.")
        .body::<WorkflowOrder>(Required::False)
        .answers::<WorkflowView>(200, "The run as it is then.")
        .refuses(&[
            LOOSE_BODY,
            DATABASE,
            &["FP-031", "FP-032", "FP-034", "FP-035", "FP-036", "FP-106"],
        ]),
    ]
}
