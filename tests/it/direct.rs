//! Direct dispatch through a real replica: what the caller gets, what the worker sees, and what the database does not.

use std::time::Duration;

use bytes::Bytes;
use fencepost::proto::producer::producer_service_client::ProducerServiceClient;
use fencepost::proto::producer::{ExecuteRequest, ExecuteResponse};
use fencepost::proto::worker::{
    FailureKind, RefusedReason, Register, Result as Report, Succeeded, Task, result::Outcome,
};
use http_body_util::{BodyExt as _, Full};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use nix::sys::signal::Signal;
use serde_json::{Value, json};
use tokio::io::AsyncWriteExt as _;
use tokio::net::TcpStream;
use tokio::task::JoinHandle;
use tonic::Status;
use tonic::transport::Channel;

use crate::support::scripted_worker::{register, resuming};
use crate::support::tasks::{count, enqueue_many};
use crate::support::{Replica, ScriptedWorker, TestDb, eventually};

const STEP: Duration = Duration::from_secs(20);

/// Waits that tests sit out are short; no test depends on how short.
const SHORT: &[(&str, &str)] = &[
    ("WORKERS__ACCEPT_TIMEOUT", "300ms"),
    ("WORKERS__RECONNECT_GRACE", "500ms"),
    ("TASKS__CANCEL_GRACE", "500ms"),
    ("REPLICA__BEAT", "200ms"),
];

/// A database, and one replica with its callers.
struct Stage {
    replica: Replica,
    test: TestDb,
    callers: Callers,
}

/// Calls one replica over HTTP and gRPC.
#[derive(Clone)]
struct Callers {
    http: String,
    client: Client<HttpConnector, Full<Bytes>>,
    grpc: ProducerServiceClient<Channel>,
}

type Answer = (u16, Value);

impl Stage {
    async fn set(env: &[(&str, &str)]) -> Self {
        let test = TestDb::new().await;
        let env: Vec<_> = SHORT.iter().chain(env).copied().collect();
        let replica = Replica::start(&test.url(), &env).await;
        let channel = Channel::from_shared(replica.url()).unwrap().connect_lazy();
        let callers = Callers {
            http: format!("http://{}/v1/execute", replica.http()),
            client: Client::builder(TokioExecutor::new()).build_http(),
            grpc: ProducerServiceClient::new(channel),
        };
        Self {
            replica,
            test,
            callers,
        }
    }

    async fn worker(&self) -> ScriptedWorker {
        ScriptedWorker::connect(&self.replica.url()).await
    }

    async fn named(&self, identity: &str) -> ScriptedWorker {
        let register = Register {
            identity: identity.into(),
            ..register()
        };
        ScriptedWorker::connect_as(&self.replica.url(), register).await
    }

    /// Starts a call with these members beside queue and type.
    fn call(&self, members: Value) -> JoinHandle<Answer> {
        let callers = self.callers.clone();
        tokio::spawn(async move { callers.call(members).await })
    }

    fn grpc(&self, request: ExecuteRequest) -> JoinHandle<Result<ExecuteResponse, Status>> {
        let mut grpc = self.callers.grpc.clone();
        tokio::spawn(async move { Ok(grpc.execute(request).await?.into_inner()) })
    }

    /// Waits until the states of all requests, in order, are these.
    async fn states(&self, wanted: &[&str]) -> Vec<Value> {
        eventually(STEP, async || {
            let (status, list) = self.callers.ask("GET", String::new()).await;
            assert_eq!(status, 200, "{list}");
            let requests = list["requests"].as_array().unwrap().clone();
            let states: Vec<_> = requests
                .iter()
                .map(|one| one["state"].as_str().unwrap())
                .collect();
            (states == wanted).then_some(requests)
        })
        .await
    }
}

impl Stage {
    /// Calls until a call finds nobody, with this worker at hand for the others.
    async fn until_nothing_goes_to(&self, worker: &mut ScriptedWorker) {
        eventually(STEP, async || {
            let call = self.call(json!({"timeout_ms": 300}));
            // Longer than the call may wait.
            let accepted = tokio::time::timeout(Duration::from_secs(1), worker.accept_next()).await;
            if let Ok(task) = accepted {
                worker.succeed(&task, "1").await;
            }
            (answer(call).await.0 == 504).then_some(())
        })
        .await;
    }
}

