//! Every list goes on where its page ended: no line twice, none left out.

use std::time::Duration;

use serde_json::Value;

use crate::support::{Operator, Replica, TestDb, eventually};

const STEP: Duration = Duration::from_secs(20);

/// The lines of a list, read in pages of this size. Where `next` goes, `from` says.
async fn walk(operator: &Operator, path: &str, name: &str, from: &str, limit: usize) -> Vec<Value> {
    let join = if path.contains('?') { '&' } else { '?' };
    let mut uri = format!("{path}{join}limit={limit}");
    let mut lines = Vec::new();
    loop {
        let mut page = operator.get(&uri).await;
        let found: Vec<Value> = serde_json::from_value(page[name].take()).unwrap();
        assert!(found.len() <= limit, "{uri}: {found:?}");
        lines.extend(found);
        assert!(lines.len() < 50, "{path} has no end");
        let Some(next) = page["next"].as_str() else {
            assert!(page.get("next").unwrap().is_null(), "{uri}");
            return lines;
        };
        uri = format!("{path}{join}limit={limit}&{from}={next}");
    }
}

/// Pages of each size are the list as a whole, which has so many lines.
async fn holds(operator: &Operator, path: &str, name: &str, from: &str, lines: usize) {
    let whole = walk(operator, path, name, from, 40).await;
    assert_eq!(whole.len(), lines, "{path}: {whole:#?}");
    for limit in [1, 2, 3, lines] {
        let pages = walk(operator, path, name, from, limit).await;
        for line in &whole {
            let same = pages.iter().filter(|one| is_same(one, line)).count();
            assert_eq!(same, 1, "{path} in pages of {limit} has {same} of {line}");
        }
        assert_eq!(pages.len(), lines, "{path} in pages of {limit}");
    }
    let join = if path.contains('?') { '&' } else { '?' };
    for wrong in ["limit=0", "limit=1001", "limit=x", &format!("{from}=..")] {
        let (status, problem) = operator
            .call("GET", &format!("{path}{join}{wrong}"), "")
            .await;
        assert_eq!(
            (status, &problem["code"]),
            (400, &"FP-103".into()),
            "{path} {wrong}"
        );
    }
    let (_, problem) = operator
        .call("GET", &format!("{path}{join}nonsense=1"), "")
        .await;
    assert_eq!(problem["code"], "FP-102", "{path}");
}

/// But for times that go on.
fn is_same(one: &Value, other: &Value) -> bool {
    let still = |line: &Value| {
        let mut line = line.clone();
        for name in ["oldest_ms", "age_ms", "left_ms"] {
            line.as_object_mut().unwrap().remove(name);
        }
        line
    };
    still(one) == still(other)
}

