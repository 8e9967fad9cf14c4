//! Producers that meet: each other over a dispatch key, and the chores over partitions.

use deadpool_postgres::GenericClient;
use fencepost::domain::id::TaskId;
use fencepost::store::upkeep;

use crate::support::Queue;
use crate::support::queue::backend;

const WITH_KEY: &str =
    "select task_id, created from fencepost.enqueue('q', 't', dispatch_key => 'k')";

async fn enqueue(client: &impl GenericClient) -> (TaskId, bool) {
    let row = client.query_one(WITH_KEY, &[]).await.unwrap();
    (row.get(0), row.get(1))
}

/// The partition of `task` that holds this id.
async fn partition(queue: &Queue, id: TaskId) -> String {
    let query = "select tableoid::regclass::text from fencepost.task where id = $1";
    let row = queue.client().await.query_one(query, &[&id]).await;
    row.unwrap().get(0)
}

#[tokio::test]
async fn of_two_open_transactions_with_one_key_the_second_waits_for_the_first() {
    let queue = Queue::new().await;
    // The route is there, so that the key alone is what they meet over.
    queue.enqueue(1).await;
    let (mut first, second) = (queue.client().await, queue.client().await);
    let waiter = backend(&second).await;
    let open = first.transaction().await.unwrap();
    let (lost, created) = enqueue(&open).await;
    assert!(created);
    assert_eq!(enqueue(&open).await, (lost, false), "it knows its own");
    let (winner, created) = queue.waits(waiter, enqueue(&second), open.rollback()).await;
    assert!(created && winner != lost);

    queue.execute("delete from fencepost.dispatch_key").await;
    let open = first.transaction().await.unwrap();
    let (winner, _) = enqueue(&open).await;
    let answer = queue.waits(waiter, enqueue(&second), open.commit()).await;
    assert_eq!(answer, (winner, false));
    queue.assert_sound().await;
}

#[tokio::test]
async fn of_two_that_find_a_key_expired_one_takes_it_over() {
    let queue = Queue::new().await;
    let (mut first, second) = (queue.client().await, queue.client().await);
    let waiter = backend(&second).await;
    for committed in [true, false] {
        queue.execute("delete from fencepost.dispatch_key").await;
        let (old, _) = enqueue(&second).await;
        assert!(queue.complete(queue.again().await).await);
        assert_eq!(
            enqueue(&second).await,
            (old, false),
            "a key outlives its task"
        );
        queue
            .execute("update fencepost.dispatch_key set remember = '0'")
            .await;
        let open = first.transaction().await.unwrap();
        let (taken, created) = enqueue(&open).await;
        assert!(created);
        let end = async {
            if committed {
                open.commit().await
            } else {
                open.rollback().await
            }
        };
        let (winner, created) = queue.waits(waiter, enqueue(&second), end).await;
        assert_eq!(created, !committed);
        assert_eq!(winner == taken, committed);
        queue.assert_sound().await;
        assert!(queue.complete(queue.again().await).await);
    }
}

#[tokio::test]
async fn a_first_use_of_a_route_by_two_makes_one_route() {
    let queue = Queue::new().await;
    let (mut first, second) = (queue.client().await, queue.client().await);
    let waiter = backend(&second).await;
    let call = "select task_id from fencepost.enqueue('q', 't', namespace => 'new', node => 'n')";
    let open = first.transaction().await.unwrap();
    open.execute(call, &[]).await.unwrap();
    let enqueued = queue
        .waits(waiter, second.execute(call, &[]), open.commit())
        .await;
    assert_eq!(enqueued.unwrap(), 1);
    assert_eq!(
        queue.number("select count(*) from fencepost.route").await,
        1
    );
    assert_eq!(
        queue
            .number("select count(distinct route_id) from fencepost.live")
            .await,
        1
    );
}

#[tokio::test]
async fn the_horizon_rises_once_no_producer_is_left_that_may_not_know_the_partitions() {
    let queue = Queue::new().await;
    let mut producer = queue.client().await;
    let chores = queue.client().await;
    queue.enqueue(1).await;
    assert!(upkeep::raise_horizon(&chores).await.unwrap());
    let end = "select end_ms from fencepost.horizon";
    let before = queue.number(end).await;
    let open = producer.transaction().await.unwrap();
    enqueue(&open).await;
    upkeep::make_partitions(&chores, 16).await.unwrap();
    assert_eq!(queue.number(end).await, before, "attaching raises nothing");
    for _ in 0..3 {
        assert!(!upkeep::raise_horizon(&chores).await.unwrap());
        assert_eq!(queue.number(end).await, before);
    }
    // A producer that came after the attach is not waited for.
    let mut later = queue.client().await;
    let late = later.transaction().await.unwrap();
    late.execute("select from fencepost.enqueue('q', 't')", &[])
        .await
        .unwrap();
    open.commit().await.unwrap();
    // The call that raises it says that more may be to do only while there is.
    assert!(upkeep::raise_horizon(&chores).await.unwrap());
    let day = 24 * 3600 * 1000;
    assert_eq!(queue.number(end).await, before + 2 * day);
    late.commit().await.unwrap();
    upkeep::make_partitions(&chores, 16).await.unwrap();
    assert!(upkeep::raise_horizon(&chores).await.unwrap());
}

