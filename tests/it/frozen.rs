//! Replicas and workers that freeze, die or shut down with tasks in flight.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use fencepost::proto::worker::{FailureKind, Register};
use fencepost::worker::{Options, Success, Task, Worker, ledger};
use nix::sys::signal::Signal;
use tokio::task::JoinSet;
use tokio_postgres::Client;
use tokio_util::sync::CancellationToken;

use crate::support::scripted_worker::register;
use crate::support::tasks::{DONE, count, ended, enqueue, enqueue_many, failures, live};
use crate::support::{Replica, ScriptedWorker, TestDb, eventually};

const PATIENCE: Duration = Duration::from_secs(30);

/// Dead soon, so that a test can sit it out.
const MORTAL: &[(&str, &str)] = &[
    ("REPLICA__BEAT", "200ms"),
    ("REPLICA__DEAD_AFTER", "1500ms"),
    ("TASKS__BACKOFF_BASE", "20ms"),
];

/// Everything that says what tasks are and were, one text a row.
async fn rows(db: &Client) -> Vec<String> {
    let select = "select 'live ' || live::text from fencepost.live
        union all select 'outcome ' || outcome::text from fencepost.outcome
        union all select 'failure ' || failure::text from fencepost.failure
        union all select 'dead ' || dead_letter::text from fencepost.dead_letter
        order by 1";
    let rows = db.query(select, &[]).await.unwrap();
    rows.iter().map(|row| row.get(0)).collect()
}

/// SDK workers in this process, each with a ledger of its own.
struct Fleet {
    stop: CancellationToken,
    runs: JoinSet<Result<(), fencepost::worker::Error>>,
    directory: tempfile::TempDir,
    ledgers: Vec<PathBuf>,
}

impl Fleet {
    fn new() -> Self {
        Self {
            stop: CancellationToken::new(),
            runs: JoinSet::new(),
            directory: tempfile::tempdir().unwrap(),
            ledgers: Vec::new(),
        }
    }

    /// A worker whose tasks take this long.
    fn start(&mut self, connect: Vec<String>, slots: u32, takes: Duration) {
        let ledger = self.directory.path().join(self.ledgers.len().to_string());
        let options = Options {
            connect,
            task_queue: "q".into(),
            slots,
            ledger: Some(ledger.clone()),
            ..Options::default()
        };
        let worker = Worker::new(options).handle("t", move |_: Task| async move {
            tokio::time::sleep(takes).await;
            Ok(Success::json(1))
        });
        self.runs
            .spawn(worker.run(self.stop.clone().cancelled_owned()));
        self.ledgers.push(ledger);
    }

    /// Starts of each task, over all workers.
    fn starts(&self) -> BTreeMap<i64, usize> {
        starts(&self.ledgers)
    }

    async fn stop(mut self) {
        self.stop.cancel();
        while let Some(ended) = self.runs.join_next().await {
            ended.unwrap().unwrap();
        }
    }
}

fn starts(ledgers: &[impl AsRef<Path>]) -> BTreeMap<i64, usize> {
    let mut starts = BTreeMap::new();
    for ledger in ledgers {
        for run in ledger::read(ledger).unwrap_or_default() {
            *starts.entry(run.task_id).or_default() += 1;
        }
    }
    starts
}

/// Each task is done, and was started once.
async fn assert_started_once(db: &Client, ids: &[i64], fleet: &Fleet) {
    for id in ids {
        let end = ended(db, *id).await;
        assert_eq!((end.state, end.attempt), (DONE, 0), "{id}");
    }
    let starts = fleet.starts();
    let again: Vec<_> = starts.iter().filter(|(_, starts)| **starts > 1).collect();
    assert!(again.is_empty(), "started twice: {again:?}");
    assert_eq!(starts.len(), ids.len());
    assert_eq!(count(db, "select count(*) from fencepost.failure").await, 0);
}

async fn beat(db: &Client, dispatcher: i64) -> i64 {
    let select = "select beat from fencepost.dispatcher where id = $1";
    db.query_one(select, &[&dispatcher]).await.unwrap().get(0)
}

