//! Moves by others than the worker: cancels, adoptions, chores, and completions in a handler's own transaction.

use std::time::Duration;

use chrono::TimeDelta;
use fencepost::domain::id::Token;
use fencepost::domain::settlement::Move;
use fencepost::store::claim::{self, Adopted};
use fencepost::store::settle::{Goes, Return, Verdict};
use fencepost::store::{Error, dispatchers, upkeep};

use crate::support::Queue;
use crate::support::queue::{CANCELLED, DEADLINES, DONE, failure, millis};

#[tokio::test]
async fn a_cancel_ends_what_waits_and_marks_what_runs() {
    let queue = Queue::new().await;
    let waiting = queue.enqueue(1).await[0];
    let answer = queue.cancel(waiting).await.unwrap();
    assert_eq!(
        (answer.state.as_str(), answer.dispatcher),
        ("cancelled", None)
    );
    let outcome = queue.outcome(waiting).await.unwrap();
    assert_eq!((outcome.state, outcome.told), (CANCELLED, None));
    assert_eq!(outcome.error.1.as_deref(), Some("no longer wanted"));
    assert_eq!(queue.cancel(waiting).await.unwrap().state, "cancelled");
    assert_eq!(queue.cancel(4711).await, None);

    let running = queue.one().await;
    let answer = queue.cancel(running.id).await.unwrap();
    assert_eq!(answer.state, "requested");
    assert_eq!(answer.dispatcher, Some(queue.dispatcher));
    let row = queue.row(running.id).await;
    assert!(row.cancel_requested);
    assert_eq!((row.state, row.epoch, row.fence), (1, 0, 1));
    let grace = millis(row.deadline, row.claimed_at);
    assert!((30_000..35_000).contains(&grace), "{grace}");
    let client = queue.client().await;
    let told = upkeep::find_cancelled(&client, queue.dispatcher)
        .await
        .unwrap();
    assert_eq!(told, [running]);
    // Asking again grants no further grace.
    queue.cancel(running.id).await.unwrap();
    assert_eq!(queue.row(running.id).await.deadline, row.deadline);
    assert!(queue.complete(running).await);
    let outcome = queue.outcome(running.id).await.unwrap();
    assert_eq!((outcome.state, outcome.told), (CANCELLED, Some((0, 1))));
    assert_eq!(outcome.result, None);
    assert_eq!(queue.verdict(running, true).await, Verdict::Recorded);

    for (how, state) in [(None, "done"), (Some(Move::DeadLetter), "failed")] {
        let token = queue.one().await;
        match how {
            None => assert!(queue.complete(token).await),
            Some(how) => assert_eq!(queue.give_back(failure(token, how)).await, [Goes::Dead]),
        }
        assert_eq!(queue.cancel(token.id).await.unwrap().state, state);
    }
    queue.assert_sound().await;
}

#[tokio::test]
async fn a_cancel_of_a_running_task_without_a_deadline_gives_it_one() {
    let queue = Queue::new().await;
    queue.enqueue_with("run_timeout => '0'").await;
    let token = queue.again().await;
    assert_eq!(queue.row(token.id).await.deadline, None);
    queue.cancel(token.id).await.unwrap();
    let row = queue.row(token.id).await;
    assert!(millis(row.deadline, row.claimed_at) >= 30_000);
}

async fn adopt(queue: &Queue, dispatcher: i64, token: Token) -> Vec<Adopted> {
    let client = queue.client().await;
    claim::adopt(&client, dispatcher, 77, &[77], &[token], DEADLINES)
        .await
        .unwrap()
}