impl Callers {
    async fn call(&self, members: Value) -> Answer {
        let mut body = json!({"task_queue": "q", "task_type": "t"});
        body.as_object_mut()
            .unwrap()
            .extend(members.as_object().unwrap().clone());
        self.ask("POST", body.to_string()).await
    }

    async fn ask(&self, method: &str, body: String) -> Answer {
        let request = axum::http::Request::builder()
            .method(method)
            .uri(&self.http)
            .header("content-type", "application/json")
            .body(Full::new(body.into()))
            .unwrap();
        let response = self.client.request(request).await.unwrap();
        let status = response.status().as_u16();
        let body = response.into_body().collect().await.unwrap().to_bytes();
        (status, serde_json::from_slice(&body).unwrap())
    }
}

async fn within<T>(doing: impl Future<Output = T>) -> T {
    tokio::time::timeout(STEP, doing)
        .await
        .expect("it did not come this far")
}

async fn answer(call: JoinHandle<Answer>) -> Answer {
    within(call).await.unwrap()
}

/// Of a problem: status, code and class.
async fn problem(call: JoinHandle<Answer>) -> (u16, String, String) {
    let (status, body) = answer(call).await;
    let text = |name: &str| body[name].as_str().unwrap_or_default().to_owned();
    assert_eq!(body["status"], status, "{body}");
    (status, text("code"), text("class"))
}

fn is(status: u16, code: &str, class: &str) -> (u16, String, String) {
    (status, code.into(), class.into())
}

fn request() -> ExecuteRequest {
    ExecuteRequest {
        task_queue: "q".into(),
        task_type: "t".into(),
        payload: Bytes::from_static(b"null"),
        ..ExecuteRequest::default()
    }
}

fn succeeded(task: &Task, payload: &'static [u8], content_type: &str) -> Report {
    Report {
        token: task.token.clone(),
        outcome: Some(Outcome::Succeeded(Succeeded {
            payload: Bytes::from_static(payload),
            content_type: content_type.into(),
        })),
    }
}

async fn make_default(db: &tokio_postgres::Client) {
    let insert = "insert into fencepost.namespace (name) values ('default') on conflict do nothing";
    db.execute(insert, &[]).await.unwrap();
}

