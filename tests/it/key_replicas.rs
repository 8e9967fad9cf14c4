//! Concurrency keys over real replicas and workers: order whatever fails and dies, and what operators see of it.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use fencepost::proto::worker::FailureKind;
use fencepost::worker::{Failure, Options, Success, Task, Worker};
use parking_lot::Mutex;
use serde_json::Value;
use tokio::task::JoinSet;
use tokio_postgres::Client;
use tokio_util::sync::CancellationToken;

use crate::support::queue::assert_sound;
use crate::support::tasks::{count, ended, enqueue};
use crate::support::{Operator, Replica, ScriptedWorker, TestDb, eventually, fencepost};

/// No step takes longer, unless something is broken.
const STEP: Duration = Duration::from_secs(20);

/// Quick chores, and death soon.
const QUICK: &[(&str, &str)] = &[
    ("REPLICA__BEAT", "200ms"),
    ("REPLICA__DEAD_AFTER", "1500ms"),
    ("TASKS__BACKOFF_BASE", "20ms"),
    ("WORKERS__RECONNECT_GRACE", "200ms"),
];

/// Waits until a count comes to this.
async fn comes_to(db: &Client, select: &str, number: i64) {
    eventually(STEP, async || {
        (count(db, select).await == number).then_some(())
    })
    .await;
}

/// What a handler notes: the key, the task's place in it, and whether it starts or has done its work.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Note {
    Starts,
    Done,
}

type Ledger = Arc<Mutex<Vec<(i64, i64, Note)>>>;

fn worker(replicas: &[Replica], ledger: &Ledger) -> Worker {
    let options = Options {
        connect: replicas.iter().map(Replica::url).collect(),
        task_queue: "q".into(),
        slots: 4,
        ..Options::default()
    };
    let ledger = Arc::clone(ledger);
    Worker::new(options).handle("t", move |task: Task| work(Arc::clone(&ledger), task))
}

async fn work(ledger: Ledger, task: Task) -> Result<Success, Failure> {
    let payload: Value = serde_json::from_slice(task.payload()).unwrap();
    let (key, place) = (payload[0].as_i64().unwrap(), payload[1].as_i64().unwrap());
    ledger.lock().push((key, place, Note::Starts));
    tokio::time::sleep(Duration::from_millis(fastrand::u64(..5))).await;
    if fastrand::u32(..3) == 0 {
        return Err(Failure::retryable("unlucky", "it broke"));
    }
    ledger.lock().push((key, place, Note::Done));
    Ok(Success::json(1))
}

#[tokio::test]
async fn tasks_of_a_key_run_one_after_the_other_whatever_fails_and_whoever_dies() {
    const KEYS: i64 = 5;
    const TASKS: i64 = 30;
    let test = TestDb::new().await;
    let db = test.connect().await;
    let mut replicas = Vec::new();
    for _ in 0..3 {
        replicas.push(Replica::start(&test.url(), QUICK).await);
    }
    let ledger = Ledger::default();
    let (stop, mut workers) = (CancellationToken::new(), JoinSet::new());
    for _ in 0..3 {
        workers.spawn(worker(&replicas, &ledger).run(stop.clone().cancelled_owned()));
    }
    for place in 0..TASKS {
        for key in 0..KEYS {
            let more = format!(
                "payload => '[{key}, {place}]', concurrency_key => 'k{key}', max_attempts => 1000"
            );
            enqueue(&db, &more).await;
        }
        if place % 10 == 5 {
            let dying = usize::try_from(place / 10 % 3).unwrap();
            let address = replicas[dying].grpc();
            replicas[dying].kill().await;
            replicas[dying] = Replica::spawn_at(&test.url(), QUICK, address).await;
        }
    }
    let left = "select count(*) from fencepost.live";
    eventually(STEP * 6, async || {
        tokio::time::sleep(Duration::from_millis(100)).await;
        (count(&db, left).await == 0).then_some(())
    })
    .await;
    stop.cancel();
    while let Some(ran) = workers.join_next().await {
        ran.unwrap().unwrap();
    }
    let done = "select count(*) from fencepost.outcome where state = 1";
    assert_eq!(count(&db, done).await, KEYS * TASKS);

    let mut last: BTreeMap<i64, (i64, bool)> = BTreeMap::new();
    for (key, place, note) in ledger.lock().iter().copied() {
        let (current, is_done) = last.entry(key).or_insert((0, false));
        if note == Note::Starts && place == *current + 1 {
            assert!(
                *is_done,
                "{key}: {place} starts before the end of {current}"
            );
            (*current, *is_done) = (place, false);
        } else if note == Note::Starts {
            // A repeat: its worker or its replica was lost, or it failed.
            assert_eq!(place, *current, "{key}");
        } else if place == *current {
            *is_done = true;
        }
    }
    assert!(
        last.values().all(|one| *one == (TASKS - 1, true)),
        "{last:?}"
    );
    assert_sound(&test.pool().get().await.unwrap()).await;
}

