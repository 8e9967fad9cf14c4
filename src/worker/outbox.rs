//! Frames on their way to the dispatcher. Sending never blocks the session, so a dispatcher that
//! stops reading cannot stop the worker from reading (and from seeing that it went silent).

use std::collections::VecDeque;

use tokio::sync::mpsc;

use crate::proto::worker::{WorkerFrame, worker_frame::Frame};

/// Frames handed to HTTP/2 ahead of its window: a few, so that results gather into larger
/// frames while the connection is busy.
pub(super) const STREAM_DEPTH: usize = 8;

/// Frames that may wait behind the stream. A healthy dispatcher takes them within one round
/// trip; this many mean that it has stopped reading.
const MAX_WAITING: usize = 4096;

pub(super) struct Outbox {
    stream: mpsc::Sender<WorkerFrame>,
    waiting: VecDeque<WorkerFrame>,
}

impl Outbox {
    pub(super) fn new(stream: mpsc::Sender<WorkerFrame>) -> Self {
        Self {
            stream,
            waiting: VecDeque::new(),
        }
    }

    pub(super) fn push(&mut self, frame: Frame) {
        let frame = WorkerFrame { frame: Some(frame) };
        if !self.waiting.is_empty() {
            self.waiting.push_back(frame);
            return;
        }
        // A closed stream shows on the inbound side, with its status.
        if let Err(mpsc::error::TrySendError::Full(frame)) = self.stream.try_send(frame) {
            self.waiting.push_back(frame);
        }
    }

    pub(super) fn is_clear(&self) -> bool {
        self.waiting.is_empty()
    }

    pub(super) fn is_stuck(&self) -> bool {
        self.waiting.len() > MAX_WAITING
    }

    /// Moves one waiting frame to the stream; false when the stream is closed. Cancel safe.
    pub(super) async fn advance(&mut self) -> bool {
        let Ok(permit) = self.stream.reserve().await else {
            return false;
        };
        if let Some(frame) = self.waiting.pop_front() {
            permit.send(frame);
        }
        true
    }
}
