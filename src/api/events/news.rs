//! What is new since the last look, as events.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use serde::Serialize;

use super::Said;
use super::look::{COUNTED, Look};
use crate::api::PauseView;
use crate::api::operators::{Count, HeldView, RouteView};
use crate::domain::id::{DispatcherId, TaskId};
use crate::store::events::{Address, Flow, NewLetter, Unserved};
use crate::store::queues::{Counted, Queue};
use crate::store::workers::Present;

/// What comes and goes, in tasks a second over the last five.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
struct FlowView {
    enqueued_per_s: f64,
    done_per_s: f64,
    failed_per_s: f64,
    cancelled_per_s: f64,
    /// From the last claim to the end; null where nothing ended.
    run_p50_ms: Option<f64>,
    run_p95_ms: Option<f64>,
}

impl From<Flow> for FlowView {
    fn from(flow: Flow) -> Self {
        let round = |value: f64| (value * 100.0).round() / 100.0;
        Self {
            enqueued_per_s: round(flow.enqueued),
            done_per_s: round(flow.done),
            failed_per_s: round(flow.failed),
            cancelled_per_s: round(flow.cancelled),
            run_p50_ms: flow.run_p50_ms.map(round),
            run_p95_ms: flow.run_p95_ms.map(round),
        }
    }
}

/// All queues that have something unfinished, together.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub(super) struct TotalsView {
    ready: Count,
    later: Count,
    held: i64,
    claimed: i64,
    /// Milliseconds since the first due task was due.
    oldest_ms: Option<u64>,
    #[serde(flatten)]
    flow: FlowView,
}

fn milliseconds(queue: &Queue) -> Option<u64> {
    let oldest = queue.oldest?;
    Some(u64::try_from(oldest.as_millis()).unwrap_or(u64::MAX))
}

fn sum(queues: &[Queue], of: impl Fn(&Queue) -> Counted) -> Count {
    let counts = queues.iter().map(|queue| Count::up_to(COUNTED, of(queue)));
    let none = Count {
        tasks: 0,
        estimated: false,
    };
    counts.fold(none, |sum, count| Count {
        tasks: sum.tasks + count.tasks,
        estimated: sum.estimated || count.estimated,
    })
}

impl TotalsView {
    pub(super) fn of(look: &Look) -> Self {
        let all = look.flows.iter().find(|flow| flow.route.is_none());
        // A task can be held for several reasons, and counts once here.
        let held = |queue: &Queue| {
            let held = queue.held;
            held.workflow.max(held.key).max(held.throttle)
        };
        Self {
            ready: sum(&look.queues, |queue| queue.ready),
            later: sum(&look.queues, |queue| queue.later),
            held: look.queues.iter().map(held).sum(),
            claimed: look.queues.iter().map(|queue| queue.claimed).sum(),
            oldest_ms: look.queues.iter().filter_map(milliseconds).max(),
            flow: all.copied().unwrap_or_default().into(),
        }
    }
}

#[derive(Serialize)]
struct QueueView<'l> {
    namespace: &'l str,
    task_queue: &'l str,
    task_type: &'l str,
    node: Option<&'l str>,
    paused: bool,
    ready: Count,
    later: Count,
    held: HeldView,
    claimed: i64,
    oldest_ms: Option<u64>,
    #[serde(flatten)]
    flow: FlowView,
}

#[derive(Serialize)]
struct QueuesView<'l> {
    totals: TotalsView,
    queues: Vec<QueueView<'l>>,
    more: bool,
}