#[tokio::test]
async fn the_look_at_a_key_that_a_killed_replica_owes_is_made_up_by_the_next_one() {
    let test = TestDb::new().await;
    let db = test.connect().await;
    let mut first = Replica::start(&test.url(), QUICK).await;
    let mut worker = ScriptedWorker::connect(&first.url()).await;
    enqueue(&db, "concurrency_key => 'a'").await;
    let next = enqueue(&db, "concurrency_key => 'a'").await;
    let task = worker.accept_next().await;
    // Between the settle of the task and the look at its key.
    let turn = "(1178944610, hashint8(fencepost.key_hash(1, 'a')))";
    db.execute(&format!("select pg_advisory_lock{turn}"), &[])
        .await
        .unwrap();
    worker.succeed(&task, "1").await;
    worker.recorded(&task).await;
    first.kill().await;
    let connections = "select count(*) from pg_stat_activity
        where datname = current_database() and application_name like 'fencepost%'";
    comes_to(&db, connections, 0).await;
    db.execute(&format!("select pg_advisory_unlock{turn}"), &[])
        .await
        .unwrap();
    let held = format!("select count(*) from fencepost.live where id = {next} and hold = 2");
    assert_eq!(count(&db, &held).await, 1);
    assert_eq!(
        count(&db, "select count(*) from fencepost.key_look").await,
        0
    );

    let second = Replica::start(&test.url(), QUICK).await;
    let mut worker = ScriptedWorker::connect(&second.url()).await;
    assert_eq!(worker.accept_next().await.task_id, next);
}

#[tokio::test]
async fn a_turn_that_somebody_keeps_is_waited_for_and_the_drain_does_not_wait_for_it() {
    let test = TestDb::new().await;
    let (db, mut holder) = (test.connect().await, test.connect().await);
    let mut replica = Replica::start(&test.url(), QUICK).await;
    let mut worker = ScriptedWorker::connect(&replica.url()).await;
    enqueue(&db, "concurrency_key => 'a'").await;
    let task = worker.accept_next().await;
    // Its own task waits for the one that runs; the transaction stays open over that one's end.
    let open = holder.transaction().await.unwrap();
    let enqueue = "select task_id from fencepost.enqueue('q', 't', concurrency_key => 'a')";
    let next: i64 = open.query_one(enqueue, &[]).await.unwrap().get(0);
    worker.succeed(&task, "1").await;
    worker.recorded(&task).await;
    worker.gets_nothing_for(Duration::from_millis(500)).await;
    open.commit().await.unwrap();
    let task = worker.accept_next().await;
    assert_eq!(task.task_id, next);
    let open = holder.transaction().await.unwrap();
    open.query_one(enqueue, &[]).await.unwrap();
    worker.succeed(&task, "1").await;
    worker.recorded(&task).await;
    drop(worker);
    assert!(replica.terminate().await.success());
    open.rollback().await.unwrap();
}

