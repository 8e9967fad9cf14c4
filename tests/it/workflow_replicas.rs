//! Workflows over real replicas and workers: an end that a dead one owes, losers elsewhere, and many ends at once.

use std::time::Duration;

use fencepost::proto::worker::FailureKind;
use fencepost::worker::{Options, Success, Task, Worker};
use tokio::task::JoinSet;
use tokio_postgres::Client;
use tokio_util::sync::CancellationToken;

use crate::support::queue::assert_sound;
use crate::support::tasks::{CANCELLED, DONE, count, ended};
use crate::support::{Replica, ScriptedWorker, TestDb, eventually};

/// No step takes longer, unless something is broken.
const STEP: Duration = Duration::from_secs(20);

/// Quick chores, and death soon.
const QUICK: &[(&str, &str)] = &[
    ("REPLICA__BEAT", "200ms"),
    ("REPLICA__DEAD_AFTER", "1500ms"),
    ("TASKS__BACKOFF_BASE", "20ms"),
];

async fn start(db: &Client, members: i32, more: &str) -> (i64, i64, Vec<i64>) {
    let call = format!(
        "select workflow_id, run_id, task_ids
        from fencepost.start_workflow(array['q'], array['t'], array_fill('null'::bytea, array[$1::int]), {more})"
    );
    let row = db.query_one(&call, &[&members]).await.unwrap();
    (row.get(0), row.get(1), row.get(2))
}

/// Waits for the end of a run, and answers its state; it has exactly one event for it.
async fn run_ends(db: &Client, run: i64) -> String {
    let select = "select state from fencepost.workflow where run_id = $1 and state <> 'running'";
    let row = eventually(STEP, async || db.query_opt(select, &[&run]).await.unwrap()).await;
    let events = format!(
        "select count(*) from fencepost.workflow_event where run_id = {run} and kind = 'ended'"
    );
    assert_eq!(count(db, &events).await, 1);
    row.get(0)
}

/// Waits until a count comes to this.
async fn comes_to(db: &Client, select: &str, number: i64) {
    eventually(STEP, async || {
        (count(db, select).await == number).then_some(())
    })
    .await;
}

#[tokio::test]
async fn the_end_of_a_run_that_a_killed_replica_owes_is_made_up_by_the_next_one() {
    let test = TestDb::new().await;
    let (db, mut holder) = (test.connect().await, test.connect().await);
    let mut first = Replica::start(&test.url(), QUICK).await;
    let mut worker = ScriptedWorker::connect(&first.url()).await;
    for (mode, ends_as) in [("all", "done"), ("fail_fast", "failed"), ("race", "done")] {
        let members = if mode == "all" { 1 } else { 2 };
        let (_, run, _) = start(&db, members, &format!("mode => '{mode}'")).await;
        let task = worker.accept_next().await;
        // Between the settle of the member and the end of its run.
        let lock = holder.transaction().await.unwrap();
        let hold = "select from fencepost.workflow where run_id = $1 for update";
        lock.execute(hold, &[&run]).await.unwrap();
        if mode == "fail_fast" {
            worker.fail(&task, FailureKind::Terminal, "broken").await;
        } else {
            worker.succeed(&task, "1").await;
        }
        worker.recorded(&task).await;
        first.kill().await;
        // Nothing that it has sent is still under way in the server.
        let connections = "select count(*) from pg_stat_activity
            where datname = current_database() and application_name like 'fencepost%'";
        comes_to(&db, connections, 0).await;
        lock.rollback().await.unwrap();
        let state = format!(
            "select count(*) from fencepost.workflow where run_id = {run} and state = 'running'"
        );
        assert_eq!(count(&db, &state).await, 1, "nobody has ended it");

        first = Replica::start(&test.url(), QUICK).await;
        assert_eq!(run_ends(&db, run).await, ends_as, "{mode}");
        let open =
            format!("select count(*) from fencepost.workflow where run_id = {run} and not settled");
        worker = ScriptedWorker::connect(&first.url()).await;
        comes_to(&db, &open, 0).await;
    }
    assert_sound(&test.pool().get().await.unwrap()).await;
}

