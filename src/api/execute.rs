//! Direct requests: what is valid is judged here, by the rules that `fencepost.enqueue` has, since no table is asked.
//!
//! Two rules differ. A JSON payload is passed on as it came and not in PostgreSQL's normal form, and is judged by
//! [`json::check`], which is narrower in depth and in the size of numbers; its limit in bytes is that of the text as sent.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;

use super::page::{Listing, Window};
use super::{Error, State};
use crate::dispatch::Hub;
use crate::dispatch::direct::{self, LineEntry, Reply, Request};
use crate::domain::json;

/// The longest time that a direct request may take, its wait for a worker included. Longer work is a task.
pub const LONGEST_EXECUTE: Duration = Duration::from_mins(10);
/// The time that it may take unless told.
const EXECUTE: Duration = Duration::from_secs(30);
/// Characters of a name at most.
const NAME: usize = 200;
/// Labels at most, and characters of each.
const LABELS: (usize, usize) = (32, 1_000);
/// Characters of each half of a media type at most.
const MEDIA_HALF: usize = 80;

/// A direct request as it came in; what is absent has its default.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Direct {
    /// `default`.
    pub namespace: Option<String>,
    /// Pool of workers.
    pub task_queue: String,
    /// What the worker must know how to do.
    pub task_type: String,
    /// Any worker.
    pub node: Option<String>,
    /// Opaque unless it is JSON.
    pub payload: Bytes,
    /// `application/json`.
    pub content_type: Option<String>,
    /// Free text for people.
    pub labels: HashMap<String, String>,
    /// 30 s.
    pub timeout: Option<Duration>,
}

impl State {
    /// Has a worker of this replica do it, and answers its result. Dropping the future cancels the work.
    pub async fn execute(&self, direct: Direct) -> Result<Reply, Error> {
        let hub = self.hub()?;
        let time = direct.timeout.unwrap_or(EXECUTE);
        if time.is_zero() || time > LONGEST_EXECUTE {
            let message = format!("timeout must be 1 ms to {} s.", LONGEST_EXECUTE.as_secs());
            return Err(Error::invalid_value("timeout", message));
        }
        let request = direct.judged(hub.settings.max_payload_bytes)?;
        Ok(direct::execute(hub, request, time).await?)
    }

    /// The direct requests that wait and run on this replica, in order of arrival.
    pub fn direct_requests(&self, window: &Window) -> Result<Listing<LineEntry>, Error> {
        let after = window.key::<1>()?.map(|[number]| number.parse::<u64>());
        let wrong = |_| Error::invalid_value("after", "after must be the next of another page.");
        let after = after.transpose().map_err(wrong)?.unwrap_or(0);
        let mut found = self.hub()?.direct.list();
        found.retain(|entry| entry.number > after);
        found.truncate(window.rows());
        Ok(window.cut(found, |entry| [entry.number.to_string()]))
    }

    fn hub(&self) -> Result<Arc<Hub>, Error> {
        let hub = self.hub.borrow().clone();
        hub.ok_or_else(|| {
            Error::new(
                "FP-110",
                "this replica has no connection to its database yet.",
            )
        })
    }
}

impl Direct {
    /// The request, with its defaults.
    fn judged(self, payload_limit: usize) -> Result<Request, Error> {
        let namespace = self.namespace.unwrap_or_else(|| "default".to_owned());
        let node = self.node.unwrap_or_default();
        for (field, text) in [
            ("namespace", &namespace),
            ("task_queue", &self.task_queue),
            ("task_type", &self.task_type),
        ] {
            name(field, text)?;
        }
        if !node.is_empty() {
            name("node", &node)?;
        }
        let content_type = self
            .content_type
            .unwrap_or_else(|| json::MEDIA_TYPE.to_owned());
        if !is_media_type(&content_type) {
            let message =
                "content_type must be a media type in lower case, such as application/json.";
            return Err(Error::new("FP-004", message).at("content_type"));
        }
        if self.payload.len() > payload_limit {
            let message = format!("payload has more than {payload_limit} bytes.");
            return Err(Error::new("FP-002", message).at("payload"));
        }
        if content_type == json::MEDIA_TYPE {
            json::check(&self.payload).map_err(|error| {
                let message = format!("payload is not JSON: {error}.");
                Error::new("FP-003", message).at("payload")
            })?;
        }
        labels(&self.labels)?;
        Ok(Request {
            namespace,
            task_queue: self.task_queue,
            task_type: self.task_type,
            node,
            payload: self.payload,
            content_type,
            labels: self.labels,
        })
    }
}

