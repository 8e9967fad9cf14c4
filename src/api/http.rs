//! The producers' and operators' door over HTTP: translation only. Errors are problem+json, ids are strings.

mod body;
mod dashboard;
mod dead_letters;
mod execute;
mod keys;
mod levers;
mod lives;
mod manners;
mod openapi;
mod operators;
mod tasks;
mod workflows;

use std::time::Duration;

use axum::Router;
use axum::body::Bytes;
use axum::extract::{FromRequestParts, Request, State as Extract};
use axum::http::request::Parts;
use axum::http::{HeaderValue, StatusCode, header};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post, put};
use futures_util::StreamExt as _;
use serde::Serialize;
use utoipa::ToSchema;

use super::{Error, LONGEST_EXECUTE, LONGEST_WAIT, State};
use crate::telemetry;
pub use manners::identify;
pub use workflows::read_workflow;

/// Whether a replica is fit for traffic.
#[derive(Serialize, ToSchema)]
struct ReadyView {
    ready: bool,
    reasons: Vec<String>,
}

/// Every route of producers and operators, and `/healthz` and `/readyz`.
pub fn router(state: State) -> Router {
    let calls = Router::new()
        .route("/v1/tasks", post(tasks::enqueue).get(tasks::list))
        .route("/v1/tasks/cancel", post(levers::cancel))
        .route("/v1/tasks/{id}", get(tasks::read))
        .route("/v1/tasks/{id}/cancel", post(tasks::cancel))
        .route("/v1/tasks/{id}/why", get(operators::why))
        .route("/v1/tasks/{id}/history", get(lives::history))
        .route("/v1/replicas", get(lives::replicas))
        .route("/v1/shares", get(lives::shares))
        .route(
            "/v1/queues",
            get(operators::queues).post(operators::declare),
        )
        .route("/v1/queues/unserved", get(operators::unserved))
        .route("/v1/queues/stopped-keys", get(keys::stopped))
        .route("/v1/queues/resume-key", post(keys::resume))
        .route("/v1/namespaces", get(operators::namespaces))
        .route("/v1/namespaces/{name}", put(operators::set_namespace))
        .route("/v1/workflows", post(workflows::start).get(workflows::list))
        .route("/v1/workflows/{id}", get(workflows::read))
        .route(
            "/v1/workflows/{id}/members",
            post(workflows::add).get(workflows::list_members),
        )
        .route("/v1/workflows/{id}/events", get(workflows::events))
        .route("/v1/workflows/{id}/{action}", post(workflows::order))
        .route("/v1/pause", post(levers::pause))
        .route("/v1/resume", post(levers::resume))
        .route("/v1/pauses", get(levers::pauses))
        .route("/v1/workers", get(operators::workers))
        .route(
            "/v1/workers/{identity}/{action}",
            post(operators::order_worker),
        )
        .merge(dead_letter_routes())
        .layer(middleware::from_fn_with_state(state.limits.request, within));
    let waits = Router::new()
        .route("/v1/tasks/{id}/wait", get(tasks::wait))
        .layer(middleware::from_fn_with_state(
            state.limits.request + LONGEST_WAIT,
            within,
        ));
    let direct = Router::new()
        .route("/v1/execute", post(execute::execute).get(execute::list))
        .layer(middleware::from_fn_with_state(
            state.limits.request + LONGEST_EXECUTE,
            within,
        ));
    let router = Router::new()
        .route("/healthz", get(async || "ok\n"))
        .route("/readyz", get(readyz))
        .route("/openapi.json", get(openapi::serve))
        .route("/metrics", get(metrics))
        .route("/v1/events", get(lives::events))
        .merge(dashboard::routes())
        .merge(calls)
        .merge(waits)
        .merge(direct)
        .layer(middleware::from_fn(told_by_body))
        .fallback(unknown_path)
        .method_not_allowed_fallback(method_not_allowed)
        .with_state(state);
    manners::around(router)
}

fn dead_letter_routes() -> Router<State> {
    Router::new()
        .route("/v1/dead-letters", get(dead_letters::list))
        .route("/v1/dead-letters/{id}", get(dead_letters::read))
        .route("/v1/dead-letters/redrive", post(dead_letters::redrive))
        .route("/v1/dead-letters/discard", post(dead_letters::discard))
        .route("/v1/redrives", get(dead_letters::redrives))
        .route("/v1/redrives/{id}", get(dead_letters::read_redrive))
        .route(
            "/v1/redrives/{id}/{action}",
            post(dead_letters::change_redrive),
        )
}

