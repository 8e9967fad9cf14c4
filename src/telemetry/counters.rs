//! Counters and histograms that no route has to itself.

use std::time::Duration;

use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Registry;

use super::Labels;
use super::bounded::Bounded;
use super::parts::{Labelled, counter, histogram, rows, seconds, waits};
use crate::domain::scope::Transport;

/// Claims.
#[derive(Debug)]
pub struct Claims {
    statements: Counter,
    rows: Histogram,
    seconds: Histogram,
    scans: Counter,
}

impl Claims {
    pub(super) fn new(registry: &mut Registry) -> Self {
        Self {
            statements: counter(registry, "claims", "Claims that were answered"),
            rows: histogram(registry, "claim_rows", "Tasks that one claim took", rows()),
            seconds: histogram(
                registry,
                "claim_seconds",
                "From asking for a claim, and for a connection, to having its tasks with their bodies",
                seconds(),
            ),
            scans: counter(
                registry,
                "claim_index_scans",
                "Looks at the whole claim index for lanes with work",
            ),
        }
    }

    /// One claim was answered.
    pub fn claimed(&self, rows: usize, took: Duration) {
        self.statements.inc();
        self.rows.observe(rows as f64);
        self.seconds.observe(took.as_secs_f64());
    }

    /// The claim index was looked at.
    pub fn scanned(&self) {
        self.scans.inc();
    }
}

/// How tenants fare.
#[derive(Debug)]
pub struct Tenants {
    first_starts: Bounded<Histogram>,
    /// Tasks that came before more urgent ones, since they had waited for so long.
    pub aged: Counter,
    /// Sweeps that found a quota used up.
    pub used_up: Counter,
    /// Sweeps that found the bucket of a rate empty.
    pub throttled: Counter,
    /// Sweeps that found a quota or rate in the hands of another replica.
    pub contended: Counter,
}

impl Tenants {
    pub(super) fn new(registry: &mut Registry) -> Self {
        Self {
            first_starts: Bounded::histograms(
                registry,
                (
                    "first_start_wait_seconds",
                    "How long the first task of a namespace that had begun to wait had been due when it was claimed",
                ),
                "namespace",
                waits,
            ),
            aged: counter(
                registry,
                "tasks_aged",
                "Tasks that were claimed before more urgent ones, since they had waited for long",
            ),
            used_up: counter(
                registry,
                "quotas_used_up",
                "Quotas that a claim found used up",
            ),
            throttled: counter(
                registry,
                "rates_used_up",
                "Rates without a token that a claim met",
            ),
            contended: counter(
                registry,
                "quotas_contended",
                "Quotas and rates that a claim found in the hands of another replica",
            ),
        }
    }

    /// The first task of this namespace started so long after it was due.
    pub fn first_start(&self, namespace: &str, waited: Duration) {
        self.first_starts
            .of(namespace)
            .observe(waited.as_secs_f64());
    }
}

/// What came to be settled.
#[derive(Debug)]
pub struct Reports {
    verdicts: Labelled<2>,
    /// Reports whose row somebody else had locked.
    pub locked: Counter,
    rows: Histogram,
    seconds: Histogram,
}

impl Reports {
    pub(super) fn new(registry: &mut Registry) -> Self {
        Self {
            verdicts: Labelled::new(
                registry,
                "reports",
                "Reports about deliveries that were judged: recorded or superseded",
                "verdict",
                ["recorded", "superseded"],
            ),
            locked: counter(
                registry,
                "reports_locked",
                "Reports that wait alone, since somebody else has locked the row of their task",
            ),
            rows: histogram(registry, "settle_rows", "Reports in one batch", rows()),
            seconds: histogram(
                registry,
                "settle_seconds",
                "From taking a batch up to its commit, waits for a database that is away included",
                seconds(),
            ),
        }
    }

    /// Reports were judged.
    pub fn judged(&self, recorded: usize, superseded: usize) {
        self.verdicts.add(0, recorded as u64);
        self.verdicts.add(1, superseded as u64);
    }

    /// A batch was written.
    pub fn written(&self, rows: usize, took: Duration) {
        self.rows.observe(rows as f64);
        self.seconds.observe(took.as_secs_f64());
    }
}

/// What ended the waits of the sweep.
#[derive(Debug)]
pub struct Looks {
    reasons: Labelled<3>,
}

impl Looks {
    pub(super) fn new(registry: &mut Registry) -> Self {
        Self {
            reasons: Labelled::new(
                registry,
                "sweep_wakes",
                "Waits of the sweep that ended, by reason: news, slot, poll",
                "reason",
                ["news", "slot", "poll"],
            ),
        }
    }

    /// A notification, or rows that were put back here.
    pub fn news(&self) {
        self.reasons.add(0, 1);
    }

    /// A slot is free, or a worker came.
    pub fn slot(&self) {
        self.reasons.add(1, 1);
    }

