//! Every move of the model's table, one task at a time.

use std::time::Duration;

use bytes::Bytes;
use fencepost::domain::id::{TaskId, Token};
use fencepost::domain::settlement::Move;
use fencepost::store::claim::{self, Deadlines};
use fencepost::store::settle::{self, Completion, Goes, Return, Verdict};
use fencepost::store::{dispatchers, routes};

use crate::support::Queue;
use crate::support::queue::{
    CANCELLED, DEADLINES, DONE, FAILED, MAX_LOSSES, failure, millis, success, verdict_for,
};

#[tokio::test]
async fn a_claim_counts_the_fence_and_dates_the_delivery() {
    let queue = Queue::new().await;
    let default = queue.enqueue(1).await[0];
    let own = queue.enqueue_with("run_timeout => '5 s'").await;
    let endless = queue.enqueue_with("run_timeout => '0'").await;
    let before = queue.row(default).await;
    assert_eq!((before.state, before.fence), (0, 0));
    let client = queue.client().await;
    let request = queue.request(vec![Queue::lane(1, 9)], vec![9]);
    let claimed = claim::claim(&client, queue.dispatcher, &request, DEADLINES)
        .await
        .unwrap();
    assert_eq!(claimed.claims.len(), 3);
    let claims = &claimed.claims;
    let first = claims.iter().find(|claim| claim.token.id == default);
    assert_eq!(first.unwrap().visible_after, before.visible_after);
    for id in [default, own, endless] {
        let row = queue.row(id).await;
        assert_eq!((row.state, row.fence, row.epoch, row.attempt), (1, 1, 0, 0));
        assert_eq!(row.dispatcher, Some(queue.dispatcher));
        assert_eq!(row.sweep, Some(request.sweep));
        assert_eq!(row.claimed_at, claimed.at);
    }
    let lasts = async |id| {
        let row = queue.row(id).await;
        millis(row.deadline, row.claimed_at)
    };
    assert_eq!(lasts(default).await, 70_000);
    assert_eq!(lasts(own).await, 15_000);
    assert_eq!(queue.row(endless).await.deadline, None);
    let row = queue.row(default).await;
    assert_eq!(row.visible_after, before.visible_after, "its place is kept");

    let unlimited = Deadlines {
        run_timeout: Duration::ZERO,
        ..DEADLINES
    };
    let another = queue.enqueue(1).await[0];
    let request = queue.request(vec![Queue::lane(1, 9)], vec![9]);
    claim::claim(&client, queue.dispatcher, &request, unlimited)
        .await
        .unwrap();
    assert_eq!(queue.row(another).await.deadline, None);
    queue.assert_sound().await;
}

#[tokio::test]
async fn a_body_is_read_as_it_was_enqueued() {
    let queue = Queue::new().await;
    let id = queue
        .enqueue_with(
            "jsonb '{\"b\": 1}', max_attempts => 3, run_timeout => '5 s', heartbeat_timeout => '1500 ms',
             settle => 'accepted', labels => '{\"who\": \"me\"}', options => '{\"backoff_base_ms\": 7}'",
        )
        .await;
    let client = queue.client().await;
    let bodies = claim::read_bodies(&client, &[id, 1]).await.unwrap();
    assert_eq!(bodies.len(), 1, "what is not there is left out");
    let body = &bodies[0];
    assert_eq!((body.id, body.origin), (id, id));
    assert_eq!(body.max_attempts, Some(3));
    assert_eq!(body.run_timeout_ms, Some(5000));
    assert_eq!(body.heartbeat_timeout_ms, Some(1500));
    assert!(body.settle_accepted);
    assert_eq!(body.content_type, "application/json");
    assert_eq!(body.payload, Bytes::from_static(b"{\"b\": 1}"));
    assert_eq!(body.labels.as_deref(), Some("{\"who\": \"me\"}"));
    assert_eq!(body.options.as_deref(), Some("{\"backoff_base_ms\": 7}"));
    assert_eq!(body.member, None);
}

