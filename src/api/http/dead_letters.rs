//! `/v1/dead-letters` and `/v1/redrives`.

use axum::extract::{Path, Request, State as Extract};
use axum::http::{StatusCode, Uri};
use axum::response::Response;
use bytes::Bytes;
use chrono::{DateTime, Utc};
use serde::Serialize;
use serde_json::{Map, Value};
use utoipa::ToSchema;

use super::body::Members;
use super::operators::one_object;
use super::tasks::{number, parameters, typed};
use super::{NoParameters, json, read_body, read_bytes};
use crate::api::dead_letters::{AnswerView, LetterLineView, LetterView, RedriveView, Started};
use crate::api::{Error, State, duration};
use crate::domain::id::TaskId;
use crate::store::dead_letters::{Choice, Position};
use crate::store::redrives::Plan;

/// A page of dead letters.
#[derive(Serialize, ToSchema)]
pub(super) struct LettersPage {
    dead_letters: Vec<LetterLineView>,
    /// Where the next page begins; null at the end.
    #[schema(required)]
    next: Option<String>,
}

/// What became of each letter that was named.
#[derive(Serialize, ToSchema)]
pub(super) struct RedriveAnswers {
    dead_letters: Vec<AnswerView>,
}

/// What a discard has come to; `more`: repeat the call.
#[derive(Serialize, ToSchema)]
pub(super) struct DiscardedView {
    discarded: i64,
    more: bool,
}

/// A page of redrives.
#[derive(Serialize, ToSchema)]
pub(super) struct RedrivesPage {
    redrives: Vec<RedriveView>,
    /// Where the next page begins; null at the end.
    #[schema(required)]
    next: Option<String>,
}

/// Lines of a list unless told.
const PAGE: u32 = 100;

/// `GET /v1/dead-letters`: filters as parameters, `before`, `limit`; the last to die first. `next` is the `before` of
/// the next page, and null at the end. A page can be short, or empty, and not be the last.
pub(super) async fn list(Extract(state): Extract<State>, uri: Uri) -> Result<Response, Error> {
    let mut filter = Map::new();
    let (mut before, mut limit) = (None, PAGE);
    for (name, value) in parameters(&uri)? {
        match name.as_str() {
            "before" => before = Some(position(&value)?),
            "limit" => limit = number("limit", &value)?,
            _ => {
                let (name, value) = filter_member(name, value)?;
                filter.insert(name, value);
            }
        }
    }
    let filter = Value::from(filter).to_string().into_bytes();
    let page = state.dead_letters(filter, before, limit).await?;
    let view = LettersPage {
        dead_letters: page.letters.into_iter().map(Into::into).collect(),
        next: page
            .before
            .map(|(died, id)| format!("{}-{id}", died.timestamp_micros())),
    };
    Ok(json(StatusCode::OK, &view))
}

/// A parameter as a member of a filter, where durations are milliseconds and truth is no text.
fn filter_member(name: String, value: String) -> Result<(String, Value), Error> {
    Ok(match name.as_str() {
        "namespace" | "task_queue" | "task_type" | "node" | "cause" | "error_class"
        | "dead_before" | "dead_after" => (name, value.into()),
        "older_than" | "newer_than" => {
            let span = duration::span(&name, &value)?;
            let ms = u64::try_from(span.as_millis()).unwrap_or(u64::MAX);
            (format!("{name}_ms"), ms.into())
        }
        "redriven" | "judged" => match value.parse::<bool>() {
            Ok(value) => (name, value.into()),
            Err(_) => {
                let message = format!("{name} must be true or false.");
                return Err(Error::invalid_value(&name, message));
            }
        },
        _ => return Err(Error::unknown_field(&name)),
    })
}

fn position(text: &str) -> Result<Position, Error> {
    let parts = text.split_once('-').and_then(|(died, id)| {
        let died = DateTime::<Utc>::from_timestamp_micros(died.parse().ok()?)?;
        Some((died, id.parse().ok()?))
    });
    parts.ok_or_else(|| Error::invalid_value("before", "before must be the next of another page."))
}

