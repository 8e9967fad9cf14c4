//! `/metrics`: every name is documented and every number is that of the database.
#![allow(
    clippy::float_cmp,
    reason = "samples are floats by their format, and counts of whole things"
)]

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use fencepost::proto::worker::{FailureKind, Task, Verdict};
use parking_lot::Mutex;
use tokio_util::sync::CancellationToken;

use crate::lifecycle::SHORT;
use crate::support::exposition::Page;
use crate::support::tasks::{count, ended, enqueue};
use crate::support::{Operator, Replica, ScriptedWorker, TcpProxy, TestDb, eventually, fencepost};

const STEP: Duration = Duration::from_secs(40);

/// Type and labels of each metric that docs/metrics.md names.
pub fn documented() -> BTreeMap<String, (String, BTreeSet<String>)> {
    let page = concat!(env!("CARGO_MANIFEST_DIR"), "/docs/metrics.md");
    let page = std::fs::read_to_string(page).unwrap();
    let mut metrics = BTreeMap::new();
    for line in page.lines() {
        let Some((name, rest)) = line
            .strip_prefix("| `fencepost_")
            .and_then(|line| line.split_once('`'))
        else {
            continue;
        };
        let cells: Vec<&str> = rest.split('|').map(str::trim).collect();
        let [_, kind, unit, labels, what, _action, _] = cells[..] else {
            panic!("{line}: not six cells");
        };
        assert!(!unit.is_empty() && !what.is_empty(), "{line}");
        let labels = labels.split(',').map(str::trim);
        let labels = labels.filter(|label| !label.is_empty()).map(str::to_owned);
        let before = metrics.insert(
            format!("fencepost_{name}"),
            (kind.to_owned(), labels.collect()),
        );
        assert!(before.is_none(), "{name} has two rows");
    }
    metrics
}

#[tokio::test]
async fn the_page_names_what_a_replica_prints_and_nothing_else() {
    let test = TestDb::new().await;
    let env: Vec<_> = SHORT
        .iter()
        .copied()
        .chain([("REPLICA__DEAD_AFTER", "1s")])
        .collect();
    let replica = Replica::start(&test.url(), &env).await;
    let (db, operator) = (test.connect().await, Operator::of(&replica));
    let mut worker = ScriptedWorker::connect_with_slots(&replica.url(), 2).await;
    let set = ["namespace", "set", "default", "--max-in-flight", "7"];
    assert!(fencepost(&test.url(), &set).await.status.success());
    let quota = "select fencepost.declare_queue('q', 't', max_in_flight => 5)";
    db.query(quota, &[]).await.unwrap();

    let id = enqueue(&db, "").await;
    let task = worker.accept_next().await;
    worker.fail(&task, FailureKind::Terminal, "odd").await;
    ended(&db, id).await;
    // Nobody serves this one.
    let lonely = "select fencepost.enqueue('lonely', 't')";
    db.query(lonely, &[]).await.unwrap();

    let (page, text) = eventually(STEP, async || {
        let (page, text) = operator.scrape().await;
        let judged = page.0.contains_key("fencepost_queue_unserved");
        let all = judged && page.sum("fencepost_dead_letters", &[]) > 0.0;
        all.then_some((page, text))
    })
    .await;
    // The gate has promtool look at it.
    let copy = concat!(env!("CARGO_TARGET_TMPDIR"), "/scrape.prom");
    std::fs::write(copy, &text).unwrap();

    let printed: BTreeMap<_, _> = page
        .0
        .iter()
        .map(|(name, metric)| (name.clone(), (metric.kind.clone(), metric.labels())))
        .collect();
    let documented = documented();
    for (name, stands) in &printed {
        assert_eq!(
            documented.get(name),
            Some(stands),
            "docs/metrics.md on {name}"
        );
    }
    for name in documented.keys() {
        assert!(printed.contains_key(name), "{name} is not printed");
    }

    let lonely = [
        ("namespace", "default"),
        ("task_queue", "lonely"),
        ("task_type", "t"),
    ];
    let mine = [
        ("namespace", "default"),
        ("task_queue", "q"),
        ("task_type", "t"),
    ];
    assert_eq!(page.sum("fencepost_tasks_ready", &lonely), 1.0);
    assert_eq!(page.sum("fencepost_tasks_ready", &mine), 0.0);
    assert!(page.sum("fencepost_oldest_due_age_seconds", &lonely) > 0.0);
    let reason = [("reason", "no_live_workers")];
    assert_eq!(page.sum("fencepost_queue_unserved", &reason), 1.0);
    assert_eq!(page.sum("fencepost_queue_quota_limit", &mine), 5.0);
    assert_eq!(page.sum("fencepost_namespace_quota_limit", &mine[..1]), 7.0);
    assert_eq!(page.sum("fencepost_namespace_quota_used", &mine[..1]), 0.0);
    assert_eq!(page.sum("fencepost_dead_letters", &mine[..2]), 1.0);
    assert_eq!(page.sum("fencepost_workers", &[("door", "grpc")]), 1.0);
    assert_eq!(page.sum("fencepost_slots", &[]), 2.0);
    assert_eq!(page.sum("fencepost_slots_free", &[]), 2.0);
    assert_eq!(page.sum("fencepost_deliveries_in_flight", &[]), 0.0);
    assert_eq!(page.sum("fencepost_ready", &[]), 1.0);
    assert_eq!(page.sum("fencepost_listening", &[]), 1.0);
    assert_eq!(page.sum("fencepost_replicas", &[]), 1.0);
    let days = page.sum("fencepost_partitions_ahead_seconds", &[]) / 86_400.0;
    assert!((10.0..20.0).contains(&days), "{days}");
    assert_eq!(page.observations("fencepost_first_start_wait_seconds"), 1.0);
}

