//! What becomes of tasks, by route.

use std::collections::HashMap;
use std::hash::Hash;
use std::sync::Arc;

use parking_lot::RwLock;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::registry::Registry;

use super::page::SHOWN;
use super::{Labels, OTHER};
use crate::domain::id::RouteId;
use crate::domain::route::Route;
use crate::domain::settlement::{Cause, Move};

/// How often each value comes up.
pub fn tally<K: Eq + Hash>(values: impl IntoIterator<Item = K>) -> HashMap<K, u64> {
    let mut counts = HashMap::new();
    for value in values {
        *counts.entry(value).or_default() += 1;
    }
    counts
}

/// The counters of one route, or of all that have none of their own.
#[derive(Debug)]
pub struct Tasks {
    /// Claimed here.
    pub claimed: Counter,
    /// Sent to a worker.
    pub delivered: Counter,
    /// Accepted by the worker.
    pub accepted: Counter,
    /// Ended as done.
    pub done: Counter,
    /// Ended as failed, with a dead letter.
    pub failed: Counter,
    /// Ended as cancelled.
    pub cancelled: Counter,
    returned: Vec<(Move, Counter)>,
    dead: Vec<(Cause, Counter)>,
}

impl Tasks {
    /// Put back to the line by this move; none for a move that ends its task.
    #[must_use]
    pub fn returned(&self, how: Move) -> Option<&Counter> {
        let found = self.returned.iter().find(|(other, _)| *other == how);
        found.map(|(_, counter)| counter)
    }

    /// Dead for this cause.
    #[must_use]
    pub fn dead(&self, cause: Cause) -> Option<&Counter> {
        let found = self.dead.iter().find(|(other, _)| *other == cause);
        found.map(|(_, counter)| counter)
    }
}

type Name = (String, String, String);

/// The routes that this process has met: the first ones have series of their own, and keep them.
#[derive(Debug)]
pub(super) struct Routes {
    families: Families,
    known: RwLock<Known>,
    other: Arc<Tasks>,
}

#[derive(Debug, Default)]
struct Known {
    by_id: HashMap<RouteId, Arc<Tasks>>,
    /// Routes to several nodes share a name.
    named: HashMap<Name, Arc<Tasks>>,
}

impl Routes {
    pub(super) fn new(registry: &mut Registry) -> Self {
        let families = Families::new(registry);
        let other = OTHER.to_owned();
        let other = Arc::new(families.tasks(&(other.clone(), other.clone(), other)));
        Self {
            families,
            known: RwLock::default(),
            other,
        }
    }

    pub(super) fn meet(&self, route: &Route) {
        if self.known.read().by_id.contains_key(&route.id) {
            return;
        }
        let mut known = self.known.write();
        let name = (
            route.namespace.clone(),
            route.task_queue.clone(),
            route.task_type.clone(),
        );
        let tasks = match known.named.get(&name) {
            Some(tasks) => Arc::clone(tasks),
            None if known.named.len() < SHOWN => {
                let tasks = Arc::new(self.families.tasks(&name));
                known.named.insert(name, Arc::clone(&tasks));
                tasks
            }
            None => Arc::clone(&self.other),
        };
        known.by_id.insert(route.id, tasks);
    }

    pub(super) fn count(
        &self,
        routes: impl IntoIterator<Item = RouteId>,
        of: impl Fn(&Tasks) -> Option<&Counter>,
    ) {
        let counts = tally(routes);
        if counts.is_empty() {
            return;
        }
        let known = self.known.read();
        for (route, tasks) in counts {
            let counter = of(known.by_id.get(&route).unwrap_or(&self.other));
            if let Some(counter) = counter {
                counter.inc_by(tasks);
            }
        }
    }
}

#[derive(Debug, Default)]
struct Families {
    claimed: Family<Labels, Counter>,
    delivered: Family<Labels, Counter>,
    accepted: Family<Labels, Counter>,
    ended: Family<Labels, Counter>,
    returned: Family<Labels, Counter>,
    dead: Family<Labels, Counter>,
}

impl Families {
    fn new(registry: &mut Registry) -> Self {
        let families = Self::default();
        let mut register = |name: &str, help: &str, family: &Family<Labels, Counter>| {
            registry.register(name, help, family.clone());
        };
        register(
            "tasks_claimed",
            "Tasks that sweeps of this replica claimed",
            &families.claimed,
        );
        register(
            "tasks_delivered",
            "Tasks that were sent to a worker",
            &families.delivered,
        );
        register(
            "tasks_accepted",
            "Tasks that their worker accepted",
            &families.accepted,
        );
        register(
            "tasks_ended",
            "Tasks whose end this replica wrote, by outcome: done, failed, cancelled",
            &families.ended,
        );
        register(
            "tasks_returned",
            "Tasks that this replica put back to the line, by move",
            &families.returned,
        );
        register(
            "tasks_dead",
            "Tasks that this replica made dead letters, by cause",
            &families.dead,
        );
        families
    }

    fn tasks(&self, (namespace, task_queue, task_type): &Name) -> Tasks {
        let labels = |more: Option<(&'static str, &str)>| {
            let mut labels = vec![
                ("namespace", namespace.clone()),
                ("task_queue", task_queue.clone()),
                ("task_type", task_type.clone()),
            ];
            labels.extend(more.map(|(name, value)| (name, value.to_owned())));
            labels
        };
        let plain = |family: &Family<Labels, Counter>| family.get_or_create_owned(&labels(None));
        let ended = |how| {
            let labels = labels(Some(("outcome", how)));
            self.ended.get_or_create_owned(&labels)
        };
        let returned = Move::ALL.into_iter().filter(|how| !how.ends());
        let returned = returned.map(|how| {
            let labels = labels(Some(("move", how.name())));
            (how, self.returned.get_or_create_owned(&labels))
        });
        let dead = Cause::ALL.into_iter().map(|cause| {
            let labels = labels(Some(("cause", cause.name())));
            (cause, self.dead.get_or_create_owned(&labels))
        });
        Tasks {
            claimed: plain(&self.claimed),
            delivered: plain(&self.delivered),
            accepted: plain(&self.accepted),
            done: ended("done"),
            failed: ended("failed"),
            cancelled: ended("cancelled"),
            returned: returned.collect(),
            dead: dead.collect(),
        }
    }
}
