//! What leaves history, and what does not.

use std::time::Duration;

use fencepost::store::{Client, Error, retention};

use crate::support::tasks::{DONE, count, ended, enqueue, enqueue_many};
use crate::support::{Operator, Replica, ScriptedWorker, TestDb, eventually, fencepost};

/// What takes a replica a few rounds, with a rest after a failure in between.
const PATIENCE: Duration = Duration::from_secs(45);
const DAY: Duration = Duration::from_hours(24);
const HISTORY: Option<Duration> = Some(Duration::from_hours(14 * 24));

/// Makes the partitions of the day so many days ago.
async fn old_day(db: &tokio_postgres::Client, days: i32) {
    let make = "select fencepost.make_partition(parent, (now() at time zone 'UTC')::date - $1::int)
        from unnest(array['task', 'outcome', 'failure']) as parent";
    db.execute(make, &[&days]).await.unwrap();
}

/// Tasks of that day, unfinished and due in 60 days.
async fn old_tasks(db: &tokio_postgres::Client, days: i32, number: i32) -> Vec<i64> {
    old_day(db, days).await;
    let insert = "with id as (
            select (fencepost.id_ms(((now() at time zone 'UTC')::date - $1::int)::timestamp at time zone 'UTC') + n) << 22 as id
            from generate_series(1, $2::int) as n
        ), body as (
            insert into fencepost.task (id, origin, enqueued_at, route_id, content_type, payload)
            select id, id, now(), (select min(route_id) from fencepost.route), 'application/json', 'null'
            from id
        )
        insert into fencepost.live (id, route_id, visible_after)
        select id, (select min(route_id) from fencepost.route), now() + interval '60 days' from id
        returning id";
    let rows = db.query(insert, &[&days, &number]).await.unwrap();
    rows.iter().map(|row| row.get(0)).collect()
}

/// Ends tasks as done, so many days ago, with a result.
async fn end(db: &tokio_postgres::Client, ids: &[i64], days: i32) {
    let end = "with gone as (delete from fencepost.live where id = any($1) returning id)
        insert into fencepost.outcome (id, ended_at, attempt, state, result_type, result)
        select id, now() - $2::int * interval '1 day', 0, 1, 'application/json', '7' from gone";
    let rows = db.execute(end, &[&ids, &days]).await.unwrap();
    assert_eq!(rows, ids.len() as u64);
}

/// As if the look that found the day finished had been so much earlier.
async fn age(db: &tokio_postgres::Client, days: i32, by: i32) {
    let age =
        "update fencepost.history_day
        set finished_at = finished_at - $2::int * interval '1 day', results_to = results_to - $2::int * interval '1 day'
        where day = (now() at time zone 'UTC')::date - $1::int and finished_at is not null";
    assert_eq!(db.execute(age, &[&days, &by]).await.unwrap(), 1);
}

/// What is noted of the days before yesterday, whose partitions every database begins with.
async fn old_days(db: &tokio_postgres::Client, such: &str) -> i64 {
    let select = format!(
        "select count(*) from fencepost.history_day
        where day < (now() at time zone 'UTC')::date - 1 and {such}"
    );
    count(db, &select).await
}

/// Partitions of that day that are attached and not on their way out.
async fn attached(db: &tokio_postgres::Client, days: i32) -> i64 {
    let select = "select count(*) from fencepost.history_partitions()
        where day = (now() at time zone 'UTC')::date - $1::int and attached and not pending";
    db.query_one(select, &[&days]).await.unwrap().get(0)
}

/// Tables of that day, whatever has become of them.
async fn tables(db: &tokio_postgres::Client, days: i32) -> i64 {
    let select = "select count(*) from fencepost.history_partitions() where day = (now() at time zone 'UTC')::date - $1::int";
    db.query_one(select, &[&days]).await.unwrap().get(0)
}

