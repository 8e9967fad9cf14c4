//! Concurrency keys at the tables: who is let go, in what order, and what every race leaves for the next look.

use std::collections::HashMap;
use std::time::Duration;

use deadpool_postgres::GenericClient;
use fencepost::domain::id::{KeyHash, TaskId, Token};
use fencepost::domain::settlement::Move;
use fencepost::store::keys::{self, Freed};
use fencepost::store::settle::Return;
use fencepost::store::{Client, settle, upkeep};
use tokio::task::JoinSet;

use crate::support::queue::{MAX_LOSSES, backend, failure, success};
use crate::support::{Queue, eventually};

const STEP: Duration = Duration::from_secs(20);

/// The numbers of all keys that have a task.
async fn all_keys(client: &impl GenericClient) -> Vec<KeyHash> {
    let select =
        "select distinct key_hash from fencepost.live where key_hash is not null order by 1";
    let rows = client.query(select, &[]).await.unwrap();
    rows.iter().map(|row| row.get(0)).collect()
}

/// One look at every key, as replicas do it; answers those that are to be looked at again.
async fn free_all(queue: &Queue) -> Vec<Freed> {
    let client = queue.client().await;
    let asked = all_keys(&client).await;
    let freed = keys::free(&client, &asked, &[]).await.unwrap();
    assert_eq!(freed.len(), asked.len());
    freed
}

async fn key(queue: &Queue, name: &str) -> KeyHash {
    queue
        .number(&format!("select fencepost.key_hash(1, '{name}')"))
        .await
}

async fn hold(queue: &Queue, id: TaskId) -> i16 {
    queue.row(id).await.hold
}

/// Keys that rows ask to look at, due or not.
async fn looks(queue: &Queue) -> i64 {
    queue
        .number("select count(*) from fencepost.key_look")
        .await
}

/// Answers all that is due in `key_look`, as replicas do it.
pub async fn answer_looks(queue: &Queue) {
    let client = queue.client().await;
    let (due, _) = keys::find_looks(&client, None, 1000).await.unwrap();
    let mut asked: Vec<KeyHash> = due.iter().map(|look| look.key).collect();
    asked.sort_unstable();
    asked.dedup();
    let ids: Vec<i64> = due.iter().map(|look| look.id).collect();
    keys::free(&client, &asked, &ids).await.unwrap();
}

async fn ends(queue: &Queue, token: Token) -> Vec<KeyHash> {
    let client = queue.client().await;
    let done = settle::complete(&client, &[success(token)]).await.unwrap();
    done.iter().filter_map(|one| one.key).collect()
}

async fn declare(queue: &Queue, more: &str) {
    let declare = format!("select fencepost.declare_queue('q', 't', {more})");
    queue.execute(&declare).await;
}

#[tokio::test]
async fn a_key_lets_one_task_go_at_a_time_in_order_and_over_retries() {
    let queue = Queue::new().await;
    let mut tasks = Vec::new();
    for _ in 0..3 {
        tasks.push(queue.enqueue_with("concurrency_key => 'a'").await);
    }
    let free = queue.enqueue_with("concurrency_key => 'b'").await;
    let (a, b) = (key(&queue, "a").await, key(&queue, "b").await);
    let claimed = queue.claim(10).await;
    let ids: Vec<TaskId> = claimed.iter().map(|token| token.id).collect();
    assert_eq!(ids, [tasks[0], free]);
    assert_eq!(ends(&queue, claimed[1]).await, [b]);
    // A retry keeps its place: nobody is let go.
    let retry = Return {
        delay: Some(Duration::from_secs(60)),
        ..failure(claimed[0], Move::Retry)
    };
    let client = queue.client().await;
    let moved = settle::give_back(&client, &[retry], MAX_LOSSES).await;
    assert_eq!(moved.unwrap()[0].key, None);
    free_all(&queue).await;
    assert_eq!(queue.claim(10).await, []);
    queue
        .execute("update fencepost.live set visible_after = now() where hold = 0")
        .await;
    for expected in tasks {
        let token = queue.again().await;
        assert_eq!(token.id, expected);
        assert_eq!(queue.claim(10).await, []);
        assert_eq!(ends(&queue, token).await, [a]);
        let freed = free_all(&queue).await;
        assert!(freed.iter().all(|freed| !freed.again), "{freed:?}");
    }
    queue.assert_sound().await;
}

