//! Where tasks go: an interned (namespace, task queue, task type, node) with its settings.

use std::time::Duration;

use super::id::RouteId;
use super::placement::Placement;

/// What becomes of due tasks while no live worker of any replica serves their route.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Unserved {
    /// They wait, visibly, and spend no attempt.
    #[default]
    Wait,
    /// Each spends an attempt per backoff interval.
    Strict,
}

/// What an operator has paused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Paused {
    /// The whole namespace.
    Namespace,
    /// This route.
    Route,
}

/// One route and what it (or its namespace) sets.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Route {
    /// Its number in `live`.
    pub id: RouteId,
    /// Tenant.
    pub namespace: String,
    /// Pool of workers.
    pub task_queue: String,
    /// What the worker must know how to do.
    pub task_type: String,
    /// Empty for none; else only workers on that node may serve it.
    pub node: String,
    /// Where its namespace wants its tasks to run.
    pub placement: Placement,
    /// What becomes of its tasks while nobody serves them.
    pub unserved: Unserved,
    /// Its namespace takes tasks for declared queues only, and this is none.
    pub undeclared: bool,
    /// Whether, and where, it is paused.
    pub paused: Option<Paused>,
    /// Tries before a dead letter.
    pub max_attempts: Option<u32>,
    /// First wait between tries.
    pub backoff_base: Option<Duration>,
    /// Growth of the wait.
    pub backoff_multiplier: Option<f64>,
    /// Longest wait.
    pub backoff_max: Option<Duration>,
}