/// One tick: the partitions that were dropped.
async fn tick(client: &Client) -> Result<Vec<String>, Error> {
    retention::note_days(client).await?;
    let mut dropped = Vec::new();
    while let Some(step) = retention::next_step(client, HISTORY).await? {
        if retention::take_step(client, &step).await? {
            dropped.push(step.parent);
        }
        assert!(dropped.len() < 100);
    }
    Ok(dropped)
}

/// A database with a route, a connection as a replica has it, and a plain one.
struct Kept {
    db: TestDb,
    plain: tokio_postgres::Client,
    store: Client,
}

impl Kept {
    async fn new() -> Self {
        let db = TestDb::new().await;
        let plain = db.connect().await;
        enqueue(&plain, "").await;
        let store = db.pool().get().await.unwrap();
        Self { db, plain, store }
    }

    async fn tick(&self) -> Vec<String> {
        tick(&self.store).await.unwrap()
    }
}

const ALL: [&str; 3] = ["task", "outcome", "failure"];

#[tokio::test]
async fn a_day_leaves_when_its_last_task_ended_long_ago_and_holds_up_no_other() {
    let kept = Kept::new().await;
    let plain = &kept.plain;
    // Due in 60 days, and older than the day that goes.
    let waiting = old_tasks(plain, 41, 1).await;
    let done = old_tasks(plain, 40, 3).await;
    end(plain, &done, 39).await;
    // Nobody had looked before.
    assert!(kept.tick().await.is_empty());
    age(plain, 40, 13).await;
    assert!(kept.tick().await.is_empty());
    age(plain, 40, 2).await;
    assert_eq!(kept.tick().await, ALL);
    assert_eq!((tables(plain, 40).await, attached(plain, 41).await), (0, 3));
    assert_eq!(old_days(plain, "finished_at is not null").await, 0);
    let bodies = "select count(*) from fencepost.task";
    assert_eq!(count(plain, bodies).await, 2);
    let row = plain.query_one("select id from fencepost.task order by id limit 1", &[]);
    assert_eq!(row.await.unwrap().get::<_, i64>(0), waiting[0]);

    // A clock that stepped back by 40 days takes its ids from what is left.
    let floor = "select floor_ms - fencepost.id_ms(((now() at time zone 'UTC')::date - 39)::timestamp at time zone 'UTC')
        from fencepost.horizon";
    assert!(count(plain, floor).await >= 0);
    enqueue(plain, "").await;
}

#[tokio::test]
async fn a_task_that_ended_today_is_kept_for_the_retention_after_its_end() {
    let kept = Kept::new().await;
    let plain = &kept.plain;
    let late = old_tasks(plain, 40, 2).await;
    assert!(kept.tick().await.is_empty());
    end(plain, &late[..1], 39).await;
    assert!(kept.tick().await.is_empty());
    assert_eq!(old_days(plain, "finished_at is null").await, 1);
    end(plain, &late[1..], 0).await;
    assert!(kept.tick().await.is_empty());
    let lately = "finished_at > now() - interval '1 minute'";
    assert_eq!(old_days(plain, lately).await, 1);
    age(plain, 40, 13).await;
    assert!(kept.tick().await.is_empty());
    assert_eq!(attached(plain, 40).await, 3);
    age(plain, 40, 1).await;
    assert_eq!(kept.tick().await, ALL);
}

