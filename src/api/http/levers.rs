//! `/v1/pause`, `/v1/resume`, `/v1/pauses` and `/v1/tasks/cancel`.

use std::collections::BTreeMap;

use axum::extract::{Request, State as Extract};
use axum::http::{StatusCode, Uri};
use axum::response::Response;
use bytes::Bytes;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::operators::{one_object, page};
use super::tasks::typed;
use super::{json, read_body};
use crate::api::{CancelMatching, CancelView, Error, LONGEST_PAGE, PauseView, State, instant};
use crate::domain::pause::Address;
use crate::store::cancel::Matching;
use crate::store::pauses::NewPause;

/// A page of what is paused.
#[derive(Serialize, ToSchema)]
pub(super) struct PausesPage {
    pauses: Vec<PauseView>,
    /// Where the next page begins; null at the end.
    #[schema(required)]
    next: Option<String>,
}

/// What became of each task that was named.
#[derive(Serialize, ToSchema)]
pub(super) struct CancelledList {
    tasks: Vec<CancelView>,
}

/// One part of an address. False: the field is none.
fn read_address(address: &mut Address, name: &str, value: &Bytes) -> Result<bool, Error> {
    let part = match name {
        "namespace" => &mut address.namespace,
        "task_queue" => &mut address.task_queue,
        "task_type" => &mut address.task_type,
        "node" => &mut address.node,
        _ => return Ok(false),
    };
    *part = typed(name, value, "a string")?;
    Ok(true)
}

fn flag(name: &str, value: &Bytes) -> Result<bool, Error> {
    Ok(typed(name, value, "true or false")?.unwrap_or_default())
}

/// `POST /v1/pause`, with an address or `"everything": true`, and `reason`, `by`, `cancel_running`.
pub(super) async fn pause(
    Extract(state): Extract<State>,
    request: Request,
) -> Result<Response, Error> {
    let mut new = NewPause::default();
    for (name, value) in one_object(&read_body(&state, request).await?)? {
        if read_address(&mut new.address, &name, &value)? {
            continue;
        }
        let text = || typed::<String>(&name, &value, "a string").map(Option::unwrap_or_default);
        match name.as_str() {
            "everything" => new.everything = flag(&name, &value)?,
            "reason" => new.reason = text()?,
            "by" => new.by = text()?,
            "cancel_running" => new.cancel_running = flag(&name, &value)?,
            _ => return Err(Error::unknown_field(&name)),
        }
    }
    Ok(json(StatusCode::OK, &state.pause(new).await?))
}

/// `POST /v1/resume`, with exactly the address that was paused.
pub(super) async fn resume(
    Extract(state): Extract<State>,
    request: Request,
) -> Result<Response, Error> {
    let (mut address, mut everything) = (Address::default(), false);
    for (name, value) in one_object(&read_body(&state, request).await?)? {
        if read_address(&mut address, &name, &value)? {
            continue;
        }
        match name.as_str() {
            "everything" => everything = flag(&name, &value)?,
            _ => return Err(Error::unknown_field(&name)),
        }
    }
    Ok(json(
        StatusCode::OK,
        &state.resume(address, everything).await?,
    ))
}

/// `GET /v1/pauses?after=&limit=`
pub(super) async fn pauses(Extract(state): Extract<State>, uri: Uri) -> Result<Response, Error> {
    let page = state.pauses(page(&uri, |_, _| None)?).await?;
    let view = PausesPage {
        pauses: page.lines,
        next: page.next,
    };
    Ok(json(StatusCode::OK, &view))
}

/// What `POST /v1/tasks/cancel` is asked.
#[derive(Default)]
struct Asked {
    ids: Option<Vec<i64>>,
    key: Option<String>,
    matching: CancelMatching,
    /// A field that only a filter has.
    filter_field: Option<String>,
}

/// An id as the answers have it, or as a number.
#[derive(Deserialize)]
#[serde(untagged)]
enum Id {
    Text(String),
    Number(i64),
}

