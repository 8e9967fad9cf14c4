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

/// Calls that write one task, or three, as each of these says, all of them by the plain way where they may.
fn calls(payload: &str, content_type: &str, priority: &str) -> [String; 4] {
    let spelled = format!("convert_to({payload}, 'UTF8')");
    let one = format!(
        "select task_id from fencepost.enqueue_bytes(
            'q', 't', {spelled}, content_type => {content_type}, priority => {priority}
        )"
    );
    let full = format!(
        "select task_id from fencepost.enqueue_many(
            array['q', 'q'], array['t', 't'], array[{spelled}, {spelled}],
            content_type => array_fill({content_type}::text, array[2]), namespace => array['default', 'default'],
            priority => array_fill({priority}::int, array[2])
        ) limit 1"
    );
    let batch = |tasks| batch(payload, content_type, priority, tasks, "null");
    [one, full, batch(1), batch(3)]
}

/// The same by the general way: an array that may hold a node is given, so it is not plain.
fn general(payload: &str, content_type: &str, priority: &str) -> String {
    batch(payload, content_type, priority, 2, "array[null]::text[]")
}

fn batch(payload: &str, content_type: &str, priority: &str, tasks: u8, node: &str) -> String {
    format!(
        "select task_id from fencepost.enqueue_many(
            task_queue => array['q'], task_type => array['t'],
            payload => array_fill(convert_to({payload}, 'UTF8'), array[{tasks}]),
            content_type => array[{content_type}]::text[], priority => array[{priority}]::int[], node => {node}
        ) limit 1"
    )
}

async fn written(db: &Client, call: &str) -> String {
    let id: i64 = db.query_one(call, &[]).await.unwrap().get(0);
    db.query_one(ROWS, &[&id]).await.unwrap().get(0)
}

/// Whether the ways for plain tasks take it, alone and in a batch.
async fn is_plain(db: &Client, payload: &str, content_type: &str, priority: &str) -> [bool; 2] {
    let payload = format!("convert_to({payload}, 'UTF8')");
    let call = format!(
        "select
            fencepost.put_plain_task('default', 'q', 't', {payload}, {content_type}, {priority}) is not null,
            fencepost.put_plain_tasks(
                'default', 'q', 't', array['1', {payload}], {content_type}, {priority}
            ) is not null"
    );
    let row = db.query_one(&call, &[]).await.unwrap();
    [row.get(0), row.get(1)]
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
        let expected = written(&db, &general(payload, content_type, priority)).await;
        for call in calls(payload, content_type, priority) {
            assert_eq!(written(&db, &call).await, expected, "{call}");
        }
    }
    let json =
        r#"select task_id from fencepost.enqueue('q', 't', '{"b": 1, "a": 2}', priority => 2)"#;
    let general = general(r#"'{"a":2,"b":1}'"#, "'application/json'", "2");
    assert_eq!(written(&db, json).await, written(&db, &general).await);
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
        (r#"'"\u0000"'"#, "'application/json'", "1", "FP003"),
        ("'x'", "'Text'", "1", "FP004"),
        ("'1'", "'application/json'", "4", "FP006"),
        ("'1'", "'application/octet-stream'", "-1", "FP006"),
    ] {
        let expected = refused(&db, &general(payload, content_type, priority)).await;
        assert_eq!(expected.0.code(), code);
        let plain = is_plain(&db, payload, content_type, priority).await;
        assert_eq!(plain, [false, false], "{payload}");
        for call in calls(payload, content_type, priority) {
            assert_eq!(refused(&db, &call).await, expected, "{call}");
        }
    }
    let strict = "select fencepost.set_namespace('default', require_declared_queues => true)";
    db.execute(strict, &[]).await.unwrap();
    let json = "'application/json'";
    let expected = refused(&db, &general("'1'", json, "1")).await;
    assert_eq!(expected.0.code(), "FP015");
    assert_eq!(is_plain(&db, "'1'", json, "1").await, [false, false]);
    for call in calls("'1'", json, "1") {
        assert_eq!(refused(&db, &call).await, expected, "{call}");
    }
    let tasks: i64 = db
        .query_one("select count(*) from fencepost.task", &[])
        .await
        .unwrap()
        .get(0);
    assert_eq!(tasks, 1);
}

/// How often a call goes the plain way and the general one: 1 for each that it takes.
async fn ways(db: &Client, call: &str) -> [i64; 2] {
    let calls = "select
        coalesce(sum(calls) filter (where funcname = 'put_plain_tasks'), 0)::bigint,
        coalesce(sum(calls) filter (where funcname = 'put_tasks'), 0)::bigint
        from pg_stat_xact_user_functions where schemaname = 'fencepost'";
    let counts = async || {
        let row = db.query_one(calls, &[]).await.unwrap();
        let counts: [i64; 2] = [row.get(0), row.get(1)];
        counts
    };
    db.batch_execute("begin; set local track_functions = 'all'")
        .await
        .unwrap();
    // What earlier transactions called may not have been reported yet.
    let before = counts().await;
    db.query(call, &[]).await.unwrap();
    let after = counts().await;
    db.batch_execute("rollback").await.unwrap();
    [after[0] - before[0], after[1] - before[1]]
}

