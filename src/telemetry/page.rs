//! The gauges of one scrape.

use std::collections::BTreeMap;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;

use super::now::{DatabaseNow, LettersNow, Now, QueueNow, ReplicaNow};
use super::{Labels, OTHER};

/// Routes, queues and namespaces with series of their own, beside [`OTHER`].
pub const SHOWN: usize = 200;

type Real = Gauge<f64, AtomicU64>;

/// A page to be: gauges with their values.
struct Page(Registry);

impl Page {
    fn one(&mut self, name: &str, help: &str, value: f64) {
        self.many(name, help, [(Vec::new(), value)]);
    }

    fn many(&mut self, name: &str, help: &str, series: impl IntoIterator<Item = (Labels, f64)>) {
        let family: Family<Labels, Real> = Family::default();
        for (labels, value) in series {
            family.get_or_create_owned(&labels).set(value);
        }
        self.0.register(name, help, family);
    }
}

/// Everything that is known of this moment.
pub(super) fn gauges(now: &Now) -> Registry {
    let mut page = Page(Registry::with_prefix("fencepost"));
    let version = vec![("version", env!("CARGO_PKG_VERSION").to_owned())];
    let help = "1, with the version of the program";
    page.many("build_info", help, [(version, 1.0)]);
    replica(&mut page, &now.replica);
    faults(&mut page, &now.faults);
    page.one(
        "database_read_age_seconds",
        "Since the read of the database began that the gauges of queues show; +Inf before the first",
        now.database_age
            .map_or(f64::INFINITY, |age| age.as_secs_f64()),
    );
    if let Some(database) = &now.database {
        self::database(&mut page, database);
        queues(&mut page, largest_queues(&database.queues));
        letters(&mut page, largest_letters(&database.letters));
    }
    page.0
}

fn replica(page: &mut Page, replica: &ReplicaNow) {
    let flag = |set: bool| f64::from(u8::from(set));
    page.one("ready", "1 while /readyz says yes", flag(replica.ready));
    let help = "1 while this replica shuts down and takes nothing new";
    page.one("draining", help, flag(replica.draining));
    let workers = replica.workers.iter();
    let workers = workers.map(|(door, workers)| {
        let labels = vec![("door", door.name().to_owned())];
        (labels, *workers as f64)
    });
    page.many("workers", "Workers connected to this replica", workers);
    let [size, open, in_use, waiting] = replica.pool;
    let numbers = [
        (
            "slots",
            "Slots of the workers of this replica",
            replica.slots,
        ),
        (
            "slots_free",
            "Slots that could take a task now",
            replica.slots_free,
        ),
        (
            "slots_stuck",
            "Slots of cancelled tasks that their workers go on with",
            replica.slots_stuck,
        ),
        (
            "deliveries_in_flight",
            "Tasks and direct requests that workers of this replica have",
            replica.in_flight,
        ),
        (
            "settler_backlog",
            "Reports that are not settled yet",
            replica.backlog,
        ),
        (
            "database_pool_size",
            "Connections of this replica at most",
            size,
        ),
        ("database_pool_open", "Connections that are open", open),
        ("database_pool_in_use", "Connections that do work", in_use),
        (
            "database_pool_waiting",
            "Callers that wait for a connection",
            waiting,
        ),
    ];
    for (name, help, value) in numbers {
        page.one(name, help, value as f64);
    }
}