#[tokio::test]
async fn a_batch_comes_in_its_order_and_as_many_go_as_the_route_says() {
    let queue = Queue::new().await;
    declare(&queue, "key_limit => 3").await;
    let client = queue.client().await;
    let rows = client
        .query(
            "select task_id from fencepost.enqueue_many(array['q'], array['t'],
                array_fill('null'::bytea, array[8]),
                concurrency_key => array['a', 'b', 'a', null, 'a', 'a', 'b', 'a'])",
            &[],
        )
        .await
        .unwrap();
    let ids: Vec<TaskId> = rows.iter().map(|row| row.get(0)).collect();
    let mut holds = Vec::new();
    for id in &ids {
        holds.push(hold(&queue, *id).await);
    }
    assert_eq!(holds, [0, 0, 0, 0, 0, 2, 0, 2]);
    // One place gets free, then the limit grows.
    let claimed = queue.claim(1).await;
    assert_eq!(claimed[0].id, ids[0]);
    ends(&queue, claimed[0]).await;
    let freed = free_all(&queue).await;
    assert_eq!(freed.iter().filter(|one| one.routes == [1]).count(), 1);
    assert_eq!(hold(&queue, ids[5]).await, 0);
    assert_eq!(hold(&queue, ids[7]).await, 2);
    declare(&queue, "key_limit => 4").await;
    free_all(&queue).await;
    assert_eq!(hold(&queue, ids[7]).await, 0);
    // It shrinks: nothing is taken back, and nobody goes before there is room.
    declare(&queue, "key_limit => 1").await;
    let late = queue.enqueue_with("concurrency_key => 'a'").await;
    for token in queue.claim(3).await {
        assert_eq!(hold(&queue, late).await, 2);
        if ids.contains(&token.id) {
            ends(&queue, token).await;
        }
        free_all(&queue).await;
    }
}

#[tokio::test]
async fn a_task_that_is_due_later_holds_nobody_up_and_waits_for_its_key_then() {
    let queue = Queue::new().await;
    let later = queue
        .enqueue_with("concurrency_key => 'a', delay => '1 hour'")
        .await;
    let first = queue.enqueue_with("concurrency_key => 'a'").await;
    let second = queue.enqueue_with("concurrency_key => 'a'").await;
    assert_eq!(hold(&queue, later).await, 2);
    assert_eq!(hold(&queue, first).await, 0);
    let state =
        format!("select count(*) from fencepost.tasks where id = {later} and state = 'scheduled'");
    assert_eq!(queue.number(&state).await, 1);
    let client = queue.client().await;
    let (due, next) = keys::find_looks(&client, None, 10).await.unwrap();
    assert_eq!(due, []);
    assert!(next.is_some_and(|next| next > Duration::from_secs(3000)));
    // It is due while the first one runs, in front of the second one.
    queue
        .execute(&format!(
            "update fencepost.live set visible_after = (select visible_after from fencepost.live where id = {first})
                where id = {later}"
        ))
        .await;
    queue
        .execute("update fencepost.key_look set due_at = now()")
        .await;
    answer_looks(&queue).await;
    assert_eq!(looks(&queue).await, 0);
    assert_eq!(hold(&queue, later).await, 2);
    let token = queue.again().await;
    assert_eq!(token.id, first);
    ends(&queue, token).await;
    free_all(&queue).await;
    assert_eq!(hold(&queue, later).await, 0);
    assert_eq!(hold(&queue, second).await, 2);
}

