//! Trace contexts that come in with a request, with and without the feature `otel`; the spans are in `spans`.

#[cfg(feature = "otel")]
mod spans;

use fencepost::proto::producer::producer_service_client::ProducerServiceClient;
use fencepost::proto::producer::{
    AddMembersRequest, EnqueueRequest, NewTask, StartWorkflowRequest,
};
use serde_json::json;
use tonic::Request;
use tonic::transport::Channel;

use crate::lifecycle::Stage;
use crate::support::Operator;

/// A context as the W3C's recommendation has it.
pub const CONTEXT: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";

/// What a task carries in the database.
async fn stored(stage: &Stage, id: i64) -> Option<String> {
    let select = "select options::jsonb ->> 'trace_context' from fencepost.task where id = $1";
    stage.db.query_one(select, &[&id]).await.unwrap().get(0)
}

fn id(value: &serde_json::Value) -> i64 {
    value.as_str().unwrap().parse().unwrap()
}

fn task(options: Option<&str>) -> NewTask {
    NewTask {
        task_queue: "q".into(),
        task_type: "t".into(),
        payload: "null".into(),
        options: options.map(str::to_owned),
        ..NewTask::default()
    }
}

async fn producer(stage: &Stage) -> ProducerServiceClient<Channel> {
    let door = Channel::from_shared(stage.replica.url()).unwrap();
    ProducerServiceClient::new(door.connect().await.unwrap())
}

/// A call with these contexts in its metadata.
fn with<T>(message: T, contexts: &[&str]) -> Request<T> {
    let mut request = Request::new(message);
    for context in contexts {
        let context = context.parse().unwrap();
        request.metadata_mut().append("traceparent", context);
    }
    request
}

