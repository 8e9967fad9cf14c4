//! One task's life through a real replica, seen from both ends: what the worker gets on the wire, and what the
//! tables say afterwards.

use std::time::{Duration, Instant};

use fencepost::proto::worker::{FailureKind, RefusedReason, Register};

use crate::support::queue::assert_sound;
use crate::support::scripted_worker::{register, succeeded};
use crate::support::tasks::{
    CANCELLED, DONE, FAILED, Live, ended, enqueue, enqueue_many, failures, live,
};
use crate::support::{Replica, ScriptedWorker, TestDb, eventually};

/// Waits that tests sit out are short; no test depends on how short.
pub const SHORT: &[(&str, &str)] = &[
    ("TASKS__BACKOFF_BASE", "20ms"),
    ("WORKERS__ACCEPT_TIMEOUT", "300ms"),
    ("WORKERS__RECONNECT_GRACE", "700ms"),
    ("TASKS__CANCEL_GRACE", "1s"),
    ("REPLICA__BEAT", "200ms"),
];

/// A database, a connection to it, and one replica.
pub struct Stage {
    pub replica: Replica,
    pub db: tokio_postgres::Client,
    pub test: TestDb,
}

impl Stage {
    pub async fn set(env: &[(&str, &str)]) -> Self {
        let test = TestDb::new().await;
        let env: Vec<_> = SHORT.iter().chain(env).copied().collect();
        let replica = Replica::start(&test.url(), &env).await;
        let db = test.connect().await;
        Self { replica, db, test }
    }

    /// The database's URL, for commands.
    pub fn url(&self) -> String {
        self.test.url()
    }

    /// Holds what must be true of the tables.
    pub async fn assert_sound(&self) {
        assert_sound(&self.test.pool().get().await.unwrap()).await;
    }

    pub async fn worker(&self) -> ScriptedWorker {
        ScriptedWorker::connect(&self.replica.url()).await
    }

    /// A worker with a slot for each of so many tasks.
    pub async fn wide_worker(&self, slots: u32) -> ScriptedWorker {
        ScriptedWorker::connect_with_slots(&self.replica.url(), slots).await
    }
}

#[tokio::test]
async fn a_task_is_delivered_and_its_result_recorded() {
    let stage = Stage::set(&[]).await;
    let mut worker = stage.worker().await;
    let id = enqueue(
        &stage.db,
        "'{\"user\": 42}', labels => '{\"a\": \"b\"}', max_attempts => 3",
    )
    .await;
    let task = worker.accept_next().await;
    assert_eq!(task.task_id, id);
    assert_eq!((task.attempt, task.max_attempts, task.fence), (1, 3, 1));
    assert_eq!(
        (
            task.namespace.as_str(),
            task.task_queue.as_str(),
            task.task_type.as_str()
        ),
        ("default", "q", "t")
    );
    assert_eq!(task.payload, "{\"user\": 42}");
    assert_eq!(task.content_type, "application/json");
    assert_eq!(task.labels["a"], "b");
    assert_eq!(task.idempotency_key, id.to_string());
    assert_eq!(task.run_timeout_ms, 3_600_000);
    worker.succeed(&task, "{\"sent\":true}").await;
    worker.recorded(&task).await;
    let end = ended(&stage.db, id).await;
    assert_eq!((end.state, end.attempt, end.fence), (DONE, 0, Some(1)));
    assert_eq!(end.result.unwrap(), "{\"sent\": true}");
    assert_eq!(failures(&stage.db, id).await, []);
}