#[tokio::test]
async fn two_that_make_partitions_at_once_wait_for_each_other() {
    let queue = Queue::new().await;
    let (mut first, second) = (queue.client().await, queue.client().await);
    let waiter = backend(&second).await;
    let open = first.transaction().await.unwrap();
    upkeep::make_partitions(&open, 15).await.unwrap();
    // Producers go on meanwhile.
    queue.enqueue(1).await;
    queue
        .waits(waiter, upkeep::make_partitions(&second, 16), open.commit())
        .await
        .unwrap();
    let partitions =
        "select count(*) from pg_inherits where inhparent = 'fencepost.task'::regclass";
    assert_eq!(queue.number(partitions).await, 18);
}

#[tokio::test]
async fn after_a_long_pause_partitions_go_on_from_yesterday() {
    let queue = Queue::new().await;
    // As if the last chore had been done three weeks ago.
    for table in ["task", "outcome", "failure"] {
        let drop = format!(
            "do $$ declare child regclass; begin
                for child in select inhrelid::regclass from pg_inherits where inhparent = 'fencepost.{table}'::regclass
                loop execute 'drop table ' || child; end loop;
            end $$"
        );
        queue.execute(&drop).await;
    }
    let long_ago = "fencepost.id_ms(date_trunc('day', now() at time zone 'UTC') at time zone 'UTC' - interval '21 days')";
    queue
        .execute(&format!("update fencepost.horizon set floor_ms = {long_ago} - 1000, end_ms = {long_ago}, attached_ms = {long_ago}"))
        .await;
    let client = queue.client().await;
    upkeep::make_partitions(&client, 14).await.unwrap();
    while !upkeep::raise_horizon(&client).await.unwrap() {}
    queue.enqueue(1).await;
    let partitions =
        "select count(*) from pg_inherits where inhparent = 'fencepost.task'::regclass";
    assert_eq!(queue.number(partitions).await, 16);
}

#[tokio::test]
async fn past_the_horizon_ids_fall_into_the_last_partition_and_pass_over_taken_ones() {
    let queue = Queue::new().await;
    queue.enqueue(1).await;
    // Yesterday's partition is the last one in use.
    let today = "fencepost.id_ms(date_trunc('day', now() at time zone 'UTC') at time zone 'UTC')";
    queue
        .execute(&format!("update fencepost.horizon set end_ms = {today}"))
        .await;
    let yesterday = queue
        .client()
        .await
        .query_one(
            "select 'fencepost.task_' || to_char((now() at time zone 'UTC')::date - 1, 'YYYYMMDD')",
            &[],
        )
        .await
        .unwrap()
        .get::<_, String>(0);
    let ids = queue.enqueue(3).await;
    for id in &ids {
        assert_eq!(partition(&queue, *id).await, yesterday);
    }
    // The next number of the sequence makes an id that is there: as if the sequence had come round.
    let last = ids.iter().max().unwrap();
    queue
        .execute(&format!(
            "select setval('fencepost.task_sequence', ({last} & 4194303) - 1)"
        ))
        .await;
    let next = queue.enqueue(1).await[0];
    assert_eq!(next & 4_194_303, (last & 4_194_303) + 1);
    assert_eq!(partition(&queue, next).await, yesterday);

    // In a batch of which a part is taken all move on together.
    queue
        .execute(&format!(
            "select setval('fencepost.task_sequence', ({next} & 4194303) - 1)"
        ))
        .await;
    assert_eq!(queue.enqueue(5).await.len(), 5);
    queue.assert_sound().await;
}

#[tokio::test]
async fn a_clock_before_the_first_partition_makes_ids_that_fall_into_it() {
    let queue = Queue::new().await;
    // The same as a clock that stands a day back: the first partition begins tomorrow.
    let tomorrow = "fencepost.id_ms(date_trunc('day', now() at time zone 'UTC') at time zone 'UTC' + interval '1 day')";
    queue
        .execute(&format!(
            "update fencepost.horizon set floor_ms = {tomorrow}"
        ))
        .await;
    let ids = queue.enqueue(2).await;
    let floor = queue.number("select floor_ms from fencepost.horizon").await;
    assert!(ids.iter().all(|id| id >> 22 == floor), "{ids:?}");
    assert_ne!(ids[0], ids[1]);
    queue.assert_sound().await;
}
