//! One worker's session: what it serves, and the way to it.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use crate::domain::scope::{Scope, Transport};
use crate::proto::worker::{DispatcherFrame, dispatcher_frame::Frame};

/// One worker stream. A worker that reconnects gets a new one, so a late close can't evict it.
pub type SessionId = u64;

/// What a worker said of itself when it registered.
#[derive(Clone, Debug)]
pub struct Profile {
    /// Made by the dispatcher, new for every registration.
    pub worker_id: String,
    /// A name for people.
    pub identity: String,
    /// What it serves.
    pub scope: Scope,
    /// What it was built from, in its own words.
    pub build_id: String,
    /// The door that it came in by.
    pub transport: Transport,
    /// Tasks at the same time.
    pub slots: u32,
    /// Bytes in the largest frame that it takes, as frames are behind its door.
    pub max_frame_bytes: usize,
}

/// The way to one connected worker. Clones lead to the same stream.
#[derive(Clone, Debug)]
pub struct Session {
    /// This stream.
    pub id: SessionId,
    outbound: mpsc::Sender<DispatcherFrame>,
    end: CancellationToken,
    owed: Arc<AtomicUsize>,
}

impl Session {
    /// The way to a worker whose stream is fed from `outbound` and ends when `end` is cancelled.
    #[must_use]
    pub fn new(
        id: SessionId,
        outbound: mpsc::Sender<DispatcherFrame>,
        end: CancellationToken,
    ) -> Self {
        Self {
            id,
            outbound,
            end,
            owed: Arc::default(),
        }
    }

    /// Queues a frame for the stream. False: the stream has ended, or its reader is so far behind that it is
    /// ended now; the frame will not arrive.
    pub fn push(&self, frame: Frame) -> bool {
        // Its deliveries have been collected, or will be right away: what is queued now would be in neither.
        if self.end.is_cancelled() {
            return false;
        }
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

    /// An answer that the worker is to get.
    #[must_use]
    pub fn reply(&self) -> Reply {
        self.owed.fetch_add(1, Ordering::Relaxed);
        Reply {
            session: self.clone(),
        }
    }

    /// Whether answers to this worker are still out.
    #[must_use]
    pub fn owes(&self) -> bool {
        self.owed.load(Ordering::Relaxed) > 0
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

/// An answer that is owed to a worker until this is dropped: one that has nothing left to do is not sent away before.
#[derive(Debug)]
pub struct Reply {
    session: Session,
}

impl Reply {
    /// Where the answer goes.
    #[must_use]
    pub fn session(&self) -> &Session {
        &self.session
    }
}

impl Clone for Reply {
    fn clone(&self) -> Self {
        self.session.reply()
    }
}

impl Drop for Reply {
    fn drop(&mut self) {
        self.session.owed.fetch_sub(1, Ordering::Relaxed);
    }
}
