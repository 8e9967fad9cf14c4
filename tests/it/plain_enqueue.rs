//! A plain enqueue writes and refuses what the general one does, whichever call it comes by.

use tokio_postgres::Client;
use tokio_postgres::error::SqlState;

use crate::support::TestDb;

/// Everything of a task but its id and the time.
const ROWS: &str = "select
    to_jsonb(task) - '{id, origin, enqueued_at}'::text[] || to_jsonb(live) - '{id, visible_after}'::text[]
    || jsonb_build_object(
        'first', task.origin = task.id, 'due', live.visible_after = task.enqueued_at,
        'recent', task.enqueued_at between now() - interval '1 minute' and clock_timestamp(),
        'id', fencepost.enqueued_ms(task.id) between fencepost.id_ms(task.enqueued_at) - 1000 and fencepost.id_ms(task.enqueued_at)
    ) #>> '{}'
    from fencepost.task inner join fencepost.live using (id) where id = $1";

/// Calls that write one task as each of these says; the last one writes two and is never plain.
fn calls(payload: &str, content_type: &str, priority: &str) -> [String; 3] {
    let payload = format!("convert_to({payload}, 'UTF8')");
    let batch = |times| {
        format!(
            "select task_id from fencepost.enqueue_many(
                task_queue => array['q'], task_type => array['t'], payload => array_fill({payload}, array[{times}]),
                content_type => array[{content_type}]::text[], priority => array[{priority}]::int[]
            ) limit 1"
        )
    };
    let one = format!(
        "select task_id from fencepost.enqueue_bytes(
            'q', 't', {payload}, content_type => {content_type}, priority => {priority}
        )"
    );
    [batch(1), one, batch(2)]
}

async fn written(db: &Client, call: &str) -> String {
    let id: i64 = db.query_one(call, &[]).await.unwrap().get(0);
    db.query_one(ROWS, &[&id]).await.unwrap().get(0)
}

/// Whether the way for plain tasks takes it.
async fn is_plain(db: &Client, payload: &str, content_type: &str, priority: &str) -> bool {
    let call = format!(
        "select fencepost.put_plain_task(
            'default', 'q', 't', convert_to({payload}, 'UTF8'), {content_type}, {priority}
        ) is not null"
    );
    db.query_one(&call, &[]).await.unwrap().get(0)
}

async fn refused(db: &Client, call: &str) -> (SqlState, String, String, String) {
    let error = db.query(call, &[]).await.unwrap_err();
    let error = error.as_db_error().unwrap();
    let part = |part: Option<&str>| part.unwrap_or_default().to_owned();
    let message = error.message().trim_start_matches("task 1: ").to_owned();
    (
        error.code().clone(),
        part(error.detail()),
        part(error.column()),
        message,
    )
}

async fn connected(test: &TestDb) -> Client {
    let db = test.connect().await;
    // The route is known from now on, as for all but the first task.
    db.execute("select fencepost.enqueue('q', 't')", &[])
        .await
        .unwrap();
    db
}

#[tokio::test]
async fn every_call_writes_the_same_rows() {
    let test = TestDb::new().await;
    let db = connected(&test).await;
    for (payload, content_type, priority) in [
        (
            r#"'{"b": 1,   "a": [1.50, null, "\u00e9"]}'"#,
            "'application/json'",
            "1",
        ),
        ("'3'", "null", "null"),
        ("'not json'", "'application/octet-stream'", "0"),
        ("''", "'application/octet-stream'", "3"),
        ("'of a kind'", "'text/plain; charset=utf-8'", "2"),
    ] {
        let calls = calls(payload, content_type, priority);
        let expected = written(&db, &calls[2]).await;
        for call in &calls[..2] {
            assert_eq!(written(&db, call).await, expected, "{call}");
        }
    }
    let json =
        r#"select task_id from fencepost.enqueue('q', 't', '{"b": 1, "a": 2}', priority => 2)"#;
    let calls = calls(r#"'{"a":2,"b":1}'"#, "'application/json'", "2");
    assert_eq!(written(&db, json).await, written(&db, &calls[2]).await);
}

#[tokio::test]
async fn every_call_refuses_the_same() {
    let test = TestDb::new().await;
    let db = connected(&test).await;
    let large = "repeat('x', 9000000)";
    for (payload, content_type, priority, code) in [
        ("null", "'application/json'", "1", "FP002"),
        (large, "'application/octet-stream'", "1", "FP002"),
        ("'{'", "'application/json'", "1", "FP003"),
        (r#"'"\u0000"'"#, "null", "1", "FP003"),
        ("'x'", "'Text'", "1", "FP004"),
        ("'1'", "'application/json'", "4", "FP006"),
        ("'1'", "'application/octet-stream'", "-1", "FP006"),
    ] {
        let calls = calls(payload, content_type, priority);
        let expected = refused(&db, &calls[2]).await;
        assert_eq!(expected.0.code(), code);
        assert!(!is_plain(&db, payload, content_type, priority).await);
        for call in &calls[..2] {
            assert_eq!(refused(&db, call).await, expected, "{call}");
        }
    }
    let strict = "select fencepost.set_namespace('default', require_declared_queues => true)";
    db.execute(strict, &[]).await.unwrap();
    let calls = calls("'1'", "null", "1");
    let expected = refused(&db, &calls[2]).await;
    assert_eq!(expected.0.code(), "FP015");
    for call in &calls[..2] {
        assert_eq!(refused(&db, call).await, expected, "{call}");
    }
    let tasks: i64 = db
        .query_one("select count(*) from fencepost.task", &[])
        .await
        .unwrap()
        .get(0);
    assert_eq!(tasks, 1);
}
