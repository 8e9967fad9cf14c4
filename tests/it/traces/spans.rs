//! Spans as a collector gets them, from real replicas and real workers.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::time::Duration;

use fencepost::proto::worker::{FailureKind, RefusedReason, Register, Task};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::json;
use tokio::net::{TcpListener, TcpSocket};
use tokio::process::{Child, Command};

use super::{CONTEXT, id, producer, stored, task, with};
use crate::lifecycle::{SHORT, Stage};
use crate::support::collector::{CONSUMER, ERROR, PRODUCER, Span};
use crate::support::queue::assert_sound;
use crate::support::scripted_worker::resuming;
use crate::support::tasks::{DONE, count, ended, enqueue, enqueue_many};
use crate::support::{Collector, Operator, Replica, ScriptedWorker, TestDb, eventually};

const STEP: Duration = Duration::from_secs(40);
/// The trace of [`CONTEXT`], and the span that it names.
const TRACE: &str = "4bf92f3577b34da6a3ce929d0e0e4736";
const CALLER: &str = "00f067aa0ba902b7";

/// A worker accepts, and stops, when its test has come so far, however busy the machine.
const PATIENT: [(&str, &str); 2] = [
    ("WORKERS__ACCEPT_TIMEOUT", "60s"),
    ("TASKS__CANCEL_GRACE", "60s"),
];

async fn traced(collector: &Collector) -> Stage {
    let [accept, stop] = PATIENT;
    Stage::set(&[("TRACING__ENDPOINT", &collector.url()), accept, stop]).await
}

/// A real worker in a process of its own.
fn worker(replica: &Replica, collector: &str, job: &[&str]) -> Child {
    Command::new(env!("CARGO_BIN_EXE_fencepost"))
        .args(["worker", "--connect", &replica.url(), "--slots", "100"])
        .args(["--queue", "q", "--type", "t"])
        .args(["--trace-endpoint", collector])
        .args(job)
        .kill_on_drop(true)
        .spawn()
        .unwrap()
}

/// Enqueues one task over HTTP.
async fn post(stage: &Stage, headers: &[(&str, &str)], more: serde_json::Value) -> i64 {
    let mut body = json!({"task_queue": "q", "task_type": "t"});
    let more = more.as_object().unwrap().clone();
    body.as_object_mut().unwrap().extend(more);
    let operator = Operator::of(&stage.replica);
    let (status, enqueued) = operator
        .call_as(headers, "POST", "/v1/tasks", &body.to_string())
        .await;
    assert_eq!(status, 201, "{enqueued}");
    id(&enqueued["task_id"])
}

fn outcome(span: &Span) -> (&str, i32, &str) {
    assert_eq!(span.at("error.type"), span.status_message);
    (
        span.at("fencepost.outcome"),
        span.status,
        span.at("error.type"),
    )
}

