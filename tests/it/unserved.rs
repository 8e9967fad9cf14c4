//! Routes that nobody serves: the list over all replicas, and what becomes of their tasks.

use std::time::Duration;

use fencepost::proto::worker::{FailureKind, Register};
use serde_json::{Value, json};

use crate::lifecycle::{SHORT, Stage};
use crate::support::scripted_worker::register;
use crate::support::tasks::{FAILED, count, ended, enqueue, enqueue_many, failures, live};
use crate::support::{Operator, Replica, ScriptedWorker, TestDb, eventually};

/// A route is judged after 1 s and the reconnect grace.
const IMPATIENT: (&str, &str) = ("REPLICA__DEAD_AFTER", "1s");

/// Waits until the only line of the list is judged.
async fn judged(operator: &Operator) -> Value {
    eventually(Duration::from_secs(20), async || {
        let list = operator.unserved().await;
        assert!(list.len() <= 1, "{list:?}");
        list.into_iter().find(|one| one["since"].is_string())
    })
    .await
}

#[tokio::test]
async fn the_list_spans_all_replicas_and_is_empty_when_all_is_well() {
    let test = TestDb::new().await;
    let env: Vec<_> = SHORT.iter().copied().chain([IMPATIENT]).collect();
    let first = Replica::start(&test.url(), &env).await;
    let second = Replica::start(&test.url(), &env).await;
    let (db, operator) = (test.connect().await, Operator::of(&first));
    assert_eq!(operator.unserved().await, Vec::<Value>::new());

    let ids = enqueue_many(&db, 3).await;
    let line = operator.unserved().await.pop().unwrap();
    assert_eq!(line["reason"], "no_live_workers");
    assert_eq!(line["waiting"], json!({"tasks": 3, "estimated": false}));
    assert_eq!(
        (&line["task_queue"], &line["node"]),
        (&json!("q"), &Value::Null)
    );
    let line = judged(&operator).await;
    assert!(line["oldest_ms"].as_u64().unwrap() >= 1000, "{line}");
    let since = line["since"].clone();

    // Another reason is news, and no new beginning.
    let other = Register {
        task_types: vec!["u".into()],
        ..register()
    };
    let _other = ScriptedWorker::connect_as(&second.url(), other).await;
    let reason = "select count(*) from fencepost.unserved where reason = 'workers_incompatible'";
    eventually(Duration::from_secs(20), async || {
        (count(&db, reason).await == 1).then_some(())
    })
    .await;
    // The list goes by the beats of the replicas, the judge by what it sees itself.
    operator.stands(ids[0], "workers_incompatible").await;
    let line = judged(&operator).await;
    assert_eq!(line["reason"], "workers_incompatible");
    assert_eq!(line["since"], since);
    let why = operator.why(ids[0]).await;
    assert_eq!(why["unserved_since"], since);
    let said = |text: &str| first.said(text) + second.said(text);
    eventually(Duration::from_secs(10), async || {
        (said("nobody serves this queue;") == 2).then_some(())
    })
    .await;

    // A worker of any replica serves it, and the list is empty.
    let mut worker = ScriptedWorker::connect_with_slots(&second.url(), 3).await;
    for _ in 0..3 {
        let task = worker.accept_next().await;
        worker.succeed(&task, "1").await;
    }
    assert_eq!(operator.unserved().await, Vec::<Value>::new());
    eventually(Duration::from_secs(20), async || {
        let rows = count(&db, "select count(*) from fencepost.unserved").await;
        (rows == 0).then_some(())
    })
    .await;
    assert_eq!(
        said("nobody serves this queue;"),
        2,
        "one line for each news: {}\n{}",
        first.log(),
        second.log()
    );
    for id in ids {
        assert_eq!(ended(&db, id).await.attempt, 0, "waiting has cost nothing");
    }
}

#[tokio::test]
async fn a_full_pool_is_listed_once_its_line_stands_still() {
    let stage = Stage::set(&[IMPATIENT]).await;
    let operator = Operator::of(&stage.replica);
    let mut worker = stage.worker().await;
    let ids = enqueue_many(&stage.db, 3).await;
    let task = worker.accept_next().await;
    let waiting = ids.iter().find(|id| **id != task.task_id).unwrap();
    operator.stands(*waiting, "workers_at_capacity").await;
    assert_eq!(operator.unserved().await, Vec::<Value>::new());
    let line = judged(&operator).await;
    assert_eq!(line["reason"], "workers_at_capacity");
    assert_eq!(line["waiting"], json!({"tasks": 2, "estimated": false}));
    worker.succeed(&task, "1").await;
    worker.accept_next().await;
    eventually(Duration::from_secs(20), async || {
        operator.unserved().await.is_empty().then_some(())
    })
    .await;
    assert_eq!(live(&stage.db, *waiting).await.unwrap().attempt, 0);
}

