//! Cancelling by dispatch key and by filter, against everything else that moves the same tasks, and workers that do
//! not stop.

use std::time::Duration;

use fencepost::api::CancelMatching;
use fencepost::domain::id::Token;
use fencepost::domain::settlement::Move;
use fencepost::proto::producer::CancelRequest;
use fencepost::store::cancel::{self, Matching, Only};
use serde_json::{Value, json};

use crate::lifecycle::Stage;
use crate::support::queue::{self, CANCELLED, DONE, failure, how, success};
use crate::support::tasks::{count, ended, enqueue, enqueue_many};
use crate::support::{Operator, Producers, Queue};

const STEP: Duration = Duration::from_secs(20);

async fn ask(side: &Producers, body: Value) -> Value {
    let answer = side.post("/v1/tasks/cancel", body.to_string());
    let answer = answer.await;
    assert_eq!(answer.status, 200, "{body}: {}", answer.text);
    answer.json()
}

#[tokio::test]
async fn a_dispatch_key_names_its_task_at_every_door() {
    let side = Producers::start().await;
    let db = side.db.connect().await;
    let mut ids = Vec::new();
    for key in ["a", "b", "c"] {
        ids.push(enqueue(&db, &format!("dispatch_key => '{key}', namespace => 'n'")).await);
    }
    let told = ask(&side, json!({"namespace": "n", "dispatch_key": "a"})).await;
    let expected = json!({"tasks": [{"task_id": ids[0].to_string(), "state": "cancelled"}]});
    assert_eq!(told, expected);
    let by_key = |namespace: &str, key: &str| CancelRequest {
        namespace: namespace.into(),
        dispatch_key: key.into(),
        reason: "why".into(),
        ..CancelRequest::default()
    };
    let told = side
        .grpc
        .clone()
        .cancel(by_key("n", "b"))
        .await
        .unwrap()
        .into_inner();
    assert_eq!((told.task_id, told.state.as_str()), (ids[1], "cancelled"));
    let command = [
        "task",
        "cancel",
        "--key",
        "c",
        "--namespace",
        "n",
        "--output",
        "json",
    ];
    let output = side.command(&command, b"").await;
    let told: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(
        told,
        json!([{"task_id": ids[2].to_string(), "state": "cancelled"}])
    );
    // Asking again is safe.
    let told = ask(&side, json!({"namespace": "n", "dispatch_key": "a"})).await;
    assert_eq!(told, expected);

    // The key is that of another namespace.
    let body = r#"{"dispatch_key": "a"}"#;
    let answer = side.post("/v1/tasks/cancel", body).await;
    assert_eq!(
        answer.problem(),
        (404, "FP-104".into(), "dispatch_key".into())
    );
    let status = side.grpc.clone().cancel(by_key("", "a")).await.unwrap_err();
    assert_eq!(status.code(), tonic::Code::NotFound);
    assert_eq!(
        status.metadata().get("fencepost-field").unwrap(),
        "dispatch_key"
    );
    let output = side.command(&["task", "cancel", "--key", "a"], b"").await;
    assert_eq!(output.status.code(), Some(2));
    let both = CancelRequest {
        task_id: ids[0],
        ..by_key("n", "a")
    };
    let status = side.grpc.clone().cancel(both).await.unwrap_err();
    assert_eq!(status.code(), tonic::Code::InvalidArgument);
}

#[tokio::test]
async fn ids_are_cancelled_one_by_one() {
    let side = Producers::start().await;
    let db = side.db.connect().await;
    let ids = enqueue_many(&db, 2).await;
    // What an open transaction has locked keeps no other from being cancelled.
    let mut holder = side.db.connect().await;
    let open = holder.transaction().await.unwrap();
    let lock = "select from fencepost.live where id = $1 for update";
    open.query_one(lock, &[&ids[0]]).await.unwrap();
    let all = json!({"task_ids": [ids[0], 7, ids[1].to_string()]});
    let states = async || {
        let told = ask(&side, all.clone()).await;
        let tasks = told["tasks"].as_array().unwrap().clone();
        tasks
            .into_iter()
            .map(|task| task["state"].clone())
            .collect::<Vec<_>>()
    };
    assert_eq!(states().await, ["busy", "not_found", "cancelled"]);
    open.rollback().await.unwrap();
    assert_eq!(states().await, ["cancelled", "not_found", "cancelled"]);
}

