//! The WebSocket door: scripted JSON clients against real replicas.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use fencepost::proto::json::{
    read_dispatcher_frame, read_worker_frame, write_dispatcher_frame, write_worker_frame,
};
use futures_util::{SinkExt, StreamExt};
use serde_json::{Value, json};
use tokio::net::TcpStream;
use tokio_tungstenite::tungstenite::client::IntoClientRequest;
use tokio_tungstenite::tungstenite::{Bytes, Error, Message, http};
use tokio_tungstenite::{WebSocketStream, client_async};

use crate::lifecycle::SHORT;
use crate::support::tasks::{CANCELLED, DONE, FAILED, count, ended, enqueue, live};
use crate::support::{Replica, ScriptedWorker, TestDb, eventually, scripted_worker};

/// No step of a script takes longer, unless something is broken.
const STEP: Duration = Duration::from_secs(20);

/// One replica over a database of its own.
struct Stage {
    replica: Replica,
    db: tokio_postgres::Client,
    test_db: TestDb,
}

impl Stage {
    async fn set(env: &[(&str, &str)]) -> Self {
        let test_db = TestDb::new().await;
        let replica = Replica::start(&test_db.url(), env).await;
        let db = test_db.connect().await;
        Self {
            replica,
            db,
            test_db,
        }
    }

    async fn worker(&self) -> JsonWorker {
        JsonWorker::register(&self.replica, registration()).await
    }
}

/// Queue `q`, type `t`, one slot.
fn registration() -> Value {
    json!({
        "protocol": 1, "identity": "json", "namespaces": ["default"], "task_queue": "q",
        "task_types": ["t"], "slots": 1, "instance": "1",
    })
}

fn with(mut register: Value, field: &str, value: Value) -> Value {
    register[field] = value;
    register
}

/// A client that does what the test says. It answers pings while the test waits for something.
struct JsonWorker {
    socket: WebSocketStream<TcpStream>,
    welcome: Value,
    /// What came and nobody asked for yet.
    frames: VecDeque<String>,
}

/// How a stream ended: close code and reason.
type Closed = (u16, String);

impl JsonWorker {
    /// Connects, with nothing said yet.
    async fn connect(replica: &Replica) -> Self {
        Self::request(replica, |_| {}).await.unwrap()
    }

    async fn request(
        replica: &Replica,
        change: impl FnOnce(&mut http::Request<()>),
    ) -> Result<Self, Error> {
        let address = replica.http();
        let mut request = format!("ws://{address}/v1/workers")
            .into_client_request()
            .unwrap();
        change(&mut request);
        let stream = TcpStream::connect(address).await.unwrap();
        let (socket, _) = step(client_async(request, stream)).await?;
        Ok(Self {
            socket,
            welcome: Value::Null,
            frames: VecDeque::new(),
        })
    }

    async fn register(replica: &Replica, register: Value) -> Self {
        let mut worker = Self::connect(replica).await;
        worker.send(&json!({ "register": register })).await;
        worker.welcome = worker.wait("welcome").await;
        worker
    }

    async fn send(&mut self, frame: &Value) {
        self.send_text(&frame.to_string()).await;
    }

    async fn send_text(&mut self, text: &str) {
        self.socket.send(Message::text(text)).await.unwrap();
    }

    /// The next message that is no ping, or the close.
    async fn pump(&mut self) -> Result<String, Closed> {
        loop {
            let message = step(self.socket.next()).await;
            match message.expect("the stream ended without a close").unwrap() {
                Message::Text(text) => {
                    let frame: Value = serde_json::from_str(&text).unwrap_or_default();
                    if frame.get("ping").is_none() {
                        return Ok(text.as_str().to_owned());
                    }
                    self.send(&json!({ "pong": frame["ping"] })).await;
                }
                Message::Close(close) => {
                    let close = close.expect("a close without a code");
                    return Err((close.code.into(), close.reason.as_str().to_owned()));
                }
                other => panic!("{other:?}"),
            }
        }
    }

