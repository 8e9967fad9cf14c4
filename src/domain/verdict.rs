//! Why is nobody running this? The gates between a task and its start, in order, judged by the functions that
//! dispatch uses too.

mod gate;
mod hold;

use chrono::{DateTime, SecondsFormat, Utc};

pub use gate::Gate;
pub use hold::Hold;

use super::id::DispatcherId;
use super::pause::Pause;
use super::placement::Nodes;
use super::quota::{Limited, Usage};
use super::rate::Rate;
use super::route::Route;
use super::scope::{self, Group};

/// Why no worker can take the due tasks of a route now, what an operator can act on first standing first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Reason {
    /// It is pinned to a node that its namespace does not allow.
    PinConflict,
    /// Workers serve it, and none of them answers.
    WorkersUnreachable,
    /// Workers serve it, and none of them has a slot at all.
    CapacityUnannounced,
    /// Workers serve it, and none of them has a free slot.
    WorkersAtCapacity,
    /// Nobody serves it, and its namespace takes tasks for declared queues only.
    QueueNotDeclared,
    /// Workers know how to do it, on nodes where it may not run.
    OtherNode,
    /// Workers of its queue are there, for other types.
    OtherType,
    /// No live worker of its queue is there.
    NoLiveWorkers,
}

impl Reason {
    /// All of them, in their order.
    pub const ALL: [Self; 8] = [
        Self::PinConflict,
        Self::WorkersUnreachable,
        Self::CapacityUnannounced,
        Self::WorkersAtCapacity,
        Self::QueueNotDeclared,
        Self::OtherNode,
        Self::OtherType,
        Self::NoLiveWorkers,
    ];

    /// Its stable name, as error class of the tasks that end by it too.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::PinConflict => "pin_conflicts_with_placement",
            Self::WorkersUnreachable => "workers_unreachable",
            Self::CapacityUnannounced => "capacity_unannounced",
            Self::WorkersAtCapacity => "workers_at_capacity",
            Self::QueueNotDeclared => "queue_not_declared",
            Self::OtherNode | Self::OtherType => "workers_incompatible",
            Self::NoLiveWorkers => "no_live_workers",
        }
    }

    /// The same for people, without a full stop.
    #[must_use]
    pub const fn sentence(self) -> &'static str {
        match self {
            Self::PinConflict => {
                "the task is pinned to a node that the placement of its namespace does not allow"
            }
            Self::WorkersUnreachable => "workers serve it, and none of them answers",
            Self::CapacityUnannounced => "workers serve it, and none of them has announced a slot",
            Self::WorkersAtCapacity => "workers serve it, and all their slots are busy",
            Self::QueueNotDeclared => {
                "nobody serves it, and its namespace takes tasks for declared queues only"
            }
            Self::OtherNode => "workers know its type, on nodes where it may not run",
            Self::OtherType => "workers of its queue are there, for other task types",
            Self::NoLiveWorkers => "no live worker of its queue is there",
        }
    }

    const fn gate(self) -> Gate {
        match self {
            Self::PinConflict => Gate::Placement,
            Self::WorkersUnreachable => Gate::Reach,
            Self::CapacityUnannounced | Self::WorkersAtCapacity => Gate::Capacity,
            Self::QueueNotDeclared | Self::OtherNode | Self::OtherType | Self::NoLiveWorkers => {
                Gate::Workers
            }
        }
    }
}

/// Whether one of the workers of all live replicas could take a task of this route now, and else why not.
///
/// # Errors
/// The first [`Reason`] that applies.
pub fn census(route: &Route, groups: &[Group]) -> Result<(), Reason> {
    let nodes = scope::nodes(route, || groups.to_vec());
    if nodes == Nodes::PinConflict {
        return Err(Reason::PinConflict);
    }
    let manned = || groups.iter().filter(|group| group.workers > 0);
    let serving = || manned().filter(|group| group.scope.serves(route, nodes));
    let live = || serving().filter(|group| group.is_live());
    if live().any(|group| group.free > 0) {
        Ok(())
    } else if live().any(|group| group.slots > 0) {
        Err(Reason::WorkersAtCapacity)
    } else if live().next().is_some() {
        Err(Reason::CapacityUnannounced)
    } else if serving().next().is_some() {
        Err(Reason::WorkersUnreachable)
    } else if route.undeclared {
        Err(Reason::QueueNotDeclared)
    } else if manned().any(|group| group.scope.knows(route)) {
        Err(Reason::OtherNode)
    } else if manned().any(|group| group.scope.is_of_queue(route)) {
        Err(Reason::OtherType)
    } else {
        Err(Reason::NoLiveWorkers)
    }
}

