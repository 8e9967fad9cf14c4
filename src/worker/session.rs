//! One session: frames in, frames out, until the stream ends.

use std::time::Duration;

use bytes::Bytes;
use prost::Message as _;
use tokio::task::{JoinError, yield_now};
use tokio::time::{Instant, MissedTickBehavior, interval};
use tokio_util::sync::CancellationToken;
use tonic::{Status, Streaming};

use super::Error;
use super::engine::{Engine, Finished};
use super::held::Known;
use super::ledger::now_us;
use super::link::{self, Connection};
use super::outbox::Outbox;
use crate::proto::worker::{
    Accepted, Cancel, DispatcherFrame, Drain, Ping, Pong, Refused, RefusedReason, Result as Report,
    ResultAck, Results, Task, Verdict, Welcome, dispatcher_frame::Frame as In,
    worker_frame::Frame as Out,
};

/// For a dispatcher that names none: semantics.md, Workers.
const DEFAULT_SILENCE: Duration = Duration::from_secs(30);

/// Results in one frame: as many as a dispatcher settles in one statement.
const MAX_RESULTS: usize = 2000;

/// Room in a frame beside a result's payload: token, content type, lengths.
const FRAME_OVERHEAD: usize = 4096;

/// How long the dispatcher may take to close its half of a drained stream.
const CLOSE_GRACE: Duration = Duration::from_secs(1);

/// Why a session is over, when the worker is not.
#[derive(Debug)]
pub(super) enum End {
    Lost(String),
    GoAway,
    Drained,
}

/// What the dispatcher's Welcome allows.
struct Limits {
    slots: usize,
    frame_bytes: usize,
    result_bytes: usize,
    silence: Duration,
    ping: Duration,
}

impl Limits {
    fn new(welcome: &Welcome, slots: u32, frame_bytes: usize) -> Self {
        let stated = |value: u64| usize::try_from(value).ok().filter(|value| *value > 0);
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

pub(super) struct Session<'a> {
    engine: &'a mut Engine,
    inbound: Streaming<DispatcherFrame>,
    outbox: Outbox,
    limits: Limits,
    /// Results to send as soon as the outbox is clear.
    ready: Vec<Report>,
    heard: Instant,
    pings: u64,
    draining: bool,
}

impl<'a> Session<'a> {
    /// Takes up what the Welcome says about tasks of earlier sessions: all results that are
    /// still unanswered are reported again, whether or not it names them as resumed.
    pub(super) fn new(engine: &'a mut Engine, connection: Connection) -> Self {
        let Connection {
            welcome,
            inbound,
            outbox,
        } = connection;
        for token in &welcome.abandoned {
            engine.held.abandon(token);
        }
        let options = &engine.options;
        let limits = Limits::new(&welcome, options.slots, options.max_frame_bytes);
        engine.held.fit_results(limits.result_bytes);
        let ready = engine.held.finished().cloned().collect();
        Self {
            engine,
            inbound,
            outbox,
            limits,
            ready,
            heard: Instant::now(),
            pings: 0,
            draining: false,
        }
    }

    pub(super) async fn run(mut self, stop: &CancellationToken) -> Result<End, Error> {
        let mut beat = interval(self.limits.ping);
        beat.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            self.send_results();
            if self.draining && self.engine.is_idle() && self.outbox.is_clear() {
                return Ok(self.close().await);
            }
            if self.outbox.is_stuck() {
                return Ok(End::Lost("the dispatcher does not read".into()));
            }
            tokio::select! {
                frame = self.inbound.message() => {
                    if let Some(end) = self.received(frame)? {
                        return Ok(end);
                    }
                }
                Some(first) = self.engine.running.join_next() => self.finished(first).await?,
                Some(report) = self.engine.progress.recv() => {
                    self.outbox.push(Out::Progress(report));
                }
                open = self.outbox.advance(), if !self.outbox.is_clear() => if !open {
                    return Ok(End::Lost("the stream is closed".into()));
                },
                () = stop.cancelled(), if !self.draining => {
                    self.draining = true;
                    self.outbox.push(Out::Drain(Drain {}));
                }
                _ = beat.tick() => {
                    if self.heard.elapsed() > self.limits.silence {
                        return Ok(End::Lost("the dispatcher went silent".into()));
                    }
                    self.pings += 1;
                    self.outbox.push(Out::Ping(Ping { sequence: self.pings }));
                }
            }
        }
    }

    fn received(
        &mut self,
        frame: Result<Option<DispatcherFrame>, Status>,
    ) -> Result<Option<End>, Error> {
        let frame = match frame {
            Ok(Some(frame)) => frame.frame,
            Ok(None) => return Ok(Some(End::Lost("the dispatcher closed the stream".into()))),
            Err(status) => {
                let status = link::denial(status)?;
                return Ok(Some(End::Lost(link::describe(&status))));
            }
        };
        self.heard = Instant::now();
        match frame {
            Some(In::Tasks(tasks)) => self.take(tasks.tasks)?,
            Some(In::Acks(acks)) => self.acked(acks.acks)?,
            Some(In::Cancel(Cancel { tokens, reason })) => {
                tracing::debug!(tasks = tokens.len(), reason, "asked to cancel");
                for token in &tokens {
                    self.engine.held.cancel(token);
                }
            }
            Some(In::Ping(Ping { sequence })) => self.outbox.push(Out::Pong(Pong { sequence })),
            Some(In::GoAway(_)) => return Ok(Some(End::GoAway)),
            // A second Welcome says nothing new; unknown frames are ignored by protocol.
            Some(In::Pong(_) | In::Welcome(_)) | None => {}
        }
        Ok(None)
    }