#[tokio::test]
async fn a_retry_waits_its_backoff_and_counts_attempts_from_one() {
    let stage = Stage::set(&[]).await;
    let mut worker = stage.worker().await;
    let id = enqueue(&stage.db, "max_attempts => 4").await;
    let mut keys = Vec::new();
    for attempt in 1..=2 {
        let task = worker.accept_next().await;
        assert_eq!((task.attempt, task.fence), (attempt, i64::from(attempt)));
        keys.push(task.idempotency_key.clone());
        worker.fail(&task, FailureKind::Retryable, "odd").await;
        worker.recorded(&task).await;
    }
    // The worker's own delay goes before the backoff.
    let task = worker.accept_next().await;
    let (delay, asked) = (Duration::from_millis(600), Instant::now());
    worker.fail_for(&task, delay).await;
    worker.recorded(&task).await;
    let task = worker.accept_next().await;
    assert!(asked.elapsed() >= delay);
    assert_eq!(task.attempt, 4);
    keys.push(task.idempotency_key.clone());
    worker.succeed(&task, "null").await;
    worker.recorded(&task).await;
    assert!(keys.iter().all(|key| *key == keys[0]), "{keys:?}");
    assert_eq!((ended(&stage.db, id).await).attempt, 3);
    let recorded: Vec<_> = failures(&stage.db, id)
        .await
        .into_iter()
        .map(|(attempt, fence, how, class)| (attempt, fence, how + " " + &class))
        .collect();
    assert_eq!(
        recorded,
        [
            (1, 1, "retry odd".into()),
            (2, 2, "retry odd".into()),
            (3, 3, "retry later".into())
        ]
    );
}

#[tokio::test]
async fn the_backoff_doubles_up_to_its_highest() {
    let stage = Stage::set(&[
        ("TASKS__BACKOFF_BASE", "200ms"),
        ("TASKS__BACKOFF_MAX", "300ms"),
    ])
    .await;
    let mut worker = stage.worker().await;
    let id = enqueue(&stage.db, "max_attempts => 9").await;
    // Full jitter takes anything off, so only the upper end is certain: 200, 300, 300 ms.
    for highest in [200, 300, 300] {
        let task = worker.accept_next().await;
        worker.fail(&task, FailureKind::Retryable, "odd").await;
        let select = "select extract(epoch from visible_after - failed_at)::float8 * 1000
            from fencepost.live join fencepost.failure using (id) where id = $1 order by failed_at desc limit 1";
        worker.recorded(&task).await;
        // Claimed again or not, the row keeps when it was due.
        let row = stage.db.query_one(select, &[&id]).await.unwrap();
        let wait: f64 = row.get(0);
        assert!(
            (0.0..=f64::from(highest)).contains(&wait),
            "{wait} ms of {highest}"
        );
    }
}

#[tokio::test]
async fn a_terminal_failure_and_a_spent_budget_are_dead_letters() {
    let stage = Stage::set(&[]).await;
    let mut worker = stage.worker().await;
    let terminal = enqueue(&stage.db, "max_attempts => 5").await;
    let task = worker.accept_next().await;
    worker
        .fail(&task, FailureKind::Terminal, "no_such_user")
        .await;
    worker.recorded(&task).await;
    let end = ended(&stage.db, terminal).await;
    assert_eq!(
        (end.state, end.attempt, end.class.as_deref()),
        (FAILED, 1, Some("no_such_user"))
    );

    let spent = enqueue(&stage.db, "'[1, 2]', max_attempts => 2").await;
    for _ in 1..=2 {
        let task = worker.accept_next().await;
        worker.fail(&task, FailureKind::Retryable, "odd").await;
        worker.recorded(&task).await;
    }
    let end = ended(&stage.db, spent).await;
    assert_eq!((end.state, end.attempt, end.fence), (FAILED, 2, Some(2)));
    let moves: Vec<_> = failures(&stage.db, spent)
        .await
        .into_iter()
        .map(|failure| failure.2)
        .collect();
    assert_eq!(moves, ["retry", "dead_letter"]);
    let select = "select cause, attempt, convert_from(payload, 'UTF8') from fencepost.dead_letter where id = $1";
    let row = stage.db.query_one(select, &[&spent]).await.unwrap();
    assert_eq!(
        (row.get(0), row.get(1), row.get(2)),
        ("failed", 2, "[1, 2]")
    );
}

#[tokio::test]
async fn a_snoozed_task_comes_back_after_its_delay_with_the_same_attempt() {
    let stage = Stage::set(&[]).await;
    let mut worker = stage.worker().await;
    let id = enqueue(&stage.db, "").await;
    let task = worker.accept_next().await;
    let (delay, asked) = (Duration::from_millis(500), Instant::now());
    worker.snooze(&task, delay).await;
    worker.recorded(&task).await;
    let task = worker.accept_next().await;
    assert!(asked.elapsed() >= delay);
    assert_eq!((task.attempt, task.fence), (1, 2));
    worker.succeed(&task, "1").await;
    worker.recorded(&task).await;
    assert_eq!(ended(&stage.db, id).await.attempt, 0);
    assert_eq!(failures(&stage.db, id).await, []);
}