#[tokio::test]
async fn one_trace_goes_from_the_producer_through_the_delivery_to_the_handler() {
    let collector = Collector::start().await;
    let stage = traced(&collector).await;
    let mut process = worker(&stage.replica, &collector.url(), &["--echo"]);
    let more = json!({"payload": {"secret": "payload-of-the-task"}, "labels": {"secret": "label-of-the-task"}});
    let task = post(&stage, &[("traceparent", CONTEXT)], more).await;

    let spans = collector.wait(3, |span| span.trace == TRACE).await;
    let named = |name: &str| {
        let found = spans.iter().find(|span| span.name == name);
        found.unwrap_or_else(|| panic!("no {name}: {spans:#?}"))
    };
    let (enqueue, deliver) = (named("enqueue q"), named("deliver q"));
    let handle = named("handle q");
    assert_eq!((enqueue.kind, enqueue.parent.as_str()), (PRODUCER, CALLER));
    assert_eq!((deliver.kind, &deliver.parent), (CONSUMER, &enqueue.id));
    assert_eq!((handle.kind, &handle.parent), (CONSUMER, &deliver.id));
    assert_eq!(stored(&stage, task).await, Some(enqueue.traceparent()));

    for (span, operation, kind) in [
        (enqueue, "enqueue", "send"),
        (deliver, "deliver", "process"),
        (handle, "handle", "process"),
    ] {
        for (key, value) in [
            ("messaging.system", "fencepost"),
            ("messaging.operation.name", operation),
            ("messaging.operation.type", kind),
            ("messaging.destination.name", "q"),
            ("messaging.message.id", &task.to_string()),
            ("fencepost.task_type", "t"),
        ] {
            assert_eq!(span.at(key), value, "{key} of {span:#?}");
        }
    }
    for span in [deliver, handle] {
        assert_eq!(outcome(span), ("done", 0, ""));
        assert_eq!(span.at("fencepost.namespace"), "default");
        assert_eq!(
            (span.at("fencepost.attempt"), span.at("fencepost.fence")),
            ("1", "1")
        );
    }
    assert_eq!(deliver.events, ["sent", "accepted", "reported"]);
    assert!(!deliver.at("fencepost.worker").is_empty());
    assert!(deliver.nanoseconds > handle.nanoseconds, "{spans:#?}");
    assert_eq!(
        (enqueue.service.as_str(), handle.service.as_str()),
        ("fencepost", "fencepost-worker")
    );
    for secret in ["payload-of-the-task", "label-of-the-task"] {
        assert!(!collector.has_seen(secret), "{secret}");
    }

    // A worker that stops sends what it has.
    let pid = Pid::from_raw(process.id().unwrap().try_into().unwrap());
    kill(pid, Signal::SIGTERM).unwrap();
    let status = tokio::time::timeout(STEP, process.wait()).await.unwrap();
    assert!(status.unwrap().success());
    let operator = Operator::of(&stage.replica);
    let page = eventually(STEP, async || {
        let (page, _) = operator.scrape().await;
        (page.sum("fencepost_spans_exported_total", &[]) >= 2.0).then_some(page)
    })
    .await;
    assert!(page.sum("fencepost_spans_dropped_total", &[]).abs() < 0.5);
}

#[tokio::test]
async fn a_task_that_is_tried_again_has_a_span_for_each_delivery_in_the_same_trace() {
    let collector = Collector::start().await;
    let stage = traced(&collector).await;
    let mut worker = stage.worker().await;
    let mut producer = producer(&stage).await;
    let request = fencepost::proto::producer::EnqueueRequest {
        tasks: vec![task(None)],
    };
    let enqueued = producer.enqueue(with(request, &[])).await.unwrap();
    let id = enqueued.into_inner().tasks[0].task_id;

    let first = worker.accept_next().await;
    worker
        .fail(&first, FailureKind::Retryable, "smtp_busy")
        .await;
    let second = worker.accept_next().await;
    worker.succeed(&second, "{}").await;
    worker.recorded(&first).await;
    worker.recorded(&second).await;

    let enqueue = collector
        .wait(1, |span| span.kind == PRODUCER)
        .await
        .remove(0);
    assert_eq!(enqueue.parent, "", "the producer has sent no context");
    let deliveries = collector.deliveries(id, 2).await;
    for (place, task) in [(0, &first), (1, &second)] {
        let delivery = &deliveries[place];
        assert_eq!(delivery.trace, enqueue.trace);
        assert_eq!(delivery.parent, enqueue.id);
        assert_eq!(task.trace_context, delivery.traceparent());
        let fence = (place + 1).to_string();
        assert_eq!(delivery.at("fencepost.fence"), fence);
        assert_eq!(delivery.at("fencepost.attempt"), fence);
    }
    assert_eq!(outcome(&deliveries[0]), ("retry", ERROR, "smtp_busy"));
    assert_eq!(outcome(&deliveries[1]), ("done", 0, ""));
    assert!(
        !collector.has_seen("as the test says"),
        "what a worker says may hold data"
    );
}

/// Delivers a task and has `act` end that delivery; answers its span.
async fn delivery(
    stage: &Stage,
    collector: &Collector,
    more: &str,
    act: impl AsyncFnOnce(ScriptedWorker, Task),
) -> Span {
    let id = enqueue(&stage.db, more).await;
    let mut worker = stage.worker().await;
    let task = worker.task().await;
    assert_eq!(task.task_id, id);
    act(worker, task).await;
    let span = collector.deliveries(id, 1).await.remove(0);
    // It is nobody's business any more.
    stage
        .db
        .execute("delete from fencepost.live where id = $1", &[&id])
        .await
        .unwrap();
    span
}