#[tokio::test]
async fn an_adoption_takes_the_current_delivery_whoever_holds_it() {
    let queue = Queue::new().await;
    let other = queue.join("other").await;
    let token = queue.one().await;
    let before = queue.row(token.id).await;
    let adopted = adopt(&queue, other, token).await;
    assert_eq!(adopted.len(), 1);
    assert_eq!(
        (adopted[0].claim.token, adopted[0].cancel_requested),
        (token, false)
    );
    let row = queue.row(token.id).await;
    assert_eq!(
        (row.dispatcher, row.sweep, row.fence),
        (Some(other), Some(77), 1)
    );
    assert!(row.claimed_at > before.claimed_at);
    // The run timeout goes on over the move.
    assert_eq!(row.deadline, before.deadline);
    let counted = adopted[0].claimed_for;
    assert!(
        counted > Duration::ZERO && counted < Duration::from_secs(60),
        "{counted:?}"
    );
    // The former owner has nothing left to say about it; a repeat is harmless.
    assert_eq!(queue.move_by_owner(token, Move::ReArm).await, []);
    assert_eq!(adopt(&queue, other, token).await.len(), 1);

    // Put back and not claimed again.
    let owner = Some(other);
    assert_eq!(
        queue
            .give_back(Return {
                owner,
                ..failure(token, Move::ReArm)
            })
            .await,
        [Goes::Ready]
    );
    assert_eq!(adopt(&queue, other, token).await.len(), 1);
    let row = queue.row(token.id).await;
    assert_eq!((row.state, row.losses, row.dispatcher), (1, 1, Some(other)));
    // Put back, it had no deadline any more.
    assert_eq!(millis(row.deadline, row.claimed_at), 70_000);

    // Put back and claimed again: the newer delivery has it.
    queue
        .give_back(Return {
            owner,
            ..failure(token, Move::ReArm)
        })
        .await;
    let newer = queue.again().await;
    assert!(adopt(&queue, other, token).await.is_empty());
    assert!(
        adopt(&queue, other, Token { epoch: 1, ..newer })
            .await
            .is_empty()
    );
    assert!(
        adopt(&queue, other, Token { id: 1, ..newer })
            .await
            .is_empty()
    );
    assert_eq!(queue.row(token.id).await.dispatcher, Some(queue.dispatcher));
    queue.assert_sound().await;
}

#[tokio::test]
async fn an_adopted_task_keeps_its_cancel_and_the_end_of_its_grace() {
    let queue = Queue::new().await;
    let token = queue.one().await;
    queue.cancel(token.id).await.unwrap();
    let deadline = queue.row(token.id).await.deadline;
    let other = queue.join("other").await;
    let adopted = adopt(&queue, other, token).await;
    assert!(adopted[0].cancel_requested);
    assert_eq!(queue.row(token.id).await.deadline, deadline);
}

#[tokio::test]
async fn the_chores_find_what_dead_replicas_hold_and_what_is_overdue() {
    let queue = Queue::new().await;
    let client = queue.client().await;
    let token = queue.one().await;
    assert!(upkeep::find_orphans(&client, 9).await.unwrap().is_empty());
    let other = queue.join("other").await;
    queue.kill(queue.dispatcher).await;
    let orphans = upkeep::find_orphans(&client, 9).await.unwrap();
    assert_eq!(orphans.len(), 1);
    assert_eq!(
        (orphans[0].token, orphans[0].owner),
        (token, queue.dispatcher)
    );
    assert!(!orphans[0].gentle);
    assert!(upkeep::find_orphans(&client, 0).await.unwrap().is_empty());
    // A dead replica is kept while a row names it, and its rows are found even if it was not kept.
    queue.execute("update fencepost.dispatcher set dead_at = dead_at - interval '2 hours' where dead_at is not null").await;
    assert_eq!(dispatchers::forget(&client).await.unwrap(), 0);
    queue
        .execute(&format!(
            "delete from fencepost.dispatcher where id = {}",
            queue.dispatcher
        ))
        .await;
    assert_eq!(upkeep::find_orphans(&client, 9).await.unwrap(), orphans);
    assert_eq!(adopt(&queue, other, token).await.len(), 1);
    assert!(upkeep::find_orphans(&client, 9).await.unwrap().is_empty());
    // One that said goodbye leaves orphans that count no loss.
    dispatchers::retire(&client, other).await.unwrap();
    let orphans = upkeep::find_orphans(&client, 9).await.unwrap();
    assert!(orphans[0].gentle);

    assert!(upkeep::find_overdue(&client, 9).await.unwrap().is_empty());
    queue
        .execute("update fencepost.live set deadline = clock_timestamp() - interval '1 ms'")
        .await;
    let overdue = upkeep::find_overdue(&client, 9).await.unwrap();
    assert_eq!(overdue.len(), 1);
    assert_eq!(
        (overdue[0].token, overdue[0].owner, overdue[0].route),
        (token, other, 1)
    );

    assert_eq!(
        upkeep::find_claims(&client, other, &[76, 77])
            .await
            .unwrap(),
        [token]
    );
    assert_eq!(
        upkeep::find_claims(&client, other, &[76]).await.unwrap(),
        []
    );
    assert_eq!(
        upkeep::find_claims(&client, queue.dispatcher, &[77])
            .await
            .unwrap(),
        []
    );
    queue.execute("delete from fencepost.live").await;
    assert_eq!(
        dispatchers::forget(&client).await.unwrap(),
        0,
        "it died just now"
    );
}