fn name(field: &str, text: &str) -> Result<(), Error> {
    if is_name(text) {
        return Ok(());
    }
    let message = format!("{field} must have 1 to {NAME} characters and no control characters.");
    Err(Error::new("FP-001", message).at(field))
}

/// As `fencepost.is_name`.
fn is_name(text: &str) -> bool {
    (1..=NAME).contains(&text.chars().count()) && !text.chars().any(char::is_control)
}

fn labels(labels: &HashMap<String, String>) -> Result<(), Error> {
    let fits = labels.len() <= LABELS.0
        && labels.iter().all(|(label, text)| {
            is_name(label) && text.chars().count() <= LABELS.1 && !text.contains('\0')
        });
    if fits {
        return Ok(());
    }
    let message = format!(
        "labels must be an object of at most {} strings of up to {} characters.",
        LABELS.0, LABELS.1
    );
    Err(Error::new("FP-008", message).at("labels"))
}

/// As the rule of `fencepost.check_tasks`: `type/subtype`, then parameters.
fn is_media_type(text: &str) -> bool {
    let half = |half: &str| {
        (1..=MEDIA_HALF).contains(&half.len())
            && half.bytes().all(|byte| {
                matches!(byte, b'a'..=b'z' | b'0'..=b'9') || b"!#$&^_.+-".contains(&byte)
            })
    };
    let word = |text: &str, more: &[u8]| {
        !text.is_empty()
            && text
                .bytes()
                .all(|byte| byte.is_ascii_alphanumeric() || more.contains(&byte))
    };
    let mut parts = text.split(';');
    let essence = parts.next().and_then(|essence| essence.split_once('/'));
    essence.is_some_and(|(kind, subtype)| half(kind) && half(subtype))
        && parts.all(|parameter| {
            let parameter = parameter.strip_prefix(' ').unwrap_or(parameter);
            parameter
                .split_once('=')
                .is_some_and(|(key, value)| word(key, b"_-") && word(value, b"_.-"))
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn direct() -> Direct {
        Direct {
            task_queue: "q".into(),
            task_type: "t".into(),
            payload: Bytes::from_static(b"{}"),
            ..Direct::default()
        }
    }

    fn fault(edit: impl FnOnce(&mut Direct)) -> Option<(&'static str, Option<String>)> {
        let mut edited = direct();
        edit(&mut edited);
        let judged = edited.judged(10);
        judged.err().map(|error| (error.code.code, error.field))
    }

    #[test]
    fn each_field_is_judged() {
        let at = |code, field: &str| Some((code, Some(field.to_owned())));
        assert_eq!(fault(|_| ()), None);
        assert_eq!(
            fault(|d| d.namespace = Some(String::new())),
            at("FP-001", "namespace")
        );
        assert_eq!(fault(|d| d.task_queue.clear()), at("FP-001", "task_queue"));
        assert_eq!(
            fault(|d| d.task_type = "x".repeat(201)),
            at("FP-001", "task_type")
        );
        assert_eq!(fault(|d| d.task_type = "é".repeat(200)), None);
        assert_eq!(
            fault(|d| d.node = Some("a\u{85}".into())),
            at("FP-001", "node")
        );
        assert_eq!(
            fault(|d| d.payload = Bytes::from_static(b"{")),
            at("FP-003", "payload")
        );
        assert_eq!(
            fault(|d| d.payload = Bytes::from_static(b"\"123456789\"")),
            at("FP-002", "payload")
        );
        assert_eq!(
            fault(|d| {
                d.payload = Bytes::from_static(b"{");
                d.content_type = Some("text/plain; charset=utf-8".into());
            }),
            None
        );
        assert_eq!(
            fault(|d| drop(d.labels.insert("a".into(), "x".repeat(1001)))),
            at("FP-008", "labels")
        );
        assert_eq!(
            fault(|d| d.labels = (0..33).map(|n| (n.to_string(), String::new())).collect()),
            at("FP-008", "labels")
        );
    }

    #[test]
    fn media_types_are_those_of_the_database() {
        for good in [
            "a/b",
            "application/vnd.x+json",
            "text/plain;charset=utf-8",
            "text/plain; a=b; C=D.e",
        ] {
            assert!(is_media_type(good), "{good}");
        }
        for bad in [
            "",
            "a",
            "/",
            "a/",
            "A/b",
            "a/b/c",
            "a/b;",
            "a/b; c",
            "a/b;  c=d",
            "a/b; c=",
            "a b/c",
            &format!("a/{}", "b".repeat(81)),
        ] {
            assert!(!is_media_type(bad), "{bad}");
        }
    }
}