#[tokio::test]
async fn counts_end_where_nobody_needs_them_exactly() {
    let stage = Stage::set(&[]).await;
    let operator = Operator::of(&stage.replica);
    enqueue_many(&stage.db, 10_000).await;
    let exactly = json!({"tasks": 10_000, "estimated": false});
    assert_eq!(operator.unserved().await[0]["waiting"], exactly);
    enqueue(&stage.db, "").await;
    let is_estimate =
        |count: &Value| count["estimated"] == true && count["tasks"].as_i64().unwrap() > 10_000;
    let unserved = operator.unserved().await;
    assert!(is_estimate(&unserved[0]["waiting"]), "{unserved:?}");
    let queues = operator.get("/v1/queues?task_queue=q").await;
    let queue = &queues["queues"][0];
    assert!(is_estimate(&queue["ready"]), "{queue}");
    assert_eq!(queue["claimed"], 0);
    assert_eq!(queue["later"], json!({"tasks": 0, "estimated": false}));
    // Who asks for less waits for less.
    let queues = operator.get("/v1/queues?task_queue=q&count_to=100").await;
    let ready = &queues["queues"][0]["ready"];
    assert_eq!(ready["estimated"], true);
    assert!(ready["tasks"].as_i64().unwrap() > 100, "{ready}");
    for wrong in ["0", "10001", "x"] {
        let path = format!("/v1/queues?count_to={wrong}");
        let (status, problem) = operator.call("GET", &path, "").await;
        let found = (status, &problem["code"], &problem["field"]);
        assert_eq!(found, (400, &json!("FP-103"), &json!("count_to")));
    }
}

#[tokio::test]
async fn a_strict_queue_fails_its_tasks_and_a_waiting_one_does_not() {
    let stage = Stage::set(&[IMPATIENT]).await;
    let operator = Operator::of(&stage.replica);
    let declare = r#"{"task_queue": "q", "task_type": "t", "unserved": "strict"}"#;
    operator.change("POST", "/v1/queues", declare).await;
    let other = "select task_id from fencepost.enqueue('patient', 't', max_attempts => 1)";
    let patient: i64 = stage.db.query_one(other, &[]).await.unwrap().get(0);
    let id = enqueue(&stage.db, "max_attempts => 3").await;

    let end = ended(&stage.db, id).await;
    assert_eq!((end.state, end.attempt, end.fence), (FAILED, 3, None));
    assert_eq!(end.class.as_deref(), Some("no_live_workers"));
    let mut sorted = failures(&stage.db, id).await;
    sorted.sort();
    let retry = |attempt, how: &str| (attempt, 0, how.to_owned(), "no_live_workers".to_owned());
    assert_eq!(
        sorted,
        [
            retry(1, "retry"),
            retry(2, "retry"),
            retry(3, "dead_letter")
        ]
    );
    let letter = "select cause, error_message from fencepost.dead_letter where id = $1";
    let row = stage.db.query_one(letter, &[&id]).await.unwrap();
    assert_eq!(row.get::<_, &str>(0), "unserved");
    assert!(row.get::<_, &str>(1).contains("no live worker"), "{row:?}");

    let row = live(&stage.db, patient).await.unwrap();
    assert_eq!((row.state, row.attempt, row.fence), (0, 0, 0));
    let list = operator.unserved().await;
    assert_eq!(list.len(), 1, "{list:?}");
    assert_eq!(list[0]["task_queue"], "patient");
}

#[tokio::test]
async fn what_does_not_start_in_time_ends_with_the_reason() {
    let stage = Stage::set(&[]).await;
    let id = enqueue(&stage.db, "node => 'z', schedule_to_start => '1 s'").await;
    let end = ended(&stage.db, id).await;
    assert_eq!((end.state, end.attempt, end.fence), (FAILED, 0, None));
    assert_eq!(end.class.as_deref(), Some("schedule_to_start"));
    let letter = "select cause, error_message from fencepost.dead_letter where id = $1";
    let row = stage.db.query_one(letter, &[&id]).await.unwrap();
    assert_eq!(row.get::<_, &str>(0), "schedule_to_start");
    assert!(row.get::<_, &str>(1).contains("no_live_workers"), "{row:?}");
}