/// Where a task is in its life.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Stage {
    /// In the line.
    Ready {
        /// When it is due, unless it is due already.
        due_at: Option<DateTime<Utc>>,
        /// What holds it.
        hold: Hold,
    },
    /// A replica has it.
    Claimed(Claimed),
    /// It is over.
    Ended {
        /// `done`, `failed` or `cancelled`.
        state: String,
        /// When.
        at: DateTime<Utc>,
        /// What went wrong, in a word.
        class: Option<String>,
    },
}

/// Who has a task.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Claimed {
    /// The replica's identity.
    pub dispatcher: DispatcherId,
    /// Its name for people.
    pub replica: String,
    /// The worker's identity, where the one who answers knows it.
    pub worker: Option<String>,
    /// Since when.
    pub since: DateTime<Utc>,
    /// Somebody has asked to cancel it.
    pub cancel_requested: bool,
}

/// What is known of a task and of those who may run it.
#[derive(Clone, Debug)]
pub struct Facts<'f> {
    /// Where it goes.
    pub route: &'f Route,
    /// Where it is.
    pub stage: Stage,
    /// Everything that is paused.
    pub pauses: &'f [Pause],
    /// The workers of all live replicas.
    pub groups: &'f [Group],
    /// The quotas and rates above it.
    pub quotas: &'f [Usage],
}

/// Why a task is not running, or that it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It has ended.
    Ended {
        /// `done`, `failed` or `cancelled`.
        state: String,
        /// When.
        at: DateTime<Utc>,
        /// What went wrong, in a word.
        class: Option<String>,
    },
    /// A replica has it.
    Claimed(Claimed),
    /// It is not due yet.
    NotDue(DateTime<Utc>),
    /// Something holds it.
    Held(Hold),
    /// Operators have paused it; each of these has to be resumed.
    Paused(Vec<Pause>),
    /// A quota above it is used up.
    QuotaUsed(Usage),
    /// A rate above it puts it off until then, and behind those before it in the line.
    Throttled(Limited, Rate, DateTime<Utc>),
    /// It is the next one of its concurrency key, whose rate puts it off until then.
    KeyThrottled(Rate, DateTime<Utc>),
    /// Nobody can take it.
    Unserved(Reason),
    /// Nothing: the next sweep claims it, or those that stand before it in the line.
    WillBeClaimed,
}

impl Verdict {
    /// Its stable name; that of the reason where nobody can take the task.
    #[must_use]
    pub const fn name(&self) -> &'static str {
        match self {
            Self::Ended { .. } => "ended",
            Self::Claimed(_) => "claimed",
            Self::NotDue(_) => "not_due",
            Self::Held(_) => "held",
            Self::Paused(_) => "paused",
            Self::QuotaUsed(_) => "quota_used_up",
            Self::Throttled(..) | Self::KeyThrottled(..) => "throttled",
            Self::Unserved(reason) => reason.name(),
            Self::WillBeClaimed => "will_be_claimed",
        }
    }

    /// The gate at which the task stands; none where nothing stops it.
    #[must_use]
    pub const fn gate(&self) -> Option<Gate> {
        match self {
            Self::Ended { .. } => Some(Gate::Unfinished),
            Self::Claimed(_) => Some(Gate::Unclaimed),
            Self::NotDue(_) => Some(Gate::Due),
            Self::Held(_) => Some(Gate::Hold),
            Self::Paused(_) => Some(Gate::Pause),
            Self::QuotaUsed(_) => Some(Gate::Quota),
            Self::Throttled(..) | Self::KeyThrottled(..) => Some(Gate::Rate),
            Self::Unserved(reason) => Some(reason.gate()),
            Self::WillBeClaimed => None,
        }
    }

    /// The same for people, without a full stop.
    #[must_use]
    pub fn sentence(&self) -> String {
        match self {
            Self::Ended { state, at, class } => {
                let class = class.as_ref();
                let class = class.map_or_else(String::new, |class| format!(" ({class})"));
                format!("it has ended as {state}{class} at {}", time(*at))
            }
            Self::Claimed(claimed) => claimed.sentence(),
            Self::NotDue(at) => format!("it is due at {}", time(*at)),
            Self::Held(hold) => hold.sentence(),
            Self::Paused(pauses) => {
                let pauses: Vec<String> = pauses.iter().map(Pause::sentence).collect();
                format!("it does not start: {}", pauses.join("; "))
            }
            Self::QuotaUsed(usage) => {
                let (whose, quota) = (whose(usage.of), usage.quota.unwrap_or(i32::MAX));
                format!(
                    "the quota of its {whose}: {} of {quota} used",
                    usage.claimed
                )
            }
            Self::Throttled(of, rate, until) => {
                let (whose, until) = (whose(*of), time(*until));
                format!("the rate of its {whose}, {rate}: the next task may start at {until}")
            }
            Self::KeyThrottled(rate, until) => {
                let until = time(*until);
                format!("the rate of its concurrency key, {rate}: it may start at {until}")
            }
            Self::Unserved(reason) => reason.sentence().to_owned(),
            Self::WillBeClaimed => {
                "nothing stops it: it is claimed as soon as those before it in the line are"
                    .to_owned()
            }
        }
    }
}

