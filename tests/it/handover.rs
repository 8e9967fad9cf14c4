//! A dispatcher that shuts down hands its workers, and the tasks that they run, to another one.

use std::net::SocketAddr;
use std::process::{ExitStatus, Stdio};
use std::time::{Duration, Instant};

use fencepost::proto::worker::{RefusedReason, Verdict, worker_frame::Frame as In};
use fencepost::worker::ledger::{self, Answer};
use fencepost::worker::{Options, Success, Task};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::{Child, Command};
use tokio::sync::mpsc;
use tonic::Status;

use crate::sdk::{Running, gated, options, succeeded};
use crate::support::scripted_dispatcher::{ScriptedDispatcher, ScriptedSession, task, token};
use crate::support::{TestDb, eventually};

/// No step takes longer, unless something is broken.
const STEP: Duration = Duration::from_secs(20);

/// A worker that runs task 1 until the gate opens, at a dispatcher that has just sent it away, and that names the
/// task in a session which waits for Welcome at the next.
struct Moving {
    running: Running,
    gate: mpsc::Sender<()>,
    old: ScriptedSession,
    new: ScriptedSession,
    _leaving: ScriptedDispatcher,
    _next: ScriptedDispatcher,
}

async fn moving() -> Moving {
    let mut leaving = ScriptedDispatcher::start().await;
    let mut next = ScriptedDispatcher::start().await;
    let options = Options {
        connect: vec![leaving.url.clone(), next.url.clone()],
        ..options(&leaving)
    };
    let (worker, gate) = gated(options);
    let running = Running::start(worker);
    let mut old = leaving.session(|_| {}).await;
    old.deliver([task(1, "gate", "")]).await;
    old.accepted().await;
    old.send_away().await;
    let new = next.arrival().await;
    assert_eq!(named(&new), [1]);
    Moving {
        running,
        gate,
        old,
        new,
        _leaving: leaving,
        _next: next,
    }
}

fn named(session: &ScriptedSession) -> Vec<i64> {
    let named = session.register.resume.iter();
    named.map(|held| held.task_id).collect()
}

async fn drains(session: &mut ScriptedSession) {
    let frame = session.next().await;
    assert!(matches!(frame, In::Drain(_)), "{frame:?}");
}

#[tokio::test]
async fn the_old_stream_serves_until_the_new_one_is_welcomed() {
    let mut moving = moving().await;
    moving.old.deliver([task(2, "gate", "")]).await;
    let In::Refused(refused) = moving.old.next().await else {
        panic!("not Refused");
    };
    assert_eq!(refused.reason(), RefusedReason::Draining);
    assert_eq!(refused.tokens, [token(2)]);

    moving
        .new
        .welcome(|welcome| welcome.resumed = vec![token(1)])
        .await;
    moving.old.goodbye().await;
    moving.gate.send(()).await.unwrap();
    assert_eq!(succeeded(&moving.new.result().await).payload, "1");
    moving.new.ack(&token(1), Verdict::Recorded).await;
    moving.new.deliver([task(3, "echo", "3")]).await;
    assert_eq!(moving.new.accepted().await, [token(3)]);
}

#[tokio::test]
async fn a_result_that_the_old_stream_answers_goes_to_whoever_took_the_task_over_as_well() {
    let mut moving = moving().await;
    moving.gate.send(()).await.unwrap();
    let result = moving.old.result().await;
    moving.old.ack(&token(1), Verdict::Recorded).await;
    // What comes after the ack shows that the worker has read it.
    moving.old.deliver([task(2, "gate", "")]).await;
    assert!(matches!(moving.old.next().await, In::Refused(_)));

    moving
        .new
        .welcome(|welcome| welcome.resumed = vec![token(1)])
        .await;
    assert_eq!(moving.new.result().await, result);
    moving.new.ack(&token(1), Verdict::Recorded).await;
    moving.old.goodbye().await;
    moving.running.stop.cancel();
    drains(&mut moving.new).await;
    moving.new.goodbye().await;
    moving.running.ended().await.unwrap();
}

