//! `/v1/workflows`: from members and parameters to calls, and back.

use axum::extract::{Path, Request, State as Extract};
use axum::http::{StatusCode, Uri};
use axum::response::Response;
use bytes::Bytes;
use serde::Serialize;
use utoipa::ToSchema;

use super::body::{self, Objects};
use super::operators::one_object;
use super::tasks::{PAGE, new_tasks, number, parameters, typed, unless_null};
use super::{json, read_body, read_bytes};
use crate::api::traces::context_of;
use crate::api::{
    AddedView, Error, EventView, ListedRunView, MemberView, StartedView, State, WorkflowView,
};
use crate::store::enqueue::NewTask;
use crate::store::workflows::{Filter, NewWorkflow, Order};
use crate::telemetry::Door;

/// A page of runs.
#[derive(Serialize, ToSchema)]
pub(super) struct WorkflowsPage {
    workflows: Vec<ListedRunView>,
    /// Where the next page begins; null at the end.
    #[schema(required)]
    next: Option<String>,
}

/// A page of members.
#[derive(Serialize, ToSchema)]
pub(super) struct MembersPage {
    members: Vec<MemberView>,
    /// Where the next page begins; null at the end.
    #[schema(required)]
    next: Option<String>,
}

/// A page of events.
#[derive(Serialize, ToSchema)]
pub(super) struct EventsPage {
    events: Vec<EventView>,
    /// Where the next page begins; null at the end.
    #[schema(required)]
    next: Option<String>,
}

/// `POST /v1/workflows`: 201 when it was created, 200 when its key named one that existed.
pub(super) async fn start(
    Extract(state): Extract<State>,
    request: Request,
) -> Result<Response, Error> {
    let context = context_of(request.headers());
    let workflow = read_workflow(&read_body(&state, request).await?)?;
    let started = state.take_workflow(Door::Http, context, workflow).await?;
    let status = if started.created {
        StatusCode::CREATED
    } else {
        StatusCode::OK
    };
    Ok(json(status, &StartedView::from(started)))
}

/// Reads a workflow to be, as `POST /v1/workflows` takes it; its values are judged by the database.
pub fn read_workflow(body: &Bytes) -> Result<NewWorkflow, Error> {
    let mut workflow = NewWorkflow::default();
    for (name, value) in one_object(body)? {
        let text = || typed::<String>(&name, &value, "a string");
        match name.as_str() {
            "namespace" => workflow.namespace = text()?,
            "name" => workflow.name = text()?,
            "mode" => workflow.mode = text()?,
            "workflow_key" => workflow.workflow_key = text()?,
            "by" => workflow.by = text()?.unwrap_or_default(),
            "paused" => {
                workflow.paused = typed(&name, &value, "true or false")?.unwrap_or_default();
            }
            "continuation" => workflow.continuation = unless_null(value),
            "members" => workflow.members = members(&value)?,
            _ => return Err(Error::unknown_field(&name)),
        }
    }
    Ok(workflow)
}

fn members(value: &Bytes) -> Result<Vec<NewTask>, Error> {
    let Objects { objects, is_list } = body::split(value)
        .map_err(|error| Error::invalid_value("members", format!("members: {}", error.message)))?;
    if !is_list {
        let message = "members must be a list of objects, as tasks are.";
        return Err(Error::invalid_value("members", message));
    }
    new_tasks(objects)
}

/// `POST /v1/workflows/{id}/members`, with `{"members": [...]}`.
pub(super) async fn add(
    Extract(state): Extract<State>,
    Path(id): Path<String>,
    request: Request,
) -> Result<Response, Error> {
    let context = context_of(request.headers());
    let mut added = Vec::new();
    for (name, value) in one_object(&read_body(&state, request).await?)? {
        match name.as_str() {
            "members" => added = members(&value)?,
            _ => return Err(Error::unknown_field(&name)),
        }
    }
    let added = state.take_members(Door::Http, context, workflow_id(&id)?, added);
    let (run, tasks) = added.await?;
    let view = AddedView {
        run_id: run.to_string(),
        task_ids: tasks.iter().map(i64::to_string).collect(),
    };
    Ok(json(StatusCode::CREATED, &view))
}

