//! The producers' calls: keys, waits, cancels, lists, and what goes wrong on the way.

use std::collections::HashSet;
use std::time::{Duration, Instant};

use fencepost::api::{Limits, Readiness};
use fencepost::proto::producer::{CancelRequest, GetRequest, TaskInfo, WaitRequest};
use serde_json::{Value, json};
use tokio::task::JoinSet;

use crate::support::{Producers, eventually};

const DEADLINE: Duration = Duration::from_secs(20);

fn task() -> Value {
    json!({"task_queue": "q", "task_type": "t", "payload": {"n": 1}})
}

fn keyed(key: &str) -> Value {
    let mut task = task();
    task["dispatch_key"] = json!(key);
    task
}

async fn enqueue(side: &Producers, task: &Value) -> i64 {
    let answer = side.post("/v1/tasks", task.to_string()).await;
    id(&answer.json())
}

fn id(view: &Value) -> i64 {
    view["task_id"].as_str().unwrap().parse().unwrap()
}

async fn count(side: &Producers, what: &str) -> i64 {
    let query = format!("select count(*) from {what}");
    side.db
        .connect()
        .await
        .query_one(&query, &[])
        .await
        .unwrap()
        .get(0)
}

#[tokio::test]
async fn a_dispatch_key_names_one_task() {
    let side = Producers::start().await;
    let first = side.post("/v1/tasks", keyed("k").to_string()).await;
    assert_eq!(
        (first.status, &first.json()["created"]),
        (201, &json!(true))
    );
    let again = side.post("/v1/tasks", keyed("k").to_string()).await;
    assert_eq!(
        (again.status, &again.json()["created"]),
        (200, &json!(false))
    );
    assert_eq!(id(&first.json()), id(&again.json()));
    // Twice in one batch, and beside a new one.
    let batch = json!([keyed("k"), keyed("other"), keyed("other")]);
    let batch = side.post("/v1/tasks", batch.to_string()).await;
    let created: Vec<bool> = batch
        .json()
        .as_array()
        .unwrap()
        .iter()
        .map(|t| t["created"] == true)
        .collect();
    assert_eq!((batch.status, created), (201, vec![false, true, false]));
    // A key is its namespace's.
    let mut elsewhere = keyed("k");
    elsewhere["namespace"] = json!("elsewhere");
    assert_eq!(
        side.post("/v1/tasks", elsewhere.to_string()).await.status,
        201
    );
    assert_eq!(count(&side, "fencepost.task").await, 3);
}

#[tokio::test]
async fn concurrent_enqueues_of_one_key_make_one_task() {
    let side = Producers::start().await;
    let mut calls = JoinSet::new();
    for _ in 0..64 {
        let state = side.state.clone();
        calls.spawn(async move {
            let task = fencepost::store::enqueue::NewTask {
                task_queue: Some("q".into()),
                task_type: Some("t".into()),
                payload: Some("1".into()),
                dispatch_key: Some("once".into()),
                ..Default::default()
            };
            state.enqueue(vec![task]).await.unwrap()[0]
        });
    }
    let answers = calls.join_all().await;
    let ids: HashSet<i64> = answers.iter().map(|answer| answer.task_id).collect();
    assert_eq!(ids.len(), 1);
    assert_eq!(answers.iter().filter(|answer| answer.created).count(), 1);
    assert_eq!(count(&side, "fencepost.live").await, 1);
}

#[tokio::test]
async fn a_thousand_tasks_go_in_at_once_and_are_answered_in_order() {
    let side = Producers::start().await;
    let batch: Vec<Value> = (0..1_000)
        .map(|n| json!({"task_queue": "q", "task_type": "t", "payload": n}))
        .collect();
    let answer = side.post("/v1/tasks", json!(batch).to_string()).await;
    assert_eq!(answer.status, 201);
    let answer = answer.json();
    let ids: Vec<i64> = answer.as_array().unwrap().iter().map(id).collect();
    assert_eq!(ids.len(), 1_000);
    let rows = side
        .db
        .connect()
        .await
        .query(
            "select convert_from(task.payload, 'UTF8')::int from unnest($1::bigint[]) with ordinality as given (id, place)
             join fencepost.task using (id) join fencepost.live using (id) order by place",
            &[&ids],
        )
        .await
        .unwrap();
    let payloads: Vec<i32> = rows.iter().map(|row| row.get(0)).collect();
    assert_eq!(payloads, (0..1_000).collect::<Vec<_>>());
}

