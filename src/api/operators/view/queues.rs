//! Queues and the counts of what waits in them.

use serde::Serialize;
use utoipa::ToSchema;

use super::super::COUNTED;
use super::{RateView, RouteView, time};
use crate::store::queues::{Counted, Declaration, Held, Queue};

/// A count that is exact up to 10,000, or to the `count_to` of a list.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, ToSchema)]
pub struct Count {
    /// So many tasks, or about so many.
    pub tasks: i64,
    /// There are more than that, and their number is an estimate by the database's statistics.
    pub estimated: bool,
}

impl Count {
    pub(super) fn of(counted: Counted) -> Self {
        Self::up_to(COUNTED, counted)
    }

    /// Of a count that went on to the first task beyond this number.
    pub(in crate::api) fn up_to(most: i64, counted: Counted) -> Self {
        let Some(estimate) = counted.estimate.filter(|_| counted.tasks > most) else {
            return Self {
                tasks: counted.tasks,
                estimated: false,
            };
        };
        Self {
            tasks: estimate.max(counted.tasks),
            estimated: true,
        }
    }
}

impl std::fmt::Display for Count {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let about = if self.estimated { "about " } else { "" };
        write!(f, "{about}{}", self.tasks)
    }
}

/// A route that is known.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, ToSchema)]
pub struct QueueView {
    /// The route.
    #[serde(flatten)]
    pub route: RouteView,
    /// Whether somebody has declared it.
    pub declared: bool,
    /// `wait` or `strict`.
    pub unserved: String,
    /// Whether a pause covers it.
    pub paused: bool,
    /// Its tasks that may be claimed at the same time over all replicas.
    #[schema(required)]
    pub max_in_flight: Option<i32>,
    /// Its tasks that may start in a time; the rate of its namespace may put them off too.
    #[serde(flatten)]
    pub rate: RateView,
    /// Its tasks with one concurrency key that are let go at a time.
    pub key_limit: i32,
    /// How many of them may start in a time, such as `5/s`.
    #[schema(required)]
    pub key_rate: Option<String>,
    /// How many of them may start at once.
    #[schema(required)]
    pub key_burst: Option<i32>,
    /// `skip` or `stop`: what a dead letter at the head of a concurrency key does.
    pub on_dead_key: String,
    /// Due tasks.
    pub ready: Count,
    /// Tasks that are not due yet.
    pub later: Count,
    /// Tasks that stand outside of the line.
    pub held: HeldView,
    /// Tasks that a replica has.
    pub claimed: i64,
    /// Milliseconds since the first of the due ones was due.
    #[schema(required)]
    pub oldest_ms: Option<u64>,
    /// Why nobody serves it, where that has been judged.
    #[schema(required)]
    pub unserved_reason: Option<String>,
    /// Since when.
    #[schema(required)]
    pub unserved_since: Option<String>,
}

/// Tasks that stand outside of the line, by what holds them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, ToSchema)]
pub struct HeldView {
    /// Their workflow is paused.
    pub workflow_paused: i64,
    /// Other tasks with their concurrency key are before them.
    pub key_busy: i64,
    /// They are throttled.
    pub throttled: i64,
}

impl std::fmt::Display for HeldView {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let counts = [
            (self.workflow_paused, "workflow paused"),
            (self.key_busy, "key busy"),
            (self.throttled, "throttled"),
        ];
        let counts = counts.iter().filter(|(tasks, _)| *tasks > 0);
        let counts: Vec<String> = counts
            .map(|(tasks, why)| format!("{tasks} {why}"))
            .collect();
        f.write_str(&counts.join(", "))
    }
}

impl From<Held> for HeldView {
    fn from(held: Held) -> Self {
        Self {
            workflow_paused: held.workflow,
            key_busy: held.key,
            throttled: held.throttle,
        }
    }
}

impl QueueView {
    /// Of a queue whose waiting tasks were counted up to the first one beyond `count_to`.
    pub(in crate::api) fn new(queue: Queue, count_to: i64) -> Self {
        let (reason, since) = queue.unserved_since.unzip();
        let oldest = queue.oldest.map(|oldest| oldest.as_millis());
        Self {
            route: RouteView {
                namespace: queue.namespace,
                task_queue: queue.task_queue,
                task_type: queue.task_type,
                node: queue.node,
            },
            declared: queue.declared,
            unserved: queue.unserved,
            paused: queue.paused,
            max_in_flight: queue.max_in_flight,
            rate: RateView::new(queue.rate, queue.throttled_until),
            key_limit: queue.key_limit,
            key_rate: queue.key_rate.map(|rate| rate.to_string()),
            key_burst: queue.key_rate.map(|rate| rate.burst()),
            on_dead_key: queue.on_dead_key,
            ready: Count::up_to(count_to, queue.ready),
            later: Count::up_to(count_to, queue.later),
            held: queue.held.into(),
            claimed: queue.claimed,
            oldest_ms: oldest.map(|ms| u64::try_from(ms).unwrap_or(u64::MAX)),
            unserved_reason: reason,
            unserved_since: since.map(time),
        }
    }
}

/// The queue that is declared now.
#[derive(Serialize, ToSchema)]
pub struct DeclaredView {
    namespace: String,
    task_queue: String,
    task_type: String,
    #[schema(required)]
    node: Option<String>,
    declared: bool,
}

impl From<Declaration> for DeclaredView {
    fn from(route: Declaration) -> Self {
        Self {
            namespace: route.namespace.unwrap_or_else(|| "default".to_owned()),
            task_queue: route.task_queue,
            task_type: route.task_type,
            node: route.node,
            declared: true,
        }
    }
}