/// What the payload of a task asks for at its first delivery, and how many tasks ask for it.
const ASKED: [(&str, usize); 6] = [
    ("succeed", 20),
    ("retry", 6),
    ("die", 5),
    ("snooze", 4),
    ("stop", 3),
    ("refuse", 2),
];

fn number_of(asked: &str) -> usize {
    let found = ASKED.iter().find(|(other, _)| *other == asked);
    found.unwrap().1
}

/// Time enough to accept for a worker that does one thing after the other.
const PATIENT: [(&str, &str); 3] = [
    ("TASKS__BACKOFF_BASE", "20ms"),
    ("WORKERS__ACCEPT_TIMEOUT", "30s"),
    ("REPLICA__BEAT", "200ms"),
];

/// What the workers have in common.
#[derive(Default)]
struct Shared {
    /// Deliveries that have failed, by their tasks, until they are reported once more.
    stale: Mutex<BTreeMap<i64, Task>>,
    /// Tasks that were refused or snoozed as they had asked.
    served: Mutex<BTreeSet<i64>>,
}

/// Does what tasks ask for until told to stop; answers how many reports of older deliveries it has made.
async fn work(url: String, shared: Arc<Shared>, stop: CancellationToken) -> u32 {
    let mut worker = ScriptedWorker::connect_with_slots(&url, 3).await;
    let mut late = 0;
    loop {
        let task = tokio::select! {
            task = worker.task() => task,
            () = stop.cancelled() => return late,
        };
        let asked: String = serde_json::from_slice(&task.payload).unwrap();
        // A claim that found no slot in the end comes back with another fence.
        let once = || shared.served.lock().insert(task.task_id);
        if asked == "refuse" && once() {
            let reason = fencepost::proto::worker::RefusedReason::NoSlot;
            worker.refuse(&task, reason).await;
            continue;
        }
        worker.accept(&[&task]).await;
        match asked.as_str() {
            "retry" if task.attempt == 1 => {
                shared.stale.lock().insert(task.task_id, task.clone());
                worker.fail_for(&task, Duration::from_millis(1)).await;
            }
            "snooze" if once() => worker.snooze(&task, Duration::from_millis(1)).await,
            "die" => worker.fail(&task, FailureKind::Terminal, "fatal").await,
            "stop" => {
                worker.cancelled(&task).await;
                worker.fail(&task, FailureKind::Cancelled, "").await;
            }
            _ => {
                let old = shared.stale.lock().remove(&task.task_id);
                if let Some(old) = old {
                    // Long after its time, and with another end.
                    worker.fail(&old, FailureKind::Terminal, "late").await;
                    assert_eq!(worker.verdict(&old).await, Verdict::Superseded);
                    late += 1;
                }
                worker.succeed(&task, "1").await;
            }
        }
        worker.recorded(&task).await;
    }
}