#[tokio::test]
async fn each_way_that_a_delivery_ends_ends_its_span_with_that() {
    let collector = Collector::start().await;
    let stage = traced(&collector).await;

    let refused = delivery(&stage, &collector, "", async |worker, task| {
        worker.refuse(&task, RefusedReason::Draining).await;
    });
    let refused = refused.await;
    assert_eq!(outcome(&refused), ("release", 0, ""));
    assert_eq!(refused.events, ["sent"]);
    assert_eq!(
        refused.parent, "",
        "tasks from SQL begin a trace where they are delivered"
    );

    let terminal = delivery(&stage, &collector, "", async |mut worker, task| {
        worker.accept(&[&task]).await;
        worker
            .fail(&task, FailureKind::Terminal, "no_such_user")
            .await;
        worker.recorded(&task).await;
    });
    assert_eq!(outcome(&terminal.await), ("failed", ERROR, "no_such_user"));

    let lost = delivery(&stage, &collector, "", async |worker, task| {
        worker.accept(&[&task]).await;
        // So that it is seen to be accepted before the stream ends.
        worker.answers_pings(1).await;
        drop(worker);
    });
    let lost = lost.await;
    assert_eq!(outcome(&lost), ("retry_at_once", ERROR, "connection_lost"));

    let limit = "run_timeout => interval '200 ms'";
    let late = delivery(&stage, &collector, limit, async |mut worker, task| {
        worker.accept(&[&task]).await;
        worker.cancelled(&task).await;
    });
    assert_eq!(outcome(&late.await), ("time_out", ERROR, "run_timeout"));

    let snoozed = delivery(&stage, &collector, "", async |mut worker, task| {
        worker.accept(&[&task]).await;
        worker.snooze(&task, Duration::from_secs(3600)).await;
        worker.recorded(&task).await;
    });
    assert_eq!(outcome(&snoozed.await), ("snooze", 0, ""));

    let cancelled = delivery(&stage, &collector, "", async |mut worker, task| {
        worker.accept(&[&task]).await;
        let operator = Operator::of(&stage.replica);
        let path = format!("/v1/tasks/{}/cancel", task.task_id);
        operator.change("POST", &path, "").await;
        worker.cancelled(&task).await;
        worker.fail(&task, FailureKind::Cancelled, "").await;
        worker.recorded(&task).await;
    });
    assert_eq!(outcome(&cancelled.await), ("cancelled", 0, ""));

    let accepted = "settle => 'accepted'";
    let accepted = delivery(&stage, &collector, accepted, async |worker, task| {
        worker.accept(&[&task]).await;
        ended(&stage.db, task.task_id).await;
    });
    let accepted = accepted.await;
    assert_eq!(outcome(&accepted), ("done", 0, ""));
    assert_eq!(accepted.events, ["sent", "accepted"]);

    let elsewhere = delivery(&stage, &collector, "", async |mut worker, task| {
        worker.accept(&[&task]).await;
        // Another delivery of the same attempt is on its way.
        let moved = "update fencepost.live set fence = fence + 1, epoch = epoch + 1 where id = $1";
        stage.db.execute(moved, &[&task.task_id]).await.unwrap();
        worker.succeed(&task, "{}").await;
        worker.superseded(&task).await;
    });
    assert_eq!(outcome(&elsewhere.await), ("superseded", 0, ""));
}

#[tokio::test]
async fn a_delivery_that_nobody_accepts_fails_and_says_so() {
    let collector = Collector::start().await;
    let stage = Stage::set(&[("TRACING__ENDPOINT", &collector.url())]).await;
    let silent = delivery(&stage, &collector, "", async |mut worker, task| {
        worker.cancelled(&task).await;
    });
    assert_eq!(
        outcome(&silent.await),
        ("not_accepted", ERROR, "not_accepted")
    );
}