impl Asked {
    fn read(&mut self, name: &str, value: &Bytes) -> Result<(), Error> {
        let text = || typed::<String>(name, value, "a string");
        let at = |text: Option<String>| text.map(|text| instant(name, &text)).transpose();
        let Matching {
            namespace,
            task_queue,
            task_type,
            node,
            state,
            labels,
            enqueued_after,
            enqueued_before,
        } = &mut self.matching.matching;
        match name {
            "task_ids" => {
                let what = "a list of ids";
                let ids: Option<Vec<Id>> = typed(name, value, what)?;
                let ids = ids.map(|ids| {
                    ids.into_iter().map(|id| match id {
                        Id::Number(id) => Ok(id),
                        Id::Text(id) => id.parse().map_err(|_| {
                            Error::invalid_value(name, format!("{name} must be {what}."))
                        }),
                    })
                });
                self.ids = ids.map(Iterator::collect).transpose()?;
                return Ok(());
            }
            "dispatch_key" => {
                self.key = text()?;
                return Ok(());
            }
            "reason" => {
                self.matching.reason = text()?.unwrap_or_default();
                return Ok(());
            }
            // With a dispatch key it is the key's.
            "namespace" => {
                *namespace = text()?;
                return Ok(());
            }
            "task_queue" => *task_queue = text()?,
            "task_type" => *task_type = text()?,
            "node" => *node = text()?,
            "state" => *state = text()?,
            "labels" => {
                let given: Option<BTreeMap<String, String>> =
                    typed(name, value, "an object of strings")?;
                *labels = given.unwrap_or_default().into_iter().collect();
            }
            "enqueued_after" => *enqueued_after = at(text()?)?,
            "enqueued_before" => *enqueued_before = at(text()?)?,
            "all" => self.matching.all = flag(name, value)?,
            "dry_run" => self.matching.dry_run = flag(name, value)?,
            "after" => {
                let after = text()?.unwrap_or_else(|| "0".to_owned());
                self.matching.after = super::tasks::number(name, &after)?;
            }
            _ => return Err(Error::unknown_field(name)),
        }
        self.filter_field.get_or_insert_with(|| name.to_owned());
        Ok(())
    }

    /// Ids, a key and a filter exclude each other.
    fn check(&self) -> Result<(), Error> {
        let exclude = |field: &str| {
            let message = "task_ids, dispatch_key and a filter exclude each other.";
            Err(Error::invalid_value(field, message))
        };
        match (&self.ids, &self.key, &self.filter_field) {
            (Some(_), Some(_), _) => exclude("dispatch_key"),
            (Some(_), None, Some(field)) | (None, Some(_), Some(field)) => exclude(field),
            (Some(_), None, None) if self.matching.matching.namespace.is_some() => {
                exclude("namespace")
            }
            _ => Ok(()),
        }
    }
}

/// `POST /v1/tasks/cancel`: tasks by id, the one that a dispatch key names, or all that match a filter.
pub(super) async fn cancel(
    Extract(state): Extract<State>,
    request: Request,
) -> Result<Response, Error> {
    let mut asked = Asked::default();
    for (name, value) in one_object(&read_body(&state, request).await?)? {
        asked.read(&name, &value)?;
    }
    asked.check()?;
    let reason = asked.matching.reason.clone();
    if let Some(key) = asked.key {
        let namespace = asked.matching.matching.namespace;
        let view = state.cancel_key(namespace, key, reason).await?;
        return Ok(json(StatusCode::OK, &CancelledList { tasks: vec![view] }));
    }
    let Some(ids) = asked.ids else {
        let report = state.cancel_matching(asked.matching).await?;
        return Ok(json(StatusCode::OK, &report));
    };
    if ids.len() > LONGEST_PAGE as usize {
        let message = format!("task_ids has at most {LONGEST_PAGE} ids.");
        return Err(Error::invalid_value("task_ids", message));
    }
    let tasks = state.cancel_each(ids, &reason).await?;
    Ok(json(StatusCode::OK, &CancelledList { tasks }))
}