/// Waits for so many more beats of a replica.
async fn beats(db: &Client, dispatcher: i64, number: i64) {
    let before = beat(db, dispatcher).await;
    eventually(PATIENCE, async || {
        (beat(db, dispatcher).await >= before + number).then_some(())
    })
    .await;
}

async fn dispatcher_of(db: &Client, id: i64) -> i64 {
    eventually(PATIENCE, async || live(db, id).await?.dispatcher).await
}

#[tokio::test]
async fn a_replica_frozen_past_its_death_changes_nothing_when_it_thaws() {
    let test = TestDb::new().await;
    let db = test.connect().await;
    let frozen = Replica::start(&test.url(), MORTAL).await;
    let mut early = ScriptedWorker::connect_with_slots(&frozen.url(), 3).await;
    let ids = enqueue_many(&db, 3).await;
    let mut old = BTreeMap::new();
    for _ in &ids {
        let task = early.accept_next().await;
        old.insert(task.task_id, task);
    }
    let other = Replica::start(&test.url(), MORTAL).await;
    let mut late = ScriptedWorker::connect_with_slots(&other.url(), 3).await;
    frozen.signal(Signal::SIGSTOP);
    let mut new = BTreeMap::new();
    for _ in &ids {
        let task = late.accept_next().await;
        // The same attempt and epoch: nobody knows that it failed.
        assert_eq!((task.attempt, task.fence), (1, 2));
        new.insert(task.task_id, task);
    }
    assert_eq!(live(&db, ids[0]).await.unwrap().losses, 1);
    late.succeed(&new[&ids[0]], "2").await;
    late.recorded(&new[&ids[0]]).await;
    late.fail(&new[&ids[1]], FailureKind::Terminal, "odd").await;
    late.recorded(&new[&ids[1]]).await;
    let before = rows(&db).await;
    // All of this lies in the frozen one's sockets when it thaws.
    early.succeed(&old[&ids[0]], "1").await;
    early.succeed(&old[&ids[1]], "1").await;
    early
        .fail(&old[&ids[2]], FailureKind::Terminal, "late")
        .await;
    frozen.signal(Signal::SIGCONT);
    eventually(PATIENCE, async || {
        (frozen.said("a new identity is taken") == 1).then_some(())
    })
    .await;
    frozen.ready().await;
    early.ended().await;
    assert_eq!(rows(&db).await, before);
    late.succeed(&new[&ids[2]], "2").await;
    late.recorded(&new[&ids[2]]).await;
    for (id, result) in [(ids[0], Some("2")), (ids[1], None), (ids[2], Some("2"))] {
        assert_eq!(ended(&db, id).await.result.as_deref(), result);
    }
    // It serves again, under another identity.
    drop(late);
    let mut again = ScriptedWorker::connect(&frozen.url()).await;
    let id = enqueue(&db, "").await;
    let task = again.accept_next().await;
    again.succeed(&task, "3").await;
    again.recorded(&task).await;
    assert_eq!(ended(&db, id).await.state, DONE);
    assert_eq!(
        count(&db, "select count(*) from fencepost.dispatcher").await,
        3
    );
    assert_eq!(
        count(
            &db,
            "select count(*) from fencepost.dispatcher where dead_at is null"
        )
        .await,
        2
    );
}

#[tokio::test]
async fn replicas_that_were_frozen_together_bury_nobody() {
    let test = TestDb::new().await;
    let db = test.connect().await;
    let mut replicas = Vec::new();
    for _ in 0..2 {
        replicas.push(Replica::start(&test.url(), MORTAL).await);
    }
    let rows = db
        .query("select id from fencepost.dispatcher order by id", &[])
        .await
        .unwrap();
    let ids: Vec<i64> = rows.iter().map(|row| row.get(0)).collect();
    for id in &ids {
        beats(&db, *id, 2).await;
    }
    replicas[1].signal(Signal::SIGSTOP);
    // The first has seen where the other's beat stands, and freezes too.
    beats(&db, ids[0], 3).await;
    replicas[0].signal(Signal::SIGSTOP);
    // The fault itself: together they are silent for longer than the death time.
    tokio::time::sleep(Duration::from_millis(1500)).await;
    for (replica, id) in replicas.iter().zip(&ids) {
        replica.signal(Signal::SIGCONT);
        beats(&db, *id, 2).await;
    }
    for id in &ids {
        beats(&db, *id, 2).await;
    }
    assert_eq!(
        count(
            &db,
            "select count(*) from fencepost.dispatcher where dead_at is null"
        )
        .await,
        2
    );
    for replica in &replicas {
        assert_eq!(replica.said("declared dead"), 0, "{}", replica.log());
    }
}

