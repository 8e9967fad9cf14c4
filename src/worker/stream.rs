//! One admitted stream and what its Welcome allows; and what is left of one after a handover.

use std::time::Duration;

use tokio::time::{Instant, Interval, MissedTickBehavior, interval, timeout_at};
use tonic::Streaming;

use super::Options;
use super::dial::Connection;
use super::outbox::Outbox;
use crate::proto::worker::{
    DispatcherFrame, Ping, ResultAck, Welcome, dispatcher_frame::Frame as In,
    worker_frame::Frame as Out,
};

/// For a dispatcher that names none: semantics.md, Workers.
const DEFAULT_SILENCE: Duration = Duration::from_secs(30);

/// Room in a frame beside a result's payload: token, content type, lengths.
pub(super) const FRAME_OVERHEAD: usize = 4096;

/// How long the dispatcher may take to close its half of a stream that the worker has closed.
const CLOSE_GRACE: Duration = Duration::from_secs(1);

/// What the dispatcher's Welcome allows.
pub(super) struct Limits {
    pub(super) slots: usize,
    pub(super) frame_bytes: usize,
    pub(super) result_bytes: usize,
    silence: Duration,
    ping: Duration,
}

impl Limits {
    pub(super) fn new(welcome: &Welcome, options: &Options) -> Self {
        let stated = |value: u64| usize::try_from(value).ok().filter(|value| *value > 0);
        let (slots, frame_bytes) = (options.slots, options.max_frame_bytes);
        let frame_bytes = frame_bytes.min(stated(welcome.max_frame_bytes).unwrap_or(frame_bytes));
        let fits = frame_bytes.saturating_sub(FRAME_OVERHEAD);
        let accepted = Some(welcome.slots).filter(|accepted| *accepted > 0);
        let silence = millis(welcome.silence_window_ms).unwrap_or(DEFAULT_SILENCE);
        // A quarter of the window leaves room for one lost ping, whatever the interval says.
        let ping = millis(welcome.ping_interval_ms)
            .unwrap_or(silence)
            .min(silence / 4);
        Self {
            slots: slots.min(accepted.unwrap_or(slots)) as usize,
            frame_bytes,
            result_bytes: fits.min(stated(welcome.max_result_bytes).unwrap_or(fits)),
            silence,
            ping: ping.max(Duration::from_millis(1)),
        }
    }
}

pub(super) struct Stream {
    pub(super) inbound: Streaming<DispatcherFrame>,
    pub(super) outbox: Outbox,
    pub(super) limits: Limits,
    pub(super) heard: Instant,
    pub(super) beat: Interval,
    pings: u64,
}

impl Stream {
    pub(super) fn new(connection: Connection, options: &Options) -> Self {
        let limits = Limits::new(&connection.welcome, options);
        let mut beat = interval(limits.ping);
        beat.set_missed_tick_behavior(MissedTickBehavior::Delay);
        Self {
            inbound: connection.inbound,
            outbox: connection.outbox,
            limits,
            heard: Instant::now(),
            beat,
            pings: 0,
        }
    }

    /// Asks for a sign of life where none has come for a ping interval: the dispatcher asks on its own, and hearing it ask
    /// is one. False when none has come for the whole silence window.
    pub(super) fn ping(&mut self) -> bool {
        let silent = self.heard.elapsed();
        if silent >= self.limits.ping {
            self.pings += 1;
            self.outbox.push(Out::Ping(Ping {
                sequence: self.pings,
            }));
        }
        silent <= self.limits.silence
    }

    /// Ends our half of the stream and gives the dispatcher a moment to end its own, so that it
    /// sees a goodbye and not a broken connection, and can answer what it has read.
    pub(super) fn close(self) -> Closing {
        Closing {
            inbound: self.inbound,
            until: Instant::now() + CLOSE_GRACE,
        }
    }
}

/// A stream that the worker has closed and the dispatcher has not.
pub(super) struct Closing {
    inbound: Streaming<DispatcherFrame>,
    until: Instant,
}

impl Closing {
    /// The next answers that still come; none once the stream has ended. Cancel safe.
    pub(super) async fn acks(&mut self) -> Option<Vec<ResultAck>> {
        let acks = async {
            loop {
                let frame = self.inbound.message().await.ok().flatten()?;
                if let Some(In::Acks(acks)) = frame.frame {
                    return Some(acks.acks);
                }
            }
        };
        timeout_at(self.until, acks).await.ok().flatten()
    }

    pub(super) async fn ended(mut self) {
        while self.acks().await.is_some() {}
    }
}

fn millis(value: u64) -> Option<Duration> {
    (value > 0).then(|| Duration::from_millis(value))
}
