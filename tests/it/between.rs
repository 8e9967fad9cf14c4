//! Faults that strike exactly between two lines: a row that somebody holds, a database that stands still, a stream that
//! ends while its report is on its way.

use std::time::Duration;

use fencepost::proto::worker::{Register, Task};
use nix::sys::signal::Signal;
use tokio_postgres::{Client, Transaction};

use crate::support::queue::assert_sound;
use crate::support::scripted_worker::{resuming, succeeded};
use crate::support::tasks::{DONE, FAILED, count, ended, enqueue, enqueue_many, failures, live};
use crate::support::{Replica, ScriptedWorker, TcpProxy, TestDb, eventually};

const PATIENCE: Duration = Duration::from_secs(30);

/// Holds a task's row until the transaction ends.
async fn hold(client: &mut Client, id: i64) -> Transaction<'_> {
    let open = client.transaction().await.unwrap();
    let lock = "select from fencepost.live where id = $1 for update";
    open.query_one(lock, &[&id]).await.unwrap();
    open
}

/// Waits until somebody waits for a lock in this database.
async fn somebody_is_stuck(db: &Client) {
    eventually(PATIENCE, async || {
        let stuck = "select count(*) from pg_stat_activity
            where datname = current_database() and wait_event_type = 'Lock'";
        (count(db, stuck).await > 0).then_some(())
    })
    .await;
}

async fn take(worker: &mut ScriptedWorker, number: usize) -> Vec<Task> {
    let mut tasks = Vec::new();
    while tasks.len() < number {
        tasks.push(worker.accept_next().await);
    }
    tasks.sort_by_key(|task| task.task_id);
    tasks
}

async fn resume(replica: &Replica, tasks: &[Task], slots: u32) -> ScriptedWorker {
    let held: Vec<&Task> = tasks.iter().collect();
    let register = Register {
        slots,
        ..resuming(&held)
    };
    ScriptedWorker::connect_as(&replica.url(), register).await
}

async fn sound(test: &TestDb) {
    assert_sound(&test.pool().get().await.unwrap()).await;
}

#[tokio::test]
async fn a_worker_comes_back_while_its_report_waits_for_the_row() {
    let test = TestDb::new().await;
    let db = test.connect().await;
    let replica = Replica::start(&test.url(), &[]).await;
    let mut worker = ScriptedWorker::connect(&replica.url()).await;
    let id = enqueue(&db, "").await;
    let task = worker.accept_next().await;
    let mut holder = test.connect().await;
    let open = hold(&mut holder, id).await;
    worker.succeed(&task, "1").await;
    somebody_is_stuck(&db).await;
    drop(worker);
    // The replica has the report, not the delivery any more; the row can't be asked.
    let mut back = resume(&replica, std::slice::from_ref(&task), 1).await;
    assert!(back.welcome.abandoned.is_empty(), "{:?}", back.welcome);
    open.rollback().await.unwrap();
    back.succeed(&task, "1").await;
    back.recorded(&task).await;
    let end = ended(&db, id).await;
    assert_eq!((end.state, end.attempt, end.fence), (DONE, 0, Some(1)));
    // Its slot is free.
    enqueue(&db, "").await;
    let next = back.accept_next().await;
    back.succeed(&next, "2").await;
    back.recorded(&next).await;
    sound(&test).await;
}

