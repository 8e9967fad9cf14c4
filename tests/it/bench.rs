//! The benchmarks at a tiny size: what they print, and that their counts come out.

#![allow(clippy::float_cmp, reason = "counts are whole numbers")]

use std::process::Stdio;
use std::time::Duration;

use serde_json::Value;
use tokio::process::Command;
use tokio::time::timeout;

use crate::support::TestDb;

/// Far beyond what a busy machine needs.
const DEADLINE: Duration = Duration::from_secs(120);

/// What `fencepost bench` prints with `--json` on a database of its own.
async fn bench(arguments: &[&str]) -> Value {
    let db = TestDb::new().await;
    run(&[arguments, &["--database-url", &db.url()]].concat()).await
}

/// The same on whatever the arguments name; on a private server by default.
async fn run(arguments: &[&str]) -> Value {
    let mut command = Command::new(env!("CARGO_BIN_EXE_fencepost"));
    command
        .arg("bench")
        .args(arguments)
        .arg("--json")
        .stdin(Stdio::null())
        .kill_on_drop(true);
    let output = timeout(DEADLINE, command.output()).await.unwrap().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{}: {said}", output.status);
    assert_eq!(said, "", "with --json only the object is said");
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(report["version"], env!("CARGO_PKG_VERSION"));
    assert_eq!(report["bench"], arguments[0]);
    report
}

/// The number at a path like `/idle_ms/p50`.
fn number(report: &Value, path: &str) -> f64 {
    let found = report.pointer(path).and_then(Value::as_f64);
    found.unwrap_or_else(|| panic!("{path} in {report}"))
}

#[tokio::test]
async fn a_drain_counts_every_task_once() {
    let arguments = ["--tasks", "300", "--replicas", "2", "--workers", "2"];
    let shape = ["--slots", "20", "--payload-bytes", "500", "--hold-snapshot"];
    let report = bench(&[&["drain"], &arguments[..], &shape[..]].concat()).await;
    for path in ["/duplicates", "/lost", "/damaged", "/reruns"] {
        assert_eq!(number(&report, path), 0.0, "{path} in {report}");
    }
    assert!(number(&report, "/tasks_per_s") > 0.0, "{report}");
    assert!(number(&report, "/wal_bytes_per_task") > 500.0, "{report}");
    // Sessions may report what they have done after so short a run is over.
    assert!(number(&report, "/commits_per_task") >= 0.0, "{report}");
    assert_eq!(report["settings"]["payload_bytes"], 500);
    assert_eq!(report["settings"]["hold_snapshot"], true);
}

/// Counts that hardly depend on the machine: a change that makes a task cost more shows here. Bounds are half as much again
/// as what an optimised build needs (docs/performance.md).
#[tokio::test]
async fn a_drained_task_costs_a_few_bytes_of_wal_and_a_share_of_a_commit() {
    let report = run(&["drain", "--tasks", "20000"]).await;
    let (wal, commits) = (
        number(&report, "/wal_bytes_per_task"),
        number(&report, "/commits_per_task"),
    );
    assert!((100.0..1_400.0).contains(&wal), "{report}");
    // A claim, its bodies and its settlement are three for some hundred tasks.
    assert!(commits < 0.05, "{report}");
}

#[tokio::test]
async fn a_steady_flow_is_judged_by_its_thirds() {
    let shape = ["--seconds", "3", "--rate", "100", "--hold-snapshot"];
    let report = bench(&[&["soak"], &shape[..]].concat()).await;
    for path in ["/duplicates", "/lost", "/damaged", "/reruns"] {
        assert_eq!(number(&report, path), 0.0, "{path} in {report}");
    }
    assert_eq!(number(&report, "/tasks"), 300.0);
    for third in ["/first_third_ms", "/last_third_ms"] {
        assert_eq!(number(&report, &format!("{third}/samples")), 100.0);
        assert!(number(&report, &format!("{third}/p50")) > 0.0, "{report}");
    }
    assert!(number(&report, "/growth") > 0.0, "{report}");
    assert!(number(&report, "/live_table/bytes") > 0.0, "{report}");
}

#[tokio::test]
async fn waiting_for_a_slot_costs_no_attempt() {
    let arguments = ["latency", "--tasks", "20", "--slots", "3"];
    let report = bench(&[&arguments[..], &["--full-pool", "1", "--arrivals", "2"]].concat()).await;
    for path in [
        "/duplicates",
        "/lost",
        "/damaged",
        "/full_pool/waiting_attempts",
    ] {
        assert_eq!(number(&report, path), 0.0, "{path} in {report}");
    }
    assert_eq!(number(&report, "/idle_ms/samples"), 20.0);
    assert_eq!(number(&report, "/arrival/start_ms/samples"), 2.0);
    let (p50, p99) = (
        number(&report, "/idle_ms/p50"),
        number(&report, "/idle_ms/p99"),
    );
    assert!(0.0 < p50 && p50 <= p99, "{report}");
    let freed = number(&report, "/full_pool/freed_slot_ms/samples");
    assert_eq!(freed, number(&report, "/full_pool/waiting"));
    let first = number(&report, "/full_pool/first_freed_slot_ms");
    let longest = number(&report, "/full_pool/freed_slot_ms/max");
    // The histogram keeps three digits.
    assert!(0.0 < first && first <= longest * 1.001, "{report}");
}

#[tokio::test]
async fn an_enqueue_loses_nothing() {
    let report = bench(&[
        "enqueue",
        "--tasks",
        "1500",
        "--tasks-a-call",
        "400",
        "--singles",
        "10",
    ])
    .await;
    assert_eq!(number(&report, "/lost"), 0.0);
    assert_eq!(number(&report, "/single_ms/samples"), 10.0);
    assert_eq!(number(&report, "/waking/single_ms/samples"), 10.0);
    assert!(number(&report, "/bulk_tasks_per_s") > 0.0, "{report}");
}

#[tokio::test]
async fn idle_workers_are_counted_in() {
    let report = bench(&["idle", "--workers", "20", "--seconds", "1"]).await;
    if cfg!(target_os = "linux") {
        let (alone, with_workers) = (
            number(&report, "/alone_mb/now"),
            number(&report, "/replicas_mb/now"),
        );
        assert!(0.0 < alone && alone < with_workers, "{report}");
        assert!(number(&report, "/replicas_cpu_percent") >= 0.0);
    }
}