async fn complete_in_sql(queue: &Queue, token: &str, result: &str) -> Result<(), Error> {
    let client = queue.client().await;
    let call = format!("select fencepost.complete_bytes('{token}', {result}, 'application/json')");
    client.execute(&call, &[]).await?;
    Ok(())
}

fn refusal(answer: Result<(), Error>) -> String {
    match answer {
        Err(Error::Refused(refusal)) => refusal.code,
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn a_handler_completes_its_task_in_its_own_transaction() {
    let queue = Queue::new().await;
    let token = queue.one().await;
    let text = token.to_string();
    complete_in_sql(&queue, &text, "'{\"b\":1,\"a\":2}'")
        .await
        .unwrap();
    let outcome = queue.outcome(token.id).await.unwrap();
    assert_eq!((outcome.state, outcome.told), (DONE, Some((0, 1))));
    assert_eq!(outcome.result.unwrap().0, b"{\"a\": 2, \"b\": 1}");
    complete_in_sql(&queue, &text, "null").await.unwrap();
    assert_eq!(
        queue.verdict(token, true).await,
        Verdict::Recorded,
        "the worker reports it too"
    );
    let other = Token { fence: 2, ..token }.to_string();
    assert_eq!(
        refusal(complete_in_sql(&queue, &other, "null").await),
        "FP012"
    );

    let token = queue.one().await;
    queue
        .execute(&format!("select fencepost.complete('{token}')"))
        .await;
    assert_eq!(queue.outcome(token.id).await.unwrap().result, None);

    // As with a report, an earlier delivery of the epoch counts, also while nobody has the task.
    let token = queue.one().await;
    queue.move_by_owner(token, Move::ReArm).await;
    complete_in_sql(&queue, &token.to_string(), "null")
        .await
        .unwrap();
    assert_eq!(queue.outcome(token.id).await.unwrap().told, Some((0, 1)));
    queue.assert_sound().await;
}

#[tokio::test]
async fn a_completion_in_sql_that_does_not_count_raises() {
    let queue = Queue::new().await;
    let spent = queue.one().await;
    queue.give_back(failure(spent, Move::Retry)).await;
    assert_eq!(
        refusal(complete_in_sql(&queue, &spent.to_string(), "null").await),
        "FP012"
    );
    let token = queue.again().await;
    let text = token.to_string();
    assert_eq!(
        refusal(complete_in_sql(&queue, &text, "'{'").await),
        "FP003"
    );
    queue
        .execute("update fencepost.limits set result_bytes = 10")
        .await;
    assert_eq!(
        refusal(complete_in_sql(&queue, &text, "'\"0123456789\"'").await),
        "FP016"
    );
    queue.cancel(token.id).await.unwrap();
    assert_eq!(
        refusal(complete_in_sql(&queue, &text, "null").await),
        "FP013"
    );
    for bad in [
        "",
        "x",
        "1.2",
        "1.2.3.4",
        "-1.0.1",
        "1.0.1 ",
        "9999999999999999999.0.1",
        "1.9999999999.1",
        "1.1.4294967296",
    ] {
        assert_eq!(
            refusal(complete_in_sql(&queue, bad, "null").await),
            "FP014",
            "{bad}"
        );
    }
    let client = queue.client().await;
    let missing = client.execute("select fencepost.complete(null)", &[]).await;
    assert_eq!(refusal(missing.map(drop).map_err(Error::from)), "FP014");
    let row = queue.row(token.id).await;
    assert!(
        row.cancel_requested && row.state == 1,
        "a refusal changes nothing"
    );
    assert!(TimeDelta::zero() < row.deadline.unwrap() - row.claimed_at.unwrap());
    queue.assert_sound().await;
}
