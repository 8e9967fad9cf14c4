//! Concurrency keys that dead letters stop.

use serde::Serialize;
use utoipa::ToSchema;

use super::{RouteView, time};
use crate::store::keys::Stopped;

/// A dead letter that stops its key.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, ToSchema)]
pub struct StoppedKeyView {
    /// The route of the dead task.
    #[serde(flatten)]
    pub route: RouteView,
    /// The key.
    pub concurrency_key: String,
    /// The letter: redriven, discarded, or passed over by resuming the key, it lets the key go on.
    pub letter_id: String,
    /// Why it is dead, in a word.
    pub error_class: String,
    /// Since when.
    pub since: String,
}

impl From<Stopped> for StoppedKeyView {
    fn from(stopped: Stopped) -> Self {
        Self {
            route: RouteView {
                namespace: stopped.namespace,
                task_queue: stopped.task_queue,
                task_type: stopped.task_type,
                node: stopped.node,
            },
            concurrency_key: stopped.key.unwrap_or_default(),
            letter_id: stopped.letter.to_string(),
            error_class: stopped.error_class,
            since: time(stopped.since),
        }
    }
}

/// What resuming a key came to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, ToSchema)]
pub struct ResumedKeyView {
    /// Whether anything had stopped it.
    pub was_stopped: bool,
    /// Dead letters that stop it no longer.
    pub letters: i32,
}

impl ResumedKeyView {
    pub(in crate::api) fn new(letters: i32) -> Self {
        Self {
            was_stopped: letters > 0,
            letters,
        }
    }
}
