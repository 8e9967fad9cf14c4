//! Where tasks may run: what namespaces prefer and require, over all replicas.

use std::time::Duration;

use fencepost::proto::worker::Register;
use serde_json::json;

use crate::lifecycle::{SHORT, Stage};
use crate::support::scripted_worker::register;
use crate::support::tasks::{enqueue, live};
use crate::support::{Operator, Replica, ScriptedWorker, TestDb};

fn on(node: &str, slots: u32) -> Register {
    Register {
        identity: format!("worker on {node}"),
        node: node.into(),
        slots,
        ..register()
    }
}

async fn place(operator: &Operator, placement: serde_json::Value) {
    let body = json!({ "placement": placement }).to_string();
    let set = operator
        .change("PUT", "/v1/namespaces/default", &body)
        .await;
    assert_eq!(set["placement"], placement);
}

#[tokio::test]
async fn required_stays_required() {
    let stage = Stage::set(&[]).await;
    let operator = Operator::of(&stage.replica);
    let url = stage.replica.url();
    // A namespace lets nobody in whom it would give nothing, so this one comes before the setting.
    let mut there = ScriptedWorker::connect_as(&url, on("b", 9)).await;
    operator
        .worker("worker on b", |one| one["state"] == "ready")
        .await;
    place(&operator, json!({"mode": "require", "nodes": ["a"]})).await;
    let pinned = enqueue(&stage.db, "node => 'b'").await;
    operator
        .stands(pinned, "pin_conflicts_with_placement")
        .await;
    let free = enqueue(&stage.db, "").await;
    // Nobody is on a yet.
    operator.stands(free, "workers_incompatible").await;

    let mut here = ScriptedWorker::connect_as(&url, on("a", 1)).await;
    let task = here.accept_next().await;
    assert_eq!(task.task_id, free);
    let second = enqueue(&stage.db, "").await;
    operator.stands(second, "workers_at_capacity").await;
    there.gets_nothing_for(Duration::from_millis(500)).await;
    here.succeed(&task, "1").await;
    here.recorded(&task).await;
    let task = here.accept_next().await;
    assert_eq!(task.task_id, second);
    here.succeed(&task, "1").await;
    here.recorded(&task).await;
    drop(here);
    let third = enqueue(&stage.db, "").await;
    operator.stands(third, "workers_incompatible").await;
    there.gets_nothing_for(Duration::from_millis(1500)).await;
    let row = live(&stage.db, pinned).await.unwrap();
    assert_eq!((row.state, row.attempt, row.fence), (0, 0, 0));
    // It may have been on its way to the worker that was just leaving, which costs no attempt.
    let row = live(&stage.db, third).await.unwrap();
    assert_eq!((row.state, row.attempt), (0, 0));

    // What waits is routed by the placement of now; its row says nothing of it.
    place(&operator, json!({"mode": "anywhere"})).await;
    let mut got = [
        there.accept_next().await.task_id,
        there.accept_next().await.task_id,
    ];
    got.sort_unstable();
    assert_eq!(got, [pinned, third]);
}

#[tokio::test]
async fn preferred_nodes_are_left_only_while_no_replica_has_a_worker_there() {
    let test = TestDb::new().await;
    let first = Replica::start(&test.url(), SHORT).await;
    let mut second = Replica::start(&test.url(), SHORT).await;
    let db = test.connect().await;
    let operator = Operator::of(&first);
    place(&operator, json!({"mode": "prefer", "nodes": ["p"]})).await;
    let mut other = ScriptedWorker::connect_as(&first.url(), on("x", 9)).await;
    let mut preferred = ScriptedWorker::connect_as(&second.url(), on("p", 1)).await;
    for name in ["worker on x", "worker on p"] {
        operator.worker(name, |one| one["state"] == "ready").await;
    }
    // The first replica, whose own worker is free, knows of the other's worker once it has read a beat.
    let known = "select count(*) from fencepost.fleet where node = 'p' and unreachable = 0";
    crate::support::eventually(Duration::from_secs(10), async || {
        (crate::support::tasks::count(&db, known).await == 1).then_some(())
    })
    .await;
    other.gets_nothing_for(Duration::from_millis(600)).await;

    let id = enqueue(&db, "").await;
    let task = preferred.accept_next().await;
    assert_eq!(task.task_id, id);
    // It is busy, and still there: what comes waits for it.
    let waits = enqueue(&db, "").await;
    operator.stands(waits, "workers_at_capacity").await;
    other.gets_nothing_for(Duration::from_millis(800)).await;
    preferred.succeed(&task, "1").await;
    preferred.recorded(&task).await;
    let task = preferred.accept_next().await;
    assert_eq!(task.task_id, waits);
    preferred.succeed(&task, "1").await;
    preferred.recorded(&task).await;

    // With its replica the worker is gone; the rest may have the tasks.
    second.terminate().await;
    let spilled = enqueue(&db, "").await;
    assert_eq!(other.accept_next().await.task_id, spilled);
}

#[tokio::test]
async fn what_is_no_placement_is_refused_at_every_door() {
    let stage = Stage::set(&[]).await;
    let operator = Operator::of(&stage.replica);
    for placement in [
        "\"anywhere\"",
        "null",
        "{}",
        r#"{"mode": "somewhere"}"#,
        r#"{"mode": "anywhere", "nodes": ["a"]}"#,
        r#"{"mode": "require"}"#,
        r#"{"mode": "require", "nodes": "a"}"#,
        r#"{"mode": "require", "nodes": []}"#,
        r#"{"mode": "require", "nodes": [1]}"#,
        r#"{"mode": "require", "nodes": [""]}"#,
        r#"{"mode": "require", "nodes": ["a", "a"]}"#,
        r#"{"mode": "require", "nodes": ["a\u0000"]}"#,
        r#"{"mode": "require", "nodes": ["a"], "else": 1}"#,
        "{",
    ] {
        let set = "select fencepost.set_namespace('default', $1::text::jsonb)";
        let by_sql = stage.db.execute(set, &[&placement]).await;
        if placement != "null" {
            let body = format!(r#"{{"placement": {placement}}}"#);
            let by_http = operator.call("PUT", "/v1/namespaces/default", &body).await;
            assert_eq!(by_http.0, 400, "{placement}: {by_http:?}");
            if placement != "{" {
                assert_eq!(by_http.1["code"], "FP-017", "{placement}: {by_http:?}");
                assert_eq!(by_http.1["field"], "placement");
            }
            by_sql.unwrap_err();
        }
        // Nobody gets past the functions either.
        let write =
            "insert into fencepost.namespace (name, placement) values ('n', $1::text::jsonb)";
        stage.db.execute(write, &[&placement]).await.unwrap_err();
    }
    let (status, problem) = operator
        .call("PUT", &format!("/v1/namespaces/{}", "n".repeat(201)), "{}")
        .await;
    assert_eq!((status, &problem["code"]), (400, &json!("FP-001")));
    let list = operator.get("/v1/namespaces").await;
    assert_eq!(list["namespaces"], json!([]), "a refusal leaves nothing");
}
