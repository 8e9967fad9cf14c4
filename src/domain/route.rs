//! Where tasks go: an interned (namespace, task queue, task type, node) with its settings.

use std::time::Duration;

use super::id::{NamespaceId, RouteId};
use super::placement::Placement;
use super::quota::Limited;

/// What becomes of due tasks while no live worker of any replica serves their route.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Unserved {
    /// They wait, visibly, and spend no attempt.
    #[default]
    Wait,
    /// Each spends an attempt per backoff interval.
    Strict,
}

/// One route and what it (or its namespace) sets.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Route {
    /// Its number in `live`.
    pub id: RouteId,
    /// The number of its namespace.
    pub namespace_id: NamespaceId,
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
    /// The share of its namespace in the slots, relative to others with due work; 0 counts as 1.
    pub weight: u32,
    /// Tasks of its namespace that may be claimed at the same time.
    pub namespace_quota: Option<i32>,
    /// Its own tasks that may be.
    pub route_quota: Option<i32>,
    /// Its namespace starts so many tasks in a time only.
    pub namespace_rated: bool,
    /// It does itself.
    pub route_rated: bool,
    /// Tries before a dead letter.
    pub max_attempts: Option<u32>,
    /// First wait between tries.
    pub backoff_base: Option<Duration>,
    /// Growth of the wait.
    pub backoff_multiplier: Option<f64>,
    /// Longest wait.
    pub backoff_max: Option<Duration>,
}

impl Route {
    /// The quotas and rates above it.
    pub fn limits(&self) -> impl Iterator<Item = Limited> {
        let namespace = self.namespace_quota.is_some() || self.namespace_rated;
        let route = self.route_quota.is_some() || self.route_rated;
        [
            namespace.then_some(Limited::Namespace(self.namespace_id)),
            route.then_some(Limited::Route(self.id)),
        ]
        .into_iter()
        .flatten()
    }

    /// Whether a quota stands above it: when one of its tasks ends, another one may start.
    #[must_use]
    pub fn has_quota(&self) -> bool {
        self.namespace_quota.is_some() || self.route_quota.is_some()
    }
}
