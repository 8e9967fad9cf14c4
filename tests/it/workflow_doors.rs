//! Workflows through the other doors: HTTP, gRPC and the command line.

use fencepost::proto::producer::{
    AddMembersRequest, GetWorkflowRequest, NewTask, OrderWorkflowRequest, StartWorkflowRequest,
};
use serde_json::{Value, json};

use crate::support::Producers;

fn member(payload: &str) -> NewTask {
    NewTask {
        task_queue: "q".into(),
        task_type: "t".into(),
        payload: payload.to_owned().into_bytes().into(),
        ..NewTask::default()
    }
}

fn id(value: &Value) -> i64 {
    value.as_str().unwrap().parse().unwrap()
}

#[tokio::test]
async fn a_workflow_lives_over_http() {
    let producers = Producers::start().await;
    let body = json!({
        "name": "nightly", "mode": "all", "workflow_key": "k", "by": "olga",
        "members": [
            {"task_queue": "q", "task_type": "t", "payload": {"n": 1}},
            {"task_queue": "q", "task_type": "t", "payload_base64": "AP8=", "priority": 0},
        ],
        "continuation": {"task_queue": "q", "task_type": "sum"},
    })
    .to_string();
    let started = producers.post("/v1/workflows", body.clone()).await;
    assert_eq!(started.status, 201, "{started:?}");
    let started = started.json();
    let again = producers.post("/v1/workflows", body).await;
    assert_eq!(
        (again.status, again.json()["created"].clone()),
        (200, false.into())
    );
    assert_eq!(again.json()["task_ids"], started["task_ids"]);
    let path = format!("/v1/workflows/{}", started["workflow_id"].as_str().unwrap());

    let shown = producers.get(&path).await.json();
    assert_eq!(
        (&shown["state"], &shown["members"]["total"]),
        (&"running".into(), &2.into())
    );
    assert!(shown["paused"].is_null());
    let added = producers
        .post(
            &format!("{path}/members"),
            r#"{"members": [{"task_queue": "q", "task_type": "t"}]}"#,
        )
        .await;
    assert_eq!(added.status, 201, "{added:?}");
    let paused = producers
        .post(
            &format!("{path}/pause"),
            r#"{"by": "olga", "reason": "rain"}"#,
        )
        .await;
    assert_eq!(paused.json()["paused"]["reason"], "rain");
    let members = producers
        .get(&format!("{path}/members?after=1"))
        .await
        .json();
    let members = members["members"].as_array().unwrap().clone();
    assert_eq!(members.len(), 2);
    assert!(
        members.iter().all(|member| member["state"] == "held"),
        "{members:?}"
    );
    let resumed = producers.post(&format!("{path}/resume"), "").await;
    assert_eq!(
        (resumed.status, resumed.json()["paused"].clone()),
        (200, Value::Null)
    );

    // A member that is cancelled by itself counts as its end.
    let first = id(&started["task_ids"][0]);
    producers
        .post(&format!("/v1/tasks/{first}/cancel"), "")
        .await;
    assert_eq!(producers.get(&path).await.json()["members"]["cancelled"], 1);
    let again = producers
        .post(&format!("{path}/re-run"), r#"{"members": "all"}"#)
        .await
        .json();
    assert_eq!(
        (&again["run_number"], &again["members"]["total"]),
        (&2.into(), &3.into())
    );
    let before = producers
        .get(&format!(
            "{path}?run={}",
            started["run_id"].as_str().unwrap()
        ))
        .await
        .json();
    assert_eq!(
        (&before["state"], &before["members"]["unfinished"]),
        (&"cancelled".into(), &0.into())
    );
    let over = producers.post(&format!("{path}/cancel"), "").await.json();
    assert_eq!(
        (&over["state"], &over["members"]["cancelled"]),
        (&"cancelled".into(), &3.into())
    );

    let kinds: Vec<String> = producers
        .get(&format!("{path}/events?limit=3"))
        .await
        .json()["events"]
        .as_array()
        .unwrap()
        .iter()
        .map(|event| event["kind"].as_str().unwrap().to_owned())
        .collect();
    assert_eq!(kinds, ["rerun", "staged", "ended"]);
    let listed = producers
        .get("/v1/workflows?state=cancelled&name=nightly")
        .await
        .json();
    assert_eq!(listed["workflows"].as_array().unwrap().len(), 2);
    assert_eq!(listed["next"], Value::Null);
    let page = producers.get("/v1/workflows?limit=1").await.json();
    let rest = producers
        .get(&format!(
            "/v1/workflows?before={}",
            page["next"].as_str().unwrap()
        ))
        .await;
    assert_eq!(rest.json()["workflows"][0]["run_id"], started["run_id"]);
}

#[tokio::test]
async fn each_door_refuses_the_same_workflows() {
    let mut producers = Producers::start().await;
    let task = |more: &str| format!(r#"{{"task_queue": "q", "task_type": "t"{more}}}"#);
    for (body, status, code, field) in [
        (r#"{"mode": "some"}"#.to_owned(), 400, "FP-030", "mode"),
        (r#"{"members": {}}"#.to_owned(), 400, "FP-103", "members"),
        (r#"{"members": 3}"#.to_owned(), 400, "FP-103", "members"),
        (r#"{"tasks": []}"#.to_owned(), 400, "FP-102", "tasks"),
        (
            r#"{"continuation": []}"#.to_owned(),
            400,
            "FP-033",
            "continuation",
        ),
        (r#"{"continuation": {"#.to_owned(), 400, "FP-101", ""),
        (
            format!(
                r#"{{"members": [{}, {}]}}"#,
                task(""),
                task(r#", "priority": 9"#)
            ),
            400,
            "FP-006",
            "priority",
        ),
        (
            format!(r#"{{"members": [{}]}}"#, task(r#", "namespace": "n""#)),
            400,
            "FP-103",
            "namespace",
        ),
        (
            format!(r#"{{"members": [{}]}}"#, task(r#", "speed": 1"#)),
            400,
            "FP-102",
            "speed",
        ),
    ] {
        let problem = producers
            .post("/v1/workflows", body.clone())
            .await
            .problem();
        assert_eq!(
            problem,
            (status, code.to_owned(), field.to_owned()),
            "{body}"
        );
    }
    for (method, path, code) in [
        ("GET", "/v1/workflows/7", "FP-032"),
        ("GET", "/v1/workflows/7/events", "FP-032"),
        ("POST", "/v1/workflows/7/pause", "FP-032"),
        ("POST", "/v1/workflows/7/dance", "FP-106"),
        ("GET", "/v1/workflows/x", "FP-103"),
    ] {
        let problem = producers
            .request(method, path, "application/json", "")
            .await
            .problem();
        assert_eq!(problem.1, code, "{path}");
    }
    let status = producers
        .grpc
        .start_workflow(StartWorkflowRequest {
            members: vec![member("1"), member("{")],
            ..StartWorkflowRequest::default()
        })
        .await
        .unwrap_err();
    assert_eq!(status.metadata().get("fencepost-code").unwrap(), "FP-003");
    assert!(status.message().starts_with("task 2: "), "{status}");
    let refused = producers
        .command(&["workflow", "start", "-"], br#"{"mode": "some"}"#)
        .await;
    assert_eq!(refused.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&refused.stderr).contains("FP-030"));
    let refused = producers.command(&["workflow", "show", "7"], b"").await;
    assert!(String::from_utf8_lossy(&refused.stderr).contains("FP-032"));
}

#[tokio::test]
async fn a_workflow_lives_over_grpc() {
    let mut producers = Producers::start().await;
    let started = producers
        .grpc
        .start_workflow(StartWorkflowRequest {
            mode: "race".into(),
            name: "first".into(),
            paused: true,
            by: "olga".into(),
            continuation: Some(r#"{"task_queue": "q", "task_type": "next"}"#.into()),
            members: vec![member("1"), member("2")],
            ..StartWorkflowRequest::default()
        })
        .await
        .unwrap()
        .into_inner();
    assert!(started.created);
    let workflow_id = started.workflow_id;
    let added = producers
        .grpc
        .add_members(AddMembersRequest {
            workflow_id,
            members: vec![member("3")],
        })
        .await
        .unwrap()
        .into_inner();
    assert_eq!((added.run_id, added.task_ids.len()), (started.run_id, 1));
    let request = GetWorkflowRequest {
        workflow_id,
        run_id: None,
    };
    let shown = producers
        .grpc
        .get_workflow(request)
        .await
        .unwrap()
        .into_inner();
    assert_eq!(
        (shown.members, shown.state.as_str(), shown.mode.as_str()),
        (3, "running", "race")
    );
    assert!(shown.paused.contains("olga"));
    let order = |action: &str| OrderWorkflowRequest {
        workflow_id,
        action: action.into(),
        ..OrderWorkflowRequest::default()
    };
    let again = producers
        .grpc
        .order_workflow(order("re-run"))
        .await
        .unwrap()
        .into_inner();
    assert_eq!((again.run_number, again.members), (2, 3));
    assert!(again.paused.is_empty());
    let over = producers
        .grpc
        .order_workflow(order("cancel"))
        .await
        .unwrap()
        .into_inner();
    assert_eq!((over.state.as_str(), over.cancelled), ("cancelled", 3));
    let refused = producers
        .grpc
        .order_workflow(order("dance"))
        .await
        .unwrap_err();
    assert_eq!(refused.metadata().get("fencepost-field").unwrap(), "action");
}

#[tokio::test]
async fn a_workflow_lives_on_the_command_line() {
    let producers = Producers::start().await;
    let run = async |args: &[&str], stdin: &str| {
        let output = producers.command(args, stdin.as_bytes()).await;
        assert!(output.status.success(), "{args:?}: {output:?}");
        String::from_utf8(output.stdout).unwrap()
    };
    let staged = r#"{"name": "nightly", "members": [{"task_queue": "q", "task_type": "t"}]}"#;
    let workflow = run(&["workflow", "start", "-"], staged).await;
    let workflow = workflow.trim();
    run(
        &["workflow", "add", workflow, "-"],
        staged.replace("nightly", "ignored").as_str(),
    )
    .await;
    let change = async |what: &str, more: &[&str]| -> Value {
        let args = [&["workflow", what, workflow, "--output", "json"], more].concat();
        serde_json::from_str(&run(&args, "").await).unwrap()
    };
    assert_eq!(
        change("pause", &["--reason", "rain", "--by", "olga"]).await["paused"]["by"],
        "olga"
    );
    assert_eq!(change("members", &[]).await[1]["state"], "held");
    assert_eq!(change("resume", &[]).await["paused"], Value::Null);
    assert_eq!(change("re-run", &["--all"]).await["run_number"], 2);
    assert_eq!(change("cancel", &[]).await["state"], "cancelled");
    assert_eq!(change("show", &[]).await["members"]["cancelled"], 2);
    assert_eq!(change("events", &[]).await[0]["kind"], "rerun");
    let table = run(&["workflow", "show", workflow], "").await;
    assert!(
        table.contains("run number") && table.contains("cancelled"),
        "{table}"
    );
    for args in [
        &["workflow", "members", workflow][..],
        &["workflow", "events", workflow],
        &["workflow", "list"],
    ] {
        assert!(run(args, "").await.lines().count() > 3, "{args:?}");
    }
    let listed: Value = serde_json::from_str(
        &run(
            &[
                "workflow",
                "list",
                "--state",
                "cancelled",
                "--output",
                "json",
            ],
            "",
        )
        .await,
    )
    .unwrap();
    assert_eq!(listed.as_array().unwrap().len(), 2);
}
