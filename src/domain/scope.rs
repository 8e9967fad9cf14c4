//! What workers serve, and how many of them there are: what replicas know of each other's workers.

use std::collections::BTreeSet;

use super::id::DispatcherId;
use super::placement::{Nodes, Placement};
use super::route::Route;

/// The namespaces that a worker serves.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Namespaces {
    /// All.
    All,
    /// These.
    Only(BTreeSet<String>),
}

/// What a worker serves: workers of one scope form a slot group.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Scope {
    /// Tenants.
    pub namespaces: Namespaces,
    /// Its pool.
    pub task_queue: String,
    /// What it knows how to do.
    pub task_types: BTreeSet<String>,
    /// The node that it runs on; empty for none.
    pub node: String,
}

impl Scope {
    /// Whether tasks of this route may go to workers of this scope, if they run on one of these nodes.
    #[must_use]
    pub fn serves(&self, route: &Route, nodes: Nodes<'_>) -> bool {
        nodes.admit(&self.node) && self.knows(route)
    }

    /// Whether workers of this scope know how to do tasks of this route, wherever they run.
    #[must_use]
    pub fn knows(&self, route: &Route) -> bool {
        self.is_of_queue(route) && self.task_types.contains(&route.task_type)
    }

    /// Whether workers of this scope are of this route's namespace and queue, whatever they know.
    #[must_use]
    pub fn is_of_queue(&self, route: &Route) -> bool {
        let known = match &self.namespaces {
            Namespaces::All => true,
            Namespaces::Only(names) => names.contains(&route.namespace),
        };
        known && self.task_queue == route.task_queue
    }
}

/// The door that a worker came in by. Its tasks go out by the same one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Transport {
    /// Frames in Protobuf.
    Grpc,
    /// Frames in JSON.
    WebSocket,
}

impl Transport {
    /// Every door.
    pub const ALL: [Self; 2] = [Self::Grpc, Self::WebSocket];

    /// Its name, for people.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Grpc => "grpc",
            Self::WebSocket => "websocket",
        }
    }
}

/// Bytes in the largest frame that a worker behind each door takes; 0 where there is none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FrameLimits {
    /// Of frames in Protobuf.
    pub grpc: usize,
    /// Of frames in JSON.
    pub websocket: usize,
}

impl FrameLimits {
    /// Behind one door.
    #[must_use]
    pub fn behind(self, door: Transport) -> usize {
        match door {
            Transport::Grpc => self.grpc,
            Transport::WebSocket => self.websocket,
        }
    }

    /// Takes in one worker more.
    pub fn widen(&mut self, door: Transport, bytes: usize) {
        let limit = match door {
            Transport::Grpc => &mut self.grpc,
            Transport::WebSocket => &mut self.websocket,
        };
        *limit = bytes.max(*limit);
    }
}

/// The workers of one scope on one replica.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Group {
    /// What they serve.
    pub scope: Scope,
    /// How many there are, but for those that drain or are cordoned.
    pub workers: u32,
    /// How many of them are not proven to be reachable.
    pub unreachable: u32,
    /// Slots of the reachable ones.
    pub slots: u32,
    /// Free ones of these.
    pub free: u32,
    /// The largest frames that they take.
    pub frames: FrameLimits,
}

impl Group {
    /// Whether somebody in it can be reached.
    #[must_use]
    pub fn is_live(&self) -> bool {
        self.workers > self.unreachable
    }
}

/// A slot group of another replica.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RemoteGroup {
    /// Where.
    pub dispatcher: DispatcherId,
    /// That replica takes nothing new.
    pub draining: bool,
    /// The group, as of that replica's last beat.
    pub group: Group,
}

/// The groups of replicas that take new tasks.
pub fn staying(groups: &[RemoteGroup]) -> impl Iterator<Item = Group> {
    let staying = groups.iter().filter(|remote| !remote.draining);
    staying.map(|remote| remote.group.clone())
}

/// What an operator ordered for a worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// It takes nothing new until the order is lifted.
    Cordon,
    /// It takes nothing new, and is told to go when it has nothing left.
    Drain,
}

impl Order {
    /// Its name, as operators give it and the table has it.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Cordon => "cordon",
            Self::Drain => "drain",
        }
    }
}

/// A connected worker, for people.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WorkerState {
    /// Made by the dispatcher, new for every registration.
    pub worker_id: String,
    /// A name for people.
    pub identity: String,
    /// Empty for none.
    pub node: String,
    /// Its pool.
    pub task_queue: String,
    /// What it was built from.
    pub build_id: String,
    /// The door that it came in by.
    pub transport: &'static str,
    /// `ready`, `opening`, `unreachable`, `draining` or `cordoned`.
    pub state: &'static str,
    /// Tasks at the same time.
    pub slots: u32,
    /// Tasks in flight.
    pub busy: u32,
    /// Of these, cancelled tasks that it has not stopped within their grace.
    pub stuck: u32,
}

/// The nodes that may run tasks of this route now, by what is live here and elsewhere.
pub fn nodes(route: &Route, groups: impl Fn() -> Vec<Group>) -> Nodes<'_> {
    let preferred_live = match &route.placement {
        Placement::Prefer(nodes) => groups().iter().any(|group| {
            group.is_live() && nodes.contains(&group.scope.node) && group.scope.knows(route)
        }),
        Placement::Anywhere | Placement::Require(_) => false,
    };
    route.placement.nodes(&route.node, preferred_live)
}
