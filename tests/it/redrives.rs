//! Redrives by filter: what replicas drive, through stops, crashes and second deaths.

use std::collections::HashSet;
use std::time::Duration;

use fencepost::worker::{Failure, Options, Success, Task, Worker};
use nix::sys::signal::Signal;
use serde_json::{Value, json};
use tokio::task::JoinSet;
use tokio_postgres::Client;

use crate::lifecycle::SHORT;
use crate::support::letters::bury;
use crate::support::queue::assert_sound;
use crate::support::tasks::count;
use crate::support::{Operator, Queue, Replica, TestDb, eventually, fencepost};

/// What a redrive of this size takes on a busy machine, unless something is broken.
const STEP: Duration = Duration::from_secs(40);

/// So many dead letters in each of these namespaces. Payloads are their numbers; each tenth has the key `k`.
async fn fill(db: &TestDb, client: &Client, namespaces: &[&str], each: i32) {
    for namespace in namespaces {
        client
            .query(
                "select count(*) from fencepost.enqueue_many(
                    array['q'], array['t'], (select array_agg(n::text::bytea) from generate_series(1, $2::int) as n),
                    namespace => array[$1::text],
                    concurrency_key => (
                        select array_agg(case when n % 10 = 0 then 'k' end) from generate_series(1, $2::int) as n
                    )
                )",
                &[namespace, &each],
            )
            .await
            .unwrap();
    }
    bury(&db.pool(), "true").await;
}

/// Starts a redrive and answers its number.
async fn start(operator: &Operator, body: Value) -> String {
    let (status, json) = operator
        .call("POST", "/v1/dead-letters/redrive", &body.to_string())
        .await;
    assert_eq!(status, 201, "{json}");
    json["redrive_id"].as_str().unwrap().to_owned()
}

/// Waits until a redrive is as `look` wants it.
async fn until(operator: &Operator, id: &str, look: impl Fn(&Value) -> bool) -> Value {
    let path = format!("/v1/redrives/{id}");
    eventually(STEP, async || {
        let redrive = operator.get(&path).await;
        look(&redrive).then_some(redrive)
    })
    .await
}

async fn change(operator: &Operator, id: &str, action: &str) -> Value {
    operator
        .change("POST", &format!("/v1/redrives/{id}/{action}"), "")
        .await
}

/// Counts, items, letters and tasks of all redrives agree.
async fn assert_exact(client: &Client) {
    let faults = count(
        client,
        "select count(*) from fencepost.redrive
        cross join lateral (
            select count(item.task_id) as redriven, count(item.skipped) as skipped
            from fencepost.redrive_item as item where item.redrive_id = redrive.redrive_id
        ) as found
        where (redrive.redriven, redrive.skipped) is distinct from (found.redriven, found.skipped)",
    )
    .await;
    assert_eq!(faults, 0);
    // One statement, so one snapshot: a replica may be at it meanwhile.
    let select = "select
            (select count(*) from fencepost.task where origin <> id),
            count(distinct redriven_as),
            count(redriven_as)
        from fencepost.dead_letter";
    let row = client.query_one(select, &[]).await.unwrap();
    let [made, letters, marked]: [i64; 3] = [0, 1, 2].map(|column| row.get(column));
    assert_eq!(
        (made, letters),
        (letters, marked),
        "each redriven letter has one task of its own"
    );
}