#[tokio::test]
async fn a_refused_task_goes_elsewhere_without_an_attempt() {
    for reason in [
        RefusedReason::NoSlot,
        RefusedReason::UnknownType,
        RefusedReason::Draining,
    ] {
        let stage = Stage::set(&[]).await;
        let mut refuser = stage.worker().await;
        let id = enqueue(&stage.db, "").await;
        let task = refuser.task().await;
        let mut other = stage.worker().await;
        refuser.refuse(&task, reason).await;
        let again = other.accept_next().await;
        assert_eq!(
            (again.task_id, again.attempt, again.fence),
            (id, 1, 2),
            "{reason:?}"
        );
        let row = live(&stage.db, id).await.unwrap();
        assert_eq!(
            (row.attempt, row.losses, row.epoch),
            (0, 0, 0),
            "{reason:?}"
        );
        other.succeed(&again, "1").await;
        other.recorded(&again).await;
        assert_eq!(failures(&stage.db, id).await, []);
        let more = enqueue(&stage.db, "").await;
        match reason {
            // Its slot is free again after a while.
            RefusedReason::NoSlot => {
                let last = enqueue(&stage.db, "").await;
                let (theirs, ours) = (other.task().await.task_id, refuser.task().await.task_id);
                assert_eq!([theirs.min(ours), theirs.max(ours)], [more, last]);
            }
            // Struck, or drained: all that comes goes to the other one.
            _ => {
                assert_eq!(other.task().await.task_id, more);
                enqueue(&stage.db, "").await;
                refuser.gets_nothing_for(Duration::from_millis(300)).await;
            }
        }
    }
}

#[tokio::test]
async fn a_worker_that_refuses_everything_is_no_hot_loop() {
    let stage = Stage::set(&[]).await;
    let mut refuser = stage.worker().await;
    let id = enqueue(&stage.db, "").await;
    let end = Instant::now() + Duration::from_secs(2);
    let mut deliveries = 0;
    while Instant::now() < end {
        let task = refuser.task().await;
        deliveries = task.fence;
        refuser.refuse(&task, RefusedReason::NoSlot).await;
    }
    // 50 ms, 100 ms, 200 ms, … between them.
    assert!(
        (2..=8).contains(&deliveries),
        "{deliveries} deliveries in 2 s"
    );
    assert_eq!(live(&stage.db, id).await.unwrap().attempt, 0);
}

#[tokio::test]
async fn a_delivery_that_is_not_accepted_in_time_goes_elsewhere_as_a_loss() {
    let stage = Stage::set(&[]).await;
    let mut silent = stage.worker().await;
    let id = enqueue(&stage.db, "").await;
    let first = silent.task().await;
    let mut other = stage.worker().await;
    silent.cancelled(&first).await;
    // Equally free: it may come to either.
    let again = tokio::select! {
        task = silent.task() => task,
        task = other.task() => task,
    };
    assert_eq!((again.attempt, again.fence), (1, 2));
    let row = live(&stage.db, id).await.unwrap();
    assert_eq!((row.attempt, row.losses, row.epoch), (0, 1, 1));
    assert_eq!(failures(&stage.db, id).await[0].2, "not_accepted");
    silent.succeed(&first, "1").await;
    silent.superseded(&first).await;
}

#[tokio::test]
async fn too_many_losses_are_a_dead_letter_that_says_so() {
    let stage = Stage::set(&[("TASKS__MAX_LOSSES", "1")]).await;
    let mut silent = stage.worker().await;
    let id = enqueue(&stage.db, "").await;
    for _ in 0..2 {
        silent.task().await;
    }
    assert_eq!(ended(&stage.db, id).await.state, FAILED);
    let select = "select cause, losses, attempt from fencepost.dead_letter where id = $1";
    let row = stage.db.query_one(select, &[&id]).await.unwrap();
    assert_eq!((row.get(0), row.get(1), row.get(2)), ("lost", 2, 0));
}

