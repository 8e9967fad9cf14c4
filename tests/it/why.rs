//! Why is nobody running this? Each gate, reached for real through a running replica.

use std::time::Duration;

use fencepost::proto::worker::Register;
use serde_json::{Value, json};

use crate::lifecycle::Stage;
use crate::support::scripted_worker::register;
use crate::support::tasks::{DONE, ended, enqueue};
use crate::support::{Operator, ScriptedWorker};

fn named(identity: &str) -> Register {
    Register {
        identity: identity.into(),
        ..register()
    }
}

/// Gate → whether it is passed.
fn gates(why: &Value) -> Vec<(String, Option<bool>)> {
    let gates = why["gates"].as_array().unwrap().iter();
    gates
        .map(|gate| {
            let name = gate["gate"].as_str().unwrap().to_owned();
            (name, gate["passed"].as_bool())
        })
        .collect()
}

#[tokio::test]
async fn a_task_on_its_way_through_the_gates() {
    let stage = Stage::set(&[]).await;
    let operator = Operator::of(&stage.replica);
    let (status, problem) = operator.call("GET", "/v1/tasks/1/why", "").await;
    assert_eq!((status, &problem["code"]), (404, &json!("FP-104")));

    let first = enqueue(&stage.db, "").await;
    let why = operator.stands(first, "no_live_workers").await;
    assert_eq!(why["task_queue"], "q");
    assert!(why["detail"].as_str().unwrap().ends_with('.'));
    let told = gates(&why);
    let names: Vec<&str> = told.iter().map(|(name, _)| name.as_str()).collect();
    assert_eq!(
        names,
        [
            "exists",
            "unfinished",
            "due",
            "hold",
            "pause",
            "quota",
            "rate",
            "placement",
            "workers",
            "reach",
            "capacity",
            "unclaimed"
        ]
    );
    let passed: Vec<Option<bool>> = told.iter().map(|(_, passed)| *passed).collect();
    let (yes, no) = (Some(true), Some(false));
    assert_eq!(
        passed,
        [yes, yes, yes, yes, yes, yes, yes, yes, no, None, None, None]
    );

    let other = Register {
        task_types: vec!["u".into()],
        ..named("other type")
    };
    let _other = ScriptedWorker::connect_as(&stage.replica.url(), other).await;
    operator.stands(first, "workers_incompatible").await;

    let mut worker = ScriptedWorker::connect_as(&stage.replica.url(), named("w1")).await;
    let delivered = worker.accept_next().await;
    let why = operator.stands(first, "claimed").await;
    let detail = why["detail"].as_str().unwrap();
    assert!(detail.contains("on worker w1"), "{detail}");
    let closed = gates(&why).into_iter().filter(|(_, passed)| *passed != yes);
    assert_eq!(closed.collect::<Vec<_>>(), [("unclaimed".into(), no)]);

    let second = enqueue(&stage.db, "").await;
    operator.stands(second, "workers_at_capacity").await;
    worker.succeed(&delivered, "1").await;
    worker.recorded(&delivered).await;
    let delivered = worker.accept_next().await;
    operator.stands(second, "claimed").await;
    let why = operator.stands(first, "ended").await;
    assert!(why["detail"].as_str().unwrap().contains("done"), "{why}");
    worker.succeed(&delivered, "1").await;
    worker.recorded(&delivered).await;
    assert_eq!(ended(&stage.db, second).await.state, DONE);
}

#[tokio::test]
async fn what_stops_a_task_before_anybody_looks_for_workers() {
    let stage = Stage::set(&[]).await;
    let operator = Operator::of(&stage.replica);
    let mut worker = stage.worker().await;
    operator
        .worker("scripted", |one| one["state"] == "ready")
        .await;
    let id = enqueue(&stage.db, "delay => '1 hour'").await;
    // One statement each.
    for (statement, verdict) in [
        (
            "select fencepost.pause(task_queue => 'q', reason => 'flood', paused_by => 'olga')",
            "not_due",
        ),
        ("update fencepost.live set hold = 2", "not_due"),
        (
            "update fencepost.live set visible_after = now(), hold = 2",
            "held",
        ),
    ] {
        stage.db.batch_execute(statement).await.unwrap();
        operator.stands(id, verdict).await;
    }
    let why = operator.why(id).await;
    let closed: Vec<String> = gates(&why)
        .into_iter()
        .filter(|(_, passed)| *passed == Some(false))
        .map(|(gate, _)| gate)
        .collect();
    assert_eq!(closed, ["hold", "pause"], "every gate says what it sees");
    assert!(why["detail"].as_str().unwrap().contains("key"), "{why}");
    let pauses = why["gates"].as_array().unwrap().iter();
    let pause = pauses.filter(|gate| gate["gate"] == "pause");
    let details: Vec<&str> = pause.map(|gate| gate["detail"].as_str().unwrap()).collect();
    for part in ["queue q", "by olga", "since 20", "(flood)"] {
        assert!(details[0].contains(part), "{part}: {details:?}");
    }
    let told = &why["pauses"][0];
    assert_eq!(
        (&told["task_queue"], &told["by"]),
        (&json!("q"), &json!("olga"))
    );

    stage
        .db
        .batch_execute(
            "select fencepost.resume(task_queue => 'q'); update fencepost.live set hold = 0",
        )
        .await
        .unwrap();
    let task = worker.accept_next().await;
    assert_eq!(task.task_id, id);
    worker.succeed(&task, "1").await;
    worker.recorded(&task).await;
    operator.stands(id, "ended").await;
}

