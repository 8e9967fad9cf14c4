//! Rates: so many starts in a time over all replicas, without a lost token, a spent attempt or a busy loop.

use std::time::{Duration, Instant};

use fencepost::domain::quota::Limited;
use fencepost::store::Client;
use fencepost::store::claim::{ClaimRequest, Claimed, LaneRequest, claim_within};
use fencepost::store::quotas::Ask;
use serde_json::json;

use crate::lifecycle::{SHORT, Stage};
use crate::support::queue::{DEADLINES, assert_sound};
use crate::support::tasks::{count, enqueue, enqueue_many};
use crate::support::{Operator, Queue, Replica, TestDb, eventually, fencepost};
use crate::tenants::Crowd;

const STEP: Duration = Duration::from_secs(20);
const PATIENCE: Duration = Duration::from_secs(60);

async fn claim(queue: &Queue, client: &mut Client, limits: &[Limited], limit: i32) -> Claimed {
    let lane = LaneRequest {
        namespace: 1,
        limited: !limits.is_empty(),
        ..Queue::lane(1, limit)
    };
    let request = ClaimRequest {
        quotas: limits.iter().map(|of| Ask::anew(*of)).collect(),
        ..queue.request(vec![lane], vec![limit])
    };
    let (_, got) = claim_within(client, queue.dispatcher, request, DEADLINES)
        .await
        .unwrap();
    got
}

async fn set(client: &Client, call: &str) {
    let call = format!("select fencepost.{call}");
    client.batch_execute(&call).await.unwrap();
}

#[tokio::test]
async fn a_rate_binds_the_next_claim_whatever_the_replica_knows() {
    let queue = Queue::new().await;
    queue.enqueue(100).await;
    let mut client = queue.client().await;
    let (of, both) = (
        [Limited::Namespace(1)],
        [Limited::Namespace(1), Limited::Route(1)],
    );
    set(&client, "set_namespace_rate('default', '6/h', 4)").await;
    // A replica that has not heard of it.
    assert_eq!(claim(&queue, &mut client, &[], 10).await.claims.len(), 0);
    assert_eq!(claim(&queue, &mut client, &of, 3).await.claims.len(), 3);
    assert_eq!(claim(&queue, &mut client, &of, 3).await.claims.len(), 1);
    let got = claim(&queue, &mut client, &of, 3).await;
    assert_eq!((got.claims.len(), got.usages[0].left()), (0, Some(0)));

    // The same again changes nothing; another one begins with a full bucket.
    set(&client, "set_namespace_rate('default', '6/h', 4)").await;
    assert_eq!(claim(&queue, &mut client, &of, 9).await.claims.len(), 0);
    set(&client, "set_namespace_rate('default', burst => 6)").await;
    assert_eq!(claim(&queue, &mut client, &of, 9).await.claims.len(), 6);
    // That of a route pays too, and both have to be heeded.
    set(&client, "set_namespace_rate('default', '1000000/s', 50)").await;
    set(
        &client,
        "set_queue_rate('q', 't', rate => '1/h', burst => 2)",
    )
    .await;
    for (limits, taken) in [
        (&of[..], 0),
        (&both[1..], 0),
        (&both[..], 2),
        (&both[..], 0),
    ] {
        let got = claim(&queue, &mut client, limits, 9).await;
        assert_eq!(got.claims.len(), taken, "{limits:?}");
    }
    // A quota beside it counts as before.
    set(&client, "set_queue_rate('q', 't', rate => 'none')").await;
    let claimed = queue
        .number("select count(*) from fencepost.live where state = 1")
        .await;
    let quota = format!("set_namespace('default', max_in_flight => {})", claimed + 3);
    set(&client, &quota).await;
    assert_eq!(claim(&queue, &mut client, &of, 9).await.claims.len(), 3);
    set(&client, "set_namespace('default', max_in_flight => -1)").await;
    set(&client, "set_namespace_rate('default', 'none')").await;
    assert_eq!(claim(&queue, &mut client, &of, 9).await.claims.len(), 9);
    assert_eq!(claim(&queue, &mut client, &[], 9).await.claims.len(), 9);
    queue.assert_sound().await;
}

