//! Pairs of moves that meet on one row: the first holds its transaction open, the second waits or passes the row
//! over, and whichever acts later acts on the newest version. Waiting is read from the server's lock table.

use deadpool_postgres::GenericClient;
use fencepost::domain::id::{DispatcherId, TaskId, Token};
use fencepost::domain::settlement::Move;
use fencepost::store::cancel::{self, CancelAnswer};
use fencepost::store::settle::{self, Goes, Return, Verdict};
use fencepost::store::{Client, claim, upkeep};

use crate::support::Queue;
use crate::support::queue::{
    CANCELLED, DEADLINES, DONE, MAX_LOSSES, backend, failure, how, success, verdict, verdict_for,
};

async fn give_back(client: &impl GenericClient, entry: &Return) -> Vec<Goes> {
    let entries = std::slice::from_ref(entry);
    let moved = settle::give_back(client, entries, MAX_LOSSES)
        .await
        .unwrap();
    moved.iter().map(|task| task.goes).collect()
}

async fn complete(client: &impl GenericClient, token: Token) -> bool {
    let done = settle::complete(client, &[success(token)]).await.unwrap();
    !done.is_empty()
}

async fn cancel(client: &impl GenericClient, id: TaskId) -> CancelAnswer {
    let answers = cancel::cancel(client, &[id], &how()).await;
    answers.unwrap().pop().unwrap()
}

async fn adopt(client: &impl GenericClient, dispatcher: DispatcherId, token: Token) -> bool {
    let adopted = claim::adopt(client, dispatcher, 77, &[77], &[token], DEADLINES).await;
    !adopted.unwrap().is_empty()
}

