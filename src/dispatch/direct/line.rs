//! The line of direct requests: plain data, and the step that hands free slots to it.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::sync::oneshot;

use super::{DirectError, Request};
use crate::dispatch::deliver;
use crate::dispatch::hub::Hub;
use crate::dispatch::in_flight::{Delivery, Ended, Origin, Stage};
use crate::domain::id::{DispatcherId, Token};
use crate::domain::outcome::{Failure, Outcome};
use crate::domain::placement::Placement;
use crate::domain::policy::Policy;
use crate::domain::route::Route;
use crate::domain::scope;
use crate::fleet::{Placed, Profile, SessionId, Unplaced};
use crate::proto::worker::{Task, Tasks, dispatcher_frame::Frame};
use crate::telemetry::trace::DeliverySpan;

/// Requests that wait for a worker at most: each holds a caller's connection.
pub const MAX_PARKED: usize = 1_000;
/// Bytes of their payloads at most; nothing else bounds what they take of this replica's memory.
pub const MAX_PARKED_BYTES: usize = 64 * 1024 * 1024;

/// A request's number in its term; smaller ones came earlier.
pub(super) type Number = u64;

/// All direct requests of a term.
#[derive(Debug, Default)]
pub(super) struct Line {
    last: Number,
    entries: BTreeMap<Number, Entry>,
    parked: BTreeSet<Number>,
    parked_bytes: usize,
}

#[derive(Debug)]
struct Entry {
    request: Request,
    route: Arc<Route>,
    since: Instant,
    until: Instant,
    deliveries: i32,
    /// Sessions that it was sent to in vain.
    avoided: Vec<SessionId>,
    place: Place,
}

#[derive(Debug)]
enum Place {
    /// In line; whom to tell.
    Parked(oneshot::Sender<Ended>),
    /// At this worker.
    Running(Arc<Profile>),
}

/// A request, for people.
#[derive(Clone, Debug)]
pub struct LineEntry {
    /// Grows with every arrival at this replica.
    pub number: u64,
    /// Where it is to go.
    pub route: Arc<Route>,
    /// The worker that has it; none while it waits.
    pub worker: Option<String>,
    /// Since its arrival.
    pub age: Duration,
    /// Until its caller's time is over.
    pub left: Duration,
    /// Workers that it was sent to.
    pub deliveries: u32,
}

impl Line {
    /// Takes a request in.
    ///
    /// # Errors
    /// [`DirectError::Full`].
    pub(super) fn park(
        &mut self,
        request: Request,
        placement: Placement,
        reply: oneshot::Sender<Ended>,
        until: Instant,
    ) -> Result<Number, DirectError> {
        let bytes = request.payload.len();
        if self.parked.len() >= MAX_PARKED || self.parked_bytes + bytes > MAX_PARKED_BYTES {
            return Err(DirectError::Full);
        }
        let route = Arc::new(Route {
            // No row, no number: nothing looks it up.
            id: 0,
            namespace: request.namespace.clone(),
            task_queue: request.task_queue.clone(),
            task_type: request.task_type.clone(),
            node: request.node.clone(),
            placement,
            ..Route::default()
        });
        self.last += 1;
        self.parked_bytes += bytes;
        self.parked.insert(self.last);
        let entry = Entry {
            request,
            route,
            since: Instant::now(),
            until,
            deliveries: 0,
            avoided: Vec::new(),
            place: Place::Parked(reply),
        };
        self.entries.insert(self.last, entry);
        Ok(self.last)
    }

    /// Puts a request back at its old place; it is within the bounds, since it has been before.
    pub(super) fn park_again(
        &mut self,
        number: Number,
        reply: oneshot::Sender<Ended>,
        avoided: Option<SessionId>,
    ) {
        if let Some(entry) = self.entries.get_mut(&number) {
            entry.avoided.extend(avoided);
            entry.place = Place::Parked(reply);
            self.parked_bytes += entry.request.payload.len();
            self.parked.insert(number);
        }
    }

    /// Takes a request out of the line. False: it was not in there.
    pub(super) fn withdraw(&mut self, number: Number) -> bool {
        let was_parked = self.parked.remove(&number);
        if was_parked && let Some(entry) = self.entries.get(&number) {
            self.parked_bytes -= entry.request.payload.len();
        }
        was_parked
    }

    /// Forgets a request; answers its last delivery.
    pub(super) fn remove(&mut self, number: Number, term: DispatcherId) -> Option<Token> {
        self.withdraw(number);
        let entry = self.entries.remove(&number)?;
        (entry.deliveries > 0).then(|| Token::direct(term, number, entry.deliveries))
    }

    pub(super) fn deliveries(&self, number: Number) -> u32 {
        let entry = self.entries.get(&number);
        entry.map_or(0, |entry| u32::try_from(entry.deliveries).unwrap_or(0))
    }

    pub(super) fn list(&self, now: Instant) -> Vec<LineEntry> {
        let listed = self.entries.iter().map(|(number, entry)| LineEntry {
            number: *number,
            route: Arc::clone(&entry.route),
            worker: match &entry.place {
                Place::Parked(_) => None,
                Place::Running(worker) => Some(worker.identity.clone()),
            },
            age: now.saturating_duration_since(entry.since),
            left: entry.until.saturating_duration_since(now),
            deliveries: u32::try_from(entry.deliveries).unwrap_or(0),
        });
        listed.collect()
    }
}

