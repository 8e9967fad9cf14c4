//! `/v1/tasks/{id}/history`, `/v1/replicas`, `/v1/shares` and `/v1/events`.

use std::convert::Infallible;
use std::time::Duration;

use axum::extract::{Path, State as Extract};
use axum::http::StatusCode;
use axum::response::sse::{Event, KeepAlive, Sse};
use axum::response::{IntoResponse as _, Response};
use futures_util::stream;
use serde::Serialize;
use utoipa::ToSchema;

use super::tasks::number;
use super::{NoParameters, json};
use crate::api::{Error, ReplicaView, ShareView, State};

/// A comment goes out when nothing else has for so long, so that no proxy takes the stream for dead.
const KEEP_ALIVE: Duration = Duration::from_secs(10);

/// Starts of replicas.
#[derive(Serialize, ToSchema)]
pub(super) struct ReplicasList {
    replicas: Vec<ReplicaView>,
    /// There are more, which this list does not go on to.
    more: bool,
}

/// What namespaces have of the slots.
#[derive(Serialize, ToSchema)]
pub(super) struct SharesList {
    shares: Vec<ShareView>,
    /// There are more, with as much or less, which this list does not go on to.
    more: bool,
}

/// `GET /v1/tasks/{id}/history`: how its deliveries went, and who has it.
pub(super) async fn history(
    Extract(state): Extract<State>,
    Path(id): Path<String>,
    _: NoParameters,
) -> Result<Response, Error> {
    let history = state.history(number("task_id", &id)?).await?;
    Ok(json(StatusCode::OK, &history))
}

/// `GET /v1/replicas`: the starts of replicas that are kept, the living first.
pub(super) async fn replicas(
    Extract(state): Extract<State>,
    _: NoParameters,
) -> Result<Response, Error> {
    let (replicas, more) = state.replicas().await?;
    Ok(json(StatusCode::OK, &ReplicasList { replicas, more }))
}

/// `GET /v1/shares`: what replicas have claimed of each namespace that has anything claimed.
pub(super) async fn shares(
    Extract(state): Extract<State>,
    _: NoParameters,
) -> Result<Response, Error> {
    let (shares, more) = state.shares().await?;
    Ok(json(StatusCode::OK, &SharesList { shares, more }))
}

/// `GET /v1/events`: server-sent events, from now on, until the listener goes or this replica drains.
pub(super) async fn events(
    Extract(state): Extract<State>,
    _: NoParameters,
) -> Result<Response, Error> {
    let listener = state.events.listen()?;
    let events = stream::unfold(listener, async |mut listener| {
        let said = listener.next().await?;
        let event = Event::default().event(said.name).data(&*said.data);
        Some((Ok::<_, Infallible>(event), listener))
    });
    let alive = KeepAlive::new().interval(KEEP_ALIVE);
    Ok(Sse::new(events).keep_alive(alive).into_response())
}
