//! Workers that come, go, and come back: what happens to the tasks that they have.

use std::time::{Duration, Instant};

use fencepost::proto::worker::{FailureKind, Held, RefusedReason, Register};
use tokio::task::JoinSet;
use tonic::Code;

use crate::lifecycle::Stage;
use crate::support::scripted_worker::{register, resuming};
use crate::support::tasks::{CANCELLED, DONE, count, ended, enqueue, failures, live};
use crate::support::{Operator, Replica, ScriptedWorker, TcpProxy, TestDb, eventually};

#[tokio::test]
async fn a_lost_connection_is_another_try_elsewhere_after_the_grace() {
    let stage = Stage::set(&[]).await;
    let mut worker = stage.worker().await;
    let id = enqueue(&stage.db, "").await;
    let task = worker.accept_next().await;
    // The frame has been taken in when the row of the next one shows that the stream was read so far.
    worker.progress(&task).await;
    let mut other = stage.worker().await;
    let lost = Instant::now();
    drop(worker);
    let again = other.accept_next().await;
    assert!(
        lost.elapsed() >= Duration::from_millis(600),
        "{:?}",
        lost.elapsed()
    );
    assert_eq!((again.task_id, again.attempt, again.fence), (id, 2, 2));
    let row = live(&stage.db, id).await.unwrap();
    assert_eq!((row.attempt, row.losses, row.epoch), (1, 1, 1));
    let failures = failures(&stage.db, id).await;
    assert_eq!(
        failures,
        [(1, 1, "retry_at_once".into(), "connection_lost".into())]
    );
    // The lost one comes back too late, and is told so.
    let late = ScriptedWorker::resume(&stage.replica.url(), &[&task]).await;
    assert_eq!(late.welcome.abandoned, std::slice::from_ref(&task.token));
    assert!(late.welcome.resumed.is_empty());
    other.succeed(&again, "2").await;
    other.recorded(&again).await;
    assert_eq!(ended(&stage.db, id).await.state, DONE);
}

#[tokio::test]
async fn a_delivery_that_was_never_accepted_costs_no_attempt_when_its_worker_is_lost() {
    let stage = Stage::set(&[("WORKERS__ACCEPT_TIMEOUT", "1m")]).await;
    let mut worker = stage.worker().await;
    let id = enqueue(&stage.db, "").await;
    worker.task().await;
    drop(worker);
    let mut other = stage.worker().await;
    let again = other.accept_next().await;
    assert_eq!((again.task_id, again.attempt, again.fence), (id, 1, 2));
    assert_eq!(live(&stage.db, id).await.unwrap().losses, 1);
}

#[tokio::test]
async fn a_worker_that_comes_back_in_time_goes_on_with_its_task() {
    let stage = Stage::set(&[]).await;
    let mut worker = stage.worker().await;
    let id = enqueue(&stage.db, "").await;
    let task = worker.accept_next().await;
    let mut other = stage.worker().await;
    drop(worker);
    let mut back = ScriptedWorker::resume(&stage.replica.url(), &[&task]).await;
    assert_eq!(back.welcome.resumed, std::slice::from_ref(&task.token));
    // Longer than the grace: nobody else gets it.
    other.gets_nothing_for(Duration::from_millis(1200)).await;
    assert_eq!(live(&stage.db, id).await.unwrap().fence, 1);
    // Its slot is taken, so the next task goes to the other one.
    let next = enqueue(&stage.db, "").await;
    assert_eq!(other.accept_next().await.task_id, next);
    back.succeed(&task, "1").await;
    back.recorded(&task).await;
    let end = ended(&stage.db, id).await;
    assert_eq!((end.state, end.attempt, end.fence), (DONE, 0, Some(1)));
    let third = enqueue(&stage.db, "").await;
    assert_eq!(
        back.accept_next().await.task_id,
        third,
        "and the slot is free again"
    );
}

