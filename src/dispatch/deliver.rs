//! From claims to workers: the choice of a worker for each task, and one frame for each worker.

use std::cell::OnceCell;
use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Instant;

use prost::Message;

use super::fitness::BootTime;
use super::hub::Hub;
use super::in_flight::{Delivery, Origin, Stage};
use super::settler::Report;
use crate::domain::id::{RouteId, TaskId, Token};
use crate::domain::outcome::{Failure, Outcome};
use crate::domain::placement::Nodes;
use crate::domain::policy::Policy;
use crate::domain::route::Route;
use crate::domain::scope::Transport;
use crate::domain::settlement::{Move, Settlement, decide};
use crate::domain::task::{Body, Claim};
use crate::fleet::{Session, SessionId, Unplaced};
use crate::proto::json;
use crate::proto::worker::{Task, Tasks, dispatcher_frame::Frame};
use crate::telemetry::trace::{DeliverySpan, Outgoing, Step};

/// What a frame adds to its tasks: tags and lengths and the gRPC prefix, or names and brackets.
const FRAME_OVERHEAD: usize = 64;
/// What a task adds to its frame beside itself: tag and length, or a comma.
const TASK_OVERHEAD: usize = 8;
/// Bytes of tasks in one frame, if it holds more than one: a worker starts on the first while the next is on its way.
const FRAME_BYTES: usize = 256 * 1024;

/// The routes of a sweep, and the nodes that may run their tasks.
pub type Targets<'r> = HashMap<RouteId, (&'r Arc<Route>, Nodes<'r>)>;

/// One worker's part of a sweep.
struct Parcel {
    session: Session,
    frames: Vec<(Vec<Task>, Vec<Delivery>)>,
    bytes: usize,
}

/// Delivers claims that were asked for at `claimed_at`. What can't be delivered is settled accordingly: nothing
/// that was claimed is left without a delivery or a report. Answers the routes of tasks that nobody free could take.
pub fn deliver(
    hub: &Hub,
    claims: Vec<Claim>,
    mut bodies: HashMap<TaskId, Body>,
    targets: &Targets<'_>,
    claimed_at: BootTime,
) -> BTreeSet<RouteId> {
    let mut parcels: HashMap<SessionId, Parcel> = HashMap::new();
    let mut reports = Vec::new();
    let mut unplaced = BTreeSet::new();
    for claim in claims {
        let found = bodies
            .remove(&claim.token.id)
            .zip(targets.get(&claim.route));
        let Some((body, (route, nodes))) = found else {
            reports.push(body_missing(hub, &claim));
            continue;
        };
        let packed = pack(hub, &mut parcels, &claim, body, (route, *nodes), claimed_at);
        if let Err((outcome, span)) = packed {
            if outcome == Outcome::NotTaken {
                unplaced.insert(claim.route);
            }
            let report = undelivered(hub, &claim, outcome);
            reports.push(Report { span, ..report });
        }
    }
    for parcel in parcels.into_values() {
        for (tasks, deliveries) in parcel.frames {
            reports.extend(send(hub, &parcel.session, tasks, deliveries, claimed_at));
        }
    }
    hub.settler.report(reports);
    unplaced
}

