//! Workflows that are kept no longer: what goes, what stays, and who comes by meanwhile.

use std::time::Duration;

use deadpool_postgres::GenericClient;
use fencepost::domain::id::{RunId, WorkflowId};
use fencepost::store::{retention, runs, workflows};
use tokio_postgres::Row;

use crate::support::Queue;
use crate::support::queue::backend;

const HOUR: Duration = Duration::from_hours(1);

/// Stages a workflow: its id, its run, and whether it is a new one.
async fn start(client: &impl GenericClient, arguments: &str) -> (WorkflowId, RunId, bool) {
    let call =
        format!("select workflow_id, run_id, created from fencepost.start_workflow({arguments})");
    let row: Row = client.query_one(&call, &[]).await.unwrap();
    (row.get(0), row.get(1), row.get(2))
}

/// One that has ended, with its members, two hours ago.
async fn old(queue: &Queue, members: i32, more: &str) -> (WorkflowId, RunId) {
    let mut client = queue.client().await;
    let arguments =
        format!("array['q'], array['t'], array_fill('1'::bytea, array[{members}]), {more}");
    let (id, run, _) = start(&client, &arguments).await;
    let cancel = "select fencepost.cancel_workflow($1)";
    client.execute(cancel, &[&id]).await.unwrap();
    while let Some((_, step)) = runs::look(&client, &[run]).await.unwrap().pop() {
        runs::take_step(&mut client, run, step, HOUR).await.unwrap();
    }
    let age = "update fencepost.workflow set ended_at = now() - interval '2 hours' where run_id = $1 and settled";
    assert_eq!(client.execute(age, &[&run]).await.unwrap(), 1);
    (id, run)
}

/// One batch: how many rows are gone.
async fn expire(queue: &Queue, most: i32) -> i64 {
    let client = queue.client().await;
    let gone = retention::expire_workflows(&client, HOUR, most).await;
    gone.unwrap()
}

/// Rows of a run, but for its tasks.
async fn rows(queue: &Queue, run: RunId) -> i64 {
    let select = format!(
        "select (select count(*) from fencepost.workflow where run_id = {run})
            + (select count(*) from fencepost.workflow_member where run_id = {run})
            + (select count(*) from fencepost.workflow_event where run_id = {run})"
    );
    queue.number(&select).await
}

/// The SQLSTATE that an order for this workflow is refused with.
async fn refused(client: &impl GenericClient, call: &str, id: WorkflowId) -> String {
    let call = format!("select fencepost.{call}_workflow({id})");
    let error = client.query(&call, &[]).await.unwrap_err();
    error.code().unwrap().code().to_owned()
}

#[tokio::test]
async fn runs_go_with_all_that_is_theirs_in_batches_and_are_never_half_seen() {
    let queue = Queue::new().await;
    let client = queue.client().await;
    let (id, run) = old(&queue, 5, "workflow_key => 'k'").await;
    // What stays: one that goes on, one that ended just now, and one with a member that still runs.
    let (going, going_run, _) = start(&client, "array['q'], array['t'], array['1'::bytea]").await;
    let (_, young, _) = start(&client, "workflow_key => 'young'").await;
    let (unsettled, unsettled_run, _) =
        start(&client, "array['q'], array['t'], array['1'::bytea]").await;
    assert_eq!(queue.claim(2).await.len(), 2);
    client
        .batch_execute(&format!(
            "select fencepost.cancel_workflow({unsettled});
            update fencepost.workflow set ended_at = now() - interval '2 hours' where run_id = {unsettled_run}"
        ))
        .await
        .unwrap();

    // Five members, seven events, the run.
    assert_eq!(rows(&queue, run).await, 13);
    assert_eq!(expire(&queue, 3).await, 3);
    assert_eq!(rows(&queue, run).await, 10);
    assert_eq!(workflows::read(&client, id, None).await.unwrap(), None);
    let (listed, _) = workflows::list(&client, &workflows::Filter::default(), None, 10)
        .await
        .unwrap();
    assert_eq!(listed.len(), 3);
    for call in ["rerun", "cancel", "pause"] {
        assert_eq!(refused(&client, call, id).await, "FP032");
    }
    let (again, _, created) = start(&client, "workflow_key => 'k'").await;
    assert!(created && again != id, "its key is free");
    assert_eq!(expire(&queue, 4).await, 4);
    assert_eq!(expire(&queue, 5).await, 5);
    assert_eq!(expire(&queue, 5).await, 1);
    assert_eq!(rows(&queue, run).await, 0);

    assert_eq!(expire(&queue, 5).await, 0);
    for run in [going_run, young, unsettled_run] {
        assert!(rows(&queue, run).await > 0);
    }
    assert!(
        workflows::read(&client, going, None)
            .await
            .unwrap()
            .is_some()
    );
    let (kept, _, created) = start(&client, "workflow_key => 'k'").await;
    assert_eq!((kept, created), (again, false), "the new one has the key");
    queue.assert_sound().await;
}