/// The slow lane: waits for the row, then acts on what it has become.
async fn after_lock<T>(
    client: &mut Client,
    id: TaskId,
    act: impl AsyncFnOnce(&deadpool_postgres::Transaction<'_>) -> T,
) -> T {
    let transaction = client.transaction().await.unwrap();
    settle::lock(&transaction, id).await.unwrap();
    let answer = act(&transaction).await;
    transaction.commit().await.unwrap();
    answer
}

#[tokio::test]
async fn a_retry_that_meets_a_cancel_ends_the_task_as_cancelled() {
    let queue = Queue::new().await;
    let (mut first, mut second) = (queue.client().await, queue.client().await);
    let token = queue.one().await;
    let open = first.transaction().await.unwrap();
    assert_eq!(cancel(&open, token.id).await.state, "requested");
    // The batch passes the row over and learns that it is only locked.
    let retry = failure(token, Move::Retry);
    assert_eq!(give_back(&second, &retry).await, []);
    assert_eq!(verdict(&second, token, false).await, Verdict::Busy);
    let waiter = backend(&second).await;
    let slow = after_lock(&mut second, token.id, async |open| {
        give_back(open, &retry).await
    });
    let goes = queue.waits(waiter, slow, open.commit()).await;
    assert_eq!(goes, [Goes::Cancelled]);
    assert_eq!(queue.outcome(token.id).await.unwrap().state, CANCELLED);
    queue.assert_sound().await;
}

#[tokio::test]
async fn a_cancel_that_meets_a_retry_is_never_lost() {
    let queue = Queue::new().await;
    let (mut first, second) = (queue.client().await, queue.client().await);
    let waiter = backend(&second).await;
    for committed in [true, false] {
        let token = queue.one().await;
        let open = first.transaction().await.unwrap();
        assert_eq!(
            give_back(&open, &failure(token, Move::Retry)).await,
            [Goes::Ready]
        );
        let end = async {
            if committed {
                open.commit().await
            } else {
                open.rollback().await
            }
        };
        let answer = queue.waits(waiter, cancel(&second, token.id), end).await;
        if committed {
            // The task was running when the cancel began and waits when it gets the row: it ends at once.
            assert_eq!(
                (answer.state.as_str(), answer.dispatcher),
                ("cancelled", None)
            );
            let outcome = queue.outcome(token.id).await.unwrap();
            assert_eq!((outcome.state, outcome.attempt), (CANCELLED, 1));
        } else {
            assert_eq!(answer.state, "requested");
            assert!(queue.row(token.id).await.cancel_requested);
        }
        queue.assert_sound().await;
    }
}

#[tokio::test]
async fn a_cancel_that_meets_a_completion_says_that_it_came_too_late() {
    let queue = Queue::new().await;
    let (mut first, second) = (queue.client().await, queue.client().await);
    let waiter = backend(&second).await;
    let token = queue.one().await;
    let open = first.transaction().await.unwrap();
    assert!(complete(&open, token).await);
    let answer = queue
        .waits(waiter, cancel(&second, token.id), open.commit())
        .await;
    assert_eq!((answer.state.as_str(), answer.dispatcher), ("ended", None));
    assert_eq!(cancel(&second, token.id).await.state, "done");
    assert_eq!(queue.outcome(token.id).await.unwrap().state, DONE);
    queue.assert_sound().await;
}

#[tokio::test]
async fn a_completion_that_meets_a_cancel_ends_as_cancelled() {
    let queue = Queue::new().await;
    let (mut first, mut second) = (queue.client().await, queue.client().await);
    let waiter = backend(&second).await;
    let token = queue.one().await;
    let open = first.transaction().await.unwrap();
    cancel(&open, token.id).await;
    assert!(!complete(&second, token).await);
    assert_eq!(verdict(&second, token, true).await, Verdict::Busy);
    let slow = after_lock(&mut second, token.id, async |open| {
        complete(open, token).await
    });
    assert!(queue.waits(waiter, slow, open.commit()).await);
    assert_eq!(queue.outcome(token.id).await.unwrap().state, CANCELLED);

    // The handler's own transaction is refused, whether it waited for the mark or came after it.
    let token = queue.one().await;
    let open = first.transaction().await.unwrap();
    cancel(&open, token.id).await;
    let call = format!("select fencepost.complete('{token}')");
    let refused = queue
        .waits(waiter, second.execute(&call, &[]), open.commit())
        .await;
    let error = refused.unwrap_err();
    assert_eq!(error.code().unwrap().code(), "FP013");
    queue.assert_sound().await;
}

#[tokio::test]
async fn a_success_that_meets_its_own_re_arm_counts() {
    let queue = Queue::new().await;
    let (mut first, mut second) = (queue.client().await, queue.client().await);
    let waiter = backend(&second).await;
    let token = queue.one().await;
    let rearm = Return {
        owner: Some(queue.dispatcher),
        ..failure(token, Move::ReArm)
    };
    let open = first.transaction().await.unwrap();
    assert_eq!(give_back(&open, &rearm).await, [Goes::Ready]);
    assert!(!complete(&second, token).await);
    assert_eq!(verdict(&second, token, true).await, Verdict::Busy);
    let slow = after_lock(&mut second, token.id, async |open| {
        complete(open, token).await
    });
    assert!(queue.waits(waiter, slow, open.commit()).await);
    assert_eq!(queue.outcome(token.id).await.unwrap().told, Some((0, 1)));

    // The other way round the re-arm passes the row over, and finds nothing after the commit.
    let token = queue.one().await;
    let rearm = Return { token, ..rearm };
    let open = first.transaction().await.unwrap();
    assert!(complete(&open, token).await);
    assert_eq!(give_back(&second, &rearm).await, []);
    open.commit().await.unwrap();
    assert_eq!(give_back(&second, &rearm).await, []);
    assert_eq!(queue.outcome(token.id).await.unwrap().state, DONE);
    queue.assert_sound().await;
}

#[tokio::test]
async fn a_success_that_meets_the_retry_of_its_try_is_superseded() {
    let queue = Queue::new().await;
    let (mut first, mut second) = (queue.client().await, queue.client().await);
    let waiter = backend(&second).await;
    for committed in [true, false] {
        let old = queue.one().await;
        queue.move_by_owner(old, Move::Release).await;
        let new = queue.again().await;
        // The newer delivery fails while the older one's success is on its way.
        let open = first.transaction().await.unwrap();
        assert_eq!(
            give_back(&open, &failure(new, Move::Retry)).await,
            [Goes::Ready]
        );
        assert!(!complete(&second, old).await);
        assert_eq!(verdict(&second, old, true).await, Verdict::Busy);
        let end = async {
            if committed {
                open.commit().await
            } else {
                open.rollback().await
            }
        };
        let slow = after_lock(&mut second, old.id, async |open| {
            (complete(open, old).await, verdict(open, old, true).await)
        });
        let (counts, told) = queue.waits(waiter, slow, end).await;
        if committed {
            assert_eq!((counts, told), (false, Verdict::Superseded));
            assert_eq!(queue.row(old.id).await.attempt, 1);
            assert!(queue.complete(queue.again().await).await);
        } else {
            assert_eq!((counts, told), (true, Verdict::Recorded));
        }
        queue.assert_sound().await;
    }
}

#[tokio::test]
async fn an_adoption_that_meets_a_re_arm_takes_the_row_after_it() {
    let queue = Queue::new().await;
    let (mut first, second) = (queue.client().await, queue.client().await);
    let waiter = backend(&second).await;
    let other = queue.join("other").await;
    for committed in [true, false] {
        let token = queue.one().await;
        let rearm = Return {
            owner: Some(queue.dispatcher),
            ..failure(token, Move::ReArm)
        };
        let open = first.transaction().await.unwrap();
        assert_eq!(give_back(&open, &rearm).await, [Goes::Ready]);
        let end = async {
            if committed {
                open.commit().await
            } else {
                open.rollback().await
            }
        };
        assert!(queue.waits(waiter, adopt(&second, other, token), end).await);
        let row = queue.row(token.id).await;
        assert_eq!((row.state, row.dispatcher), (1, Some(other)));
        assert_eq!((row.losses, row.fence), (i32::from(committed), 1));
        // The re-arm names the dead owner, so its repeat leaves the adopted row alone.
        assert_eq!(give_back(&first, &rearm).await, []);
        assert_eq!(queue.row(token.id).await, row);
        queue.assert_sound().await;
        assert!(queue.complete(token).await);
    }
}

#[tokio::test]
async fn a_re_arm_never_takes_a_row_that_is_being_adopted() {
    let queue = Queue::new().await;
    let (mut first, mut second) = (queue.client().await, queue.client().await);
    let waiter = backend(&second).await;
    let other = queue.join("other").await;
    let token = queue.one().await;
    let owner = Some(queue.dispatcher);
    let rearm = Return {
        owner,
        ..failure(token, Move::ReArm)
    };
    queue.kill(queue.dispatcher).await;
    let open = first.transaction().await.unwrap();
    assert!(adopt(&open, other, token).await);
    // The snapshot still shows the dead owner; the lock passes the row over.
    assert_eq!(upkeep::find_orphans(&second, 9).await.unwrap().len(), 1);
    assert_eq!(give_back(&second, &rearm).await, []);
    let slow = after_lock(&mut second, token.id, async |open| {
        let goes = give_back(open, &rearm).await;
        (goes, verdict_for(open, token, false, owner).await)
    });
    let (goes, told) = queue.waits(waiter, slow, open.commit()).await;
    assert_eq!((goes, told), (vec![], Verdict::Superseded));
    assert!(upkeep::find_orphans(&second, 9).await.unwrap().is_empty());
    assert_eq!(queue.row(token.id).await.dispatcher, Some(other));
    queue.assert_sound().await;
}

#[tokio::test]
async fn an_adoption_that_meets_a_new_claim_finds_itself_superseded() {
    let queue = Queue::new().await;
    let (mut first, second) = (queue.client().await, queue.client().await);
    let waiter = backend(&second).await;
    let other = queue.join("other").await;
    let token = queue.one().await;
    queue.move_by_owner(token, Move::ReArm).await;
    let open = first.transaction().await.unwrap();
    let newer = queue
        .claim_lanes(&open, vec![Queue::lane(1, 1)], vec![1])
        .await;
    assert_eq!(newer[0].fence, 2);
    assert!(
        !queue
            .waits(waiter, adopt(&second, other, token), open.commit())
            .await
    );
    assert_eq!(queue.row(token.id).await.dispatcher, Some(queue.dispatcher));
    queue.assert_sound().await;
}

#[tokio::test]
async fn a_hold_bit_stops_a_claim_and_slips_past_no_retry() {
    let queue = Queue::new().await;
    let (mut first, second) = (queue.client().await, queue.client().await);
    let waiter = backend(&second).await;
    let id = queue.enqueue(1).await[0];
    let hold = format!("update fencepost.live set hold = hold | 1 where id = {id}");
    let open = first.transaction().await.unwrap();
    open.execute(&hold, &[]).await.unwrap();
    assert_eq!(queue.claim(1).await, []);
    open.commit().await.unwrap();
    assert_eq!(queue.claim(1).await, []);
    queue.execute("update fencepost.live set hold = 0").await;

    // The bit waits for the claim and stands on the running row; the row that comes back is held.
    let open = first.transaction().await.unwrap();
    let token = queue
        .claim_lanes(&open, vec![Queue::lane(1, 1)], vec![1])
        .await[0];
    let held = queue
        .waits(waiter, second.execute(&hold, &[]), open.commit())
        .await;
    assert_eq!(held.unwrap(), 1);
    let row = queue.row(id).await;
    assert_eq!((row.state, row.hold), (1, 1));
    assert_eq!(
        queue.give_back(failure(token, Move::Retry)).await,
        [Goes::Ready]
    );
    assert_eq!(queue.row(id).await.hold, 1);
    assert_eq!(queue.claim(1).await, []);

    // So does one that meets the retry itself.
    queue.execute("update fencepost.live set hold = 0").await;
    let token = queue.again().await;
    let open = first.transaction().await.unwrap();
    assert_eq!(
        give_back(&open, &failure(token, Move::Retry)).await,
        [Goes::Ready]
    );
    let held = queue
        .waits(waiter, second.execute(&hold, &[]), open.commit())
        .await;
    assert_eq!(held.unwrap(), 1);
    assert_eq!(queue.claim(1).await, []);
    queue.assert_sound().await;
}

#[tokio::test]
async fn two_claims_never_take_the_same_row() {
    let queue = Queue::new().await;
    let (mut first, mut second) = (queue.client().await, queue.client().await);
    let third = queue.client().await;
    queue.enqueue(10).await;
    let (a, b) = (
        first.transaction().await.unwrap(),
        second.transaction().await.unwrap(),
    );
    let lanes = || vec![Queue::lane(1, 4)];
    let mut all = queue.claim_lanes(&a, lanes(), vec![4]).await;
    all.extend(queue.claim_lanes(&b, lanes(), vec![4]).await);
    all.extend(queue.claim_lanes(&third, lanes(), vec![4]).await);
    a.commit().await.unwrap();
    // What a lost transaction had claimed is ready again, with its fence as it was.
    b.rollback().await.unwrap();
    assert_eq!(all.len(), 10);
    let mut ids: Vec<TaskId> = all.iter().map(|token| token.id).collect();
    ids.sort_unstable();
    ids.dedup();
    assert_eq!(ids.len(), 10);
    let again = queue.claim(10).await;
    assert_eq!(again, all[4..8]);
    queue.assert_sound().await;
}

#[tokio::test]
async fn rows_that_a_claim_locked_and_cut_are_passed_over_until_it_commits() {
    let queue = Queue::new().await;
    let mut first = queue.client().await;
    queue.enqueue(3).await;
    let open = first.transaction().await.unwrap();
    assert_eq!(
        queue
            .claim_lanes(&open, vec![Queue::lane(1, 3)], vec![1])
            .await
            .len(),
        1
    );
    assert_eq!(queue.claim(3).await, []);
    open.commit().await.unwrap();
    assert_eq!(queue.claim(3).await.len(), 2);
    queue.assert_sound().await;
}

#[tokio::test]
async fn a_late_failure_that_meets_a_newer_delivery_leaves_it_alone() {
    let queue = Queue::new().await;
    let (mut first, mut second) = (queue.client().await, queue.client().await);
    let waiter = backend(&second).await;
    let old = queue.one().await;
    queue.move_by_owner(old, Move::Release).await;
    let open = first.transaction().await.unwrap();
    let new = queue
        .claim_lanes(&open, vec![Queue::lane(1, 1)], vec![1])
        .await[0];
    let late = failure(old, Move::DeadLetter);
    assert_eq!(give_back(&second, &late).await, []);
    let slow = after_lock(&mut second, old.id, async |open| {
        (
            give_back(open, &late).await,
            verdict(open, old, false).await,
        )
    });
    let (goes, told) = queue.waits(waiter, slow, open.commit()).await;
    assert_eq!((goes, told), (vec![], Verdict::Superseded));
    assert_eq!(queue.row(new.id).await.fence, 2);
    assert!(queue.complete(new).await);
    queue.assert_sound().await;
}

#[tokio::test]
async fn of_two_batches_with_the_same_task_one_records_it() {
    let queue = Queue::new().await;
    let (mut first, second) = (queue.client().await, queue.client().await);
    queue.enqueue(20).await;
    let tokens = queue.claim(20).await;
    let batch: Vec<_> = tokens.iter().map(|token| success(*token)).collect();
    let open = first.transaction().await.unwrap();
    // The batches overlap in the middle; neither waits for the other.
    assert_eq!(
        settle::complete(&open, &batch[..15]).await.unwrap().len(),
        15
    );
    assert_eq!(
        settle::complete(&second, &batch[5..]).await.unwrap().len(),
        5
    );
    open.commit().await.unwrap();
    for token in &tokens {
        assert_eq!(verdict(&second, *token, true).await, Verdict::Recorded);
    }
    assert_eq!(
        queue.number("select count(*) from fencepost.outcome").await,
        20
    );
    queue.assert_sound().await;
}

#[tokio::test]
async fn one_open_handler_transaction_delays_its_own_task_and_no_other() {
    let queue = Queue::new().await;
    let (mut handler, mut settler) = (queue.client().await, queue.client().await);
    let waiter = backend(&settler).await;
    queue.enqueue(1000).await;
    for (round, committed) in [(0, true), (1, false)] {
        let tokens = queue.claim(500).await;
        assert_eq!(tokens.len(), 500);
        let busy = tokens[250];
        let open = handler.transaction().await.unwrap();
        open.execute(
            &format!("select fencepost.complete('{busy}', '{round}')"),
            &[],
        )
        .await
        .unwrap();
        let batch: Vec<_> = tokens.iter().map(|token| success(*token)).collect();
        let done = settle::complete(&settler, &batch).await.unwrap();
        assert_eq!(done.len(), 499);
        assert!(done.iter().all(|ended| ended.id != busy.id));
        assert_eq!(verdict(&settler, busy, true).await, Verdict::Busy);
        let slow = after_lock(&mut settler, busy.id, async |open| {
            (complete(open, busy).await, verdict(open, busy, true).await)
        });
        let end = async {
            if committed {
                open.commit().await
            } else {
                open.rollback().await
            }
        };
        let (counts, told) = queue.waits(waiter, slow, end).await;
        // The handler recorded this very delivery, or, when it rolled back, the report does.
        assert_eq!((counts, told), (!committed, Verdict::Recorded));
        let outcome = queue.outcome(busy.id).await.unwrap();
        assert_eq!((outcome.state, outcome.worker.is_none()), (DONE, committed));
        queue.assert_sound().await;
    }
}

#[tokio::test]
async fn a_newer_delivery_learns_that_the_handler_of_an_older_one_was_first() {
    let queue = Queue::new().await;
    let (mut handler, mut settler) = (queue.client().await, queue.client().await);
    let waiter = backend(&settler).await;
    let old = queue.one().await;
    queue.move_by_owner(old, Move::ReArm).await;
    let new = queue.again().await;
    let open = handler.transaction().await.unwrap();
    open.execute(&format!("select fencepost.complete('{old}')"), &[])
        .await
        .unwrap();
    let slow = after_lock(&mut settler, new.id, async |open| {
        (complete(open, new).await, verdict(open, new, true).await)
    });
    let told = queue.waits(waiter, slow, open.commit()).await;
    assert_eq!(told, (false, Verdict::Superseded));
    queue.assert_sound().await;
}
