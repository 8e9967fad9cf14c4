//! The operators' commands as people and scripts use them: the real program.

use http_body_util::Empty;
use hyper_util::client::legacy::Client;
use hyper_util::rt::TokioExecutor;
use serde_json::{Value, json};

use crate::lifecycle::SHORT;
use crate::support::scripted_worker::register;
use crate::support::tasks::enqueue;
use crate::support::{Operator, Replica, ScriptedWorker, TestDb, fencepost};

/// Exit code, stdout, stderr.
async fn run(db: &TestDb, args: &[&str]) -> (i32, String, String) {
    let output = fencepost(&db.url(), args).await;
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    (
        output.status.code().unwrap(),
        text(output.stdout),
        text(output.stderr),
    )
}

/// A run that must succeed, and its JSON.
async fn json_of(db: &TestDb, args: &[&str]) -> Value {
    let (code, stdout, stderr) = run(db, &[args, &["--output", "json"]].concat()).await;
    assert_eq!(code, 0, "{args:?}: {stderr}");
    serde_json::from_str(&stdout).unwrap()
}

#[tokio::test]
async fn why_and_what_nobody_serves() {
    let db = TestDb::new().await;
    let client = db.connect().await;
    let (code, stdout, stderr) = run(&db, &["queue", "unserved"]).await;
    assert_eq!((code, stdout.as_str()), (0, ""));
    assert!(
        stderr.contains("every queue with due tasks is served"),
        "{stderr}"
    );
    assert_eq!(json_of(&db, &["queue", "unserved"]).await, json!([]));

    let id = enqueue(&client, "node => 'gpu'").await;
    let (code, stdout, _) = run(&db, &["task", "why", &id.to_string()]).await;
    assert_eq!(code, 0);
    assert!(
        stdout.starts_with("no_live_workers: No live worker"),
        "{stdout}"
    );
    assert!(stdout.contains("capacity"), "{stdout}");
    let why = json_of(&db, &["task", "why", &id.to_string()]).await;
    assert_eq!(
        (&why["verdict"], &why["node"]),
        (&json!("no_live_workers"), &json!("gpu"))
    );
    let (code, _, stderr) = run(&db, &["task", "why", "1"]).await;
    assert_eq!(code, 2);
    assert!(stderr.contains("FP-104"), "{stderr}");

    let (_, stdout, _) = run(&db, &["task", "why", &id.to_string()]).await;
    assert!(
        stdout.contains("no worker has ever been on its node"),
        "{stdout}"
    );
    let (code, stdout, _) = run(&db, &["queue", "unserved"]).await;
    assert_eq!(code, 0);
    assert!(stdout.contains("never"), "{stdout}");
    assert!(
        stdout.contains("no_live_workers") && stdout.contains("not judged yet"),
        "{stdout}"
    );
    let list = json_of(&db, &["queue", "unserved"]).await;
    assert_eq!(list[0]["waiting"]["tasks"], 1);
}

#[tokio::test]
async fn queues_are_declared_and_listed() {
    let db = TestDb::new().await;
    let (code, stdout, stderr) = run(&db, &["queue", "list"]).await;
    assert_eq!((code, stdout.as_str()), (0, ""));
    assert!(stderr.contains("queue declare"), "{stderr}");
    let declare = ["queue", "declare", "--queue", "q", "--type", "t"];
    assert_eq!(run(&db, &declare).await.0, 0);
    let strict = ["--node", "n", "--namespace", "m", "--unserved", "strict"];
    assert_eq!(run(&db, &[&declare[..], &strict].concat()).await.0, 0);
    // What is not given stays.
    assert_eq!(run(&db, &[&declare[..], &strict[..4]].concat()).await.0, 0);
    let list = json_of(&db, &["queue", "list"]).await;
    let line = |at: usize, name: &str| list[at][name].clone();
    assert_eq!(list.as_array().unwrap().len(), 2);
    assert_eq!(
        (line(0, "namespace"), line(0, "unserved")),
        (json!("default"), json!("wait"))
    );
    assert_eq!(
        (line(1, "node"), line(1, "unserved")),
        (json!("n"), json!("strict"))
    );
    assert_eq!(
        (line(1, "declared"), line(1, "claimed")),
        (json!(true), json!(0))
    );
    let one = json_of(&db, &["queue", "list", "--namespace", "m", "--queue", "q"]).await;
    assert_eq!(one.as_array().unwrap().len(), 1);
    let (code, _, stderr) = run(&db, &[&declare[..], &["--unserved", "panic"]].concat()).await;
    assert_eq!(code, 2);
    assert!(stderr.contains("FP-018"), "{stderr}");

    let set = ["namespace", "set", "m", "--require-declared-queues", "true"];
    assert_eq!(run(&db, &set).await.0, 0);
    let enqueue = [
        "enqueue",
        "--namespace",
        "m",
        "--queue",
        "q",
        "--type",
        "typo",
    ];
    let (code, _, stderr) = run(&db, &enqueue).await;
    assert_eq!(code, 2);
    assert!(
        stderr.contains("FP-015 queue_not_declared, field task_queue"),
        "{stderr}"
    );
}