    /// The next frame of this name, as its text.
    async fn wait_text(&mut self, name: &str) -> String {
        let start = format!("{{\"{name}\":");
        if let Some(at) = self.frames.iter().position(|text| text.starts_with(&start)) {
            return self.frames.remove(at).unwrap();
        }
        loop {
            let text = self.pump().await.unwrap();
            if text.starts_with(&start) {
                return text;
            }
            self.frames.push_back(text);
        }
    }

    async fn wait(&mut self, name: &str) -> Value {
        let text = self.wait_text(name).await;
        let mut frame: Value = serde_json::from_str(&text).unwrap();
        frame[name].take()
    }

    /// The next task, alone in its frame.
    async fn task(&mut self) -> Value {
        let mut tasks = self.wait("tasks").await;
        assert_eq!(tasks["tasks"].as_array().unwrap().len(), 1, "{tasks}");
        tasks["tasks"][0].take()
    }

    async fn accept_next(&mut self) -> Value {
        let task = self.task().await;
        let accepted = json!({ "accepted": { "tokens": [task["token"]] } });
        self.send(&accepted).await;
        task
    }

    async fn report(&mut self, task: &Value, outcome: &str, value: Value) {
        let result = json!({ "token": task["token"], outcome: value });
        let results = json!({ "results": { "results": [result] } });
        self.send(&results).await;
    }

    async fn acked(&mut self, task: &Value, verdict: &str) {
        let acks = self.wait("acks").await;
        assert_eq!(
            acks,
            json!({ "acks": [{ "token": task["token"], "verdict": verdict }] })
        );
    }

    /// Waits for the close.
    async fn closed(mut self) -> Closed {
        loop {
            if let Err(closed) = self.pump().await {
                return closed;
            }
        }
    }
}

async fn step<T>(doing: impl Future<Output = T>) -> T {
    tokio::time::timeout(STEP, doing)
        .await
        .expect("the dispatcher did not come this far")
}

fn id(task: &Value) -> i64 {
    task["task_id"].as_str().unwrap().parse().unwrap()
}