#[tokio::test]
async fn a_claim_that_takes_less_than_its_tokens_pays_for_what_it_takes() {
    let queue = Queue::new().await;
    queue.enqueue(2).await;
    let mut client = queue.client().await;
    set(&client, "set_namespace_rate('default', '1/h', 5)").await;
    let of = [Limited::Namespace(1)];
    assert_eq!(claim(&queue, &mut client, &of, 9).await.claims.len(), 2);
    queue.enqueue(9).await;
    assert_eq!(claim(&queue, &mut client, &of, 9).await.claims.len(), 3);
    assert_eq!(claim(&queue, &mut client, &of, 9).await.claims.len(), 0);
}

async fn said(database: &str, arguments: &[&str]) {
    let output = fencepost(database, arguments).await;
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{said}");
}

const STARTED: &str = "select count(*) from fencepost.tasks where state in ('running', 'done')";

#[tokio::test]
async fn throttled_is_not_failed_and_two_replicas_share_one_bucket() {
    const TASKS: i64 = 4_000;
    let test = TestDb::new().await;
    let db = test.connect().await;
    let mut crowd = Crowd::new();
    let mut replicas = Vec::new();
    for _ in 0..2 {
        replicas.push(Replica::start(&test.url(), SHORT).await);
    }
    for replica in &replicas {
        crowd.hire(vec![replica.url()], 20, Duration::from_millis(1));
    }
    said(
        &test.url(),
        &[
            "namespace",
            "set",
            "default",
            "--rate",
            "50/s",
            "--burst",
            "10",
        ],
    )
    .await;
    let begun = Instant::now();
    enqueue_many(&db, i32::try_from(TASKS).unwrap()).await;
    // However often one looks, there are never more than the rate and one burst.
    let mut seen = 0;
    while seen < 200 {
        seen = count(&db, STARTED).await;
        let most = 50.0 * begun.elapsed().as_secs_f64() + 10.0;
        assert!(seen as f64 <= most, "{seen} started, {most} may have");
        assert!(begun.elapsed() < PATIENCE, "{seen} started");
    }
    // The tokens come from the bucket: as long as tasks wait, it is emptied again and again.
    let bucket =
        "select extract(epoch from full_at - statement_timestamp())::float8 from fencepost.bucket";
    eventually(STEP, async || {
        let owed: f64 = db.query_one(bucket, &[]).await.unwrap().get(0);
        (owed > 0.0).then_some(())
    })
    .await;
    assert!(begun.elapsed().as_secs_f64() >= f64::from(200 - 10) / 50.0);
    let untouched = "select count(*) from fencepost.live where attempt > 0 or losses > 0 or (state = 0 and fence > 0)";
    assert_eq!(count(&db, untouched).await, 0);
    assert_eq!(
        count(&db, "select count(*) from fencepost.failure").await,
        0
    );
    let replica = Operator::of(&replicas[0]);
    let waits = count(&db, "select max(id) from fencepost.live where state = 0").await;
    let why = replica.stands(waits, "throttled").await;
    assert!(why["detail"].as_str().unwrap().contains("50/s"), "{why}");
    let listed = eventually(STEP, async || {
        let queue = replica.get("/v1/queues?task_queue=q").await["queues"][0].clone();
        queue["throttled_until"].is_string().then_some(queue)
    })
    .await;
    assert_eq!(listed["rate"], json!(null), "it is its namespace's");

    // At its rate the rest would take more than a minute.
    said(
        &test.url(),
        &["namespace", "set", "default", "--rate", "none"],
    )
    .await;
    eventually(PATIENCE, async || {
        let done = count(
            &db,
            "select count(*) from fencepost.outcome where state = 1",
        )
        .await;
        (done == TASKS).then_some(())
    })
    .await;
    assert_eq!(crowd.starts().len(), usize::try_from(TASKS).unwrap());
    crowd.dismiss().await;
    assert_sound(&test.pool().get().await.unwrap()).await;
}

