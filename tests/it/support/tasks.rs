//! Tasks as the tables have them.

use std::time::Duration;

use tokio_postgres::{Client, Row};

use super::eventually;

/// How long a task may take from one state to the next, unless something is broken.
const STEP: Duration = Duration::from_secs(20);

/// Enqueues a task of type `t` on queue `q`; `more` are further arguments, such as `max_attempts => 3`.
pub async fn enqueue(db: &Client, more: &str) -> i64 {
    let comma = if more.is_empty() { "" } else { ", " };
    let call = format!("select task_id from fencepost.enqueue('q', 't'{comma}{more})");
    db.query_one(&call, &[]).await.unwrap().get(0)
}

/// Enqueues `number` tasks of type `t` on queue `q`, payload null.
pub async fn enqueue_many(db: &Client, number: i32) -> Vec<i64> {
    let call = "select task_id from fencepost.enqueue_many(
            task_queue => array_fill('q'::text, array[$1::int]), task_type => array_fill('t'::text, array[$1::int]),
            payload => array_fill('null'::bytea, array[$1::int]))";
    let rows = db.query(call, &[&number]).await.unwrap();
    rows.iter().map(|row| row.get(0)).collect()
}

/// How a task has ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ended {
    pub state: i16,
    pub attempt: i32,
    pub fence: Option<i32>,
    pub class: Option<String>,
    pub result: Option<String>,
}

pub const DONE: i16 = 1;
pub const FAILED: i16 = 2;
pub const CANCELLED: i16 = 3;

/// Waits for the end of a task; it must have left `live` then, and a failed one must be a dead letter.
pub async fn ended(db: &Client, id: i64) -> Ended {
    let select =
        "select o.state, o.attempt, o.fence, o.error_class, convert_from(o.result, 'UTF8'),
            exists (select from fencepost.live where live.id = o.id),
            exists (select from fencepost.dead_letter as d where d.id = o.id)
        from fencepost.outcome as o where o.id = $1";
    let row = eventually(STEP, async || db.query_opt(select, &[&id]).await.unwrap()).await;
    let state = row.get(0);
    assert!(!row.get::<_, bool>(5), "{id} is live and has ended");
    assert_eq!(
        row.get::<_, bool>(6),
        state == FAILED,
        "{id}: dead letters are the failed ones"
    );
    Ended {
        state,
        attempt: row.get(1),
        fence: row.get(2),
        class: row.get(3),
        result: row.get(4),
    }
}

/// A task's row while it is unfinished.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Live {
    pub state: i16,
    pub attempt: i32,
    pub losses: i32,
    pub epoch: i32,
    pub fence: i32,
    pub dispatcher: Option<i64>,
}

pub async fn live(db: &Client, id: i64) -> Option<Live> {
    let select =
        "select state, attempt, losses, epoch, fence, dispatcher from fencepost.live where id = $1";
    let row: Row = db.query_opt(select, &[&id]).await.unwrap()?;
    Some(Live {
        state: row.get(0),
        attempt: row.get(1),
        losses: row.get(2),
        epoch: row.get(3),
        fence: row.get(4),
        dispatcher: row.get(5),
    })
}

/// (attempt, fence, move, class) of each recorded failure, in the order of the fences.
pub async fn failures(db: &Client, id: i64) -> Vec<(i32, i32, String, String)> {
    let select = "select attempt, fence, move, error_class from fencepost.failure where id = $1 order by fence";
    let rows = db.query(select, &[&id]).await.unwrap();
    rows.iter()
        .map(|row| (row.get(0), row.get(1), row.get(2), row.get(3)))
        .collect()
}

/// Counts rows by any query of one number.
pub async fn count(db: &Client, select: &str) -> i64 {
    db.query_one(select, &[]).await.unwrap().get(0)
}
