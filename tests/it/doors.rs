//! SQL, HTTP, gRPC and the command line judge a task alike: taken or refused with the same code and field.

use std::collections::HashMap;

use fencepost::proto::producer::{self, EnqueueRequest};
use serde_json::{Map, Value, json};

use crate::support::Producers;

/// What a door said: the id, or code and field.
type Said = Result<i64, (String, String)>;

/// A task in terms that each door can translate; absent means default.
#[derive(Debug, Clone, Default)]
struct Given {
    namespace: Option<String>,
    task_queue: String,
    task_type: String,
    payload: Vec<u8>,
    content_type: Option<String>,
    dispatch_key: Option<String>,
    delay_ms: Option<i64>,
    run_at: Option<String>,
    priority: Option<i32>,
    node: Option<String>,
    max_attempts: Option<i32>,
    run_timeout_ms: Option<i64>,
    heartbeat_timeout_ms: Option<i64>,
    schedule_to_start_ms: Option<i64>,
    settle: Option<String>,
    concurrency_key: Option<String>,
    labels: HashMap<String, String>,
    options: Option<String>,
}

fn given() -> Given {
    Given {
        task_queue: "q".into(),
        task_type: "t".into(),
        payload: b"{}".to_vec(),
        ..Given::default()
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Door {
    Sql,
    Http,
    Grpc,
    CommandLine,
}

use Door::{CommandLine, Grpc, Http, Sql};

const ALL: [Door; 4] = [Sql, Http, Grpc, CommandLine];

impl Door {
    async fn enqueue(self, side: &Producers, task: &Given) -> Said {
        match self {
            Sql => by_sql(side, task).await,
            Http => by_http(side, task).await,
            Grpc => by_grpc(side, task).await,
            CommandLine => by_command(side, task).await,
        }
    }
}

async fn by_sql(side: &Producers, task: &Given) -> Said {
    let labels = json!(task.labels).to_string();
    let content_type = task.content_type.as_deref().unwrap_or("application/json");
    let answer = side
        .db
        .connect()
        .await
        .query_one(
            "select task_id from fencepost.enqueue_bytes(
                $1, $2, $3, $4, coalesce($5, 'default'), $6,
                $7::bigint * interval '1 millisecond', $8::text::timestamptz, coalesce($9, 1), $10, $11,
                $12::bigint * interval '1 millisecond', $13::bigint * interval '1 millisecond',
                $14::bigint * interval '1 millisecond', coalesce($15, 'completed'), $16,
                $17::text::jsonb, coalesce($18::text::jsonb, '{}')
            )",
            &[
                &task.task_queue,
                &task.task_type,
                &task.payload,
                &content_type,
                &task.namespace,
                &task.dispatch_key,
                &task.delay_ms,
                &task.run_at,
                &task.priority,
                &task.node,
                &task.max_attempts,
                &task.run_timeout_ms,
                &task.heartbeat_timeout_ms,
                &task.schedule_to_start_ms,
                &task.settle,
                &task.concurrency_key,
                &labels,
                &task.options,
            ],
        )
        .await;
    answer.map(|row| row.get(0)).map_err(|error| {
        let error = error.as_db_error().unwrap();
        let code = error.code().code().replacen("FP", "FP-", 1);
        (code, error.column().unwrap_or_default().to_owned())
    })
}

async fn by_http(side: &Producers, task: &Given) -> Said {
    let mut body = Map::new();
    let mut set = |name: &str, value: Value| {
        if !value.is_null() {
            body.insert(name.into(), value);
        }
    };
    set("namespace", json!(task.namespace));
    set("task_queue", json!(task.task_queue));
    set("task_type", json!(task.task_type));
    set("content_type", json!(task.content_type));
    set("dispatch_key", json!(task.dispatch_key));
    set("delay_ms", json!(task.delay_ms));
    set("run_at", json!(task.run_at));
    set("priority", json!(task.priority));
    set("node", json!(task.node));
    set("max_attempts", json!(task.max_attempts));
    set("run_timeout_ms", json!(task.run_timeout_ms));
    set("heartbeat_timeout_ms", json!(task.heartbeat_timeout_ms));
    set("schedule_to_start_ms", json!(task.schedule_to_start_ms));
    set("settle", json!(task.settle));
    set("concurrency_key", json!(task.concurrency_key));
    if !task.labels.is_empty() {
        set("labels", json!(task.labels));
    }
    // What is odd goes in byte for byte.
    let mut text = Value::from(body).to_string().into_bytes();
    text.pop();
    if let Some(options) = &task.options {
        text.extend_from_slice(b", \"options\": ");
        text.extend_from_slice(options.as_bytes());
    }
    text.extend_from_slice(b", \"payload\": ");
    text.extend_from_slice(&task.payload);
    text.push(b'}');
    let answer = side.post("/v1/tasks", text).await;
    if answer.status < 300 {
        return Ok(answer.json()["task_id"].as_str().unwrap().parse().unwrap());
    }
    let (status, code, field) = answer.problem();
    assert_eq!(status, 400, "{answer:?}");
    Err((code, field))
}

async fn by_grpc(side: &Producers, task: &Given) -> Said {
    let task = producer::NewTask {
        namespace: task.namespace.clone().unwrap_or_default(),
        task_queue: task.task_queue.clone(),
        task_type: task.task_type.clone(),
        payload: task.payload.clone().into(),
        content_type: task.content_type.clone().unwrap_or_default(),
        dispatch_key: task.dispatch_key.clone(),
        delay_ms: task.delay_ms,
        run_at: task.run_at.clone(),
        priority: task.priority,
        node: task.node.clone(),
        max_attempts: task.max_attempts,
        run_timeout_ms: task.run_timeout_ms,
        heartbeat_timeout_ms: task.heartbeat_timeout_ms,
        schedule_to_start_ms: task.schedule_to_start_ms,
        settle: task.settle.clone(),
        concurrency_key: task.concurrency_key.clone(),
        labels: task.labels.clone(),
        options: task.options.clone(),
    };
    let request = EnqueueRequest { tasks: vec![task] };
    match side.grpc.clone().enqueue(request).await {
        Ok(answer) => Ok(answer.into_inner().tasks[0].task_id),
        Err(status) => {
            assert_eq!(status.code(), tonic::Code::InvalidArgument, "{status}");
            let trailer = |name| {
                let value = status.metadata().get(name);
                value.map_or("", |value| value.to_str().unwrap()).to_owned()
            };
            Err((trailer("fencepost-code"), trailer("fencepost-field")))
        }
    }
}

async fn by_command(side: &Producers, task: &Given) -> Said {
    let mut args: Vec<String> = ["enqueue", "--payload", "-", "--output", "json"]
        .map(String::from)
        .to_vec();
    let ms = |ms: Option<i64>| ms.map(|ms| format!("{ms}ms"));
    for (name, value) in [
        ("--queue", Some(task.task_queue.clone())),
        ("--type", Some(task.task_type.clone())),
        ("--namespace", task.namespace.clone()),
        ("--content-type", task.content_type.clone()),
        ("--key", task.dispatch_key.clone()),
        ("--delay", ms(task.delay_ms)),
        ("--run-at", task.run_at.clone()),
        ("--priority", task.priority.map(|n| n.to_string())),
        ("--node", task.node.clone()),
        ("--max-attempts", task.max_attempts.map(|n| n.to_string())),
        ("--run-timeout", ms(task.run_timeout_ms)),
        ("--heartbeat-timeout", ms(task.heartbeat_timeout_ms)),
        ("--schedule-to-start", ms(task.schedule_to_start_ms)),
        ("--settle", task.settle.clone()),
        ("--concurrency-key", task.concurrency_key.clone()),
        ("--options", task.options.clone()),
    ] {
        if let Some(value) = value {
            args.extend([name.into(), value]);
        }
    }
    for (name, value) in &task.labels {
        args.extend(["--label".into(), format!("{name}={value}")]);
    }
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    let output = side.command(&args, &task.payload).await;
    if output.status.success() {
        let view: Value = serde_json::from_slice(&output.stdout).unwrap();
        return Ok(view["task_id"].as_str().unwrap().parse().unwrap());
    }
    let said = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(2), "{said}");
    assert_eq!(output.stdout, b"", "{said}");
    // fencepost: a sentence. [FP-001 invalid_name, field task_queue]
    let (_, inner) = said
        .trim_end()
        .rsplit_once('[')
        .unwrap_or_else(|| panic!("{said}"));
    let inner = inner.strip_suffix(']').unwrap();
    let (code, field) = inner.split_once(", field ").unwrap_or((inner, ""));
    Err((code.split(' ').next().unwrap().into(), field.into()))
}

