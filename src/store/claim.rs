//! Claiming due tasks, reading their bodies, and taking over tasks that a worker brings along.

use std::time::Duration;

use bytes::Bytes;
use chrono::{DateTime, Utc};
use tokio_postgres::Row;

use deadpool_postgres::GenericClient;

use super::{Error, millis};
use crate::domain::id::{DispatcherId, RouteId, TaskId, Token};
use crate::domain::task::{Body, Claim};

const CLAIM: &str = include_str!("../../sql/claim_tasks.sql");
const READ_BODIES: &str = include_str!("../../sql/read_bodies.sql");
const FIND_HELD: &str = include_str!("../../sql/find_held.sql");
const ADOPT: &str = include_str!("../../sql/adopt_tasks.sql");

/// One lane of a claim: a route at one priority.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LaneRequest {
    /// Its route.
    pub route: RouteId,
    /// Its priority, 0 (first) to 3.
    pub priority: i16,
    /// Rows to take at most.
    pub limit: i32,
    /// Rows up to this (due time, id) are passed over: the low-water mark.
    pub low: (DateTime<Utc>, TaskId),
    /// Index into [`ClaimRequest::free`], from 0.
    pub group: usize,
}

/// What one sweep asks for.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ClaimRequest {
    /// Its number, by which its claims can be found again.
    pub sweep: i64,
    /// Where to look.
    pub lanes: Vec<LaneRequest>,
    /// Free slots of each slot group, which its lanes share.
    pub free: Vec<i32>,
}

/// How long claims may last.
#[derive(Clone, Copy, Debug)]
pub struct Deadlines {
    /// Run timeout of tasks without one of their own; zero for none.
    pub run_timeout: Duration,
    /// What the backstop in the row allows beyond it: acceptance and death time.
    pub allowance: Duration,
}

/// What a claim took, and the database's time at which it looked.
#[derive(Clone, Debug, Default)]
pub struct Claimed {
    /// The rows.
    pub claims: Vec<Claim>,
    /// None when no row was taken.
    pub at: Option<DateTime<Utc>>,
}

/// Claims due tasks: at most `limit` a lane and `free` a slot group.
pub async fn claim(
    client: &impl GenericClient,
    dispatcher: DispatcherId,
    request: &ClaimRequest,
    deadlines: Deadlines,
) -> Result<Claimed, Error> {
    let lanes = &request.lanes;
    let routes: Vec<RouteId> = lanes.iter().map(|lane| lane.route).collect();
    let priorities: Vec<i16> = lanes.iter().map(|lane| lane.priority).collect();
    let limits: Vec<i32> = lanes.iter().map(|lane| lane.limit).collect();
    let low_at: Vec<DateTime<Utc>> = lanes.iter().map(|lane| lane.low.0).collect();
    let low_id: Vec<TaskId> = lanes.iter().map(|lane| lane.low.1).collect();
    let groups: Vec<i32> = lanes
        .iter()
        .map(|lane| i32::try_from(lane.group + 1).unwrap_or(i32::MAX))
        .collect();
    let statement = client.prepare_cached(CLAIM).await?;
    let rows = client
        .query(
            &statement,
            &[
                &dispatcher,
                &request.sweep,
                &routes,
                &priorities,
                &limits,
                &low_at,
                &low_id,
                &groups,
                &request.free,
                &millis(deadlines.allowance),
                &millis(deadlines.run_timeout),
            ],
        )
        .await?;
    Ok(Claimed {
        at: rows.first().map(|row| row.get("claimed_at")),
        claims: rows.iter().map(read_claim).collect(),
    })
}

fn read_claim(row: &Row) -> Claim {
    Claim {
        token: Token {
            id: row.get("id"),
            epoch: row.get("epoch"),
            fence: row.get("fence"),
        },
        route: row.get("route_id"),
        priority: row.get("priority"),
        visible_after: row.get("visible_after"),
        attempt: u32::try_from(row.get::<_, i32>("attempt")).unwrap_or(0),
    }
}

