//! The life of a session after its registration, the same at every door.

use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use futures_util::{Stream, StreamExt};
use tokio::sync::{mpsc, oneshot};
use tokio::time::{MissedTickBehavior, interval_at};
use tokio_util::sync::CancellationToken;

use super::admission::{Admitted, Denied};
use crate::dispatch::Hub;
use crate::dispatch::reports::{self, Refusal, Reported};
use crate::domain::id::Token;
use crate::domain::outcome::{Failure, Outcome};
use crate::fleet::{Answer, Liveness, Profile, Session, Silence};
use crate::proto::worker::dispatcher_frame::Frame as Down;
use crate::proto::worker::worker_frame::Frame as Up;
use crate::proto::worker::{
    DispatcherFrame, FailureKind, GoAway, Ping, Pong, RefusedReason, Result as TaskResult, Welcome,
    WorkerFrame, result,
};
use crate::store;
use crate::telemetry::SessionEnd;

/// Frames that may wait for a slow reader before its stream is ended. A frame holds many tasks or answers, and the
/// tasks in them are bounded by the worker's slots.
const OUTBOUND: usize = 4096;
/// Characters of an error class, and of a content type, that are kept.
const SHORT: usize = 200;
/// Characters of an error message that are kept.
const LONG: usize = 4096;
/// A worker's own delays count up to this; the database refuses absurd ones.
const LONGEST_DELAY: Duration = Duration::from_secs(366 * 24 * 3600);

/// Times within a ping interval at which some of the sessions ask.
const PING_STEPS: u32 = 32;

/// How sessions are kept.
#[derive(Clone, Copy, Debug)]
pub struct Settings {
    /// A session whose pings are not answered for this long is lost.
    pub silence_window: Duration,
    /// Bytes in the largest frame.
    pub max_frame_bytes: usize,
    /// Time that workers have to go elsewhere when this replica stops.
    pub drain_timeout: Duration,
    /// Any moment before the first session: pings keep to a grid that starts here.
    pub grid: Instant,
}

impl Settings {
    /// Pings go out four times in a window, so that one lost answer proves nothing.
    fn ping_interval(&self) -> Duration {
        self.silence_window / 4
    }

    /// When a session that asks now asks next: sessions that asked at about the same time ask together from then on, so
    /// that a thousand idle ones wake the process some times a second and not some hundred.
    fn next_ping(&self, now: Instant) -> Instant {
        let (interval, step) = (self.ping_interval(), self.ping_interval() / PING_STEPS);
        let since = now.saturating_duration_since(self.grid) + interval;
        let past = since.as_nanos().checked_rem(step.as_nanos()).unwrap_or(0);
        let past = u64::try_from(past).unwrap_or(0);
        now + interval.saturating_sub(Duration::from_nanos(past))
    }
}

/// One side of an opened session: what a door has to send.
pub struct Opened {
    /// Frames for the worker, in order.
    frames: mpsc::Receiver<DispatcherFrame>,
    /// Fires when the stream is to end, after the frames that are queued.
    pub(super) end: CancellationToken,
}

impl Opened {
    /// The next frame for the worker; none once the session has ended and what was queued by then is sent.
    pub(super) async fn next(&mut self) -> Option<DispatcherFrame> {
        tokio::select! {
            biased;
            frame = self.frames.recv() => frame,
            () = self.end.cancelled() => {
                self.frames.close();
                self.frames.recv().await
            }
        }
    }
}

/// One session from its registration to its end. It belongs in a task of its own, since a door's call ends with a
/// worker that goes away meanwhile, and what that worker brought along must not be forgotten half-way. `opened`
/// learns the door's side, or why there is none.
pub(super) async fn live<S, E>(
    hub: Arc<Hub>,
    settings: Settings,
    admitted: Admitted,
    inbound: S,
    opened: oneshot::Sender<Result<Opened, Denied>>,
) where
    S: Stream<Item = Result<WorkerFrame, E>> + Unpin,
    E: std::fmt::Display,
{
    let (door, session, worker) = match open(&hub, settings, admitted).await {
        Ok(open) => open,
        Err(error) => {
            let denied = Denied::unavailable(format!("The tasks can't be taken up: {error}."));
            // Nobody waits for it any more: then nobody has to be told.
            opened.send(Err(denied)).ok();
            return;
        }
    };
    let (why, reason) = if opened.send(Ok(door)).is_ok() {
        talk(&hub, settings, &session, &worker, inbound).await
    } else {
        let reason = "it went away before it was welcomed";
        (SessionEnd::Closed, reason.into())
    };
    reports::disconnected(&hub, session.id);
    hub.telemetry.sessions.ended(why);
    tracing::info!(
        session = session.id,
        worker = worker.worker_id,
        reason,
        "worker disconnected"
    );
}