#[tokio::test]
async fn namespaces_are_set_and_listed() {
    let db = TestDb::new().await;
    for (text, placement) in [
        ("prefer:a,b", json!({"mode": "prefer", "nodes": ["a", "b"]})),
        ("require: c", json!({"mode": "require", "nodes": ["c"]})),
        ("anywhere", json!({"mode": "anywhere"})),
    ] {
        let set = json_of(&db, &["namespace", "set", "n", "--placement", text]).await;
        assert_eq!(set["placement"], placement);
        assert_eq!(set["require_declared_queues"], false);
    }
    for bad in ["nowhere", "anywhere:a", "prefer", ":a"] {
        let (code, _, stderr) = run(&db, &["namespace", "set", "n", "--placement", bad]).await;
        assert_eq!(code, 2, "{bad}: {stderr}");
    }
    let (code, _, stderr) = run(&db, &["namespace", "set", "n", "--placement", "require:"]).await;
    assert_eq!(code, 2);
    assert!(stderr.contains("FP-017"), "{stderr}");
    let (code, _, stderr) = run(&db, &["namespace", "set", "n"]).await;
    assert_eq!(code, 2);
    assert!(stderr.contains("nothing to set"), "{stderr}");
    let list = json_of(&db, &["namespace", "list"]).await;
    assert_eq!(list.as_array().unwrap().len(), 1);
    let (code, stdout, _) = run(&db, &["namespace", "list"]).await;
    assert_eq!(code, 0);
    assert!(stdout.contains("anywhere"), "{stdout}");
}

#[tokio::test]
async fn workers_are_listed_and_ordered() {
    let db = TestDb::new().await;
    let (code, stdout, stderr) = run(&db, &["workers", "list"]).await;
    assert_eq!((code, stdout.as_str()), (0, ""));
    assert!(stderr.contains("no worker is connected"), "{stderr}");
    let replica = Replica::start(&db.url(), SHORT).await;
    let operator = Operator::of(&replica);
    let worker = ScriptedWorker::connect_as(&replica.url(), register()).await;
    operator
        .worker("scripted", |one| one["state"] == "ready")
        .await;
    let list = json_of(&db, &["workers", "list"]).await;
    assert_eq!(
        (&list[0]["identity"], &list[0]["slots"]),
        (&json!("scripted"), &json!(1))
    );

    let cordon = [
        "workers", "cordon", "scripted", "absent", "--reason", "upgrade",
    ];
    let (code, _, stderr) = run(&db, &cordon).await;
    assert_eq!(code, 0);
    assert!(
        stderr.contains("no worker absent is connected now"),
        "{stderr}"
    );
    operator
        .worker("scripted", |one| one["state"] == "cordoned")
        .await;
    let (_, stdout, _) = run(&db, &["workers", "list"]).await;
    assert!(stdout.contains("away"), "{stdout}");
    let list = json_of(&db, &["workers", "list"]).await;
    let order = &list[1]["order"];
    assert_eq!(
        (&order["by"], &order["reason"]),
        (&json!("olga"), &json!("upgrade"))
    );
    assert_eq!(run(&db, &["workers", "drain", "scripted"]).await.0, 0);
    // It has no task, so it is gone at once, and the order stays.
    let seen = operator
        .worker("scripted", |one| one["state"] == "away")
        .await;
    assert_eq!(seen["order"]["action"], "drain");
    assert_eq!(worker.ended().await, []);
    let lift = ["workers", "uncordon", "scripted", "absent"];
    assert_eq!(
        json_of(&db, &lift).await,
        json!([{"identity": "scripted", "action": "uncordon"}, {"identity": "absent", "action": "uncordon"}])
    );
    let _worker = ScriptedWorker::connect_as(&replica.url(), register()).await;
    operator
        .worker("scripted", |one| one["state"] == "ready")
        .await;
    assert_eq!(run(&db, &["workers", "drain"]).await.0, 2);
}