/// Reads the bodies of these tasks, in no order. One that has left history is missing.
pub async fn read_bodies(client: &impl GenericClient, ids: &[TaskId]) -> Result<Vec<Body>, Error> {
    let statement = client.prepare_cached(READ_BODIES).await?;
    let rows = client.query(&statement, &[&ids]).await?;
    Ok(rows.iter().map(read_body).collect())
}

fn read_body(row: &Row) -> Body {
    let member = |workflow: Option<i64>| {
        Some((
            workflow?,
            row.get::<_, Option<i64>>("run_id")?,
            row.get::<_, Option<i32>>("ordinal")?,
        ))
    };
    Body {
        id: row.get("id"),
        origin: row.get("origin"),
        max_attempts: row
            .get::<_, Option<i32>>("max_attempts")
            .and_then(|tries| u32::try_from(tries).ok()),
        run_timeout_ms: row.get("run_timeout_ms"),
        heartbeat_timeout_ms: row.get("heartbeat_timeout_ms"),
        settle_accepted: row.get("settle_accepted"),
        member: member(row.get("workflow_id")),
        content_type: row.get("content_type"),
        labels: row.get("labels"),
        options: row.get("options"),
        payload: Bytes::from(row.get::<_, Vec<u8>>("payload")),
    }
}

/// One task that is this replica's now, and whether somebody asked to cancel it.
#[derive(Clone, Debug)]
pub struct Adopted {
    /// The row.
    pub claim: Claim,
    /// Its worker is to be told to stop.
    pub cancel_requested: bool,
    /// How long ago the delivery was claimed, by whomever; zero where that does not count.
    pub claimed_for: Duration,
}

/// Takes over tasks that a worker brings along, those of this dispatcher itself only where they come from sweeps whose
/// outcome nobody learned (`given_up`); the answer has those whose delivery is still the current one.
pub async fn adopt(
    client: &impl GenericClient,
    dispatcher: DispatcherId,
    sweep: i64,
    given_up: &[i64],
    tokens: &[Token],
    deadlines: Deadlines,
) -> Result<Vec<Adopted>, Error> {
    let mut tokens = tokens.to_vec();
    tokens.sort_unstable();
    tokens.dedup_by_key(|token| token.id);
    let ids: Vec<TaskId> = tokens.iter().map(|token| token.id).collect();
    let epochs: Vec<i32> = tokens.iter().map(|token| token.epoch).collect();
    let fences: Vec<i32> = tokens.iter().map(|token| token.fence).collect();
    let statement = client.prepare_cached(ADOPT).await?;
    let rows = client
        .query(
            &statement,
            &[
                &ids,
                &epochs,
                &fences,
                &dispatcher,
                &millis(deadlines.allowance),
                &millis(deadlines.run_timeout),
                &sweep,
                &given_up,
            ],
        )
        .await?;
    let adopted = rows.iter().map(|row| Adopted {
        claim: read_claim(row),
        cancel_requested: row.get("cancel_requested"),
        claimed_for: row
            .get::<_, Option<i64>>("claimed_for_ms")
            .and_then(|span| u64::try_from(span).ok())
            .map_or(Duration::ZERO, Duration::from_millis),
    });
    Ok(adopted.collect())
}

/// Which deliveries are not over for their worker, though nobody adopted them.
pub async fn find_held(
    client: &impl GenericClient,
    tokens: &[Token],
) -> Result<Vec<TaskId>, Error> {
    let ids: Vec<TaskId> = tokens.iter().map(|token| token.id).collect();
    let epochs: Vec<i32> = tokens.iter().map(|token| token.epoch).collect();
    let fences: Vec<i32> = tokens.iter().map(|token| token.fence).collect();
    let statement = client.prepare_cached(FIND_HELD).await?;
    let rows = client.query(&statement, &[&ids, &epochs, &fences]).await?;
    Ok(rows.iter().map(|row| row.get("id")).collect())
}
