//! What a worker says about its tasks, turned into reports.

mod adopt;

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use bytes::Bytes;

use super::deliver;
use super::hub::Hub;
use super::in_flight::{Delivery, Ended, Origin, Stage};
use super::settler::Report;
use crate::domain::id::{TaskId, Token};
use crate::domain::outcome::{Failure, Outcome};
use crate::domain::policy::Policy;
use crate::domain::settlement::{Settlement, decide};
use crate::fleet::{Profile, Session, SessionId, Slot};
use crate::proto::worker::dispatcher_frame::Frame;
use crate::proto::worker::{Cancel, ResultAck, ResultAcks, Verdict};
use crate::store;
use crate::store::claim::Adopted;
use adopt::adopt;

/// How often a worker that is to go elsewhere is looked at.
const GO_TICK: Duration = Duration::from_millis(20);

/// A result as it came in.
#[derive(Clone, Debug)]
pub struct Reported {
    /// The delivery.
    pub token: Token,
    /// What the worker says happened.
    pub outcome: Outcome,
}

/// Why a worker did not take tasks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// It has no slot after all.
    NoSlot,
    /// It takes nothing new.
    Draining,
    /// It does not know how to do that type.
    UnknownType,
}

/// The worker has these tasks now. A task that asks for no more is done with that.
pub fn accepted(hub: &Hub, session: SessionId, tokens: &[Token]) {
    hub.fleet.accepted(session);
    let accepted = hub.in_flight.accept(tokens, Instant::now());
    let routes = accepted.iter().map(|(_, route, _)| *route);
    hub.telemetry.count(routes, |tasks| Some(&tasks.accepted));
    let reports = accepted.into_iter().filter_map(|(token, route, done)| {
        let (worker, span) = done?;
        let done = Settlement::Complete { result: None };
        Some(Report {
            worker: Some(origin(&worker)),
            span,
            ..Report::new(token, Some(route), done)
        })
    });
    hub.settler.report(reports.collect());
}

/// The worker did not take these tasks, and has not started them.
pub fn refused(hub: &Hub, session: SessionId, tokens: &[Token], why: Refusal) {
    let mut deliveries = hub.in_flight.finish(tokens);
    hub.in_flight.free_stuck(tokens);
    match why {
        Refusal::Draining => hub.fleet.drain(session),
        Refusal::UnknownType => {
            for delivery in deliveries.values() {
                if hub.fleet.strike_type(session, &delivery.route.task_type) {
                    tracing::warn!(
                        worker = delivery.worker.worker_id,
                        task_type = delivery.route.task_type,
                        "worker does not know a type that it registered for: it gets no more of it"
                    );
                }
            }
        }
        Refusal::NoSlot => {
            // Before its slots are free: nobody is to be sent there in between.
            hub.fleet.rest(session, Instant::now());
            let slots = deliveries.values_mut().flat_map(|one| &mut one.slot);
            slots.for_each(Slot::refuse);
        }
    }
    let reports: Vec<Report> = deliveries
        .into_values()
        .filter_map(|delivery| end(hub, delivery, Outcome::NotTaken))
        .collect();
    hub.settler.report(reports);
}