#[tokio::test]
async fn a_worker_whose_old_stream_is_still_open_may_come_back() {
    let stage = Stage::set(&[]).await;
    let proxy = TcpProxy::start(stage.replica.grpc()).await;
    let mut worker = ScriptedWorker::connect(&proxy.url()).await;
    let id = enqueue(&stage.db, "").await;
    let task = worker.accept_next().await;
    eventually(Duration::from_secs(5), async || {
        (live(&stage.db, id).await?.state == 1).then_some(())
    })
    .await;
    // The network swallows everything; the replica believes in the old stream until its pings say otherwise.
    proxy.hold();
    let mut back = ScriptedWorker::resume(&stage.replica.url(), &[&task]).await;
    assert_eq!(back.welcome.resumed, std::slice::from_ref(&task.token));
    proxy.cut();
    // The end of the old stream takes nothing away from the new one.
    back.gets_nothing_for(Duration::from_millis(1200)).await;
    back.succeed(&task, "1").await;
    back.recorded(&task).await;
    assert_eq!(ended(&stage.db, id).await.fence, Some(1));
}

#[tokio::test]
async fn a_worker_that_answers_no_ping_is_lost() {
    let stage = Stage::set(&[("WORKERS__SILENCE_WINDOW", "800ms")]).await;
    let mut silent = stage.worker().await;
    assert_eq!(silent.welcome.silence_window_ms, 800);
    let id = enqueue(&stage.db, "").await;
    silent.accept_next().await;
    silent.hush();
    let mut other = stage.worker().await;
    let again = other.accept_next().await;
    assert_eq!((again.task_id, again.attempt), (id, 2));
    silent.ended().await;
}

#[tokio::test]
async fn what_a_worker_names_must_be_its_own() {
    let stage = Stage::set(&[]).await;
    let mut worker = stage.worker().await;
    enqueue(&stage.db, "").await;
    let task = worker.accept_next().await;
    worker.succeed(&task, "1").await;
    worker.recorded(&task).await;
    let named = [
        task.token.clone(),
        "1.0.1".into(),
        "no token".into(),
        "9".into(),
    ];
    let resume = named
        .iter()
        .map(|token| Held {
            task_id: 1,
            token: token.clone(),
        })
        .collect();
    let back = Register {
        resume,
        ..register()
    };
    let mut back = ScriptedWorker::connect_as(&stage.replica.url(), back).await;
    assert!(back.welcome.resumed.is_empty());
    let mut abandoned = back.welcome.abandoned.clone();
    abandoned.sort();
    // Its report is recorded, so that a repeat of it may come and is answered.
    let mut expected = named[1..].to_vec();
    expected.sort();
    assert_eq!(abandoned, expected);
    drop(worker);
    enqueue(&stage.db, "").await;
    back.accept_next().await;
}

#[tokio::test]
async fn a_cancel_that_came_while_the_worker_was_away_reaches_it_when_it_is_back() {
    let stage = Stage::set(&[
        ("TASKS__CANCEL_GRACE", "1m"),
        ("WORKERS__RECONNECT_GRACE", "1m"),
    ])
    .await;
    let mut worker = stage.worker().await;
    let id = enqueue(&stage.db, "").await;
    let task = worker.accept_next().await;
    drop(worker);
    assert_eq!(
        stage.replica.post(&format!("/v1/tasks/{id}/cancel")).await,
        Some(200)
    );
    // The next beat takes the order up; the one after that shows that it has.
    let beat = "select beat from fencepost.dispatcher";
    let asked: i64 = stage.db.query_one(beat, &[]).await.unwrap().get(0);
    eventually(Duration::from_secs(5), async || {
        (stage
            .db
            .query_one(beat, &[])
            .await
            .unwrap()
            .get::<_, i64>(0)
            > asked + 2)
            .then_some(())
    })
    .await;
    let mut back = ScriptedWorker::resume(&stage.replica.url(), &[&task]).await;
    back.cancelled(&task).await;
}