#[tokio::test]
async fn only_due_free_rows_of_the_lane_above_the_mark_are_claimed() {
    let queue = Queue::new().await;
    let wanted = queue.enqueue(1).await[0];
    let future = queue.enqueue_with("delay => '1 hour'").await;
    let other_priority = queue.enqueue_with("priority => 2").await;
    let other_route = queue.enqueue_with("node => 'n'").await;
    let below = queue.enqueue(1).await[0];
    for (bit, held) in [1, 2, 4].into_iter().zip(queue.enqueue(3).await) {
        queue
            .execute(&format!(
                "update fencepost.live set hold = {bit} where id = {held}"
            ))
            .await;
    }
    queue
        .execute(&format!(
            "update fencepost.live set visible_after = timestamptz '2020-01-01 00:00:00+00' where id = {below}"
        ))
        .await;
    let client = queue.client().await;
    let mut lane = Queue::lane(1, 100);
    lane.low = ("2020-01-01T00:00:00Z".parse().unwrap(), below);
    let tokens = queue.claim_lanes(&client, vec![lane], vec![100]).await;
    let ids: Vec<TaskId> = tokens.iter().map(|token| token.id).collect();
    assert_eq!(ids, [wanted]);
    // At the mark means passed over; just below it the row is seen.
    lane.low.1 = below - 1;
    let tokens = queue.claim_lanes(&client, vec![lane], vec![100]).await;
    assert_eq!(tokens[0].id, below);
    assert_eq!(queue.claim(100).await, []);
    for id in [future, other_priority, other_route] {
        assert_eq!(queue.row(id).await.state, 0);
    }
    queue.assert_sound().await;
}

#[tokio::test]
async fn a_claim_takes_no_more_than_asked_best_lanes_first() {
    let queue = Queue::new().await;
    let client = queue.client().await;
    let mut by_priority = Vec::new();
    for priority in [3, 0, 1] {
        let mut ids = Vec::new();
        for _ in 0..4 {
            ids.push(queue.enqueue_with(&format!("priority => {priority}")).await);
        }
        by_priority.push(ids);
    }
    let (low, high, middle) = (&by_priority[0], &by_priority[1], &by_priority[2]);
    // Each lane offers three; the group's five slots go to the higher lanes.
    let lanes = vec![Queue::lane(3, 3), Queue::lane(1, 3), Queue::lane(0, 3)];
    let tokens = queue.claim_lanes(&client, lanes, vec![5]).await;
    let ids: Vec<TaskId> = tokens.iter().map(|token| token.id).collect();
    assert_eq!(ids, [&high[..3], &middle[..2]].concat());
    // A lane that was locked and cut is ready as before.
    for id in low {
        assert_eq!(queue.row(*id).await.state, 0);
    }

    // Two groups: one full, one with a slot of its own.
    let mut second = Queue::lane(3, 9);
    second.share = 1;
    let tokens = queue
        .claim_lanes(&client, vec![Queue::lane(1, 9), second], vec![0, 1])
        .await;
    assert_eq!(tokens.len(), 1);
    assert_eq!(tokens[0].id, low[0], "the oldest of its lane");
    // A group that nobody described has no slots, and no lane means no claim.
    second.share = 7;
    assert_eq!(queue.claim_lanes(&client, vec![second], vec![9]).await, []);
    assert_eq!(queue.claim_lanes(&client, vec![], vec![]).await, []);
    queue.assert_sound().await;
}

#[tokio::test]
async fn a_dead_replica_claims_and_adopts_nothing() {
    let queue = Queue::new().await;
    let token = queue.one().await;
    queue.enqueue(1).await;
    let doomed = queue.join("doomed").await;
    queue.kill(doomed).await;
    let client = queue.client().await;
    for dispatcher in [doomed, 4711] {
        let request = queue.request(vec![Queue::lane(1, 1)], vec![1]);
        assert_eq!(queue.claim_for(&client, dispatcher, &request).await, []);
        let adopted = claim::adopt(&client, dispatcher, 1, &[], &[token], DEADLINES).await;
        assert!(adopted.unwrap().is_empty());
    }
    assert_eq!(queue.row(token.id).await.dispatcher, Some(queue.dispatcher));
    assert_eq!(queue.claim(9).await.len(), 1);
}