/// `GET /v1/dead-letters/{id}?payload=true`, where operators may see payloads.
pub(super) async fn read(
    Extract(state): Extract<State>,
    Path(id): Path<String>,
    uri: Uri,
) -> Result<Response, Error> {
    let mut payload = false;
    for (name, value) in parameters(&uri)? {
        match name.as_str() {
            "payload" => {
                payload = value.parse().map_err(|_| {
                    Error::invalid_value("payload", "payload must be true or false.")
                })?;
            }
            _ => return Err(Error::unknown_field(&name)),
        }
    }
    if payload {
        state.may_show_payloads()?;
    }
    let letter = state.dead_letter(number("task_id", &id)?, payload).await?;
    Ok(json(StatusCode::OK, &LetterView::from(letter)))
}

/// What a change is about: letters by their ids, or by a filter.
enum Target {
    Ids(Vec<TaskId>),
    Matching(Choice),
}

/// Takes `ids`, `filter` and `all` out of the members of a body.
fn target(members: &mut Members) -> Result<Target, Error> {
    let mut take = |wanted: &str| {
        let at = members.iter().position(|(name, _)| name == wanted)?;
        Some(members.remove(at).1)
    };
    let (ids, filter, all) = (take("ids"), take("filter"), take("all"));
    match (ids, filter) {
        (Some(_), Some(_)) => Err(Error::invalid_value(
            "ids",
            "ids and filter exclude each other.",
        )),
        (Some(ids), None) => {
            if all.is_some() {
                let message = "all goes with a filter only.";
                return Err(Error::invalid_value("all", message));
            }
            let ids: Vec<String> =
                typed("ids", &ids, "a list of ids, which are strings")?.unwrap_or_default();
            let ids: Result<Vec<TaskId>, Error> = ids.iter().map(|id| number("ids", id)).collect();
            Ok(Target::Ids(ids?))
        }
        (None, filter) => {
            let all = match all {
                Some(all) => typed("all", &all, "true or false")?.unwrap_or(false),
                None => false,
            };
            // Without either: everything, which needs `all`.
            let filter = filter.unwrap_or(Bytes::from_static(b"{}")).to_vec();
            Ok(Target::Matching(Choice { filter, all }))
        }
    }
}

/// `POST /v1/dead-letters/redrive`: ids are redriven at once and answered one by one; a filter starts a redrive.
pub(super) async fn redrive(
    Extract(state): Extract<State>,
    request: Request,
) -> Result<Response, Error> {
    let mut members = one_object(&read_body(&state, request).await?)?;
    let target = target(&mut members)?;
    let by_ids = matches!(target, Target::Ids(_));
    let choice = |choice| Plan {
        choice,
        rate: None,
        canary: None,
        canary_share: None,
        forced: false,
        clear_pin: false,
        by: String::new(),
        reason: String::new(),
    };
    let (ids, mut plan) = match target {
        Target::Ids(ids) => (
            ids,
            choice(Choice {
                filter: Vec::new(),
                all: false,
            }),
        ),
        Target::Matching(matching) => (Vec::new(), choice(matching)),
    };
    let mut dry_run = false;
    for (name, value) in members {
        let truth = |value: &Bytes| typed::<bool>(&name, value, "true or false");
        let text = |value: &Bytes| typed::<String>(&name, value, "a string");
        match name.as_str() {
            "forced" => plan.forced = truth(&value)?.unwrap_or(false),
            "clear_pin" => plan.clear_pin = truth(&value)?.unwrap_or(false),
            "rate" | "canary" | "canary_share" | "dry_run" | "by" | "reason" if by_ids => {
                let message = format!("{name} goes with a filter only.");
                return Err(Error::invalid_value(&name, message));
            }
            "rate" => plan.rate = typed(&name, &value, "a number")?,
            "canary" => plan.canary = typed(&name, &value, "a whole number")?,
            "canary_share" => plan.canary_share = typed(&name, &value, "a number")?,
            "dry_run" => dry_run = truth(&value)?.unwrap_or(false),
            "by" => plan.by = text(&value)?.unwrap_or_default(),
            "reason" => plan.reason = text(&value)?.unwrap_or_default(),
            _ => return Err(Error::unknown_field(&name)),
        }
    }
    if by_ids {
        let answers = state.redrive(ids, plan.forced, plan.clear_pin).await?;
        let view = RedriveAnswers {
            dead_letters: answers.into_iter().map(Into::into).collect(),
        };
        return Ok(json(StatusCode::OK, &view));
    }
    Ok(match state.start_redrive(plan, dry_run).await? {
        Started::Counted(letters) => json(StatusCode::OK, &Counted { letters }),
        Started::Running(redrive) => json(StatusCode::CREATED, &RedriveView::from(*redrive)),
    })
}