#[tokio::test]
async fn earlier_runs_go_before_the_newest_and_the_key_with_the_last() {
    let queue = Queue::new().await;
    let client = queue.client().await;
    let (id, run) = old(&queue, 2, "workflow_key => 'k'").await;
    let newest = queue
        .number(&format!("select fencepost.rerun_workflow({id})"))
        .await;
    assert!(expire(&queue, 100).await > 2);
    assert_eq!(rows(&queue, run).await, 0);
    let (kept, kept_run, created) = start(&client, "workflow_key => 'k'").await;
    assert_eq!((kept, kept_run, created), (id, newest, false));
    let keys = "select count(*) from fencepost.workflow_key";
    assert_eq!(queue.number(keys).await, 1);
    client
        .batch_execute(
            "delete from fencepost.live;
            update fencepost.workflow set state = 'done', settled = true, ended_at = now() - interval '2 hours'",
        )
        .await
        .unwrap();
    assert!(expire(&queue, 100).await > 2);
    assert_eq!(rows(&queue, newest).await, 0);
    assert_eq!(queue.number(keys).await, 0);
}

#[tokio::test]
async fn a_re_run_and_retention_that_meet_take_turns() {
    let queue = Queue::new().await;
    let (mut first, second) = (queue.client().await, queue.client().await);
    let (id, run) = old(&queue, 2, "mode => 'all'").await;
    let rerun = format!("select fencepost.rerun_workflow({id}, 'all')");
    // The re-run has the row: it is passed over.
    let open = first.transaction().await.unwrap();
    open.query_one(&rerun, &[]).await.unwrap();
    assert_eq!(expire(&queue, 100).await, 0);
    open.rollback().await.unwrap();
    assert!(rows(&queue, run).await > 0);
    // Retention has it, at the first batch or at the last: the re-run waits and finds nothing.
    for most in [1, 100] {
        let waiter = backend(&second).await;
        let open = first.transaction().await.unwrap();
        let gone = format!("select fencepost.forget_workflows('1 hour', {most})");
        open.query_one(&gone, &[]).await.unwrap();
        let refusal = refused(&second, "rerun", id);
        if most == 1 {
            assert_eq!(queue.waits(waiter, refusal, open.commit()).await, "FP032");
        } else {
            assert_eq!(refusal.await, "FP032");
            open.commit().await.unwrap();
        }
    }
    assert_eq!(rows(&queue, run).await, 0);
    let (id, run) = old(&queue, 2, "mode => 'all'").await;
    let waiter = backend(&second).await;
    let open = first.transaction().await.unwrap();
    let gone = "select fencepost.forget_workflows('1 hour', 100)";
    open.query_one(gone, &[]).await.unwrap();
    let refusal = refused(&second, "rerun", id);
    assert_eq!(queue.waits(waiter, refusal, open.commit()).await, "FP032");
    assert_eq!(rows(&queue, run).await, 0);
    assert_eq!(
        queue.number("select count(*) from fencepost.live").await,
        0,
        "nothing runs again"
    );
}

#[tokio::test]
async fn a_key_that_is_let_go_names_one_new_workflow_whoever_comes() {
    let queue = Queue::new().await;
    let (mut first, second) = (queue.client().await, queue.client().await);
    let waiter = backend(&second).await;
    // Somebody comes while the key is on its way out.
    old(&queue, 1, "workflow_key => 'k'").await;
    let open = first.transaction().await.unwrap();
    let gone = "select fencepost.forget_workflows('1 hour', 100)";
    open.query_one(gone, &[]).await.unwrap();
    let other = start(&second, "workflow_key => 'k'");
    let (_, _, created) = queue.waits(waiter, other, open.commit()).await;
    assert!(created);
    // Two come for a key whose workflow is gone: two that forgot its last runs at once have left it.
    queue
        .execute("update fencepost.workflow set forgotten = true")
        .await;
    let open = first.transaction().await.unwrap();
    let (one, _, created) = start(&open, "workflow_key => 'k'").await;
    assert!(created);
    let other = start(&second, "workflow_key => 'k'");
    let (other, _, created) = queue.waits(waiter, other, open.commit()).await;
    assert_eq!((other, created), (one, false));
}

#[tokio::test]
async fn a_batch_reads_no_more_rows_than_it_takes() {
    let queue = Queue::new().await;
    let (_, run) = old(&queue, 1, "mode => 'all'").await;
    let mut client = queue.client().await;
    client
        .batch_execute(&format!(
            "insert into fencepost.workflow_member (run_id, ordinal, task_id, priority)
            select {run}, n, n, 1 from generate_series(2, 20000) as n"
        ))
        .await
        .unwrap();
    let batch = client.transaction().await.unwrap();
    let gone = "select fencepost.forget_workflows('1 hour', 100)";
    let gone: i64 = batch.query_one(gone, &[]).await.unwrap().get(0);
    assert_eq!(gone, 100);
    let read = "select (coalesce(seq_tup_read, 0) + coalesce(idx_tup_fetch, 0))::bigint
        from pg_stat_xact_user_tables where relname = 'workflow_member'";
    let read: i64 = batch.query_one(read, &[]).await.unwrap().get(0);
    assert!(read < 1000, "{read} members were read");
}