/// Ends a request whose time is over, a body that trickles in included. Database work that it has begun goes on
/// to its own deadline.
async fn within(Extract(limit): Extract<Duration>, request: Request, next: Next) -> Response {
    match tokio::time::timeout(limit, next.run(request)).await {
        Ok(response) => response,
        Err(_) => {
            let message = format!(
                "no answer within {} s; what was asked for may have happened.",
                limit.as_secs()
            );
            Error::new("FP-109", message).into_response()
        }
    }
}

/// What a call without parameters takes of its address: nothing, so that a misspelt or misplaced one is not ignored.
struct NoParameters;

impl<S: Sync> FromRequestParts<S> for NoParameters {
    type Rejection = Error;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Error> {
        match tasks::parameters(&parts.uri)?.first() {
            Some((name, _)) => Err(Error::unknown_field(name)),
            None => Ok(Self),
        }
    }
}

/// Calls that change something take what they are told from their bodies alone.
async fn told_by_body(request: Request, next: Next) -> Result<Response, Error> {
    let (mut parts, body) = request.into_parts();
    if !parts.method.is_safe() {
        NoParameters::from_request_parts(&mut parts, &()).await?;
    }
    Ok(next.run(Request::from_parts(parts, body)).await)
}

async fn readyz(Extract(state): Extract<State>) -> Response {
    let now = state.readiness.borrow().clone();
    let status = if now.ready {
        StatusCode::OK
    } else {
        StatusCode::SERVICE_UNAVAILABLE
    };
    json(
        status,
        &ReadyView {
            ready: now.ready,
            reasons: now.reasons,
        },
    )
}

/// Everything for Prometheus; docs/metrics.md says what each line means.
async fn metrics(Extract(state): Extract<State>) -> Result<Response, Error> {
    let text = state.scrape().await?;
    let kind = HeaderValue::from_static(telemetry::CONTENT_TYPE);
    Ok(([(header::CONTENT_TYPE, kind)], text).into_response())
}

async fn unknown_path(request: Request) -> Error {
    Error::new(
        "FP-106",
        format!("there is nothing at {}.", request.uri().path()),
    )
}

async fn method_not_allowed(request: Request) -> Error {
    let message = format!(
        "{} does not answer to {}.",
        request.uri().path(),
        request.method()
    );
    Error::new("FP-107", message)
}

fn json(status: StatusCode, value: &impl Serialize) -> Response {
    match serde_json::to_vec(value) {
        Ok(text) => {
            let kind = HeaderValue::from_static("application/json");
            (status, [(header::CONTENT_TYPE, kind)], text).into_response()
        }
        Err(error) => Error::new("FP-114", error.to_string()).into_response(),
    }
}

/// The bytes of a JSON request, within the limit. Its content type is asked for because a web page of somebody else
/// can't send this one without the browser asking first.
async fn read_body(state: &State, request: Request) -> Result<Bytes, Error> {
    let kind = request.headers().get(header::CONTENT_TYPE);
    let kind = kind.and_then(|kind| kind.to_str().ok()).unwrap_or_default();
    let essence = kind.split(';').next().unwrap_or_default().trim();
    if !essence.eq_ignore_ascii_case("application/json") {
        return Err(Error::new(
            "FP-108",
            "the body must be JSON, with the header content-type: application/json.",
        ));
    }
    read_bytes(state, request).await
}

async fn read_bytes(state: &State, request: Request) -> Result<Bytes, Error> {
    let limit = state.limits.body;
    let too_large = || Error::new("FP-105", format!("a body has at most {limit} bytes."));
    let announced = request.headers().get(header::CONTENT_LENGTH);
    let announced = announced.and_then(|length| length.to_str().ok()?.parse::<u64>().ok());
    // Said before it is sent, where the length is known.
    if announced.is_some_and(|length| usize::try_from(length).map_or(true, |length| length > limit))
    {
        return Err(too_large());
    }
    let mut chunks = request.into_body().into_data_stream();
    let mut body = Vec::new();
    while let Some(chunk) = chunks.next().await {
        let chunk = chunk
            .map_err(|error| Error::invalid_body(format!("the body did not arrive: {error}.")))?;
        if body.len() + chunk.len() > limit {
            return Err(too_large());
        }
        body.extend_from_slice(&chunk);
    }
    Ok(body.into())
}