/// What a dry run has counted.
#[derive(Serialize, ToSchema)]
pub(super) struct Counted {
    letters: i64,
}

/// `POST /v1/dead-letters/discard`
pub(super) async fn discard(
    Extract(state): Extract<State>,
    request: Request,
) -> Result<Response, Error> {
    let mut members = one_object(&read_body(&state, request).await?)?;
    let target = target(&mut members)?;
    let mut dry_run = false;
    for (name, value) in members {
        match name.as_str() {
            "dry_run" if matches!(target, Target::Matching(_)) => {
                dry_run = typed(&name, &value, "true or false")?.unwrap_or(false);
            }
            "dry_run" => {
                let message = "dry_run goes with a filter only.";
                return Err(Error::invalid_value("dry_run", message));
            }
            _ => return Err(Error::unknown_field(&name)),
        }
    }
    let done = match target {
        Target::Ids(ids) => state.discard(ids).await?,
        Target::Matching(choice) if dry_run => {
            let letters = state.count_dead_letters(choice).await?;
            return Ok(json(StatusCode::OK, &Counted { letters }));
        }
        Target::Matching(choice) => state.discard_matching(choice).await?,
    };
    let view = DiscardedView {
        discarded: done.letters,
        more: done.more,
    };
    Ok(json(StatusCode::OK, &view))
}

/// `GET /v1/redrives?before=&limit=`: the newest first.
pub(super) async fn redrives(Extract(state): Extract<State>, uri: Uri) -> Result<Response, Error> {
    let (mut before, mut limit) = (None, PAGE);
    for (name, value) in parameters(&uri)? {
        match name.as_str() {
            "before" => before = Some(number("before", &value)?),
            "limit" => limit = number("limit", &value)?,
            _ => return Err(Error::unknown_field(&name)),
        }
    }
    let found = state.redrives(before, limit).await?;
    let full = u32::try_from(found.len()).is_ok_and(|found| found == limit);
    let next = found.last().filter(|_| full);
    let view = RedrivesPage {
        next: next.map(|last| last.id.to_string()),
        redrives: found.into_iter().map(Into::into).collect(),
    };
    Ok(json(StatusCode::OK, &view))
}

/// `GET /v1/redrives/{id}`
pub(super) async fn read_redrive(
    Extract(state): Extract<State>,
    Path(id): Path<String>,
    _: NoParameters,
) -> Result<Response, Error> {
    let redrive = state.get_redrive(number("redrive_id", &id)?).await?;
    Ok(json(StatusCode::OK, &RedriveView::from(redrive)))
}

/// `POST /v1/redrives/{id}/stop|resume`; a stop takes `{"reason": "…"}` or no body.
pub(super) async fn change_redrive(
    Extract(state): Extract<State>,
    Path((id, action)): Path<(String, String)>,
    request: Request,
) -> Result<Response, Error> {
    let stops = match action.as_str() {
        "stop" => true,
        "resume" => false,
        _ => {
            let message = format!("there is nothing at {}.", request.uri().path());
            return Err(Error::new("FP-106", message));
        }
    };
    let id = number("redrive_id", &id)?;
    let body = read_bytes(&state, request).await?;
    let mut reason = String::new();
    if !body.trim_ascii().is_empty() {
        for (name, value) in one_object(&body)? {
            match name.as_str() {
                "reason" if stops => {
                    reason = typed(&name, &value, "a string")?.unwrap_or_default();
                }
                _ => return Err(Error::unknown_field(&name)),
            }
        }
    }
    let redrive = if stops {
        state.stop_redrive(id, reason).await?
    } else {
        state.resume_redrive(id).await?
    };
    Ok(json(StatusCode::OK, &RedriveView::from(redrive)))
}