#[tokio::test]
async fn a_task_over_its_run_timeout_is_told_to_stop_and_tried_again() {
    let stage = Stage::set(&[]).await;
    let mut worker = stage.worker().await;
    let id = enqueue(&stage.db, "run_timeout => '400ms'").await;
    let task = worker.task().await;
    // Counted from acceptance.
    let accepted = Instant::now();
    worker.accept(&[&task]).await;
    worker.cancelled(&task).await;
    assert!(accepted.elapsed() >= Duration::from_millis(400));
    let again = worker.accept_next().await;
    assert_eq!((again.attempt, again.fence), (2, 2));
    worker.succeed(&task, "1").await;
    worker.superseded(&task).await;
    worker.succeed(&again, "2").await;
    worker.recorded(&again).await;
    assert_eq!(ended(&stage.db, id).await.result.unwrap(), "2");
    let failures = failures(&stage.db, id).await;
    assert_eq!(failures, [(1, 1, "time_out".into(), "run_timeout".into())]);
}

#[tokio::test]
async fn progress_keeps_a_task_alive_and_silence_ends_it() {
    let stage = Stage::set(&[]).await;
    let mut worker = stage.worker().await;
    let id = enqueue(&stage.db, "heartbeat_timeout => '500ms'").await;
    let task = worker.accept_next().await;
    let mut beats = tokio::time::interval(Duration::from_millis(100));
    for _ in 0..12 {
        beats.tick().await;
        worker.progress(&task).await;
    }
    assert_eq!(
        live(&stage.db, id).await.unwrap().epoch,
        0,
        "1.1 s with a beat every 100 ms"
    );
    let silent = Instant::now();
    worker.cancelled(&task).await;
    assert!(silent.elapsed() > Duration::from_millis(300));
    assert_eq!(worker.accept_next().await.attempt, 2);
    let failures = failures(&stage.db, id).await;
    assert_eq!(
        failures,
        [(1, 1, "time_out".into(), "heartbeat_timeout".into())]
    );
}

#[tokio::test]
async fn a_result_that_is_answered_twice_is_recorded_once() {
    let stage = Stage::set(&[]).await;
    let mut worker = stage.worker().await;
    let id = enqueue(&stage.db, "").await;
    let task = worker.accept_next().await;
    worker.succeed(&task, "1").await;
    worker.recorded(&task).await;
    worker.succeed(&task, "2").await;
    worker.recorded(&task).await;
    assert_eq!(ended(&stage.db, id).await.result.unwrap(), "1");
    // Both in one frame.
    let id = enqueue(&stage.db, "").await;
    let task = worker.accept_next().await;
    worker
        .report(vec![succeeded(&task, "1"), succeeded(&task, "2")])
        .await;
    worker.recorded(&task).await;
    worker.recorded(&task).await;
    assert_eq!(ended(&stage.db, id).await.fence, Some(1));
    // A failure after the success of the same delivery changes nothing.
    worker.fail(&task, FailureKind::Terminal, "late").await;
    worker.superseded(&task).await;
    assert_eq!(ended(&stage.db, id).await.state, DONE);
}

#[tokio::test]
async fn a_late_failure_never_ends_a_newer_delivery() {
    let stage = Stage::set(&[]).await;
    let mut worker = stage.wide_worker(2).await;
    let id = enqueue(&stage.db, "run_timeout => '300ms'").await;
    let first = worker.accept_next().await;
    worker.cancelled(&first).await;
    let second = worker.accept_next().await;
    worker.fail(&first, FailureKind::Terminal, "late").await;
    worker.superseded(&first).await;
    worker.succeed(&second, "2").await;
    worker.recorded(&second).await;
    assert_eq!(ended(&stage.db, id).await.state, DONE);
}

#[tokio::test]
async fn settle_accepted_is_done_with_the_acceptance() {
    let stage = Stage::set(&[]).await;
    let mut worker = stage.worker().await;
    let id = enqueue(&stage.db, "settle => 'accepted'").await;
    let task = worker.task().await;
    assert_eq!(
        live(&stage.db, id).await.unwrap().state,
        1,
        "sending is no acceptance"
    );
    worker.accept(&[&task]).await;
    let end = ended(&stage.db, id).await;
    assert_eq!((end.state, end.fence, end.result), (DONE, Some(1), None));
    worker.succeed(&task, "1").await;
    worker.recorded(&task).await;
    let refused = enqueue(&stage.db, "settle => 'accepted'").await;
    let task = worker.task().await;
    worker.refuse(&task, RefusedReason::NoSlot).await;
    let task = worker.accept_next().await;
    assert_eq!((task.task_id, task.fence), (refused, 2));
    assert_eq!(ended(&stage.db, refused).await.state, DONE);
}