impl Claimed {
    fn sentence(&self) -> String {
        let worker = self.worker.as_ref();
        let worker = worker.map_or_else(String::new, |worker| format!(", on worker {worker}"));
        let cancel = if self.cancel_requested {
            "; it has been asked to stop"
        } else {
            ""
        };
        format!(
            "replica {} (dispatcher {}) has it since {}{worker}{cancel}",
            self.replica,
            self.dispatcher,
            time(self.since)
        )
    }
}

fn whose(of: Limited) -> &'static str {
    match of {
        Limited::Namespace(_) => "namespace",
        Limited::Route(_) => "route",
    }
}

fn time(at: DateTime<Utc>) -> String {
    at.to_rfc3339_opts(SecondsFormat::Millis, true)
}

/// Everything that stops a task now, in the order of the gates; empty when the next sweep may claim it. What has ended
/// or is claimed stands at one gate only.
#[must_use]
pub fn stops(facts: &Facts<'_>) -> Vec<Verdict> {
    let (due_at, hold) = match &facts.stage {
        Stage::Ended { state, at, class } => {
            return vec![Verdict::Ended {
                state: state.clone(),
                at: *at,
                class: class.clone(),
            }];
        }
        Stage::Claimed(claimed) => return vec![Verdict::Claimed(claimed.clone())],
        Stage::Ready { due_at, hold } => (*due_at, hold),
    };
    let unserved = census(facts.route, facts.groups).err();
    let covers = |pause: &&Pause| pause.address.covers(facts.route);
    let pauses: Vec<Pause> = facts.pauses.iter().filter(covers).cloned().collect();
    let mut quotas = facts.quotas.iter();
    let used_up = quotas.find(|usage| usage.quota_left() == Some(0)).copied();
    let puts_off = facts.quotas.iter().filter_map(|usage| {
        let bucket = usage.bucket?;
        let until = bucket.free_at(usage.at);
        (until > usage.at).then_some((until, usage.of, bucket.rate))
    });
    let throttled = puts_off.max_by_key(|(until, ..)| *until);
    [
        due_at.map(Verdict::NotDue),
        (!hold.is_free()).then(|| Verdict::Held(hold.clone())),
        (!pauses.is_empty()).then_some(Verdict::Paused(pauses)),
        used_up.map(Verdict::QuotaUsed),
        hold.key_rate
            .map(|(rate, until)| Verdict::KeyThrottled(rate, until)),
        throttled.map(|(until, of, rate)| Verdict::Throttled(of, rate, until)),
        unserved.map(Verdict::Unserved),
    ]
    .into_iter()
    .flatten()
    .collect()
}

/// What each gate says, given all that [`stops`] the task: what it says against it, or that it is passed, or nothing
/// where an earlier gate leaves nothing to look at.
#[must_use]
pub fn gates(stops: &[Verdict]) -> Vec<(Gate, Option<Result<(), &Verdict>>)> {
    let end = match stops.last() {
        Some(last @ (Verdict::Ended { .. } | Verdict::Unserved(_))) => last.gate(),
        _ => None,
    };
    let says = |gate: Gate| match stops.iter().find(|stop| stop.gate() == Some(gate)) {
        Some(stop) => Some(Err(stop)),
        None if end.is_some_and(|end| gate > end) => None,
        None => Some(Ok(())),
    };
    Gate::ALL.map(|gate| (gate, says(gate))).into()
}

/// The first of the [`stops`], or that there is none.
#[must_use]
pub fn judge(facts: &Facts<'_>) -> Verdict {
    let first = stops(facts).into_iter().next();
    first.unwrap_or(Verdict::WillBeClaimed)
}

#[cfg(test)]
mod tests;