/// Results. A success counts by its epoch alone, so it is settled even when its delivery is not known here; a
/// failure of an unknown delivery is an old one and is superseded, and so is all that a caller no longer waits for.
pub fn finished(hub: &Hub, session: &Session, worker: &Arc<Profile>, results: Vec<Reported>) {
    // Before the slots are free: an idle worker that is to go goes with its answers.
    let reply = session.reply();
    let tokens = || results.iter().map(|result| &result.token);
    let mut deliveries = hub.in_flight.finish(tokens());
    hub.in_flight.free_stuck(tokens());
    // A result that comes first says that the task was accepted, too.
    let unaccepted = deliveries.values();
    let unaccepted = unaccepted.filter(|delivery| matches!(delivery.stage, Stage::Sent(_)));
    let routes = unaccepted.map(|delivery| delivery.route.id);
    hub.telemetry.count(routes, |tasks| Some(&tasks.accepted));
    let mut answers = Vec::new();
    let mut reports = Vec::with_capacity(results.len());
    for Reported { token, outcome } in results {
        let mut delivery = deliveries.remove(&token.id);
        let route = delivery.as_ref().map(|delivery| delivery.route.id);
        let slot = delivery.as_mut().and_then(Delivery::keep_slot);
        let span = delivery.as_mut().map(|delivery| delivery.span.reported());
        let settlement = match delivery {
            Some(delivery) => match delivery.origin {
                Origin::Durable { attempt, .. } => {
                    decide(outcome, attempt, &delivery.policy, fastrand::f64())
                }
                Origin::Direct { .. } => {
                    answers.push(ack(token, answer(delivery, outcome)));
                    continue;
                }
            },
            None => match outcome {
                Outcome::Succeeded { result } if !token.is_direct() => {
                    Settlement::Complete { result }
                }
                _ => {
                    hub.telemetry.reports.judged(0, 1);
                    answers.push(ack(token, false));
                    continue;
                }
            },
        };
        reports.push(Report {
            worker: Some(origin(worker)),
            reply: Some(reply.clone()),
            slot,
            span: span.unwrap_or_default(),
            ..Report::new(token, route, settlement)
        });
    }
    if !answers.is_empty() {
        session.push(Frame::Acks(ResultAcks { acks: answers }));
    }
    hub.settler.report(reports);
}

fn ack(token: Token, counts: bool) -> ResultAck {
    let verdict = if counts {
        Verdict::Recorded
    } else {
        Verdict::Superseded
    };
    ResultAck {
        token: Bytes::from(token.to_string()),
        verdict: verdict.into(),
    }
}

/// Tells a caller how its delivery ended. False: nobody waits for it any more, or it was no direct one.
fn answer(delivery: Delivery, outcome: Outcome) -> bool {
    match delivery.origin {
        Origin::Durable { .. } => false,
        Origin::Direct { reply } => {
            // The slot is free before the caller goes on.
            drop(delivery.slot);
            let ended = Ended {
                outcome,
                worker: Some((delivery.session, delivery.worker)),
            };
            reply.send(ended).is_ok()
        }
    }
}

/// The worker is still at this task.
pub fn progress(hub: &Hub, token: Token) {
    hub.in_flight.progress(token, Instant::now());
}

/// Waits until no caller waits for this worker, which nobody else could take over.
pub async fn free_to_go(hub: &Hub, session: SessionId) {
    while hub.in_flight.holds_direct(session) {
        tokio::time::sleep(GO_TICK).await;
    }
}

/// The stream ended. Its deliveries wait for the worker to come back; a draining replica writes nothing and leaves
/// them claimed, to be adopted or put back by others.
pub fn disconnected(hub: &Hub, session: SessionId) {
    hub.fleet.deregister(session);
    let count = if hub.is_draining() || hub.ended.is_cancelled() {
        let left = hub.in_flight.leave(session);
        hub.left.fetch_add(left, Ordering::Relaxed);
        left
    } else {
        hub.in_flight.orphan(session, Instant::now())
    };
    // After the deliveries, which can't become stuck any more.
    hub.in_flight.forget_stuck(session);
    if count > 0 {
        tracing::info!(
            session,
            tasks = count,
            "a worker's stream ended with tasks in flight"
        );
    }
}

/// What became of the tasks that a worker brought along. What stands in neither list is somebody else's, or nobody's.
#[derive(Clone, Debug, Default)]
pub struct Resumed {
    /// They go on here.
    pub tokens: Vec<Token>,
    /// They are not this replica's, and not over either: the worker goes on with them and reports, and the report is judged
    /// then.
    pub held: Vec<Token>,
}

