//! Rates of concurrency keys: how many tasks of a queue with the same key start in a time.

use std::time::{Duration, Instant};

use fencepost::domain::id::{KeyHash, TaskId, Token};
use fencepost::domain::settlement::Move;
use fencepost::store::keys::{self, Freed};
use fencepost::store::retention;
use fencepost::store::settle::{Goes, Return};
use serde_json::json;

use crate::keys::answer_looks;
use crate::lifecycle::{SHORT, Stage};
use crate::support::queue::failure;
use crate::support::tasks::{count, enqueue};
use crate::support::{Operator, Queue, Replica, TestDb, eventually, fencepost};
use crate::tenants::Crowd;

const STEP: Duration = Duration::from_secs(20);
const LET_GO: &str = "select count(*) from fencepost.live where hold & 2 = 0 and state = 0";

/// One look at every key that has a task, as replicas do it; answers what waits for a token.
async fn free_all(queue: &Queue) -> Vec<Freed> {
    let client = queue.client().await;
    let select = "select distinct key_hash from fencepost.live where key_hash is not null";
    let rows = client.query(select, &[]).await.unwrap();
    let asked: Vec<KeyHash> = rows.iter().map(|row| row.get(0)).collect();
    loop {
        let freed = keys::free(&client, &asked, &[]).await.unwrap();
        if freed.iter().all(|freed| !freed.again) {
            return freed;
        }
        let is_news = freed.iter().all(|freed| !freed.again || freed.tasks > 0);
        assert!(is_news, "nobody else is at the keys: {freed:?}");
    }
}

/// How long until the next token of the only key that waits for one, in whole seconds.
async fn token_in(queue: &Queue) -> u64 {
    let freed = free_all(queue).await;
    let mut waits = freed.iter().filter_map(|freed| freed.token);
    let (_, wait) = waits.next().expect("a key waits for its token");
    assert_eq!(waits.next(), None);
    wait.as_secs()
}

async fn with_key(queue: &Queue, key: &str, tasks: usize) -> Vec<TaskId> {
    let mut ids = Vec::new();
    for _ in 0..tasks {
        ids.push(
            queue
                .enqueue_with(&format!("concurrency_key => '{key}'"))
                .await,
        );
    }
    ids
}

async fn set(queue: &Queue, rate: &str) {
    queue
        .execute(&format!("select fencepost.set_key_rate('q', 't', {rate})"))
        .await;
}

/// So much time passes for the buckets.
async fn pass(queue: &Queue, time: &str) {
    queue
        .execute(&format!(
            "update fencepost.key_bucket set full_at = full_at - interval '{time}'"
        ))
        .await;
}

async fn held(queue: &Queue, id: TaskId) -> bool {
    queue.row(id).await.hold == 2
}

#[tokio::test]
async fn each_key_starts_with_its_burst_and_goes_on_token_by_token() {
    let queue = Queue::new().await;
    queue
        .execute("select fencepost.declare_queue('q', 't', key_limit => 1000)")
        .await;
    set(&queue, "rate => '2/min', burst => 2").await;
    let a = with_key(&queue, "a", 6).await;
    let b = with_key(&queue, "b", 1).await;
    let free = queue.enqueue(1).await;
    for id in a.iter().chain(&b) {
        assert!(held(&queue, *id).await, "only a look lets it go");
    }
    let wait = token_in(&queue).await;
    assert!((28..=30).contains(&wait), "{wait}");
    let mut claimed: Vec<TaskId> = queue.claim(10).await.iter().map(|token| token.id).collect();
    claimed.sort_unstable();
    assert_eq!(claimed, [a[0], a[1], b[0], free[0]]);

    let wait = token_in(&queue).await;
    assert!((15..=30).contains(&wait), "{wait}");
    pass(&queue, "31 seconds").await;
    free_all(&queue).await;
    assert_eq!(queue.again().await.id, a[2]);
    assert_eq!(queue.number(LET_GO).await, 0);
    // What nobody asked for meanwhile is kept, but for no more than the burst.
    pass(&queue, "1 hour").await;
    let wait = token_in(&queue).await;
    assert!((28..=30).contains(&wait), "{wait}");
    assert_eq!(queue.number(LET_GO).await, 2);
    queue.assert_sound().await;
}