#[tokio::test]
async fn a_frozen_worker_s_late_report_is_superseded() {
    let test = TestDb::new().await;
    let db = test.connect().await;
    let replica = Replica::start(
        &test.url(),
        &[
            ("WORKERS__SILENCE_WINDOW", "600ms"),
            ("WORKERS__RECONNECT_GRACE", "200ms"),
        ],
    )
    .await;
    let mut frozen = ScriptedWorker::connect(&replica.url()).await;
    let id = enqueue(&db, "").await;
    let task = frozen.accept_next().await;
    frozen.hush();
    let mut other = ScriptedWorker::connect(&replica.url()).await;
    let again = other.accept_next().await;
    assert_eq!((again.task_id, again.attempt), (id, 2));
    other.succeed(&again, "2").await;
    other.recorded(&again).await;
    let before = rows(&db).await;
    let mut thawed = ScriptedWorker::resume(&replica.url(), &[&task]).await;
    assert_eq!(thawed.welcome.abandoned, std::slice::from_ref(&task.token));
    thawed.succeed(&task, "1").await;
    thawed.superseded(&task).await;
    assert_eq!(rows(&db).await, before);
}

#[tokio::test]
async fn workers_of_a_killed_replica_go_on_with_their_tasks_at_another() {
    let test = TestDb::new().await;
    let db = test.connect().await;
    let mut first = Replica::start(&test.url(), MORTAL).await;
    let second = Replica::start(&test.url(), MORTAL).await;
    let mut fleet = Fleet::new();
    for _ in 0..2 {
        fleet.start(vec![first.url(), second.url()], 8, Duration::from_secs(3));
    }
    let ids = enqueue_many(&db, 16).await;
    eventually(PATIENCE, async || {
        (fleet.starts().len() == 16).then_some(())
    })
    .await;
    let owner = dispatcher_of(&db, ids[0]).await;
    first.kill().await;
    let adopted =
        "select count(*) from fencepost.live where dispatcher is not null and dispatcher <> $1";
    eventually(PATIENCE, async || {
        let row = db.query_one(adopted, &[&owner]).await.unwrap();
        (row.get::<_, i64>(0) == 16).then_some(())
    })
    .await;
    assert_started_once(&db, &ids, &fleet).await;
    // By its death nothing was left to put back.
    let dead = "select count(*) from fencepost.dispatcher where dead_at is not null";
    eventually(PATIENCE, async || {
        (count(&db, dead).await == 1).then_some(())
    })
    .await;
    assert_eq!(count(&db, "select count(*) from fencepost.live").await, 0);
    fleet.stop().await;
}

#[tokio::test]
async fn tasks_of_a_killed_replica_and_its_lost_workers_run_elsewhere() {
    let test = TestDb::new().await;
    let db = test.connect().await;
    let mut first = Replica::start(&test.url(), MORTAL).await;
    let mut lost = ScriptedWorker::connect_with_slots(&first.url(), 4).await;
    let ids = enqueue_many(&db, 4).await;
    for _ in &ids {
        lost.accept_next().await;
    }
    let second = Replica::start(&test.url(), MORTAL).await;
    let mut other = ScriptedWorker::connect_with_slots(&second.url(), 4).await;
    first.kill().await;
    drop(lost);
    for _ in &ids {
        let task = other.accept_next().await;
        assert_eq!((task.attempt, task.fence), (1, 2));
        other.succeed(&task, "1").await;
        other.recorded(&task).await;
    }
    for id in ids {
        assert_eq!(ended(&db, id).await.state, DONE);
        let failures = failures(&db, id).await;
        assert_eq!(failures, [(1, 1, "re_arm".into(), "replica_gone".into())]);
    }
}