#[tokio::test]
async fn another_replica_adopts_while_the_first_one_still_has_the_report() {
    let test = TestDb::new().await;
    let db = test.connect().await;
    let (proxy, through) = TcpProxy::before(&test.url()).await;
    // The first one stands still for two pings, and is not dead by then.
    let env = [
        ("WORKERS__SILENCE_WINDOW", "4s"),
        ("REPLICA__DEAD_AFTER", "60s"),
    ];
    let first = Replica::start(&through, &env).await;
    let second = Replica::start(&test.url(), &env).await;
    let mut worker = ScriptedWorker::connect_with_slots(&first.url(), 2).await;
    let ids = enqueue_many(&db, 2).await;
    let tasks = take(&mut worker, 2).await;
    // The first replica's database stands still with the report on its way.
    proxy.hold();
    worker.succeed(&tasks[0], "1").await;
    worker.answers_pings(2).await;
    let mut back = resume(&second, &tasks, 2).await;
    assert_eq!(back.welcome.resumed.len(), 2, "{:?}", back.welcome);
    assert!(ids.contains(&tasks[0].task_id));
    proxy.release();
    worker.recorded(&tasks[0]).await;
    drop(worker);
    // The same report again, and one that is only here.
    for task in &tasks {
        back.succeed(task, "1").await;
        back.recorded(task).await;
        let end = ended(&db, task.task_id).await;
        assert_eq!((end.state, end.attempt, end.fence), (DONE, 0, Some(1)));
    }
    assert_eq!(
        count(&db, "select count(*) from fencepost.failure").await,
        0
    );
    sound(&test).await;
    // Both slots are free at the second one.
    enqueue_many(&db, 2).await;
    take(&mut back, 2).await;
}

#[tokio::test]
async fn one_held_row_stops_only_its_own_adoption() {
    let test = TestDb::new().await;
    let db = test.connect().await;
    let first = Replica::start(&test.url(), &[]).await;
    let mut worker = ScriptedWorker::connect_with_slots(&first.url(), 3).await;
    enqueue_many(&db, 3).await;
    let tasks = take(&mut worker, 3).await;
    let second = Replica::start(&test.url(), &[]).await;
    let mut holder = test.connect().await;
    let open = hold(&mut holder, tasks[1].task_id).await;
    let mut back = resume(&second, &tasks, 3).await;
    let resumed = &back.welcome.resumed;
    assert_eq!(resumed.len(), 2, "{:?}", back.welcome);
    assert!(resumed.contains(&tasks[0].token) && resumed.contains(&tasks[2].token));
    // Nobody says that it is over: the worker goes on with it.
    assert!(back.welcome.abandoned.is_empty());
    let owner = async |task: &Task| live(&db, task.task_id).await.unwrap().dispatcher;
    assert_ne!(owner(&tasks[0]).await, owner(&tasks[1]).await);
    open.rollback().await.unwrap();
    for task in &tasks {
        back.succeed(task, "1").await;
        back.recorded(task).await;
        assert_eq!(ended(&db, task.task_id).await.fence, Some(1));
    }
    sound(&test).await;
}

/// Started anew at each move, it would never be over.
#[tokio::test]
async fn a_run_timeout_goes_on_over_every_reconnect_and_adoption() {
    let test = TestDb::new().await;
    let db = test.connect().await;
    let env = [
        ("WORKERS__ACCEPT_TIMEOUT", "200ms"),
        ("REPLICA__DEAD_AFTER", "60s"),
        ("TASKS__BACKOFF_BASE", "10m"),
        ("TASKS__BACKOFF_MAX", "10m"),
    ];
    let replicas = [
        Replica::start(&test.url(), &env).await,
        Replica::start(&test.url(), &env).await,
    ];
    for elsewhere in [0, 1] {
        let mut worker = ScriptedWorker::connect(&replicas[0].url()).await;
        let id = enqueue(&db, "run_timeout => '3 seconds'").await;
        let task = worker.accept_next().await;
        assert_eq!(task.task_id, id);
        let mut moves = 0;
        while live(&db, id).await.unwrap().attempt == 0 {
            moves += 1;
            let to = &replicas[elsewhere * moves % 2];
            worker = resume(to, std::slice::from_ref(&task), 1).await;
            worker.answers_pings(1).await;
        }
        assert!(moves > 1, "it has moved");
        let failed = failures(&db, id).await;
        let expected = (1, 1, "time_out".to_owned(), "run_timeout".to_owned());
        assert_eq!(failed, [expected]);
        drop(worker);
    }
}