#[tokio::test]
async fn death_is_final_and_one_more_beat_averts_it() {
    let queue = Queue::new().await;
    let client = queue.client().await;
    let id = queue.dispatcher;
    assert!(dispatchers::beat(&client, id, true).await.unwrap());
    let late = dispatchers::mark_dead(&client, &[(id, 0)]).await.unwrap();
    assert!(late.is_empty(), "it has beaten since");
    let alive = dispatchers::read(&client).await.unwrap();
    assert_eq!((alive[0].beat, alive[0].draining), (1, true));
    queue.kill(id).await;
    assert!(!dispatchers::beat(&client, id, false).await.unwrap());
    assert!(dispatchers::read(&client).await.unwrap().is_empty());
    let again = dispatchers::mark_dead(&client, &[(id, 1)]).await.unwrap();
    assert!(again.is_empty());
}

fn with_result(token: Token, kind: &str, body: &'static [u8]) -> Completion {
    Completion {
        result: Some((Bytes::from_static(body), kind.to_owned())),
        ..success(token)
    }
}

#[tokio::test]
async fn a_success_ends_the_task_once_and_keeps_its_result() {
    let queue = Queue::new().await;
    let client = queue.client().await;
    queue.enqueue(3).await;
    let tokens = queue.claim(3).await;
    let batch = [
        with_result(tokens[0], "application/json", b" {\"b\":1, \"a\" : [2]}"),
        with_result(tokens[1], "image/png", b"\x89PNG\0"),
        success(tokens[2]),
    ];
    let done = settle::complete(&client, &batch).await.unwrap();
    let mut done: Vec<_> = done.iter().map(|ended| ended.id).collect();
    done.sort_unstable();
    assert_eq!(
        done,
        tokens.iter().map(|token| token.id).collect::<Vec<_>>()
    );
    let results: [Option<(&[u8], &str)>; 3] = [
        Some((b"{\"a\": [2], \"b\": 1}", "application/json")),
        Some((b"\x89PNG\0", "image/png")),
        None,
    ];
    for (token, result) in tokens.iter().zip(results) {
        let outcome = queue.outcome(token.id).await.unwrap();
        assert_eq!((outcome.state, outcome.attempt), (DONE, 0));
        assert_eq!(outcome.told, Some((0, 1)));
        assert_eq!(outcome.worker.as_deref(), Some("w"));
        assert_eq!(outcome.error, (None, None));
        let kept = outcome.result;
        assert_eq!(
            kept,
            result.map(|(body, kind)| (body.to_vec(), kind.to_owned()))
        );
        assert_eq!(
            queue.failures(token.id).await,
            [],
            "a first success leaves no failure"
        );
        // A repeat writes nothing and is told that it is recorded; a failure of it is not.
        assert!(!queue.complete(*token).await);
        assert_eq!(queue.verdict(*token, true).await, Verdict::Recorded);
        assert_eq!(queue.verdict(*token, false).await, Verdict::Superseded);
    }
    queue.assert_sound().await;
}

#[tokio::test]
async fn a_result_that_is_not_json_writes_nothing() {
    let queue = Queue::new().await;
    let client = queue.client().await;
    queue.enqueue(2).await;
    let tokens = queue.claim(2).await;
    for bad in [&b"{"[..], b"\xff", b"\"\\u0000\"", b""] {
        let batch = [
            success(tokens[0]),
            Completion {
                result: Some((Bytes::copy_from_slice(bad), "application/json".into())),
                ..success(tokens[1])
            },
        ];
        let error = settle::complete(&client, &batch).await.unwrap_err();
        assert!(error.is_data(), "{error}");
        for token in &tokens {
            assert_eq!(queue.outcome(token.id).await, None);
            assert_eq!(queue.row(token.id).await.state, 1);
        }
    }
    queue.assert_sound().await;
}

#[tokio::test]
async fn a_success_of_an_earlier_delivery_counts_within_its_epoch_only() {
    let queue = Queue::new().await;
    // The replica dies, the task is delivered again, and the first delivery finishes.
    let first = queue.one().await;
    assert_eq!(queue.move_by_owner(first, Move::ReArm).await, [Goes::Ready]);
    let second = queue.again().await;
    assert_eq!((second.epoch, second.fence), (first.epoch, first.fence + 1));
    assert!(queue.complete(first).await);
    assert!(!queue.complete(second).await);
    assert_eq!(queue.verdict(first, true).await, Verdict::Recorded);
    assert_eq!(queue.verdict(second, true).await, Verdict::Superseded);
    assert_eq!(queue.outcome(first.id).await.unwrap().told, Some((0, 1)));

    // The same, before anyone has claimed it again.
    let token = queue.one().await;
    queue.move_by_owner(token, Move::ReArm).await;
    assert!(queue.complete(token).await);
    assert_eq!(queue.outcome(token.id).await.unwrap().state, DONE);

    // After a try was spent the earlier delivery has no say.
    let spent = queue.one().await;
    assert_eq!(
        queue.give_back(failure(spent, Move::Retry)).await,
        [Goes::Ready]
    );
    assert!(!queue.complete(spent).await);
    assert_eq!(queue.verdict(spent, true).await, Verdict::Superseded);
    let next = queue.again().await;
    assert!(!queue.complete(spent).await);
    assert!(queue.complete(next).await);
    queue.assert_sound().await;
}