#[tokio::test]
async fn counters_of_two_replicas_are_the_rows_of_the_database() {
    let test = TestDb::new().await;
    let first = Replica::start(&test.url(), &PATIENT).await;
    let second = Replica::start(&test.url(), &PATIENT).await;
    let db = test.connect().await;
    let operators = [Operator::of(&first), Operator::of(&second)];

    // They wait on a type that nobody serves, and are cancelled while they do.
    let waiting = r#"{"task_queue": "q", "task_type": "waits", "payload": null}"#;
    for operator in &operators {
        let (status, made) = operator.call("POST", "/v1/tasks", waiting).await;
        assert_eq!(status, 201, "{made}");
        let path = format!("/v1/tasks/{}/cancel", made["task_id"].as_str().unwrap());
        let cancelled = operator.change("POST", &path, "").await;
        assert_eq!(cancelled["state"], "cancelled");
    }
    let (stop, shared) = (CancellationToken::new(), Arc::new(Shared::default()));
    let mut workers = tokio::task::JoinSet::new();
    for replica in [&first, &second] {
        workers.spawn(work(replica.url(), Arc::clone(&shared), stop.clone()));
    }
    let enqueue = async |asked: &str, round: usize| -> String {
        let task = format!(
            r#"{{"task_queue": "q", "task_type": "t", "payload": "{asked}", "dispatch_key": "{asked} {round}"}}"#
        );
        let (status, made) = operators[round % 2].call("POST", "/v1/tasks", &task).await;
        assert_eq!(status, 201, "{made}");
        made["task_id"].as_str().unwrap().to_owned()
    };
    for round in 0..number_of("stop") {
        let id = enqueue("stop", round).await;
        let running = format!("select count(*) from fencepost.live where id = {id} and state = 1");
        eventually(STEP, async || {
            (count(&db, &running).await == 1).then_some(())
        })
        .await;
        let path = format!("/v1/tasks/{id}/cancel");
        let answer = operators[1].change("POST", &path, "").await;
        assert_eq!(answer["state"], "requested");
    }
    let most = ASKED.iter().map(|(_, number)| *number).max().unwrap();
    for round in 0..most {
        let all = ASKED.iter().filter(|(asked, _)| *asked != "stop");
        for (asked, _) in all.filter(|(_, number)| round < *number) {
            enqueue(asked, round).await;
        }
    }
    let again =
        r#"{"task_queue": "q", "task_type": "t", "payload": null, "dispatch_key": "succeed 0"}"#;
    assert_eq!(operators[0].call("POST", "/v1/tasks", again).await.0, 200);
    eventually(STEP, async || {
        let left = count(&db, "select count(*) from fencepost.live").await;
        (left == 0).then_some(())
    })
    .await;
    stop.cancel();
    let late: u32 = workers.join_all().await.into_iter().sum();

    let number = async |select: &str| -> f64 {
        let rows = count(&db, &format!("select count(*) from {select}")).await;
        f64::from(i32::try_from(rows).unwrap())
    };
    let mut pages: Vec<Page> = Vec::new();
    for operator in &operators {
        pages.push(operator.scrape().await.0);
    }
    let sum = |name: &str, labels: &[(&str, &str)]| -> f64 {
        let name = format!("fencepost_{name}");
        pages.iter().map(|page| page.sum(&name, labels)).sum()
    };
    for (outcome, state) in [("done", 1), ("failed", 2), ("cancelled", 3)] {
        let rows = number(&format!("fencepost.outcome where state = {state}")).await;
        assert!(rows > 0.0, "no task ended as {outcome}");
        assert_eq!(
            sum("tasks_ended_total", &[("outcome", outcome)]),
            rows,
            "{outcome}"
        );
    }
    // Each of them has ended where its route is known.
    let waits = [("task_type", "waits"), ("outcome", "cancelled")];
    assert_eq!(sum("tasks_ended_total", &waits), 2.0);
    assert_eq!(sum("tasks_ended_total", &[("task_type", "other")]), 0.0);
    for how in [
        "retry",
        "time_out",
        "retry_at_once",
        "not_accepted",
        "re_arm",
    ] {
        let rows = number(&format!("fencepost.failure where move = '{how}'")).await;
        assert_eq!(sum("tasks_returned_total", &[("move", how)]), rows, "{how}");
    }
    let asked = |what: &str| f64::from(u32::try_from(number_of(what)).unwrap());
    assert_eq!(
        sum("tasks_returned_total", &[("move", "retry")]),
        asked("retry")
    );
    assert_eq!(
        sum("tasks_returned_total", &[("move", "snooze")]),
        asked("snooze")
    );
    // Those that were claimed when the slot was gone were sent to nobody.
    let unsent = sum("tasks_returned_total", &[("move", "release")]) - asked("refuse");
    assert!(unsent >= 0.0, "{unsent}");
    assert_eq!(
        sum("deliveries_failed_total", &[]),
        number("fencepost.failure").await
    );
    assert_eq!(
        sum("deliveries_failed_total", &[("class", "fatal")]),
        asked("die")
    );
    for cause in [
        "failed",
        "lost",
        "unservable",
        "schedule_to_start",
        "unserved",
    ] {
        let rows = number(&format!("fencepost.dead_letter where cause = '{cause}'")).await;
        assert_eq!(
            sum("tasks_dead_total", &[("cause", cause)]),
            rows,
            "{cause}"
        );
    }
    assert_eq!(sum("tasks_dead_total", &[]), asked("die"));
    let claims = "(select generate_series(1, fence) from fencepost.outcome) as delivery";
    assert_eq!(sum("tasks_claimed_total", &[]), number(claims).await);
    let sent = number(claims).await - unsent;
    assert_eq!(sum("tasks_delivered_total", &[]), sent);
    let accepted = sum("tasks_delivered_total", &[]) - asked("refuse");
    assert_eq!(sum("tasks_accepted_total", &[]), accepted);
    let http = |answer| {
        sum(
            "tasks_enqueued_total",
            &[("door", "http"), ("answer", answer)],
        )
    };
    assert_eq!(http("created"), number("fencepost.task").await);
    assert_eq!(http("existing"), 1.0);
    assert_eq!(f64::from(late), asked("retry"), "one late report each");
    let superseded = sum("reports_total", &[("verdict", "superseded")]);
    assert_eq!(superseded, f64::from(late));
    let rows: f64 = pages
        .iter()
        .map(|page| page.observations("fencepost_claim_rows"))
        .sum();
    assert_eq!(rows, sum("claims_total", &[]));
}