#[tokio::test]
async fn a_result_that_is_answered_and_was_not_taken_over_is_forgotten() {
    let mut moving = moving().await;
    moving.gate.send(()).await.unwrap();
    moving.old.result().await;
    moving.old.ack(&token(1), Verdict::Recorded).await;
    moving.old.deliver([task(2, "gate", "")]).await;
    assert!(matches!(moving.old.next().await, In::Refused(_)));

    moving
        .new
        .welcome(|welcome| welcome.abandoned = vec![token(1)])
        .await;
    moving.old.goodbye().await;
    moving.running.stop.cancel();
    drains(&mut moving.new).await;
    moving.new.goodbye().await;
    moving.running.ended().await.unwrap();
}

#[tokio::test]
async fn an_answer_that_is_still_open_on_the_old_stream_may_come_from_either() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("ledger");
    let mut leaving = ScriptedDispatcher::start().await;
    let mut next = ScriptedDispatcher::start().await;
    let (worker, gate) = gated(Options {
        connect: vec![leaving.url.clone(), next.url.clone()],
        ledger: Some(path.clone()),
        ..options(&leaving)
    });
    let _running = Running::start(worker);
    let mut old = leaving.session(|_| {}).await;
    old.deliver([task(1, "gate", ""), task(2, "gate", "")])
        .await;
    old.accepted().await;
    gate.send(()).await.unwrap();
    let first = old.result().await;
    old.send_away().await;
    let mut new = next
        .session(|welcome| welcome.resumed = vec![token(1), token(2)])
        .await;
    assert_eq!(new.result().await, first);
    // The worker has closed its half of the old stream, and still listens.
    old.ack(&first.token, Verdict::Recorded).await;
    old.goodbye().await;
    eventually(STEP, async || {
        let runs = ledger::read(&path).unwrap();
        let answered = |run: &&ledger::Run| run.answer == Some(Answer::Recorded);
        (runs.iter().filter(answered).count() == 1).then_some(())
    })
    .await;
    gate.send(()).await.unwrap();
    assert_ne!(new.result().await.token, first.token);
}

#[tokio::test]
async fn without_another_dispatcher_results_go_over_the_old_stream_until_it_ends() {
    let mut only = ScriptedDispatcher::start().await;
    let (worker, gate) = gated(options(&only));
    let _running = Running::start(worker);
    let mut old = only.session(|_| {}).await;
    old.deliver([task(1, "gate", ""), task(2, "gate", "")])
        .await;
    old.accepted().await;
    for _ in 0..3 {
        only.deny(Status::unavailable("This replica is shutting down."));
    }
    old.send_away().await;
    only.denied().await;
    gate.send(()).await.unwrap();
    let first = old.result().await;
    old.ack(&first.token, Verdict::Recorded).await;

    // The attempt under way outlives the old stream.
    let new = only.arrival().await;
    gate.send(()).await.unwrap();
    let second = old.result().await;
    assert_ne!(second.token, first.token);
    drop(old);
    let resumed = vec![second.token.clone()];
    new.welcome(|welcome| welcome.resumed = resumed).await;
    let mut new = new;
    assert_eq!(new.result().await, second);
    new.ack(&second.token, Verdict::Recorded).await;
    drop(new);
    assert!(named(&only.arrival().await).is_empty());
}

#[tokio::test]
async fn a_worker_that_stops_during_a_handover_reports_over_the_old_stream() {
    let mut moving = moving().await;
    moving.running.stop.cancel();
    drains(&mut moving.old).await;
    moving.gate.send(()).await.unwrap();
    moving.old.result().await;
    moving.old.ack(&token(1), Verdict::Recorded).await;
    moving.old.goodbye().await;
    moving.running.ended().await.unwrap();
}