#[tokio::test]
async fn a_batch_of_one_kind_goes_the_plain_way_and_no_other_does() {
    let test = TestDb::new().await;
    let db = connected(&test).await;
    let call = |more: &str| {
        format!(
            "select fencepost.enqueue_many(
                task_type => array['t'], payload => array['1', '2']::bytea[], {more}
            )"
        )
    };
    for plain in [
        "task_queue => array['q']",
        "task_queue => array['q', 'q'], priority => array[3, 3]",
        "task_queue => array['q'], content_type => array['application/octet-stream'], namespace => array['default']",
    ] {
        assert_eq!(ways(&db, &call(plain)).await, [1, 0], "{plain}");
    }
    for other in [
        "task_queue => array['q', 'r']",
        "task_queue => array['q'], priority => array[0, 3]",
        "task_queue => array['q'], priority => array[1, null]",
        "task_queue => array['q'], content_type => array['application/json', 'application/octet-stream']",
        "task_queue => array['q'], namespace => array['default', 'other']",
        "task_queue => array['q'], node => array['n']",
        "task_queue => array['q'], delay => array['1 s']::interval[]",
        "task_queue => array['q'], labels => array['{}']::jsonb[]",
    ] {
        assert_eq!(ways(&db, &call(other)).await, [0, 1], "{other}");
    }
    let mixed = "select task_id from fencepost.enqueue_many(
        array['q', 'r'], array['t'], array['1', '2']::bytea[], priority => array[0, 3],
        content_type => array['application/json', 'application/octet-stream']
    ) order by ordinal";
    let rows = db.query(mixed, &[]).await.unwrap();
    let kept = "select route.task_queue, live.priority, task.content_type
        from fencepost.task
        inner join fencepost.live using (id)
        inner join fencepost.route on route.route_id = live.route_id
        where task.id = $1";
    let mut seen = Vec::new();
    for row in rows {
        let id: i64 = row.get(0);
        let row = db.query_one(kept, &[&id]).await.unwrap();
        let (queue, priority, kind): (String, i16, String) = (row.get(0), row.get(1), row.get(2));
        seen.push((queue, priority, kind));
    }
    let expected = [
        ("q", 0, "application/json"),
        ("r", 3, "application/octet-stream"),
    ];
    assert_eq!(
        seen,
        expected.map(|(queue, priority, kind)| (queue.to_owned(), priority, kind.to_owned()))
    );
}

#[tokio::test]
async fn a_batch_keeps_its_order_and_names_the_task_at_fault() {
    let test = TestDb::new().await;
    let db = connected(&test).await;
    let plain = is_plain(&db, "'2'", "'application/json'", "0").await;
    assert_eq!(plain, [true, true]);
    let many = "select task_id from fencepost.enqueue_many(
            array['q'], array['t'], array(select convert_to(n::text, 'UTF8') from generate_series(1, 2000) as n)
        ) where created and answer = 'created' order by ordinal";
    let ids = db.query(many, &[]).await.unwrap();
    let ids: Vec<i64> = ids.iter().map(|row| row.get(0)).collect();
    let stored = "select array_agg(convert_from(task.payload, 'UTF8')::int order by given.ordinal)
        from unnest($1::bigint[]) with ordinality as given (id, ordinal)
        inner join fencepost.task on task.id = given.id";
    let stored: Vec<i32> = db.query_one(stored, &[&ids]).await.unwrap().get(0);
    assert_eq!(stored, (1..=2000).collect::<Vec<i32>>());
    for (payloads, says) in [
        ("'1', '{', '{'", "task 2: payload is not JSON"),
        ("'1', '2', null", "task 3: payload must not be null"),
    ] {
        let call = format!(
            "select fencepost.enqueue_many(array['q'], array['t'], array[{payloads}]::bytea[])"
        );
        let error = db.query(&call, &[]).await.unwrap_err();
        let message = error.as_db_error().unwrap().message().to_owned();
        assert!(message.starts_with(says), "{message}");
    }
    let uneven =
        "select fencepost.enqueue_many(array['q', 'q'], array['t'], array['1', '2', '3']::bytea[])";
    let error = db.query(uneven, &[]).await.unwrap_err();
    assert_eq!(error.code().unwrap().code(), "FP010");
    let nothing =
        "select count(*) from fencepost.enqueue_many(array['q'], array['t'], array[]::bytea[])";
    let none: i64 = db.query_one(nothing, &[]).await.unwrap().get(0);
    assert_eq!(none, 0);
}
