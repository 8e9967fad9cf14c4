//! What the chores do to tasks that nobody has.

use std::time::Duration;

use chrono::{DateTime, Utc};
use fencepost::domain::id::{NOBODY, TaskId, Token};
use fencepost::domain::settlement::Move;
use fencepost::store::settle::{Goes, Return};
use fencepost::store::unserved;

use crate::support::Queue;
use crate::support::queue::{FAILED, failure};

async fn token(queue: &Queue, id: TaskId) -> Token {
    let row = queue.row(id).await;
    Token {
        id,
        epoch: row.epoch,
        fence: row.fence,
    }
}

async fn by_nobody(queue: &Queue, token: Token, how: Move) -> Vec<Goes> {
    queue
        .give_back(Return {
            owner: Some(NOBODY),
            worker: None,
            node: None,
            ..failure(token, how)
        })
        .await
}

async fn start_by(queue: &Queue, id: TaskId) -> Option<DateTime<Utc>> {
    let query = "select start_by from fencepost.live where id = $1";
    let row = queue.client().await.query_one(query, &[&id]).await;
    row.unwrap().get(0)
}

#[tokio::test]
async fn a_ready_task_spends_an_attempt_and_at_last_ends() {
    let queue = Queue::new().await;
    let id = queue.enqueue_with("schedule_to_start => '1 hour'").await;
    let before = queue.row(id).await;
    let deadline = start_by(&queue, id).await;
    assert!(deadline.is_some());
    let first = token(&queue, id).await;
    assert_eq!(by_nobody(&queue, first, Move::Retry).await, [Goes::Ready]);
    let row = queue.row(id).await;
    assert_eq!((row.state, row.attempt, row.epoch, row.fence), (0, 1, 1, 0));
    assert_eq!(row.visible_after, before.visible_after);
    assert_eq!(start_by(&queue, id).await, deadline, "it has not started");
    // The epoch has moved on, so a repeat finds nothing.
    assert_eq!(by_nobody(&queue, first, Move::Retry).await, []);

    let last = token(&queue, id).await;
    assert_eq!(
        by_nobody(&queue, last, Move::DeadLetter).await,
        [Goes::Dead]
    );
    let outcome = queue.outcome(id).await.unwrap();
    assert_eq!(
        (outcome.state, outcome.attempt, outcome.told),
        (FAILED, 2, None)
    );
    assert_eq!(outcome.error.0.as_deref(), Some("oops"));
    let cause =
        "select count(*) from fencepost.dead_letter where cause = 'unserved' and attempt = 2";
    assert_eq!(queue.number(cause).await, 1);
    queue.assert_sound().await;
}

#[tokio::test]
async fn a_task_that_expires_has_spent_nothing() {
    let queue = Queue::new().await;
    let id = queue.enqueue(1).await[0];
    let only = token(&queue, id).await;
    assert_eq!(by_nobody(&queue, only, Move::Expire).await, [Goes::Dead]);
    let outcome = queue.outcome(id).await.unwrap();
    assert_eq!(
        (outcome.state, outcome.attempt, outcome.told),
        (FAILED, 0, None)
    );
    let cause = "select count(*) from fencepost.dead_letter where cause = 'schedule_to_start' and attempt = 0";
    assert_eq!(queue.number(cause).await, 1);
    queue.assert_sound().await;
}

#[tokio::test]
async fn a_task_that_somebody_has_is_left_alone() {
    let queue = Queue::new().await;
    let claimed = queue.one().await;
    for how in [Move::Retry, Move::DeadLetter, Move::Expire] {
        assert_eq!(by_nobody(&queue, claimed, how).await, []);
        // Its own replica's moves do not touch what is ready, either.
        let ready = queue.enqueue(1).await[0];
        let waiting = token(&queue, ready).await;
        assert_eq!(queue.move_by_owner(waiting, how).await, []);
    }
    let row = queue.row(claimed.id).await;
    assert_eq!((row.state, row.attempt, row.epoch), (1, 0, 0));
    queue.assert_sound().await;
}

#[tokio::test]
async fn the_deadline_for_the_start_outlives_only_what_no_worker_has_had() {
    for (how, stays) in [
        (Move::Release, true),
        (Move::HandOver, false),
        (Move::ReArm, false),
        (Move::NotAccepted, false),
        (Move::Retry, false),
        (Move::RetryAtOnce, false),
        (Move::TimeOut, false),
        (Move::Snooze, false),
    ] {
        let queue = Queue::new().await;
        let id = queue.enqueue_with("schedule_to_start => '1 hour'").await;
        let claimed = queue.again().await;
        assert_eq!(queue.move_by_owner(claimed, how).await, [Goes::Ready]);
        assert_eq!(start_by(&queue, id).await.is_some(), stays, "{how:?}");
    }
}

#[tokio::test]
async fn only_ready_tasks_past_their_deadline_have_expired() {
    let queue = Queue::new().await;
    let late = queue.enqueue_with("schedule_to_start => '1 ms'").await;
    let held = queue.enqueue_with("schedule_to_start => '1 ms'").await;
    queue.enqueue_with("schedule_to_start => '1 hour'").await;
    queue.enqueue(1).await;
    queue
        .execute(&format!(
            "update fencepost.live set hold = 1 where id = {held}"
        ))
        .await;
    let client = queue.client().await;
    let find = async || {
        let found = unserved::find_expired(&client, 10).await.unwrap();
        let mut ids: Vec<TaskId> = found.iter().map(|task| task.token.id).collect();
        ids.sort_unstable();
        ids
    };
    crate::support::eventually(Duration::from_secs(5), async || {
        (find().await == [late, held]).then_some(())
    })
    .await;
    let claimed = queue.claim(9).await;
    assert!(claimed.iter().any(|token| token.id == late));
    assert_eq!(find().await, [held]);
}
