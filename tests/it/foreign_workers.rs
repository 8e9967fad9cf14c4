//! The example workers in other languages, as real processes.

use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use tokio::io::{AsyncBufReadExt, BufReader, Lines};
use tokio::process::{Child, ChildStdout, Command};
use tokio::sync::OnceCell;

use crate::support::tasks::{CANCELLED, DONE, FAILED, ended, live};
use crate::support::{Replica, TestDb, eventually};

const STEP: Duration = Duration::from_secs(30);

#[derive(Debug, Clone, Copy)]
enum Language {
    Python,
    JavaScript,
}

impl Language {
    async fn command(self) -> Command {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("examples");
        match self {
            Self::Python => {
                let mut command = Command::new(python().await);
                command.arg(root.join("worker.py"));
                command
            }
            Self::JavaScript => {
                let mut command = Command::new("node");
                command.arg(root.join("worker.mjs"));
                command
            }
        }
    }
}

/// A Python with what the example needs, made once under target/.
pub async fn python() -> PathBuf {
    static MADE: OnceCell<PathBuf> = OnceCell::const_new();
    MADE.get_or_init(async || {
        let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("examples-venv");
        let python = folder.join("bin/python");
        let requirements = concat!(env!("CARGO_MANIFEST_DIR"), "/examples/requirements.txt");
        let has_all = [
            "-m",
            "pip",
            "install",
            "--quiet",
            "--no-index",
            "--requirement",
            requirements,
        ];
        if run(Command::new(&python).args(has_all)).await.is_err() {
            let make = ["-m", "venv", "--clear"];
            let made = run(Command::new("python3").args(make).arg(&folder)).await;
            made.expect("python3 -m venv works here (Debian: python3-venv)");
            let install = [
                "-m",
                "pip",
                "install",
                "--quiet",
                "--requirement",
                requirements,
            ];
            let installed = run(Command::new(&python).args(install)).await;
            installed.expect("pip can install examples/requirements.txt");
        }
        python
    })
    .await
    .clone()
}

async fn run(command: &mut Command) -> Result<(), String> {
    let output = command.output().await.map_err(|error| error.to_string())?;
    if output.status.success() {
        return Ok(());
    }
    Err(String::from_utf8_lossy(&output.stderr).into_owned())
}

/// A running example.
struct Foreign {
    child: Child,
    lines: Lines<BufReader<ChildStdout>>,
}

impl Foreign {
    /// Starts one with two slots, which knows these replicas.
    async fn start(language: Language, replicas: &[&Replica]) -> Self {
        let mut command = language.command().await;
        for replica in replicas {
            command.args(["--connect", &format!("ws://{}", replica.http())]);
        }
        let mut child = command
            .args(["--queue", "q", "--slots", "2"])
            .env("NO_PROXY", "127.0.0.1")
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .unwrap_or_else(|error| panic!("{language:?} is not here: {error}"));
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        Self { child, lines }
    }

    /// Waits until a replica has let it in.
    async fn welcomed(&mut self) {
        self.says("welcome ").await;
    }

    /// Waits until it has the task.
    async fn accepts(&mut self, id: i64) {
        self.says(&format!("accepted {id}")).await;
    }

    async fn says(&mut self, start: &str) {
        let said = async {
            while let Some(line) = self.lines.next_line().await.unwrap() {
                if line.starts_with(start) {
                    return;
                }
            }
            panic!("it ended before it said {start}");
        };
        let said = tokio::time::timeout(STEP, said).await;
        said.unwrap_or_else(|_| panic!("it does not say {start}"));
    }

    fn terminate(&self) {
        let pid = self.child.id().unwrap().try_into().unwrap();
        kill(Pid::from_raw(pid), Signal::SIGTERM).unwrap();
    }

    async fn exit_code(&mut self) -> Option<i32> {
        let ended = tokio::time::timeout(STEP, self.child.wait()).await;
        ended.expect("it does not end").unwrap().code()
    }
}

async fn enqueue(db: &tokio_postgres::Client, task_type: &str, payload: &str) -> i64 {
    let call = "select task_id from fencepost.enqueue('q', $1, $2::text::jsonb, max_attempts => 1)";
    let row = db.query_one(call, &[&task_type, &payload]).await;
    row.unwrap().get(0)
}