#[tokio::test]
async fn tasks_of_a_killed_worker_are_tried_again_elsewhere() {
    let test = TestDb::new().await;
    let db = test.connect().await;
    let replica = Replica::start(&test.url(), &[("WORKERS__RECONNECT_GRACE", "300ms")]).await;
    let directory = tempfile::tempdir().unwrap();
    let ledger = directory.path().join("ledger");
    let mut victim = tokio::process::Command::new(env!("CARGO_BIN_EXE_fencepost"))
        .args([
            "worker",
            "--connect",
            &replica.url(),
            "--queue",
            "q",
            "--type",
            "t",
        ])
        .args(["--slots", "3", "--sleep", "60000", "--ledger"])
        .arg(&ledger)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .kill_on_drop(true)
        .spawn()
        .unwrap();
    let ids = enqueue_many(&db, 3).await;
    eventually(PATIENCE, async || {
        (starts(&[&ledger]).len() == 3).then_some(())
    })
    .await;
    let mut other = ScriptedWorker::connect_with_slots(&replica.url(), 3).await;
    // Whether one had been accepted is known to the replica alone: then it is a second attempt.
    victim.kill().await.unwrap();
    for _ in &ids {
        let task = other.accept_next().await;
        assert!(task.attempt <= 2 && task.fence == 2);
        other.succeed(&task, "1").await;
        other.recorded(&task).await;
    }
    for id in ids {
        assert_eq!(ended(&db, id).await.state, DONE);
        assert_eq!(failures(&db, id).await.len(), 1);
    }
}

#[tokio::test]
async fn a_shutdown_under_load_starts_nothing_twice_and_spends_no_attempt() {
    let test = TestDb::new().await;
    let db = test.connect().await;
    let mut first = Replica::start(&test.url(), &[("REPLICA__BEAT", "500ms")]).await;
    let second = Replica::start(&test.url(), &[("REPLICA__BEAT", "500ms")]).await;
    let (one, two) = (first.url(), second.url());
    let mut fleet = Fleet::new();
    for _ in 0..2 {
        fleet.start(
            vec![one.clone(), two.clone()],
            8,
            Duration::from_millis(150),
        );
        fleet.start(
            vec![two.clone(), one.clone()],
            8,
            Duration::from_millis(150),
        );
    }
    let ids = enqueue_many(&db, 900).await;
    let done = "select count(*) from fencepost.outcome";
    eventually(PATIENCE, async || {
        (count(&db, done).await > 200).then_some(())
    })
    .await;
    let status = first.terminate().await;
    assert_eq!(status.code(), Some(0), "{}", first.log());
    assert!(
        count(&db, "select count(*) from fencepost.live").await > 0,
        "there was load"
    );
    assert_started_once(&db, &ids, &fleet).await;
    fleet.stop().await;
}

#[tokio::test]
async fn a_draining_replica_settles_what_its_workers_finish() {
    let test = TestDb::new().await;
    let db = test.connect().await;
    let mut replica = Replica::start(&test.url(), &[]).await;
    let two = Register {
        slots: 2,
        ..register()
    };
    let mut worker = ScriptedWorker::connect_as(&replica.url(), two.clone()).await;
    let ids = enqueue_many(&db, 3).await;
    let first = worker.accept_next().await;
    let second = worker.accept_next().await;
    replica.signal(Signal::SIGTERM);
    worker.sent_away().await;
    replica.readyz_turns(503).await;
    let status = ScriptedWorker::try_connect(&replica.url(), two)
        .await
        .unwrap_err();
    assert_eq!(status.code(), tonic::Code::Unavailable);
    // Neither gone nor in a hurry: it finishes where it is.
    worker.succeed(&first, "1").await;
    worker.recorded(&first).await;
    worker.succeed(&second, "2").await;
    worker.recorded(&second).await;
    assert_eq!(replica.ended().await.code(), Some(0));
    assert_eq!(ended(&db, first.task_id).await.state, DONE);
    assert_eq!(ended(&db, second.task_id).await.state, DONE);
    let waiting = ids
        .into_iter()
        .find(|id| ![first.task_id, second.task_id].contains(id))
        .unwrap();
    let row = live(&db, waiting).await.unwrap();
    assert_eq!((row.state, row.fence), (0, 0), "nothing new was claimed");
}

