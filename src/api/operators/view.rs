//! What operators see, as JSON for HTTP and for `--output json`.

mod keys;
mod queues;
mod rate;

use chrono::{DateTime, SecondsFormat, Utc};
use serde::Serialize;
use serde_json::value::RawValue;
use utoipa::ToSchema;

pub use keys::{ResumedKeyView, StoppedKeyView};
pub(in crate::api) use queues::{Count, HeldView};
pub use queues::{DeclaredView, QueueView};
use rate::RateView;

use crate::api::PauseView;
use crate::domain::route::Route;
use crate::domain::verdict::{self, Reason, Verdict};
use crate::store::queues::Namespace;
use crate::store::unserved::Waiting;
use crate::store::workers::Worker;

/// Why a task is not running.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, ToSchema)]
pub struct WhyView {
    task_id: String,
    #[serde(flatten)]
    route: RouteView,
    /// The name of the first gate's answer that stops it, else `will_be_claimed`.
    pub verdict: &'static str,
    /// The same in a sentence.
    pub detail: String,
    /// What of it is paused; left out where nothing is.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub pauses: Vec<PauseView>,
    /// Since when nobody serves its route, where that has been judged.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub unserved_since: Option<String>,
    /// When a worker was last on the node that it is pinned to; left out for a task without a pin.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    pub node_seen: Option<NodeSeen>,
    /// Every gate in order.
    pub gates: Vec<GateView>,
}

/// What one gate says.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, ToSchema)]
pub struct GateView {
    /// Its name.
    pub gate: &'static str,
    /// null where an earlier gate leaves nothing to look at.
    #[schema(required)]
    pub passed: Option<bool>,
    /// What it says against the task.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub detail: Option<String>,
}

/// Where tasks go.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, ToSchema)]
pub struct RouteView {
    /// Tenant.
    pub namespace: String,
    /// Pool of workers.
    pub task_queue: String,
    /// What the worker must know how to do.
    pub task_type: String,
    /// The only node that may run it.
    #[schema(required)]
    pub node: Option<String>,
}

impl RouteView {
    /// What lists of routes go by.
    pub(in crate::api) fn key(&self) -> [String; 4] {
        [
            self.namespace.clone(),
            self.task_queue.clone(),
            self.task_type.clone(),
            self.node.clone().unwrap_or_default(),
        ]
    }
}

impl From<&Route> for RouteView {
    fn from(route: &Route) -> Self {
        Self {
            namespace: route.namespace.clone(),
            task_queue: route.task_queue.clone(),
            task_type: route.task_type.clone(),
            node: (!route.node.is_empty()).then(|| route.node.clone()),
        }
    }
}

impl WhyView {
    pub(super) fn new(
        id: i64,
        route: &Route,
        (unserved_since, node_seen): (Option<DateTime<Utc>>, Option<DateTime<Utc>>),
        stops: &[Verdict],
    ) -> Self {
        let first = stops.first().unwrap_or(&Verdict::WillBeClaimed);
        let gates = verdict::gates(stops).into_iter().map(|(gate, says)| {
            let detail = says
                .and_then(Result::err)
                .map(|stop| sentence(&stop.sentence()));
            GateView {
                gate: gate.name(),
                passed: says.map(|says| says.is_ok()),
                detail,
            }
        });
        let paused = stops.iter().find_map(|stop| match stop {
            Verdict::Paused(pauses) => Some(pauses.iter().cloned().map(PauseView::from).collect()),
            _ => None,
        });
        Self {
            task_id: id.to_string(),
            pauses: paused.unwrap_or_default(),
            route: RouteView::from(route),
            verdict: first.name(),
            detail: sentence(&first.sentence()),
            unserved_since: unserved_since.map(time),
            node_seen: NodeSeen::of(route, node_seen),
            gates: gates.collect(),
        }
    }
}

/// A capital and a full stop.
fn sentence(text: &str) -> String {
    let mut letters = text.chars();
    let first = letters.next().map(|first| first.to_uppercase().to_string());
    format!("{}{}.", first.unwrap_or_default(), letters.as_str())
}

/// When a worker was last on a node, to a minute.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(untagged)]
pub enum NodeSeen {
    /// Then.
    At(String),
    /// There never was one: null in JSON.
    Never,
}

impl NodeSeen {
    /// Of the node that the route is pinned to, if it is.
    fn of(route: &Route, seen: Option<DateTime<Utc>>) -> Option<Self> {
        let seen = || seen.map_or(Self::Never, |at| Self::At(time(at)));
        (!route.node.is_empty()).then(seen)
    }
}

pub(in crate::api) fn time(at: DateTime<Utc>) -> String {
    at.to_rfc3339_opts(SecondsFormat::Micros, true)
}

/// A route that nobody serves.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, ToSchema)]
pub struct UnservedView {
    /// The route.
    #[serde(flatten)]
    pub route: RouteView,
    /// What an operator can act on first.
    pub reason: &'static str,
    /// The same in a sentence.
    pub detail: String,
    /// Since when, where that has been judged: after a replica's death time and a worker's reconnect grace.
    #[schema(required)]
    pub since: Option<String>,
    /// When a worker was last on the node that it is pinned to; left out for a route without a pin.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    pub node_seen: Option<NodeSeen>,
    /// Due tasks.
    pub waiting: Count,
    /// Milliseconds since the first of them was due.
    pub oldest_ms: u64,
}