    /// It was time.
    pub fn poll(&self) {
        self.reasons.add(2, 1);
    }
}

/// Notifications.
#[derive(Debug)]
pub struct Heard {
    kinds: Labelled<10>,
    listening: Gauge,
}

/// Kinds of notifications, by their place in the counters; the last is for those of newer releases.
const KINDS: [&str; 10] = [
    "enqueued", "back", "freed", "settings", "redrive", "keys", "orders", "awaiting", "ended",
    "unknown",
];

impl Heard {
    pub(super) fn new(registry: &mut Registry) -> Self {
        let listening = Gauge::default();
        registry.register(
            "listening",
            "1 while the connection for notifications is up, else 0: then only polls find work",
            listening.clone(),
        );
        Self {
            kinds: Labelled::new(
                registry,
                "notifications",
                "Notifications of the database that were taken up, by kind",
                "kind",
                KINDS,
            ),
            listening,
        }
    }

    /// One of this kind came.
    pub fn heard(&self, kind: &str) {
        let known = KINDS.iter().position(|known| *known == kind);
        self.kinds.add(known.unwrap_or(KINDS.len() - 1), 1);
    }

    /// Whether notifications arrive.
    pub fn listening(&self, up: bool) {
        self.listening.set(i64::from(up));
    }
}

/// Worker sessions.
#[derive(Debug)]
pub struct Sessions {
    opened: Labelled<2>,
    ended: Labelled<4>,
}

/// Why a session ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SessionEnd {
    /// The worker closed its stream.
    Closed,
    /// Its stream failed.
    Failed,
    /// It did not answer pings: it is lost.
    Lost,
    /// This replica ended it.
    Ended,
}

impl Sessions {
    pub(super) fn new(registry: &mut Registry) -> Self {
        Self {
            opened: Labelled::new(
                registry,
                "sessions_opened",
                "Worker sessions that began, by door",
                "door",
                Transport::ALL.map(Transport::name),
            ),
            ended: Labelled::new(
                registry,
                "sessions_ended",
                "Worker sessions that ended, by reason: closed, failed, lost, ended",
                "reason",
                ["closed", "failed", "lost", "ended"],
            ),
        }
    }

    /// A worker was welcomed.
    pub fn opened(&self, door: Transport) {
        let place = Transport::ALL.iter().position(|other| *other == door);
        self.opened.add(place.unwrap_or(0), 1);
    }

    /// A session ended.
    pub fn ended(&self, why: SessionEnd) {
        let place = match why {
            SessionEnd::Closed => 0,
            SessionEnd::Failed => 1,
            SessionEnd::Lost => 2,
            SessionEnd::Ended => 3,
        };
        self.ended.add(place, 1);
    }
}

/// Where tasks come in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Door {
    /// JSON over HTTP.
    Http,
    /// Protobuf over gRPC.
    Grpc,
}

/// Tasks that came in by the doors of this replica. What producers enqueue in SQL passes no replica.
#[derive(Debug)]
pub struct Enqueued {
    http: Labelled<3>,
    grpc: Labelled<3>,
}

impl Enqueued {
    pub(super) fn new(registry: &mut Registry) -> Self {
        let family: Family<Labels, Counter> = Family::default();
        registry.register(
            "tasks_enqueued",
            "Tasks that were enqueued by a door of this replica, by answer: created, existing, replaced",
            family.clone(),
        );
        let door = |door: &str| Labelled {
            counters: ["created", "existing", "replaced"].map(|answer| {
                let labels = vec![("door", door.to_owned()), ("answer", answer.to_owned())];
                family.get_or_create_owned(&labels)
            }),
        };
        Self {
            http: door("http"),
            grpc: door("grpc"),
        }
    }

    /// Tasks came in: so many are new, existed already, and took the place of another one.
    pub fn add(&self, door: Door, answers: [u64; 3]) {
        let counters = match door {
            Door::Http => &self.http,
            Door::Grpc => &self.grpc,
        };
        for (place, tasks) in answers.into_iter().enumerate() {
            counters.add(place, tasks);
        }
    }
}

/// Reads for scrapes.
#[derive(Debug)]
pub struct Database {
    reads: Labelled<2>,
    seconds: Histogram,
}

impl Database {
    pub(super) fn new(registry: &mut Registry) -> Self {
        Self {
            reads: Labelled::new(
                registry,
                "database_reads",
                "Reads of the database for scrapes, by result: done, failed",
                "result",
                ["done", "failed"],
            ),
            seconds: histogram(
                registry,
                "database_read_seconds",
                "How long a read of the database for scrapes took",
                seconds(),
            ),
        }
    }

    /// A read ended.
    pub fn read(&self, done: bool, took: Duration) {
        self.reads.add(usize::from(!done), 1);
        self.seconds.observe(took.as_secs_f64());
    }
}