#[tokio::test]
async fn a_line_of_one_keeps_its_order_and_who_waits_for_a_token_spends_no_attempt() {
    let queue = Queue::new().await;
    set(&queue, "rate => '1/h'").await;
    let tasks = with_key(&queue, "a", 3).await;
    free_all(&queue).await;
    let token = queue.again().await;
    assert_eq!(token.id, tasks[0]);
    let freed = free_all(&queue).await;
    assert!(
        freed.iter().all(|freed| freed.token.is_none()),
        "it waits for the end of the one before it: {freed:?}"
    );
    assert!(queue.complete(token).await);
    for _ in 0..2 {
        let wait = token_in(&queue).await;
        assert!((3_500..=3_600).contains(&wait), "{wait}");
    }
    let row = queue.row(tasks[1]).await;
    assert_eq!((row.hold, row.attempt, row.fence), (2, 0, 0));
    assert_eq!(queue.claim(10).await, []);

    // Under another rate the key owes one of its tokens at most.
    set(&queue, "rate => '6/min'").await;
    let wait = token_in(&queue).await;
    assert!(wait <= 10, "{wait}");
    set(&queue, "rate => 'none'").await;
    free_all(&queue).await;
    assert_eq!(queue.again().await.id, tasks[1]);
    queue.assert_sound().await;
}

#[tokio::test]
async fn what_is_cancelled_while_it_waits_for_a_token_takes_none_along() {
    let queue = Queue::new().await;
    set(&queue, "rate => '1/min'").await;
    let tasks = with_key(&queue, "a", 5).await;
    free_all(&queue).await;
    let first = queue.again().await;
    assert!(queue.complete(first).await);
    token_in(&queue).await;
    for id in &tasks[1..4] {
        assert!(queue.cancel(*id).await.is_some());
    }
    let wait = token_in(&queue).await;
    assert!(wait < 60, "{wait}");
    pass(&queue, "61 seconds").await;
    free_all(&queue).await;
    assert_eq!(queue.again().await.id, tasks[4]);
    queue.assert_sound().await;
}

#[tokio::test]
async fn queues_share_the_line_of_a_key_and_not_its_tokens() {
    let queue = Queue::new().await;
    for queues in ["q", "u", "v"] {
        queue
            .execute(&format!(
                "select fencepost.declare_queue('{queues}', 't', key_limit => 5)"
            ))
            .await;
    }
    set(&queue, "rate => '1/h'").await;
    queue
        .execute("select fencepost.set_key_rate('v', 't', rate => '1/min', burst => 2)")
        .await;
    // Without a rate, two with the slow one, and one of each of the others behind them.
    let together = "select count(*) from fencepost.enqueue_many(
            task_queue => array['u', 'q', 'q', 'v', 'u'], task_type => array['t'], concurrency_key => array['a'],
            payload => array_fill('null'::bytea, array[5]))";
    assert_eq!(queue.number(together).await, 5);
    assert_eq!(queue.number(LET_GO).await, 1, "the one without a rate");
    answer_looks(&queue).await;
    let looks = "select count(*) from fencepost.key_look";
    assert_eq!(queue.number(looks).await, 0);
    assert_eq!(
        queue.number(LET_GO).await,
        2,
        "nobody passes the one that waits for a token"
    );
    queue
        .execute("select fencepost.enqueue('u', 't', 'null', concurrency_key => 'a')")
        .await;
    free_all(&queue).await;
    assert_eq!(queue.number(LET_GO).await, 2, "nor one that comes later");
    let wait = token_in(&queue).await;
    assert!((3_500..=3_600).contains(&wait), "{wait}");

    pass(&queue, "1 hour").await;
    let freed = free_all(&queue).await;
    assert!(freed.iter().all(|freed| freed.token.is_none()));
    assert_eq!(
        queue.number(LET_GO).await,
        5,
        "as many as the key has places"
    );
    // The slow queue owes its hour, whatever the other one has spent since.
    let owed =
        "select count(*) from fencepost.key_bucket where full_at > now() + interval '50 minutes'";
    assert_eq!(queue.number(owed).await, 1);
    queue.assert_sound().await;
}