#[tokio::test]
async fn an_oversize_result_ends_its_task_at_once() {
    let stage = Stage::set(&[("LIMITS__RESULT", "1000")]).await;
    let mut worker = stage.worker().await;
    assert_eq!(worker.welcome.max_result_bytes, 1000);
    let id = enqueue(&stage.db, "").await;
    let task = worker.accept_next().await;
    worker
        .succeed(&task, format!("\"{}\"", "x".repeat(2000)))
        .await;
    worker.recorded(&task).await;
    let end = ended(&stage.db, id).await;
    assert_eq!(
        (end.state, end.attempt, end.class.as_deref()),
        (FAILED, 1, Some("result_too_large"))
    );
    // The stream is as good as before.
    enqueue(&stage.db, "").await;
    let task = worker.accept_next().await;
    worker.succeed(&task, "1").await;
    worker.recorded(&task).await;
}

#[tokio::test]
async fn an_invalid_result_ends_its_task_and_none_of_its_neighbours() {
    let stage = Stage::set(&[]).await;
    let mut worker = stage.wide_worker(60).await;
    let ids = enqueue_many(&stage.db, 51).await;
    let mut tasks = Vec::new();
    for _ in &ids {
        tasks.push(worker.accept_next().await);
    }
    let bad = [
        (7, "{\"a\": \"\\u0000\"}"),
        (23, "{not json"),
        (40, "\"\\ud800\""),
    ];
    let results = tasks.iter().enumerate().map(|(at, task)| {
        let odd = bad.iter().find(|(position, _)| *position == at);
        succeeded(task, odd.map_or("{\"a\": 1}", |(_, json)| *json))
    });
    worker.report(results.collect()).await;
    for _ in &tasks {
        assert_eq!(
            worker.ack().await.verdict(),
            fencepost::proto::worker::Verdict::Recorded
        );
    }
    for (at, task) in tasks.iter().enumerate() {
        let end = ended(&stage.db, task.task_id).await;
        if bad.iter().any(|(position, _)| *position == at) {
            assert_eq!(
                (end.state, end.class.as_deref()),
                (FAILED, Some("result_invalid")),
                "{at}"
            );
        } else {
            assert_eq!(
                (end.state, end.result.as_deref()),
                (DONE, Some("{\"a\": 1}")),
                "{at}"
            );
        }
    }
}

#[tokio::test]
async fn odd_text_from_a_worker_is_stored_all_the_same() {
    let stage = Stage::set(&[]).await;
    let mut worker = stage.worker().await;
    let id = enqueue(&stage.db, "max_attempts => 2").await;
    let task = worker.accept_next().await;
    worker.fail(&task, FailureKind::Retryable, "a\0b").await;
    worker.recorded(&task).await;
    let task = worker.accept_next().await;
    assert_eq!(
        (task.task_id, task.attempt),
        (id, 2),
        "a NUL in a message costs no more than the try"
    );
}

#[tokio::test]
async fn a_task_too_large_for_every_frame_is_a_dead_letter_before_it_is_sent() {
    let stage = Stage::set(&[]).await;
    let small = Register {
        max_frame_bytes: 8192,
        ..register()
    };
    let mut worker = ScriptedWorker::connect_as(&stage.replica.url(), small).await;
    let id = enqueue(&stage.db, "to_jsonb(repeat('x', 20000))").await;
    let end = ended(&stage.db, id).await;
    assert_eq!(
        (end.state, end.attempt, end.class.as_deref()),
        (FAILED, 0, Some("frame_too_large"))
    );
    let fits = enqueue(&stage.db, "to_jsonb(repeat('x', 5000))").await;
    assert_eq!(worker.accept_next().await.task_id, fits);
}