#[tokio::test]
async fn a_context_that_comes_with_a_request_travels_with_its_tasks() {
    let stage = Stage::set(&[]).await;
    let operator = Operator::of(&stage.replica);
    let mut worker = stage.wide_worker(10).await;
    let body = json!([
        {"task_queue": "q", "task_type": "t"},
        {"task_queue": "q", "task_type": "t", "options": {"dedupe_for_ms": 1000}, "dispatch_key": "k"},
        {"task_queue": "q", "task_type": "t", "options": {"trace_context": "its own"}},
    ]);
    let (status, enqueued) = operator
        .call_as(
            &[("traceparent", CONTEXT)],
            "POST",
            "/v1/tasks",
            &body.to_string(),
        )
        .await;
    assert_eq!(status, 201, "{enqueued}");
    for (place, expected) in [(0, CONTEXT), (1, CONTEXT), (2, "its own")] {
        let id = id(&enqueued[place]["task_id"]);
        assert_eq!(stored(&stage, id).await.as_deref(), Some(expected));
    }
    let mut carried = Vec::new();
    for _ in 0..3 {
        carried.push(worker.accept_next().await.trace_context);
    }
    carried.sort_unstable();
    assert_eq!(carried, [CONTEXT, CONTEXT, "its own"]);

    let mut producer = producer(&stage).await;
    let request = EnqueueRequest {
        tasks: vec![task(None), task(Some(r#"{"trace_context": "its own"}"#))],
    };
    let enqueued = producer.enqueue(with(request, &[CONTEXT])).await.unwrap();
    let enqueued = enqueued.into_inner().tasks;
    for (place, expected) in [(0, CONTEXT), (1, "its own")] {
        let id = enqueued[place].task_id;
        assert_eq!(stored(&stage, id).await.as_deref(), Some(expected));
    }
}

#[tokio::test]
async fn a_context_that_is_not_valid_is_ignored() {
    let stage = Stage::set(&[]).await;
    let operator = Operator::of(&stage.replica);
    let other = CONTEXT.replace("4bf9", "5bf9");
    let upper = CONTEXT.to_uppercase();
    let invalid: [&[&str]; 5] = [
        &[],
        &["nonsense"],
        &[&upper],
        &["00-00000000000000000000000000000000-00f067aa0ba902b7-01"],
        // Nobody knows which one is right.
        &[CONTEXT, &other],
    ];
    let mut producer = producer(&stage).await;
    for contexts in invalid {
        let headers: Vec<_> = contexts.iter().map(|one| ("traceparent", *one)).collect();
        let body = r#"{"task_queue": "q", "task_type": "t"}"#;
        let (status, enqueued) = operator.call_as(&headers, "POST", "/v1/tasks", body).await;
        assert_eq!(status, 201, "{enqueued}");
        let by_http = id(&enqueued["task_id"]);
        let request = EnqueueRequest {
            tasks: vec![task(None)],
        };
        let enqueued = producer.enqueue(with(request, contexts)).await.unwrap();
        for id in [by_http, enqueued.into_inner().tasks[0].task_id] {
            assert_eq!(stored(&stage, id).await, None, "{contexts:?}");
        }
    }
    // Of a later version the part that is known goes on.
    let later = CONTEXT.replacen("00", "cc", 1) + "-and-more";
    let body = r#"{"task_queue": "q", "task_type": "t"}"#;
    let headers = [("traceparent", later.as_str())];
    let (_, enqueued) = operator.call_as(&headers, "POST", "/v1/tasks", body).await;
    let stored = stored(&stage, id(&enqueued["task_id"])).await;
    assert_eq!(stored.as_deref(), Some(CONTEXT));
}

#[tokio::test]
async fn options_that_the_database_refuses_are_refused_as_without_a_context() {
    let stage = Stage::set(&[]).await;
    let operator = Operator::of(&stage.replica);
    for options in ["[]", "7", r#"{"nonsense": 1}"#, r#"{"max_losses": "many"}"#] {
        let body = format!(r#"{{"task_queue": "q", "task_type": "t", "options": {options}}}"#);
        let plain = operator.call("POST", "/v1/tasks", &body).await;
        let traced = operator
            .call_as(&[("traceparent", CONTEXT)], "POST", "/v1/tasks", &body)
            .await;
        assert_eq!(plain.0, 400, "{options}: {}", plain.1);
        assert_eq!(plain, traced, "{options}");
    }
}

#[tokio::test]
async fn members_of_workflows_carry_the_context_too() {
    let stage = Stage::set(&[]).await;
    let operator = Operator::of(&stage.replica);
    let headers = [("traceparent", CONTEXT)];
    let member = json!({"task_queue": "q", "task_type": "t"});
    let body = json!({"name": "w", "members": [member]}).to_string();
    let (status, started) = operator
        .call_as(&headers, "POST", "/v1/workflows", &body)
        .await;
    assert_eq!(status, 201, "{started}");
    let path = format!(
        "/v1/workflows/{}/members",
        started["workflow_id"].as_str().unwrap()
    );
    let body = json!({"members": [member]}).to_string();
    let (status, added) = operator.call_as(&headers, "POST", &path, &body).await;
    assert_eq!(status, 201, "{added}");
    let mut members = vec![id(&started["task_ids"][0]), id(&added["task_ids"][0])];

    let mut producer = producer(&stage).await;
    let request = StartWorkflowRequest {
        name: "w".into(),
        members: vec![task(None)],
        ..StartWorkflowRequest::default()
    };
    let started = producer.start_workflow(with(request, &[CONTEXT])).await;
    let started = started.unwrap().into_inner();
    members.extend(started.task_ids);
    let request = AddMembersRequest {
        workflow_id: started.workflow_id,
        members: vec![task(None)],
    };
    let added = producer.add_members(with(request, &[CONTEXT])).await;
    members.extend(added.unwrap().into_inner().task_ids);
    assert_eq!(members.len(), 4);
    for id in members {
        assert_eq!(stored(&stage, id).await.as_deref(), Some(CONTEXT));
    }
}

#[tokio::test]
async fn a_program_says_at_its_start_whether_it_can_export_spans() {
    let run = |args: &'static [&'static str], endpoint: &'static str| async move {
        let ran = tokio::process::Command::new(env!("CARGO_BIN_EXE_fencepost"))
            .args(args)
            .env("DATABASE_URL", "postgres://app@127.0.0.1:1/app")
            .env("FENCEPOST_TRACING__ENDPOINT", endpoint)
            .output()
            .await
            .unwrap();
        (ran.status.code(), String::from_utf8(ran.stderr).unwrap())
    };
    let check = &["config", "check"];
    for wrong in [
        "localhost:4318",
        "ftp://host",
        "http://user:word@host",
        "http://host?a=b",
    ] {
        let (code, said) = run(check, wrong).await;
        assert_eq!(code, Some(2), "{wrong}: {said}");
        assert!(
            said.contains("FENCEPOST_TRACING__ENDPOINT: tracing.endpoint"),
            "{said}"
        );
        assert!(said.contains("must be a URL such as"), "{said}");
    }
    let worker = &["worker", "--queue", "q", "--type", "t", "--echo"];
    let (code, said) = run(worker, "localhost:4318").await;
    assert_eq!(code, Some(2), "{said}");
    assert!(said.contains("--trace-endpoint must be a URL"), "{said}");
    assert_eq!(run(check, "").await.0, Some(0), "none is none");
    let (code, said) = run(check, "http://127.0.0.1:4318").await;
    if cfg!(feature = "otel") {
        assert_eq!((code, said.as_str()), (Some(0), ""));
        return;
    }
    let sentence = "FENCEPOST_TRACING__ENDPOINT: tracing.endpoint needs a program that is built with traces: this one \
                    is without the cargo feature `otel`";
    assert_eq!(code, Some(2));
    assert!(said.contains(sentence), "{said}");
    for command in [&["serve"][..], worker] {
        let (code, said) = run(command, "http://127.0.0.1:4318").await;
        assert_eq!(code, Some(2), "{said}");
        assert!(
            said.contains("the cargo feature `otel`") || said.contains("the feature `otel`"),
            "{said}"
        );
    }
}

#[tokio::test]
async fn a_command_finds_the_context_in_its_environment() {
    let stage = Stage::set(&[]).await;
    let operator = Operator::of(&stage.replica);
    let _worker = tokio::process::Command::new(env!("CARGO_BIN_EXE_fencepost"))
        .args(["worker", "--connect", &stage.replica.url()])
        .args([
            "--queue",
            "q",
            "--type",
            "t",
            "--exec",
            "printf %s \"$TRACEPARENT\"",
        ])
        // Nothing to its tasks.
        .env("TRACEPARENT", CONTEXT.replace('4', "5"))
        .kill_on_drop(true)
        .spawn()
        .unwrap();
    for (headers, expected) in [(&[("traceparent", CONTEXT)][..], CONTEXT), (&[], "")] {
        let body = r#"{"task_queue": "q", "task_type": "t"}"#;
        let (_, enqueued) = operator.call_as(headers, "POST", "/v1/tasks", body).await;
        let path = format!("/v1/tasks/{}/wait", enqueued["task_id"].as_str().unwrap());
        let ended = operator.get(&path).await;
        assert_eq!(ended["state"], "done", "{ended}");
        let id = id(&enqueued["task_id"]);
        let ended = crate::support::tasks::ended(&stage.db, id).await;
        assert_eq!(ended.result.unwrap_or_default(), expected);
    }
}
