//! `/v1/queues`, `/v1/namespaces`, `/v1/workers` and `/v1/tasks/{id}/why`.

use axum::extract::{Path, Request, State as Extract};
use axum::http::{StatusCode, Uri};
use axum::response::Response;
use bytes::Bytes;
use serde::Serialize;
use utoipa::ToSchema;

use super::body::{self, Members};
use super::tasks::{integer, number, parameters, typed, unless_null};
use super::{NoParameters, json, read_body, read_bytes};
use crate::api::page::Window;
use crate::api::{
    DeclaredView, Error, NamespaceView, QueueChoice, QueueView, State, UnservedView, WorkerView,
};
use crate::domain::scope::Order;
use crate::store::queues::{Declaration, NO_QUOTA, NamespaceSettings};

/// A page of queues.
#[derive(Serialize, ToSchema)]
pub(super) struct QueuesPage {
    queues: Vec<QueueView>,
    /// Where the next page begins; null at the end.
    #[schema(required)]
    next: Option<String>,
}

/// A page of routes that nobody serves.
#[derive(Serialize, ToSchema)]
pub(super) struct UnservedPage {
    unserved: Vec<UnservedView>,
    /// Where the next page begins; null at the end.
    #[schema(required)]
    next: Option<String>,
}

/// A page of namespaces.
#[derive(Serialize, ToSchema)]
pub(super) struct NamespacesPage {
    namespaces: Vec<NamespaceView>,
    /// Where the next page begins; null at the end.
    #[schema(required)]
    next: Option<String>,
}

/// A page of workers.
#[derive(Serialize, ToSchema)]
pub(super) struct WorkersPage {
    workers: Vec<WorkerView>,
    /// Where the next page begins; null at the end.
    #[schema(required)]
    next: Option<String>,
}

/// The order that holds now.
#[derive(Serialize, ToSchema)]
pub(super) struct OrderedView {
    identity: String,
    action: String,
}

/// `GET /v1/tasks/{id}/why`: the verdict, and what each gate says.
pub(super) async fn why(
    Extract(state): Extract<State>,
    Path(id): Path<String>,
    _: NoParameters,
) -> Result<Response, Error> {
    Ok(json(
        StatusCode::OK,
        &state.why(number("task_id", &id)?).await?,
    ))
}

/// `after` and `limit` of a list that goes by a key; what else there is, `other` takes, or says that it knows none.
pub(super) fn page(
    uri: &Uri,
    mut other: impl FnMut(&str, String) -> Option<()>,
) -> Result<Window, Error> {
    let mut window = Window::default();
    for (name, value) in parameters(uri)? {
        match name.as_str() {
            "after" => window.after = Some(value),
            "limit" => window.limit = number("limit", &value)?,
            _ => other(&name, value).ok_or_else(|| Error::unknown_field(&name))?,
        }
    }
    Ok(window)
}

/// `GET /v1/queues?namespace=&task_queue=&count_to=&after=&limit=`
pub(super) async fn queues(Extract(state): Extract<State>, uri: Uri) -> Result<Response, Error> {
    let (mut choice, mut count_to) = (QueueChoice::default(), None);
    let window = page(&uri, |name, value| {
        match name {
            "namespace" => choice.namespace = Some(value),
            "task_queue" => choice.task_queue = Some(value),
            "count_to" => count_to = Some(value),
            _ => return None,
        }
        Some(())
    })?;
    if let Some(count_to) = count_to {
        choice.count_to = number("count_to", &count_to)?;
    }
    let page = state.queues(choice, window).await?;
    let view = QueuesPage {
        queues: page.lines,
        next: page.next,
    };
    Ok(json(StatusCode::OK, &view))
}

/// `GET /v1/queues/unserved?after=&limit=`: what nobody serves, over all replicas.
pub(super) async fn unserved(Extract(state): Extract<State>, uri: Uri) -> Result<Response, Error> {
    let page = state.unserved(page(&uri, |_, _| None)?).await?;
    let view = UnservedPage {
        unserved: page.lines,
        next: page.next,
    };
    Ok(json(StatusCode::OK, &view))
}

/// `POST /v1/queues`: declares one; the answer repeats it.
pub(super) async fn declare(
    Extract(state): Extract<State>,
    request: Request,
) -> Result<Response, Error> {
    let mut route = Declaration::default();
    for (name, value) in one_object(&read_body(&state, request).await?)? {
        let text = || typed::<String>(&name, &value, "a string");
        match name.as_str() {
            "namespace" => route.namespace = text()?,
            "task_queue" => route.task_queue = text()?.unwrap_or_default(),
            "task_type" => route.task_type = text()?.unwrap_or_default(),
            "node" => route.node = text()?,
            "unserved" => route.unserved = text()?,
            "max_in_flight" => route.max_in_flight = quota(&name, &value)?,
            "rate" => route.rate.rate = text()?,
            "burst" => route.rate.burst = integer(&name, &value)?,
            "key_limit" => route.key_limit = integer(&name, &value)?,
            "key_rate" => route.key_rate.rate = text()?,
            "key_burst" => route.key_rate.burst = integer(&name, &value)?,
            "on_dead_key" => route.on_dead_key = text()?,
            _ => return Err(Error::unknown_field(&name)),
        }
    }
    state.declare_queue(route.clone()).await?;
    Ok(json(StatusCode::OK, &DeclaredView::from(route)))
}