/// `POST /v1/workflows/{id}/pause|resume|cancel|re-run`, with `{"reason": "…", "by": "…"}` or without a body; a re-run
/// takes `members` too: `unfinished` (all that are not done) or `all`.
pub(super) async fn order(
    Extract(state): Extract<State>,
    Path((id, action)): Path<(String, String)>,
    request: Request,
) -> Result<Response, Error> {
    let path = request.uri().path().to_owned();
    let body = read_bytes(&state, request).await?;
    let (mut reason, mut by, mut again) = (String::new(), String::new(), None);
    if !body.trim_ascii().is_empty() {
        for (name, value) in one_object(&body)? {
            let text = || typed::<String>(&name, &value, "a string");
            match name.as_str() {
                "reason" => reason = text()?.unwrap_or_default(),
                "by" => by = text()?.unwrap_or_default(),
                "members" if action == "re-run" => again = text()?,
                _ => return Err(Error::unknown_field(&name)),
            }
        }
    }
    let order = match action.as_str() {
        "pause" => Order::Pause,
        "resume" => Order::Resume,
        "cancel" => Order::Cancel,
        "re-run" => Order::Rerun {
            members: again.unwrap_or_else(|| "unfinished".to_owned()),
        },
        _ => return Err(Error::new("FP-106", format!("there is nothing at {path}."))),
    };
    let workflow = state
        .order_workflow(workflow_id(&id)?, order, by, reason)
        .await?;
    Ok(json(StatusCode::OK, &WorkflowView::from(workflow)))
}

/// `GET /v1/workflows/{id}?run=`
pub(super) async fn read(
    Extract(state): Extract<State>,
    Path(id): Path<String>,
    uri: Uri,
) -> Result<Response, Error> {
    let mut run = None;
    for (name, value) in parameters(&uri)? {
        match name.as_str() {
            "run" => run = Some(number("run", &value)?),
            _ => return Err(Error::unknown_field(&name)),
        }
    }
    let workflow = state.workflow(workflow_id(&id)?, run).await?;
    Ok(json(StatusCode::OK, &WorkflowView::from(workflow)))
}

/// `GET /v1/workflows?namespace=&state=&name=&before=&limit=`: every run, newest first, paged as tasks are.
pub(super) async fn list(Extract(state): Extract<State>, uri: Uri) -> Result<Response, Error> {
    let mut filter = Filter::default();
    let (mut before, mut limit) = (None, PAGE);
    for (name, value) in parameters(&uri)? {
        match name.as_str() {
            "namespace" => filter.namespace = Some(value),
            "state" => filter.state = Some(value),
            "name" => filter.name = Some(value),
            "before" => before = Some(number("before", &value)?),
            "limit" => limit = number("limit", &value)?,
            _ => return Err(Error::unknown_field(&name)),
        }
    }
    let (runs, next) = state.workflows(filter, before, limit).await?;
    let page = WorkflowsPage {
        workflows: runs.into_iter().map(ListedRunView::from).collect(),
        next: next.map(|run| run.to_string()),
    };
    Ok(json(StatusCode::OK, &page))
}

/// `?run=&after=&limit=` of the two lists of one run.
fn page<N: std::str::FromStr>(uri: &Uri) -> Result<(Option<i64>, Option<N>, u32), Error> {
    let (mut run, mut after, mut limit) = (None, None, PAGE);
    for (name, value) in parameters(uri)? {
        match name.as_str() {
            "run" => run = Some(number("run", &value)?),
            "after" => after = Some(number("after", &value)?),
            "limit" => limit = number("limit", &value)?,
            _ => return Err(Error::unknown_field(&name)),
        }
    }
    Ok((run, after, limit))
}

/// `GET /v1/workflows/{id}/members?run=&after=&limit=`: by ordinal.
pub(super) async fn list_members(
    Extract(state): Extract<State>,
    Path(id): Path<String>,
    uri: Uri,
) -> Result<Response, Error> {
    let (run, after, limit) = page::<i32>(&uri)?;
    let members = state
        .members(workflow_id(&id)?, run, after.unwrap_or(0), limit)
        .await?;
    let next = members.last().filter(|_| is_full(&members, limit));
    let view = MembersPage {
        next: next.map(|last| last.ordinal.to_string()),
        members: members.into_iter().map(MemberView::from).collect(),
    };
    Ok(json(StatusCode::OK, &view))
}

/// `GET /v1/workflows/{id}/events?run=&after=&limit=`: oldest first.
pub(super) async fn events(
    Extract(state): Extract<State>,
    Path(id): Path<String>,
    uri: Uri,
) -> Result<Response, Error> {
    let (run, after, limit) = page::<i64>(&uri)?;
    let events = state
        .workflow_events(workflow_id(&id)?, run, after.unwrap_or(0), limit)
        .await?;
    let next = events.last().filter(|_| is_full(&events, limit));
    let view = EventsPage {
        next: next.map(|last| last.event_id.to_string()),
        events: events.into_iter().map(EventView::from).collect(),
    };
    Ok(json(StatusCode::OK, &view))
}

/// Whether there may be more.
fn is_full<T>(lines: &[T], limit: u32) -> bool {
    u32::try_from(lines.len()).is_ok_and(|found| found == limit)
}

fn workflow_id(text: &str) -> Result<i64, Error> {
    number("workflow_id", text)
}