#[tokio::test]
async fn a_scrape_shows_the_last_read_and_its_age_while_the_database_is_silent() {
    let test = TestDb::new().await;
    let (proxy, through) = TcpProxy::before(&test.url()).await;
    let replica = Replica::start(&through, SHORT).await;
    let (db, operator) = (test.connect().await, Operator::of(&replica));
    enqueue(&db, "").await;
    let age = "fencepost_database_read_age_seconds";
    let before = eventually(STEP, async || {
        let (page, _) = operator.scrape().await;
        (page.sum("fencepost_tasks_ready", &[]) == 1.0).then_some(page)
    })
    .await;
    assert!(before.sum(age, &[]).is_finite());
    proxy.hold();
    // Reads fail from now on, scrapes do not, and the age tells.
    eventually(STEP, async || {
        let (page, _) = operator.scrape().await;
        assert_eq!(page.sum("fencepost_tasks_ready", &[]), 1.0);
        (page.sum(age, &[]) > 12.0).then_some(())
    })
    .await;
    proxy.release();
    eventually(STEP, async || {
        let (page, _) = operator.scrape().await;
        (page.sum(age, &[]) < 10.0).then_some(())
    })
    .await;
}

/// Every name of a metric in this text, without the suffix of a histogram's series.
fn names_in(text: &str, histograms: &BTreeSet<String>) -> BTreeSet<String> {
    let word = |c: char| c.is_ascii_alphanumeric() || c == '_';
    let names = text.match_indices("fencepost_").filter_map(|(at, _)| {
        if text[..at].ends_with(word) {
            return None;
        }
        let rest = &text[at..];
        let end = rest.find(|c| !word(c)).unwrap_or(rest.len());
        let name = &rest[..end];
        let base = ["_bucket", "_sum", "_count"]
            .iter()
            .filter_map(|suffix| name.strip_suffix(suffix))
            .find(|base| histograms.contains(*base));
        Some(base.unwrap_or(name).to_owned())
    });
    names.collect()
}