#[tokio::test]
async fn the_doctor_names_what_is_wrong() {
    let db = TestDb::new().await;
    let verdicts = |found: &Value| -> Vec<(String, String)> {
        let found = found.as_array().unwrap().iter();
        let bad = found.filter(|finding| finding["verdict"] != "ok");
        bad.map(|finding| {
            assert_ne!(finding["advice"], "", "{finding}");
            let text = |field: &str| finding[field].as_str().unwrap().to_owned();
            (text("check"), text("verdict"))
        })
        .collect()
    };
    let problem = |check: &str| (check.to_owned(), "problem".to_owned());
    let warning = |check: &str| (check.to_owned(), "warning".to_owned());
    // What the server under the tests is made of is not looked at.
    let ours = |found: &Value| -> Vec<(String, String)> {
        let of_server = ["durability", "connections", "server"];
        let mut found = verdicts(found);
        found.retain(|(check, _)| !of_server.contains(&check.as_str()));
        found
    };

    let (code, stdout, stderr) = run(&db, &["doctor", "--output", "json"]).await;
    let found: Value = serde_json::from_str(&stdout).unwrap();
    assert_eq!(
        (code, ours(&found)),
        (1, vec![problem("replicas")]),
        "{stderr}"
    );

    let replica = Replica::start(&db.url(), &[]).await;
    let mut reader = db.connect().await;
    let snapshot = reader
        .build_transaction()
        .isolation_level(tokio_postgres::IsolationLevel::RepeatableRead)
        .start()
        .await
        .unwrap();
    let row = snapshot.query_one("select pg_backend_pid(), count(*) from fencepost.live", &[]);
    let pid: i32 = row.await.unwrap().get(0);
    let (_, stdout, _) = run(&db, &["doctor", "--held-for", "0", "--output", "json"]).await;
    let found: Value = serde_json::from_str(&stdout).unwrap();
    assert_eq!(ours(&found), [warning("snapshots")]);
    assert!(
        stdout.contains(&format!("pid {pid}, idle in transaction")),
        "{stdout}"
    );
    let (_, stdout, _) = run(&db, &["doctor"]).await;
    assert!(
        stdout.contains("nobody keeps dead rows from being vacuumed"),
        "{stdout}"
    );
    drop(snapshot);
    drop(replica);

    let client = db.connect().await;
    let id = enqueue(&client, "").await;
    client
        .execute(
            "update fencepost.live set state = 1, dispatcher = 999999, sweep = 1, claimed_at = now() where id = $1",
            &[&id],
        )
        .await
        .unwrap();
    let (_, stdout, _) = run(&db, &["doctor", "--output", "json"]).await;
    let found: Value = serde_json::from_str(&stdout).unwrap();
    assert!(ours(&found).contains(&warning("invariants")), "{stdout}");

    client
        .batch_execute("delete from fencepost.migration where version = (select max(version) from fencepost.migration)")
        .await
        .unwrap();
    let (code, stdout, _) = run(&db, &["doctor"]).await;
    assert_eq!(code, 1);
    assert!(stdout.contains("1 migrations are missing"), "{stdout}");
    assert!(stdout.contains("fencepost migrate"), "{stdout}");
}