/// Opens a session for an admitted worker: takes up the tasks that it brings along, and welcomes it. Tasks go to
/// it once its answers to pings have proven the way.
///
/// # Errors
/// Those of the database, when the worker brought tasks along; it may try again.
async fn open(
    hub: &Hub,
    settings: Settings,
    admitted: Admitted,
) -> Result<(Opened, Session, Arc<Profile>), store::Error> {
    let (outbound, frames) = mpsc::channel(OUTBOUND);
    let end = hub.ended.child_token();
    let session = Session::new(hub.fleet.next_session(), outbound, end.clone());
    let worker = Arc::new(admitted.profile);
    hub.fleet
        .register(session.clone(), Arc::clone(&worker), admitted.order);
    let resumed = match reports::resume(hub, &session, &worker, &admitted.resume).await {
        Ok(resumed) => resumed,
        Err(error) => {
            reports::disconnected(hub, session.id);
            return Err(error);
        }
    };
    let lost = admitted
        .resume
        .iter()
        .filter(|token| !resumed.tokens.contains(token) && !resumed.held.contains(token));
    let welcome = Welcome {
        worker_id: worker.worker_id.clone(),
        session_id: session.id.to_string(),
        replica: hub.dispatcher.to_string(),
        slots: worker.slots,
        ping_interval_ms: millis(settings.ping_interval()),
        silence_window_ms: millis(settings.silence_window),
        max_frame_bytes: worker.max_frame_bytes as u64,
        abandoned: lost.map(to_bytes).chain(admitted.unknown).collect(),
        resumed: resumed.tokens.iter().map(to_bytes).collect(),
        max_result_bytes: hub.settings.max_result_bytes as u64,
    };
    session.push(Down::Welcome(welcome));
    reports::remind(hub, &resumed.tokens);
    hub.telemetry.sessions.opened(worker.transport);
    tracing::info!(
        session = session.id,
        worker = worker.worker_id,
        identity = worker.identity,
        slots = worker.slots,
        resumed = resumed.tokens.len(),
        "worker connected"
    );
    Ok((Opened { frames, end }, session, worker))
}

/// Reads the worker's frames until its stream ends, it falls silent, or the session is ended from here.
async fn talk<S, E>(
    hub: &Hub,
    settings: Settings,
    session: &Session,
    worker: &Arc<Profile>,
    mut inbound: S,
) -> (SessionEnd, String)
where
    S: Stream<Item = Result<WorkerFrame, E>> + Unpin,
    E: std::fmt::Display,
{
    let now = Instant::now();
    let mut pings = interval_at(settings.next_ping(now).into(), settings.ping_interval());
    pings.set_missed_tick_behavior(MissedTickBehavior::Skip);
    let mut liveness = Liveness::new(settings.silence_window, now);
    session.push(Down::Ping(Ping {
        sequence: liveness.ask(),
    }));
    let (mut draining, mut sent_away) = (hub.draining.subscribe(), false);
    loop {
        let frame = tokio::select! {
            () = session.ended().cancelled() => return (SessionEnd::Ended, "ended by this replica".into()),
            _ = pings.tick() => {
                if !still_there(hub, session, worker, &liveness) {
                    return (SessionEnd::Lost, "it did not answer pings".into());
                }
                session.push(Down::Ping(Ping { sequence: liveness.ask() }));
                continue;
            }
            // Here rather than from the drain, so that it comes after Welcome however the two meet.
            true = async {
                let drains = draining.wait_for(|draining| *draining).await.is_ok();
                reports::free_to_go(hub, session.id).await;
                drains
            }, if !sent_away => {
                sent_away = true;
                session.push(Down::GoAway(GoAway {
                    within_ms: millis(settings.drain_timeout),
                    reason: "This replica is shutting down.".into(),
                }));
                continue;
            }
            frame = inbound.next() => frame,
        };
        match frame {
            None => return (SessionEnd::Closed, "it closed its stream".into()),
            Some(Err(error)) => {
                return (SessionEnd::Failed, format!("its stream failed: {error}"));
            }
            Some(Ok(frame)) => match frame.frame {
                Some(Up::Pong(pong)) => match liveness.answer(pong.sequence, Instant::now()) {
                    Answer::AskAgain => {
                        session.push(Down::Ping(Ping {
                            sequence: liveness.ask(),
                        }));
                    }
                    Answer::Proven => {
                        hub.fleet.prove(session.id);
                    }
                    Answer::Nothing => {}
                },
                Some(frame) => take(hub, session, worker, frame),
                None => {}
            },
        }
    }
}