#[test]
fn alerts_and_the_board_name_metrics_that_exist_and_every_alert_says_what_to_do() {
    let read = |file: &str| {
        let path = format!("{}/deploy/{file}", env!("CARGO_MANIFEST_DIR"));
        std::fs::read_to_string(path).unwrap()
    };
    let documented = documented();
    let histograms = documented
        .iter()
        .filter(|(_, (kind, _))| kind == "histogram");
    let histograms: BTreeSet<String> = histograms.map(|(name, _)| name.clone()).collect();
    let alerts = read("prometheus/alerts.yml");
    let tests = read("prometheus/alerts_test.yml");
    let board = read("grafana/fencepost.json");
    for (file, text) in [
        ("alerts", &alerts),
        ("their tests", &tests),
        ("the board", &board),
    ] {
        let named = names_in(text, &histograms);
        assert!(named.len() > 10, "{file}: {named:?}");
        let unknown: Vec<_> = named
            .iter()
            .filter(|name| !documented.contains_key(*name))
            .collect();
        assert!(unknown.is_empty(), "{file}: {unknown:?}");
    }
    let board: serde_json::Value = serde_json::from_str(&board).unwrap();
    let panels = board["panels"].as_array().unwrap();
    let targets = panels
        .iter()
        .filter_map(|panel| panel["targets"].as_array());
    for target in targets.flatten() {
        let expression = target["expr"].as_str().unwrap();
        assert!(
            !names_in(expression, &histograms).is_empty(),
            "{expression}"
        );
    }
    let rules: Vec<&str> = alerts.split("- alert: ").skip(1).collect();
    assert!(rules.len() > 10);
    for rule in rules {
        let name = rule.lines().next().unwrap();
        for part in ["expr: ", "labels: {severity: ", "summary: \"", "action: \""] {
            assert_eq!(rule.matches(part).count(), 1, "{name}: {part}");
        }
        for fate in ["fires", "stays silent"] {
            let test = format!("- name: {name} {fate}\n");
            assert!(tests.contains(&test), "{name}: no test that it {fate}");
        }
    }
}

#[tokio::test]
async fn a_line_about_a_delivery_names_task_queue_worker_and_attempt() {
    let test = TestDb::new().await;
    let env: Vec<_> = SHORT
        .iter()
        .copied()
        .chain([("LOG__FORMAT", "json")])
        .collect();
    let replica = Replica::start(&test.url(), &env).await;
    let db = test.connect().await;
    let mut worker = ScriptedWorker::connect(&replica.url()).await;
    let id = enqueue(&db, "").await;
    // Neither accepted nor refused.
    let task = worker.task().await;
    let line = eventually(STEP, async || {
        let log = replica.log();
        let line = log.lines().find(|line| line.contains("over its time"))?;
        Some(serde_json::from_str::<serde_json::Value>(line).unwrap())
    })
    .await;
    let named = &line["span"];
    assert_eq!(named["task"], id, "{line}");
    assert_eq!(named["queue"], "q", "{line}");
    assert_eq!(named["attempt"], task.attempt, "{line}");
    assert_eq!(named["fence"], task.fence, "{line}");
    assert_eq!(named["worker"], worker.welcome.worker_id, "{line}");
}