/// What a move does: attempt, epoch and losses added, and whether a failure is written.
const RULES: [(Move, i32, i32, i32, bool); 7] = [
    (Move::Retry, 1, 1, 0, true),
    (Move::TimeOut, 1, 1, 0, true),
    (Move::RetryAtOnce, 1, 1, 1, true),
    (Move::NotAccepted, 0, 1, 1, true),
    (Move::Snooze, 0, 1, 0, false),
    (Move::Release, 0, 0, 0, false),
    (Move::ReArm, 0, 0, 1, true),
];

#[tokio::test]
async fn each_move_back_to_the_line_counts_as_the_model_says() {
    let queue = Queue::new().await;
    for (how, spends, cuts, loses, fails) in RULES {
        let token = queue.one().await;
        let before = queue.row(token.id).await;
        assert_eq!(
            queue.move_by_owner(token, how).await,
            [Goes::Ready],
            "{how:?}"
        );
        let row = queue.row(token.id).await;
        assert_eq!(
            (row.attempt, row.epoch, row.losses),
            (spends, cuts, loses),
            "{how:?}"
        );
        assert_eq!((row.state, row.fence), (0, 1), "{how:?}");
        assert_eq!(
            row.visible_after, before.visible_after,
            "{how:?}: its place is kept"
        );
        let written: Vec<_> = fails
            .then(|| {
                let (class, node) = ("oops".to_owned(), Some("n".to_owned()));
                (1, 1, how.name().to_owned(), class, node)
            })
            .into_iter()
            .collect();
        assert_eq!(queue.failures(token.id).await, written, "{how:?}");
        // Once only, and the repeat of one that left a trace is recognised.
        assert_eq!(queue.move_by_owner(token, how).await, [], "{how:?}");
        let verdict = if fails {
            Verdict::Recorded
        } else {
            Verdict::Superseded
        };
        let owner = Some(queue.dispatcher);
        let client = queue.client().await;
        let told = verdict_for(&client, token, false, owner).await;
        assert_eq!(told, verdict, "{how:?}");
        queue.assert_sound().await;
        let next = queue.again().await;
        assert_eq!((next.epoch, next.fence), (cuts, 2), "{how:?}");
        assert!(queue.complete(next).await);
    }
}

#[tokio::test]
async fn a_delay_is_counted_from_now_by_the_databases_clock() {
    let queue = Queue::new().await;
    for how in [Move::Retry, Move::Snooze] {
        let token = queue.one().await;
        let report = Return {
            delay: Some(Duration::from_secs(90)),
            error: None,
            ..failure(token, how)
        };
        assert_eq!(queue.give_back(report).await, [Goes::Ready]);
        let in_ms = queue
            .number(&format!(
                "select (extract(epoch from visible_after - clock_timestamp()) * 1000)::bigint
                 from fencepost.live where id = {}",
                token.id
            ))
            .await;
        assert!((80_000..=90_000).contains(&in_ms), "{in_ms}");
        assert_eq!(queue.claim(1).await, []);
    }
    // A failure without a class is filed under its move.
    assert_eq!(
        queue
            .number("select count(*) from fencepost.failure where error_class = 'retry'")
            .await,
        1
    );
    queue.assert_sound().await;
}