#[tokio::test]
async fn each_fault_of_a_registration_is_final_and_named() {
    type Edit = fn(&mut Register);
    let faults: [(&str, Edit); 11] = [
        ("protocol", |r| r.protocol = 2),
        ("identity", |r| r.identity = String::new()),
        ("identity", |r| r.identity = "x".repeat(201)),
        ("namespaces", |r| r.namespaces.clear()),
        ("namespaces", |r| r.namespaces = vec!["a\u{7}".into()]),
        ("task_queue", |r| r.task_queue = String::new()),
        ("task_types", |r| r.task_types.clear()),
        ("node", |r| r.node = "\n".into()),
        ("slots", |r| r.slots = 0),
        ("slots", |r| r.slots = 100_001),
        ("max_frame_bytes", |r| r.max_frame_bytes = 10),
    ];
    let stage = Stage::set(&[]).await;
    for (field, edit) in faults {
        let mut wrong = register();
        edit(&mut wrong);
        let status = ScriptedWorker::try_connect(&stage.replica.url(), wrong)
            .await
            .unwrap_err();
        assert_eq!(status.code(), Code::InvalidArgument, "{field}");
        assert_eq!(status.metadata().get("fencepost-field").unwrap(), field);
        assert!(
            status.message().starts_with(field) && status.message().ends_with('.'),
            "{status}"
        );
    }
    let mut worker = stage.worker().await;
    enqueue(&stage.db, "").await;
    worker.accept_next().await;
}

#[tokio::test]
async fn a_draining_worker_gets_nothing_new_and_its_results_count() {
    let stage = Stage::set(&[]).await;
    let mut worker = stage.wide_worker(3).await;
    let id = enqueue(&stage.db, "").await;
    let task = worker.accept_next().await;
    worker.drain().await;
    worker.succeed(&task, "1").await;
    worker.recorded(&task).await;
    let waits = enqueue(&stage.db, "").await;
    worker.gets_nothing_for(Duration::from_millis(400)).await;
    assert_eq!(ended(&stage.db, id).await.state, DONE);
    let mut other = stage.worker().await;
    assert_eq!(other.task().await.task_id, waits);
}

#[tokio::test]
async fn a_dead_stream_gets_no_task_and_loses_none() {
    // Workers come and go while tasks are sent to them: whoever is gone by then has nothing.
    let stage = Stage::set(&[
        ("WORKERS__ACCEPT_TIMEOUT", "1m"),
        ("WORKERS__RECONNECT_GRACE", "50ms"),
    ])
    .await;
    let ids = crate::support::tasks::enqueue_many(&stage.db, 300).await;
    for _ in 0..15 {
        let mut worker = stage.wide_worker(20).await;
        worker.task().await;
        drop(worker);
    }
    let mut steady = stage.wide_worker(20).await;
    let mut done = 0;
    while done < ids.len() {
        let task = steady.accept_next().await;
        steady.succeed(&task, "1").await;
        steady.recorded(&task).await;
        // What was lost too often in the coming and going is a dead letter; none waits for an acceptance.
        let rows = stage
            .db
            .query_one("select count(*) from fencepost.outcome", &[])
            .await
            .unwrap();
        done = usize::try_from(rows.get::<_, i64>(0)).unwrap();
    }
}

/// A worker that goes away in the middle of its registration, while the database takes its time.
#[tokio::test]
async fn a_worker_that_leaves_while_it_registers_leaves_its_tasks_to_others() {
    let test = TestDb::new().await;
    let db = test.connect().await;
    let (proxy, through) = TcpProxy::before(&test.url()).await;
    let env = [
        ("WORKERS__RECONNECT_GRACE", "500ms"),
        ("REPLICA__BEAT", "200ms"),
        ("TASKS__BACKOFF_BASE", "20ms"),
    ];
    let first = Replica::start(&through, &env).await;
    let mut second = Replica::start(&test.url(), &env).await;
    let mut worker = ScriptedWorker::connect(&second.url()).await;
    let id = enqueue(&db, "").await;
    let task = worker.accept_next().await;
    // Its replica dies; it names its task to the other one, whose database does not answer just then.
    second.kill().await;
    proxy.hold();
    let mut leaving = JoinSet::new();
    let url = first.url();
    let back = resuming(&[&task]);
    leaving.spawn(async move { ScriptedWorker::register(&url, back).await.map(drop) });
    let gone = tokio::time::timeout(Duration::from_millis(500), leaving.join_next()).await;
    gone.expect_err("the registration needs the database");
    leaving.shutdown().await;
    proxy.release();
    // Adopted, and lost again: another try, long before its run timeout.
    let mut other = ScriptedWorker::connect(&first.url()).await;
    let again = other.accept_next().await;
    assert_eq!(again.task_id, id);
    other.succeed(&again, "2").await;
    other.recorded(&again).await;
}