#[tokio::test]
async fn what_is_left_at_the_drain_deadline_is_taken_up_without_a_loss() {
    let test = TestDb::new().await;
    let db = test.connect().await;
    let brief: Vec<_> = MORTAL
        .iter()
        .copied()
        .chain([("REPLICA__DRAIN_TIMEOUT", "500ms")])
        .collect();
    let mut first = Replica::start(&test.url(), &brief).await;
    let second = Replica::start(&test.url(), &brief).await;
    let mut deaf = ScriptedWorker::connect(&first.url()).await;
    let id = enqueue(&db, "").await;
    let task = deaf.accept_next().await;
    assert_eq!(first.terminate().await.code(), Some(0));
    let mut other = ScriptedWorker::connect(&second.url()).await;
    let again = other.accept_next().await;
    assert_eq!((again.task_id, again.attempt, again.fence), (id, 1, 2));
    let row = live(&db, id).await.unwrap();
    assert_eq!(
        (row.attempt, row.losses, row.epoch),
        (0, 0, 0),
        "it had announced its drain"
    );
    assert_eq!(failures(&db, id).await, []);
    // The deaf one's success is of the same attempt, so it counts; the second one then comes too late.
    let mut back = ScriptedWorker::connect(&second.url()).await;
    back.succeed(&task, "1").await;
    back.recorded(&task).await;
    other.succeed(&again, "2").await;
    other.superseded(&again).await;
}

#[tokio::test]
async fn a_second_signal_ends_a_replica_at_once() {
    let test = TestDb::new().await;
    let db = test.connect().await;
    let mut replica = Replica::start(&test.url(), &[]).await;
    let mut worker = ScriptedWorker::connect(&replica.url()).await;
    enqueue(&db, "").await;
    worker.accept_next().await;
    replica.signal(Signal::SIGTERM);
    worker.sent_away().await;
    replica.signal(Signal::SIGTERM);
    assert_eq!(replica.ended().await.code(), Some(130));
}

#[tokio::test]
async fn a_lone_replica_restarts_and_no_running_task_is_interrupted() {
    let test = TestDb::new().await;
    let db = test.connect().await;
    let env = [("REPLICA__BEAT", "300ms")];
    let mut replica = Replica::start(&test.url(), &env).await;
    let mut fleet = Fleet::new();
    for _ in 0..2 {
        fleet.start(vec![replica.url()], 4, Duration::from_secs(2));
    }
    let ids = enqueue_many(&db, 16).await;
    eventually(PATIENCE, async || (fleet.starts().len() == 8).then_some(())).await;
    let status = replica.terminate().await;
    assert_eq!(status.code(), Some(0), "{}", replica.log());
    let again = Replica::spawn_at(&test.url(), &env, replica.grpc()).await;
    again.ready().await;
    assert_started_once(&db, &ids, &fleet).await;
    fleet.stop().await;
}

#[tokio::test]
async fn three_replicas_restart_in_turn_and_five_second_tasks_start_once() {
    let test = TestDb::new().await;
    let db = test.connect().await;
    let mut replicas = Vec::new();
    for _ in 0..3 {
        replicas.push(Replica::start(&test.url(), &[]).await);
    }
    let mut fleet = Fleet::new();
    for first in 0..3 {
        // Each begins at another one, and all move all the time.
        let mut connect: Vec<String> = replicas.iter().map(Replica::url).collect();
        connect.rotate_left(first);
        fleet.start(connect, 30, Duration::from_secs(5));
    }
    let ids = enqueue_many(&db, 270).await;
    eventually(PATIENCE, async || {
        (fleet.starts().len() == 90).then_some(())
    })
    .await;
    for replica in &mut replicas {
        let unfinished = count(&db, "select count(*) from fencepost.live where state = 1").await;
        assert!(unfinished > 0, "there is nothing to interrupt");
        let address = replica.grpc();
        let status = replica.terminate().await;
        assert_eq!(status.code(), Some(0), "{}", replica.log());
        *replica = Replica::spawn_at(&test.url(), &[], address).await;
        replica.ready().await;
    }
    assert_started_once(&db, &ids, &fleet).await;
    fleet.stop().await;
}
