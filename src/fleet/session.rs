//! One worker's session: what it serves, and the way to it.

use std::collections::BTreeSet;

use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use crate::domain::route::Route;
use crate::proto::worker::{DispatcherFrame, dispatcher_frame::Frame};

/// One worker stream. A worker that reconnects gets a new one, so a late close can't evict it.
pub type SessionId = u64;

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
    /// Whether tasks of this route may go to workers of this scope.
    #[must_use]
    pub fn serves(&self, route: &Route) -> bool {
        let known = match &self.namespaces {
            Namespaces::All => true,
            Namespaces::Only(names) => names.contains(&route.namespace),
        };
        known
            && self.task_queue == route.task_queue
            && self.task_types.contains(&route.task_type)
            && (route.node.is_empty() || route.node == self.node)
    }
}

/// What a worker said of itself when it registered.
#[derive(Clone, Debug)]
pub struct Profile {
    /// Made by the dispatcher, new for every registration.
    pub worker_id: String,
    /// A name for people.
    pub identity: String,
    /// What it serves.
    pub scope: Scope,
    /// Tasks at the same time.
    pub slots: u32,
    /// Bytes in the largest frame that it takes.
    pub max_frame_bytes: usize,
}

/// The way to one connected worker. Clones lead to the same stream.
#[derive(Clone, Debug)]
pub struct Session {
    /// This stream.
    pub id: SessionId,
    outbound: mpsc::Sender<DispatcherFrame>,
    end: CancellationToken,
}

impl Session {
    /// The way to a worker whose stream is fed from `outbound` and ends when `end` is cancelled.
    #[must_use]
    pub fn new(
        id: SessionId,
        outbound: mpsc::Sender<DispatcherFrame>,
        end: CancellationToken,
    ) -> Self {
        Self { id, outbound, end }
    }

    /// Queues a frame for the stream. False: the stream has ended, or its reader is so far behind that it is
    /// ended now; the frame will not arrive.
    pub fn push(&self, frame: Frame) -> bool {
        let sent = self
            .outbound
            .try_send(DispatcherFrame { frame: Some(frame) });
        if matches!(sent, Err(mpsc::error::TrySendError::Full(_))) {
            tracing::warn!(
                session = self.id,
                "worker reads too slowly: its stream is ended"
            );
            self.end.cancel();
        }
        sent.is_ok()
    }

    /// Ends the stream.
    pub fn end(&self) {
        self.end.cancel();
    }

    /// Fires when the stream is to end.
    #[must_use]
    pub fn ended(&self) -> &CancellationToken {
        &self.end
    }
}