#[tokio::test]
async fn a_worker_that_stops_during_a_handover_tells_its_new_dispatcher_too() {
    let mut moving = moving().await;
    moving.running.stop.cancel();
    drains(&mut moving.old).await;
    moving
        .new
        .welcome(|welcome| welcome.resumed = vec![token(1)])
        .await;
    moving.old.goodbye().await;
    drains(&mut moving.new).await;
    moving.gate.send(()).await.unwrap();
    moving.new.result().await;
    moving.new.ack(&token(1), Verdict::Recorded).await;
    moving.new.goodbye().await;
    moving.running.ended().await.unwrap();
}

/// A real `fencepost serve`, killed when dropped.
struct Serving {
    child: Child,
    grpc: SocketAddr,
}

impl Serving {
    async fn start(db: &TestDb, grpc: &str) -> Self {
        let mut child = Command::new(env!("CARGO_BIN_EXE_fencepost"))
            .args(["serve", "--announce", "--grpc", grpc])
            .args(["--http", "127.0.0.1:0", "--database-url", &db.url()])
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .kill_on_drop(true)
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let line = tokio::time::timeout(STEP, lines.next_line()).await;
        let line = line.unwrap().unwrap().expect("an announcement");
        let addresses: serde_json::Value = serde_json::from_str(&line).unwrap();
        let grpc = addresses["grpc"].as_str().unwrap().parse().unwrap();
        Self { child, grpc }
    }

    fn url(&self) -> String {
        format!("http://{}", self.grpc)
    }

    fn terminate(&self) {
        let pid = self.child.id().expect("it runs");
        kill(Pid::from_raw(pid.try_into().unwrap()), Signal::SIGTERM).unwrap();
    }

    async fn ended(&mut self) -> ExitStatus {
        let ended = tokio::time::timeout(STEP, self.child.wait()).await;
        ended.expect("the replica does not end").unwrap()
    }
}

/// Enqueues tasks on queue `q`.
async fn enqueue(db: &tokio_postgres::Client, task_type: &str, tasks: i32) {
    let call = "select fencepost.enqueue('q', $1::text) from generate_series(1, $2::int)";
    db.execute(call, &[&task_type, &tasks]).await.unwrap();
}

/// Waits until this many rows of `query` are there.
async fn count(db: &tokio_postgres::Client, query: &str, wanted: i64) {
    let query = format!("select count(*) from {query}");
    eventually(STEP, async || {
        let rows: i64 = db.query_one(&query, &[]).await.unwrap().get(0);
        (rows == wanted).then_some(())
    })
    .await;
}

async fn starts(path: &std::path::Path, wanted: usize) {
    eventually(STEP, async || {
        let runs = ledger::read(path).unwrap_or_default();
        (runs.len() == wanted).then_some(())
    })
    .await;
}

const DONE_AT_FIRST_TRY: &str = "fencepost.outcome where state = 1 and attempt = 0";

#[tokio::test]
async fn running_tasks_move_to_the_other_replica_and_the_first_one_leaves() {
    let db = TestDb::new().await;
    let client = db.connect().await;
    let mut first = Serving::start(&db, "127.0.0.1:0").await;
    let second = Serving::start(&db, "127.0.0.1:0").await;
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("ledger");
    let (worker, gate) = gated(Options {
        connect: vec![first.url(), second.url()],
        task_queue: "q".into(),
        slots: 8,
        ledger: Some(path.clone()),
        ..Options::default()
    });
    let mut running = Running::start(worker);
    enqueue(&client, "gate", 8).await;
    starts(&path, 8).await;
    count(
        &client,
        "(select distinct dispatcher from fencepost.live where state = 1) as owners",
        1,
    )
    .await;

    first.terminate();
    let asked = Instant::now();
    assert!(first.ended().await.success());
    // Far from the drain timeout: nothing is in flight there once the worker has moved.
    assert!(
        asked.elapsed() < Duration::from_secs(10),
        "{:?}",
        asked.elapsed()
    );
    count(
        &client,
        "fencepost.live join fencepost.dispatcher on dispatcher.id = live.dispatcher
            where live.state = 1 and live.fence = 1 and live.losses = 0 and dispatcher.dead_at is null",
        8,
    )
    .await;

    // The second replica knows the slots that moved: nothing more starts until one is free.
    enqueue(&client, "gate", 1).await;
    for _ in 0..9 {
        gate.send(()).await.unwrap();
    }
    count(&client, DONE_AT_FIRST_TRY, 9).await;
    running.stop.cancel();
    running.ended().await.unwrap();
    let runs = ledger::read(&path).unwrap();
    assert_eq!(runs.len(), 9, "one start each");
    assert!(runs.iter().all(|run| run.answer == Some(Answer::Recorded)));
}