fn refused(code: &str, field: &str) -> Said {
    Err((code.into(), field.into()))
}

/// Either both took it, whatever the ids, or both refused it with the same code and field.
#[track_caller]
fn assert_same(said: &Said, expected: &Said, what: &str) {
    match (said, expected) {
        (Ok(_), Ok(_)) => {}
        (said, expected) => assert_eq!(said, expected, "{what}"),
    }
}

#[tokio::test]
async fn odd_json_is_judged_by_postgresql_alone_whatever_the_door() {
    let side = Producers::start().await;
    let client = side.db.connect().await;
    let deep = |depth| [vec![b'['; depth], vec![b']'; depth]].concat();
    let taken: Said = Ok(0);
    let invalid = refused("FP-003", "payload");
    let table: Vec<(Vec<u8>, &Said)> = vec![
        (b"null".to_vec(), &taken),
        (b"[1, \"two\", null]".to_vec(), &taken),
        (b"1e400".to_vec(), &taken),
        (b"-0.0".to_vec(), &taken),
        (br#"{"a": 1, "a": 2}"#.to_vec(), &taken),
        (br#""\ud83d\ude00 \u00e9 \"\\""#.to_vec(), &taken),
        (" {\"k\u{fc}\": \"\u{1f600}\"} ".as_bytes().to_vec(), &taken),
        (deep(10_000), &taken),
        (br#""\u0000""#.to_vec(), &invalid),
        (br#"{"a\u0000b": 1}"#.to_vec(), &invalid),
        (br#""\ud800""#.to_vec(), &invalid),
        (br#""\udc00\ud800""#.to_vec(), &invalid),
        (b"\"\xff\xfe\"".to_vec(), &invalid),
        (b"\"\xed\xa0\x80\"".to_vec(), &invalid),
        (b"\"a\0b\"".to_vec(), &invalid),
        (b"\"a\nb\"".to_vec(), &invalid),
        (b"1e200000".to_vec(), &invalid),
        (b"nonsense".to_vec(), &invalid),
        (b"NaN".to_vec(), &invalid),
        (b"01".to_vec(), &invalid),
        (b"{\"a\": }".to_vec(), &invalid),
        (b"{'a': 1}".to_vec(), &invalid),
        (b"[1, 2}".to_vec(), &invalid),
        (b"{} {}".to_vec(), &invalid),
        // Beyond the stack of any server's default, within the limit of bytes.
        (deep(500_000), &invalid),
    ];
    for (payload, expected) in table {
        let what = String::from_utf8_lossy(&payload[..payload.len().min(40)]).into_owned();
        let mut stored: Option<Vec<u8>> = None;
        for door in ALL {
            let task = Given {
                payload: payload.clone(),
                ..given()
            };
            let said = door.enqueue(&side, &task).await;
            assert_same(&said, expected, &format!("{what} by {door:?}"));
            if let Ok(id) = said {
                let row = client
                    .query_one("select payload from fencepost.task where id = $1", &[&id])
                    .await
                    .unwrap();
                let normal = stored.get_or_insert_with(|| row.get(0));
                assert!(row.get::<_, Vec<u8>>(0) == *normal, "{what} by {door:?}");
            }
            // A valid neighbour comes through.
            door.enqueue(&side, &given()).await.unwrap();
        }
        // The form for applications: PostgreSQL reads the literal before our function is called.
        if let Ok(text) = String::from_utf8(payload)
            && !text.contains('\0')
        {
            let by_jsonb = client
                .query_one(
                    "select task_id from fencepost.enqueue('q', 't', $1::text::jsonb)",
                    &[&text],
                )
                .await;
            assert_eq!(by_jsonb.is_ok(), expected.is_ok(), "{what}");
        }
    }
}

#[tokio::test]
async fn an_odd_payload_refuses_its_batch_and_says_which_it_is() {
    let side = Producers::start().await;
    let body = br#"[
        {"task_queue": "q", "task_type": "t", "payload": 1},
        {"task_queue": "q", "task_type": "t", "payload": "\u0000"}
    ]"#;
    let answer = side.post("/v1/tasks", &body[..]).await;
    assert_eq!(answer.problem(), (400, "FP-003".into(), "payload".into()));
    let detail = answer.json()["detail"].as_str().unwrap().to_owned();
    assert!(detail.starts_with("task 2: "), "{detail}");
    // Also where all of them say the same.
    let body = br#"[
        {"task_queue": "q", "task_type": "t", "payload": 1, "run_at": "tomorrow"},
        {"task_queue": "q", "task_type": "t", "payload": 2, "run_at": "tomorrow"}
    ]"#;
    let answer = side.post("/v1/tasks", &body[..]).await;
    assert_eq!(answer.problem(), (400, "FP-005".into(), "run_at".into()));
    let detail = answer.json()["detail"].as_str().unwrap().to_owned();
    assert!(detail.starts_with("task 1: "), "{detail}");
    let tasks: i64 = side
        .db
        .connect()
        .await
        .query_one("select count(*) from fencepost.task", &[])
        .await
        .unwrap()
        .get(0);
    assert_eq!(tasks, 0);
}

const DAY_MS: i64 = 24 * 60 * 60 * 1000;

/// Changes one field of a good task.
type Change = Box<dyn Fn(&mut Given)>;

fn case(
    change: impl Fn(&mut Given) + 'static,
    doors: &'static [Door],
    expected: Said,
) -> (Change, &'static [Door], Said) {
    (Box::new(change), doors, expected)
}

#[tokio::test]
async fn every_field_has_the_same_bounds_at_every_door() {
    /// PostgreSQL's own types refuse it before a function is called.
    const NOT_SQL: &[Door] = &[Http, Grpc, CommandLine];
    /// No program can be given a NUL either.
    const NETWORK: &[Door] = &[Http, Grpc];
    let long = |n: usize| "\u{fc}".repeat(n);
    let labels = |n: usize, value: String| {
        move |task: &mut Given| {
            task.labels = (0..n)
                .map(|n| (format!("label {n}"), value.clone()))
                .collect();
        }
    };
    let cases = vec![
        case(move |t| t.task_queue = long(200), &ALL, Ok(0)),
        case(
            move |t| t.task_queue = long(201),
            &ALL,
            refused("FP-001", "task_queue"),
        ),
        case(
            |t| t.task_queue = String::new(),
            &ALL,
            refused("FP-001", "task_queue"),
        ),
        case(
            |t| t.task_queue = "a\u{7}".into(),
            &ALL,
            refused("FP-001", "task_queue"),
        ),
        case(
            |t| t.task_queue = "a\0".into(),
            NETWORK,
            refused("FP-001", "task_queue"),
        ),
        case(
            |t| t.task_type = "\u{9f}".into(),
            &ALL,
            refused("FP-001", "task_type"),
        ),
        case(
            |t| t.task_type = "\0".into(),
            NETWORK,
            refused("FP-001", "task_type"),
        ),
        case(
            move |t| t.namespace = Some(long(201)),
            &ALL,
            refused("FP-001", "namespace"),
        ),
        case(
            |t| t.namespace = Some("n\0".into()),
            NETWORK,
            refused("FP-001", "namespace"),
        ),
        case(
            move |t| t.node = Some(long(201)),
            &ALL,
            refused("FP-001", "node"),
        ),
        case(|t| t.node = Some("eu-1".into()), &ALL, Ok(0)),
        case(
            |t| t.dispatch_key = Some(String::new()),
            &ALL,
            refused("FP-001", "dispatch_key"),
        ),
        case(
            move |t| t.dispatch_key = Some(long(201)),
            &ALL,
            refused("FP-001", "dispatch_key"),
        ),
        case(
            |t| t.dispatch_key = Some("\0".into()),
            NETWORK,
            refused("FP-001", "dispatch_key"),
        ),
        case(
            |t| t.concurrency_key = Some("\n".into()),
            &ALL,
            refused("FP-001", "concurrency_key"),
        ),
        case(
            |t| t.content_type = Some("JSON".into()),
            &ALL,
            refused("FP-004", "content_type"),
        ),
        case(
            |t| t.content_type = Some("a/b\0".into()),
            NETWORK,
            refused("FP-004", "content_type"),
        ),
        case(
            |t| t.content_type = Some("text/plain; charset=utf-8".into()),
            &ALL,
            Ok(0),
        ),
        case(|t| t.delay_ms = Some(0), &ALL, Ok(0)),
        case(|t| t.delay_ms = Some(3_600 * DAY_MS), &ALL, Ok(0)),
        case(
            |t| t.delay_ms = Some(3_600 * DAY_MS + 1),
            &ALL,
            refused("FP-005", "delay"),
        ),
        case(|t| t.delay_ms = Some(-1), &ALL, refused("FP-005", "delay")),
        case(
            |t| t.delay_ms = Some(i64::MAX),
            &[Http, Grpc],
            refused("FP-005", "delay"),
        ),
        case(
            |t| t.delay_ms = Some(i64::MIN),
            &[Http, Grpc],
            refused("FP-005", "delay"),
        ),
        case(
            |t| t.run_at = Some("2031-01-31T08:00:00.25+02:00".into()),
            &ALL,
            Ok(0),
        ),
        case(
            |t| t.run_at = Some("1999-12-31T23:59:59Z".into()),
            &ALL,
            refused("FP-005", "run_at"),
        ),
        case(
            |t| t.run_at = Some("9999-12-31T23:59:59Z".into()),
            &ALL,
            refused("FP-005", "run_at"),
        ),
        case(
            |t| t.run_at = Some("2031-02-31T08:00:00Z".into()),
            NOT_SQL,
            refused("FP-005", "run_at"),
        ),
        case(
            |t| t.run_at = Some("2031-01-31 08:00:00".into()),
            NOT_SQL,
            refused("FP-005", "run_at"),
        ),
        case(
            |t| t.run_at = Some("tomorrow".into()),
            NOT_SQL,
            refused("FP-005", "run_at"),
        ),
        case(
            |t| t.run_at = Some("\0".into()),
            NETWORK,
            refused("FP-005", "run_at"),
        ),
        case(
            |t| {
                t.run_at = Some("2031-01-31T08:00:00Z".into());
                t.delay_ms = Some(1);
            },
            &ALL,
            refused("FP-005", "delay"),
        ),
        case(|t| t.priority = Some(0), &ALL, Ok(0)),
        case(|t| t.priority = Some(3), &ALL, Ok(0)),
        case(
            |t| t.priority = Some(4),
            &ALL,
            refused("FP-006", "priority"),
        ),
        case(
            |t| t.priority = Some(-1),
            &ALL,
            refused("FP-006", "priority"),
        ),
        case(
            |t| t.priority = Some(i32::MAX),
            &ALL,
            refused("FP-006", "priority"),
        ),
        case(|t| t.max_attempts = Some(1000), &ALL, Ok(0)),
        case(
            |t| t.max_attempts = Some(1001),
            &ALL,
            refused("FP-007", "max_attempts"),
        ),
        case(
            |t| t.max_attempts = Some(0),
            &ALL,
            refused("FP-007", "max_attempts"),
        ),
        case(|t| t.run_timeout_ms = Some(24 * DAY_MS), &ALL, Ok(0)),
        case(
            |t| t.run_timeout_ms = Some(24 * DAY_MS + 1),
            &ALL,
            refused("FP-007", "run_timeout"),
        ),
        case(
            |t| t.run_timeout_ms = Some(-1),
            &ALL,
            refused("FP-007", "run_timeout"),
        ),
        case(
            |t| t.heartbeat_timeout_ms = Some(-1),
            &ALL,
            refused("FP-007", "heartbeat_timeout"),
        ),
        case(
            |t| t.schedule_to_start_ms = Some(0),
            &ALL,
            refused("FP-007", "schedule_to_start"),
        ),
        case(|t| t.settle = Some("accepted".into()), &ALL, Ok(0)),
        case(
            |t| t.settle = Some("later".into()),
            &ALL,
            refused("FP-011", "settle"),
        ),
        case(labels(32, long(1000)), &ALL, Ok(0)),
        case(labels(33, String::new()), &ALL, refused("FP-008", "labels")),
        case(labels(1, long(1001)), &ALL, refused("FP-008", "labels")),
        case(labels(1, "\0".into()), NETWORK, refused("FP-008", "labels")),
        case(
            |t| t.options = Some(r#"{"backoff_base_ms": 100}"#.into()),
            &ALL,
            Ok(0),
        ),
        case(
            |t| t.options = Some(r#"{"backof": 100}"#.into()),
            &ALL,
            refused("FP-009", "options"),
        ),
        case(
            |t| t.options = Some("[1]".into()),
            &ALL,
            refused("FP-009", "options"),
        ),
        case(
            |t| t.options = Some("nonsense".into()),
            NOT_SQL,
            refused("FP-009", "options"),
        ),
        case(
            |t| t.options = Some(r#"{"trace_context": "\u0000"}"#.into()),
            NOT_SQL,
            refused("FP-009", "options"),
        ),
        case(
            |t| t.payload = vec![b'1'; 1024 * 1024 + 1],
            &ALL,
            refused("FP-003", "payload"),
        ),
        case(
            |t| t.payload = [b"\"", vec![b'1'; 1024 * 1024].as_slice(), b"\""].concat(),
            &ALL,
            refused("FP-002", "payload"),
        ),
    ];
    let side = Producers::start().await;
    for (number, (change, doors, expected)) in cases.iter().enumerate() {
        let mut task = given();
        change(&mut task);
        for door in *doors {
            let said = door.enqueue(&side, &task).await;
            let what = format!("case {number} by {door:?}: {:.200}", format!("{task:?}"));
            assert_same(&said, expected, &what);
        }
    }
}

#[tokio::test]
async fn batches_have_a_longest_length() {
    let side = Producers::start().await;
    let task = r#"{"task_queue":"q","task_type":"t"}"#;
    let body = format!("[{}]", vec![task; 100_001].join(","));
    let answer = side.post("/v1/tasks", body).await;
    assert_eq!(answer.problem(), (400, "FP-010".into(), "payload".into()));

    let task = producer::NewTask {
        task_queue: "q".into(),
        task_type: "t".into(),
        payload: "1".into(),
        ..producer::NewTask::default()
    };
    let tasks = vec![task; 100_001];
    let status = side
        .grpc
        .clone()
        .enqueue(EnqueueRequest { tasks })
        .await
        .unwrap_err();
    assert_eq!(status.metadata().get("fencepost-code").unwrap(), "FP-010");

    let empty = side.post("/v1/tasks", "[]").await;
    assert_eq!((empty.status, empty.json()), (200, json!([])));
    let none = EnqueueRequest::default();
    let none = side.grpc.clone().enqueue(none).await.unwrap().into_inner();
    assert_eq!(none.tasks, []);
}