/// `GET /v1/namespaces?after=&limit=`
pub(super) async fn namespaces(
    Extract(state): Extract<State>,
    uri: Uri,
) -> Result<Response, Error> {
    let page = state.namespaces(page(&uri, |_, _| None)?).await?;
    let view = NamespacesPage {
        namespaces: page.lines,
        next: page.next,
    };
    Ok(json(StatusCode::OK, &view))
}

/// `PUT /v1/namespaces/{name}`: sets what is given.
pub(super) async fn set_namespace(
    Extract(state): Extract<State>,
    Path(name): Path<String>,
    request: Request,
) -> Result<Response, Error> {
    let mut settings = NamespaceSettings::default();
    for (field, value) in one_object(&read_body(&state, request).await?)? {
        match field.as_str() {
            "placement" => settings.placement = unless_null(value).map(|value| value.to_vec()),
            "require_declared_queues" => {
                settings.require_declared_queues = typed(&field, &value, "true or false")?;
            }
            "dead_letter_webhook" => {
                settings.hook.webhook = typed(&field, &value, "a string")?;
            }
            "dead_letter_webhook_secret" => {
                settings.hook.secret = typed::<String>(&field, &value, "a string")?.map(Into::into);
            }
            "dead_letter_notify" => {
                settings.hook.notify = typed(&field, &value, "true or false")?;
            }
            "weight" => settings.weight = integer(&field, &value)?,
            "max_in_flight" => settings.max_in_flight = quota(&field, &value)?,
            "rate" => settings.rate.rate = typed(&field, &value, "a string")?,
            "burst" => settings.rate.burst = integer(&field, &value)?,
            _ => return Err(Error::unknown_field(&field)),
        }
    }
    Ok(json(
        StatusCode::OK,
        &state.set_namespace(name, settings).await?,
    ))
}

/// `GET /v1/workers?after=&limit=`: those of all live replicas.
pub(super) async fn workers(Extract(state): Extract<State>, uri: Uri) -> Result<Response, Error> {
    let page = state.workers(page(&uri, |_, _| None)?).await?;
    let view = WorkersPage {
        workers: page.lines,
        next: page.next,
    };
    Ok(json(StatusCode::OK, &view))
}

/// `POST /v1/workers/{identity}/drain|cordon|uncordon`, with `{"reason": "…", "by": "…"}` or without a body.
pub(super) async fn order_worker(
    Extract(state): Extract<State>,
    Path((identity, action)): Path<(String, String)>,
    request: Request,
) -> Result<Response, Error> {
    let order = match action.as_str() {
        "drain" => Some(Order::Drain),
        "cordon" => Some(Order::Cordon),
        "uncordon" => None,
        _ => {
            let message = format!("there is nothing at {}.", request.uri().path());
            return Err(Error::new("FP-106", message));
        }
    };
    let body = read_bytes(&state, request).await?;
    let (mut reason, mut by) = (String::new(), String::new());
    if !body.trim_ascii().is_empty() {
        for (name, value) in one_object(&body)? {
            let text = || typed::<String>(&name, &value, "a string").map(Option::unwrap_or_default);
            match name.as_str() {
                "reason" => reason = text()?,
                "by" => by = text()?,
                _ => return Err(Error::unknown_field(&name)),
            }
        }
    }
    let identities = vec![identity.clone()];
    state.order_workers(identities, order, by, reason).await?;
    Ok(json(StatusCode::OK, &OrderedView { identity, action }))
}

/// A number of tasks, or `"none"`, which lifts what was set.
fn quota(field: &str, value: &Bytes) -> Result<Option<i32>, Error> {
    if value == "\"none\"" {
        return Ok(Some(NO_QUOTA));
    }
    match integer(field, value) {
        // As the database has "none", which is written here in one way only.
        Ok(Some(NO_QUOTA)) => Ok(Some(i32::MIN)),
        Ok(given) => Ok(given),
        Err(_) => {
            let message = format!("{field} must be an integer or \"none\".");
            Err(Error::invalid_value(field, message))
        }
    }
}

/// The members of the one object that a body must be.
pub(super) fn one_object(body: &Bytes) -> Result<Members, Error> {
    let split = body::split(body)?;
    let members = match split.objects.into_iter().next() {
        Some(members) if !split.is_list => members,
        _ => return Err(Error::invalid_body("the body must be one JSON object.")),
    };
    for (index, (name, _)) in members.iter().enumerate() {
        if members.iter().take(index).any(|(before, _)| before == name) {
            let message = format!("{name} is given more than once.");
            return Err(Error::invalid_value(name, message));
        }
    }
    Ok(members)
}
