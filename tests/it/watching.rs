//! What operators watch over HTTP: events, replicas, the life of a task, filters that read a bounded part of history,
//! and who may see payloads.

use std::collections::VecDeque;
use std::time::Duration;

use chrono::{DateTime, SecondsFormat, TimeDelta};
use fencepost::proto::worker::FailureKind;
use http_body_util::{BodyExt as _, Empty};
use hyper_util::client::legacy::Client;
use hyper_util::rt::TokioExecutor;
use serde_json::{Value, json};

use crate::support::{
    Operator, Producers, Replica, ScriptedWorker, TcpProxy, TestDb, eventually, letters,
};

const STEP: Duration = Duration::from_secs(20);

/// A stream of events.
struct Events {
    body: axum::body::Body,
    text: String,
    events: VecDeque<(String, Value)>,
    /// Comments, which keep the stream alive.
    comments: usize,
}

impl Events {
    async fn open(address: std::net::SocketAddr) -> Result<Self, u16> {
        let client: Client<_, Empty<bytes::Bytes>> =
            Client::builder(TokioExecutor::new()).build_http();
        let uri = format!("http://{address}/v1/events");
        let response = client.get(uri.parse().unwrap()).await.unwrap();
        if response.status() != 200 {
            return Err(response.status().as_u16());
        }
        assert_eq!(response.headers()["content-type"], "text/event-stream");
        Ok(Self {
            body: axum::body::Body::new(response.into_body()),
            text: String::new(),
            events: VecDeque::new(),
            comments: 0,
        })
    }

    /// Takes in what comes next; none at the end.
    async fn read(&mut self) -> Option<()> {
        let frame = tokio::time::timeout(STEP, self.body.frame()).await;
        let frame = frame.expect("no event").transpose().unwrap()?;
        self.text += std::str::from_utf8(frame.data_ref()?).unwrap();
        while let Some((event, rest)) = self.text.clone().split_once("\n\n") {
            rest.clone_into(&mut self.text);
            let (mut name, mut data) = (String::new(), Value::Null);
            for line in event.lines() {
                match line.split_once(": ") {
                    Some(("event", value)) => value.clone_into(&mut name),
                    Some(("data", value)) => data = serde_json::from_str(value).unwrap(),
                    _ => self.comments += usize::from(line.starts_with(':')),
                }
            }
            if !name.is_empty() {
                self.events.push_back((name, data));
            }
        }
        Some(())
    }

    /// The next event; none at the end.
    async fn next(&mut self) -> Option<(String, Value)> {
        while self.events.is_empty() {
            self.read().await?;
        }
        self.events.pop_front()
    }

    /// The next event that `look` likes.
    async fn find(&mut self, name: &str, look: impl Fn(&Value) -> bool) -> Value {
        let mut passed = Vec::new();
        let found = async {
            loop {
                let (kind, data) = self.next().await.expect("the stream ended");
                if kind == name && look(&data) {
                    return data;
                }
                passed.push(format!("{kind}: {data}"));
            }
        };
        let found = tokio::time::timeout(STEP, found).await;
        found.unwrap_or_else(|_| panic!("no {name}; there was {passed:#?}"))
    }
}