#[tokio::test]
async fn a_task_too_large_for_one_worker_goes_to_another() {
    let stage = Stage::set(&[]).await;
    let small = Register {
        max_frame_bytes: 8192,
        slots: 9,
        ..register()
    };
    let mut small = ScriptedWorker::connect_as(&stage.replica.url(), small).await;
    let mut large = stage.worker().await;
    let id = enqueue(&stage.db, "to_jsonb(repeat('x', 20000))").await;
    let task = large.accept_next().await;
    assert_eq!(task.task_id, id);
    // While that one is busy it waits, and is neither sent nor dead.
    let waits = enqueue(&stage.db, "to_jsonb(repeat('x', 20000))").await;
    small.gets_nothing_for(Duration::from_millis(500)).await;
    large.succeed(&task, "1").await;
    assert_eq!(large.accept_next().await.task_id, waits);
}

#[tokio::test]
async fn a_running_task_that_is_cancelled_is_told_and_ends_so() {
    let stage = Stage::set(&[]).await;
    let mut worker = stage.wide_worker(3).await;
    let ids = enqueue_many(&stage.db, 3).await;
    let mut tasks = Vec::new();
    for _ in &ids {
        tasks.push(worker.accept_next().await);
    }
    let cancel = async |id: i64| {
        let url = format!("/v1/tasks/{id}/cancel");
        assert_eq!(stage.replica.post(&url).await, Some(200));
    };
    // One stops, one succeeds all the same, one is deaf.
    for task in &tasks {
        cancel(task.task_id).await;
        worker.cancelled(task).await;
        assert_eq!(
            live(&stage.db, task.task_id).await.unwrap().state,
            1,
            "it keeps its slot"
        );
    }
    worker
        .fail(&tasks[0], FailureKind::Cancelled, "stopped")
        .await;
    worker.recorded(&tasks[0]).await;
    worker.succeed(&tasks[1], "1").await;
    worker.recorded(&tasks[1]).await;
    for task in &tasks {
        let end = ended(&stage.db, task.task_id).await;
        assert_eq!((end.state, end.result), (CANCELLED, None));
    }
    worker.succeed(&tasks[2], "1").await;
    worker.superseded(&tasks[2]).await;
}

#[tokio::test]
async fn a_waiting_task_that_is_cancelled_ends_at_once() {
    let stage = Stage::set(&[]).await;
    let id = enqueue(&stage.db, "").await;
    assert_eq!(
        stage.replica.post(&format!("/v1/tasks/{id}/cancel")).await,
        Some(200)
    );
    assert_eq!(ended(&stage.db, id).await.state, CANCELLED);
    let mut worker = stage.worker().await;
    worker.gets_nothing_for(Duration::from_millis(300)).await;
}

#[tokio::test]
async fn nothing_is_claimed_that_no_slot_is_free_for() {
    let stage = Stage::set(&[]).await;
    let mut worker = stage.wide_worker(2).await;
    let ids = enqueue_many(&stage.db, 5).await;
    let (first, _second) = (worker.accept_next().await, worker.accept_next().await);
    worker.gets_nothing_for(Duration::from_millis(300)).await;
    // It looks ahead meanwhile.
    let operator = crate::support::Operator::of(&stage.replica);
    let looks = async || {
        let (page, _) = operator.scrape().await;
        page.sum("fencepost_claim_index_scans_total", &[])
    };
    let before = looks().await;
    let more = async || (looks().await >= before + 3.0).then_some(());
    eventually(Duration::from_secs(20), more).await;
    let fences = "select sum(fence) from fencepost.live";
    assert_eq!(crate::support::tasks::count(&stage.db, fences).await, 2);
    worker.succeed(&first, "1").await;
    let third = worker.accept_next().await;
    assert!(ids.contains(&third.task_id));
    assert_eq!(
        live(&stage.db, third.task_id).await.map(|row| Live {
            dispatcher: None,
            ..row
        }),
        Some(Live {
            state: 1,
            attempt: 0,
            losses: 0,
            epoch: 0,
            fence: 1,
            dispatcher: None
        })
    );
}

/// The database's own record of how late a task started, in milliseconds.
async fn lateness(db: &tokio_postgres::Client, id: i64) -> f64 {
    let select = "select extract(epoch from claimed_at - visible_after)::float8 * 1000
        from fencepost.live where id = $1 and state = 1";
    eventually(Duration::from_secs(20), async || {
        db.query_opt(select, &[&id]).await.unwrap()
    })
    .await
    .get(0)
}