#[tokio::test]
async fn an_open_producer_makes_no_other_one_wait_and_what_it_leaves_is_looked_at() {
    let queue = Queue::new().await;
    let (mut holder, other) = (queue.client().await, queue.client().await);
    let enqueue = "select task_id from fencepost.enqueue('q', 't', concurrency_key => 'a')";
    other
        .execute(enqueue.replace("'a'", "'b'").as_str(), &[])
        .await
        .unwrap();
    for commits in [true, false] {
        let open = holder.transaction().await.unwrap();
        let first: TaskId = open.query_one(enqueue, &[]).await.unwrap().get(0);
        let second: TaskId = other.query_one(enqueue, &[]).await.unwrap().get(0);
        assert_eq!(hold(&queue, second).await, 2);
        assert_eq!(looks(&queue).await, 1);
        // A look comes too early, and is not forgotten.
        answer_looks(&queue).await;
        assert_eq!(looks(&queue).await, 1);
        if commits {
            open.commit().await.unwrap();
        } else {
            open.rollback().await.unwrap();
        }
        answer_looks(&queue).await;
        assert_eq!(looks(&queue).await, 0);
        assert_eq!(hold(&queue, second).await, if commits { 2 } else { 0 });
        if commits {
            assert_eq!(hold(&queue, first).await, 0);
        }
        queue
            .execute("delete from fencepost.live where key_hash = fencepost.key_hash(1, 'a')")
            .await;
    }
}

#[tokio::test]
async fn whoever_ends_the_task_before_an_open_producers_one_comes_back_for_it() {
    let queue = Queue::new().await;
    let mut holder = queue.client().await;
    let running = queue.one_with_key("a").await;
    // It sees the one that runs, so its own waits; then that one ends.
    let open = holder.transaction().await.unwrap();
    let enqueue = "select task_id from fencepost.enqueue('q', 't', concurrency_key => 'a')";
    let waiting: TaskId = open.query_one(enqueue, &[]).await.unwrap().get(0);
    let freed = ends(&queue, running).await;
    let client = queue.client().await;
    for _ in 0..2 {
        let freed = keys::free(&client, &freed, &[]).await.unwrap();
        assert!(freed[0].again && freed[0].routes.is_empty(), "{freed:?}");
    }
    open.commit().await.unwrap();
    let freed = keys::free(&client, &freed, &[]).await.unwrap();
    assert!(!freed[0].again && freed[0].routes == [1], "{freed:?}");
    assert_eq!(hold(&queue, waiting).await, 0);
    assert_eq!(looks(&queue).await, 0);
}

#[tokio::test]
async fn a_look_at_a_key_waits_for_nobody_and_an_enqueue_for_that_look_only() {
    let queue = Queue::new().await;
    let running = queue.one_with_key("a").await;
    let waiting = queue.enqueue_with("concurrency_key => 'a'").await;
    let freed = ends(&queue, running).await;
    let (mut looking, mut locking) = (queue.client().await, queue.client().await);
    // Somebody has the row that is next: no other one takes its place.
    let lock = locking.transaction().await.unwrap();
    lock.execute(
        "select from fencepost.live where id = $1 for update",
        &[&waiting],
    )
    .await
    .unwrap();
    let client = queue.client().await;
    let tried = keys::free(&client, &freed, &[]).await.unwrap();
    assert!(tried[0].again && tried[0].routes.is_empty());
    lock.rollback().await.unwrap();
    // Two looks at the same time: the second one comes again.
    let look = looking.transaction().await.unwrap();
    assert_eq!(keys::free(&look, &freed, &[]).await.unwrap()[0].routes, [1]);
    assert!(keys::free(&client, &freed, &[]).await.unwrap()[0].again);
    // An enqueue that comes while the key is looked at sees what the look has done.
    let enqueuing = queue.client().await;
    let enqueue = "select task_id from fencepost.enqueue('q', 't', concurrency_key => 'a')";
    let late = enqueuing.query_one(enqueue, &[]);
    let row = queue
        .waits(backend(&enqueuing).await, late, look.commit())
        .await;
    assert_eq!(hold(&queue, row.unwrap().get(0)).await, 2);
    assert_eq!(hold(&queue, waiting).await, 0);
}