#[tokio::test]
async fn a_wait_wakes_when_another_connection_ends_the_task() {
    let side = Producers::start().await;
    let first = enqueue(&side, &task()).await;
    let path = format!("/v1/tasks/{first}/wait");
    let short = side.get(&format!("{path}?timeout=20ms")).await;
    assert_eq!((short.status, &short.json()["ended"]), (200, &json!(false)));

    let mut grpc = side.grpc.clone();
    let request = WaitRequest {
        task_id: first,
        timeout_ms: 60_000,
    };
    let began = Instant::now();
    let ending = async {
        side.somebody_waits().await;
        side.end(first, 1, Some(r#"{"sum": 1e400}"#)).await;
    };
    let path = format!("{path}?timeout=60s");
    let (http, grpc, ()) = tokio::join!(side.get(&path), grpc.wait(request), ending);
    assert!(began.elapsed() < DEADLINE, "{:?}", began.elapsed());
    let ended = |text: &str| {
        text.contains(r#""ended":true"#) && text.contains(r#""result":{"sum": 1e400}"#)
    };
    assert!(http.status == 200 && ended(&http.text), "{http:?}");
    let grpc = grpc.unwrap().into_inner();
    assert!(grpc.ended);
    assert_eq!(
        (grpc.state.as_str(), &grpc.result[..]),
        ("done", &br#"{"sum": 1e400}"#[..])
    );
    // One that has ended already is answered at once.
    assert_eq!(side.get(&path).await.text, http.text);
}

#[tokio::test]
async fn waits_end_with_their_replica_and_have_a_longest_time() {
    let side = Producers::start().await;
    let id = enqueue(&side, &task()).await;
    let path = format!("/v1/tasks/{id}/wait");
    let too_long = side.get(&format!("{path}?timeout=61s")).await;
    assert_eq!(too_long.problem(), (400, "FP-103".into(), "timeout".into()));
    let request = WaitRequest {
        task_id: id,
        timeout_ms: u64::MAX,
    };
    let status = side.grpc.clone().wait(request).await.unwrap_err();
    assert_eq!(status.metadata().get("fencepost-field").unwrap(), "timeout");

    let path = format!("{path}?timeout=60s");
    let stopping = async {
        side.somebody_waits().await;
        side.shutdown.cancel();
    };
    let began = Instant::now();
    let (answer, ()) = tokio::join!(side.get(&path), stopping);
    // Nobody takes it for the end of the time: another replica can go on waiting.
    assert_eq!(answer.problem(), (503, "FP-121".into(), String::new()));
    assert!(began.elapsed() < DEADLINE);
    side.end(id, 1, None).await;
    assert_eq!(side.get(&path).await.json()["ended"], true);
}

#[tokio::test]
async fn a_task_reads_the_same_over_http_and_grpc() {
    let side = Producers::start().await;
    let mut given = keyed("k");
    given["payload"] = json!({"b": [1, 2]});
    given["labels"] = json!({"who": "me"});
    given["node"] = json!("eu-1");
    given["delay"] = json!("1h");
    given["priority"] = json!(3);
    let task_id = enqueue(&side, &given).await;
    let plain = side.get(&format!("/v1/tasks/{task_id}")).await.json();
    assert_eq!(plain.get("payload"), None);
    let view = side
        .get(&format!("/v1/tasks/{task_id}?payload=true"))
        .await
        .json();
    for (name, value) in [
        ("task_id", json!(task_id.to_string())),
        ("namespace", json!("default")),
        ("task_queue", json!("q")),
        ("node", json!("eu-1")),
        ("state", json!("scheduled")),
        ("ended", json!(false)),
        ("attempt", json!(0)),
        ("priority", json!(3)),
        ("dispatch_key", json!("k")),
        ("labels", json!({"who": "me"})),
        ("payload", json!({"b": [1, 2]})),
    ] {
        assert_eq!(view[name], value, "{view}");
    }
    let request = GetRequest {
        task_id,
        with_payload: true,
    };
    let info = side.grpc.clone().get(request).await.unwrap().into_inner();
    let expected = TaskInfo {
        task_id,
        namespace: "default".into(),
        task_queue: "q".into(),
        task_type: "t".into(),
        node: "eu-1".into(),
        state: "scheduled".into(),
        priority: 3,
        enqueued_at: view["enqueued_at"].as_str().unwrap().into(),
        visible_after: view["visible_after"].as_str().unwrap().into(),
        payload: r#"{"b": [1, 2]}"#.into(),
        content_type: "application/json".into(),
        ..TaskInfo::default()
    };
    assert_eq!(info, expected);

    // Bytes that are no JSON go and come in base64.
    let bytes = json!({"task_queue": "q", "task_type": "t", "payload_base64": "AP8="});
    let task_id = enqueue(&side, &bytes).await;
    let view = side
        .get(&format!("/v1/tasks/{task_id}?payload=true"))
        .await
        .json();
    assert_eq!(view["content_type"], "application/octet-stream");
    assert_eq!(view["payload_base64"], "AP8=");
    assert_eq!(view.get("payload"), None);
}

#[tokio::test]
async fn a_cancel_ends_what_waits_and_asks_what_runs() {
    let side = Producers::start().await;
    let (waiting, running, done) = (
        enqueue(&side, &task()).await,
        enqueue(&side, &task()).await,
        enqueue(&side, &task()).await,
    );
    side.end(done, 1, None).await;
    let client = side.db.connect().await;
    let claim = "update fencepost.live set state = 1, fence = 1, dispatcher = 1, claimed_at = now() where id = $1";
    client.execute(claim, &[&running]).await.unwrap();
    let cancel = async |id: i64, body: &'static str| {
        let answer = side.post(&format!("/v1/tasks/{id}/cancel"), body).await;
        assert_eq!(answer.status, 200, "{answer:?}");
        answer.json()["state"].as_str().unwrap().to_owned()
    };
    assert_eq!(
        cancel(waiting, r#"{"reason": "not needed \u0000"}"#).await,
        "cancelled"
    );
    assert_eq!(cancel(running, "").await, "requested");
    assert_eq!(cancel(done, "{}").await, "done");
    let view = side.get(&format!("/v1/tasks/{waiting}")).await.json();
    assert_eq!(
        (&view["state"], &view["error_message"]),
        (&json!("cancelled"), &json!("not needed \u{fffd}"))
    );
    let view = side.get(&format!("/v1/tasks/{running}")).await.json();
    assert_eq!(
        (&view["state"], &view["cancel_requested"]),
        (&json!("running"), &json!(true))
    );
    let request = CancelRequest {
        task_id: waiting,
        ..CancelRequest::default()
    };
    let again = side
        .grpc
        .clone()
        .cancel(request)
        .await
        .unwrap()
        .into_inner();
    assert_eq!(again.state, "cancelled");
}

#[tokio::test]
async fn what_is_not_there_is_said_with_its_code() {
    let side = Producers::start().await;
    for (method, path, expected) in [
        ("GET", "/v1", (404, "FP-106", "")),
        ("GET", "/v2/tasks", (404, "FP-106", "")),
        ("DELETE", "/v1/tasks", (405, "FP-107", "")),
        ("POST", "/v1/tasks/1", (405, "FP-107", "")),
        ("GET", "/v1/tasks/1", (404, "FP-104", "task_id")),
        ("GET", "/v1/tasks/1/wait", (404, "FP-104", "task_id")),
        ("POST", "/v1/tasks/1/cancel", (404, "FP-104", "task_id")),
        ("GET", "/v1/tasks/one", (400, "FP-103", "task_id")),
        (
            "GET",
            "/v1/tasks/1?payload=perhaps",
            (400, "FP-103", "payload"),
        ),
        ("GET", "/v1/tasks/1?paylod=true", (400, "FP-102", "paylod")),
        (
            "GET",
            "/v1/tasks/1/wait?timeout=soon",
            (400, "FP-103", "timeout"),
        ),
        ("GET", "/v1/tasks?limit=0", (400, "FP-103", "limit")),
        ("GET", "/v1/tasks?state=odd", (400, "FP-103", "state")),
        ("GET", "/v1/tasks?before=x", (400, "FP-103", "before")),
    ] {
        let answer = side.request(method, path, "application/json", "").await;
        let (status, code, field) = answer.problem();
        assert_eq!(
            (status, code.as_str(), field.as_str()),
            expected,
            "{method} {path}"
        );
        assert_eq!(answer.allow.is_empty(), status != 405, "{answer:?}");
    }
    let request = GetRequest {
        task_id: 1,
        with_payload: false,
    };
    let status = side.grpc.clone().get(request).await.unwrap_err();
    assert_eq!(status.code(), tonic::Code::NotFound);
    assert_eq!(status.metadata().get("fencepost-code").unwrap(), "FP-104");
    // An id of today that nobody has; one as old as 1 would be said to have left history.
    let id = enqueue(&side, &task()).await + 1;
    let output = side.command(&["task", "show", &id.to_string()], b"").await;
    assert_eq!(output.status.code(), Some(2));
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(
        said.contains("[FP-104 task_not_found, field task_id]"),
        "{said}"
    );
}

#[tokio::test]
async fn a_body_is_read_strictly() {
    let side = Producers::start().await;
    for (body, code, field) in [
        ("", "FP-101", ""),
        ("[1]", "FP-101", ""),
        (r#"{"task_queue": "q""#, "FP-101", ""),
        (
            r#"{"task_queue": "q", "task_typo": "t"}"#,
            "FP-102",
            "task_typo",
        ),
        (
            r#"{"task_queue": "q", "task_type": 7}"#,
            "FP-103",
            "task_type",
        ),
        (r#"{"priority": 1.5}"#, "FP-103", "priority"),
        (r#"{"priority": "1"}"#, "FP-103", "priority"),
        (r#"{"priority": 99999999999}"#, "FP-006", "priority"),
        (r#"{"node": "\ud800"}"#, "FP-103", "node"),
        (r#"{"delay_ms": "5m"}"#, "FP-103", "delay_ms"),
        (r#"{"delay": 300}"#, "FP-103", "delay"),
        (r#"{"delay": "soon"}"#, "FP-005", "delay"),
        (r#"{"delay": "-5m"}"#, "FP-005", "delay"),
        (r#"{"run_timeout": "soon"}"#, "FP-007", "run_timeout"),
        (r#"{"delay": "5m", "delay_ms": 1}"#, "FP-103", "delay"),
        (r#"{"node": "a", "node": "b"}"#, "FP-103", "node"),
        (
            r#"{"payload": 1, "payload_base64": ""}"#,
            "FP-103",
            "payload",
        ),
        (r#"{"payload_base64": "?"}"#, "FP-103", "payload_base64"),
        (r#"{"labels": {"a": 1}}"#, "FP-008", "labels"),
        (r#"{"labels": {"a": "\ud800"}}"#, "FP-008", "labels"),
        (r#"{"options": nonsense}"#, "FP-009", "options"),
        (
            r#"{"task_queue": null, "task_type": "t"}"#,
            "FP-001",
            "task_queue",
        ),
        ("{}", "FP-001", "task_queue"),
    ] {
        let answer = side.post("/v1/tasks", body).await;
        assert_eq!(answer.problem(), (400, code.into(), field.into()), "{body}");
    }
    let form = side
        .request("POST", "/v1/tasks", "text/plain", task().to_string())
        .await;
    assert_eq!(form.problem(), (415, "FP-108".into(), String::new()));
    let nulls = r#"{"task_queue": "q", "task_type": "t", "delay": null, "node": null, "labels": null, "payload": null}"#;
    assert_eq!(side.post("/v1/tasks", nulls).await.status, 201);
}

#[tokio::test]
async fn requests_are_bounded_in_size_and_time() {
    let side = Producers::with(Limits {
        body: 1_000,
        request: Duration::from_millis(300),
        ..Limits::default()
    })
    .await;
    let mut large = task();
    large["payload"] = json!("x".repeat(1_000));
    let answer = side.post("/v1/tasks", large.to_string()).await;
    assert_eq!(answer.problem(), (413, "FP-105".into(), String::new()));

    // Somebody holds the key, so the enqueue has to wait for them.
    let mut client = side.db.connect().await;
    let holder = client.transaction().await.unwrap();
    let take = "select * from fencepost.enqueue('q', 't', dispatch_key => 'k')";
    holder.query(take, &[]).await.unwrap();
    let answer = side.post("/v1/tasks", keyed("k").to_string()).await;
    assert_eq!(answer.problem(), (504, "FP-109".into(), String::new()));
    holder.rollback().await.unwrap();
    eventually(DEADLINE, async || {
        (count(&side, "fencepost.task").await == 1).then_some(())
    })
    .await;
    assert_eq!(
        side.post("/v1/tasks", keyed("k").to_string()).await.status,
        200
    );
}

/// Ends the connection that waits for a lock, when there is one.
async fn kill_the_waiting(side: &Producers) {
    let client = side.db.connect().await;
    eventually(DEADLINE, async || {
        let killed = client
            .query(
                "select pg_terminate_backend(pid) from pg_stat_activity
                 where datname = current_database() and wait_event_type = 'Lock'",
                &[],
            )
            .await
            .unwrap();
        (!killed.is_empty()).then_some(())
    })
    .await;
}

#[tokio::test]
async fn an_unknown_outcome_is_repeated_only_where_keys_make_it_safe() {
    let side = Producers::start().await;
    enqueue(&side, &task()).await;
    let mut client = side.db.connect().await;
    for (body, expected) in [
        (task(), (500, "FP-111")),
        (json!([keyed("a"), task()]), (500, "FP-111")),
    ] {
        let holder = client.transaction().await.unwrap();
        holder
            .execute("lock table fencepost.live in exclusive mode", &[])
            .await
            .unwrap();
        let body = body.to_string();
        let (answer, ()) = tokio::join!(side.post("/v1/tasks", body), kill_the_waiting(&side));
        let (status, code, _) = answer.problem();
        assert_eq!((status, code.as_str()), expected);
        holder.rollback().await.unwrap();
    }
    assert_eq!(count(&side, "fencepost.task").await, 1);

    let holder = client.transaction().await.unwrap();
    holder
        .execute("lock table fencepost.live in exclusive mode", &[])
        .await
        .unwrap();
    let killing = async {
        kill_the_waiting(&side).await;
        holder.rollback().await.unwrap();
    };
    let body = json!([keyed("a"), keyed("b")]).to_string();
    let (answer, ()) = tokio::join!(side.post("/v1/tasks", body), killing);
    assert_eq!(answer.status, 201, "{answer:?}");
    assert_eq!(count(&side, "fencepost.live").await, 3);
}

#[tokio::test]
async fn lists_come_in_pages_newest_first() {
    let side = Producers::start().await;
    let batch = |queue: &str, n: usize| {
        let task = json!({"task_queue": queue, "task_type": "t"});
        json!(vec![task; n]).to_string()
    };
    side.post("/v1/tasks", batch("a", 12)).await;
    side.post("/v1/tasks", batch("b", 13)).await;
    let mut ids = Vec::new();
    let mut sizes = Vec::new();
    let mut path = "/v1/tasks?limit=10".to_owned();
    loop {
        let page = side.get(&path).await.json();
        let tasks = page["tasks"].as_array().unwrap();
        sizes.push(tasks.len());
        ids.extend(tasks.iter().map(id));
        match page["next"].as_str() {
            Some(next) => path = format!("/v1/tasks?limit=10&before={next}"),
            None => break,
        }
    }
    assert_eq!(sizes, [10, 10, 5]);
    assert!(ids.windows(2).all(|pair| pair[0] > pair[1]), "{ids:?}");

    side.end(ids[0], 2, None).await;
    for (filter, expected) in [
        ("task_queue=a", 12),
        ("task_queue=b&state=ready", 12),
        ("state=failed", 1),
        ("state=running", 0),
        ("namespace=nowhere", 0),
        ("namespace=default&task_type=t", 25),
    ] {
        let page = side.get(&format!("/v1/tasks?{filter}")).await.json();
        assert_eq!(
            page["tasks"].as_array().unwrap().len(),
            expected,
            "{filter}"
        );
    }

    let output = side
        .command(
            &[
                "task", "list", "--queue", "b", "--limit", "7", "--output", "json",
            ],
            b"",
        )
        .await;
    let listed: Vec<Value> = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(listed.len(), 7);
    let output = side
        .command(&["task", "list", "--state", "failed"], b"")
        .await;
    assert!(
        String::from_utf8(output.stdout)
            .unwrap()
            .contains(&ids[0].to_string())
    );
    let output = side
        .command(&["task", "list", "--queue", "none"], b"")
        .await;
    assert_eq!((output.status.code(), output.stdout.len()), (Some(0), 0));
    assert!(
        String::from_utf8(output.stderr)
            .unwrap()
            .contains("no task matches")
    );
}

#[tokio::test]
async fn health_and_readiness_are_told_apart() {
    let side = Producers::start().await;
    assert_eq!(side.get("/healthz").await.status, 200);
    let not_yet = side.get("/readyz").await;
    assert_eq!(
        (not_yet.status, &not_yet.json()["ready"]),
        (503, &json!(false))
    );
    let reasons = vec!["the database is away".to_owned()];
    side.readiness.send_replace(Readiness {
        ready: false,
        reasons,
    });
    let down = side.get("/readyz").await;
    assert_eq!(
        (down.status, down.json()),
        (
            503,
            json!({"ready": false, "reasons": ["the database is away"]})
        )
    );
    side.readiness.send_replace(Readiness {
        ready: true,
        reasons: Vec::new(),
    });
    assert_eq!(side.get("/readyz").await.status, 200);

    let address = side.http.to_string();
    let output = side
        .command(&["healthcheck", "--http", &address], b"")
        .await;
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    let free = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = free.local_addr().unwrap().to_string();
    drop(free);
    let output = side
        .command(&["healthcheck", "--http", &address], b"")
        .await;
    assert_eq!(output.status.code(), Some(1), "{output:?}");
}