fn faults(page: &mut Page, faults: &[(&'static str, u64)]) {
    let family: Family<Labels, Counter> = Family::default();
    for (class, times) in faults {
        let labels = vec![("class", (*class).to_owned())];
        family.get_or_create_owned(&labels).inc_by(*times);
    }
    page.0.register(
        "database_errors",
        "Calls to the database without a result, by class of SQLSTATE; none where no server answered",
        family,
    );
}

fn database(page: &mut Page, database: &DatabaseNow) {
    let numbers = [
        ("replicas", "Replicas that beat", database.replicas as f64),
        (
            "replicas_silent",
            "Replicas without a beat for a minute that nobody has declared dead",
            database.silent as f64,
        ),
        (
            "partitions_ahead_seconds",
            "Until ids run out of partitions",
            database.partitions_ahead,
        ),
        (
            "snapshot_age_seconds",
            "Since the transaction began that keeps dead rows from being vacuumed; 0 for none",
            database.snapshot.0,
        ),
        (
            "snapshot_age_transactions",
            "Transactions since the oldest snapshot that keeps dead rows from being vacuumed",
            database.snapshot.1,
        ),
    ];
    for (name, help, value) in numbers {
        page.one(name, help, value);
    }
    let quota = |value: fn(&super::NamespaceNow) -> i64| {
        let shown = database.namespaces.iter().take(SHOWN);
        let series = shown.map(move |namespace| {
            let labels = vec![("namespace", namespace.name.clone())];
            (labels, value(namespace) as f64)
        });
        series.collect::<Vec<_>>()
    };
    page.many(
        "namespace_quota_used",
        "Tasks of a namespace with a quota that are claimed, over all replicas",
        quota(|namespace| namespace.used),
    );
    page.many(
        "namespace_quota_limit",
        "Tasks of a namespace that may be claimed at the same time",
        quota(|namespace| namespace.quota),
    );
}

/// Routes by name: those of several nodes are one, and those beyond the largest [`SHOWN`] are one.
fn largest_queues(queues: &[QueueNow]) -> Vec<QueueNow> {
    let mut named: BTreeMap<&[String; 3], QueueNow> = BTreeMap::new();
    for queue in queues {
        let fresh = || QueueNow {
            name: queue.name.clone(),
            ..QueueNow::default()
        };
        add(named.entry(&queue.name).or_insert_with(fresh), queue);
    }
    let mut all: Vec<QueueNow> = named.into_values().collect();
    all.sort_by_key(|queue| std::cmp::Reverse(queue.size()));
    if all.len() > SHOWN {
        let mut other = QueueNow {
            name: [OTHER; 3].map(str::to_owned),
            ..QueueNow::default()
        };
        for queue in all.drain(SHOWN..) {
            add(&mut other, &queue);
        }
        // A quota bounds one route, and is used by no other.
        other.quota = None;
        all.push(other);
    }
    all
}

fn add(sum: &mut QueueNow, queue: &QueueNow) {
    sum.ready += queue.ready;
    sum.later += queue.later;
    sum.claimed += queue.claimed;
    for (sum, more) in sum.held.iter_mut().zip(queue.held) {
        *sum += more;
    }
    sum.oldest = sum.oldest.max(queue.oldest);
    sum.estimated |= queue.estimated;
    sum.paused |= queue.paused;
    if sum.unserved.is_none() {
        sum.unserved.clone_from(&queue.unserved);
    }
    if let Some(quota) = queue.quota {
        sum.quota = Some(sum.quota.unwrap_or(0) + quota);
    }
}

fn labels(name: &[String; 3]) -> Labels {
    let [namespace, task_queue, task_type] = name.clone();
    vec![
        ("namespace", namespace),
        ("task_queue", task_queue),
        ("task_type", task_type),
    ]
}

fn queues(page: &mut Page, queues: Vec<QueueNow>) {
    let mut each = |name: &str, help: &str, value: fn(&QueueNow) -> f64| {
        let series = queues.iter();
        let series = series.map(|queue| (labels(&queue.name), value(queue)));
        page.many(name, help, series);
    };
    each("tasks_ready", "Due tasks", |queue| queue.ready as f64);
    let help = "Tasks that are not due yet";
    each("tasks_later", help, |queue| queue.later as f64);
    let help = "Tasks that are claimed, over all replicas";
    each("tasks_in_flight", help, |queue| queue.claimed as f64);
    let help =
        "1 where ready or later tasks are too many to count, and their number is an estimate";
    each("tasks_estimated", help, |queue| flag(queue.estimated));
    let help = "Since the first of the due tasks was due; 0 where none is";
    each("oldest_due_age_seconds", help, |queue| {
        Duration::as_secs_f64(&queue.oldest)
    });
    let help = "1 where a pause covers the route";
    each("queue_paused", help, |queue| flag(queue.paused));

    let with = |queue: &QueueNow, name: &'static str, value: &str| {
        let mut labels = labels(&queue.name);
        labels.push((name, value.to_owned()));
        labels
    };
    let held = queues.iter().flat_map(|queue| {
        let reasons = ["workflow_paused", "key_busy", "throttled"];
        let counts = reasons.into_iter().zip(queue.held);
        counts.map(|(reason, tasks)| (with(queue, "reason", reason), tasks as f64))
    });
    page.many(
        "tasks_held",
        "Tasks outside of the line, by what holds them",
        held,
    );
    let unserved = queues.iter().filter_map(|queue| {
        let reason = queue.unserved.as_deref()?;
        Some((with(queue, "reason", reason), 1.0))
    });
    page.many(
        "queue_unserved",
        "1 where due tasks wait and no worker of any replica serves them, by reason",
        unserved,
    );
    let quotas = queues.iter().filter_map(|queue| {
        let quota = queue.quota?;
        Some((labels(&queue.name), quota as f64))
    });
    page.many(
        "queue_quota_limit",
        "Tasks of a route that may be claimed at the same time",
        quotas,
    );
}

fn flag(set: bool) -> f64 {
    f64::from(u8::from(set))
}

/// Queues by name, those beyond the largest [`SHOWN`] as one.
fn largest_letters(letters: &[LettersNow]) -> Vec<LettersNow> {
    let mut named: BTreeMap<&[String; 2], LettersNow> = BTreeMap::new();
    for one in letters {
        let sum = named.entry(&one.name).or_insert_with(|| LettersNow {
            name: one.name.clone(),
            ..LettersNow::default()
        });
        sum.letters += one.letters;
        sum.more |= one.more;
    }
    let mut all: Vec<LettersNow> = named.into_values().collect();
    all.sort_by_key(|one| std::cmp::Reverse(one.letters));
    if all.len() > SHOWN {
        let rest = all.split_off(SHOWN);
        all.push(LettersNow {
            name: [OTHER; 2].map(str::to_owned),
            letters: rest.iter().map(|one| one.letters).sum(),
            more: rest.iter().any(|one| one.more),
        });
    }
    all
}

fn letters(page: &mut Page, letters: Vec<LettersNow>) {
    let mut each = |name: &str, help: &str, value: fn(&LettersNow) -> f64| {
        let series = letters.iter().map(|one| {
            let [namespace, task_queue] = one.name.clone();
            let labels = vec![("namespace", namespace), ("task_queue", task_queue)];
            (labels, value(one))
        });
        page.many(name, help, series);
    };
    let help =
        "Dead letters that nobody has redriven or discarded, of the newest 10,000 of each route";
    each("dead_letters", help, |one| one.letters as f64);
    let help = "1 where there may be more dead letters than were looked at";
    each("dead_letters_uncounted", help, |one| flag(one.more));
}