    /// Answers every task of a frame, and starts those that it accepts.
    fn take(&mut self, tasks: Vec<Task>) -> Result<(), Error> {
        let mut accepted = Vec::with_capacity(tasks.len());
        let mut starting = Vec::with_capacity(tasks.len());
        let mut refused: Vec<(RefusedReason, Bytes)> = Vec::new();
        let mut free = self.limits.slots.saturating_sub(self.engine.running.len());
        let started = now_us();
        for task in tasks {
            match self.engine.held.look(&task.token) {
                Known::New => {}
                Known::Running => {
                    accepted.push(task.token);
                    continue;
                }
                Known::Finished(result) => {
                    accepted.push(task.token);
                    self.ready.push(result.clone());
                    continue;
                }
            }
            if self.draining {
                refused.push((RefusedReason::Draining, task.token));
            } else if !self.engine.serves(&task.task_type) {
                refused.push((RefusedReason::UnknownType, task.token));
            } else if free == 0 {
                refused.push((RefusedReason::NoSlot, task.token));
            } else {
                free -= 1;
                self.engine.ledger.started(&task, started);
                accepted.push(task.token.clone());
                starting.push(task);
            }
        }
        self.engine.ledger.flush().map_err(Error::Ledger)?;
        for task in starting {
            self.engine.start(task);
        }
        if !accepted.is_empty() {
            self.outbox
                .push(Out::Accepted(Accepted { tokens: accepted }));
        }
        self.refuse(&refused);
        Ok(())
    }

    fn refuse(&mut self, refused: &[(RefusedReason, Bytes)]) {
        for reason in [
            RefusedReason::Draining,
            RefusedReason::UnknownType,
            RefusedReason::NoSlot,
        ] {
            let of_reason = refused.iter().filter(|(why, _)| *why == reason);
            let tokens: Vec<_> = of_reason.map(|(_, token)| token.clone()).collect();
            if !tokens.is_empty() {
                let reason = reason.into();
                self.outbox.push(Out::Refused(Refused { tokens, reason }));
            }
        }
    }

    fn acked(&mut self, acks: Vec<ResultAck>) -> Result<(), Error> {
        for ack in acks {
            self.engine.held.acked(&ack.token);
            self.engine.ledger.answered(&ack.token, ack.verdict());
            if ack.verdict() == Verdict::Superseded {
                let token = String::from_utf8_lossy(&ack.token);
                tracing::debug!(%token, "the report came too late");
            }
        }
        self.engine.ledger.flush().map_err(Error::Ledger)
    }

    /// Collects everything that has ended by now. The yield lets handlers that are about to end
    /// do so, which turns many small frames into one.
    async fn finished(&mut self, first: Result<Finished, JoinError>) -> Result<(), Error> {
        yield_now().await;
        let mut next = Some(first);
        while let Some(joined) = next {
            let result = self.engine.finish(joined, self.limits.result_bytes);
            self.ready.extend(result);
            next = self.engine.running.try_join_next();
        }
        self.engine.ledger.flush().map_err(Error::Ledger)
    }

    /// Sends what is ready, in frames within the limits. While frames wait for the stream,
    /// results gather here instead.
    fn send_results(&mut self) {
        while !self.ready.is_empty() && self.outbox.is_clear() {
            let mut room = self.limits.frame_bytes.saturating_sub(FRAME_OVERHEAD);
            let fits = |report: &&Report| {
                // Tag and length of each entry take at most ten bytes more.
                let size = report.encoded_len() + 10;
                let fits = size <= room;
                room = room.saturating_sub(size);
                fits
            };
            let count = self.ready.iter().take(MAX_RESULTS).take_while(fits).count();
            let rest = self.ready.split_off(count.max(1).min(self.ready.len()));
            let results = std::mem::replace(&mut self.ready, rest);
            self.outbox.push(Out::Results(Results { results }));
        }
    }

    /// Ends our half of the stream and gives the dispatcher a moment to end its own, so that it
    /// sees a goodbye and not a broken connection.
    async fn close(self) -> End {
        let Self {
            mut inbound,
            outbox,
            ..
        } = self;
        drop(outbox);
        let ended = async { while let Ok(Some(_)) = inbound.message().await {} };
        tokio::time::timeout(CLOSE_GRACE, ended).await.ok();
        End::Drained
    }
}

fn millis(value: u64) -> Option<Duration> {
    (value > 0).then(|| Duration::from_millis(value))
}