#[tokio::test]
async fn pages_of_other_hosts_change_nothing() {
    let db = TestDb::new().await;
    let replica = Replica::start(&db.url(), &[]).await;
    let operator = Operator::of(&replica);
    let id = enqueue(&db.connect().await, "").await;
    let (cancel, read) = (format!("/v1/tasks/{id}/cancel"), format!("/v1/tasks/{id}"));
    let own = format!("http://{}", replica.http());
    for page in [
        &[("sec-fetch-site", "cross-site")][..],
        &[("sec-fetch-site", "same-site"), ("origin", own.as_str())],
        &[("origin", "http://evil.example")],
        &[("origin", "null")],
    ] {
        let (status, problem) = operator.call_as(page, "POST", &cancel, "").await;
        assert_eq!(
            (status, &problem["code"]),
            (403, &json!("FP-118")),
            "{page:?}"
        );
        // What is only read may be asked for: the browser keeps the answer from the page.
        let (status, task) = operator.call_as(page, "GET", &read, "").await;
        assert_eq!((status, &task["state"]), (200, &json!("ready")), "{page:?}");
    }
    for page in [
        // Behind a proxy, the host may be another.
        &[
            ("sec-fetch-site", "same-origin"),
            ("origin", "https://front.example"),
        ][..],
        &[("sec-fetch-site", "none")],
        &[("origin", own.as_str())],
        &[],
    ] {
        let (status, answer) = operator.call_as(page, "POST", &cancel, "").await;
        assert_eq!(status, 200, "{page:?}: {answer}");
    }
    assert_eq!(operator.get(&read).await["state"], "cancelled");
    // HTTP/2 names the host in the address.
    let client: Client<_, Empty<bytes::Bytes>> = Client::builder(TokioExecutor::new())
        .http2_only(true)
        .build_http();
    for (origin, status) in [(own.as_str(), 200), ("http://evil.example", 403)] {
        let request = axum::http::Request::post(format!("{own}{cancel}"))
            .header("origin", origin)
            .header("x-request-id", "mine")
            .body(Empty::new())
            .unwrap();
        let response = client.request(request).await.unwrap();
        assert_eq!(response.status(), status, "{origin}");
        // Refusals have it as any answer has.
        assert_eq!(response.headers()["x-request-id"], "mine");
    }
}

#[tokio::test]
async fn parameters_that_a_call_does_not_take_are_refused() {
    let db = TestDb::new().await;
    let replica = Replica::start(&db.url(), &[]).await;
    let operator = Operator::of(&replica);
    let id = enqueue(&db.connect().await, "").await;
    for (method, path) in [
        ("GET", format!("/v1/tasks/{id}/why")),
        ("GET", format!("/v1/tasks/{id}/history")),
        ("GET", "/v1/replicas".to_owned()),
        ("GET", "/v1/shares".to_owned()),
        ("GET", "/v1/redrives/1".to_owned()),
        ("POST", format!("/v1/tasks/{id}/cancel")),
        ("POST", "/v1/workers/w/drain".to_owned()),
    ] {
        let (status, problem) = operator.call(method, &format!("{path}?reason=x"), "").await;
        let found = (status, &problem["code"], &problem["field"]);
        assert_eq!(found, (400, &json!("FP-102"), &json!("reason")), "{path}");
    }
    let twice = "/v1/tasks?limit=1&state=done&limit=2";
    let (status, problem) = operator.call("GET", twice, "").await;
    let found = (status, &problem["code"], &problem["field"]);
    assert_eq!(found, (400, &json!("FP-103"), &json!("limit")));
    assert_eq!(
        operator.get(&format!("/v1/tasks/{id}")).await["state"],
        "ready"
    );
}

#[tokio::test]
async fn a_role_with_the_documented_grants_enqueues_and_the_doctor_tells_it_from_an_owner() {
    let db = TestDb::new().await;
    let client = db.connect().await;
    let document = include_str!("../../docs/operations.md");
    let (_, grants) = document.split_once("```sql\ngrant usage").unwrap();
    let (grants, _) = grants.split_once("```").unwrap();
    // Roles are of the whole server, so each run has one of its own.
    let role = format!("app_{}", std::process::id());
    let grants = format!("grant usage{grants}").replace("public", &role);
    let set_up = format!("create role {role}; {grants} set role {role};");
    client.batch_execute(&set_up).await.unwrap();
    let id = enqueue(&client, "concurrency_key => 'k', dispatch_key => 'd'").await;
    let settings = include_str!("../../sql/read_server_settings.sql");
    let row = client.query_one(settings, &[]).await.unwrap();
    assert_eq!(row.get::<_, String>("role"), role);
    assert!(!row.get::<_, bool>("owns"));
    client.batch_execute("reset role").await.unwrap();
    let row = client.query_one(settings, &[]).await.unwrap();
    assert_eq!(row.get::<_, String>("owner"), row.get::<_, String>("role"));
    assert!(row.get::<_, bool>("owns"));
    let clean_up = format!("drop owned by {role}; drop role {role}");
    client.batch_execute(&clean_up).await.unwrap();
    let why = json_of(&db, &["task", "why", &id.to_string()]).await;
    assert_eq!(why["verdict"], "no_live_workers");
}