/// Hands free slots to the line, in order of arrival. Answers when to come back although nothing has changed by then.
pub fn serve(hub: &Hub) -> Option<Instant> {
    let now = Instant::now();
    let mut line = hub.direct.line.lock();
    if line.parked.is_empty() || hub.is_draining() || hub.ended.is_cancelled() {
        return None;
    }
    let (mut held, mut some_free) = (None, false);
    let demand = hub.fleet.demand(now);
    let numbers: Vec<Number> = line.parked.iter().copied().collect();
    for number in numbers {
        let Some(entry) = line.entries.get_mut(&number) else {
            continue;
        };
        let placement = hub.direct.placements.get(&entry.route.namespace);
        if let Some(placement) = placement.filter(|known| *known != entry.route.placement) {
            let mut route = (*entry.route).clone();
            route.placement = placement;
            entry.route = Arc::new(route);
        }
        let route = Arc::clone(&entry.route);
        if hub.is_paused(&route) {
            continue;
        }
        let nodes = scope::nodes(&route, || hub.fleet.groups(now));
        if !demand.iter().any(|group| group.scope.serves(&route, nodes)) {
            continue;
        }
        some_free = true;
        let turn = hub.direct.turns().may_take(now);
        if let Err(until) = turn {
            held = Some(until);
            break;
        }
        match entry.send(hub, number, nodes, now) {
            Sent::Yes => {
                hub.direct.turns().taken();
                line.withdraw(number);
            }
            Sent::Never => {
                line.withdraw(number);
            }
            Sent::NotNow => {}
        }
    }
    if !some_free {
        hub.direct.turns().none_free();
    }
    drop(line);
    let rested = hub.fleet.next_rested(now);
    held.into_iter().chain(rested).min()
}

/// What became of a try.
enum Sent {
    Yes,
    NotNow,
    /// It has been told that nobody takes it.
    Never,
}

impl Entry {
    /// Sends it to a worker that is free for it.
    fn send(
        &mut self,
        hub: &Hub,
        number: Number,
        nodes: crate::domain::placement::Nodes<'_>,
        now: Instant,
    ) -> Sent {
        loop {
            let token = Token::direct(hub.dispatcher, number, self.deliveries.saturating_add(1));
            let task = self.to_frame(token, now);
            let placed = hub.fleet.place_beside(
                &self.avoided,
                &self.route,
                nodes,
                deliver::frame_bytes(&task),
                now,
            );
            match placed {
                Ok(placed) => {
                    self.deliveries = token.fence;
                    if self.deliver(hub, token, task, placed, now) {
                        return Sent::Yes;
                    }
                }
                Err(Unplaced::NobodyFree) => return Sent::NotNow,
                // The one who takes it is busy.
                Err(Unplaced::TooLarge { bytes, largest }) if bytes <= largest => {
                    return Sent::NotNow;
                }
                Err(Unplaced::TooLarge { bytes, largest }) => {
                    self.tell_too_large(bytes, largest);
                    return Sent::Never;
                }
            }
        }
    }

    /// In flight before the frame can be answered. False: the stream has just ended, and is not tried again.
    fn deliver(
        &mut self,
        hub: &Hub,
        token: Token,
        task: Task,
        placed: Placed,
        now: Instant,
    ) -> bool {
        let Placed {
            session,
            profile,
            slot,
        } = placed;
        let place = std::mem::replace(&mut self.place, Place::Running(Arc::clone(&profile)));
        let Place::Parked(reply) = place else {
            return true;
        };
        hub.in_flight.begin([Delivery {
            token,
            route: Arc::clone(&self.route),
            origin: Origin::Direct { reply },
            // The caller's time is kept by the caller, whose going cancels it.
            policy: Policy {
                max_attempts: 1,
                backoff: hub.settings.defaults.backoff,
                run_timeout: None,
                heartbeat_timeout: None,
            },
            session: session.id,
            worker: profile,
            slot: Some(slot),
            stage: Stage::Sent(now),
            cancelled_at: None,
            // Traces are of tasks that are stored.
            span: DeliverySpan::default(),
        }]);
        if session.push(Frame::Tasks(Tasks { tasks: vec![task] })) {
            return true;
        }
        self.avoided.push(session.id);
        let taken_back = hub.in_flight.finish(&[token]).remove(&token.id);
        match taken_back.map(|delivery| delivery.origin) {
            Some(Origin::Direct { reply }) => {
                self.place = Place::Parked(reply);
                false
            }
            // Its end has been told meanwhile.
            Some(Origin::Durable { .. }) | None => true,
        }
    }

    fn tell_too_large(&mut self, bytes: usize, largest: usize) {
        let (nobody, _) = oneshot::channel();
        let place = std::mem::replace(&mut self.place, Place::Parked(nobody));
        if let Place::Parked(reply) = place {
            let failure = Failure::new(
                "frame_too_large",
                format!(
                    "The request takes a frame of {bytes} bytes; the largest that a worker here takes is {largest}."
                ),
            );
            let ended = Ended {
                outcome: Outcome::Unservable(failure),
                worker: None,
            };
            // A caller that has gone does not mind.
            reply.send(ended).ok();
        }
    }

    fn to_frame(&self, token: Token, now: Instant) -> Task {
        let left = self.until.saturating_duration_since(now);
        let request = &self.request;
        Task {
            token: token.to_string().into(),
            task_id: token.id,
            namespace: request.namespace.clone(),
            task_queue: request.task_queue.clone(),
            task_type: request.task_type.clone(),
            node: request.node.clone(),
            payload: request.payload.clone(),
            content_type: request.content_type.clone(),
            attempt: 1,
            max_attempts: 1,
            labels: request.labels.clone(),
            // 0 would mean none.
            run_timeout_ms: u64::try_from(left.as_millis()).unwrap_or(u64::MAX).max(1),
            idempotency_key: Token::direct(i64::from(token.epoch), token.id.unsigned_abs(), 0)
                .to_string(),
            fence: i64::from(token.fence),
            ..Task::default()
        }
    }
}