/// Three hundred tasks in each of the states, over two queues and two nodes.
async fn fill(side: &Producers) -> tokio_postgres::Client {
    let db = side.db.connect().await;
    db.batch_execute(
        "select from fencepost.enqueue_many(
            task_queue => array(select case when n % 3 = 0 then 'r' else 'q' end from generate_series(1, 1200) as n),
            task_type => array_fill('t'::text, array[1200]),
            payload => array_fill('null'::bytea, array[1200]),
            namespace => array(select case when n <= 600 then 'a' else 'b' end from generate_series(1, 1200) as n),
            node => array(select case when n % 2 = 0 then 'l' end from generate_series(1, 1200) as n),
            labels => array(
                select jsonb_build_object('shard', (n % 10)::text, 'odd', (n % 2)::text)
                from generate_series(1, 1200) as n
            )
        );
        with numbered as (select id, row_number() over (order by id) as n from fencepost.live)
        update fencepost.live
        set
            hold = case when n % 4 = 1 then 1 else 0 end,
            visible_after = visible_after + case when n % 4 = 2 then interval '1 hour' else interval '0' end,
            state = case when n % 4 = 3 then 1 else 0 end,
            dispatcher = case when n % 4 = 3 then 1 end,
            sweep = case when n % 4 = 3 then 1 end,
            claimed_at = case when n % 4 = 3 then now() end,
            fence = case when n % 4 = 3 then 1 else 0 end
        from numbered where numbered.id = live.id",
    )
    .await
    .unwrap();
    db
}

#[tokio::test]
async fn a_dry_run_counts_exactly_what_a_filter_matches() {
    let side = Producers::start().await;
    let db = fill(&side).await;
    let middle: String = db
        .query_one("select to_char(clock_timestamp() at time zone 'UTC', 'YYYY-MM-DD\"T\"HH24:MI:SS.US\"Z\"')", &[])
        .await
        .unwrap()
        .get(0);
    enqueue_many(&db, 10).await;
    for (filter, expected) in [
        (json!({"all": true}), 1210),
        (json!({"namespace": "a"}), 600),
        (json!({"namespace": "nobody"}), 0),
        (json!({"task_queue": "r"}), 400),
        (json!({"task_queue": "q", "namespace": "b"}), 400),
        (json!({"task_type": "t"}), 1210),
        (json!({"node": "l"}), 600),
        (json!({"state": "held"}), 300),
        (json!({"state": "scheduled"}), 300),
        (json!({"state": "running"}), 300),
        (json!({"state": "ready"}), 310),
        (json!({"labels": {"shard": "3"}}), 120),
        (json!({"labels": {"shard": "3", "odd": "0"}}), 0),
        (
            json!({"labels": {"shard": "3", "odd": "1"}, "namespace": "a"}),
            60,
        ),
        (json!({"labels": {"absent": "1"}}), 0),
        (json!({"enqueued_after": middle}), 10),
        (json!({"enqueued_before": middle}), 1200),
        (
            json!({"enqueued_before": middle, "state": "ready", "node": "l"}),
            300,
        ),
    ] {
        let mut body = filter.clone();
        body["dry_run"] = json!(true);
        let report = ask(&side, body).await;
        assert_eq!(
            (&report["matched"], &report["ended"]),
            (&json!(expected), &json!(0)),
            "{filter}"
        );
        assert_eq!(
            (&report["dry_run"], &report["next"]),
            (&json!(true), &Value::Null)
        );
    }
    assert_eq!(
        count(&db, "select count(*) from fencepost.outcome").await,
        0
    );
    assert_eq!(
        count(
            &db,
            "select count(*) from fencepost.live where cancel_requested"
        )
        .await,
        0
    );
}