#[tokio::test]
async fn today_and_a_day_that_a_producer_still_writes_to_are_not_over() {
    let kept = Kept::new().await;
    let plain = &kept.plain;
    old_day(plain, 20).await;
    // A producer with ids of that day that has not committed.
    let mut producer = kept.db.connect().await;
    let open = producer.transaction().await.unwrap();
    let body = "insert into fencepost.task (id, origin, enqueued_at, route_id, content_type, payload)
        select low + 1, low + 1, now(), 1, 'application/json', 'null' from fencepost.history_partitions()
        where parent = 'task' and day = (now() at time zone 'UTC')::date - 20";
    assert_eq!(open.execute(body, &[]).await.unwrap(), 1);
    retention::note_days(&kept.store).await.unwrap();
    let noted = "select count(*) from fencepost.history_day where finished_at is not null
        and day = (now() at time zone 'UTC')::date - 20";
    assert_eq!(count(plain, noted).await, 0);
    open.rollback().await.unwrap();
    retention::note_days(&kept.store).await.unwrap();
    assert_eq!(count(plain, noted).await, 1);
    let today =
        "select count(*) from fencepost.history_day where day >= (now() at time zone 'UTC')::date";
    assert_eq!(count(plain, today).await, 0);
}

#[tokio::test]
async fn a_step_gives_up_on_who_still_reads_and_any_later_tick_goes_on() {
    let kept = Kept::new().await;
    let plain = &kept.plain;
    end(plain, &old_tasks(plain, 40, 1).await, 39).await;
    assert!(kept.tick().await.is_empty());
    age(plain, 40, 15).await;
    let mut reader = kept.db.connect().await;
    let open = reader.transaction().await.unwrap();
    open.query("select count(*) from fencepost.task", &[])
        .await
        .unwrap();
    let given_up = tick(&kept.store).await.unwrap_err();
    assert!(matches!(given_up, Error::Conflict(_)), "{given_up}");
    // The first half of the detach is done: no new statement sees the partition, and the reader still has it.
    let pending = "select count(*) from fencepost.history_partitions() where pending";
    assert_eq!(count(plain, pending).await, 1);
    assert_eq!(count(plain, "select count(*) from fencepost.task").await, 1);
    let seen = open.query_one("select count(*) from fencepost.task", &[]);
    assert!(seen.await.unwrap().get::<_, i64>(0) >= 1);
    // Nobody waits for any of it.
    enqueue(plain, "").await;
    assert!(matches!(
        tick(&kept.store).await.unwrap_err(),
        Error::Conflict(_)
    ));
    open.commit().await.unwrap();
    assert_eq!(kept.tick().await, ALL);
    assert_eq!(tables(plain, 40).await, 0);
}

#[tokio::test]
async fn what_a_crash_left_detached_is_dropped() {
    let kept = Kept::new().await;
    let plain = &kept.plain;
    for days in [40, 39] {
        end(plain, &old_tasks(plain, days, 1).await, 38).await;
    }
    assert!(kept.tick().await.is_empty());
    for days in [40, 39] {
        age(plain, days, 15).await;
    }
    // The process ends after each single step, and another one begins.
    let mut dropped = Vec::new();
    for _ in 0..12 {
        let other = kept.db.pool().get().await.unwrap();
        let step = retention::next_step(&other, HISTORY)
            .await
            .unwrap()
            .unwrap();
        if retention::take_step(&other, &step).await.unwrap() {
            dropped.push(step.child);
        }
    }
    assert_eq!(dropped.len(), 6, "{dropped:?}");
    assert!(
        dropped[..3]
            .iter()
            .all(|child| child[child.len() - 8..] == dropped[0][5..])
    );
    assert_eq!(
        retention::next_step(&kept.store, HISTORY).await.unwrap(),
        None
    );
    assert_eq!(old_days(plain, "true").await, 0);
}