async fn does_its_work(language: Language) {
    let test_db = TestDb::new().await;
    let db = test_db.connect().await;
    let replica = Replica::start(&test_db.url(), &[]).await;
    let mut worker = Foreign::start(language, &[&replica]).await;
    worker.welcomed().await;

    let payload = "{\"list\": [1, null, \"Grüße \u{1f40c}\"]}";
    let echo = enqueue(&db, "echo", payload).await;
    let end = ended(&db, echo).await;
    assert_eq!((end.state, end.result.as_deref()), (DONE, Some(payload)));
    let many = "select array_agg(task_id) from fencepost.enqueue_many(array['q'], array['echo'],
        array_fill('7'::bytea, array[100]))";
    let many: Vec<i64> = db.query_one(many, &[]).await.unwrap().get(0);
    for id in many {
        assert_eq!(ended(&db, id).await.state, DONE);
    }
    // A message of more than 64 KiB each way, as bytes.
    let bytes = "select task_id from fencepost.enqueue_bytes('q', 'echo', decode(repeat('00ff', 100000), 'hex'), 'image/png')";
    let bytes: i64 = db.query_one(bytes, &[]).await.unwrap().get(0);
    let same = "select o.result = t.payload and o.result_type = t.content_type
        from fencepost.outcome as o join fencepost.task as t using (id) where id = $1";
    let row = eventually(STEP, async || db.query_opt(same, &[&bytes]).await.unwrap()).await;
    assert!(row.get::<_, bool>(0));

    for kind in ["terminal", "retryable"] {
        let failed = enqueue(&db, "fail", &format!("{{\"kind\": \"{kind}\"}}")).await;
        let end = ended(&db, failed).await;
        assert_eq!((end.state, end.class.as_deref()), (FAILED, Some("example")));
    }
    let cancelled = enqueue(&db, "sleep", "{\"ms\": 600000}").await;
    worker.accepts(cancelled).await;
    let cancel = format!("/v1/tasks/{cancelled}/cancel");
    assert_eq!(replica.post(&cancel).await, Some(200));
    assert_eq!(ended(&db, cancelled).await.state, CANCELLED);

    // It finishes what it has, and takes nothing new.
    let running = enqueue(&db, "sleep", "{\"ms\": 700}").await;
    worker.accepts(running).await;
    worker.terminate();
    assert_eq!(worker.exit_code().await, Some(0));
    assert_eq!(ended(&db, running).await.state, DONE);
    let left = enqueue(&db, "echo", "1").await;
    assert_eq!(live(&db, left).await.unwrap().fence, 0);
}

/// The replica is killed while a task runs, and while the result of another is on its way.
async fn keeps_its_work_when_a_replica_dies(language: Language) {
    let test_db = TestDb::new().await;
    let db = test_db.connect().await;
    let mut first = Replica::start(&test_db.url(), &[]).await;
    let second = Replica::start(&test_db.url(), &[]).await;
    let mut worker = Foreign::start(language, &[&first, &second]).await;
    worker.welcomed().await;
    let task = enqueue(&db, "sleep", "{\"ms\": 1500}").await;
    worker.accepts(task).await;
    first.kill().await;
    worker.welcomed().await;
    let end = ended(&db, task).await;
    assert_eq!((end.state, end.attempt, end.fence), (DONE, 0, Some(1)));
    worker.terminate();
    assert_eq!(worker.exit_code().await, Some(0));
}

async fn is_denied(language: Language) {
    let test_db = TestDb::new().await;
    let replica = Replica::start(&test_db.url(), &[]).await;
    let mut command = language.command().await;
    let output = command
        .args(["--connect", &format!("ws://{}", replica.http())])
        .args(["--queue", "q", "--slots", "0"])
        .env("NO_PROXY", "127.0.0.1")
        .kill_on_drop(true)
        .output();
    let output = tokio::time::timeout(STEP, output).await.unwrap().unwrap();
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(said.contains("1 to 100000 slots"), "{said}");
}

#[tokio::test]
async fn a_python_worker_does_its_work() {
    does_its_work(Language::Python).await;
}

#[tokio::test]
async fn a_python_worker_keeps_its_work_when_a_replica_dies() {
    keeps_its_work_when_a_replica_dies(Language::Python).await;
}

#[tokio::test]
async fn a_python_worker_that_is_denied_gives_up() {
    is_denied(Language::Python).await;
}

#[tokio::test]
async fn a_javascript_worker_does_its_work() {
    does_its_work(Language::JavaScript).await;
}

#[tokio::test]
async fn a_javascript_worker_keeps_its_work_when_a_replica_dies() {
    keeps_its_work_when_a_replica_dies(Language::JavaScript).await;
}

#[tokio::test]
async fn a_javascript_worker_that_is_denied_gives_up() {
    is_denied(Language::JavaScript).await;
}