#[tokio::test]
async fn a_filter_cancels_what_it_matches_and_nothing_else() {
    let side = Producers::start().await;
    let db = fill(&side).await;
    let report = ask(&side, json!({"namespace": "a", "reason": "wrong"})).await;
    assert_eq!(
        report,
        json!({
            "dry_run": false, "matched": 600, "ended": 450, "requested": 150, "over": 0, "busy": 0, "next": null
        }),
        "held ones end at once too"
    );
    let of_a = "inner join fencepost.task using (id) inner join fencepost.route on route.route_id = task.route_id
        inner join fencepost.namespace using (namespace_id) where namespace.name";
    let select = async |what: &str, which: &str| {
        count(
            &db,
            &format!("select count(*) from fencepost.{what} {of_a} {which}"),
        )
        .await
    };
    assert_eq!(
        select("outcome", "= 'a' and state = 3 and error_message = 'wrong'").await,
        450
    );
    assert_eq!(
        select("live", "= 'a' and cancel_requested and state = 1").await,
        150
    );
    assert_eq!(select("live", "= 'b' and not cancel_requested").await, 600);

    // What waits only; what runs by then is passed over.
    let report = ask(&side, json!({"namespace": "b", "state": "scheduled"})).await;
    assert_eq!(
        (&report["ended"], &report["requested"]),
        (&json!(150), &json!(0))
    );
    let command = [
        "task",
        "cancel",
        "--namespace",
        "b",
        "--state",
        "running",
        "--output",
        "json",
    ];
    let output = side.command(&command, b"").await;
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(
        (&report["ended"], &report["requested"]),
        (&json!(0), &json!(150))
    );
    let output = side
        .command(&["task", "cancel", "--all", "--dry-run"], b"")
        .await;
    assert_eq!(
        String::from_utf8(output.stdout).unwrap(),
        "600 unfinished tasks match\n"
    );
    let output = side.command(&["task", "cancel", "--all"], b"").await;
    assert_eq!(output.status.code(), Some(0));
    assert_eq!(
        count(
            &db,
            "select count(*) from fencepost.live where not cancel_requested"
        )
        .await,
        0
    );
    queue::assert_sound(&side.db.pool().get().await.unwrap()).await;
}

#[tokio::test]
async fn a_call_whose_time_is_over_says_where_the_next_one_begins() {
    let side = Producers::start().await;
    let db = side.db.connect().await;
    enqueue_many(&db, 12_000).await;
    let mut asked = CancelMatching {
        matching: Matching {
            task_queue: Some("q".into()),
            ..Matching::default()
        },
        budget: Duration::ZERO,
        ..CancelMatching::default()
    };
    let mut counted = Vec::new();
    loop {
        let report = side.state.cancel_matching(asked.clone()).await.unwrap();
        counted.push(report.ended);
        match report.next {
            None => break,
            Some(next) => asked.after = next.parse().unwrap(),
        }
    }
    assert_eq!(counted, [5_000, 5_000, 2_000]);
    assert_eq!(count(&db, "select count(*) from fencepost.live").await, 0);
}

#[tokio::test]
async fn what_is_no_filter_is_refused() {
    let side = Producers::start().await;
    let db = side.db.connect().await;
    enqueue(&db, "").await;
    for (body, code, field) in [
        (json!({}), "FP-041", "all"),
        (json!({"dry_run": true}), "FP-041", "all"),
        (json!({"all": true, "task_queue": "q"}), "FP-103", "all"),
        (json!({"state": "done"}), "FP-103", "state"),
        (json!({"labels": {"a": 1}}), "FP-103", "labels"),
        (
            json!({"enqueued_after": "yesterday"}),
            "FP-103",
            "enqueued_after",
        ),
        (json!({"after": "x", "all": true}), "FP-103", "after"),
        (json!({"task_ids": "1"}), "FP-103", "task_ids"),
        (json!({"task_ids": ["x"]}), "FP-103", "task_ids"),
        (
            json!({"task_ids": [1], "namespace": "n"}),
            "FP-103",
            "namespace",
        ),
        (
            json!({"task_ids": [1], "dispatch_key": "k"}),
            "FP-103",
            "dispatch_key",
        ),
        (
            json!({"dispatch_key": "k", "state": "ready"}),
            "FP-103",
            "state",
        ),
        (json!({"queue": "q"}), "FP-102", "queue"),
    ] {
        let answer = side.post("/v1/tasks/cancel", body.to_string());
        let told = answer.await.problem();
        assert_eq!(told, (400, code.into(), field.into()), "{body}");
    }
    for (flags, said) in [
        (&["--dry-run"][..], "FP-041 filter_empty, field all"),
        (&["--state", "done"], "field state"),
        (&["--label", "x"], "NAME=VALUE"),
        (&["--enqueued-before", "x"], "field enqueued_before"),
        (&["--key", "k", "--queue", "q"], "cannot be used with"),
        (&["1", "--all"], "cannot be used with"),
    ] {
        let output = side
            .command(&[&["task", "cancel"], flags].concat(), b"")
            .await;
        let text = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(2), "{flags:?}: {text}");
        assert!(text.contains(said), "{flags:?}: {text}");
    }
    assert_eq!(count(&db, "select count(*) from fencepost.live").await, 1);
}