#[tokio::test]
async fn an_owners_move_needs_the_owner_and_any_move_needs_the_current_delivery() {
    let queue = Queue::new().await;
    let token = queue.one().await;
    let stranger = queue.join("stranger").await;
    let wrong = [
        Return {
            owner: Some(stranger),
            ..failure(token, Move::TimeOut)
        },
        failure(Token { fence: 2, ..token }, Move::Retry),
        failure(Token { fence: 0, ..token }, Move::Retry),
        failure(Token { epoch: 1, ..token }, Move::Retry),
        failure(Token { id: 1, ..token }, Move::Retry),
    ];
    let before = queue.row(token.id).await;
    for report in wrong {
        let told = report.token;
        assert_eq!(queue.give_back(report).await, []);
        assert_eq!(queue.row(token.id).await, before);
        if told != token {
            assert_eq!(queue.verdict(told, false).await, Verdict::Superseded);
        }
    }
    // A worker's own report needs no owner: the replica that it goes through may be another one.
    assert_eq!(
        queue.give_back(failure(token, Move::Retry)).await,
        [Goes::Ready]
    );

    // A late failure of an older delivery never touches the newer one.
    let old = queue.again().await;
    queue.move_by_owner(old, Move::Release).await;
    let new = queue.again().await;
    assert_eq!(queue.give_back(failure(old, Move::DeadLetter)).await, []);
    assert_eq!(queue.verdict(old, false).await, Verdict::Superseded);
    assert_eq!(queue.row(new.id).await.state, 1);
    queue.assert_sound().await;
}

#[tokio::test]
async fn a_dead_letter_keeps_a_copy_of_the_task_and_the_reason() {
    let queue = Queue::new().await;
    let client = queue.client().await;
    for (how, attempt, cause) in [
        (Move::DeadLetter, 1, "failed"),
        (Move::Unservable, 0, "unservable"),
    ] {
        for by_owner in [false, true] {
            let id = queue
                .enqueue_with(
                    "jsonb '{\"to\": 1}', max_attempts => 4, run_timeout => '7 s', heartbeat_timeout => '2 s',
                     schedule_to_start => '1 hour', settle => 'accepted', concurrency_key => 'c',
                     labels => '{\"l\": \"1\"}', options => '{\"backoff_base_ms\": 7}'",
                )
                .await;
            let token = queue.again().await;
            let owner = by_owner.then_some(queue.dispatcher);
            let goes = queue
                .give_back(Return {
                    owner,
                    ..failure(token, how)
                })
                .await;
            assert_eq!(goes, [Goes::Dead]);
            assert_eq!(queue.live(id).await, None);
            let outcome = queue.outcome(id).await.unwrap();
            assert_eq!((outcome.state, outcome.attempt), (FAILED, attempt));
            // Only a worker's own report leaves its delivery, by which a repeat is known.
            assert_eq!(outcome.told, (!by_owner).then_some((0, 1)));
            assert_eq!(
                outcome.error,
                (Some("oops".into()), Some("it broke".into()))
            );
            assert_eq!(queue.failures(id).await.len(), 1);
            let same = client
                .query_one(
                    "select dead_letter.cause, dead_letter.attempt, dead_letter.fence, dead_letter.error_message,
                        not dead_letter.judged and dead_letter.redriven_as is null as open,
                        (dead_letter.origin, dead_letter.enqueued_at, dead_letter.route_id, dead_letter.max_attempts,
                         dead_letter.run_timeout_ms, dead_letter.heartbeat_timeout_ms,
                         dead_letter.schedule_to_start_ms, dead_letter.settle_accepted, dead_letter.content_type,
                         dead_letter.concurrency_key, dead_letter.labels, dead_letter.options, dead_letter.payload)
                        is not distinct from
                        (task.origin, task.enqueued_at, task.route_id, task.max_attempts, task.run_timeout_ms,
                         task.heartbeat_timeout_ms, task.schedule_to_start_ms, task.settle_accepted,
                         task.content_type, task.concurrency_key, task.labels, task.options, task.payload) as same
                    from fencepost.dead_letter inner join fencepost.task using (id) where id = $1",
                    &[&id],
                )
                .await
                .unwrap();
            assert!(same.get::<_, bool>("same") && same.get::<_, bool>("open"));
            assert_eq!(same.get::<_, String>("cause"), cause);
            assert_eq!(same.get::<_, String>("error_message"), "it broke");
            assert_eq!(
                (same.get::<_, i32>("attempt"), same.get::<_, i32>("fence")),
                (attempt, 1)
            );
            assert_eq!(queue.verdict(token, false).await, Verdict::Recorded);
            assert_eq!(queue.verdict(token, true).await, Verdict::Superseded);
            queue.assert_sound().await;
        }
    }
}