#[tokio::test]
async fn of_several_places_none_goes_to_one_behind_a_task_that_is_locked() {
    let queue = Queue::new().await;
    let first = queue.one_with_key("a").await;
    let mut waiting = Vec::new();
    for _ in 0..3 {
        waiting.push(queue.enqueue_with("concurrency_key => 'a'").await);
    }
    declare(&queue, "key_limit => 3").await;
    let freed = ends(&queue, first).await;
    let mut locking = queue.client().await;
    let lock = locking.transaction().await.unwrap();
    let id = &waiting[1];
    lock.execute("select from fencepost.live where id = $1 for update", &[id])
        .await
        .unwrap();
    let client = queue.client().await;
    assert!(keys::free(&client, &freed, &[]).await.unwrap()[0].again);
    let mut holds = Vec::new();
    for id in &waiting {
        holds.push(hold(&queue, *id).await);
    }
    assert_eq!(holds, [0, 2, 2]);
    lock.rollback().await.unwrap();
    assert!(!keys::free(&client, &freed, &[]).await.unwrap()[0].again);
    assert_eq!(hold(&queue, waiting[2]).await, 0);
}

#[tokio::test]
async fn the_sessions_of_applications_look_rows_up_whatever_the_queue_was_when_they_planned() {
    let queue = Queue::new().await;
    let token = queue.one_with_key("a").await;
    queue.enqueue_with("concurrency_key => 'a'").await;
    // A walk over one page is the cheapest plan, and stays when there are thousands.
    queue.execute("analyze fencepost.live").await;
    let mut client = queue.client().await;
    client
        .batch_execute("set enable_seqscan = on")
        .await
        .unwrap();
    let open = client.transaction().await.unwrap();
    let walks = "select coalesce(max(seq_scan), 0)
        from pg_stat_xact_user_tables where relid = 'fencepost.live'::regclass";
    let before: i64 = open.query_one(walks, &[]).await.unwrap().get(0);
    for call in [
        "enqueue('q', 't', concurrency_key => 'a')".to_owned(),
        "enqueue('q', 't', concurrency_key => 'b')".to_owned(),
        format!("complete('{token}')"),
    ] {
        let call = format!("select fencepost.{call}");
        open.execute(&call, &[]).await.unwrap();
        let after: i64 = open.query_one(walks, &[]).await.unwrap().get(0);
        assert_eq!(after, before, "{call}");
    }
}

#[tokio::test]
async fn rows_that_stay_keep_nobody_from_those_behind_them() {
    let queue = Queue::new().await;
    for key in ["a", "b", "c"] {
        queue
            .execute(&format!(
                "select fencepost.look_soon(array[fencepost.key_hash(1, '{key}')])"
            ))
            .await;
    }
    let client = queue.client().await;
    let (page, _) = keys::find_looks(&client, None, 2).await.unwrap();
    assert_eq!(page.len(), 2);
    let (rest, _) = keys::find_looks(&client, page.last().copied(), 2)
        .await
        .unwrap();
    assert_eq!(rest.len(), 1);
    assert_eq!(rest[0].key, key(&queue, "c").await);
}