#[tokio::test]
async fn a_delivery_that_moves_to_another_replica_is_left_here_and_adopted_there() {
    let (collector, test) = (Collector::start().await, TestDb::new().await);
    let endpoint = collector.url();
    let env: Vec<_> = SHORT
        .iter()
        .copied()
        .chain(PATIENT)
        .chain([("TRACING__ENDPOINT", endpoint.as_str())])
        .collect();
    let mut first = Replica::start(&test.url(), &env).await;
    let second = Replica::start(&test.url(), &env).await;
    let db = test.connect().await;
    let mut worker = ScriptedWorker::connect(&first.url()).await;
    let options = format!("options => '{{\"trace_context\": \"{CONTEXT}\"}}'");
    let id = enqueue(&db, &options).await;
    let task = worker.accept_next().await;

    first.signal(Signal::SIGTERM);
    worker.sent_away().await;
    let held: [&Task; 1] = [&task];
    let back = Register {
        slots: 1,
        ..resuming(&held)
    };
    let mut back = ScriptedWorker::connect_as(&second.url(), back).await;
    assert_eq!(back.welcome.resumed.len(), 1);
    drop(worker);
    // The first one has sent its last spans before it ended.
    assert!(first.ended().await.success());
    let left = collector.spans();
    let [left] = &left[..] else {
        panic!("{left:#?}")
    };
    assert_eq!(outcome(left), ("left", 0, ""));
    assert_eq!(left.events, ["sent", "accepted"]);
    back.succeed(&task, "{}").await;
    back.recorded(&task).await;
    let deliveries = collector.deliveries(id, 2).await;
    let adopted = &deliveries[1];
    assert_eq!(outcome(adopted), ("done", 0, ""));
    assert_eq!(adopted.events, ["adopted", "reported"]);
    for delivery in &deliveries {
        assert_eq!(
            (delivery.trace.as_str(), delivery.parent.as_str()),
            (TRACE, CALLER)
        );
        assert_eq!(delivery.at("fencepost.fence"), "1");
    }
}

#[tokio::test]
async fn a_batch_is_one_span_and_a_refusal_fails_with_its_code() {
    let collector = Collector::start().await;
    let stage = traced(&collector).await;
    let operator = Operator::of(&stage.replica);
    let one = json!({"task_queue": "q", "task_type": "t"});
    let batch = json!([one, one, {"task_queue": "q", "task_type": "other"}]).to_string();
    let (status, enqueued) = operator.call("POST", "/v1/tasks", &batch).await;
    assert_eq!(status, 201, "{enqueued}");
    let producers = collector.wait(1, |span| span.kind == PRODUCER).await;
    let batch = &producers[0];
    assert_eq!(batch.name, "enqueue q");
    assert_eq!(batch.at("messaging.batch.message_count"), "3");
    assert_eq!(
        (
            batch.at("messaging.message.id"),
            batch.at("fencepost.task_type")
        ),
        ("", ""),
        "not the same for all"
    );
    for place in 0..3 {
        let id = id(&enqueued[place]["task_id"]);
        assert_eq!(stored(&stage, id).await, Some(batch.traceparent()));
    }

    let wrong = r#"{"task_queue": "refused", "task_type": "t", "priority": 9}"#;
    let (status, problem) = operator.call("POST", "/v1/tasks", wrong).await;
    assert_eq!(status, 400, "{problem}");
    let refused = collector
        .wait(1, |span| span.name == "enqueue refused")
        .await;
    assert_eq!(refused[0].status, ERROR);
    assert_eq!(
        refused[0].at("error.type"),
        problem["code"].as_str().unwrap()
    );

    let workflow = json!({"name": "w", "members": [one, one]}).to_string();
    let (status, started) = operator.call("POST", "/v1/workflows", &workflow).await;
    assert_eq!(status, 201, "{started}");
    let staged = collector
        .wait(1, |span| span.name == "start_workflow q")
        .await;
    let member = id(&started["task_ids"][1]);
    assert_eq!(stored(&stage, member).await, Some(staged[0].traceparent()));
}

#[tokio::test]
async fn what_is_not_sampled_is_not_exported_and_says_so_to_the_worker() {
    let collector = Collector::start().await;
    let stage = Stage::set(&[
        ("TRACING__ENDPOINT", &collector.url()),
        ("TRACING__SAMPLE_RATIO", "0"),
        ("TRACING__SERVICE_NAME", "mail-dispatch"),
        PATIENT[0],
    ])
    .await;
    let mut worker = stage.wide_worker(3).await;
    let from_sql = enqueue(&stage.db, "").await;
    let task = worker.accept_next().await;
    assert_eq!(task.task_id, from_sql);
    assert!(
        task.trace_context.ends_with("-00"),
        "{}",
        task.trace_context
    );
    worker.succeed(&task, "{}").await;
    let from_http = post(&stage, &[], json!({})).await;
    let task = worker.accept_next().await;
    let carried = stored(&stage, from_http).await.unwrap();
    assert!(carried.ends_with("-00"), "{carried}");
    assert_eq!(task.trace_context[..35], carried[..35], "the same trace");
    worker.succeed(&task, "{}").await;

    // Whoever has begun a trace decides.
    let sampled = post(&stage, &[("traceparent", CONTEXT)], json!({})).await;
    let task = worker.accept_next().await;
    assert_eq!(task.task_id, sampled);
    worker.succeed(&task, "{}").await;
    collector.deliveries(sampled, 1).await;
    let spans = collector.wait(2, |_| true).await;
    let traces: BTreeSet<&str> = spans.iter().map(|span| span.trace.as_str()).collect();
    assert_eq!(traces, BTreeSet::from([TRACE]));
    assert!(spans.iter().all(|span| span.service == "mail-dispatch"));
}