#[tokio::test]
async fn a_task_that_is_lost_too_often_is_a_dead_letter_that_says_so() {
    let queue = Queue::new().await;
    for how in [Move::ReArm, Move::NotAccepted, Move::RetryAtOnce] {
        let mut token = queue.one().await;
        for _ in 0..MAX_LOSSES {
            assert_eq!(queue.move_by_owner(token, how).await, [Goes::Ready]);
            token = queue.again().await;
        }
        // What adds no loss may still go back.
        assert_eq!(
            queue.move_by_owner(token, Move::Release).await,
            [Goes::Ready]
        );
        token = queue.again().await;
        assert_eq!(
            queue.move_by_owner(token, how).await,
            [Goes::Dead],
            "{how:?}"
        );
        let cause = queue
            .number(&format!(
                "select count(*) from fencepost.dead_letter where id = {} and cause = 'lost' and losses = 6",
                token.id
            ))
            .await;
        assert_eq!(cause, 1);
        let nodes = queue.failures(token.id).await;
        assert_eq!(nodes.len(), 6);
        assert!(
            nodes
                .iter()
                .all(|(_, _, _, _, node)| node.as_deref() == Some("n"))
        );
        queue.assert_sound().await;
    }
}

#[tokio::test]
async fn a_text_that_is_too_long_is_cut() {
    let queue = Queue::new().await;
    let token = queue.one().await;
    let mut report = failure(token, Move::DeadLetter);
    report.error.as_mut().unwrap().message = "é".repeat(5000) + "\0";
    queue.give_back(report).await;
    for table in ["outcome", "failure", "dead_letter"] {
        let length = queue
            .number(&format!(
                "select length(error_message)::bigint from fencepost.{table}"
            ))
            .await;
        assert_eq!(length, 4096, "{table}");
    }
}

#[tokio::test]
async fn every_lane_with_ready_rows_is_found_with_the_time_until_it_is_due() {
    let queue = Queue::new().await;
    let client = queue.client().await;
    assert!(routes::find_due(&client).await.unwrap().is_empty());
    let held = queue.enqueue_with("priority => 0").await;
    queue
        .execute(&format!(
            "update fencepost.live set hold = 1 where id = {held}"
        ))
        .await;
    queue.enqueue(3).await;
    queue.enqueue_with("priority => 3, delay => '1 hour'").await;
    queue.enqueue_with("node => 'n'").await;
    queue.one().await;
    let lanes = routes::find_due(&client).await.unwrap();
    let found: Vec<(i32, i16)> = lanes
        .iter()
        .map(|lane| (lane.route, lane.priority))
        .collect();
    assert_eq!(found, [(1, 1), (1, 3), (2, 1)]);
    assert_eq!(lanes[0].due_in, Duration::ZERO);
    assert!(
        (3_590_000..=3_600_000).contains(&lanes[1].due_in.as_millis()),
        "{lanes:?}"
    );
    let read = routes::read(&client, &[1, 2, 99]).await.unwrap();
    assert_eq!(read.len(), 2);
}

#[tokio::test]
async fn whatever_is_reported_of_a_cancelled_task_it_ends_as_cancelled() {
    let queue = Queue::new().await;
    let ends = [
        (Move::DeadLetter, 1, 1, 0, false),
        (Move::Unservable, 0, 1, 0, false),
    ];
    for (how, spends, ..) in RULES.into_iter().chain(ends) {
        let token = queue.one().await;
        queue.cancel(token.id).await.unwrap();
        assert_eq!(
            queue.give_back(failure(token, how)).await,
            [Goes::Cancelled],
            "{how:?}"
        );
        let outcome = queue.outcome(token.id).await.unwrap();
        assert_eq!(
            (outcome.state, outcome.attempt),
            (CANCELLED, spends),
            "{how:?}"
        );
        assert_eq!(outcome.told, Some((0, 1)));
        assert_eq!(queue.failures(token.id).await, []);
        assert_eq!(queue.verdict(token, false).await, Verdict::Recorded);
    }
    assert_eq!(
        queue
            .number("select count(*) from fencepost.dead_letter")
            .await,
        0
    );
    queue.assert_sound().await;
}
