//! `/v1/queues/stopped-keys` and `/v1/queues/resume-key`.

use axum::extract::{Request, State as Extract};
use axum::http::{StatusCode, Uri};
use axum::response::Response;
use serde::Serialize;
use utoipa::ToSchema;

use super::operators::one_object;
use super::tasks::{parameters, typed};
use super::{json, read_body};
use crate::api::{Error, State, StoppedKeyView};

/// Keys that dead letters stop.
#[derive(Serialize, ToSchema)]
pub(super) struct StoppedKeysList {
    stopped_keys: Vec<StoppedKeyView>,
}

/// `GET /v1/queues/stopped-keys?namespace=`
pub(super) async fn stopped(Extract(state): Extract<State>, uri: Uri) -> Result<Response, Error> {
    let mut namespace = None;
    for (name, value) in parameters(&uri)? {
        match name.as_str() {
            "namespace" => namespace = Some(value),
            _ => return Err(Error::unknown_field(&name)),
        }
    }
    let stopped_keys = state.stopped_keys(namespace).await?;
    Ok(json(StatusCode::OK, &StoppedKeysList { stopped_keys }))
}

/// `POST /v1/queues/resume-key`, with `concurrency_key` and perhaps `namespace`.
pub(super) async fn resume(
    Extract(state): Extract<State>,
    request: Request,
) -> Result<Response, Error> {
    let (mut namespace, mut key) = (None, String::new());
    for (name, value) in one_object(&read_body(&state, request).await?)? {
        let text = || typed::<String>(&name, &value, "a string");
        match name.as_str() {
            "namespace" => namespace = text()?,
            "concurrency_key" => key = text()?.unwrap_or_default(),
            _ => return Err(Error::unknown_field(&name)),
        }
    }
    Ok(json(
        StatusCode::OK,
        &state.resume_key(namespace, key).await?,
    ))
}