/// `queues`: what waits and runs, and how fast it goes.
pub(super) fn queues(look: &Look, totals: TotalsView) -> Said {
    let flows: HashMap<_, Flow> = look.flows.iter().map(|flow| (flow.route, *flow)).collect();
    let queues = look.queues.iter().map(|queue| QueueView {
        namespace: &queue.namespace,
        task_queue: &queue.task_queue,
        task_type: &queue.task_type,
        node: queue.node.as_deref(),
        paused: queue.paused,
        ready: Count::up_to(COUNTED, queue.ready),
        later: Count::up_to(COUNTED, queue.later),
        held: queue.held.into(),
        claimed: queue.claimed,
        oldest_ms: milliseconds(queue),
        flow: flows
            .get(&Some(queue.route))
            .copied()
            .unwrap_or_default()
            .into(),
    });
    let view = QueuesView {
        totals,
        queues: queues.collect(),
        more: look.more,
    };
    Said::new("queues", &view)
}

/// `database`: it has stopped to answer, or answers again.
pub(super) fn database(answers: bool, detail: Option<String>) -> Said {
    #[derive(Serialize)]
    struct View {
        answers: bool,
        detail: Option<String>,
    }
    Said::new("database", &View { answers, detail })
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
struct ReplicaLine {
    dispatcher: String,
    name: String,
    version: String,
    state: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
struct WorkerLine {
    worker_id: String,
    identity: String,
    state: String,
    slots: i32,
    node: Option<String>,
    task_queue: String,
    dispatcher: String,
    replica: String,
}

impl WorkerLine {
    fn of(identity: String, present: Present) -> Self {
        Self {
            worker_id: present.worker_id,
            identity,
            state: present.state,
            slots: present.slots,
            node: present.node,
            task_queue: present.task_queue,
            dispatcher: present.dispatcher.to_string(),
            replica: present.replica,
        }
    }
}

/// What the next look is compared with.
#[derive(Debug)]
pub(super) struct Seen {
    replicas: BTreeMap<DispatcherId, ReplicaLine>,
    workers: BTreeMap<String, WorkerLine>,
    pauses: BTreeMap<String, PauseView>,
    unserved: BTreeMap<Address, Unserved>,
    letters: BTreeSet<TaskId>,
    fresh: Vec<NewLetter>,
}

impl Seen {
    pub(super) fn of(look: Look, before: Option<&Self>) -> Self {
        let replicas = look.replicas.into_iter().map(|replica| {
            let line = ReplicaLine {
                dispatcher: replica.id.to_string(),
                name: replica.name,
                version: replica.version,
                state: replica.state,
            };
            (replica.id, line)
        });
        let workers = look.workers.into_iter().filter_map(|worker| {
            let line = WorkerLine::of(worker.identity, worker.present?);
            Some((line.worker_id.clone(), line))
        });
        let pauses = look.pauses.into_iter().map(|pause| {
            let view = PauseView::from(pause);
            (view.name.clone(), view)
        });
        let unserved = look.unserved.into_iter();
        let letters = look.letters.iter().map(|letter| letter.id).collect();
        let is_new =
            |letter: &NewLetter| before.is_some_and(|before| !before.letters.contains(&letter.id));
        Self {
            replicas: replicas.collect(),
            workers: workers.collect(),
            pauses: pauses.collect(),
            unserved: unserved.map(|one| (one.address.clone(), one)).collect(),
            letters,
            fresh: look.letters.into_iter().filter(is_new).collect(),
        }
    }

    /// What has changed since then, an event each.
    pub(super) fn news(&self, before: &Self) -> Vec<Said> {
        let mut news = Vec::new();
        news.extend(self.replicas(before));
        news.extend(self.workers(before));
        news.extend(self.pauses(before));
        news.extend(self.unserved(before));
        news.extend(self.letters());
        news
    }

    /// `replica`: its state now, `gone` where nothing is kept of it.
    fn replicas(&self, before: &Self) -> Vec<Said> {
        let gone = |line: &ReplicaLine| ReplicaLine {
            state: "gone".to_owned(),
            ..line.clone()
        };
        changes(&before.replicas, &self.replicas, gone)
            .map(|line| Said::new("replica", &line))
            .collect()
    }

    /// `worker`: its state now, `gone` where it is connected no more.
    fn workers(&self, before: &Self) -> Vec<Said> {
        let gone = |line: &WorkerLine| WorkerLine {
            state: "gone".to_owned(),
            ..line.clone()
        };
        changes(&before.workers, &self.workers, gone)
            .map(|line| Said::new("worker", &line))
            .collect()
    }

    /// `pause`: an address is paused, or is no more.
    fn pauses(&self, before: &Self) -> Vec<Said> {
        #[derive(PartialEq, Serialize)]
        struct View {
            paused: bool,
            #[serde(flatten)]
            pause: PauseView,
        }
        let view = |paused: bool, pause: &PauseView| View {
            paused,
            pause: pause.clone(),
        };
        let lifted = before.pauses.iter();
        let lifted = lifted.filter(|(name, _)| !self.pauses.contains_key(*name));
        let lifted = lifted.map(|(_, pause)| view(false, pause));
        let paused = self.pauses.iter();
        let paused = paused.filter(|(name, pause)| before.pauses.get(*name) != Some(*pause));
        let paused = paused.map(|(_, pause)| view(true, pause));
        lifted
            .chain(paused)
            .map(|view| Said::new("pause", &view))
            .collect()
    }

    /// `unserved`: nobody serves an address, as judged, or somebody does again.
    fn unserved(&self, before: &Self) -> Vec<Said> {
        #[derive(Serialize)]
        struct View {
            unserved: bool,
            #[serde(flatten)]
            route: RouteView,
            reason: String,
            since: String,
        }
        let view = |unserved: bool, one: &Unserved| View {
            unserved,
            route: route(&one.address),
            reason: one.reason.clone(),
            since: one.since.clone(),
        };
        let served = before.unserved.iter();
        let served = served.filter(|(address, _)| !self.unserved.contains_key(*address));
        let served = served.map(|(_, one)| view(false, one));
        let unserved = self.unserved.iter();
        let unserved = unserved.filter(|(address, one)| {
            let known = before.unserved.get(*address);
            known.is_none_or(|known| known.reason != one.reason)
        });
        let unserved = unserved.map(|(_, one)| view(true, one));
        served
            .chain(unserved)
            .map(|view| Said::new("unserved", &view))
            .collect()
    }

    /// `dead_letters`: how many more there are of an address, by cause.
    fn letters(&self) -> Vec<Said> {
        #[derive(Serialize)]
        struct View {
            #[serde(flatten)]
            route: RouteView,
            cause: String,
            letters: usize,
            /// The last of them, and what went wrong with it.
            last: String,
            error_class: String,
        }
        let mut groups: BTreeMap<(&Address, &str), (usize, &NewLetter)> = BTreeMap::new();
        for letter in &self.fresh {
            let group = groups.entry((&letter.address, letter.cause.as_str()));
            let group = group.or_insert((0, letter));
            *group = (group.0 + 1, letter);
        }
        let views = groups
            .into_iter()
            .map(|((address, cause), (letters, last))| View {
                route: route(address),
                cause: cause.to_owned(),
                letters,
                last: last.id.to_string(),
                error_class: last.error_class.clone(),
            });
        views.map(|view| Said::new("dead_letters", &view)).collect()
    }
}

fn route(address: &Address) -> RouteView {
    RouteView {
        namespace: address.namespace.clone(),
        task_queue: address.task_queue.clone(),
        task_type: address.task_type.clone(),
        node: address.node.clone(),
    }
}

/// What is new or other than before, and what is gone, as `gone` says it.
fn changes<'m, K: Ord, L: Clone + PartialEq>(
    before: &'m BTreeMap<K, L>,
    now: &'m BTreeMap<K, L>,
    gone: impl Fn(&L) -> L + 'm,
) -> impl Iterator<Item = L> + 'm {
    let left = before.iter().filter(|(key, _)| !now.contains_key(*key));
    let left = left.map(move |(_, line)| gone(line));
    let came = now
        .iter()
        .filter(|(key, line)| before.get(*key) != Some(*line));
    left.chain(came.map(|(_, line)| line.clone()))
}
