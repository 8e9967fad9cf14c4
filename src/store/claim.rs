//! Claiming due tasks, reading their bodies, and taking over tasks that a worker brings along.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use bytes::Bytes;
use chrono::{DateTime, Utc};
use tokio_postgres::Row;

use deadpool_postgres::GenericClient;

use super::quotas::{self, Ask};
use super::{Client, Error, millis};
use crate::domain::ageing::Ageing;
use crate::domain::id::{DispatcherId, NamespaceId, RouteId, TaskId, Token};
use crate::domain::quota::{self, Limited, Usage, Wanting};
use crate::domain::task::{Body, Claim};

const CLAIM: &str = include_str!("../../sql/claim_tasks.sql");
const READ_BODIES: &str = include_str!("../../sql/read_bodies.sql");
const FIND_HELD: &str = include_str!("../../sql/find_held.sql");
const ADOPT: &str = include_str!("../../sql/adopt_tasks.sql");

/// One lane of a claim: a route at one priority.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct LaneRequest {
    /// Its route.
    pub route: RouteId,
    /// Its tenant.
    pub namespace: NamespaceId,
    /// Its priority, 0 (first) to 3.
    pub priority: i16,
    /// Rows to take at most.
    pub limit: i32,
    /// Rows up to this (due time, id) are passed over: the low-water mark.
    pub low: (DateTime<Utc>, TaskId),
    /// Index into [`ClaimRequest::shares`], from 0.
    pub share: usize,
    /// A quota or rate is thought to stand above it: its limit is cut to what a count leaves.
    pub limited: bool,
    /// The quota of its namespace that the limit heeds. Where another one stands in the database it gives nothing.
    pub namespace_quota: Option<i32>,
    /// The same of its route.
    pub route_quota: Option<i32>,
    /// The rate of its namespace is heeded. Where one stands in the database that is not, it gives nothing.
    pub namespace_rated: bool,
    /// The same of its route.
    pub route_rated: bool,
}

impl LaneRequest {
    fn wanting(&self) -> Wanting {
        Wanting {
            namespace: self.namespace,
            route: self.route,
            limit: self.limit,
            limited: self.limited,
        }
    }
}

/// What one sweep asks for.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ClaimRequest {
    /// Its number, by which its claims can be found again.
    pub sweep: i64,
    /// Where to look, the most urgent ones first.
    pub lanes: Vec<LaneRequest>,
    /// Free slots that are for one tenant at one slot group, which its lanes share.
    pub shares: Vec<i32>,
    /// Waiting for so long counts as much as one priority.
    pub ageing: Ageing,
    /// The quotas and rates above the lanes.
    pub quotas: Vec<Ask>,
    /// One of them that is waited for, no longer than so.
    pub awaited: Option<(Limited, Duration)>,
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
    /// The quotas and rates that were held, as they were before the claim.
    pub usages: Vec<Usage>,
    /// When they were counted, by the clock here.
    pub counted: Option<Instant>,
    /// The quotas and rates that somebody else held.
    pub lost: Vec<Limited>,
}