impl UnservedView {
    pub(super) fn new(route: &Route, reason: Reason, waiting: &Waiting) -> Self {
        Self {
            route: RouteView::from(route),
            reason: reason.name(),
            detail: sentence(reason.sentence()),
            since: waiting.since.map(time),
            node_seen: NodeSeen::of(route, waiting.node_seen),
            waiting: Count::of(waiting.tasks),
            oldest_ms: u64::try_from(waiting.oldest.as_millis()).unwrap_or(u64::MAX),
        }
    }
}

/// A namespace.
#[derive(Debug, Clone, Serialize, ToSchema)]
pub struct NamespaceView {
    /// Its name.
    pub namespace: String,
    /// Where its tasks run.
    #[schema(value_type = Option<serde_json::Value>, required)]
    pub placement: Option<Box<RawValue>>,
    /// Whether it takes tasks for declared queues only.
    pub require_declared_queues: bool,
    /// Whether it is paused.
    pub paused: bool,
    /// Its share of the fleet, relative to others.
    pub weight: i32,
    /// Tasks that may be claimed at the same time over all replicas.
    #[schema(required)]
    pub max_in_flight: Option<i32>,
    /// Tasks that may start in a time.
    #[serde(flatten)]
    pub rate: RateView,
    /// Where its dead letters are posted to.
    #[schema(required)]
    pub dead_letter_webhook: Option<String>,
    /// Whether its dead letters are notified of.
    pub dead_letter_notify: bool,
}

impl From<Namespace> for NamespaceView {
    fn from(namespace: Namespace) -> Self {
        Self {
            namespace: namespace.name,
            placement: RawValue::from_string(namespace.placement).ok(),
            require_declared_queues: namespace.require_declared_queues,
            paused: namespace.paused,
            weight: namespace.weight,
            max_in_flight: namespace.max_in_flight,
            rate: RateView::new(namespace.rate, namespace.throttled_until),
            dead_letter_webhook: namespace.webhook,
            dead_letter_notify: namespace.notify,
        }
    }
}

/// A worker, or an order for one that is away.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, ToSchema)]
pub struct WorkerView {
    /// A name for people.
    pub identity: String,
    /// `ready`, `opening`, `unreachable`, `draining`, `cordoned`, or `away`.
    pub state: String,
    /// The worker, unless it is away.
    #[serde(flatten)]
    #[schema(value_type = PresentView)]
    pub present: Option<PresentView>,
    /// What was ordered for it.
    #[schema(required)]
    pub order: Option<OrderView>,
}

/// A worker that is connected; all of it is left out for one that is away.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, ToSchema)]
pub struct PresentView {
    /// Made by the dispatcher, new for every registration.
    #[schema(required = false)]
    pub worker_id: String,
    /// Tasks at the same time.
    #[schema(required = false)]
    pub slots: i32,
    /// Tasks in flight.
    #[schema(required = false)]
    pub busy: i32,
    /// Of these, tasks that ended as cancelled because it did not stop them within their grace; each keeps its slot
    /// until the worker answers for it or its stream ends.
    #[schema(required = false)]
    pub stuck: i32,
    /// Where it runs.
    #[schema(required = false)]
    pub node: Option<String>,
    /// Its pool.
    #[schema(required = false)]
    pub task_queue: String,
    /// The door that it came in by.
    #[schema(required = false)]
    pub transport: String,
    /// What it was built from.
    #[schema(required = false)]
    pub build_id: String,
    /// The identity of its replica.
    #[schema(required = false)]
    pub dispatcher: String,
    /// The name of its replica.
    #[schema(required = false)]
    pub replica: String,
    /// Since when it is connected.
    #[schema(required = false)]
    pub since: String,
}

/// What an operator ordered.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, ToSchema)]
pub struct OrderView {
    /// `drain` or `cordon`.
    pub action: String,
    /// By whom, where they said so.
    pub by: String,
    /// Why.
    pub reason: String,
    /// When.
    pub at: String,
}

impl From<Worker> for WorkerView {
    fn from(worker: Worker) -> Self {
        let (state, present) = match worker.present {
            None => ("away".to_owned(), None),
            Some(present) => {
                let view = PresentView {
                    worker_id: present.worker_id,
                    slots: present.slots,
                    busy: present.busy,
                    stuck: present.stuck,
                    node: present.node,
                    task_queue: present.task_queue,
                    transport: present.transport,
                    build_id: present.build_id,
                    dispatcher: present.dispatcher.to_string(),
                    replica: present.replica,
                    since: present.connected_at,
                };
                (present.state, Some(view))
            }
        };
        Self {
            identity: worker.identity,
            state,
            present,
            order: worker.order.map(|order| OrderView {
                action: order.action,
                by: order.by,
                reason: order.reason,
                at: order.at,
            }),
        }
    }
}