#[tokio::test]
async fn a_caller_gets_what_the_worker_made_of_it() {
    let stage = Stage::set(&[]).await;
    let mut worker = stage.named("w1").await;
    // Byte for byte, and not as a parser would write it again.
    let body = r#"{"task_queue": "q", "task_type": "t", "payload": {"b": 1e2,  "b": [ ] }, "labels": {"a": "b"}, "timeout": "5s"}"#;
    let callers = stage.callers.clone();
    let call = tokio::spawn(async move { callers.ask("POST", body.into()).await });
    let task = worker.accept_next().await;
    assert_eq!(task.payload, r#"{"b": 1e2,  "b": [ ] }"#);
    assert_eq!(task.content_type, "application/json");
    assert_eq!((task.attempt, task.max_attempts, task.fence), (1, 1, 1));
    assert!(task.task_id < 0 && task.token.starts_with(b"d"), "{task:?}");
    assert!((1..=5_000).contains(&task.run_timeout_ms), "{task:?}");
    assert_eq!(task.labels["a"], "b");
    worker.succeed(&task, "{\"sent\": 1}").await;
    worker.recorded(&task).await;
    let expected = json!({
        "payload": {"sent": 1}, "content_type": "application/json", "worker": "w1", "node": null, "deliveries": 1,
    });
    assert_eq!(answer(call).await, (200, expected));

    let call = stage.call(json!({"payload_base64": "/wA="}));
    let second = worker.accept_next().await;
    assert_ne!(second.idempotency_key, task.idempotency_key);
    assert_eq!(second.payload, b"\xff\x00"[..]);
    assert_eq!(second.content_type, "application/octet-stream");
    worker
        .report(vec![succeeded(&second, b"\xfe", "x/y")])
        .await;
    let (status, body) = answer(call).await;
    assert_eq!((status, &body["payload_base64"]), (200, &json!("/g==")));
    assert_eq!(body["content_type"], "x/y");

    let call = stage.grpc(request());
    let third = worker.accept_next().await;
    worker.report(vec![succeeded(&third, b"", "")]).await;
    let reply = within(call).await.unwrap().unwrap();
    assert_eq!((reply.payload.len(), reply.content_type.as_str()), (0, ""));
    assert_eq!((reply.worker.as_str(), reply.deliveries), ("w1", 1));
    stage.states(&[]).await;
}

#[tokio::test]
async fn a_failure_is_told_and_never_tried_again() {
    let stage = Stage::set(&[("LIMITS__RESULT", "1KiB")]).await;
    let mut worker = stage.worker().await;
    let mut last = Bytes::new();
    for (status, code, class) in [
        (422, "FP-123", "boom"),
        (422, "FP-124", "boom"),
        (422, "FP-123", "stopped"),
        (422, "FP-123", "snoozed"),
        (422, "FP-124", "result_invalid"),
        (422, "FP-124", "result_too_large"),
    ] {
        let call = stage.call(json!({}));
        let task = worker.accept_next().await;
        assert_ne!(task.token, last, "another request, not the last one again");
        last = task.token.clone();
        match (code, class) {
            ("FP-123", "boom") => worker.fail(&task, FailureKind::Retryable, "boom").await,
            (_, "boom") => worker.fail(&task, FailureKind::Terminal, "boom").await,
            (_, "stopped") => worker.fail(&task, FailureKind::Cancelled, "x").await,
            (_, "snoozed") => worker.snooze(&task, Duration::ZERO).await,
            (_, "result_invalid") => worker.succeed(&task, "{").await,
            _ => worker.succeed(&task, vec![b'1'; 1025]).await,
        }
        worker.recorded(&task).await;
        assert_eq!(problem(call).await, is(status, code, class));
    }
    let call = stage.grpc(request());
    let task = worker.accept_next().await;
    worker.fail(&task, FailureKind::Retryable, "boom").await;
    let status = within(call).await.unwrap().unwrap_err();
    assert_eq!(status.code(), tonic::Code::Aborted);
    assert_eq!(status.message(), "as the test says");
    let trailer = |name| {
        status
            .metadata()
            .get(name)
            .unwrap()
            .to_str()
            .unwrap()
            .to_owned()
    };
    assert_eq!(trailer("fencepost-code"), "FP-123");
    assert_eq!(trailer("fencepost-class"), "boom");
}

#[tokio::test]
async fn requests_park_visibly_and_are_served_in_order() {
    let stage = Stage::set(&[]).await;
    let mut calls = Vec::new();
    for number in 1..=3 {
        calls.push(stage.call(json!({"payload": number})));
        let parked = stage.states(&vec!["parked"; number]).await;
        assert_eq!(parked[0]["namespace"], "default");
        assert_eq!(parked[0]["task_queue"], "q");
        assert_eq!(parked[0]["worker"], Value::Null);
        assert!(parked[0]["left_ms"].as_u64().unwrap() <= 30_000);
    }
    let mut worker = stage.named("w1").await;
    for (number, call) in (1..).zip(calls) {
        let task = worker.accept_next().await;
        assert_eq!(task.payload, format!("{number}"));
        let mut expected = vec!["running"];
        expected.resize(4 - number, "parked");
        let requests = stage.states(&expected).await;
        assert_eq!(requests[0]["worker"], "w1");
        worker.succeed(&task, task.payload.clone()).await;
        let (status, body) = answer(call).await;
        assert_eq!((status, &body["payload"]), (200, &json!(number)));
    }
    stage.states(&[]).await;
}

#[tokio::test]
async fn the_callers_time_ends_the_wait_and_the_work() {
    let stage = Stage::set(&[("TASKS__CANCEL_GRACE", "20s")]).await;
    let parked = stage.call(json!({"timeout_ms": 100}));
    assert_eq!(problem(parked).await, is(504, "FP-122", ""));
    stage.states(&[]).await;

    let mut worker = stage.worker().await;
    // The way to it is proven once it has had a first one.
    let first = stage.call(json!({}));
    let task = worker.accept_next().await;
    worker.succeed(&task, "0").await;
    worker.recorded(&task).await;
    assert_eq!(answer(first).await.0, 200);
    let running = stage.call(json!({"timeout_ms": 2_000}));
    let task = worker.accept_next().await;
    assert_eq!(problem(running).await, is(504, "FP-109", ""));
    worker.cancelled(&task).await;
    // Its slot is busy until it says that it has stopped.
    let next = stage.call(json!({}));
    stage.states(&["parked"]).await;
    worker.succeed(&task, "1").await;
    worker.superseded(&task).await;
    let second = worker.accept_next().await;
    worker.succeed(&second, "2").await;
    assert_eq!(answer(next).await.0, 200);
}

#[tokio::test]
async fn a_caller_that_goes_away_cancels_its_work() {
    let stage = Stage::set(&[]).await;
    let body = r#"{"task_queue": "q", "task_type": "t"}"#;
    let call = async || {
        let mut connection = TcpStream::connect(stage.replica.http()).await.unwrap();
        let request = format!(
            "POST /v1/execute HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n{body}",
            body.len()
        );
        connection.write_all(request.as_bytes()).await.unwrap();
        connection
    };
    let connection = call().await;
    stage.states(&["parked"]).await;
    drop(connection);
    stage.states(&[]).await;

    let mut worker = stage.worker().await;
    let connection = call().await;
    let task = worker.accept_next().await;
    drop(connection);
    worker.cancelled(&task).await;
    worker
        .fail(&task, FailureKind::Cancelled, "cancelled")
        .await;
    worker.superseded(&task).await;

    let call = stage.grpc(request());
    let task = worker.accept_next().await;
    call.abort();
    worker.cancelled(&task).await;
    // It never reports: its slot is free when the grace is over.
    let last = stage.grpc(request());
    let second = worker.accept_next().await;
    worker.succeed(&second, "1").await;
    assert_eq!(within(last).await.unwrap().unwrap().payload, "1");
}

#[tokio::test]
async fn what_is_lost_after_acceptance_is_not_run_again() {
    let stage = Stage::set(&[]).await;
    let mut first = stage.worker().await;
    let call = stage.call(json!({}));
    let task = first.accept_next().await;
    let _second = stage.worker().await;
    drop(first);
    assert_eq!(problem(call).await, is(500, "FP-125", ""));
    // Nobody had it meanwhile.
    stage.states(&[]).await;
    // Who comes back too late is told to forget it.
    let late = ScriptedWorker::resume(&stage.replica.url(), &[&task]).await;
    assert_eq!(late.welcome.abandoned, [task.token]);
}

#[tokio::test]
async fn a_worker_that_comes_back_in_time_goes_on() {
    let stage = Stage::set(&[("WORKERS__RECONNECT_GRACE", "20s")]).await;
    let mut worker = stage.worker().await;
    let call = stage.call(json!({}));
    let task = worker.accept_next().await;
    drop(worker);
    // A token of another term is nobody's, although the number is the same.
    let mut foreign = task.clone();
    let token = String::from_utf8(task.token.to_vec()).unwrap();
    let (number, rest) = token.split_once('.').unwrap();
    let (term, delivery) = rest.split_once('.').unwrap();
    let other = term.parse::<i32>().unwrap() + 1;
    foreign.token = format!("{number}.{other}.{delivery}").into();
    let mut worker =
        ScriptedWorker::connect_as(&stage.replica.url(), resuming(&[&task, &foreign])).await;
    assert_eq!(worker.welcome.resumed, std::slice::from_ref(&task.token));
    assert_eq!(
        worker.welcome.abandoned,
        std::slice::from_ref(&foreign.token)
    );
    worker.succeed(&foreign, "2").await;
    worker.superseded(&foreign).await;
    worker.succeed(&task, "1").await;
    worker.recorded(&task).await;
    assert_eq!(answer(call).await.1["payload"], 1);
}

#[tokio::test]
async fn what_nobody_has_started_goes_to_another_worker() {
    let stage = Stage::set(&[]).await;
    for reason in [
        RefusedReason::NoSlot,
        RefusedReason::Draining,
        RefusedReason::UnknownType,
    ] {
        let mut first = stage.worker().await;
        let call = stage.call(json!({}));
        let task = first.task().await;
        let mut second = stage.named("second").await;
        first.refuse(&task, reason).await;
        let again = second.accept_next().await;
        assert_eq!(again.idempotency_key, task.idempotency_key);
        assert_eq!(again.fence, 2, "{reason:?}");
        second.succeed(&again, "1").await;
        let (status, body) = answer(call).await;
        assert_eq!(status, 200, "{body}");
        assert_eq!(
            (&body["worker"], &body["deliveries"]),
            (&json!("second"), &json!(2))
        );
        second.drain().await;
        first.drain().await;
    }
    // Silence is no acceptance, and neither is a stream that ends.
    for dies in [false, true] {
        let mut silent = stage.worker().await;
        let call = stage.call(json!({}));
        let task = silent.task().await;
        let mut second = stage.named("second").await;
        let kept = if dies {
            drop(silent);
            None
        } else {
            silent.cancelled(&task).await;
            Some(silent)
        };
        let again = second.accept_next().await;
        second.succeed(&again, "1").await;
        assert_eq!(answer(call).await.1["worker"], "second", "{dies}");
        second.drain().await;
        if let Some(silent) = kept {
            silent.drain().await;
        }
    }
}

#[tokio::test]
async fn a_drain_ends_what_waits_and_lets_run_what_runs() {
    let mut stage = Stage::set(&[("REPLICA__DRAIN_TIMEOUT", "20s")]).await;
    let mut worker = stage.worker().await;
    let running = stage.call(json!({}));
    let task = worker.accept_next().await;
    let parked = stage.call(json!({}));
    stage.states(&["running", "parked"]).await;
    let other = Register {
        task_types: vec!["other".into()],
        ..register()
    };
    let mut idle = ScriptedWorker::connect_as(&stage.replica.url(), other).await;
    stage.replica.signal(Signal::SIGTERM);
    idle.sent_away().await;
    assert_eq!(problem(parked).await, is(503, "FP-121", ""));
    // Nobody else could take the request over, so its worker stays.
    let late = problem(stage.call(json!({})));
    tokio::select! {
        biased;
        _ = worker.sent_away() => panic!("it was sent elsewhere with the request"),
        late = late => assert_eq!(late, is(503, "FP-121", "")),
    }
    worker.succeed(&task, "1").await;
    assert_eq!(answer(running).await.0, 200);
    assert!(
        stage.replica.ended().await.success(),
        "{}",
        stage.replica.log()
    );
}

#[tokio::test]
async fn the_line_has_an_end() {
    let stage = Stage::set(&[("LIMITS__PAYLOAD", "10MiB")]).await;
    let large = || ExecuteRequest {
        payload: vec![b' '; 10 << 20].into(),
        content_type: "text/plain".into(),
        ..request()
    };
    let mut calls = Vec::new();
    for parked in 1..=6 {
        calls.push(stage.grpc(large()));
        stage.states(&vec!["parked"; parked]).await;
    }
    let refused = within(stage.grpc(large())).await.unwrap().unwrap_err();
    assert_eq!(refused.code(), tonic::Code::ResourceExhausted);
    assert_eq!(refused.metadata().get("fencepost-code").unwrap(), "FP-120");
    // Small ones still find room, and so does the next large one once somebody has left.
    let small = stage.call(json!({}));
    stage.states(&["parked"; 7]).await;
    calls.pop().unwrap().abort();
    stage.states(&["parked"; 6]).await;
    calls.push(stage.grpc(large()));
    stage.states(&["parked"; 7]).await;
    // A worker that takes no such frame is told of none; the callers learn it.
    let narrow = Register {
        max_frame_bytes: 4096,
        slots: 10,
        ..register()
    };
    let mut worker = ScriptedWorker::connect_as(&stage.replica.url(), narrow).await;
    let task = worker.accept_next().await;
    worker.succeed(&task, "1").await;
    assert_eq!(answer(small).await.0, 200);
    for call in calls {
        let status = within(call).await.unwrap().unwrap_err();
        assert_eq!(status.metadata().get("fencepost-code").unwrap(), "FP-126");
    }
}

#[tokio::test]
async fn the_tables_are_not_touched() {
    let stage = Stage::set(&[]).await;
    let mut worker = stage.worker().await;
    let mut holder = stage.test.connect().await;
    make_default(&holder).await;
    let call = stage.call(json!({}));
    let task = worker.accept_next().await;
    worker.succeed(&task, "1").await;
    worker.recorded(&task).await;
    assert_eq!(answer(call).await.0, 200);
    // From here on whoever touches any table stands still: the namespace is known, and nothing else is asked.
    let locked = holder.transaction().await.unwrap();
    let tables = "select string_agg(format('fencepost.%I', relname), ', ') from pg_class
        where relnamespace = 'fencepost'::regnamespace and relkind in ('r', 'p') and not relispartition";
    let tables: String = locked.query_one(tables, &[]).await.unwrap().get(0);
    let lock = format!("lock table {tables} in access exclusive mode");
    locked.batch_execute(&lock).await.unwrap();
    let calls: Vec<_> = (0..20)
        .map(|number| stage.call(json!({"payload": number})))
        .collect();
    for _ in 0..20 {
        let task = worker.accept_next().await;
        worker.succeed(&task, task.payload.clone()).await;
        worker.recorded(&task).await;
    }
    for (number, call) in calls.into_iter().enumerate() {
        assert_eq!(answer(call).await.1["payload"], number);
    }
    let failing = stage.call(json!({}));
    let task = worker.accept_next().await;
    worker.fail(&task, FailureKind::Terminal, "boom").await;
    assert_eq!(problem(failing).await, is(422, "FP-124", "boom"));
    locked.rollback().await.unwrap();
    for table in ["task", "live", "outcome", "failure", "dead_letter", "route"] {
        let rows = count(&holder, &format!("select count(*) from fencepost.{table}")).await;
        assert_eq!(rows, 0, "{table}");
    }
}

#[tokio::test]
async fn callers_and_rows_share_a_scarce_slot() {
    const ENDS: usize = 60;
    let stage = Stage::set(&[]).await;
    let db = stage.test.connect().await;
    enqueue_many(&db, 200).await;
    // Always three callers more than slots.
    let callers: Vec<_> = (0..4)
        .map(|_| {
            let callers = stage.callers.clone();
            tokio::spawn(async move { while callers.call(json!({})).await.0 == 200 {} })
        })
        .collect();
    stage.states(&["parked"; 4]).await;
    let mut worker = stage.worker().await;
    let mut direct = 0;
    for _ in 0..ENDS {
        let task = worker.accept_next().await;
        direct += usize::from(task.task_id < 0);
        worker.succeed(&task, "1").await;
        worker.recorded(&task).await;
    }
    for caller in callers {
        caller.abort();
    }
    assert!(
        (ENDS / 4..=ENDS * 3 / 4).contains(&direct),
        "{direct} of {ENDS}"
    );
}

#[tokio::test]
async fn a_backlog_of_rows_does_not_hold_a_caller_up() {
    let stage = Stage::set(&[]).await;
    let db = stage.test.connect().await;
    enqueue_many(&db, 500).await;
    let mut worker = stage.worker().await;
    let task = worker.accept_next().await;
    let call = stage.call(json!({}));
    stage.states(&["parked"]).await;
    worker.succeed(&task, "1").await;
    let mut before = 0;
    loop {
        let task = worker.accept_next().await;
        worker.succeed(&task, "1").await;
        if task.task_id < 0 {
            break;
        }
        before += 1;
    }
    assert_eq!(answer(call).await.0, 200);
    assert!(before <= 1, "{before} rows went first");
}

#[tokio::test]
async fn placement_and_pause_hold_for_what_waits_too() {
    let stage = Stage::set(&[]).await;
    let db = stage.test.connect().await;
    let place = async |placement: &str| {
        let update = format!(
            "update fencepost.namespace set placement = '{placement}' where name = 'default'"
        );
        assert_eq!(db.execute(&update, &[]).await.unwrap(), 1);
    };
    let on = |node: &str| Register {
        node: node.into(),
        identity: format!("on {node}"),
        ..register()
    };
    let url = stage.replica.url();
    make_default(&db).await;
    // It comes before the requirement, which would not let it in.
    let mut b = ScriptedWorker::connect_as(&url, on("b")).await;
    place(r#"{"mode": "require", "nodes": ["a"]}"#).await;
    let waits = stage.call(json!({"payload": 1}));
    let conflicts = stage.call(json!({"payload": 2, "node": "b", "timeout_ms": 300}));
    assert_eq!(problem(conflicts).await, is(504, "FP-122", ""));
    stage.states(&["parked"]).await;
    place(r#"{"mode": "anywhere"}"#).await;
    let task = b.accept_next().await;
    assert_eq!(task.payload, "1");
    b.succeed(&task, "1").await;
    assert_eq!(answer(waits).await.1["node"], "b");

    // Preferred workers first, anybody where none of them is connected here. Settings are taken up one after the other:
    // from the requirement on nothing goes to b before the preference is known.
    place(r#"{"mode": "require", "nodes": ["a"]}"#).await;
    stage.until_nothing_goes_to(&mut b).await;
    let mut a = ScriptedWorker::connect_as(&url, on("a")).await;
    place(r#"{"mode": "prefer", "nodes": ["a"]}"#).await;
    let pause = "select fencepost.pause(namespace => 'default', task_queue => 'q')";
    db.batch_execute(pause).await.unwrap();
    stage.until_nothing_goes_to(&mut a).await;
    let preferred = stage.call(json!({"payload": 3}));
    stage.states(&["parked"]).await;
    let resume = "select fencepost.resume(namespace => 'default', task_queue => 'q')";
    db.batch_execute(resume).await.unwrap();
    let task = a.accept_next().await;
    let spilled = stage.call(json!({"payload": 4}));
    stage.states(&["running", "parked"]).await;
    a.succeed(&task, "1").await;
    assert_eq!(answer(preferred).await.1["worker"], "on a");
    let task = a.accept_next().await;
    a.succeed(&task, "1").await;
    assert_eq!(answer(spilled).await.1["worker"], "on a");
    drop(a);
    let last = stage.call(json!({"payload": 5}));
    let task = b.accept_next().await;
    b.succeed(&task, "1").await;
    assert_eq!(answer(last).await.1["worker"], "on b");
}

#[tokio::test]
async fn what_is_not_valid_is_refused_at_the_door() {
    let stage = Stage::set(&[]).await;
    for (members, code, field) in [
        (json!({"task_queue": null}), "FP-001", "task_queue"),
        (json!({"task_type": "a\nb"}), "FP-001", "task_type"),
        (json!({"node": "x".repeat(201)}), "FP-001", "node"),
        (json!({"payload": "\0"}), "FP-003", "payload"),
        (json!({"content_type": "json"}), "FP-004", "content_type"),
        (json!({"labels": {"a": 1}}), "FP-008", "labels"),
        (json!({"payload_base64": "?"}), "FP-103", "payload_base64"),
        (json!({"timeout": "0s"}), "FP-103", "timeout"),
        (json!({"timeout": "11m"}), "FP-103", "timeout"),
        (
            json!({"timeout": "1s", "timeout_ms": 1}),
            "FP-103",
            "timeout",
        ),
        (json!({"priority": 1}), "FP-102", "priority"),
    ] {
        let (status, body) = stage.callers.call(members.clone()).await;
        assert_eq!(
            (status, &body["code"], &body["field"]),
            (400, &json!(code), &json!(field)),
            "{members}"
        );
    }
    let (status, body) = stage.callers.ask("POST", "[]".into()).await;
    assert_eq!((status, &body["code"]), (400, &json!("FP-101")));
    stage.states(&[]).await;
}