/// Enqueues tasks with delays of these milliseconds.
async fn delay(db: &tokio_postgres::Client, delays: impl Iterator<Item = u32>) -> Vec<i64> {
    let mut ids = Vec::new();
    for delay in delays {
        ids.push(enqueue(db, &format!("delay => '{delay} ms'")).await);
    }
    ids
}

#[tokio::test]
async fn a_delayed_task_starts_when_it_is_due() {
    let stage = Stage::set(&[]).await;
    let _worker = stage.wide_worker(20).await;
    // Shorter and longer than the poll interval of 1 s, which would make them late by half of it.
    let ids = delay(&stage.db, (0..9).map(|nth| 300 + 310 * nth)).await;
    let mut late = Vec::new();
    for id in ids {
        late.push(lateness(&stage.db, id).await);
    }
    assert!(
        late.iter().all(|late| *late >= 0.0),
        "{late:?}: never before"
    );
    // A busy machine may hold one up, but hardly most of them.
    late.sort_by(f64::total_cmp);
    assert!(late[4] < 150.0, "{late:?} ms late");
}

#[tokio::test]
async fn a_delayed_task_behind_a_due_one_starts_when_it_is_due() {
    let stage = Stage::set(&[
        ("WAKE__LISTEN", "false"),
        ("WAKE__POLL", "6s"),
        ("WORKERS__ACCEPT_TIMEOUT", "1m"),
    ])
    .await;
    let _worker = stage.wide_worker(1000).await;
    // A poll interval ahead, so that they are known in time.
    let ids = delay(&stage.db, (0..6).map(|nth| 6100 + 230 * nth)).await;
    let waiting = "select count(*) from fencepost.live where state = 0 and id <= $1";
    let mut steady = tokio::time::interval(Duration::from_millis(20));
    while stage
        .db
        .query_one(waiting, &[&ids[5]])
        .await
        .unwrap()
        .get::<_, i64>(0)
        > 0
    {
        // Each look finds a due row first, and must not forget the one behind it.
        steady.tick().await;
        enqueue(&stage.db, "").await;
    }
    for id in ids {
        let late = lateness(&stage.db, id).await;
        assert!((0.0..4000.0).contains(&late), "{late} ms late");
    }
}

#[tokio::test]
async fn a_slot_that_frees_at_the_due_time_finds_the_delayed_task() {
    let stage = Stage::set(&[("WAKE__POLL", "20s")]).await;
    let mut worker = stage.worker().await;
    enqueue(&stage.db, "").await;
    let task = worker.accept_next().await;
    let id = enqueue(&stage.db, "delay => '400ms'").await;
    // While no slot is free the task becomes due; then nothing but the slot says so.
    let due = "select count(*) from fencepost.live where state = 0 and visible_after <= clock_timestamp()";
    eventually(Duration::from_secs(5), async || {
        (crate::support::tasks::count(&stage.db, due).await == 1).then_some(())
    })
    .await;
    let freed = Instant::now();
    worker.succeed(&task, "1").await;
    assert_eq!(worker.task().await.task_id, id);
    assert!(
        freed.elapsed() < Duration::from_secs(3),
        "{:?}",
        freed.elapsed()
    );
}

#[tokio::test]
async fn a_busy_route_does_not_hide_another_one() {
    for listen in ["true", "false"] {
        let stage = Stage::set(&[("WAKE__LISTEN", listen)]).await;
        let both = Register {
            task_types: vec!["t".into(), "other".into()],
            ..register()
        };
        let mut worker = ScriptedWorker::connect_as(&stage.replica.url(), both).await;
        enqueue_many(&stage.db, 2000).await;
        let mut id = None;
        let mut since = Instant::now();
        for done in 0.. {
            let task = worker.accept_next().await;
            if Some(task.task_id) == id {
                break;
            }
            let late = since.elapsed();
            assert!(
                id.is_none() || late < Duration::from_secs(4),
                "not found for {late:?}, listen = {listen}"
            );
            // By now the replica is busy, and does not ask to be notified.
            if done == 30 {
                let call = "select task_id from fencepost.enqueue('q', 'other', priority => 0)";
                id = Some(stage.db.query_one(call, &[]).await.unwrap().get(0));
                since = Instant::now();
            }
            worker.succeed(&task, "1").await;
        }
    }
}