/// Workers of the namespaces whose handler fails for payloads that are multiples of seven.
fn work(workers: &mut JoinSet<()>, url: String) {
    let options = Options {
        connect: vec![url],
        namespaces: vec!["a".into(), "b".into(), "c".into()],
        task_queue: "q".into(),
        slots: 200,
        ..Options::default()
    };
    let worker = Worker::new(options).handle("t", async |task: Task| {
        let number: u64 = task.json()?;
        if number.is_multiple_of(7) {
            return Err(Failure::terminal("again", "seven"));
        }
        Ok(Success::empty())
    });
    workers.spawn(async move { worker.run(std::future::pending()).await.unwrap() });
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_redrive_keeps_its_rules_through_stop_restart_and_second_deaths() {
    const EACH: i32 = 5000;
    let db = TestDb::new().await;
    let client = db.connect().await;
    fill(&db, &client, &["a", "b", "c"], EACH).await;
    // One tenant's letters stay, one letter is redriven already and one is judged.
    let others = "select count(*) from fencepost.dead_letter inner join fencepost.route using (route_id)
        inner join fencepost.namespace using (namespace_id) where namespace.name = 'c' and redriven_as is not null";
    client
        .batch_execute(
            "update fencepost.dead_letter set judged = true
            where id = (select min(id) from fencepost.dead_letter where route_id = 1);
            select fencepost.redrive_dead_letters(array(
                select max(id) from fencepost.dead_letter where route_id = 2
            ))",
        )
        .await
        .unwrap();
    let mut replica = Replica::start(&db.url(), SHORT).await;
    let operator = Operator::of(&replica);
    // Two of the three tenants: the letters of the third are of another class.
    let plan = |more: Value| {
        let mut body =
            json!({"filter": {"error_class": "oops", "cause": "failed", "task_queue": "q"}});
        body.as_object_mut()
            .unwrap()
            .extend(more.as_object().unwrap().clone());
        body
    };
    client
        .execute(
            "update fencepost.dead_letter set error_class = 'other' where route_id = 3",
            &[],
        )
        .await
        .unwrap();
    let total = i64::from(2 * EACH) - 2;
    let (_, counted) = operator
        .call(
            "POST",
            "/v1/dead-letters/redrive",
            &plan(json!({"dry_run": true})).to_string(),
        )
        .await;
    assert_eq!(counted, json!({"letters": total}));

    let more = json!({"rate": 400, "by": "olga", "reason": "the disk is back"});
    let id = start(&operator, plan(more)).await;
    let half_way = until(&operator, &id, |one| one["redriven"].as_i64() > Some(400)).await;
    assert_eq!(
        (&half_way["total"], &half_way["by"]),
        (&json!(total), &json!("olga"))
    );
    let stopped = change(&operator, &id, "stop").await;
    assert_eq!(stopped["state"], "stopped");
    let so_far = stopped["redriven"].as_i64().unwrap();
    assert!(so_far < total, "{stopped}");
    let made = "select count(*) from fencepost.task where origin <> id";
    assert_eq!(count(&client, made).await, so_far + 1);

    // Another replica drives what is started later, and leaves the stopped one alone.
    replica.kill().await;
    let replica = Replica::start(&db.url(), SHORT).await;
    let operator = Operator::of(&replica);
    let judged = json!({"filter": {"judged": true, "namespace": "a"}, "forced": true});
    let small = start(&operator, judged).await;
    let small = until(&operator, &small, |one| one["state"] == "done").await;
    assert_eq!(
        (&small["total"], &small["redriven"]),
        (&json!(1), &json!(1))
    );
    let kept = operator.get(&format!("/v1/redrives/{id}")).await;
    assert_eq!(
        (&kept["state"], &kept["redriven"]),
        (&json!("stopped"), &json!(so_far))
    );
    assert_eq!(count(&client, made).await, so_far + 2);
    assert_exact(&client).await;

    // The rest in less time than it was ordered to take.
    client
        .execute(
            "update fencepost.redrive set rate = 5000 where state = 'stopped'",
            &[],
        )
        .await
        .unwrap();
    let mut workers = JoinSet::new();
    work(&mut workers, replica.url());
    let resumed = change(&operator, &id, "resume").await;
    assert_eq!(resumed["state"], "running");
    let done = until(&operator, &id, |one| one["state"] == "done").await;
    assert_eq!(
        (&done["redriven"], &done["skipped"], &done["remaining"]),
        (&json!(total), &json!(0), &json!(0))
    );
    assert_exact(&client).await;
    assert_eq!(count(&client, others).await, 0);
    eventually(STEP, async || {
        let left = count(&client, "select count(*) from fencepost.live").await;
        (left == 0).then_some(())
    })
    .await;
    // Second deaths are letters of their own, with the first in their history, and in no redrive that ran before.
    let again = i64::from(EACH / 7) * 2;
    let died =
        "select count(*) from fencepost.dead_letter where origin <> id and error_class = 'again'";
    assert_eq!(count(&client, died).await, again);
    let pending = plan(json!({"filter": {"error_class": "again"}, "dry_run": true})).to_string();
    let (_, counted) = operator
        .call("POST", "/v1/dead-letters/redrive", &pending)
        .await;
    assert_eq!(counted, json!({"letters": again}));
    let second: i64 = client
        .query_one(
            "select max(id) from fencepost.dead_letter where origin <> id",
            &[],
        )
        .await
        .unwrap()
        .get(0);
    let shown = operator.get(&format!("/v1/dead-letters/{second}")).await;
    let chain = shown["chain"].as_array().unwrap();
    assert_eq!(chain.len(), 2);
    assert_eq!(
        (&chain[0]["task_id"], &chain[1]["task_id"]),
        (&shown["origin"], &shown["task_id"])
    );
    // Tasks of one key were made in the order in which their forerunners were enqueued.
    let disorder = "select count(*) from (
            select id < lag(id) over (partition by route_id order by origin) as earlier
            from fencepost.task where origin <> id and concurrency_key = 'k'
                -- redriven by hand, before the others
                and origin <> (select max(id) from fencepost.dead_letter where route_id = 2 and origin = id)
        ) as pairs where earlier";
    assert_eq!(count(&client, disorder).await, 0);
    assert_sound(&db.pool().get().await.unwrap()).await;
    let (_, over) = operator
        .call("POST", &format!("/v1/redrives/{id}/resume"), "")
        .await;
    assert_eq!(over["code"], "FP-043");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn replicas_that_are_killed_at_it_redrive_each_letter_once_and_keep_the_pace() {
    const LETTERS: i32 = 3000;
    let db = TestDb::new().await;
    let client = db.connect().await;
    fill(&db, &client, &["a"], LETTERS).await;
    let mut first = Replica::start(&db.url(), SHORT).await;
    let second = Replica::start(&db.url(), SHORT).await;
    let operator = Operator::of(&second);
    let id = start(
        &operator,
        json!({"filter": {"namespace": "a"}, "rate": 1000}),
    )
    .await;
    until(&operator, &id, |one| one["redriven"].as_i64() > Some(500)).await;
    first.kill().await;
    assert_exact(&client).await;
    let mut third = Replica::start(&db.url(), SHORT).await;
    until(&operator, &id, |one| one["redriven"].as_i64() > Some(1500)).await;
    third.signal(Signal::SIGKILL);
    third.ended().await;
    let done = until(&operator, &id, |one| one["state"] == "done").await;
    assert_eq!(
        (&done["redriven"], &done["skipped"]),
        (&json!(LETTERS), &json!(0))
    );
    assert_exact(&client).await;
    // However many drive, and whatever stopped in between: no faster than the rate.
    let took: f64 = client
        .query_one(
            "select extract(epoch from ended_at - started_at)::double precision from fencepost.redrive",
            &[],
        )
        .await
        .unwrap()
        .get(0);
    assert!(
        took > 2.9,
        "{LETTERS} letters at 1,000 a second in {took} s"
    );
    assert_sound(&db.pool().get().await.unwrap()).await;
}

/// The statement that replicas move an operation on with; answers state and letters.
async fn drive(queue: &Queue, id: i64, batch: i32) -> Option<(String, i32)> {
    let client = queue.client().await;
    let driven = fencepost::store::redrives::drive(&client, id, batch).await;
    driven.unwrap().map(|driven| (driven.state, driven.took))
}

/// As if so much time had passed for this redrive.
async fn let_pass(queue: &Queue, time: &str) {
    queue
        .execute(&format!(
            "update fencepost.redrive set next_at = next_at - interval '{time}'"
        ))
        .await;
}

#[tokio::test]
async fn the_pace_is_kept_and_a_pause_makes_no_burst() {
    let queue = Queue::new().await;
    queue.enqueue(400).await;
    bury(&queue.pool, "true").await;
    // One letter in ten seconds, so that a slow machine makes no second one due.
    let start = "select redrive_id from fencepost.start_redrive('{}', true, rate => 0.1)";
    let id = queue.number(start).await;
    // Nothing is saved up at the start.
    assert_eq!(drive(&queue, id, 500).await, Some(("running".into(), 1)));
    queue
        .execute("update fencepost.redrive set rate = 10")
        .await;
    let_pass(&queue, "1 hour").await;
    let (_, took) = drive(&queue, id, 500).await.unwrap();
    assert!(
        (1..=6).contains(&took),
        "{took} at 10 a second after an hour"
    );
    // Not before its time: the next letter is a tenth of a second away at least.
    let early = queue
        .number("select count(*) from fencepost.redrive where next_at > updated_at")
        .await;
    assert_eq!(early, 1);
    queue
        .execute("update fencepost.redrive set next_at = next_at + interval '1 hour'")
        .await;
    assert_eq!(drive(&queue, id, 500).await, None);
    // Without a rate it goes as fast as its batches.
    queue
        .execute("update fencepost.redrive set rate = null, next_at = clock_timestamp()")
        .await;
    assert_eq!(drive(&queue, id, 100).await, Some(("running".into(), 100)));
    assert_eq!(drive(&queue, id, 500).await.unwrap().0, "done");
    assert_eq!(drive(&queue, id, 500).await, None);
    queue.assert_sound().await;
}

#[tokio::test]
async fn one_replica_at_a_time_drives_and_a_stop_comes_before_or_after_a_batch() {
    let queue = Queue::new().await;
    queue.enqueue(30).await;
    bury(&queue.pool, "true").await;
    let id = queue
        .number("select redrive_id from fencepost.start_redrive('{}', true)")
        .await;
    let mut first = queue.client().await;
    let second = queue.client().await;
    let backend = crate::support::queue::backend(&second).await;
    let batch = first.transaction().await.unwrap();
    let call = "select took from fencepost.drive_redrive($1, 10)";
    let took: i32 = batch.query_one(call, &[&id]).await.unwrap().get(0);
    assert_eq!(took, 10);
    // Another replica passes by, an operator waits.
    assert_eq!(drive(&queue, id, 10).await, None);
    let stop = "select fencepost.stop_redrive($1, 'enough')";
    let stopped = queue
        .waits(backend, second.query_one(stop, &[&id]), batch.commit())
        .await
        .unwrap();
    assert_eq!(stopped.get::<_, &str>(0), "stopped");
    assert_eq!(drive(&queue, id, 10).await, None);
    assert_eq!(
        queue.number("select count(*) from fencepost.live").await,
        10
    );
    queue
        .execute(&format!("select fencepost.resume_redrive({id})"))
        .await;

    // A crash in mid-batch leaves counts, cursor and tasks as they were together.
    let batch = first.transaction().await.unwrap();
    batch.query_one(call, &[&id]).await.unwrap();
    batch.rollback().await.unwrap();
    let same = "select redriven from fencepost.redrive";
    assert_eq!(queue.number(same).await, 10);
    assert_eq!(drive(&queue, id, 100).await, Some(("done".into(), 20)));
    assert_eq!(
        queue.number("select count(*) from fencepost.live").await,
        30
    );
    queue.assert_sound().await;
}

#[tokio::test]
async fn what_changed_since_the_start_is_skipped_with_its_reason_and_what_died_since_is_left() {
    let queue = Queue::new().await;
    let ids = queue.enqueue(5).await;
    bury(&queue.pool, "true").await;
    let id = queue
        .number("select redrive_id from fencepost.start_redrive('{}', true)")
        .await;
    let later = queue.enqueue(3).await;
    bury(&queue.pool, "true").await;
    queue
        .client()
        .await
        .batch_execute(&format!(
            "update fencepost.dead_letter set judged = true where id = {};
            select fencepost.redrive_dead_letters(array[{}]);
            select fencepost.discard_dead_letters(array[{}])",
            ids[0], ids[1], ids[2]
        ))
        .await
        .unwrap();
    assert_eq!(drive(&queue, id, 100).await, Some(("done".into(), 5)));
    let client = queue.client().await;
    let rows = client
        .query(
            "select skipped from fencepost.redrive_item order by letter_id",
            &[],
        )
        .await
        .unwrap();
    let skipped: Vec<Option<String>> = rows.iter().map(|row| row.get(0)).collect();
    let why = |text: &str| Some(text.to_owned());
    assert_eq!(
        skipped,
        [
            why("judged"),
            why("already_redriven"),
            why("not_found"),
            None,
            None
        ]
    );
    assert_eq!(
        queue.number("select skipped from fencepost.redrive").await,
        3
    );
    let untouched = format!(
        "select count(*) from fencepost.dead_letter where redriven_as is null and id >= {}",
        later[0]
    );
    assert_eq!(queue.number(&untouched).await, 3);
}

/// Ends so many of what was redriven as failed again, the others as done.
async fn end_canary(queue: &Queue, died: i64) {
    let client = queue.client().await;
    let rows = client
        .query("select id from fencepost.live order by id", &[])
        .await
        .unwrap();
    for (place, row) in (0..).zip(&rows) {
        let id: i64 = row.get(0);
        if place < died {
            bury(&queue.pool, &format!("id = {id}")).await;
        } else {
            let token = queue.claim(1).await[0];
            assert!(queue.complete(token).await);
        }
    }
}

#[tokio::test]
async fn a_canary_that_dies_again_halts_the_rest_until_somebody_resumes_it() {
    let queue = Queue::new().await;
    queue.enqueue(50).await;
    bury(&queue.pool, "true").await;
    let start = "select redrive_id from fencepost.start_redrive('{}', true, canary => 10, canary_share => 0.5)";
    let id = queue.number(start).await;
    assert_eq!(drive(&queue, id, 500).await, Some(("running".into(), 10)));
    // It waits for their ends, with a second between two looks.
    assert_eq!(drive(&queue, id, 500).await, Some(("running".into(), 0)));
    let waits = "select count(*) from fencepost.redrive where detail = 'waits for the ends of 10 of the first 10'";
    assert_eq!(queue.number(waits).await, 1);
    let later =
        "select count(*) from fencepost.redrive where next_at = updated_at + interval '1 second'";
    assert_eq!(queue.number(later).await, 1);
    end_canary(&queue, 6).await;
    let_pass(&queue, "2 seconds").await;
    assert_eq!(drive(&queue, id, 500).await, Some(("halted".into(), 0)));
    let client = queue.client().await;
    let halted = fencepost::store::redrives::list(&client, Some(id), None, 1)
        .await
        .unwrap()
        .remove(0);
    assert_eq!(halted.detail, "6 of the first 10 have died again");
    assert_eq!(drive(&queue, id, 500).await, None);
    assert!(
        fencepost::store::redrives::resume(&client, id)
            .await
            .unwrap()
    );
    assert_eq!(drive(&queue, id, 500).await, Some(("done".into(), 40)));
    queue.assert_sound().await;
}

#[tokio::test]
async fn a_canary_that_lives_lets_the_rest_follow() {
    let queue = Queue::new().await;
    queue.enqueue(30).await;
    bury(&queue.pool, "true").await;
    let start = "select redrive_id from fencepost.start_redrive('{}', true, canary => 10)";
    let id = queue.number(start).await;
    assert_eq!(drive(&queue, id, 4).await, Some(("running".into(), 4)));
    assert_eq!(drive(&queue, id, 500).await, Some(("running".into(), 6)));
    // Half of them is not more than half.
    end_canary(&queue, 5).await;
    assert_eq!(drive(&queue, id, 500).await, Some(("running".into(), 0)));
    assert_eq!(drive(&queue, id, 500).await, Some(("done".into(), 20)));
    // Second deaths of the canary are not among the twenty.
    assert_eq!(
        queue.number("select count(*) from fencepost.live").await,
        20
    );
}

#[tokio::test]
async fn operators_start_list_stop_and_resume_by_commands() {
    let db = TestDb::new().await;
    let client = db.connect().await;
    fill(&db, &client, &["a"], 20).await;
    let json_of = async |args: &[&str]| -> Value {
        let output = fencepost(&db.url(), &[args, &["--output", "json"]].concat()).await;
        assert!(output.status.success(), "{args:?}: {output:?}");
        serde_json::from_slice(&output.stdout).unwrap()
    };
    let counted = json_of(&["dead", "redrive", "--all", "--dry-run"]).await;
    assert_eq!(counted, json!({"letters": 20}));
    let args = [
        "dead",
        "redrive",
        "--namespace",
        "a",
        "--rate",
        "5",
        "--reason",
        "why",
    ];
    let started = json_of(&args).await;
    assert_eq!(
        (&started["state"], &started["by"]),
        (&json!("running"), &json!("olga"))
    );
    assert_eq!(
        (&started["total"], &started["rate"]),
        (&json!(20), &json!(5.0))
    );
    let id = started["redrive_id"].as_str().unwrap();
    assert_eq!(
        json_of(&["dead", "stop", id, "--reason", "lunch"]).await["state"],
        "stopped"
    );
    let list = json_of(&["dead", "redrives"]).await;
    assert_eq!(
        (&list[0]["detail"], &list[0]["remaining"]),
        (&json!("lunch"), &json!(20))
    );
    assert_eq!(json_of(&["dead", "resume", id]).await["state"], "running");
    let shown = fencepost(&db.url(), &["dead-letter", "redrives"]).await;
    let shown = String::from_utf8(shown.stdout).unwrap();
    assert!(
        shown.contains("running") && shown.contains("5/s"),
        "{shown}"
    );
    let none = json_of(&["dead", "redrive", "--namespace", "nobody"]).await;
    assert_eq!(
        (&none["state"], &none["total"]),
        (&json!("done"), &json!(0))
    );
    let ids: HashSet<&str> = list
        .as_array()
        .unwrap()
        .iter()
        .map(|one| one["redrive_id"].as_str().unwrap())
        .collect();
    assert_eq!(ids, HashSet::from([id]));
}

#[tokio::test]
async fn a_batch_reads_no_more_items_than_it_takes() {
    let queue = Queue::new().await;
    queue.enqueue(1).await;
    let mut client = queue.client().await;
    client
        .batch_execute(
            "insert into fencepost.dead_letter (
                id, origin, dead_at, enqueued_at, route_id, attempt, losses, epoch, fence, priority, cause,
                error_class, settle_accepted, content_type, payload
            )
            select n, n, now(), now(), 1, 0, 0, 0, 1, 1, 'failed', 'oops', false, 'text/plain', 'x'
            from generate_series(1, 20000) as n",
        )
        .await
        .unwrap();
    let id = queue
        .number("select redrive_id from fencepost.start_redrive('{}', true)")
        .await;
    for call in [
        format!("select took::bigint from fencepost.drive_redrive({id}, 100)"),
        "select fencepost.forget_redrives('0', 100)".to_owned(),
    ] {
        let batch = client.transaction().await.unwrap();
        let took: i64 = batch.query_one(&call, &[]).await.unwrap().get(0);
        assert_eq!(took, 100, "{call}");
        let read = "select (coalesce(seq_tup_read, 0) + coalesce(idx_tup_fetch, 0))::bigint
            from pg_stat_xact_user_tables where relname = 'redrive_item'";
        let read: i64 = batch.query_one(read, &[]).await.unwrap().get(0);
        assert!(read < 1000, "{call}: {read} items were read");
        batch.commit().await.unwrap();
        queue
            .execute("update fencepost.redrive set state = 'stopped'")
            .await;
    }
}