#[tokio::test]
async fn an_unfinished_task_that_nobody_had_seen_brings_its_partition_back() {
    let kept = Kept::new().await;
    let plain = &kept.plain;
    let ids = old_tasks(plain, 40, 2).await;
    end(plain, &ids, 39).await;
    assert!(kept.tick().await.is_empty());
    age(plain, 40, 15).await;
    let step = retention::next_step(&kept.store, HISTORY)
        .await
        .unwrap()
        .unwrap();
    assert_eq!(step.parent, "task");
    assert!(!retention::take_step(&kept.store, &step).await.unwrap());
    assert_eq!(attached(plain, 40).await, 2);
    // As a transaction would leave it that was open all the time.
    let row = "insert into fencepost.live (id, route_id, visible_after) values ($1, 1, now())";
    plain.execute(row, &[&ids[0]]).await.unwrap();
    assert!(kept.tick().await.is_empty());
    assert_eq!(attached(plain, 40).await, 3);
    let body = "select count(*) from fencepost.task where id < (select min(low) from fencepost.history_partitions()
        where parent = 'task' and day = (now() at time zone 'UTC')::date - 1)";
    assert_eq!(count(plain, body).await, 2);
    assert_eq!(old_days(plain, "finished_at is null").await, 1);
}

#[tokio::test]
async fn what_dead_letters_were_lost_to_stays_as_long_as_they_do() {
    let kept = Kept::new().await;
    let plain = &kept.plain;
    let ids = old_tasks(plain, 40, 1).await;
    end(plain, &ids, 39).await;
    let letter = "insert into fencepost.dead_letter (id, origin, dead_at, enqueued_at, route_id, attempt, losses, epoch,
            fence, priority, cause, error_class, settle_accepted, content_type, payload)
        values ($1, $1, now() - interval '39 days', now(), 1, 1, 0, 1, 1, 1, 'failed', 'oops', false, 'text/plain', '')";
    plain.execute(letter, &[&ids[0]]).await.unwrap();
    assert!(kept.tick().await.is_empty());
    age(plain, 40, 15).await;
    assert_eq!(kept.tick().await, ["task", "outcome"]);
    assert_eq!(attached(plain, 40).await, 1);
    let gone = retention::expire_dead_letters(&kept.store, DAY * 38, 10).await;
    assert_eq!(gone.unwrap(), 1);
    assert_eq!(kept.tick().await, ["failure"]);
}

#[tokio::test]
async fn results_go_before_their_history_and_leave_their_type() {
    let kept = Kept::new().await;
    let plain = &kept.plain;
    let ids = old_tasks(plain, 9, 7).await;
    end(plain, &ids[..5], 8).await;
    end(plain, &ids[5..6], 1).await;
    retention::note_days(&kept.store).await.unwrap();
    let left = async || {
        let left = "select count(*) from fencepost.outcome where result is not null";
        count(plain, left).await
    };
    let pass = async |keep| {
        let mut looked = Vec::new();
        loop {
            match retention::expire_results(&kept.store, keep, 2)
                .await
                .unwrap()
            {
                0 => return looked,
                some => looked.push(some),
            }
        }
    };
    // One task of the day is unfinished: the day is walked once, and what ended lately stays.
    assert_eq!(pass(DAY * 9).await, [0; 0]);
    assert_eq!(left().await, 6);
    assert_eq!(pass(DAY * 3).await, [2, 2, 2]);
    assert_eq!(left().await, 1);
    assert_eq!(pass(DAY * 3).await, [0; 0]);
    // Finished, and for so long: it is walked once more.
    end(plain, &ids[6..], 1).await;
    retention::note_days(&kept.store).await.unwrap();
    assert_eq!(pass(DAY * 3).await, [0; 0]);
    age(plain, 9, 4).await;
    let ended = "update fencepost.outcome set ended_at = ended_at - interval '4 days'";
    plain.execute(ended, &[]).await.unwrap();
    assert_eq!(pass(DAY * 3).await.iter().sum::<i32>(), 7);
    assert_eq!(left().await, 0);
    assert_eq!(pass(DAY * 3).await, [0; 0]);
    let types = "select count(*) from fencepost.outcome where result_type is not null";
    assert_eq!(count(plain, types).await, 7);
}