#[tokio::test]
async fn a_stopped_key_goes_on_when_its_letter_is_redriven_or_discarded_or_it_is_resumed() {
    let queue = Queue::new().await;
    declare(&queue, "on_dead_key => 'stop', key_limit => 2").await;
    for end in ["redrive", "discard", "resume", "expire"] {
        let mut tasks = Vec::new();
        for _ in 0..4 {
            let more = format!("concurrency_key => '{end}'");
            tasks.push(queue.enqueue_with(&more).await);
        }
        let claimed = queue.claim(2).await;
        assert_eq!(
            queue.give_back(failure(claimed[0], Move::DeadLetter)).await,
            [settle::Goes::Dead]
        );
        assert!(queue.complete(claimed[1]).await);
        free_all(&queue).await;
        // Nobody goes, and who comes in waits as well.
        assert_eq!(queue.claim(10).await, []);
        tasks.push(
            queue
                .enqueue_with(&format!("concurrency_key => '{end}'"))
                .await,
        );
        assert_eq!(hold(&queue, tasks[4]).await, 2);
        let client = queue.client().await;
        let stopped = keys::list_stopped(&client, Some("default"), 10, None)
            .await
            .unwrap();
        assert_eq!(stopped.len(), 1);
        assert_eq!(
            (stopped[0].letter, stopped[0].key.as_deref()),
            (tasks[0], Some(end))
        );
        let letter = tasks[0];
        let next = match end {
            "redrive" => {
                // The new task has the place of the dead one.
                let redriven = queue
                    .number(&format!(
                        "select task_id from fencepost.redrive_dead_letters(array[{letter}]::bigint[])"
                    ))
                    .await;
                assert_eq!(hold(&queue, redriven).await, 0);
                vec![tasks[2], redriven]
            }
            "discard" => {
                queue
                    .execute(&format!(
                        "select fencepost.discard_dead_letters(array[{letter}]::bigint[])"
                    ))
                    .await;
                vec![tasks[2], tasks[3]]
            }
            "resume" => {
                assert_eq!(keys::resume(&client, None, end).await.unwrap(), 1);
                assert_eq!(keys::resume(&client, None, end).await.unwrap(), 0);
                vec![tasks[2], tasks[3]]
            }
            _ => {
                queue
                    .execute("update fencepost.dead_letter set dead_at = now() - interval '1 day'")
                    .await;
                let keep = Duration::from_secs(3600);
                let expire = fencepost::store::retention::expire_dead_letters(&client, keep, 10);
                assert!(expire.await.unwrap() > 0);
                vec![tasks[2], tasks[3]]
            }
        };
        assert_eq!(looks(&queue).await, 1, "{end}");
        answer_looks(&queue).await;
        assert_eq!(looks(&queue).await, 0);
        assert_eq!(
            keys::list_stopped(&client, None, 10, None).await.unwrap(),
            []
        );
        let mut ready: Vec<TaskId> = queue.claim(10).await.iter().map(|token| token.id).collect();
        ready.sort_unstable();
        assert_eq!(ready, next, "{end}");
        queue.execute("delete from fencepost.live").await;
        queue.execute("delete from fencepost.task").await;
    }
}

#[tokio::test]
async fn a_dead_letter_is_passed_over_unless_its_route_says_otherwise_and_redriven_behind_the_others()
 {
    let queue = Queue::new().await;
    let mut tasks = Vec::new();
    for _ in 0..3 {
        tasks.push(queue.enqueue_with("concurrency_key => 'a'").await);
    }
    let dead = queue.again().await;
    queue.give_back(failure(dead, Move::DeadLetter)).await;
    let redriven = queue
        .number(&format!(
            "select task_id from fencepost.redrive_dead_letters(array[{}]::bigint[])",
            dead.id
        ))
        .await;
    assert_eq!(hold(&queue, redriven).await, 2);
    free_all(&queue).await;
    for expected in [tasks[1], tasks[2], redriven] {
        let token = queue.again().await;
        assert_eq!(token.id, expected);
        ends(&queue, token).await;
        free_all(&queue).await;
    }
    queue.assert_sound().await;
}

#[tokio::test]
async fn a_cancelled_task_frees_its_place_and_one_that_waits_leaves_a_look() {
    let queue = Queue::new().await;
    let mut tasks = Vec::new();
    for _ in 0..4 {
        tasks.push(queue.enqueue_with("concurrency_key => 'a'").await);
    }
    // What stands behind one that waits may have what that one waited for; here it has not.
    queue.cancel(tasks[1]).await.unwrap();
    assert_eq!(looks(&queue).await, 1);
    answer_looks(&queue).await;
    assert_eq!(hold(&queue, tasks[2]).await, 2);
    queue.cancel(tasks[0]).await.unwrap();
    assert_eq!(looks(&queue).await, 1);
    answer_looks(&queue).await;
    assert_eq!(hold(&queue, tasks[2]).await, 0);
    assert_eq!(hold(&queue, tasks[3]).await, 2);
    queue.assert_sound().await;
}