#[tokio::test]
async fn an_adopter_knows_how_long_the_task_has_run() {
    let test = TestDb::new().await;
    let db = test.connect().await;
    let first = Replica::start(&test.url(), &[]).await;
    let second = Replica::start(&test.url(), &[]).await;
    let mut worker = ScriptedWorker::connect(&first.url()).await;
    let id = enqueue(&db, "").await;
    let task = worker.accept_next().await;
    // As if it had been claimed that long ago: past the run timeout of an hour, not past what the row allows besides.
    let earlier =
        "update fencepost.live set deadline = now() + interval '14 seconds' where id = $1";
    db.execute(earlier, &[&id]).await.unwrap();
    let mut back = resume(&second, std::slice::from_ref(&task), 1).await;
    back.cancelled(&task).await;
    let failed = eventually(PATIENCE, async || failures(&db, id).await.pop()).await;
    assert_eq!(
        (failed.2.as_str(), failed.3.as_str()),
        ("time_out", "run_timeout")
    );
    let said = "select count(*) from fencepost.failure where error_message like '%longer than its run timeout%'";
    assert_eq!(count(&db, said).await, 1, "by its owner, not by the chores");
}

#[tokio::test]
async fn a_drain_is_announced_before_the_next_beat() {
    let test = TestDb::new().await;
    let db = test.connect().await;
    let env = [("REPLICA__BEAT", "10m"), ("REPLICA__DEAD_AFTER", "1h")];
    let mut replica = Replica::start(&test.url(), &env).await;
    let mut worker = ScriptedWorker::connect(&replica.url()).await;
    enqueue(&db, "").await;
    let task = worker.accept_next().await;
    replica.signal(Signal::SIGTERM);
    let draining = "select count(*) from fencepost.dispatcher where draining and dead_at is null";
    eventually(PATIENCE, async || {
        (count(&db, draining).await == 1).then_some(())
    })
    .await;
    assert!(replica.is_up());
    worker.succeed(&task, "1").await;
    worker.recorded(&task).await;
    drop(worker);
    assert!(replica.ended().await.success());
}

#[tokio::test]
async fn a_result_that_the_slow_lane_can_t_store_ends_its_task_with_that_reason() {
    let test = TestDb::new().await;
    let db = test.connect().await;
    let replica = Replica::start(&test.url(), &[]).await;
    let mut worker = ScriptedWorker::connect_with_slots(&replica.url(), 2).await;
    let ids = enqueue_many(&db, 2).await;
    let tasks = take(&mut worker, 2).await;
    let mut holder = test.connect().await;
    let open = hold(&mut holder, tasks[0].task_id).await;
    let odd = r#"{"text": "\u0000"}"#;
    worker
        .report(vec![succeeded(&tasks[0], odd), succeeded(&tasks[1], "1")])
        .await;
    // The neighbour is recorded; the held one waits alone.
    worker.recorded(&tasks[1]).await;
    somebody_is_stuck(&db).await;
    open.rollback().await.unwrap();
    worker.recorded(&tasks[0]).await;
    let end = ended(&db, tasks[0].task_id).await;
    assert_eq!(
        (end.state, end.class.as_deref()),
        (FAILED, Some("result_invalid"))
    );
    assert_eq!(end.attempt, 1, "its first attempt was its last");
    assert_eq!(ended(&db, tasks[1].task_id).await.state, DONE);
    assert_eq!(ids.len(), 2);
    sound(&test).await;
}

#[tokio::test]
async fn reports_to_a_database_that_stands_still_keep_no_session_from_reading() {
    let test = TestDb::new().await;
    let db = test.connect().await;
    let env = [("WORKERS__SILENCE_WINDOW", "1s")];
    let replica = Replica::start(&test.url(), &env).await;
    let mut worker = ScriptedWorker::connect_with_slots(&replica.url(), 200).await;
    enqueue_many(&db, 200).await;
    let tasks = take(&mut worker, 200).await;
    let mut holder = test.connect().await;
    let open = holder.transaction().await.unwrap();
    open.batch_execute("lock table fencepost.live in access exclusive mode")
        .await
        .unwrap();
    for task in &tasks {
        worker.succeed(task, "1").await;
    }
    // Pings come four times a window. Unread answers would end the stream within one.
    worker.answers_pings(12).await;
    open.rollback().await.unwrap();
    for _ in &tasks {
        worker.ack().await;
    }
    assert_eq!(replica.said("it is lost"), 0, "{}", replica.log());
    let done =
        "select count(*) from fencepost.outcome where state = 1 and attempt = 0 and fence = 1";
    assert_eq!(count(&db, done).await, 200);
    sound(&test).await;
}
