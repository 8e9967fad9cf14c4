//! What ends a program that stays: two signals, and the end of whoever started it.

use std::io;
use std::os::fd::AsFd as _;

use tokio::io::AsyncReadExt as _;
use tokio::net::unix::pipe;
use tokio::signal::unix::{Signal, SignalKind, signal};

/// SIGTERM and SIGINT.
pub(super) struct Signals {
    terminate: Signal,
    interrupt: Signal,
}

impl Signals {
    /// From here on the signals end nothing by themselves.
    pub(super) fn listen() -> io::Result<Self> {
        Ok(Self {
            terminate: signal(SignalKind::terminate())?,
            interrupt: signal(SignalKind::interrupt())?,
        })
    }

    pub(super) async fn next(&mut self) {
        tokio::select! {
            _ = self.terminate.recv() => {}
            _ = self.interrupt.recv() => {}
        }
    }
}

/// The process that holds the other end of our stdin, a pipe. When it is gone, however it went, the pipe ends.
pub(super) struct Parent(pipe::Receiver);

impl Parent {
    /// Fails where stdin is no pipe.
    pub(super) fn watch() -> io::Result<Self> {
        // Not through tokio's stdin, whose blocked read would keep this process from ending.
        let stdin = io::stdin().as_fd().try_clone_to_owned()?;
        Ok(Self(pipe::Receiver::from_owned_fd(stdin)?))
    }

    pub(super) async fn gone(&mut self) {
        let mut ignored = [0; 64];
        while matches!(self.0.read(&mut ignored).await, Ok(1..)) {}
    }
}