#[tokio::test]
async fn pages_of_every_list_are_the_list() {
    let db = TestDb::new().await;
    let replica = Replica::start(&db.url(), &[]).await;
    let operator = Operator::of(&replica);
    // Names in an order that bytes and people see differently, and parts that could run into each other.
    for (namespace, queue, node) in [
        ("default", "q", ""),
        ("default", "q", "n"),
        ("default", "Q", ""),
        ("zeta", "q", ""),
        ("Zeta", "a b", ""),
        ("ä", "q\"", "ä"),
    ] {
        let node = if node.is_empty() {
            Value::Null
        } else {
            node.into()
        };
        let task = serde_json::json!({
            "namespace": namespace, "task_queue": queue, "task_type": "t", "node": node,
        });
        let (status, answer) = operator.call("POST", "/v1/tasks", &task.to_string()).await;
        assert_eq!(status, 201, "{answer}");
    }
    holds(&operator, "/v1/queues", "queues", "after", 6).await;
    holds(
        &operator,
        "/v1/queues?namespace=default",
        "queues",
        "after",
        3,
    )
    .await;
    holds(&operator, "/v1/queues?task_queue=q", "queues", "after", 3).await;
    holds(&operator, "/v1/namespaces", "namespaces", "after", 4).await;
    holds(&operator, "/v1/queues/unserved", "unserved", "after", 6).await;
    holds(&operator, "/v1/tasks", "tasks", "before", 6).await;

    for identity in ["b", "B", "a%20b", "ä"] {
        let path = format!("/v1/workers/{identity}/cordon");
        operator.change("POST", &path, "{}").await;
    }
    holds(&operator, "/v1/workers", "workers", "after", 4).await;

    for address in [
        r#"{"namespace": "zeta"}"#,
        r#"{"namespace": "Zeta"}"#,
        r#"{"task_queue": "x", "task_type": "t"}"#,
        r#"{"node": "n"}"#,
    ] {
        operator.change("POST", "/v1/pause", address).await;
    }
    holds(&operator, "/v1/pauses", "pauses", "after", 4).await;

    let members = r#"{"name": "w", "paused": true, "members": [
        {"task_queue": "w", "task_type": "t"}, {"task_queue": "w", "task_type": "t"},
        {"task_queue": "w", "task_type": "t"}]}"#;
    let (_, started) = operator.call("POST", "/v1/workflows", members).await;
    let workflow = started["workflow_id"].as_str().unwrap();
    let path = format!("/v1/workflows/{workflow}");
    holds(&operator, &format!("{path}/members"), "members", "after", 3).await;
    let events = walk(&operator, &format!("{path}/events"), "events", "after", 40).await;
    holds(
        &operator,
        &format!("{path}/events"),
        "events",
        "after",
        events.len(),
    )
    .await;
    holds(&operator, "/v1/workflows", "workflows", "before", 1).await;
}

#[tokio::test]
async fn pages_of_stopped_keys_are_the_list() {
    let db = TestDb::new().await;
    let replica = Replica::start(&db.url(), &[]).await;
    let client = db.connect().await;
    // Two of them at the same instant.
    let stopped = "with letters as (
            insert into fencepost.dead_letter (
                id, origin, route_id, enqueued_at, dead_at, attempt, losses, epoch, fence, priority, cause,
                error_class, settle_accepted, content_type, payload, concurrency_key
            )
            select n, n, (select route_id from fencepost.route limit 1), now(), now(), 1, 0, 1, 1, 1, 'failed',
                'x', false, 'text/plain', 'x', 'k' || n
            from generate_series(1, 4) as n
            returning id, concurrency_key
        )
        insert into fencepost.stopped_key (letter_id, key_hash, stopped_at)
        select id, id, '2030-01-01'::timestamptz + (id / 2) * interval '1 us' from letters";
    let task = "select fencepost.enqueue('q', 't')";
    client.batch_execute(task).await.unwrap();
    client.batch_execute(stopped).await.unwrap();
    let operator = Operator::of(&replica);
    holds(
        &operator,
        "/v1/queues/stopped-keys",
        "stopped_keys",
        "after",
        4,
    )
    .await;
}

#[tokio::test]
async fn pages_of_direct_requests_are_the_list() {
    let db = TestDb::new().await;
    let replica = Replica::start(&db.url(), &[]).await;
    let operator = Operator::of(&replica);
    let body = r#"{"task_queue": "q", "task_type": "t", "timeout": "1m"}"#;
    let waiting = (0..4).map(|_| operator.call("POST", "/v1/execute", body));
    let looked = async {
        eventually(STEP, async || {
            let list = operator.get("/v1/execute").await;
            (list["requests"].as_array().unwrap().len() == 4).then_some(())
        })
        .await;
        let first = operator.get("/v1/execute?limit=3").await;
        assert_eq!(first["requests"].as_array().unwrap().len(), 3);
        let next = first["next"].as_str().unwrap();
        let rest = operator
            .get(&format!("/v1/execute?limit=3&after={next}"))
            .await;
        assert_eq!(rest["requests"].as_array().unwrap().len(), 1);
        assert!(rest["next"].is_null());
    };
    tokio::select! {
        () = looked => {}
        answers = futures_util::future::join_all(waiting) => panic!("{answers:?}"),
    }
}