/// Judges the silence. The opening probation passes by itself and is not spoken of; a proven worker that falls silent
/// is, since it gets nothing new from then on. False: it is lost.
fn still_there(hub: &Hub, session: &Session, worker: &Profile, liveness: &Liveness) -> bool {
    match liveness.silence(Instant::now()) {
        Silence::Short => true,
        Silence::Doubtful => {
            if hub.fleet.doubt(session.id) {
                tracing::warn!(
                    session = session.id,
                    worker = worker.worker_id,
                    "worker does not answer pings: it gets nothing new"
                );
            }
            true
        }
        Silence::Lost => {
            tracing::warn!(
                session = session.id,
                worker = worker.worker_id,
                "worker does not answer pings: it is lost"
            );
            false
        }
    }
}

/// Takes one frame. What is malformed in it is left out with a log line: a newer worker may say more than is known here.
fn take(hub: &Hub, session: &Session, worker: &Arc<Profile>, frame: Up) {
    match frame {
        Up::Accepted(accepted) => {
            reports::accepted(hub, session.id, &tokens(&accepted.tokens));
        }
        Up::Refused(refused) => {
            let why = match refused.reason() {
                RefusedReason::NoSlot | RefusedReason::Unspecified => Refusal::NoSlot,
                RefusedReason::Draining => Refusal::Draining,
                RefusedReason::UnknownType => Refusal::UnknownType,
            };
            reports::refused(hub, session.id, &tokens(&refused.tokens), why);
        }
        Up::Results(results) => {
            let limit = hub.settings.max_result_bytes;
            let reported = results
                .results
                .into_iter()
                .filter_map(|result| read_result(result, limit))
                .collect();
            reports::finished(hub, session, worker, reported);
        }
        Up::Progress(progress) => {
            if let Ok(token) = Token::from_bytes(&progress.token) {
                reports::progress(hub, token);
            }
        }
        Up::Ping(ping) => {
            session.push(Down::Pong(Pong {
                sequence: ping.sequence,
            }));
        }
        Up::Drain(_) => hub.fleet.drain(session.id),
        Up::Pong(_) => {}
        Up::Register(_) => tracing::warn!(session = session.id, "a second registration is ignored"),
    }
}

fn tokens(wire: &[Bytes]) -> Vec<Token> {
    wire.iter()
        .filter_map(|token| Token::from_bytes(token).ok())
        .collect()
}

fn to_bytes(token: &Token) -> Bytes {
    token.to_string().into()
}

fn read_result(result: TaskResult, limit: usize) -> Option<Reported> {
    let Ok(token) = Token::from_bytes(&result.token) else {
        tracing::warn!("a result without a valid token is ignored");
        return None;
    };
    let outcome = match result.outcome {
        Some(result::Outcome::Succeeded(success)) if success.payload.len() > limit => {
            reports::too_large(success.payload.len(), limit)
        }
        Some(result::Outcome::Succeeded(success)) => {
            let empty = success.payload.is_empty() && success.content_type.is_empty();
            Outcome::Succeeded {
                result: (!empty).then(|| (success.payload, clip(success.content_type, SHORT))),
            }
        }
        Some(result::Outcome::Failed(failed)) => {
            let kind = failed.kind();
            let retry_after = failed.retry_after_ms.map(delay);
            let class = if failed.class.is_empty() {
                "error".to_owned()
            } else {
                clip(failed.class, SHORT)
            };
            let error = Failure {
                class,
                message: clip(failed.message, LONG),
            };
            match kind {
                FailureKind::Terminal => Outcome::Terminal(error),
                FailureKind::Cancelled => Outcome::Stopped,
                FailureKind::Retryable | FailureKind::Unspecified => {
                    Outcome::Failed { error, retry_after }
                }
            }
        }
        Some(result::Outcome::Snoozed(snoozed)) => Outcome::Snoozed(delay(snoozed.after_ms)),
        None => Outcome::ResultRefused(Failure::new(
            "result_invalid",
            "The result says nothing of the outcome.",
        )),
    };
    Some(Reported { token, outcome })
}

fn delay(milliseconds: u64) -> Duration {
    Duration::from_millis(milliseconds).min(LONGEST_DELAY)
}

fn clip(mut text: String, characters: usize) -> String {
    if let Some((end, _)) = text.char_indices().nth(characters) {
        text.truncate(end);
    }
    text
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}