#[tokio::test]
async fn chores_and_handlers_that_end_a_task_leave_its_key_to_look_at() {
    let queue = Queue::new().await;
    let mut tasks = Vec::new();
    for _ in 0..3 {
        tasks.push(queue.enqueue_with("concurrency_key => 'a'").await);
    }
    let expired = Return {
        owner: Some(0),
        ..failure(
            Token {
                id: tasks[0],
                epoch: 0,
                fence: 0,
            },
            Move::Expire,
        )
    };
    assert_eq!(queue.give_back(expired).await, [settle::Goes::Dead]);
    assert_eq!(looks(&queue).await, 1);
    answer_looks(&queue).await;
    let token = queue.again().await;
    assert_eq!(token.id, tasks[1]);
    queue
        .execute(&format!("select fencepost.complete('{token}')"))
        .await;
    assert_eq!(looks(&queue).await, 1);
    answer_looks(&queue).await;
    assert_eq!(queue.again().await.id, tasks[2]);
    // The worker's own report says so too, and so does a repeat of one.
    let client = queue.client().await;
    let missed = settle::Missed {
        token,
        success: true,
        worker: Some("w".into()),
        owner: None,
    };
    let judged = settle::look_again(&client, &[missed]).await.unwrap();
    assert_eq!(judged[0].key, Some(key(&queue, "a").await));
}

#[tokio::test]
async fn a_pause_keeps_the_place_of_the_task_at_the_head_and_other_bits_stay() {
    let queue = Queue::new().await;
    let head = queue.enqueue_with("concurrency_key => 'a'").await;
    let next = queue.enqueue_with("concurrency_key => 'a'").await;
    queue
        .execute("update fencepost.live set hold = hold | 1")
        .await;
    let claimed = queue.claim(10).await;
    assert_eq!(claimed, []);
    free_all(&queue).await;
    assert_eq!(hold(&queue, next).await, 3);
    queue.cancel(head).await.unwrap();
    answer_looks(&queue).await;
    assert_eq!(hold(&queue, next).await, 1);
    queue
        .execute("update fencepost.live set hold = hold & 6")
        .await;
    assert_eq!(queue.again().await.id, next);
}

#[tokio::test]
async fn members_of_workflows_and_their_re_runs_obey_their_keys() {
    let queue = Queue::new().await;
    let start =
        "select run_id, task_ids, workflow_id from fencepost.start_workflow(array['q'], array['t'],
        array_fill('null'::bytea, array[3]), concurrency_key => array['a'])";
    let client = queue.client().await;
    let row = client.query_one(start, &[]).await.unwrap();
    let (members, workflow): (Vec<TaskId>, i64) = (row.get(1), row.get(2));
    let token = queue.again().await;
    assert_eq!(token.id, members[0]);
    ends(&queue, token).await;
    free_all(&queue).await;
    assert_eq!(hold(&queue, members[1]).await, 0);
    // Those of the earlier run are yet to be cancelled, and have the key until then.
    queue
        .execute(&format!("select fencepost.rerun_workflow({workflow})"))
        .await;
    let anew = "select task_id from fencepost.workflow_member
        where run_id = (select max(run_id) from fencepost.workflow) order by ordinal offset 1";
    let rows = client.query(anew, &[]).await.unwrap();
    let anew: Vec<TaskId> = rows.iter().map(|row| row.get(0)).collect();
    assert_eq!(anew.len(), 2);
    assert_eq!(looks(&queue).await, 1);
    answer_looks(&queue).await;
    assert_eq!(hold(&queue, anew[0]).await, 2);
    for member in &members[1..] {
        queue.cancel(*member).await.unwrap();
        answer_looks(&queue).await;
    }
    for member in anew {
        let token = queue.again().await;
        assert_eq!(token.id, member);
        ends(&queue, token).await;
        free_all(&queue).await;
    }
    queue.assert_sound().await;
}