#[tokio::test]
async fn an_open_transaction_delays_its_own_task_and_no_other() {
    let queue = Queue::new().await;
    let ids = queue.enqueue(20).await;
    let (mut holder, mut client) = (queue.client().await, queue.client().await);
    let open = holder.transaction().await.unwrap();
    let lock = "select from fencepost.live where id = $1 for update";
    open.query(lock, &[&ids[3]]).await.unwrap();
    let counts = cancel::cancel_batch(&mut client, &ids, &how())
        .await
        .unwrap();
    assert_eq!(
        (counts.ended, counts.requested, counts.over, counts.busy),
        (19, 0, 0, 1)
    );
    open.rollback().await.unwrap();
    let counts = cancel::cancel_batch(&mut client, &ids, &how())
        .await
        .unwrap();
    assert_eq!((counts.ended, counts.over, counts.busy), (1, 19, 0));
    queue.assert_sound().await;
}

#[tokio::test]
async fn a_task_that_starts_while_only_waiting_ones_are_meant_is_passed_over() {
    let queue = Queue::new().await;
    let token = queue.one().await;
    let mut client = queue.client().await;
    let only = |only| cancel::How {
        only: Some(only),
        ..how()
    };
    let counts = cancel::cancel_batch(&mut client, &[token.id], &only(Only::Waiting)).await;
    assert_eq!(counts.unwrap(), cancel::Counts::default());
    assert!(!queue.row(token.id).await.cancel_requested);
    let counts = cancel::cancel_batch(&mut client, &[token.id], &only(Only::Running)).await;
    assert_eq!(counts.unwrap().requested, 1);
    queue.move_by_owner(token, Move::Retry).await;
    assert_eq!(queue.outcome(token.id).await.unwrap().state, CANCELLED);
    let waiting = queue.enqueue(1).await;
    let counts = cancel::cancel_batch(&mut client, &waiting, &only(Only::Running)).await;
    assert_eq!(counts.unwrap(), cancel::Counts::default());
    assert_eq!(queue.row(waiting[0]).await.state, 0);
}

/// Claims, successes and retries go on while a filter cancels: each task ends once, and whatever the filter came to ends
/// as cancelled unless it had been done before.
#[tokio::test]
async fn a_filter_that_meets_claims_completions_and_retries_loses_none() {
    const TASKS: i32 = 2_000;
    // For the filter alone, whatever the others are done with by then.
    const LATER: i32 = 20;
    let queue = Queue::new().await;
    queue.enqueue(TASKS).await;
    for _ in 0..LATER {
        queue.enqueue_with("delay => '1 hour'").await;
    }
    let stirred = async |odd: bool| {
        let client = queue.client().await;
        loop {
            let tokens = queue
                .claim_lanes(&client, vec![Queue::lane(1, 40)], vec![40])
                .await;
            if tokens.is_empty() && queue.number("select count(*) from fencepost.live").await == 0 {
                return;
            }
            let (ends, goes_back): (Vec<Token>, Vec<Token>) = tokens
                .iter()
                .copied()
                .partition(|token| token.fence > 2 || (token.id % 2 == 0) == odd);
            let ends: Vec<_> = ends.into_iter().map(success).collect();
            fencepost::store::settle::complete(&client, &ends)
                .await
                .unwrap();
            let goes_back: Vec<_> = goes_back
                .into_iter()
                .map(|token| failure(token, Move::Retry))
                .collect();
            fencepost::store::settle::give_back(&client, &goes_back, 5)
                .await
                .unwrap();
            // What somebody else had locked at that moment.
            sweep_up(&queue, &client).await;
        }
    };
    let filtered = async || {
        let mut client = queue.client().await;
        let mut counts = cancel::Counts::default();
        // Let some of them go first.
        while queue.number("select count(*) from fencepost.outcome").await < 200 {}
        let (all, mut after) = (Matching::default(), 0);
        loop {
            let found = cancel::find(&client, &all, after).await.unwrap();
            for ids in found.ids.chunks(100) {
                let part = cancel::cancel_batch(&mut client, ids, &how())
                    .await
                    .unwrap();
                counts.ended += part.ended;
                counts.requested += part.requested;
                counts.over += part.over;
                assert_eq!(part.busy, 0);
            }
            match found.next {
                Some(last) => after = last,
                None => return counts,
            }
        }
    };
    let racing = async { tokio::join!(stirred(true), stirred(false), filtered()) };
    let ((), (), counts) = tokio::time::timeout(STEP * 3, racing).await.unwrap();
    println!("{counts:?}");
    assert!(counts.ended >= u64::try_from(LATER).unwrap());
    queue.assert_sound().await;
    let number =
        |state: i16| format!("select count(*) from fencepost.outcome where state = {state}");
    let (done, cancelled) = (
        queue.number(&number(DONE)).await,
        queue.number(&number(CANCELLED)).await,
    );
    assert_eq!(done + cancelled, i64::from(TASKS + LATER));
    // The same row may have been asked twice, by two claims of it in between.
    assert_eq!(
        u64::try_from(cancelled).unwrap(),
        counts.ended + counts.requested
    );
}