#[tokio::test]
async fn a_dispatch_key_is_forgotten_when_its_time_after_the_end_is_over() {
    let kept = Kept::new().await;
    let plain = &kept.plain;
    let ids = old_tasks(plain, 9, 4).await;
    end(plain, &ids[..2], 5).await;
    end(plain, &ids[2..3], 0).await;
    for (key, id) in ["gone", "open", "late", "live"].iter().zip(&ids) {
        let key_of = "insert into fencepost.dispatch_key (namespace_id, key, task_id, remember)
            values (1, $1, $2, interval '1 day')";
        plain.execute(key_of, &[key, id]).await.unwrap();
    }
    enqueue(plain, "dispatch_key => 'young'").await;
    // A producer that takes a key for a new task and has not committed.
    let mut producer = kept.db.connect().await;
    let open = producer.transaction().await.unwrap();
    let taken = open
        .query_one(
            "select created from fencepost.enqueue('q', 't', dispatch_key => 'open')",
            &[],
        )
        .await
        .unwrap();
    assert!(taken.get::<_, bool>(0));
    let keys = async || {
        let keys = "select key from fencepost.dispatch_key order by key";
        let rows = plain.query(keys, &[]).await.unwrap();
        rows.iter().map(|row| row.get(0)).collect::<Vec<String>>()
    };
    let first = retention::expire_keys(&kept.store, 0, 3).await.unwrap();
    assert_eq!(
        (first.looked, first.last, first.forgotten),
        (3, Some(ids[2]), 1)
    );
    assert_eq!(keys().await, ["late", "live", "open", "young"]);
    let rest = retention::expire_keys(&kept.store, ids[2], 3)
        .await
        .unwrap();
    assert_eq!(
        (rest.looked, rest.last, rest.forgotten),
        (1, Some(ids[3]), 0)
    );
    open.commit().await.unwrap();
    retention::expire_keys(&kept.store, 0, 10).await.unwrap();
    assert_eq!(keys().await, ["late", "live", "open", "young"]);
    // Forgotten keys are free, the others are not.
    for (key, created) in [("gone", true), ("late", false), ("live", false)] {
        let call = "select created from fencepost.enqueue('q', 't', dispatch_key => $1)";
        let row = plain.query_one(call, &[&key]).await.unwrap();
        assert_eq!(row.get::<_, bool>(0), created, "{key}");
    }
}

#[tokio::test]
async fn dead_letters_and_orders_go_by_their_own_age() {
    let kept = Kept::new().await;
    let plain = &kept.plain;
    let letters = "insert into fencepost.dead_letter (id, origin, dead_at, enqueued_at, route_id, attempt, losses, epoch,
            fence, priority, cause, error_class, settle_accepted, content_type, payload)
        select n, n, now() - n * interval '1 day', now(), 1, 1, 0, 1, 1, 1, 'failed', 'oops', false, 'text/plain', ''
        from generate_series(1, 10) as n";
    plain.execute(letters, &[]).await.unwrap();
    let mut worked_on = kept.db.connect().await;
    let open = worked_on.transaction().await.unwrap();
    let lock = "select from fencepost.dead_letter where id = 9 for update";
    open.query_one(lock, &[]).await.unwrap();
    let expire = async || retention::expire_dead_letters(&kept.store, DAY * 5 + DAY / 2, 3).await;
    assert_eq!(expire().await.unwrap(), 3);
    assert_eq!(expire().await.unwrap(), 1);
    open.commit().await.unwrap();
    assert_eq!(expire().await.unwrap(), 1);
    assert_eq!(expire().await.unwrap(), 0);
    let left = "select count(*) from fencepost.dead_letter where id between 1 and 5";
    assert_eq!(count(plain, left).await, 5);

    let orders = "insert into fencepost.worker_order (identity, action, ordered_at)
        values ('old', 'cordon', now() - interval '91 days'), ('new', 'cordon', now() - interval '89 days'),
            ('here', 'drain', now() - interval '91 days')";
    plain.execute(orders, &[]).await.unwrap();
    let worker = "insert into fencepost.worker (worker_id, dispatcher, identity, node, task_queue, build_id, transport,
            state, slots, busy) values ('1', 1, 'here', '', 'q', '', 'grpc', 'ready', 1, 0)";
    plain.execute(worker, &[]).await.unwrap();
    let forgotten = retention::expire_orders(&kept.store, 90).await;
    assert_eq!(forgotten.unwrap(), 1);
}