#[tokio::test]
async fn a_transaction_takes_few_locks_and_the_rest_of_its_keys_are_looked_at() {
    let queue = Queue::new().await;
    let mut client = queue.client().await;
    let open = client.transaction().await.unwrap();
    for part in 0..2 {
        let enqueue = format!(
            "select fencepost.enqueue_many(array['q'], array['t'], array_fill('null'::bytea, array[400]),
                concurrency_key => (select array_agg('{part}-' || n) from generate_series(1, 400) as n))"
        );
        open.execute(&enqueue, &[]).await.unwrap();
    }
    let locks =
        "select count(*) from pg_locks where locktype = 'advisory' and pid = pg_backend_pid()";
    let locks: i64 = open.query_one(locks, &[]).await.unwrap().get(0);
    assert!((64..=128).contains(&locks), "{locks}");
    open.commit().await.unwrap();
    let held = "select count(*) from fencepost.live where hold = 2";
    assert_eq!(queue.number(held).await, 736);
    assert_eq!(looks(&queue).await, 736);
    answer_looks(&queue).await;
    assert_eq!(queue.number(held).await, 0);
    assert_eq!(looks(&queue).await, 0);
}

#[tokio::test]
async fn above_read_committed_a_task_with_a_key_waits_for_a_look() {
    let queue = Queue::new().await;
    declare(&queue, "key_limit => 1").await;
    let mut client = queue.client().await;
    let transaction = client
        .build_transaction()
        .isolation_level(tokio_postgres::IsolationLevel::RepeatableRead)
        .start()
        .await
        .unwrap();
    transaction
        .execute("select from fencepost.live", &[])
        .await
        .unwrap();
    let running = queue.one_with_key("a").await;
    let enqueue = "select task_id from fencepost.enqueue('q', 't', concurrency_key => 'a')";
    let late: TaskId = transaction.query_one(enqueue, &[]).await.unwrap().get(0);
    transaction.commit().await.unwrap();
    answer_looks(&queue).await;
    assert_eq!(hold(&queue, late).await, 2);
    ends(&queue, running).await;
    free_all(&queue).await;
    assert_eq!(hold(&queue, late).await, 0);
}

/// What whoever ends tasks does with their keys: again and again until nobody says that more is to come.
async fn look_on(client: &Client, keys: Vec<KeyHash>) {
    let mut left = keys;
    while !left.is_empty() {
        let freed = keys::free(client, &left, &[]).await.unwrap();
        left = freed
            .iter()
            .filter(|one| one.again)
            .map(|one| one.key)
            .collect();
    }
}