#[tokio::test]
async fn workers_that_do_not_answer_are_no_workers() {
    let stage = Stage::set(&[("WORKERS__SILENCE_WINDOW", "8s")]).await;
    let operator = Operator::of(&stage.replica);
    let mut worker = ScriptedWorker::connect_as(&stage.replica.url(), named("deaf")).await;
    operator.worker("deaf", |one| one["state"] == "ready").await;
    worker.hush();
    operator
        .worker("deaf", |one| one["state"] == "unreachable")
        .await;
    let id = enqueue(&stage.db, "").await;
    let why = operator.stands(id, "workers_unreachable").await;
    assert!(gates(&why).contains(&("workers".into(), Some(true))));
    assert!(gates(&why).contains(&("reach".into(), Some(false))));
    // After the whole window it is gone.
    operator.stands(id, "no_live_workers").await;
    assert_eq!(worker.next_task().await, None);
}

#[tokio::test]
async fn operators_cordon_and_drain_by_name() {
    let stage = Stage::set(&[]).await;
    let operator = Operator::of(&stage.replica);
    let url = stage.replica.url();
    let mut worker = ScriptedWorker::connect_as(&url, named("w 1/2")).await;
    operator
        .worker("w 1/2", |one| one["state"] == "ready")
        .await;
    let body = r#"{"reason": "it smells", "by": "olga"}"#;
    let path = "/v1/workers/w%201%2F2";
    operator
        .change("POST", &format!("{path}/cordon"), body)
        .await;
    let seen = operator
        .worker("w 1/2", |one| one["state"] == "cordoned")
        .await;
    let order = &seen["order"];
    assert_eq!(order["action"], "cordon");
    assert_eq!(
        (&order["by"], &order["reason"]),
        (&json!("olga"), &json!("it smells"))
    );
    for field in ["worker_id", "dispatcher", "replica", "since", "transport"] {
        assert!(seen[field].is_string(), "{field}: {seen}");
    }
    assert_eq!((&seen["slots"], &seen["busy"]), (&json!(1), &json!(0)));
    let id = enqueue(&stage.db, "").await;
    operator.stands(id, "no_live_workers").await;
    worker.gets_nothing_for(Duration::from_millis(500)).await;

    // The order is the name's: it holds over a reconnect.
    drop(worker);
    operator.worker("w 1/2", |one| one["state"] == "away").await;
    let mut worker = ScriptedWorker::connect_as(&url, named("w 1/2")).await;
    operator
        .worker("w 1/2", |one| one["state"] == "cordoned")
        .await;
    worker.gets_nothing_for(Duration::from_millis(300)).await;
    operator
        .change("POST", &format!("{path}/uncordon"), "")
        .await;
    let task = worker.accept_next().await;
    assert_eq!(task.task_id, id);

    operator.change("POST", &format!("{path}/drain"), "").await;
    operator
        .worker("w 1/2", |one| one["state"] == "draining")
        .await;
    let waiting = enqueue(&stage.db, "").await;
    worker.succeed(&task, "1").await;
    worker.recorded(&task).await;
    // It has nothing left, so its stream ends, and it gets in no more.
    assert_eq!(worker.ended().await, []);
    operator.stands(waiting, "no_live_workers").await;
    let again = ScriptedWorker::try_connect(&url, named("w 1/2")).await;
    assert!(again.is_err());

    let (status, problem) = operator.call("POST", "/v1/workers/w/dance", "").await;
    assert_eq!((status, &problem["code"]), (404, &json!("FP-106")));
    let long = format!("/v1/workers/{}/drain", "w".repeat(201));
    let (status, problem) = operator.call("POST", &long, "").await;
    assert_eq!((status, &problem["field"]), (400, &json!("identity")));
}