#[tokio::test]
async fn a_lease_has_one_holder_at_a_time() {
    let kept = Kept::new().await;
    let take = async |dispatcher| {
        let minute = Duration::from_mins(1);
        let taken = retention::take_lease(&kept.store, "retention", dispatcher, minute).await;
        taken.unwrap()
    };
    assert!(take(1).await);
    assert!(take(1).await);
    assert!(!take(2).await);
    let over = "update fencepost.lease set until = now() - interval '1 second'";
    kept.plain.execute(over, &[]).await.unwrap();
    assert!(take(2).await);
    assert!(!take(1).await);
    // Of a holder that is gone, from before the clock stepped back.
    let ahead = "update fencepost.lease set until = now() + interval '1 year'";
    kept.plain.execute(ahead, &[]).await.unwrap();
    assert!(take(1).await);
    assert!(!take(2).await);
}

/// What a replica does by itself.
#[tokio::test]
async fn a_replica_drops_days_past_an_open_reader_while_tasks_flow() {
    let kept = Kept::new().await;
    let plain = &kept.plain;
    for days in [40, 30, 20] {
        end(plain, &old_tasks(plain, days, 2).await, 19).await;
    }
    let kept_id = old_tasks(plain, 6, 1).await[0];
    end(plain, &[kept_id], 5).await;
    retention::note_days(&kept.store).await.unwrap();
    for days in [40, 30, 20] {
        age(plain, days, 15).await;
    }
    age(plain, 6, 4).await;
    let mut reader = kept.db.connect().await;
    let open = reader.transaction().await.unwrap();
    open.query("select count(*) from fencepost.outcome", &[])
        .await
        .unwrap();

    let settings = [
        ("RETENTION__INTERVAL", "100ms"),
        ("RETENTION__RESULTS", "3d"),
        ("SERVER__SHOW_PAYLOADS", "true"),
    ];
    let replica = Replica::start(&kept.db.url(), &settings).await;
    let operator = Operator::of(&replica);
    let mut worker = ScriptedWorker::connect(&replica.url()).await;
    let first = worker.accept_next().await;
    worker.succeed(&first, "1").await;
    worker.recorded(&first).await;
    let gives_up = "retention can't go on with this";
    let given_up = eventually(PATIENCE, async || {
        (replica.said(gives_up) > 0).then_some(())
    });
    let flowing = async {
        loop {
            let id = enqueue(plain, "").await;
            let task = worker.accept_next().await;
            worker.succeed(&task, "1").await;
            worker.recorded(&task).await;
            assert_eq!(ended(plain, id).await.state, DONE);
        }
    };
    tokio::select! {
        () = given_up => {}
        () = flowing => {}
    }
    assert!(tables(plain, 40).await > 0);
    open.commit().await.unwrap();
    eventually(PATIENCE, async || {
        let mut left = 0;
        for days in [40, 30, 20] {
            left += tables(plain, days).await;
        }
        (left == 0).then_some(())
    })
    .await;
    assert_eq!(attached(plain, 6).await, 3);
    assert_eq!(replica.said(gives_up), 1);

    // Its result is kept no longer, and every door says so.
    let task = eventually(PATIENCE, async || {
        let task = operator
            .get(&format!("/v1/tasks/{kept_id}?payload=true"))
            .await;
        (task["result_expired"] == true).then_some(task)
    })
    .await;
    assert_eq!((&task["state"], task.get("result")), (&"done".into(), None));
    let waited = operator.get(&format!("/v1/tasks/{kept_id}/wait")).await;
    assert_eq!(
        (&waited["ended"], &waited["result_expired"]),
        (&true.into(), &true.into())
    );
    let output = fencepost(&kept.db.url(), &["task", "wait", &kept_id.to_string()]).await;
    assert_eq!(output.status.code(), Some(0));
    assert!(output.stdout.is_empty());
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(said.contains("its result is kept no longer"), "{said}");
    // Of a day that has left it is said that it has, unlike of an id that never was.
    let (status, gone) = operator.call("GET", "/v1/tasks/4711", "").await;
    assert_eq!((status, &gone["slug"]), (404, &"left_history".into()));
    let never = i64::MAX.to_string();
    let (status, unknown) = operator
        .call("GET", &format!("/v1/tasks/{never}"), "")
        .await;
    assert_eq!((status, &unknown["slug"]), (404, &"task_not_found".into()));
}