#[tokio::test]
async fn what_happens_is_told_to_those_who_listen() {
    let db = TestDb::new().await;
    let settings = [
        ("REPLICA__BEAT", "200ms"),
        ("REPLICA__DEAD_AFTER", "2s"),
        ("WORKERS__RECONNECT_GRACE", "300ms"),
        ("SERVER__NAME", "alpha"),
    ];
    let mut replica = Replica::start(&db.url(), &settings).await;
    let operator = Operator::of(&replica);
    let mut events = Events::open(replica.http()).await.unwrap();
    assert_eq!(events.next().await.unwrap().0, "history");
    // The first look is what later ones are compared with.
    events.find("queues", |_| true).await;

    let other = [("SERVER__NAME", "beta"), ("REPLICA__BEAT", "200ms")];
    let mut second = Replica::start(&db.url(), &other).await;
    let came = events.find("replica", |one| one["name"] == "beta").await;
    assert_eq!(came["state"], "up");
    second.terminate().await;
    let left =
        |one: &Value| one["name"] == "beta" && one["state"] != "up" && one["state"] != "draining";
    events.find("replica", left).await;

    let worker = ScriptedWorker::connect_with_slots(&replica.url(), 3).await;
    let is_ready = |one: &Value| one["identity"] == "scripted" && one["state"] == "ready";
    assert_eq!(events.find("worker", is_ready).await["slots"], 3);
    drop(worker);
    events.find("worker", |one| one["state"] == "gone").await;

    let pause = json!({"task_queue": "paused", "reason": "why", "by": "olga"}).to_string();
    operator.change("POST", "/v1/pause", &pause).await;
    let paused = events.find("pause", |one| one["paused"] == true).await;
    assert_eq!(
        (&paused["task_queue"], &paused["by"]),
        (&json!("paused"), &json!("olga"))
    );
    operator
        .change("POST", "/v1/resume", r#"{"task_queue": "paused"}"#)
        .await;
    events.find("pause", |one| one["paused"] == false).await;

    let body = json!([
        {"task_queue": "nobody", "task_type": "t"},
        {"task_queue": "nobody", "task_type": "t"},
        {"task_queue": "nobody", "task_type": "t", "delay": "1h"},
    ]);
    operator.call("POST", "/v1/tasks", &body.to_string()).await;
    let waits = |one: &Value| one["totals"]["ready"]["tasks"] == 2;
    let queues = events.find("queues", waits).await;
    let (totals, queue) = (&queues["totals"], &queues["queues"][0]);
    assert_eq!(
        (&totals["later"]["tasks"], &totals["claimed"]),
        (&json!(1), &json!(0))
    );
    assert_eq!(
        (&queue["task_queue"], &queue["ready"]["tasks"]),
        (&json!("nobody"), &json!(2))
    );
    assert!(queue["oldest_ms"].is_u64(), "{queue}");
    // Three tasks within the five seconds that rates are measured over, or already behind them on a slow machine.
    let rate = totals["enqueued_per_s"].as_f64().unwrap();
    assert!((0.0..=3.0).contains(&rate), "{totals}");
    events
        .find("unserved", |one| {
            one["unserved"] == true && one["task_queue"] == "nobody"
        })
        .await;

    let pool = db.pool();
    let first = letters::dead(&pool, "priority => 0").await;
    let told = events
        .find("dead_letters", |one| one["task_queue"] == "q")
        .await;
    assert_eq!(
        (&told["cause"], &told["letters"]),
        (&json!("failed"), &json!(1))
    );
    assert_eq!(told["last"], first.to_string());
    let failed = |one: &Value| one["totals"]["failed_per_s"].as_f64() > Some(0.0);
    let flow = events.find("queues", failed).await;
    let of_queue = |queues: &Value| {
        let mut all = queues["queues"].as_array().unwrap().iter();
        all.find(|one| one["task_queue"] == "q").cloned()
    };
    // It left nothing unfinished, and is told of all the same.
    assert!(
        of_queue(&flow).unwrap()["failed_per_s"].as_f64() > Some(0.0),
        "{flow}"
    );

    // One who comes later begins with what was, and everybody is told of the end.
    let mut late = Events::open(replica.http()).await.unwrap();
    let (_, history) = late.next().await.unwrap();
    assert!(!history["past"].as_array().unwrap().is_empty());
    let ending = async { replica.terminate().await };
    let (ended, ()) = tokio::join!(ending, async {
        for stream in [&mut events, &mut late] {
            stream.find("bye", |_| true).await;
            assert_eq!(stream.next().await, None);
        }
    });
    assert!(ended.success(), "{ended}");
}

#[tokio::test]
async fn a_database_that_is_silent_is_told_once_and_the_stream_stays_alive() {
    let db = TestDb::new().await;
    let (proxy, through) = TcpProxy::before(&db.url()).await;
    let replica = Replica::start(&through, &[]).await;
    let mut events = Events::open(replica.http()).await.unwrap();
    events.find("queues", |_| true).await;
    proxy.hold();
    let gone = events.find("database", |_| true).await;
    assert_eq!(gone["answers"], false);
    assert!(gone["detail"].is_string(), "{gone}");
    // Nothing else is told meanwhile, but that somebody is there.
    events.comments = 0;
    while events.comments == 0 {
        events.read().await.expect("the stream ended");
    }
    let told = |name: &str| events.events.iter().any(|(told, _)| told == name);
    assert!(!told("database") && !told("queues"), "{:?}", events.events);
    proxy.release();
    let back = events.find("database", |_| true).await;
    assert_eq!(back, json!({"answers": true, "detail": null}));
    events.find("queues", |_| true).await;
}

#[tokio::test]
async fn listeners_are_bounded_and_one_that_leaves_makes_room() {
    let side = Producers::start().await;
    let mut all = Vec::new();
    for _ in 0..fencepost::api::events::MOST_LISTENERS {
        all.push(Events::open(side.http).await.unwrap());
    }
    assert_eq!(Events::open(side.http).await.err(), Some(429));
    let refused = side.get("/v1/events").await;
    assert_eq!(refused.problem(), (429, "FP-117".into(), String::new()));
    drop(all.pop());
    let again = eventually(STEP, async || Events::open(side.http).await.ok());
    let mut again = again.await;
    again.find("queues", |_| true).await;
}

#[tokio::test]
async fn the_life_of_a_task_and_of_replicas_is_told() {
    let db = TestDb::new().await;
    let mut first = Replica::start(&db.url(), &[("SERVER__NAME", "alpha")]).await;
    let replica = Replica::start(&db.url(), &[("SERVER__NAME", "beta")]).await;
    let operator = Operator::of(&replica);
    let mut worker = ScriptedWorker::connect_with_slots(&replica.url(), 2).await;
    let body =
        json!({"namespace": "shop", "task_queue": "none", "task_type": "t", "max_attempts": 3});
    operator.call("POST", "/v1/tasks", &body.to_string()).await;
    let (_, task) = operator
        .call(
            "POST",
            "/v1/tasks",
            r#"{"task_queue": "q", "task_type": "t", "payload": [1, 2], "concurrency_key": "k"}"#,
        )
        .await;
    let id = task["task_id"].as_str().unwrap();
    let delivered = worker.accept_next().await;
    let path = format!("/v1/tasks/{id}/history");
    let history = operator.get(&path).await;
    assert_eq!(history["replica"], "beta");
    assert_eq!(
        (&history["fence"], &history["attempt"]),
        (&json!(1), &json!(0))
    );
    assert_eq!(
        (&history["origin"], &history["concurrency_key"]),
        (&json!(id), &json!("k"))
    );
    assert_eq!(history["payload_bytes"], 6);
    assert_eq!(history["failures"], json!([]));
    let shares = operator.get("/v1/shares").await;
    assert_eq!(
        shares["shares"],
        json!([{"namespace": "default", "claimed": 1}])
    );
    let replicas = operator.get("/v1/replicas").await;
    let line = |name: &str, replicas: &Value| {
        let mut all = replicas["replicas"].as_array().unwrap().iter();
        all.find(|one| one["name"] == name).cloned().unwrap()
    };
    let beta = line("beta", &replicas);
    assert_eq!(
        (&beta["answers"], &beta["claimed"], &beta["state"]),
        (&json!(true), &json!(1), &json!("up"))
    );
    assert_eq!(line("alpha", &replicas)["answers"], false);

    worker
        .fail(&delivered, FailureKind::Retryable, "oops")
        .await;
    let failed = eventually(STEP, async || {
        let history = operator.get(&path).await;
        (history["failures"] != json!([])).then_some(history)
    });
    let failed = failed.await;
    assert_eq!(failed["failures"][0]["attempt"], 1);
    assert_eq!(failed["failures"][0]["worker"], "scripted");
    let (status, problem) = operator.call("GET", "/v1/tasks/12345/history", "").await;
    assert_eq!((status, &problem["code"]), (404, &json!("FP-104")));

    first.terminate().await;
    eventually(STEP, async || {
        let replicas = operator.get("/v1/replicas").await;
        (line("alpha", &replicas)["state"] == "dead").then_some(())
    })
    .await;
}

#[tokio::test]
async fn tasks_are_found_by_key_and_time_and_a_look_says_how_far_it_went() {
    let side = Producers::start().await;
    let tasks = json!([
        {"task_queue": "q", "task_type": "t", "dispatch_key": "d", "concurrency_key": "c"},
        {"task_queue": "q", "task_type": "t", "concurrency_key": "c"},
        {"namespace": "shop", "task_queue": "q", "task_type": "t", "dispatch_key": "d"},
    ]);
    let made = side.post("/v1/tasks", tasks.to_string()).await.json();
    let id = |index: usize| made[index]["task_id"].clone();
    let found = async |filter: &str| {
        let page = side.get(&format!("/v1/tasks?{filter}")).await.json();
        let tasks = page["tasks"].as_array().unwrap().clone();
        tasks
            .iter()
            .map(|task| task["task_id"].clone())
            .collect::<Vec<_>>()
    };
    // A dispatch key goes with its namespace, as everywhere.
    assert_eq!(found("dispatch_key=d").await, [id(0)]);
    assert_eq!(found("dispatch_key=d&namespace=shop").await, [id(2)]);
    assert_eq!(
        found("dispatch_key=d&state=done").await,
        Vec::<Value>::new()
    );
    assert_eq!(found("dispatch_key=none").await, Vec::<Value>::new());
    assert_eq!(found("concurrency_key=c").await, [id(1), id(0)]);
    assert_eq!(found("concurrency_key=c&state=held").await, [id(1)]);
    let task = side
        .get(&format!("/v1/tasks/{}", id(1).as_str().unwrap()))
        .await
        .json();
    let at = task["enqueued_at"].as_str().unwrap().to_owned();
    let near = |seconds: i64| {
        let at = DateTime::parse_from_rfc3339(&at).unwrap() + TimeDelta::seconds(seconds);
        at.to_utc().to_rfc3339_opts(SecondsFormat::Millis, true)
    };
    assert_eq!(
        found("enqueued_before=2026-01-01T00:00:00Z").await,
        Vec::<Value>::new()
    );
    assert_eq!(
        found("enqueued_after=9999-01-01T00:00:00Z").await,
        Vec::<Value>::new()
    );
    let all = [id(2), id(1), id(0)];
    assert_eq!(found("enqueued_after=1999-01-01T00:00:00Z").await, all);
    let around = format!("enqueued_after={}&enqueued_before={}", near(-10), near(10));
    assert_eq!(found(&around).await, all);
    assert_eq!(
        found(&format!("enqueued_after={}", near(10))).await,
        Vec::<Value>::new()
    );
    assert_eq!(
        found(&format!("enqueued_before={}", near(-10))).await,
        Vec::<Value>::new()
    );
    let wrong = side.get("/v1/tasks?enqueued_after=soon").await;
    assert_eq!(
        wrong.problem(),
        (400, "FP-103".into(), "enqueued_after".into())
    );

    // Many younger ones stand before it: the look ends, says where, and goes on from there.
    let client = side.db.connect().await;
    let fill = "select count(*) from fencepost.enqueue_many(
        array_fill('other'::text, array[20000]), array['t'], array_fill('null'::bytea, array[20000]))";
    client.query_one(fill, &[]).await.unwrap();
    let page = side.get("/v1/tasks?task_queue=q").await.json();
    assert_eq!(
        (&page["tasks"], &page["looked_at"]),
        (&json!([]), &json!(20_000))
    );
    assert!(
        page["looked_back_to"].as_str().unwrap() >= at.as_str(),
        "{page}"
    );
    let next = page["next"].as_str().unwrap();
    assert_eq!(found(&format!("task_queue=q&before={next}")).await, all);
    // What is ready is looked for where it stands, however much has ended since; so is a key.
    client.execute("with gone as (delete from fencepost.live where route_id in (select route_id from fencepost.route where task_queue = 'other') returning id)
        insert into fencepost.outcome (id, ended_at, attempt, state) select id, now(), 0, 1 from gone", &[]).await.unwrap();
    assert_eq!(found("state=ready").await, [id(2), id(0)]);
    assert_eq!(found("dispatch_key=d").await, [id(0)]);
    let done = side.get("/v1/tasks?state=done&limit=5").await.json();
    assert_eq!(done["tasks"].as_array().unwrap().len(), 5);
}

#[tokio::test]
async fn payloads_are_shown_to_nobody_unless_the_settings_say_so() {
    let db = TestDb::new().await;
    let hiding = Replica::start(&db.url(), &[]).await;
    let showing = Replica::start(&db.url(), &[("SERVER__SHOW_PAYLOADS", "true")]).await;
    let (hiding, showing) = (Operator::of(&hiding), Operator::of(&showing));
    let letter = letters::dead(&db.pool(), "payload => '{\"secret\": 1}'").await;
    for path in [
        format!("/v1/tasks/{letter}"),
        format!("/v1/dead-letters/{letter}"),
    ] {
        assert!(!hiding.get(&path).await.to_string().contains("secret"));
        let asked = format!("{path}?payload=true");
        let (status, problem) = hiding.call("GET", &asked, "").await;
        assert_eq!(
            (status, &problem["code"]),
            (403, &json!("FP-116")),
            "{problem}"
        );
        assert_eq!(showing.get(&asked).await["payload"], json!({"secret": 1}));
        assert_eq!(
            hiding.get(&format!("{path}?payload=false")).await["task_id"],
            letter.to_string()
        );
    }
    // Who waits for a task is its producer, and gets its result.
    let waited = hiding
        .get(&format!("/v1/tasks/{letter}/wait?timeout=1s"))
        .await;
    assert_eq!(waited["ended"], true);
}

#[tokio::test]
async fn the_page_comes_with_a_strict_policy_and_files_that_are_cached_by_version() {
    let side = Producers::start().await;
    let client: Client<_, Empty<bytes::Bytes>> = Client::builder(TokioExecutor::new()).build_http();
    let get = async |path: &str| {
        let uri = format!("http://{}{path}", side.http).parse().unwrap();
        let (parts, body) = client.get(uri).await.unwrap().into_parts();
        let text = body.collect().await.unwrap().to_bytes();
        let header = move |name: &str| {
            let value = parts
                .headers
                .get(name)
                .map(|value| value.to_str().unwrap().to_owned());
            value.unwrap_or_default()
        };
        (header, String::from_utf8(text.to_vec()).unwrap())
    };
    let (header, page) = get("/").await;
    assert_eq!(header("content-type"), "text/html; charset=utf-8");
    assert_eq!(header("cache-control"), "no-cache");
    let policy = header("content-security-policy");
    assert!(
        policy.starts_with("default-src 'none'; script-src 'self';"),
        "{policy}"
    );
    assert!(
        !policy.contains("unsafe") && !policy.contains('*') && !policy.contains("http"),
        "{policy}"
    );
    // Nothing is asked of anybody else, and nothing runs from the page itself.
    assert!(
        !page.contains("http://") && !page.contains("https://"),
        "{page}"
    );
    assert!(!page.contains(" style=") && !page.contains(" on"), "{page}");
    let script = page
        .split('"')
        .find(|part| part.ends_with("/app.js"))
        .unwrap();
    let (header, text) = get(&format!("/{script}")).await;
    assert_eq!(header("content-type"), "text/javascript; charset=utf-8");
    assert!(
        header("cache-control").contains("immutable"),
        "{}",
        header("cache-control")
    );
    assert_eq!(header("x-content-type-options"), "nosniff");
    // Every module that one imports is there, and none of them makes markup of text.
    let (folder, _) = script.rsplit_once('/').unwrap();
    let mut wanted: Vec<String> = vec!["app.js".into()];
    let mut seen = Vec::new();
    while let Some(name) = wanted.pop() {
        if seen.contains(&name) {
            continue;
        }
        let (header, text) = get(&format!("/{folder}/{name}")).await;
        assert!(
            header("content-type").starts_with("text/javascript"),
            "{name}: {text}"
        );
        for part in [
            "innerHTML",
            "outerHTML",
            "insertAdjacentHTML",
            "document.write",
            "eval(",
        ] {
            assert!(!text.contains(part), "{name} has {part}");
        }
        let imports = text.lines().filter(|line| line.starts_with("import "));
        wanted.extend(imports.filter_map(|line| {
            Some(
                line.rsplit_once("\"./")?
                    .1
                    .trim_end_matches("\";")
                    .to_owned(),
            )
        }));
        seen.push(name);
    }
    assert!(seen.len() > 10 && text.contains("import"), "{seen:?}");
    // Another build's version is answered, and not kept.
    let (header, _) = get("/dashboard/0.0.0-0/style.css").await;
    assert_eq!(header("cache-control"), "no-store");
    let missing = side.get("/dashboard/1/none.js").await;
    assert_eq!(missing.problem(), (404, "FP-106".into(), String::new()));
}