#[tokio::test]
async fn the_deadline_for_the_start_ends_with_the_start() {
    let stage = Stage::set(&[
        ("TASKS__BACKOFF_BASE", "1500ms"),
        ("TASKS__BACKOFF_MAX", "3s"),
    ])
    .await;
    let mut worker = stage.worker().await;
    let id = enqueue(&stage.db, "schedule_to_start => '1 s'").await;
    let task = worker.accept_next().await;
    worker.fail_for(&task, Duration::from_millis(2500)).await;
    worker.recorded(&task).await;
    let again = worker.accept_next().await;
    assert_eq!((again.task_id, again.attempt), (id, 2));
    worker.fail(&again, FailureKind::Terminal, "enough").await;
    worker.recorded(&again).await;
    assert_eq!(ended(&stage.db, id).await.class.as_deref(), Some("enough"));
}

#[tokio::test]
async fn a_namespace_may_take_tasks_for_declared_queues_only() {
    let stage = Stage::set(&[]).await;
    let operator = Operator::of(&stage.replica);
    let before = enqueue(&stage.db, "").await;
    let body = r#"{"require_declared_queues": true}"#;
    operator.change("PUT", "/v1/namespaces/default", body).await;

    let refused = stage
        .db
        .query("select fencepost.enqueue('q', 't')", &[])
        .await
        .unwrap_err();
    let refused = refused.as_db_error().unwrap();
    assert_eq!(refused.code().code(), "FP015");
    assert_eq!(refused.detail(), Some("queue_not_declared"));
    assert_eq!(refused.column(), Some("task_queue"));
    let batch = r#"[{"task_queue": "new", "task_type": "t"}]"#;
    let (status, problem) = operator.call("POST", "/v1/tasks", batch).await;
    assert_eq!((status, &problem["code"]), (409, &json!("FP-015")));
    let made = "select count(*) from fencepost.route where task_queue = 'new'";
    assert_eq!(count(&stage.db, made).await, 0, "a refusal leaves nothing");
    // Others are not asked.
    let other = r#"{"namespace": "other", "task_queue": "q", "task_type": "t"}"#;
    assert_eq!(operator.call("POST", "/v1/tasks", other).await.0, 201);

    // What was there before waits on, and the reason is one to act on.
    operator.stands(before, "queue_not_declared").await;
    let declare = r#"{"task_queue": "q", "task_type": "t"}"#;
    operator.change("POST", "/v1/queues", declare).await;
    operator.stands(before, "no_live_workers").await;
    enqueue(&stage.db, "").await;
    // Another node is another declaration.
    let pinned = r#"{"task_queue": "q", "task_type": "t", "node": "n"}"#;
    assert_eq!(operator.call("POST", "/v1/tasks", pinned).await.0, 409);

    for (body, code, field) in [
        (r#"{"task_type": "t"}"#, "FP-001", "task_queue"),
        (
            r#"{"task_queue": "q", "task_type": "t", "node": ""}"#,
            "FP-001",
            "node",
        ),
        (
            r#"{"task_queue": "q", "task_type": "t", "unserved": "panic"}"#,
            "FP-018",
            "unserved",
        ),
        (
            r#"{"task_queue": "q", "task_type": "t", "x": "y"}"#,
            "FP-102",
            "x",
        ),
        (
            r#"{"task_queue": "q", "task_queue": "q"}"#,
            "FP-103",
            "task_queue",
        ),
    ] {
        let (status, problem) = operator.call("POST", "/v1/queues", body).await;
        assert_eq!(
            (status, &problem["code"], &problem["field"]),
            (400, &json!(code), &json!(field)),
            "{body}"
        );
    }
}

#[tokio::test]
async fn a_node_that_is_away_is_told_from_one_that_never_was() {
    let stage = Stage::set(&[]).await;
    let operator = Operator::of(&stage.replica);
    let known = Register {
        node: "a".into(),
        ..register()
    };
    let worker = ScriptedWorker::connect_as(&stage.replica.url(), known).await;
    operator
        .worker("scripted", |one| one["state"] == "ready")
        .await;
    drop(worker);
    let never = enqueue(&stage.db, "node => 'z'").await;
    let away = enqueue(&stage.db, "node => 'a'").await;
    let free = enqueue(&stage.db, "").await;
    for id in [never, away, free] {
        operator.stands(id, "no_live_workers").await;
    }
    assert_eq!(operator.why(never).await["node_seen"], Value::Null);
    assert!(operator.why(never).await.get("node_seen").is_some());
    assert!(operator.why(away).await["node_seen"].is_string());
    assert!(operator.why(free).await.get("node_seen").is_none());
    let list = operator.unserved().await;
    let seen = |node: &str| {
        let line = list.iter().find(|line| line["node"] == node);
        line.unwrap()["node_seen"].is_string()
    };
    assert_eq!((seen("a"), seen("z")), (true, false));
}