#[tokio::test]
async fn full_buckets_leave_and_others_stay() {
    let queue = Queue::new().await;
    set(&queue, "rate => '1/h'").await;
    for key in ["a", "b", "c"] {
        with_key(&queue, key, 1).await;
    }
    free_all(&queue).await;
    let buckets = "select count(*) from fencepost.key_bucket";
    assert_eq!(queue.number(buckets).await, 3);
    let client = queue.client().await;
    assert_eq!(retention::expire_buckets(&client, 10).await.unwrap(), 0);
    pass(&queue, "1 hour").await;
    assert_eq!(retention::expire_buckets(&client, 2).await.unwrap(), 2);
    assert_eq!(retention::expire_buckets(&client, 2).await.unwrap(), 1);
    assert_eq!(queue.number(buckets).await, 0);
}

#[tokio::test]
async fn those_behind_a_task_that_waits_for_a_token_go_when_it_leaves() {
    let queue = Queue::new().await;
    queue
        .execute("select fencepost.declare_queue('u', 't', key_limit => 5)")
        .await;
    queue
        .execute("select fencepost.declare_queue('q', 't', key_limit => 5)")
        .await;
    set(&queue, "rate => '1/h'").await;
    for way in ["cancel", "expire", "replace"] {
        queue.execute("delete from fencepost.live").await;
        queue.execute("delete from fencepost.key_bucket").await;
        with_key(&queue, "a", 1).await;
        free_all(&queue).await;
        let waits = "concurrency_key => 'a', dispatch_key => 'd', options => '{\"on_duplicate\": \"replace\", \"dedupe_for_ms\": 0}'";
        let head = queue.enqueue_with(waits).await;
        queue
            .execute("select fencepost.enqueue('u', 't', 'null', concurrency_key => 'a')")
            .await;
        free_all(&queue).await;
        assert_eq!(queue.number(LET_GO).await, 1);
        queue.execute("delete from fencepost.key_look").await;
        match way {
            "cancel" => assert!(queue.cancel(head).await.is_some()),
            "expire" => {
                let token = Token {
                    id: head,
                    epoch: 0,
                    fence: 0,
                };
                let expired = Return {
                    owner: Some(0),
                    ..failure(token, Move::Expire)
                };
                assert_eq!(queue.give_back(expired).await, [Goes::Dead]);
            }
            _ => {
                let successor = queue.enqueue_with(waits).await;
                assert_ne!(successor, head);
            }
        }
        answer_looks(&queue).await;
        assert_eq!(queue.number(LET_GO).await, 2, "after {way}");
    }
}

/// A wait for a token lives in the memory of one replica, and the tokens in the database.
#[tokio::test]
async fn who_waits_for_a_token_is_found_by_another_replica_when_its_own_dies() {
    let test = TestDb::new().await;
    let db = test.connect().await;
    let mut first = Replica::start(&test.url(), SHORT).await;
    let operator = Operator::of(&first);
    let declaration = r#"{"task_queue": "q", "task_type": "t", "key_limit": 5, "key_rate": "20/min", "key_burst": 1}"#;
    operator.change("POST", "/v1/queues", declaration).await;
    for _ in 0..2 {
        enqueue(&db, "concurrency_key => 'a'").await;
    }
    let let_go = async |tasks: i64| {
        eventually(STEP, async || {
            (count(&db, LET_GO).await == tasks).then_some(())
        })
        .await;
    };
    let_go(1).await;
    // The look that the second one asked for is answered, so the only wait is the first replica's.
    eventually(STEP, async || {
        (count(&db, "select count(*) from fencepost.key_look").await == 0).then_some(())
    })
    .await;
    first.kill().await;
    assert_eq!(count(&db, LET_GO).await, 1);
    let _second = Replica::start(&test.url(), SHORT).await;
    let_go(2).await;
}