#[tokio::test]
async fn of_random_producers_and_enders_no_key_has_more_than_its_limit_and_none_is_left_behind() {
    const KEYS: u32 = 3;
    const TASKS: usize = 60;
    const PRODUCERS: usize = 4;
    let queue = std::sync::Arc::new(Queue::new().await);
    declare(&queue, "key_limit => 2").await;
    let mut producers = JoinSet::new();
    for _ in 0..PRODUCERS {
        let queue = std::sync::Arc::clone(&queue);
        producers.spawn(async move {
            let mut client = queue.client().await;
            for _ in 0..TASKS {
                let open = client.transaction().await.unwrap();
                for _ in 0..fastrand::u32(1..3) {
                    let enqueue = format!(
                        "select fencepost.enqueue('q', 't', concurrency_key => 'k{}')",
                        fastrand::u32(..KEYS)
                    );
                    open.execute(&enqueue, &[]).await.unwrap();
                }
                if fastrand::u32(..4) == 0 {
                    open.rollback().await.unwrap();
                } else {
                    open.commit().await.unwrap();
                }
            }
        });
    }
    let mut enders = JoinSet::new();
    let (produced, producing) = tokio::sync::watch::channel(false);
    for _ in 0..3 {
        let (queue, producing) = (std::sync::Arc::clone(&queue), producing.clone());
        enders.spawn(async move {
            let client = queue.client().await;
            let mut mine: Vec<Token> = Vec::new();
            loop {
                let last = *producing.borrow();
                let lane = vec![Queue::lane(1, 3)];
                mine.extend(queue.claim_lanes(&client, lane, vec![3]).await);
                let (done, again): (Vec<Token>, Vec<Token>) =
                    mine.iter().partition(|_| fastrand::u32(..3) > 0);
                let done: Vec<_> = done.into_iter().map(success).collect();
                let again: Vec<Return> = again
                    .into_iter()
                    .map(|token| failure(token, Move::Snooze))
                    .collect();
                let ended = settle::complete(&client, &done).await.unwrap();
                let moved = settle::give_back(&client, &again, MAX_LOSSES).await;
                let moved = moved.unwrap();
                // A row that another claim has just looked at is locked, and is for the next round.
                mine.retain(|token| {
                    !ended.iter().any(|one| one.id == token.id)
                        && !moved.iter().any(|one| one.id == token.id)
                });
                look_on(&client, ended.iter().filter_map(|one| one.key).collect()).await;
                answer_looks(&queue).await;
                let over = "select count(*) from (
                        select from fencepost.live where hold = 0 group by key_hash having count(*) > 2
                    ) as broken";
                assert_eq!(queue.number(over).await, 0);
                let left = queue.number("select count(*) from fencepost.live").await;
                if last && left == 0 {
                    return;
                }
            }
        });
    }
    while let Some(ended) = producers.join_next().await {
        ended.unwrap();
    }
    produced.send(true).unwrap();
    let all = async {
        while let Some(ended) = enders.join_next().await {
            ended.unwrap();
        }
    };
    // No walk has been here: whoever ended the last task of a key has looked at what waited for it.
    tokio::time::timeout(STEP * 3, all).await.unwrap();
    queue.assert_sound().await;
}

#[tokio::test]
async fn the_walk_finds_every_key_that_has_room_and_no_other() {
    let queue = Queue::new().await;
    let mut expected = HashMap::new();
    for n in 0..20 {
        let name = format!("k{n}");
        let head = queue
            .enqueue_with(&format!("concurrency_key => '{name}'"))
            .await;
        queue
            .enqueue_with(&format!("concurrency_key => '{name}'"))
            .await;
        queue
            .enqueue_with(&format!("concurrency_key => 'alone{n}'"))
            .await;
        queue
            .enqueue_with(&format!("concurrency_key => 'later{n}', delay => '1 day'"))
            .await;
        if n % 2 == 0 {
            // As a replica leaves it that died between the end of a task and the look at its key.
            queue
                .execute(&format!("delete from fencepost.live where id = {head}"))
                .await;
        }
        expected.insert(key(&queue, &name).await, n % 2 == 0);
        expected.insert(key(&queue, &format!("later{n}")).await, false);
    }
    let client = queue.client().await;
    let (mut from, mut found) = (KeyHash::MIN, HashMap::new());
    loop {
        let step = keys::walk(&client, from, 7).await.unwrap();
        found.extend(step.iter().copied());
        match step.last().filter(|_| step.len() == 7) {
            Some((last, _)) => from = last + 1,
            None => break,
        }
    }
    assert_eq!(found, expected);
    assert_eq!(upkeep::find_last_death(&client).await.unwrap(), None);
    eventually(STEP, async || {
        look_on(&client, all_keys(&client).await).await;
        Some(())
    })
    .await;
    let room = keys::walk(&client, KeyHash::MIN, 100).await.unwrap();
    assert!(room.iter().all(|(_, has_room)| !has_room));
}