/// A worker that registered named these tasks: those that still are its own go on here.
///
/// # Errors
/// Those of the database; the worker may try again.
pub async fn resume(
    hub: &Hub,
    session: &Session,
    worker: &Arc<Profile>,
    named: &[Token],
) -> Result<Resumed, store::Error> {
    let occupy = || hub.fleet.occupy(session.id);
    let tokens = hub
        .in_flight
        .rebind(named, session.id, worker, occupy, Instant::now());
    let strangers: Vec<Token> = named
        .iter()
        // A direct request of another replica or term is nobody's here, and in no table.
        .filter(|token| !tokens.contains(token) && !token.is_direct())
        .copied()
        .collect();
    let mut resumed = Resumed {
        tokens,
        held: Vec::new(),
    };
    if strangers.is_empty() {
        return Ok(resumed);
    }
    let _adopting = hub.adoptions.read().await;
    let sweep = hub.next_sweep();
    let found = adopt(hub, sweep, strangers).await;
    let (bodies, adopted, held) = found.inspect_err(|_| hub.give_up(sweep))?;
    let wanted: Vec<_> = adopted.iter().map(|task| task.claim.route).collect();
    let routes = hub
        .routes
        .get(&hub.pool, wanted)
        .await
        .inspect_err(|_| hub.give_up(sweep))?;
    let mut bodies: HashMap<TaskId, _> = bodies.into_iter().map(|body| (body.id, body)).collect();
    let now = Instant::now();
    for Adopted {
        claim,
        cancel_requested,
        claimed_for,
    } in adopted
    {
        let found = bodies.remove(&claim.token.id).zip(routes.get(&claim.route));
        let Some((body, route)) = found else {
            hub.settler.report(vec![deliver::body_missing(hub, &claim)]);
            continue;
        };
        resumed.tokens.push(claim.token);
        // It was accepted within the accept timeout after its claim: the run timeout goes on over the move.
        let ran = claimed_for.saturating_sub(hub.settings.accept_timeout);
        let accepted = now.checked_sub(ran).unwrap_or(now);
        let span = adopt::span(hub, &claim, &body, (route, worker));
        hub.in_flight.begin([Delivery {
            token: claim.token,
            route: Arc::clone(route),
            origin: Origin::Durable {
                attempt: claim.attempt,
                settle_accepted: false,
            },
            policy: Policy::resolve(&body, route, &hub.settings.defaults),
            session: session.id,
            worker: Arc::clone(worker),
            slot: hub.fleet.occupy(session.id),
            stage: Stage::Running(accepted, now),
            cancelled_at: cancel_requested.then_some(now),
            span,
        }]);
    }
    resumed.held = held;
    Ok(resumed)
}

/// Tells the workers of these tasks once more to stop, where they are to: they may have been away when it was said.
pub fn remind(hub: &Hub, tokens: &[Token]) {
    for (token, session) in hub.in_flight.cancelled(tokens) {
        tell_to_stop(hub, token, session, "The task is being cancelled.");
    }
}

/// Asks the workers of these tasks to stop, once each.
pub fn cancel(hub: &Hub, tokens: &[Token], reason: &str) {
    for (token, session) in hub.in_flight.cancel(tokens, Instant::now()) {
        tell_to_stop(hub, token, session, reason);
    }
}

/// Tells one worker to stop one task.
pub(super) fn tell_to_stop(hub: &Hub, token: Token, session: SessionId, reason: &str) {
    if let Some(session) = hub.fleet.session(session) {
        let tokens = vec![Bytes::from(token.to_string())];
        session.push(Frame::Cancel(Cancel {
            tokens,
            reason: reason.to_owned(),
        }));
    }
}

/// Ends a delivery by what this replica itself says of it: answers what is to be written, under the guard of its own
/// claim; a caller is told at once.
pub(super) fn end(hub: &Hub, delivery: Delivery, outcome: Outcome) -> Option<Report> {
    match delivery.origin {
        Origin::Durable { attempt, .. } => {
            let settlement = decide(outcome, attempt, &delivery.policy, fastrand::f64());
            Some(Report {
                owner: Some(hub.dispatcher),
                worker: Some(origin(&delivery.worker)),
                span: delivery.span,
                ..Report::new(delivery.token, Some(delivery.route.id), settlement)
            })
        }
        Origin::Direct { .. } => {
            answer(delivery, outcome);
            None
        }
    }
}

fn origin(worker: &Profile) -> (String, String) {
    (worker.identity.clone(), worker.scope.node.clone())
}

/// A result that is larger than the database may take.
#[must_use]
pub fn too_large(bytes: usize, limit: usize) -> Outcome {
    Outcome::ResultRefused(Failure::new(
        "result_too_large",
        format!("The result has {bytes} bytes; the limit is {limit}."),
    ))
}