/// Chooses a worker and adds the task to what goes there. The span of one that goes nowhere comes back.
fn pack(
    hub: &Hub,
    parcels: &mut HashMap<SessionId, Parcel>,
    claim: &Claim,
    body: Body,
    (route, nodes): (&Arc<Route>, Nodes<'_>),
    claimed_at: BootTime,
) -> Result<(), (Outcome, DeliverySpan)> {
    let policy = Policy::resolve(&body, route, &hub.settings.defaults);
    let settle_accepted = body.settle_accepted;
    let mut task = to_frame(claim, body, route, &policy);
    let outgoing = || Outgoing {
        token: claim.token,
        route,
        attempt: claim.attempt,
        since: claimed_at.age(),
    };
    let tracing = &hub.telemetry.tracing;
    let span = tracing.delivery(outgoing, &mut task.trace_context);
    let (placed, bytes) = {
        let bytes = task_bytes(&task);
        let frame = |transport| bytes(transport) + FRAME_OVERHEAD;
        let placed = hub.fleet.place(route, nodes, frame, Instant::now());
        let placed = match placed {
            Ok(placed) => placed,
            Err(Unplaced::NobodyFree) => return Err((Outcome::NotTaken, span)),
            Err(Unplaced::TooLarge { bytes, largest }) => {
                let nearest = (bytes, largest);
                let outcome = too_large(hub, route, nodes, nearest, frame_bytes(&task));
                return Err((outcome, span));
            }
        };
        let bytes = bytes(placed.profile.transport);
        (placed, bytes)
    };
    span.worker(&placed.profile.identity);
    let delivery = Delivery {
        token: claim.token,
        route: Arc::clone(route),
        origin: Origin::Durable {
            attempt: claim.attempt,
            settle_accepted,
        },
        policy,
        session: placed.session.id,
        worker: placed.profile,
        slot: Some(placed.slot),
        stage: Stage::Sent(Instant::now()),
        cancelled_at: None,
        span,
    };
    let parcel = parcels.entry(placed.session.id).or_insert_with(|| Parcel {
        session: placed.session,
        frames: Vec::new(),
        bytes: FRAME_BYTES,
    });
    let limit = FRAME_BYTES.min(
        delivery
            .worker
            .max_frame_bytes
            .saturating_sub(FRAME_OVERHEAD),
    );
    if parcel.bytes + bytes > limit {
        parcel.frames.push((Vec::new(), Vec::new()));
        parcel.bytes = 0;
    }
    parcel.bytes += bytes;
    if let Some((tasks, deliveries)) = parcel.frames.last_mut() {
        tasks.push(task);
        deliveries.push(delivery);
    }
    Ok(())
}

/// Bytes of this task in a frame of each door, counted when asked for.
fn task_bytes(task: &Task) -> impl Fn(Transport) -> usize {
    let in_json = OnceCell::new();
    move |transport| {
        TASK_OVERHEAD
            + match transport {
                Transport::Grpc => task.encoded_len(),
                Transport::WebSocket => *in_json.get_or_init(|| json::task_bytes(task)),
            }
    }
}

/// Bytes of the frame that holds this task alone.
pub(super) fn frame_bytes(task: &Task) -> impl Fn(Transport) -> usize {
    let bytes = task_bytes(task);
    move |transport| bytes(transport) + FRAME_OVERHEAD
}

/// What becomes of a task whose frame no free worker here takes. `nearest` are its bytes on the way to the one who
/// comes nearest to taking it and the largest that this one takes, `frame` its bytes behind each door.
fn too_large(
    hub: &Hub,
    route: &Route,
    nodes: Nodes<'_>,
    nearest: (usize, usize),
    frame: impl Fn(Transport) -> usize,
) -> Outcome {
    let elsewhere = hub.elsewhere.read();
    let (bytes, largest) = elsewhere
        .iter()
        .filter(|remote| remote.group.is_live() && remote.group.scope.serves(route, nodes))
        .flat_map(|remote| Transport::ALL.map(|door| (door, remote.group.frames.behind(door))))
        .filter(|(_, limit)| *limit > 0)
        .map(|(door, limit)| (frame(door), limit))
        .fold(nearest, |best, other| {
            if other.1 + best.0 > best.1 + other.0 {
                other
            } else {
                best
            }
        });
    if largest >= bytes {
        return Outcome::Misfit;
    }
    Outcome::Unservable(Failure::new(
        "frame_too_large",
        format!(
            "The task takes a frame of {bytes} bytes; the largest that a connected worker takes is {largest}."
        ),
    ))
}

/// Sends one frame, if this replica may still start work. The deliveries are in flight before the frame can be
/// answered; a frame that will not arrive takes them out again.
fn send(
    hub: &Hub,
    session: &Session,
    tasks: Vec<Task>,
    deliveries: Vec<Delivery>,
    claimed_at: BootTime,
) -> Vec<Report> {
    let routes = deliveries
        .iter()
        .map(|delivery| (delivery.token, delivery.route.id));
    let tokens: HashMap<Token, RouteId> = routes.collect();
    let mut unsent = if hub.fitness.allows(claimed_at) && !hub.is_draining() {
        for delivery in &deliveries {
            delivery.span.step(Step::Sent);
        }
        hub.in_flight.begin(deliveries);
        if session.push(Frame::Tasks(Tasks { tasks })) {
            let routes = tokens.into_values();
            hub.telemetry.count(routes, |tasks| Some(&tasks.delivered));
            return Vec::new();
        }
        hub.in_flight.finish(tokens.keys())
    } else {
        let deliveries = deliveries.into_iter();
        deliveries.map(|unsent| (unsent.token.id, unsent)).collect()
    };
    let release = |(token, route): (Token, RouteId)| {
        let unsent = unsent.remove(&token.id);
        let span = unsent.map(|unsent| unsent.span).unwrap_or_default();
        let report = release(hub, token, route);
        Report { span, ..report }
    };
    tokens.into_iter().map(release).collect()
}

/// What no worker has seen is right again where it was.
fn release(hub: &Hub, token: Token, route: RouteId) -> Report {
    let release = Settlement::Return {
        how: Move::Release,
        delay: None,
        error: None,
    };
    Report {
        owner: Some(hub.dispatcher),
        ..Report::new(token, Some(route), release)
    }
}

/// Puts claims back of which nothing is delivered.
pub(super) fn put_back(hub: &Hub, claims: &[Claim]) {
    let release = |claim: &Claim| release(hub, claim.token, claim.route);
    hub.settler.report(claims.iter().map(release).collect());
}

/// The end of a claim whose body or route can't be found.
pub(super) fn body_missing(hub: &Hub, claim: &Claim) -> Report {
    let lost = Failure::new(
        "body_missing",
        "The task's body or route is gone from the database.",
    );
    undelivered(hub, claim, Outcome::Unservable(lost))
}

fn undelivered(hub: &Hub, claim: &Claim, outcome: Outcome) -> Report {
    if let Outcome::Unservable(failure) = &outcome {
        let route = hub.routes.one(claim.route);
        tracing::warn!(
            task = claim.token.id,
            queue = route.as_deref().map(|route| route.task_queue.as_str()),
            attempt = claim.attempt.saturating_add(1),
            fence = claim.token.fence,
            class = failure.class,
            "task can't be delivered"
        );
    }
    // Neither outcome looks at the task's own limits.
    let policy = Policy {
        max_attempts: hub.settings.defaults.max_attempts,
        backoff: hub.settings.defaults.backoff,
        run_timeout: None,
        heartbeat_timeout: None,
    };
    let settlement = decide(outcome, claim.attempt, &policy, fastrand::f64());
    Report {
        owner: Some(hub.dispatcher),
        ..Report::new(claim.token, Some(claim.route), settlement)
    }
}

fn to_frame(claim: &Claim, body: Body, route: &Route, policy: &Policy) -> Task {
    let milliseconds = |limit: Option<std::time::Duration>| {
        limit.map_or(0, |limit| {
            u64::try_from(limit.as_millis()).unwrap_or(u64::MAX)
        })
    };
    let labels = parse(body.labels.as_deref()).unwrap_or_default();
    let trace_context = trace_context(&body);
    let (workflow_id, run_id, ordinal) = match body.member {
        Some((workflow, run, ordinal)) => (
            workflow.to_string(),
            run.to_string(),
            u32::try_from(ordinal).ok(),
        ),
        None => Default::default(),
    };
    Task {
        token: claim.token.to_string().into(),
        task_id: claim.token.id,
        namespace: route.namespace.clone(),
        task_queue: route.task_queue.clone(),
        task_type: route.task_type.clone(),
        node: route.node.clone(),
        payload: body.payload,
        content_type: body.content_type,
        attempt: claim.attempt.saturating_add(1),
        max_attempts: policy.max_attempts,
        labels,
        run_timeout_ms: milliseconds(policy.run_timeout),
        heartbeat_timeout_ms: milliseconds(policy.heartbeat_timeout),
        workflow_id,
        run_id,
        ordinal,
        idempotency_key: body.origin.to_string(),
        fence: i64::from(claim.token.fence),
        trace_context,
    }
}

/// The context that the task was enqueued with.
pub(super) fn trace_context(body: &Body) -> String {
    parse(body.options.as_deref())
        .and_then(|mut options: HashMap<String, serde_json::Value>| options.remove("trace_context"))
        .and_then(|value| value.as_str().map(str::to_owned))
        .unwrap_or_default()
}

/// The enqueue has checked what stands in these columns.
fn parse<T: serde::de::DeserializeOwned>(json: Option<&str>) -> Option<T> {
    serde_json::from_str(json?).ok()
}