#[tokio::test]
async fn what_is_scheduled_or_too_much_for_one_transaction_starts_all_the_same() {
    let test = TestDb::new().await;
    let db = test.connect().await;
    let replica = Replica::start(&test.url(), QUICK).await;
    let mut worker = ScriptedWorker::connect_with_slots(&replica.url(), 700).await;
    let later = enqueue(&db, "concurrency_key => 'a', delay => '1500 ms'").await;
    let first = enqueue(&db, "concurrency_key => 'a'").await;
    let (early, late) = (worker.accept_next().await, worker.next_task().await);
    assert_eq!(early.task_id, first);
    assert!(late.is_none(), "{late:?}");
    worker.succeed(&early, "1").await;
    assert_eq!(worker.accept_next().await.task_id, later);
    db.execute(
        "select fencepost.enqueue_many(array['q'], array['t'], array_fill('null'::bytea, array[600]),
            concurrency_key => (select array_agg('k' || n) from generate_series(1, 600) as n))",
        &[],
    )
    .await
    .unwrap();
    for _ in 0..600 {
        worker.accept_next().await;
    }
    comes_to(&db, "select count(*) from fencepost.key_look", 0).await;
}

#[tokio::test]
async fn operators_see_who_has_a_key_and_what_stops_it_and_let_it_go_on() {
    let test = TestDb::new().await;
    let db = test.connect().await;
    let replica = Replica::start(&test.url(), QUICK).await;
    let operator = Operator::of(&replica);
    let declaration =
        r#"{"task_queue": "q", "task_type": "t", "key_limit": 1, "on_dead_key": "stop"}"#;
    operator.change("POST", "/v1/queues", declaration).await;
    let mut worker = ScriptedWorker::connect(&replica.url()).await;
    let mut tasks = Vec::new();
    for _ in 0..4 {
        tasks.push(enqueue(&db, "concurrency_key => 'a', max_attempts => 1").await);
    }
    let task = worker.accept_next().await;
    let why = operator.stands(tasks[1], "held").await;
    let detail = format!(
        "It is held: its concurrency key is busy with task {}.",
        tasks[0]
    );
    assert_eq!(why["detail"], detail);
    let queues = operator.get("/v1/queues").await;
    let queue = &queues["queues"][0];
    assert_eq!(queue["held"]["key_busy"], 3);
    assert_eq!(
        (&queue["key_limit"], &queue["on_dead_key"]),
        (&1.into(), &"stop".into())
    );

    worker.fail(&task, FailureKind::Terminal, "broken").await;
    worker.recorded(&task).await;
    ended(&db, tasks[0]).await;
    let why = operator.why(tasks[1]).await;
    let detail = format!(
        "It is held: its concurrency key is stopped by dead letter {}.",
        tasks[0]
    );
    assert_eq!(why["detail"], detail);
    let list = operator
        .get("/v1/queues/stopped-keys?namespace=default")
        .await;
    let stopped = &list["stopped_keys"][0];
    assert_eq!(stopped["letter_id"], tasks[0].to_string());
    assert_eq!(stopped["concurrency_key"], "a");
    worker.gets_nothing_for(Duration::from_millis(300)).await;
    let resume = r#"{"concurrency_key": "a"}"#;
    let resumed = operator
        .change("POST", "/v1/queues/resume-key", resume)
        .await;
    assert_eq!(resumed["letters"], 1);
    let task = worker.accept_next().await;
    assert_eq!(task.task_id, tasks[1]);

    // The same by the command line, and again by a redrive, which takes the dead one's place.
    worker.fail(&task, FailureKind::Terminal, "broken").await;
    worker.recorded(&task).await;
    let list = fencepost(&test.url(), &["queue", "stopped-keys", "--output", "json"]).await;
    let list: Value = serde_json::from_slice(&list.stdout).unwrap();
    assert_eq!(list[0]["letter_id"], tasks[1].to_string());
    let resumed = fencepost(&test.url(), &["queue", "resume-key", "a"]).await;
    assert!(resumed.status.success());
    let task = worker.accept_next().await;
    assert_eq!(task.task_id, tasks[2]);
    worker.fail(&task, FailureKind::Terminal, "broken").await;
    worker.recorded(&task).await;
    let letters = format!(r#"{{"ids": ["{}"]}}"#, tasks[2]);
    operator
        .change("POST", "/v1/dead-letters/redrive", &letters)
        .await;
    let redriven = worker.accept_next().await;
    assert!(!tasks.contains(&redriven.task_id));
    worker.succeed(&redriven, "1").await;
    worker.recorded(&redriven).await;
    assert_eq!(worker.accept_next().await.task_id, tasks[3]);
}