/// Claims due tasks under the quotas and rates above them: takes those that nobody else has, counts what is claimed,
/// claims what they leave, and takes a token for each claim, in one transaction, so that the count is true until its
/// commit. Without a quota or rate it is one statement. Answers the request as it was made in the end.
pub async fn claim_within(
    client: &mut Client,
    dispatcher: DispatcherId,
    mut request: ClaimRequest,
    deadlines: Deadlines,
) -> Result<(ClaimRequest, Claimed), Error> {
    if request.quotas.is_empty() {
        let claimed = claim(client, dispatcher, &request, deadlines).await?;
        return Ok((request, claimed));
    }
    let mut transaction = client.transaction().await?;
    if let Some((awaited, longest)) = request.awaited {
        match quotas::wait(&transaction, awaited, longest).await {
            // What is not under it is claimed all the same.
            Err(Error::Conflict(_)) => {
                transaction.rollback().await?;
                transaction = client.transaction().await?;
            }
            waited => waited?,
        }
    }
    let held = quotas::lock(&transaction, &request.quotas).await?;
    let (asks, lost): (Vec<Ask>, Vec<Ask>) = request
        .quotas
        .iter()
        .partition(|ask| held.contains(&ask.of));
    let lost: Vec<Limited> = lost.iter().map(|ask| ask.of).collect();
    let usages = if asks.is_empty() {
        Vec::new()
    } else {
        quotas::count(&transaction, &asks).await?
    };
    let counted = Some(Instant::now());
    fit(&mut request, &usages, &lost);
    let claimed = if request.lanes.is_empty() {
        Claimed::default()
    } else {
        claim(&transaction, dispatcher, &request, deadlines).await?
    };
    quotas::take_tokens(&transaction, &starts(&request, &claimed.claims, &usages)).await?;
    transaction.commit().await?;
    Ok((
        request,
        Claimed {
            usages,
            counted,
            lost,
            ..claimed
        },
    ))
}

/// Cuts the limits of lanes to what their quotas and rates leave, and drops lanes that may give nothing.
fn fit(request: &mut ClaimRequest, usages: &[Usage], lost: &[Limited]) {
    let wanting: Vec<Wanting> = request.lanes.iter().map(LaneRequest::wanting).collect();
    for (lane, fitted) in request
        .lanes
        .iter_mut()
        .zip(quota::fit(&wanting, usages, lost))
    {
        lane.limit = fitted.limit;
        (lane.namespace_quota, lane.route_quota) = (fitted.namespace_quota, fitted.route_quota);
        (lane.namespace_rated, lane.route_rated) = (fitted.namespace_rated, fitted.route_rated);
    }
    request.lanes.retain(|lane| lane.limit > 0);
}

/// How many of these claims each rate has to pay for; rates that pay nothing are left out.
fn starts<'u>(
    request: &ClaimRequest,
    claims: &[Claim],
    usages: &'u [Usage],
) -> Vec<(&'u Usage, i32)> {
    let namespaces: HashMap<RouteId, NamespaceId> = request
        .lanes
        .iter()
        .map(|lane| (lane.route, lane.namespace))
        .collect();
    let rated = usages.iter().filter(|usage| usage.bucket.is_some());
    let paying = rated.filter_map(|usage| {
        let pays = |claim: &&Claim| match usage.of {
            Limited::Namespace(id) => namespaces.get(&claim.route) == Some(&id),
            Limited::Route(id) => claim.route == id,
        };
        let starts = claims.iter().filter(pays).count();
        (starts > 0).then(|| (usage, i32::try_from(starts).unwrap_or(i32::MAX)))
    });
    paying.collect()
}

/// Claims due tasks: at most `limit` a lane and so many a share.
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
    let shares: Vec<i32> = lanes
        .iter()
        .map(|lane| i32::try_from(lane.share + 1).unwrap_or(i32::MAX))
        .collect();
    let namespace_quotas: Vec<Option<i32>> =
        lanes.iter().map(|lane| lane.namespace_quota).collect();
    let route_quotas: Vec<Option<i32>> = lanes.iter().map(|lane| lane.route_quota).collect();
    let namespace_rated: Vec<bool> = lanes.iter().map(|lane| lane.namespace_rated).collect();
    let route_rated: Vec<bool> = lanes.iter().map(|lane| lane.route_rated).collect();
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
                &shares,
                &request.shares,
                &millis(deadlines.allowance),
                &millis(deadlines.run_timeout),
                &millis(request.ageing.step()),
                &namespace_quotas,
                &route_quotas,
                &namespace_rated,
                &route_rated,
            ],
        )
        .await?;
    Ok(Claimed {
        at: rows.first().map(|row| row.get("claimed_at")),
        claims: rows.iter().map(read_claim).collect(),
        ..Claimed::default()
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