#[tokio::test]
async fn a_task_is_delivered_accepted_done_and_acked() {
    let stage = Stage::set(&[]).await;
    let mut worker = stage.worker().await;
    assert_eq!(worker.welcome["slots"], 1);
    assert_eq!(worker.welcome["silence_window_ms"], "30000");
    let enqueued = enqueue(
        &stage.db,
        r#"payload => '{"user": 42}', labels => '{"a": "b"}', node => null, max_attempts => 3"#,
    )
    .await;
    let task = worker.accept_next().await;
    assert_eq!(id(&task), enqueued);
    assert_eq!(task["json"], json!({ "user": 42 }));
    assert_eq!(task["labels"], json!({ "a": "b" }));
    assert_eq!(
        [&task["attempt"], &task["max_attempts"]],
        [&json!(1), &json!(3)]
    );
    assert_eq!(task["fence"], "1");
    assert_eq!(task["idempotency_key"], enqueued.to_string());
    assert_eq!(task.get("node"), None);
    worker
        .report(&task, "succeeded", json!({ "json": { "sent": true } }))
        .await;
    worker.acked(&task, "recorded").await;
    let end = ended(&stage.db, enqueued).await;
    assert_eq!(
        (end.state, end.result.as_deref()),
        (DONE, Some(r#"{"sent": true}"#))
    );
    // Said again, it is the same answer.
    worker
        .report(&task, "succeeded", json!({ "json": { "sent": true } }))
        .await;
    worker.acked(&task, "recorded").await;
}

#[tokio::test]
async fn json_is_passed_on_as_it_is_and_bytes_as_base64() {
    let stage = Stage::set(&[]).await;
    let mut worker = stage.worker().await;
    let stored = "{\"z\": 123456789012345678901234567890.10, \"Grüße\": \"\u{1f40c} \\\"\\u0007\", \"huge\": 1e400}";
    let deep = format!("{}{}", "[".repeat(1000), "]".repeat(1000));
    for payload in [stored, "null", "-0.10", &deep] {
        let quoted = payload.replace('\'', "''");
        let enqueued = enqueue(&stage.db, &format!("payload => '{quoted}'")).await;
        let query = "select convert_from(payload, 'UTF8') from fencepost.task where id = $1";
        let row = stage.db.query_one(query, &[&enqueued]).await.unwrap();
        let text = worker.wait_text("tasks").await;
        let inline = format!("\"json\":{},\"attempt\"", row.get::<_, String>(0));
        assert!(text.contains(&inline), "{text} has no {inline}");
        let token = format!("{enqueued}.0.1");
        // The result's text is passed on just so, until the database brings it into its normal form.
        let result = format!(
            r#"{{"results": {{"results": [{{"token": "{token}", "succeeded": {{"json": {payload}}}}}]}}}}"#
        );
        worker.send_text(&result).await;
        worker.wait("acks").await;
        let end = ended(&stage.db, enqueued).await;
        assert_eq!(end.result, Some(row.get(0)));
    }
    let call = "select task_id from fencepost.enqueue_bytes('q', 't', '\\x00ff7b22'::bytea, 'application/octet-stream')";
    let enqueued: i64 = stage.db.query_one(call, &[]).await.unwrap().get(0);
    let task = worker.accept_next().await;
    assert_eq!(
        [&task["payload"], &task["content_type"]],
        ["AP97Ig==", "application/octet-stream"]
    );
    let bytes = json!({ "payload": "/wA=", "content_type": "image/png" });
    worker.report(&task, "succeeded", bytes).await;
    worker.acked(&task, "recorded").await;
    let query = "select result, result_type from fencepost.outcome where id = $1";
    let row = stage.db.query_one(query, &[&enqueued]).await.unwrap();
    assert_eq!(row.get::<_, Vec<u8>>(0), [0xff, 0]);
    assert_eq!(row.get::<_, String>(1), "image/png");
}

#[tokio::test]
async fn failures_cancels_and_drains_go_as_over_grpc() {
    let stage = Stage::set(&[]).await;
    let mut worker = stage.worker().await;
    let terminal = enqueue(&stage.db, "").await;
    let task = worker.accept_next().await;
    worker
        .report(
            &task,
            "failed",
            json!({ "kind": "terminal", "class": "bad_input", "message": "No." }),
        )
        .await;
    worker.acked(&task, "recorded").await;
    let end = ended(&stage.db, terminal).await;
    assert_eq!(
        (end.state, end.class.as_deref()),
        (FAILED, Some("bad_input"))
    );

    let retried = enqueue(&stage.db, "").await;
    let task = worker.accept_next().await;
    let failed = json!({ "kind": "retryable", "class": "busy", "retry_after_ms": "1" });
    worker.report(&task, "failed", failed).await;
    worker.acked(&task, "recorded").await;
    let task = worker.accept_next().await;
    assert_eq!((id(&task), &task["attempt"]), (retried, &json!(2)));
    worker
        .send(&json!({ "progress": { "token": task["token"], "percent": 50 } }))
        .await;
    let cancel = format!("/v1/tasks/{retried}/cancel");
    assert_eq!(stage.replica.post(&cancel).await, Some(200));
    let cancel = worker.wait("cancel").await;
    assert_eq!(cancel["tokens"], json!([task["token"]]));
    worker
        .report(&task, "failed", json!({ "kind": "cancelled" }))
        .await;
    worker.acked(&task, "recorded").await;
    assert_eq!(ended(&stage.db, retried).await.state, CANCELLED);

    let waits = enqueue(&stage.db, "").await;
    let task = worker.task().await;
    let refused = json!({ "tokens": [task["token"]], "reason": "draining" });
    worker.send(&json!({ "refused": refused })).await;
    worker.send(&json!({ "drain": {} })).await;
    worker.send(&json!({ "ping": { "sequence": "77" } })).await;
    assert_eq!(worker.wait("pong").await, json!({ "sequence": "77" }));
    let mut other = stage.worker().await;
    let task = other.accept_next().await;
    assert_eq!((id(&task), &task["attempt"]), (waits, &json!(1)));
}

#[tokio::test]
async fn both_doors_lead_into_one_fleet_and_each_task_goes_through_its_workers_own() {
    let stage = Stage::set(&[]).await;
    let mut json_worker = stage.worker().await;
    let mut grpc_worker = ScriptedWorker::connect(&stage.replica.url()).await;
    let (one, two) = (enqueue(&stage.db, "").await, enqueue(&stage.db, "").await);
    let by_json = json_worker.accept_next().await;
    let by_grpc = grpc_worker.accept_next().await;
    let mut got = [id(&by_json), by_grpc.task_id];
    got.sort_unstable();
    assert_eq!(got, [one, two]);
    grpc_worker.succeed(&by_grpc, "1").await;
    grpc_worker.recorded(&by_grpc).await;
    json_worker
        .report(&by_json, "succeeded", json!({ "json": 1 }))
        .await;
    json_worker.acked(&by_json, "recorded").await;
}

#[tokio::test]
async fn a_task_goes_on_through_the_other_door() {
    let stage = Stage::set(&[]).await;
    let mut worker = ScriptedWorker::connect(&stage.replica.url()).await;
    let first = enqueue(&stage.db, "").await;
    let task = worker.accept_next().await;
    let token = String::from_utf8(task.token.to_vec()).unwrap();
    drop(worker);
    let held = json!([
        { "task_id": first.to_string(), "token": token },
        { "task_id": "7", "token": "7.0.1" },
        { "token": "no token" },
    ]);
    let mut worker =
        JsonWorker::register(&stage.replica, with(registration(), "resume", held)).await;
    assert_eq!(worker.welcome["resumed"], json!([token]));
    assert_eq!(worker.welcome["abandoned"], json!(["7.0.1", "no token"]));
    let task = json!({ "token": token });
    worker
        .report(&task, "succeeded", json!({ "json": "done" }))
        .await;
    worker.acked(&task, "recorded").await;
    let end = ended(&stage.db, first).await;
    assert_eq!((end.state, end.attempt, end.fence), (DONE, 0, Some(1)));

    // And back, to another replica.
    let second = enqueue(&stage.db, "").await;
    worker.accept_next().await;
    drop(worker);
    let other = Replica::start(&stage.test_db.url(), &[]).await;
    let token: Bytes = format!("{second}.0.1").into();
    let held = fencepost::proto::worker::Task {
        token: token.clone(),
        task_id: second,
        ..fencepost::proto::worker::Task::default()
    };
    let mut worker = ScriptedWorker::resume(&other.url(), &[&held]).await;
    assert_eq!(worker.welcome.resumed, [token]);
    worker.succeed(&held, "2").await;
    worker.recorded(&held).await;
    assert_eq!(ended(&stage.db, second).await.fence, Some(1));
}

#[tokio::test]
async fn a_denial_is_a_message_and_a_close_code() {
    let stage = Stage::set(&[]).await;
    for (register, field) in [
        (with(registration(), "slots", json!(0)), "slots"),
        (with(registration(), "protocol", json!(9)), "protocol"),
        (with(registration(), "namespaces", json!([])), "namespaces"),
        (
            with(registration(), "max_frame_bytes", json!("17")),
            "max_frame_bytes",
        ),
    ] {
        let mut worker = JsonWorker::connect(&stage.replica).await;
        worker.send(&json!({ "register": register })).await;
        let denied = worker.wait("denied").await;
        assert_eq!(denied["status"], "invalid_argument", "{denied}");
        assert_eq!(denied["final"], true);
        assert_eq!(denied["field"], field);
        assert!(denied["message"].as_str().unwrap().ends_with('.'));
        let (code, reason) = worker.closed().await;
        assert_eq!(code, 1008);
        assert!(reason.starts_with(field), "{reason}");
    }
    // What is no registration at all.
    for (text, field, close) in [
        (r#"{"ping": {}}"#, "", 1008),
        (r#"{"unknown": {}}"#, "", 1008),
        (r#"{"register": {"slots": "many"}}"#, "register.slots", 1007),
        ("{", "", 1007),
    ] {
        let mut worker = JsonWorker::connect(&stage.replica).await;
        worker.send_text(text).await;
        let denied = worker.wait("denied").await;
        assert_eq!(
            (&denied["final"], &denied["field"]),
            (&json!(true), &json!(field))
        );
        assert_eq!(worker.closed().await.0, close, "{text}");
    }
}

#[tokio::test]
async fn a_replica_without_its_database_denies_for_now() {
    // Nothing listens there, and the replica starts all the same.
    let replica = Replica::spawn("postgres://nobody@127.0.0.1:9/none", &[]).await;
    let mut worker = JsonWorker::connect(&replica).await;
    worker.send(&json!({ "register": registration() })).await;
    let denied = worker.wait("denied").await;
    assert_eq!(
        (&denied["status"], &denied["final"]),
        (&json!("unavailable"), &json!(false))
    );
    assert_eq!(worker.closed().await.0, 1013);
}

#[tokio::test]
async fn what_is_no_frame_ends_the_stream_with_the_reason() {
    let stage = Stage::set(&[]).await;
    for (text, code, reason) in [
        (r#"{"pong": {"sequence""#, 1007, "line 1 column"),
        ("7", 1007, "not a JSON object"),
        (
            r#"{"refused": {"tokens": [], "reason": "bored"}}"#,
            1007,
            "refused.reason",
        ),
        (
            r#"{"progress": {"percent": "half"}}"#,
            1007,
            "progress.percent",
        ),
        (
            r#"{"results": {"results": [{"snoozed": 1}]}}"#,
            1007,
            "results.results[0].token",
        ),
    ] {
        let mut worker = stage.worker().await;
        worker.send_text(text).await;
        let closed = worker.closed().await;
        assert_eq!(closed.0, code, "{text}: {closed:?}");
        assert!(closed.1.contains(reason), "{text}: {closed:?}");
    }
    let mut worker = stage.worker().await;
    worker
        .socket
        .send(Message::binary(vec![1, 2]))
        .await
        .unwrap();
    assert_eq!(worker.closed().await.0, 1003);
    // Unknown frames and a second registration are no faults.
    let mut worker = stage.worker().await;
    worker.send(&json!({ "news": {} })).await;
    worker.send(&json!({ "register": registration() })).await;
    worker.send(&json!({ "ping": { "sequence": 5 } })).await;
    assert_eq!(worker.wait("pong").await, json!({ "sequence": "5" }));
}

#[tokio::test]
async fn a_malformed_result_ends_its_task_and_not_the_stream() {
    let stage = Stage::set(&[]).await;
    let mut worker = stage.worker().await;
    for (outcome, value) in [
        ("failed", json!({ "kind": "bored" })),
        ("succeeded", json!({ "payload": "?" })),
        ("unheard_of", json!({})),
        (
            "succeeded",
            json!({ "payload": "/w==", "content_type": "application/json" }),
        ),
    ] {
        let enqueued = enqueue(&stage.db, "").await;
        let task = worker.accept_next().await;
        worker.report(&task, outcome, value).await;
        worker.acked(&task, "recorded").await;
        let end = ended(&stage.db, enqueued).await;
        assert_eq!(
            (end.state, end.class.as_deref()),
            (FAILED, Some("result_invalid")),
            "{outcome}"
        );
    }
}

#[tokio::test]
async fn a_message_above_the_limit_ends_the_stream_and_a_task_above_it_is_not_sent() {
    let stage = Stage::set(&[("WORKERS__MAX_FRAME", "2MiB")]).await;
    let mut worker = stage.worker().await;
    assert_eq!(worker.welcome["max_frame_bytes"], "2097152");
    let text = format!("{{\"news\": \"{}\"}}", "x".repeat(2 << 20));
    worker.send_text(&text).await;
    let (code, reason) = worker.closed().await;
    assert_eq!(code, 1009, "{reason}");

    // 40,000 bytes fit as they are, and no more as base64.
    let narrow = with(registration(), "max_frame_bytes", json!("50000"));
    let mut narrow = JsonWorker::register(&stage.replica, narrow).await;
    let bytes = |size: i32| {
        format!(
            "select task_id from fencepost.enqueue_bytes('q', 't', decode(repeat('ff', {size}), 'hex'), 'image/png')"
        )
    };
    let small: i64 = stage
        .db
        .query_one(&bytes(36_000), &[])
        .await
        .unwrap()
        .get(0);
    let task = narrow.accept_next().await;
    assert_eq!(id(&task), small);
    narrow.report(&task, "succeeded", json!({})).await;
    narrow.acked(&task, "recorded").await;
    let large: i64 = stage
        .db
        .query_one(&bytes(40_000), &[])
        .await
        .unwrap()
        .get(0);
    let end = ended(&stage.db, large).await;
    assert_eq!(
        (end.state, end.class.as_deref()),
        (FAILED, Some("frame_too_large"))
    );
    // JSON goes as it is, so as much of it fits as says the limit.
    let json = enqueue(&stage.db, "payload => to_jsonb(repeat('x', 45000))").await;
    assert_eq!(id(&narrow.accept_next().await), json);
    // Over gRPC the same bytes fit.
    let register = fencepost::proto::worker::Register {
        max_frame_bytes: 50_000,
        ..scripted_worker::register()
    };
    let mut grpc = ScriptedWorker::connect_as(&stage.replica.url(), register).await;
    let large: i64 = stage
        .db
        .query_one(&bytes(40_000), &[])
        .await
        .unwrap()
        .get(0);
    assert_eq!(grpc.accept_next().await.task_id, large);
}

#[tokio::test]
async fn a_task_that_no_door_of_any_replica_takes_is_a_dead_letter() {
    let stage = Stage::set(SHORT).await;
    let other = Replica::start(&stage.test_db.url(), SHORT).await;
    let narrow = with(registration(), "max_frame_bytes", json!("50000"));
    let mut narrow = JsonWorker::register(&other, narrow).await;
    enqueue(&stage.db, "").await;
    narrow.accept_next().await;
    let register = fencepost::proto::worker::Register {
        max_frame_bytes: 8192,
        ..scripted_worker::register()
    };
    let _grpc = ScriptedWorker::connect_as(&stage.replica.url(), register).await;
    // Each replica knows of the other's workers once it has beaten after they were written down.
    let groups = "select count(*) from fencepost.fleet";
    eventually(STEP, async || {
        (count(&stage.db, groups).await == 2).then_some(())
    })
    .await;
    let beats = "select min(beat) from fencepost.dispatcher";
    let before = count(&stage.db, beats).await;
    eventually(STEP, async || {
        (count(&stage.db, beats).await > before + 1).then_some(())
    })
    .await;

    // 40,000 bytes would fit the one behind the WebSocket, were they not base64 there.
    let call = "select task_id from fencepost.enqueue_bytes('q', 't', decode(repeat('ff', 40000), 'hex'), 'image/png')";
    let large: i64 = stage.db.query_one(call, &[]).await.unwrap().get(0);
    let end = ended(&stage.db, large).await;
    assert_eq!(
        (end.state, end.class.as_deref()),
        (FAILED, Some("frame_too_large"))
    );
}

#[tokio::test]
async fn silence_and_shutdown_end_the_stream_with_a_code() {
    let mut stage = Stage::set(&[("WORKERS__SILENCE_WINDOW", "400ms")]).await;
    let before = Instant::now();
    let mut silent = stage.worker().await;
    // It reads, and answers nothing.
    let closed = loop {
        let message = step(silent.socket.next()).await.unwrap().unwrap();
        if let Message::Close(close) = message {
            break close.unwrap();
        }
    };
    assert_eq!(u16::from(closed.code), 1012);
    assert!(before.elapsed() >= Duration::from_millis(400));

    let mut worker = stage.worker().await;
    let enqueued = enqueue(&stage.db, "").await;
    let task = worker.accept_next().await;
    stage.replica.signal(nix::sys::signal::Signal::SIGTERM);
    let go_away = worker.wait("go_away").await;
    assert_ne!(
        go_away["within_ms"]
            .as_str()
            .unwrap()
            .parse::<u64>()
            .unwrap(),
        0
    );
    assert!(live(&stage.db, enqueued).await.is_some());
    worker
        .report(&task, "succeeded", json!({ "json": 1 }))
        .await;
    worker.acked(&task, "recorded").await;
    assert_eq!(worker.closed().await.0, 1001);
    assert!(stage.replica.ended().await.success());
}

#[tokio::test]
async fn web_pages_of_other_hosts_are_refused() {
    let stage = Stage::set(&[]).await;
    let host = stage.replica.http().to_string();
    for (origin, may_come) in [
        (format!("http://{host}"), true),
        ("http://evil.example".into(), false),
        ("http://127.0.0.1".into(), false),
        ("null".into(), false),
        ("\u{e9}".into(), false),
    ] {
        let connected = JsonWorker::request(&stage.replica, |request| {
            let value = http::HeaderValue::from_bytes(origin.as_bytes()).unwrap();
            request.headers_mut().insert("origin", value);
        })
        .await;
        match connected {
            Ok(_) => assert!(may_come, "{origin}"),
            Err(Error::Http(answer)) => {
                assert!(!may_come, "{origin}");
                assert_eq!(answer.status(), 403);
            }
            Err(error) => panic!("{origin}: {error}"),
        }
    }
}

#[tokio::test]
async fn the_list_of_workers_stands_at_the_same_path() {
    let stage = Stage::set(&[]).await;
    let _worker = stage.worker().await;
    let answer = stage.replica.get("/v1/workers").await;
    assert_eq!(answer, Some(200));
}

#[test]
fn the_examples_in_the_protocol_are_frames() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/docs/protocol.md");
    let text = std::fs::read_to_string(path).unwrap();
    let mut seen = 0;
    for block in text.split("```json ").skip(1) {
        let block = block.split("```").next().unwrap();
        let (who, json) = block.split_once('\n').unwrap();
        let again = match who {
            "worker" => {
                let frame = read_worker_frame(json).unwrap();
                assert!(frame.frame.is_some(), "{json}");
                write_worker_frame(frame)
            }
            "dispatcher" => {
                let frame = read_dispatcher_frame(json).unwrap();
                assert!(frame.frame.is_some(), "{json}");
                write_dispatcher_frame(frame)
            }
            "denial" => json.to_owned(),
            other => panic!("{other:?} says nothing"),
        };
        // Written again it says no less: no field of an example is unknown.
        let parse = |text: &str| serde_json::from_str::<Value>(text).unwrap();
        let (mut again, example) = (parse(&again), parse(json));
        strip_content_type(&mut again, &example);
        assert_eq!(again, example);
        seen += 1;
    }
    assert!(seen > 15, "only {seen} examples were found");
}

/// `json` implies its content type, so an example may leave it out.
fn strip_content_type(again: &mut Value, example: &Value) {
    match again {
        Value::Object(members) => {
            if members.contains_key("json") && example.get("content_type").is_none() {
                members.remove("content_type");
            }
            for (name, member) in members {
                strip_content_type(member, &example[name.as_str()]);
            }
        }
        Value::Array(items) => {
            for (index, item) in items.iter_mut().enumerate() {
                strip_content_type(item, &example[index]);
            }
        }
        _ => {}
    }
}
