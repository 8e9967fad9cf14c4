//! `/v1/queues/stopped-keys` and `/v1/queues/resume-key`.

use axum::extract::{Request, State as Extract};
use axum::http::{StatusCode, Uri};
use axum::response::Response;
use serde::Serialize;
use utoipa::ToSchema;

use super::operators::{one_object, page};
use super::tasks::typed;
use super::{json, read_body};
use crate::api::{Error, State, StoppedKeyView};

/// A page of keys that dead letters stop.
#[derive(Serialize, ToSchema)]
pub(super) struct StoppedKeysPage {
    stopped_keys: Vec<StoppedKeyView>,
    /// Where the next page begins; null at the end.
    #[schema(required)]
    next: Option<String>,
}

/// `GET /v1/queues/stopped-keys?namespace=&after=&limit=`
pub(super) async fn stopped(Extract(state): Extract<State>, uri: Uri) -> Result<Response, Error> {
    let mut namespace = None;
    let window = page(&uri, |name, value| match name {
        "namespace" => {
            namespace = Some(value);
            Some(())
        }
        _ => None,
    })?;
    let page = state.stopped_keys(namespace, window).await?;
    let view = StoppedKeysPage {
        stopped_keys: page.lines,
        next: page.next,
    };
    Ok(json(StatusCode::OK, &view))
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
