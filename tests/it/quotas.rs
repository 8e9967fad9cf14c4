//! How quotas are counted, and what becomes of one that is free again: who uses it, and who is told.

use std::time::Duration;

use fencepost::domain::quota::Limited;
use fencepost::proto::worker::Register;
use fencepost::store::dispatchers;
use fencepost::store::quotas::{self, Ask};

use crate::lifecycle::Stage;
use crate::support::scripted_worker::register;
use crate::support::{Queue, ScriptedWorker, TestDb, eventually};
use crate::waits::Overheard;

const STEP: Duration = Duration::from_secs(20);

async fn enqueue_for(stage: &Stage, namespace: &str, tasks: i32) {
    let call = "select count(*) from fencepost.enqueue_many(
            task_queue => array['q'], task_type => array['t'], namespace => array[$1::text],
            payload => array_fill('null'::bytea, array[$2::int]))";
    stage.db.query(call, &[&namespace, &tasks]).await.unwrap();
}

async fn limit(stage: &Stage, namespace: &str, weight: i32, quota: i32) {
    let call = format!(
        "select fencepost.set_namespace('{namespace}', weight => {weight}, max_in_flight => {quota})"
    );
    stage.db.batch_execute(&call).await.unwrap();
}

async fn worker_for(stage: &Stage, namespaces: &[&str], slots: u32) -> ScriptedWorker {
    let register = Register {
        namespaces: namespaces.iter().map(ToString::to_string).collect(),
        slots,
        ..register()
    };
    ScriptedWorker::connect_as(&stage.replica.url(), register).await
}

#[tokio::test]
async fn the_slot_and_the_quota_of_a_task_are_free_at_the_same_instant() {
    const ROUNDS: usize = 40;
    let stage = Stage::set(&[]).await;
    limit(&stage, "limited", 1000, 1).await;
    enqueue_for(&stage, "limited", 60).await;
    enqueue_for(&stage, "other", 60).await;
    let mut worker = worker_for(&stage, &["limited", "other"], 1).await;
    let mut own = 0;
    for _ in 0..ROUNDS {
        let task = worker.accept_next().await;
        own += usize::from(task.namespace == "limited");
        worker.succeed(&task, "1").await;
        worker.recorded(&task).await;
    }
    // By its weight nearly every start is its own; a slot that is free before the quota would be a stranger's each time.
    assert!(own >= ROUNDS - 4, "{own} of {ROUNDS}");
}

#[tokio::test]
async fn a_replica_that_never_sleeps_says_that_a_quota_holds_it_back() {
    let stage = Stage::set(&[]).await;
    limit(&stage, "limited", 1, 1).await;
    enqueue_for(&stage, "limited", 5).await;
    enqueue_for(&stage, "other", 5_000).await;
    let mut worker = worker_for(&stage, &["limited", "other"], 3).await;
    let mut rounds = 0;
    loop {
        let task = worker.accept_next().await;
        if task.namespace == "other" {
            worker.succeed(&task, "1").await;
        }
        rounds += 1;
        let query = "select sleeping, held_back from fencepost.dispatcher";
        let row = stage.db.query_one(query, &[]).await.unwrap();
        if (row.get(0), row.get(1)) == (false, true) {
            break;
        }
        assert!(rounds < 4_000, "it has not said so");
    }
}

/// Somebody who waits for quotas all the time.
async fn somebody_is_held_back(test: &TestDb) {
    let client = test.pool().get().await.unwrap();
    let id = dispatchers::register(&client, "held back", "0")
        .await
        .unwrap();
    dispatchers::set_sleeping(&client, id, false, true)
        .await
        .unwrap();
}

#[tokio::test]
async fn others_are_told_of_a_free_quota_when_nobody_here_has_a_use_for_it() {
    let stage = Stage::set(&[("REPLICA__DEAD_AFTER", "1h")]).await;
    limit(&stage, "limited", 1, 2).await;
    enqueue_for(&stage, "limited", 50).await;
    let mut told = Overheard::at(&stage.test).await;
    somebody_is_held_back(&stage.test).await;
    let mut worker = worker_for(&stage, &["limited"], 4).await;
    let mut running = [worker.accept_next().await, worker.accept_next().await];
    for round in 0..20 {
        let task = &mut running[round % 2];
        worker.succeed(task, "1").await;
        worker.recorded(task).await;
        *task = worker.accept_next().await;
    }
    stage
        .db
        .batch_execute("notify fencepost, 'used again'")
        .await
        .unwrap();
    let heard = told.hears("used again").await;
    let freed = heard.iter().filter(|text| text.ends_with(" freed")).count();
    assert_eq!(freed, 0, "{heard:?}");

    worker.drain().await;
    let draining = "select count(*) from fencepost.worker where state = 'draining'";
    eventually(STEP, async || {
        let row = stage.db.query_one(draining, &[]).await.unwrap();
        (row.get::<_, i64>(0) == 1).then_some(())
    })
    .await;
    worker.succeed(&running[0], "1").await;
    told.hears("1 freed").await;
}

#[tokio::test]
async fn a_count_may_start_late_but_not_after_the_clock_has_stepped_back() {
    let queue = Queue::new().await;
    queue.enqueue(10).await;
    let client = queue.client().await;
    queue.claim(4).await;
    client
        .batch_execute("select fencepost.set_namespace('default', max_in_flight => 9)")
        .await
        .unwrap();
    let of = Limited::Namespace(1);
    let counted = async |from| {
        let usages = quotas::count(&client, &[Ask { of, from }]).await.unwrap();
        (usages[0].claimed, usages[0].oldest, usages[0].at)
    };
    let (all, oldest, at) = counted(None).await;
    assert_eq!(all, 4);
    assert_eq!(counted(Some((oldest.unwrap(), at))).await.0, 4);
    assert_eq!(
        counted(Some((at, at))).await.0,
        0,
        "the hint is taken at its word"
    );
    assert_eq!(
        counted(Some((at, at + chrono::TimeDelta::hours(1))))
            .await
            .0,
        4,
        "but not from a clock ahead of this one"
    );
}