#[tokio::test]
async fn a_throttled_queue_costs_no_more_than_twice_an_unlimited_one() {
    const TASKS: usize = 150;
    const COMMITS: &str =
        "select xact_commit from pg_stat_database where datname = current_database()";
    let test = TestDb::new().await;
    let db = test.connect().await;
    let replica = Replica::start(&test.url(), SHORT).await;
    let mut crowd = Crowd::new();
    crowd.hire(vec![replica.url()], 20, Duration::from_millis(1));
    // A session sends its statistics some time after its transactions, within ten beats.
    let settled = async || {
        let beats = "select sum(beat)::bigint from fencepost.dispatcher";
        let start = count(&db, beats).await;
        while count(&db, beats).await < start + 10 {
            db.batch_execute("select pg_sleep(0.1)").await.unwrap();
        }
        count(&db, COMMITS).await
    };
    let before = settled().await;
    let mut ticks = tokio::time::interval(Duration::from_millis(20));
    for task in 0..TASKS {
        ticks.tick().await;
        enqueue(&db, "").await;
        crowd
            .until(|starts| (starts.len() > task).then_some(()))
            .await;
    }
    let unlimited = settled().await - before - i64::try_from(TASKS).unwrap();

    said(
        &test.url(),
        &[
            "namespace",
            "set",
            "default",
            "--rate",
            "50/s",
            "--burst",
            "10",
        ],
    )
    .await;
    let before = settled().await;
    enqueue_many(&db, 20_000).await;
    crowd
        .until(|starts| (starts.len() >= 2 * TASKS).then_some(()))
        .await;
    let started = crowd.starts().len() - TASKS;
    said(&test.url(), &["pause", "--queue", "q"]).await;
    let throttled = settled().await - before;
    println!("{unlimited} commits for {TASKS} tasks, {throttled} for {started} throttled ones");
    assert!(throttled <= 2 * unlimited);
    crowd.dismiss().await;
}

#[tokio::test]
async fn a_replica_that_is_killed_in_mid_claim_takes_no_token_along() {
    let test = TestDb::new().await;
    let (db, holder) = (test.connect().await, test.connect().await);
    let mut crowd = Crowd::new();
    let env = [("REPLICA__BEAT", "300ms"), ("REPLICA__DEAD_AFTER", "3s")];
    let mut doomed = Replica::start(&test.url(), &env).await;
    said(
        &test.url(),
        &[
            "namespace",
            "set",
            "default",
            "--rate",
            "1/h",
            "--burst",
            "5",
        ],
    )
    .await;
    // Nobody can pay: the claim is made, and waits before its end.
    holder
        .batch_execute("begin; lock table fencepost.bucket in share mode")
        .await
        .unwrap();
    enqueue_many(&db, 20).await;
    crowd.hire(vec![doomed.url()], 20, Duration::from_millis(1));
    let waiting = "select count(*) from pg_locks where relation = 'fencepost.bucket'::regclass and not granted";
    eventually(STEP, async || (count(&db, waiting).await > 0).then_some(())).await;
    doomed.kill().await;
    holder.batch_execute("commit").await.unwrap();
    let heir = Replica::start(&test.url(), &env).await;
    crowd.hire(vec![heir.url()], 20, Duration::from_millis(1));
    crowd
        .until(|starts| (starts.len() >= 5).then_some(()))
        .await;
    eventually(STEP, async || {
        let done = count(
            &db,
            "select count(*) from fencepost.outcome where state = 1",
        )
        .await;
        (done == 5).then_some(())
    })
    .await;
    let operator = Operator::of(&heir);
    let waits = count(&db, "select max(id) from fencepost.live where state = 0").await;
    operator.stands(waits, "throttled").await;
    assert_eq!(crowd.starts().len(), 5);
    assert_eq!(
        count(
            &db,
            "select sum(attempt + losses + fence) from fencepost.live"
        )
        .await,
        0
    );
    crowd.dismiss().await;
}

