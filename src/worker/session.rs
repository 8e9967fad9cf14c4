//! One session: frames in, frames out, until the stream ends; a handover replaces the stream.

use bytes::Bytes;
use prost::Message as _;
use tokio::task::{JoinError, yield_now};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tonic::Status;

use super::Error;
use super::dial::{self, Connection};
use super::engine::{Engine, Finished};
use super::held::Known;
use super::ledger::now_us;
use super::link::Link;
use super::stream::{Closing, FRAME_OVERHEAD, Stream};
use crate::proto::worker::{
    Accepted, Cancel, DispatcherFrame, Drain, Ping, Pong, Refused, RefusedReason, Result as Report,
    ResultAck, Results, Task, Verdict, dispatcher_frame::Frame as In, worker_frame::Frame as Out,
};

/// Results in one frame: as many as a dispatcher settles in one statement.
const MAX_RESULTS: usize = 2000;

/// Why a session is over.
#[derive(Debug)]
pub(super) enum End {
    Lost(String),
    Drained,
}

pub(super) struct Session<'a> {
    engine: &'a mut Engine,
    stream: Stream,
    /// The stream before this one, after a handover.
    former: Option<Closing>,
    /// Results to send as soon as the outbox is clear.
    ready: Vec<Report>,
    /// The worker stops.
    draining: bool,
    /// The dispatcher has sent us away: this stream serves until another one is welcomed.
    leaving: bool,
}

impl<'a> Session<'a> {
    pub(super) fn new(engine: &'a mut Engine, connection: Connection) -> Self {
        let (stream, ready) = welcomed(engine, connection);
        Self {
            engine,
            stream,
            former: None,
            ready,
            draining: false,
            leaving: false,
        }
    }

    pub(super) async fn run(
        mut self,
        link: &mut Link,
        stop: &CancellationToken,
    ) -> Result<End, Error> {
        loop {
            self.send_results();
            let outbox_is_clear = self.stream.outbox.is_clear();
            if self.draining && self.engine.is_idle() && outbox_is_clear {
                self.stream.close().ended().await;
                return Ok(End::Drained);
            }
            if self.stream.outbox.is_stuck() {
                return Ok(End::Lost("the dispatcher does not read".into()));
            }
            tokio::select! {
                frame = self.stream.inbound.message() => {
                    if let Some(end) = self.received(frame, link)? {
                        return Ok(end);
                    }
                }
                Some(first) = self.engine.running.join_next() => self.finished(first).await?,
                Some(report) = self.engine.progress.recv() => {
                    self.stream.outbox.push(Out::Progress(report));
                }
                open = self.stream.outbox.advance(), if !outbox_is_clear => if !open {
                    return Ok(End::Lost("the stream is closed".into()));
                },
                connection = link.open(&mut self.engine.held), if self.leaving => {
                    self.move_to(connection?);
                }
                acks = late_acks(&mut self.former) => match acks {
                    Some(acks) => self.acked(acks)?,
                    None => self.former = None,
                },
                () = stop.cancelled(), if !self.draining => {
                    self.draining = true;
                    self.stream.outbox.push(Out::Drain(Drain {}));
                }
                _ = self.stream.beat.tick() => if !self.stream.ping() {
                    return Ok(End::Lost("the dispatcher went silent".into()));
                },
            }
        }
    }

    /// Goes on over a new stream; the old one is closed, and its late answers still count.
    fn move_to(&mut self, connection: Connection) {
        let (stream, ready) = welcomed(self.engine, connection);
        let former = std::mem::replace(&mut self.stream, stream);
        self.former = Some(former.close());
        self.ready = ready;
        self.leaving = false;
        // Whoever is new has not been told.
        self.draining = false;
    }

    fn received(
        &mut self,
        frame: Result<Option<DispatcherFrame>, Status>,
        link: &mut Link,
    ) -> Result<Option<End>, Error> {
        let frame = match frame {
            Ok(Some(frame)) => frame.frame,
            Ok(None) => return Ok(Some(End::Lost("the dispatcher closed the stream".into()))),
            Err(status) => {
                let status = dial::denial(status)?;
                return Ok(Some(End::Lost(dial::describe(&status))));
            }
        };
        self.stream.heard = Instant::now();
        match frame {
            Some(In::Tasks(tasks)) => self.take(tasks.tasks)?,
            Some(In::Acks(acks)) => self.acked(acks.acks)?,
            Some(In::Cancel(Cancel { tokens, reason })) => {
                tracing::debug!(tasks = tokens.len(), reason, "asked to cancel");
                for token in &tokens {
                    self.engine.held.cancel(token);
                }
            }
            Some(In::Ping(Ping { sequence })) => {
                self.stream.outbox.push(Out::Pong(Pong { sequence }));
            }
            Some(In::GoAway(_)) if !self.leaving => {
                self.leaving = true;
                link.sent_away();
            }
            // A second Welcome or GoAway says nothing new; unknown frames are ignored by protocol.
            Some(In::Pong(_) | In::Welcome(_) | In::GoAway(_)) | None => {}
        }
        Ok(None)
    }

    /// Answers every task of a frame, and starts those that it accepts.
    fn take(&mut self, tasks: Vec<Task>) -> Result<(), Error> {
        let mut accepted = Vec::with_capacity(tasks.len());
        let mut starting = Vec::with_capacity(tasks.len());
        let mut refused: Vec<(RefusedReason, Bytes)> = Vec::new();
        let mut free = self
            .stream
            .limits
            .slots
            .saturating_sub(self.engine.running.len());
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
            if self.draining || self.leaving {
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
            self.stream
                .outbox
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
                self.stream
                    .outbox
                    .push(Out::Refused(Refused { tokens, reason }));
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
            let result = self.engine.finish(joined, self.stream.limits.result_bytes);
            self.ready.extend(result);
            next = self.engine.running.try_join_next();
        }
        self.engine.ledger.flush().map_err(Error::Ledger)
    }

    /// Sends what is ready, in frames within the limits. While frames wait for the stream,
    /// results gather here instead.
    fn send_results(&mut self) {
        while !self.ready.is_empty() && self.stream.outbox.is_clear() {
            let mut room = self
                .stream
                .limits
                .frame_bytes
                .saturating_sub(FRAME_OVERHEAD);
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
            self.stream.outbox.push(Out::Results(Results { results }));
        }
    }
}

/// Takes up what the Welcome says about tasks of earlier sessions.
fn welcomed(engine: &mut Engine, connection: Connection) -> (Stream, Vec<Report>) {
    let welcome = &connection.welcome;
    tracing::info!(
        dispatcher = %connection.peer, replica = welcome.replica,
        session = welcome.session_id, slots = welcome.slots, "connected"
    );
    engine.held.welcome(welcome);
    let stream = Stream::new(connection, &engine.options);
    engine.held.fit_results(stream.limits.result_bytes);
    let ready = engine.held.finished().cloned().collect();
    (stream, ready)
}

/// Never ends without a former stream.
async fn late_acks(former: &mut Option<Closing>) -> Option<Vec<ResultAck>> {
    match former {
        Some(former) => former.acks().await,
        None => std::future::pending().await,
    }
}