/// Completes and gives back what was locked when its report came, as the settler's slow lane does.
async fn sweep_up(queue: &Queue, client: &fencepost::store::Client) {
    let rows = client
        .query(
            "select id, epoch, fence from fencepost.live where state = 1 and claimed_at < clock_timestamp() - interval '100 ms'
            order by id limit 40",
            &[],
        )
        .await
        .unwrap();
    for row in rows {
        let token = Token {
            id: row.get(0),
            epoch: row.get(1),
            fence: row.get(2),
        };
        queue.complete(token).await;
    }
}

#[tokio::test]
async fn a_worker_that_does_not_stop_is_shown_and_keeps_its_slot_taken() {
    let stage = Stage::set(&[]).await;
    let operator = Operator::of(&stage.replica);
    let mut worker = stage.worker().await;
    let id = enqueue(&stage.db, "").await;
    let task = worker.accept_next().await;
    let waits = enqueue(&stage.db, "").await;
    operator
        .change("POST", &format!("/v1/tasks/{id}/cancel"), "{}")
        .await;
    worker.cancelled(&task).await;
    let why = operator.stands(id, "claimed").await;
    assert!(
        why["detail"].as_str().unwrap().contains("asked to stop"),
        "{why}"
    );
    // It says nothing: after the grace the task is over, and the worker is not free.
    let end = ended(&stage.db, id).await;
    assert_eq!(
        (end.state, end.class.as_deref()),
        (CANCELLED, Some("cancel_ignored"))
    );
    let why = operator.stands(id, "ended").await;
    assert!(
        why["detail"].as_str().unwrap().contains("cancel_ignored"),
        "{why}"
    );
    let shown = operator.worker("scripted", |one| one["stuck"] == 1).await;
    assert_eq!(shown["busy"], 1);
    assert_eq!(stage.replica.said("ignores the cancel"), 1);
    worker.gets_nothing_for(Duration::from_millis(400)).await;
    operator.stands(waits, "workers_at_capacity").await;

    worker.succeed(&task, "1").await;
    worker.superseded(&task).await;
    let next = worker.accept_next().await;
    assert_eq!(next.task_id, waits);
    operator.worker("scripted", |one| one["stuck"] == 0).await;
    // A stream that ends takes its stuck slots along.
    operator
        .change("POST", &format!("/v1/tasks/{waits}/cancel"), "{}")
        .await;
    worker.cancelled(&next).await;
    operator.worker("scripted", |one| one["stuck"] == 1).await;
    drop(worker);
    let last = enqueue(&stage.db, "").await;
    let mut worker = stage.worker().await;
    let task = worker.accept_next().await;
    assert_eq!(task.task_id, last);
    operator
        .worker("scripted", |one| one["stuck"] == 0 && one["busy"] == 1)
        .await;
    worker.succeed(&task, "1").await;
    worker.recorded(&task).await;
}

/// The order goes by a notification; the beats of this replica are far apart.
#[tokio::test]
async fn an_order_reaches_another_replica_before_its_next_beat() {
    let stage = Stage::set(&[("REPLICA__BEAT", "15s"), ("REPLICA__DEAD_AFTER", "60s")]).await;
    let side_pool = stage.url();
    let mut worker = stage.worker().await;
    let id = enqueue(&stage.db, "").await;
    let task = worker.accept_next().await;
    let beats = "select beat from fencepost.dispatcher";
    let before = count(&stage.db, beats).await;
    let output = crate::support::fencepost(&side_pool, &["task", "cancel", &id.to_string()]).await;
    assert_eq!(output.status.code(), Some(0));
    worker.cancelled(&task).await;
    assert_eq!(
        count(&stage.db, beats).await,
        before,
        "a beat came first: this run shows nothing"
    );
    worker.succeed(&task, "1").await;
    worker.recorded(&task).await;
    assert_eq!(ended(&stage.db, id).await.state, CANCELLED);
}