/// The history of starts keeps to the rate, over two replicas and with a failure that comes back.
#[tokio::test]
async fn two_replicas_keep_to_the_rate_of_a_key() {
    const RATE: f64 = 20.0;
    const TASKS: i32 = 40;
    let test = TestDb::new().await;
    let db = test.connect().await;
    let first = Replica::start(&test.url(), SHORT).await;
    let second = Replica::start(&test.url(), SHORT).await;
    let operator = Operator::of(&first);
    let declaration = r#"{"task_queue": "q", "task_type": "t", "key_limit": 50, "key_rate": "20/s", "key_burst": 1}"#;
    operator.change("POST", "/v1/queues", declaration).await;
    let mut crowd = Crowd::new();
    for replica in [&first, &second] {
        crowd.hire(vec![replica.url()], 20, Duration::from_millis(1));
    }
    let begun = Instant::now();
    for _ in 0..TASKS {
        enqueue(&db, "concurrency_key => 'a'").await;
    }
    let started = "select count(*) from fencepost.tasks where state in ('running', 'done')";
    let mut seen = 0;
    while seen < i64::from(TASKS) / 2 {
        seen = count(&db, started).await;
        let most = RATE * begun.elapsed().as_secs_f64() + 1.0;
        assert!(seen as f64 <= most, "{seen} started, {most} may have");
        assert!(begun.elapsed() < STEP, "{seen} started");
    }
    eventually(STEP, async || {
        (count(&db, started).await == i64::from(TASKS)).then_some(())
    })
    .await;
    let wasted = "select count(*) from fencepost.tasks where attempt > 0";
    assert_eq!(count(&db, wasted).await, 0);

    // The next one of a key says what it waits for, and for how long.
    let slow = r#"{"task_queue": "q", "task_type": "t", "key_rate": "1/h"}"#;
    operator.change("POST", "/v1/queues", slow).await;
    for _ in 0..2 {
        enqueue(&db, "concurrency_key => 'b'").await;
    }
    let waiting = "select coalesce(max(id), 0) from fencepost.live where key_hash is not null";
    eventually(STEP, async || {
        (count(&db, "select count(*) from fencepost.live").await == 1).then_some(())
    })
    .await;
    let why = operator
        .stands(count(&db, waiting).await, "throttled")
        .await;
    let detail = why["detail"].as_str().unwrap();
    assert!(detail.contains("rate of its concurrency key, 1/h"), "{why}");
    crowd.dismiss().await;
}

#[tokio::test]
async fn every_door_sets_a_rate_for_keys_and_refuses_the_same() {
    let stage = Stage::set(&[]).await;
    let operator = Operator::of(&stage.replica);
    for (rate, burst, code, field) in [
        ("5", None, "FP-062", "key_rate"),
        ("5/d", None, "FP-062", "key_rate"),
        ("5/s", Some(0), "FP-063", "key_burst"),
        ("none", Some(3), "FP-063", "key_burst"),
    ] {
        let body =
            json!({"task_queue": "q", "task_type": "t", "key_rate": rate, "key_burst": burst});
        let (status, problem) = operator.call("POST", "/v1/queues", &body.to_string()).await;
        assert_eq!(
            (status, &problem["code"], &problem["field"]),
            (400, &json!(code), &json!(field)),
            "{body}"
        );
        let rate = format!("--key-rate={rate}");
        let burst = burst.map(|burst: i32| format!("--key-burst={burst}"));
        let mut arguments = vec!["queue", "declare", "--queue", "q", "--type", "t", &rate];
        arguments.extend(burst.as_deref());
        let output = fencepost(&stage.url(), &arguments).await;
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(!output.status.success() && said.contains(code), "{said}");
    }
    assert_eq!(
        count(&stage.db, "select count(*) from fencepost.route").await,
        0
    );
    let arguments = [
        "queue",
        "declare",
        "--queue",
        "q",
        "--type",
        "t",
        "--key-rate",
        "90/min",
        "--key-burst",
        "3",
    ];
    assert!(fencepost(&stage.url(), &arguments).await.status.success());
    let shown = async || {
        let queue = operator.get("/v1/queues?task_queue=q").await["queues"][0].clone();
        (
            queue["key_rate"].clone(),
            queue["key_burst"].clone(),
            queue["rate"].clone(),
        )
    };
    assert_eq!(shown().await, (json!("90/min"), json!(3), json!(null)));
    let lift = r#"{"task_queue": "q", "task_type": "t", "key_rate": "none"}"#;
    operator.change("POST", "/v1/queues", lift).await;
    assert_eq!(shown().await, (json!(null), json!(null), json!(null)));
}