#[tokio::test]
async fn what_is_kept_for_ever_stays_and_one_replica_at_a_time_looks() {
    let kept = Kept::new().await;
    let plain = &kept.plain;
    end(plain, &old_tasks(plain, 40, 2).await, 39).await;
    retention::note_days(&kept.store).await.unwrap();
    age(plain, 40, 39).await;
    enqueue_many(plain, 2).await;
    let redrives = "insert into fencepost.redrive (filter, forced, clear_pin, canary_share, state, total, updated_at)
        values ('{}', false, false, 0.5, 'done', 0, now() - interval '2 hours'),
            ('{}', false, false, 0.5, 'stopped', 0, now())";
    plain.execute(redrives, &[]).await.unwrap();
    let letter = "insert into fencepost.dead_letter (id, origin, dead_at, enqueued_at, route_id, attempt, losses, epoch,
            fence, priority, cause, error_class, settle_accepted, content_type, payload)
        values (1, 1, now() - interval '2 hours', now(), 1, 1, 0, 1, 1, 1, 'failed', 'oops', false, 'text/plain', '')";
    plain.execute(letter, &[]).await.unwrap();
    // They end as they are staged, without a member.
    let flows = "select fencepost.start_workflow(name => n::text) from generate_series(1, 2) as n";
    plain.execute(flows, &[]).await.unwrap();
    let older =
        "update fencepost.workflow set ended_at = now() - interval '2 hours' where name = '1'";
    plain.execute(older, &[]).await.unwrap();
    let settings = [
        ("RETENTION__INTERVAL", "50ms"),
        ("RETENTION__HISTORY", "never"),
        ("RETENTION__DEAD_LETTERS", "1h"),
        ("RETENTION__WORKFLOWS", "1h"),
        ("RETENTION__DISPATCH_KEYS", "2h"),
    ];
    let replicas = [
        Replica::start(&kept.db.url(), &settings).await,
        Replica::start(&kept.db.url(), &settings).await,
    ];
    // Dead letters come after days in a round.
    eventually(PATIENCE, async || {
        (count(plain, "select count(*) from fencepost.dead_letter").await == 0).then_some(())
    })
    .await;
    eventually(PATIENCE, async || {
        (count(plain, "select count(*) from fencepost.redrive").await == 1).then_some(())
    })
    .await;
    eventually(PATIENCE, async || {
        (count(plain, "select count(*) from fencepost.workflow").await == 1).then_some(())
    })
    .await;
    let until = "select (extract(epoch from until) * 1000)::bigint from fencepost.lease";
    let before = count(plain, until).await;
    eventually(PATIENCE, async || {
        (count(plain, until).await > before).then_some(())
    })
    .await;
    assert_eq!(attached(plain, 40).await, 3);
    let holders = "select count(*) from fencepost.lease";
    assert_eq!(count(plain, holders).await, 1);
    let remember = "select extract(epoch from remember)::bigint from fencepost.limits";
    assert_eq!(count(plain, remember).await, 7200);
    drop(replicas);
}
