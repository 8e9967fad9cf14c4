//! The demo: its numbers with real processes, and that nothing of it stays behind.

use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use tokio::process::Command;
use tokio::time::timeout;

use crate::support::{TestDb, eventually};

/// Far beyond what a busy machine needs; the demo's own deadline is the one that tells what is left.
const DEADLINE: Duration = Duration::from_secs(180);

/// The demo with its temporary directories in `scratch`.
fn demo(scratch: &Path, arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_fencepost"));
    command
        .arg("demo")
        .args(arguments)
        .env("TMPDIR", scratch)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .kill_on_drop(true);
    command
}

/// A directory that the server's account can enter too.
fn scratch() -> tempfile::TempDir {
    let scratch = tempfile::tempdir().unwrap();
    let open = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    std::fs::set_permissions(scratch.path(), open).unwrap();
    scratch
}

fn is_empty(directory: &Path) -> bool {
    std::fs::read_dir(directory).unwrap().next().is_none()
}

/// Processes whose arguments or directory name `scratch`.
fn processes_in(scratch: &Path) -> usize {
    let name = scratch.to_str().unwrap();
    let processes = std::fs::read_dir("/proc").unwrap().flatten();
    let names = |path: &Path| {
        let arguments = std::fs::read(path.join("cmdline")).unwrap_or_default();
        let directory = std::fs::read_link(path.join("cwd")).unwrap_or_default();
        String::from_utf8_lossy(&arguments).contains(name) || directory.starts_with(scratch)
    };
    processes.filter(|entry| names(&entry.path())).count()
}

async fn summary(mut command: Command) -> serde_json::Value {
    let output = timeout(DEADLINE, command.output()).await.unwrap().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{}: {said}", output.status);
    assert_eq!(said, "", "with --json only the object is said");
    serde_json::from_slice(&output.stdout).unwrap()
}

fn assert_holds(summary: &serde_json::Value) {
    for (key, number) in [
        ("enqueued", 600),
        ("done", 400),
        ("dead", 200),
        ("waiting", 0),
        ("duplicates", 0),
        ("lost", 0),
    ] {
        assert_eq!(summary[key], number, "{key} in {summary}");
    }
    // All of two types, and those of the third that were cut off.
    assert!(summary["retried"].as_u64().unwrap() >= 400, "{summary}");
    assert!(summary["starts"].as_u64().unwrap() >= 1000, "{summary}");
}

#[tokio::test]
async fn two_demos_at_once_lose_nothing_and_leave_nothing() {
    let scratch = scratch();
    let run = || summary(demo(scratch.path(), &["--tasks", "600", "--json"]));
    let (first, second) = tokio::join!(run(), run());
    for summary in [first, second] {
        assert_holds(&summary);
        let killed = summary["killed"].as_array().unwrap();
        let names: Vec<_> = killed
            .iter()
            .map(|kill| kill["name"].as_str().unwrap())
            .collect();
        assert_eq!(names, ["worker-1", "replica-2"]);
        assert!(
            summary["start_ms"]["p99"].as_f64().unwrap() > 0.0,
            "{summary}"
        );
    }
    assert!(is_empty(scratch.path()));
    assert_eq!(processes_in(scratch.path()), 0);
}

#[tokio::test]
async fn a_given_database_must_have_the_schema_and_keeps_its_own_tasks() {
    let scratch = scratch();
    let empty = TestDb::empty().await;
    let mut refused = demo(scratch.path(), &["--json", "--database-url", &empty.url()]);
    let refused = timeout(DEADLINE, refused.output()).await.unwrap().unwrap();
    assert_eq!(refused.status.code(), Some(1));
    let said = String::from_utf8_lossy(&refused.stderr);
    assert!(said.contains("fencepost migrate"), "{said}");

    let db = TestDb::new().await;
    let client = db.connect().await;
    let other = "select fencepost.enqueue('demo', 'succeeds', '{}')";
    client.batch_execute(other).await.unwrap();
    let arguments = ["--tasks", "600", "--json", "--database-url", &db.url()];
    assert_holds(&summary(demo(scratch.path(), &arguments)).await);
    let states = "
        select count(*) filter (where namespace = 'default' and state = 'ready' and attempt = 0),
            count(*) filter (where namespace like 'demo-%' and state in ('done', 'failed')),
            count(*)
        from fencepost.tasks";
    let row = client.query_one(states, &[]).await.unwrap();
    let counts: [i64; 3] = [row.get(0), row.get(1), row.get(2)];
    assert_eq!(counts, [1, 600, 601]);
}

#[tokio::test]
async fn a_signal_ends_all_of_it() {
    let scratch = scratch();
    for (signal, code) in [(Signal::SIGINT, Some(130)), (Signal::SIGKILL, None)] {
        let mut demo = demo(scratch.path(), &["--tasks", "100000"])
            .spawn()
            .unwrap();
        // Three workers, two replicas, the database: all of it is there.
        let workers = async || (processes_in(scratch.path()) >= 6).then_some(());
        eventually(Duration::from_secs(60), workers).await;
        let pid = i32::try_from(demo.id().unwrap()).unwrap();
        kill(Pid::from_raw(pid), signal).unwrap();
        let status = timeout(DEADLINE, demo.wait()).await.unwrap().unwrap();
        assert_eq!(status.code(), code, "{signal}");
        let gone = async || (processes_in(scratch.path()) == 0).then_some(());
        eventually(Duration::from_secs(30), gone).await;
    }
}