#[tokio::test]
async fn a_lone_replica_records_what_ends_while_it_drains() {
    let db = TestDb::new().await;
    let client = db.connect().await;
    let mut replica = Serving::start(&db, "127.0.0.1:0").await;
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("ledger");
    let (worker, gate) = gated(Options {
        connect: vec![replica.url()],
        task_queue: "q".into(),
        slots: 4,
        ledger: Some(path.clone()),
        ..Options::default()
    });
    let mut running = Running::start(worker);
    enqueue(&client, "gate", 6).await;
    starts(&path, 4).await;

    replica.terminate();
    count(
        &client,
        "fencepost.dispatcher where draining and dead_at is null",
        1,
    )
    .await;
    for _ in 0..4 {
        gate.send(()).await.unwrap();
    }
    assert!(replica.ended().await.success());
    count(&client, DONE_AT_FIRST_TRY, 4).await;
    count(&client, "fencepost.live where state = 0 and fence = 0", 2).await;
    assert_eq!(ledger::read(&path).unwrap().len(), 4);

    let _next = Serving::start(&db, &replica.grpc.to_string()).await;
    for _ in 0..2 {
        gate.send(()).await.unwrap();
    }
    count(&client, DONE_AT_FIRST_TRY, 6).await;
    running.stop.cancel();
    running.ended().await.unwrap();
    let runs = ledger::read(&path).unwrap();
    assert_eq!(runs.len(), 6, "one start each");
    assert!(runs.iter().all(|run| run.answer == Some(Answer::Recorded)));
}

/// Tasks that end all the time, so that results, answers, Register and adoption meet in every order.
#[tokio::test]
async fn rolling_restarts_under_load_start_each_task_once_and_leak_no_slot() {
    let db = TestDb::new().await;
    let client = db.connect().await;
    let mut replicas = [
        Serving::start(&db, "127.0.0.1:0").await,
        Serving::start(&db, "127.0.0.1:0").await,
    ];
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("ledger");
    let (worker, gate) = gated(Options {
        connect: replicas.iter().map(Serving::url).collect(),
        task_queue: "q".into(),
        slots: 256,
        ledger: Some(path.clone()),
        ..Options::default()
    });
    let mut running = Running::start(worker.handle("short", |_: Task| async {
        tokio::time::sleep(Duration::from_millis(fastrand::u64(0..300))).await;
        Ok(Success::empty())
    }));
    let (batch, rounds) = (1_000, 6);
    for round in 0..rounds {
        enqueue(&client, "short", batch).await;
        let started = ledger::read(&path).unwrap_or_default().len();
        eventually(STEP, async || {
            let runs = ledger::read(&path).unwrap_or_default().len();
            (runs >= started + 500).then_some(())
        })
        .await;
        let replica = &mut replicas[round % 2];
        replica.terminate();
        assert!(replica.ended().await.success());
        *replica = Serving::start(&db, &replica.grpc.to_string()).await;
    }
    let short = i64::from(batch) * i64::try_from(rounds).unwrap();
    count(&client, DONE_AT_FIRST_TRY, short).await;
    enqueue(&client, "gate", 256).await;
    starts(&path, usize::try_from(short).unwrap() + 256).await;
    for _ in 0..256 {
        gate.send(()).await.unwrap();
    }
    count(&client, DONE_AT_FIRST_TRY, short + 256).await;
    running.stop.cancel();
    running.ended().await.unwrap();
    let runs = ledger::read(&path).unwrap();
    assert_eq!(
        runs.len(),
        usize::try_from(short).unwrap() + 256,
        "one start each"
    );
}