#[tokio::test]
async fn slots_are_free_again_whatever_way_a_delivery_ended() {
    let stage = Stage::set(&[]).await;
    let mut worker = stage.worker().await;
    // Refused, snoozed, failed, timed out, not accepted: the one slot is there for the next one each time.
    for way in ["refused", "snoozed", "timed out", "not accepted", "done"] {
        let id = enqueue(&stage.db, "run_timeout => '300ms', max_attempts => 1").await;
        let task = worker.task().await;
        assert_eq!(task.task_id, id, "{way}");
        match way {
            "refused" => worker.refuse(&task, RefusedReason::NoSlot).await,
            "snoozed" => {
                worker.accept(&[&task]).await;
                worker.snooze(&task, Duration::ZERO).await;
            }
            "timed out" => {
                worker.accept(&[&task]).await;
                ended(&stage.db, id).await;
                continue;
            }
            "not accepted" => {}
            _ => {
                worker.accept(&[&task]).await;
                worker.succeed(&task, "1").await;
                continue;
            }
        }
        let task = worker.accept_next().await;
        assert_eq!(task.task_id, id, "{way}");
        worker.succeed(&task, "1").await;
        assert_eq!(ended(&stage.db, id).await.state, DONE);
    }
}

#[tokio::test]
async fn a_task_that_is_being_cancelled_is_adopted_and_its_worker_told() {
    let test = TestDb::new().await;
    let db = test.connect().await;
    let first = Replica::start(&test.url(), &[]).await;
    let mut second = Replica::start(&test.url(), &[]).await;
    let mut worker = ScriptedWorker::connect(&second.url()).await;
    let id = enqueue(&db, "").await;
    let task = worker.accept_next().await;
    second.kill().await;
    assert_eq!(
        first.post(&format!("/v1/tasks/{id}/cancel")).await,
        Some(200)
    );
    let mut back = ScriptedWorker::resume(&first.url(), &[&task]).await;
    assert_eq!(back.welcome.resumed, std::slice::from_ref(&task.token));
    back.cancelled(&task).await;
    back.fail(&task, FailureKind::Cancelled, "stopped").await;
    back.recorded(&task).await;
    assert_eq!(ended(&db, id).await.state, CANCELLED);
}

#[tokio::test]
async fn beats_leave_the_rows_of_workers_alone_that_have_not_changed() {
    let stage = Stage::set(&[]).await;
    let operator = Operator::of(&stage.replica);
    let mut worker = stage.worker().await;
    operator
        .worker(&register().identity, |one| one["state"] == "ready")
        .await;
    // A row that a statement has locked in vain shows it in xmax.
    let versions =
        "select string_agg(concat_ws(' ', worker.ctid, worker.xmax, fleet.ctid, fleet.xmax), '; ')
        from fencepost.worker, fencepost.fleet";
    let beats = "select beat from fencepost.dispatcher";
    let before: String = stage.db.query_one(versions, &[]).await.unwrap().get(0);
    let beat = count(&stage.db, beats).await;
    eventually(Duration::from_secs(10), async || {
        (count(&stage.db, beats).await >= beat + 3).then_some(())
    })
    .await;
    let after: String = stage.db.query_one(versions, &[]).await.unwrap().get(0);
    assert_eq!(after, before);
    // What has changed is told with the next one.
    enqueue(&stage.db, "").await;
    worker.accept_next().await;
    operator
        .worker(&register().identity, |one| one["busy"] == 1)
        .await;
}
