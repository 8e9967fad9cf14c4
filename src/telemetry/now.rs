//! What only the moment of a scrape knows, as plain data.

use std::sync::Arc;
use std::time::Duration;

use crate::domain::scope::Transport;

/// One scrape's view.
#[derive(Clone, Debug, Default)]
pub struct Now {
    /// This replica.
    pub replica: ReplicaNow,
    /// Failed calls to the database, by class of SQLSTATE.
    pub faults: Vec<(&'static str, u64)>,
    /// The last good read of the database; none before the first.
    pub database: Option<Arc<DatabaseNow>>,
    /// How long ago that began.
    pub database_age: Option<Duration>,
}

/// This replica.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ReplicaNow {
    /// Whether `/readyz` says yes.
    pub ready: bool,
    /// It takes nothing new.
    pub draining: bool,
    /// Connected workers, by door.
    pub workers: Vec<(Transport, u64)>,
    /// Slots of all workers.
    pub slots: u64,
    /// Slots that could take a task now.
    pub slots_free: u64,
    /// Slots of cancelled tasks that their workers go on with.
    pub slots_stuck: u64,
    /// Deliveries of this replica.
    pub in_flight: u64,
    /// Reports that are not settled yet.
    pub backlog: u64,
    /// Connections at most, open, in use, and callers that wait for one.
    pub pool: [u64; 4],
}

/// What a read of the database found.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct DatabaseNow {
    /// Routes, in any order.
    pub queues: Vec<QueueNow>,
    /// Namespaces with a quota.
    pub namespaces: Vec<NamespaceNow>,
    /// Dead letters by queue.
    pub letters: Vec<LettersNow>,
    /// Replicas that beat.
    pub replicas: u64,
    /// Replicas that are silent and that nobody has declared dead.
    pub silent: u64,
    /// Until ids run out of partitions.
    pub partitions_ahead: f64,
    /// Since the oldest open snapshot was taken, in seconds, and the transactions since then.
    pub snapshot: (f64, f64),
}

/// One route and what waits there.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct QueueNow {
    /// Namespace, task queue, task type.
    pub name: [String; 3],
    /// Due tasks.
    pub ready: i64,
    /// Tasks that are not due yet.
    pub later: i64,
    /// Tasks outside of the line: their workflow is paused, their key is busy, they are throttled.
    pub held: [i64; 3],
    /// Tasks that a replica has.
    pub claimed: i64,
    /// Since the first of the due ones was due.
    pub oldest: Duration,
    /// `ready` or `later` is an estimate.
    pub estimated: bool,
    /// A pause covers it.
    pub paused: bool,
    /// Why nobody serves it, where that has been judged.
    pub unserved: Option<String>,
    /// Its tasks that may be claimed at the same time.
    pub quota: Option<i64>,
}

impl QueueNow {
    /// Tasks that are there.
    pub(super) fn size(&self) -> i64 {
        self.ready + self.later + self.claimed + self.held.iter().sum::<i64>()
    }
}

/// A namespace with a quota.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NamespaceNow {
    /// Its name.
    pub name: String,
    /// What is claimed by all replicas.
    pub used: i64,
    /// What may be.
    pub quota: i64,
}

/// Dead letters of one queue.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LettersNow {
    /// Namespace and task queue.
    pub name: [String; 2],
    /// Letters that nobody has redriven.
    pub letters: i64,
    /// There may be more.
    pub more: bool,
}