#[tokio::test]
async fn every_door_sets_rates_and_refuses_the_same() {
    let stage = Stage::set(&[]).await;
    let operator = Operator::of(&stage.replica);
    let shown = |view: &serde_json::Value| (view["rate"].clone(), view["burst"].clone());
    for (body, rate, burst) in [
        (r#"{"rate": "90/min"}"#, json!("90/min"), json!(1)),
        (r#"{"rate": "5/s"}"#, json!("5/s"), json!(5)),
        (r#"{"burst": 10}"#, json!("5/s"), json!(10)),
        (r#"{"rate": "7/h", "weight": 2}"#, json!("7/h"), json!(10)),
        (r#"{"rate": "none"}"#, json!(null), json!(null)),
        (r#"{"rate": "4/s"}"#, json!("4/s"), json!(4)),
    ] {
        let namespace = operator.change("PUT", "/v1/namespaces/t1", body).await;
        assert_eq!(shown(&namespace), (rate, burst), "{body}");
    }
    let cases = [
        (Some("5"), None, "FP-062", "rate"),
        (Some("0/s"), None, "FP-062", "rate"),
        (Some("1000001/s"), None, "FP-062", "rate"),
        (Some("99999999/s"), None, "FP-062", "rate"),
        (Some("-1/s"), None, "FP-062", "rate"),
        (Some("1.5/s"), None, "FP-062", "rate"),
        (Some("5/d"), None, "FP-062", "rate"),
        (Some(""), None, "FP-062", "rate"),
        (Some("5/s"), Some(0), "FP-063", "burst"),
        (Some("5/s"), Some(1_000_001), "FP-063", "burst"),
        (Some("none"), Some(3), "FP-063", "burst"),
    ];
    for (rate, burst, code, field) in cases {
        let body = json!({"rate": rate, "burst": burst, "weight": 9}).to_string();
        let (status, problem) = operator.call("PUT", "/v1/namespaces/t1", &body).await;
        assert_eq!(
            (status, &problem["code"], &problem["field"]),
            (400, &json!(code), &json!(field)),
            "{body}"
        );
        let body = json!({"task_queue": "q", "task_type": "t", "rate": rate, "burst": burst});
        let (status, problem) = operator.call("POST", "/v1/queues", &body.to_string()).await;
        assert_eq!(
            (status, &problem["code"], &problem["field"]),
            (400, &json!(code), &json!(field)),
            "{body}"
        );
        let (rate, burst) = (
            format!("--rate={}", rate.unwrap_or_default()),
            burst.map(|burst: i32| format!("--burst={burst}")),
        );
        let mut arguments = vec!["namespace", "set", "t1", &rate];
        arguments.extend(burst.as_deref());
        let output = fencepost(&stage.url(), &arguments).await;
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(
            !output.status.success() && said.contains(code),
            "{arguments:?}: {said}"
        );
    }
    let refused = stage
        .db
        .batch_execute("select fencepost.set_namespace_rate('t2', burst => 3)")
        .await
        .unwrap_err();
    assert_eq!(refused.code().unwrap().code(), "FP063", "there is no rate");
    let namespaces = operator.get("/v1/namespaces").await;
    let t1 = namespaces["namespaces"]
        .as_array()
        .unwrap()
        .iter()
        .find(|namespace| namespace["namespace"] == "t1")
        .unwrap();
    assert_eq!(t1["weight"], 2, "all or nothing");
    let known = count(&stage.db, "select count(*) from fencepost.route").await;
    assert_eq!(known, 0, "nothing of a queue that is refused");

    said(
        &stage.url(),
        &[
            "queue", "declare", "--queue", "q", "--type", "t", "--rate", "3/min", "--burst", "2",
        ],
    )
    .await;
    let of_queue = async || operator.get("/v1/queues?task_queue=q").await["queues"][0].clone();
    assert_eq!(shown(&of_queue().await), (json!("3/min"), json!(2)));
    let body = r#"{"task_queue": "q", "task_type": "t", "rate": "none"}"#;
    operator.change("POST", "/v1/queues", body).await;
    assert_eq!(shown(&of_queue().await), (json!(null), json!(null)));
}