/// Has a replica do tasks whose spans go to this address, and stop.
async fn works_without(collector: SocketAddr) {
    let endpoint = format!("http://{collector}");
    let [accept, stop] = PATIENT;
    let mut stage = Stage::set(&[("TRACING__ENDPOINT", &endpoint), accept, stop]).await;
    let _worker = worker(&stage.replica, &endpoint, &["--echo"]);
    enqueue_many(&stage.db, 1000).await;
    let posted = post(&stage, &[("traceparent", CONTEXT)], json!({})).await;
    let done = "select count(*) from fencepost.outcome where state = 1";
    eventually(STEP, async || {
        (count(&stage.db, done).await == 1001).then_some(())
    })
    .await;
    assert_eq!(ended(&stage.db, posted).await.state, DONE);
    let losses = "select count(*) from fencepost.failure";
    assert_eq!(count(&stage.db, losses).await, 0);
    assert_sound(&stage.test.pool().get().await.unwrap()).await;
    // Spans are lost, which is counted, and said once.
    let operator = Operator::of(&stage.replica);
    eventually(STEP, async || {
        let (page, _) = operator.scrape().await;
        (page.sum("fencepost_spans_dropped_total", &[]) > 0.0).then_some(())
    })
    .await;
    let said = |replica: &Replica| replica.said("spans are not exported and are dropped");
    eventually(STEP, async || (said(&stage.replica) > 0).then_some(())).await;
    assert!(stage.replica.terminate().await.success());
    assert_eq!(said(&stage.replica), 1);
}

#[tokio::test]
async fn a_collector_that_is_not_there_delays_nothing_and_loses_nothing() {
    // Bound, so that nobody else gets the port, and never listened at.
    let socket = TcpSocket::new_v4().unwrap();
    socket.bind("127.0.0.1:0".parse().unwrap()).unwrap();
    works_without(socket.local_addr().unwrap()).await;
}

#[tokio::test]
async fn a_collector_that_hangs_delays_nothing_and_loses_nothing() {
    // Connections are taken by the kernel, and nobody ever answers.
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    works_without(listener.local_addr().unwrap()).await;
    drop(listener);
}

#[tokio::test]
async fn headers_for_the_collector_come_from_the_conventional_variable_and_are_never_shown() {
    let collector = Collector::start().await;
    let test = TestDb::new().await;
    let ran = Command::new(env!("CARGO_BIN_EXE_fencepost"))
        .args(["config", "show"])
        .env("DATABASE_URL", test.url())
        .env("FENCEPOST_TRACING__ENDPOINT", collector.url())
        .env(
            "OTEL_EXPORTER_OTLP_HEADERS",
            "authorization=Bearer%20hunter2",
        )
        .output()
        .await
        .unwrap();
    let shown = String::from_utf8(ran.stdout).unwrap();
    assert!(shown.contains(&collector.url()), "{shown}");
    assert!(!shown.contains("hunter2"), "{shown}");

    let stage = traced(&collector).await;
    let mut process = Command::new(env!("CARGO_BIN_EXE_fencepost"))
        .args(["worker", "--connect", &stage.replica.url()])
        .args(["--queue", "q", "--type", "t", "--echo"])
        .args([
            "--trace-endpoint",
            &format!("{}/v1/traces/", collector.url()),
        ])
        .env(
            "OTEL_EXPORTER_OTLP_HEADERS",
            "authorization=Bearer%20hunter2",
        )
        .kill_on_drop(true)
        .spawn()
        .unwrap();
    enqueue(&stage.db, "").await;
    collector.wait(1, |span| span.name == "handle q").await;
    assert!(
        collector
            .authorizations()
            .contains(&"Bearer hunter2".to_owned())
    );
    process.kill().await.unwrap();
}
