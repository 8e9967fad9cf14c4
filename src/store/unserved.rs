//! What waits, why, and since when: for those who ask and for the chore that judges.

use std::time::Duration;

use chrono::{DateTime, Utc};
use deadpool_postgres::GenericClient;
use tokio_postgres::Row;

use super::queues::{self, Counted, Wanted};
use super::{Error, millis, rates};
use crate::domain::id::{RouteId, TaskId, Token};
use crate::domain::verdict::{Claimed, Hold, Reason, Stage};

const READ_STAGE: &str = include_str!("../../sql/read_stage.sql");
const FIND_WAITING: &str = include_str!("../../sql/find_waiting.sql");
const FIND_EXPIRED: &str = include_str!("../../sql/find_expired.sql");
const WRITE_UNSERVED: &str = include_str!("../../sql/write_unserved.sql");

/// Where a task is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Located {
    /// Its route.
    pub route: RouteId,
    /// In its life.
    pub stage: Stage,
    /// Since when nobody serves its route, where that has been judged.
    pub unserved_since: Option<DateTime<Utc>>,
    /// When, to a minute, a worker was last on the node that it is pinned to; none if there never was one.
    pub node_seen: Option<DateTime<Utc>>,
}

/// Where a task is; none when there never was one, or when it has left history.
pub async fn locate(client: &impl GenericClient, id: TaskId) -> Result<Option<Located>, Error> {
    let statement = client.prepare_cached(READ_STAGE).await?;
    let row = client.query_opt(&statement, &[&id]).await?;
    row.as_ref().map(located).transpose()
}

fn located(row: &Row) -> Result<Located, Error> {
    let ended: Option<&str> = row.try_get("ended")?;
    let claimed: Option<bool> = row.try_get("claimed")?;
    let stage = match (ended, claimed) {
        (Some(state), _) => Stage::Ended {
            state: state.to_owned(),
            at: row.try_get("ended_at")?,
            class: row.try_get("error_class")?,
        },
        (None, Some(true)) => Stage::Claimed(Claimed {
            dispatcher: row.try_get("dispatcher")?,
            replica: row.try_get("replica")?,
            worker: None,
            since: row.try_get("claimed_at")?,
            cancel_requested: row.try_get("cancel_requested")?,
        }),
        (None, Some(false)) => Stage::Ready {
            due_at: due_at(row)?,
            hold: Hold {
                bits: row.try_get("hold")?,
                key_tasks: row.try_get("key_tasks")?,
                key_letters: row.try_get("key_letters")?,
                key_rate: rates::of_keys(row)?.zip(row.try_get("key_token_at")?),
            },
        },
        (None, None) => return Err(Error::internal("a task is neither unfinished nor ended")),
    };
    Ok(Located {
        route: row.try_get("route_id")?,
        stage,
        unserved_since: row.try_get("unserved_since")?,
        node_seen: row.try_get("node_seen")?,
    })
}

fn due_at(row: &Row) -> Result<Option<DateTime<Utc>>, Error> {
    let waits: bool = row.try_get("waits")?;
    let due: DateTime<Utc> = row.try_get("visible_after")?;
    Ok(waits.then_some(due))
}

/// Of a row that says which bits hold it and no more.
fn ready(row: &Row) -> Result<Stage, Error> {
    Ok(Stage::Ready {
        due_at: due_at(row)?,
        hold: Hold {
            bits: row.try_get("hold")?,
            ..Hold::default()
        },
    })
}

/// What waits on a route.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Waiting {
    /// The route.
    pub route: RouteId,
    /// Due tasks.
    pub tasks: Counted,
    /// Since the first of them was due.
    pub oldest: Duration,
    /// Since when nobody serves it, where that has been judged.
    pub since: Option<DateTime<Utc>>,
    /// As [`Located::node_seen`].
    pub node_seen: Option<DateTime<Utc>>,
}

/// What is due on these routes, the longest wait first; each count ends at `bound`.
pub async fn count_waiting(
    client: &impl GenericClient,
    routes: &[RouteId],
    bound: i64,
) -> Result<Vec<Waiting>, Error> {
    let wanted = Wanted {
        routes: Some(routes),
        ..Wanted::default()
    };
    let limit = i64::try_from(routes.len()).unwrap_or(i64::MAX);
    let queues = queues::list(client, wanted, bound, limit).await?;
    let waiting = queues.into_iter().filter_map(|queue| {
        Some(Waiting {
            route: queue.route,
            tasks: queue.ready,
            oldest: queue.oldest?,
            since: queue.unserved_since.map(|(_, since)| since),
            node_seen: queue.node_seen,
        })
    });
    let mut waiting: Vec<Waiting> = waiting.collect();
    waiting.sort_by_key(|waiting| std::cmp::Reverse(waiting.oldest));
    Ok(waiting)
}

/// A ready task that a chore is about to move.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stuck {
    /// Its next delivery will follow this one.
    pub token: Token,
    /// Its route.
    pub route: RouteId,
    /// Failed tries so far.
    pub attempt: u32,
    /// In its life.
    pub stage: Stage,
}

/// Due tasks of these routes.
pub async fn find_waiting(
    client: &impl GenericClient,
    routes: &[RouteId],
    limit: i32,
) -> Result<Vec<Stuck>, Error> {
    let statement = client.prepare_cached(FIND_WAITING).await?;
    let rows = client.query(&statement, &[&routes, &limit]).await?;
    let due = || Stage::Ready {
        due_at: None,
        hold: Hold::default(),
    };
    rows.iter().map(|row| stuck(row, due())).collect()
}

/// Tasks that have not started by their deadline for that.
pub async fn find_expired(client: &impl GenericClient, limit: i32) -> Result<Vec<Stuck>, Error> {
    let statement = client.prepare_cached(FIND_EXPIRED).await?;
    let rows = client.query(&statement, &[&limit]).await?;
    rows.iter().map(|row| stuck(row, ready(row)?)).collect()
}

fn stuck(row: &Row, stage: Stage) -> Result<Stuck, Error> {
    let attempt: i32 = row.try_get("attempt")?;
    Ok(Stuck {
        token: Token {
            id: row.try_get("id")?,
            epoch: row.try_get("epoch")?,
            fence: row.try_get("fence")?,
        },
        route: row.try_get("route_id")?,
        attempt: u32::try_from(attempt).unwrap_or(0),
        stage,
    })
}

/// A route that nobody serves, as judged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Judged {
    /// The route.
    pub route: RouteId,
    /// Why.
    pub reason: Reason,
    /// For how long it has been seen so.
    pub lasts: Duration,
}

/// Keeps the list of routes that nobody serves: those that do not even look so leave it, the judged ones enter it.
/// Answers those that are new or have another reason than before.
pub async fn write(
    client: &impl GenericClient,
    looks_so: &[RouteId],
    judged: &[Judged],
) -> Result<Vec<RouteId>, Error> {
    let routes: Vec<RouteId> = judged.iter().map(|one| one.route).collect();
    let reasons: Vec<&str> = judged.iter().map(|one| one.reason.name()).collect();
    let lasts: Vec<i64> = judged.iter().map(|one| millis(one.lasts)).collect();
    let statement = client.prepare_cached(WRITE_UNSERVED).await?;
    let rows = client
        .query(&statement, &[&looks_so, &routes, &reasons, &lasts])
        .await?;
    rows.iter()
        .map(|row| Ok(row.try_get("route_id")?))
        .collect()
}