#[tokio::test]
async fn a_race_is_over_with_its_first_success_and_losers_elsewhere_are_told() {
    let test = TestDb::new().await;
    let db = test.connect().await;
    let (here, there) = (
        Replica::start(&test.url(), QUICK).await,
        Replica::start(&test.url(), QUICK).await,
    );
    let mut winner = ScriptedWorker::connect_with_slots(&here.url(), 1).await;
    let mut loser = ScriptedWorker::connect_with_slots(&there.url(), 1).await;
    let (_, run, tasks) = start(&db, 3, "mode => 'race'").await;
    let (won, lost) = (winner.accept_next().await, loser.accept_next().await);
    winner.succeed(&won, "1").await;
    winner.recorded(&won).await;
    assert_eq!(run_ends(&db, run).await, "done");
    loser.cancelled(&lost).await;
    // The loser reports what it has all the same.
    loser.succeed(&lost, "2").await;
    loser.recorded(&lost).await;
    for id in tasks {
        let expected = if id == won.task_id { DONE } else { CANCELLED };
        assert_eq!(ended(&db, id).await.state, expected);
    }
    let open =
        format!("select count(*) from fencepost.workflow where run_id = {run} and not settled");
    comes_to(&db, &open, 0).await;
}

#[tokio::test]
async fn chores_bring_the_members_in_line_with_their_run() {
    let test = TestDb::new().await;
    let db = test.connect().await;
    // The marks alone, as whoever died right after them leaves it.
    let (cancelled, _, _) = start(&db, 700, "mode => 'all'").await;
    let (paused, paused_run, _) = start(&db, 700, "mode => 'all'").await;
    let order = |what: &str, id: i64| format!("select fencepost.{what}_workflow({id})");
    db.execute(&order("cancel", cancelled), &[]).await.unwrap();
    db.execute(&order("pause", paused), &[]).await.unwrap();
    let replica = Replica::start(&test.url(), QUICK).await;
    let held = "select count(*) from fencepost.live where hold = 1";
    comes_to(&db, held, 700).await;
    comes_to(&db, "select count(*) from fencepost.live", 700).await;
    let mut worker = ScriptedWorker::connect(&replica.url()).await;
    db.execute(&order("resume", paused), &[]).await.unwrap();
    let task = worker.accept_next().await;
    assert_eq!(task.run_id, paused_run.to_string());
    assert_eq!(task.workflow_id, paused.to_string());
    assert!(task.ordinal.is_some());
    comes_to(&db, held, 0).await;
    let open = "select count(*) from fencepost.workflow where not settled";
    comes_to(&db, open, 1).await;
    assert_sound(&test.pool().get().await.unwrap()).await;
}

#[tokio::test]
async fn five_hundred_runs_of_64_members_end_once_each_over_three_replicas() {
    const RUNS: i64 = 500;
    let test = TestDb::new().await;
    let db = test.connect().await;
    // Nothing is due before all are staged; then the members of each run are due among those of all others, so that
    // every replica has some of every run.
    db.batch_execute(&format!(
        "select fencepost.start_workflow(
            array['q'], array['t'], array_fill('null'::bytea, array[64]),
            mode => (array['all', 'fail_fast', 'all', 'race'])[n % 4 + 1], delay => array[interval '1 hour']
        )
        from generate_series(1, {RUNS}) as n;
        update fencepost.live set visible_after = now() - hashint8(id) % 10000 * interval '1 ms';
        analyze fencepost.live"
    ))
    .await
    .unwrap();
    let mut replicas = Vec::new();
    for _ in 0..3 {
        replicas.push(Replica::start(&test.url(), &[]).await);
    }
    let (stop, mut workers) = (CancellationToken::new(), JoinSet::new());
    for replica in &replicas {
        let options = Options {
            connect: vec![replica.url()],
            task_queue: "q".into(),
            slots: 300,
            ..Options::default()
        };
        let worker = Worker::new(options).handle("t", async |_: Task| Ok(Success::json(1)));
        workers.spawn(worker.run(stop.clone().cancelled_owned()));
    }
    let settled = "select count(*) from fencepost.workflow where settled and state = 'done'";
    eventually(Duration::from_secs(120), async || {
        tokio::time::sleep(Duration::from_millis(200)).await;
        (count(&db, settled).await == RUNS).then_some(())
    })
    .await;
    let ends = "select count(*) from fencepost.workflow_event where kind = 'ended'";
    assert_eq!(count(&db, ends).await, RUNS);
    let members = "select count(*) from fencepost.workflow_event where kind in ('member_done', 'member_cancelled')";
    assert_eq!(count(&db, members).await, RUNS * 64);
    // No end came before the members that it counts.
    let early = "select count(*)
        from fencepost.workflow_event as ended
        inner join fencepost.workflow using (run_id)
        inner join fencepost.workflow_event as told on told.run_id = ended.run_id and told.event_id > ended.event_id
        where ended.kind = 'ended' and workflow.mode <> 'race'";
    assert_eq!(count(&db, early).await, 0);
    let shared = "select count(distinct dispatcher) from fencepost.worker";
    assert_eq!(count(&db, shared).await, 3);
    assert_sound(&test.pool().get().await.unwrap()).await;
    stop.cancel();
    while let Some(ran) = workers.join_next().await {
        ran.unwrap().unwrap();
    }
}
