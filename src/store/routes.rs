//! Which lanes have work, and what their routes are.

use std::collections::HashMap;
use std::time::Duration;

use chrono::{DateTime, Utc};
use deadpool_postgres::GenericClient;

use super::Error;
use crate::domain::id::{RouteId, TaskId};
use crate::domain::placement::Placement;
use crate::domain::route::{Route, Unserved};

const FIND_DUE: &str = include_str!("../../sql/find_due.sql");
const READ: &str = include_str!("../../sql/read_routes.sql");
const READ_PLACEMENTS: &str = include_str!("../../sql/read_placements.sql");

/// Lanes that one statement looks for: some ten milliseconds.
const DUE_PAGE: i32 = 2000;

/// A lane with ready rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DueLane {
    /// Its route.
    pub route: RouteId,
    /// Its priority.
    pub priority: i16,
    /// Its first row.
    pub head: TaskId,
    /// When that is due.
    pub visible_after: DateTime<Utc>,
    /// Until its first row is due; zero for now.
    pub due_in: Duration,
    /// A pause binds its route.
    pub paused: bool,
}

impl DueLane {
    /// Whether a claim could take its first row now.
    #[must_use]
    pub fn is_open(&self) -> bool {
        self.due_in.is_zero() && !self.paused
    }
}

/// Lanes with ready rows, in order, and the database's clock; none where there is no lane.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DuePage {
    /// The lanes.
    pub lanes: Vec<DueLane>,
    /// When they were looked at.
    pub at: Option<DateTime<Utc>>,
    /// There may be more behind the last one.
    pub more: bool,
}

/// Every lane that has ready rows, a page at a time, so that no statement is long however many there are.
pub async fn find_due(client: &impl GenericClient) -> Result<Vec<DueLane>, Error> {
    let mut all = Vec::new();
    loop {
        let after = all.last().map(|lane: &DueLane| (lane.route, lane.priority));
        let page = find_due_from(client, after, DUE_PAGE).await?;
        all.extend(page.lanes);
        if !page.more {
            return Ok(all);
        }
    }
}

/// The lanes that have ready rows behind this one, or from the first on: so many at most.
pub async fn find_due_from(
    client: &impl GenericClient,
    after: Option<(RouteId, i16)>,
    limit: i32,
) -> Result<DuePage, Error> {
    let (route, priority) = after.unwrap_or((0, 0));
    let statement = client.prepare_cached(FIND_DUE).await?;
    let rows = client
        .query(&statement, &[&route, &priority, &limit])
        .await?;
    let lanes = rows.iter().map(|row| DueLane {
        route: row.get("route_id"),
        priority: row.get("priority"),
        head: row.get("head"),
        visible_after: row.get("visible_after"),
        due_in: Duration::from_millis(u64::try_from(row.get::<_, i64>("due_in_ms")).unwrap_or(0)),
        paused: row.get("paused"),
    });
    Ok(DuePage {
        at: rows.first().map(|row| row.get("at")),
        more: i32::try_from(rows.len()).is_ok_and(|found| found >= limit),
        lanes: lanes.collect(),
    })
}

/// Routes by number; unknown ones are missing, and so are those whose placement can't be read: nothing of theirs may
/// run anywhere, unless the caller knows an earlier one.
pub async fn read(client: &impl GenericClient, ids: &[RouteId]) -> Result<Vec<Route>, Error> {
    let statement = client.prepare_cached(READ).await?;
    let rows = client.query(&statement, &[&ids]).await?;
    let routes = rows.iter().filter_map(|row| {
        let placement = match serde_json::from_str(row.get("placement")) {
            Ok(placement) => placement,
            Err(error) => {
                let namespace: &str = row.get("namespace");
                tracing::warn!(namespace, %error, "a placement can't be read: the last known one stays");
                return None;
            }
        };
        let wait = |column| {
            row.get::<_, Option<i32>>(column)
                .map(|ms| Duration::from_millis(u64::try_from(ms).unwrap_or(0)))
        };
        Some(Route {
            id: row.get("route_id"),
            namespace_id: row.get("namespace_id"),
            namespace: row.get("namespace"),
            task_queue: row.get("task_queue"),
            task_type: row.get("task_type"),
            node: row.get("node"),
            placement,
            unserved: if row.get("strict") {
                Unserved::Strict
            } else {
                Unserved::Wait
            },
            undeclared: row.get("undeclared"),
            weight: u32::try_from(row.get::<_, i32>("weight")).unwrap_or(1),
            namespace_quota: row.get("namespace_quota"),
            route_quota: row.get("route_quota"),
            namespace_rated: row.get("namespace_rated"),
            route_rated: row.get("route_rated"),
            max_attempts: row
                .get::<_, Option<i32>>("max_attempts")
                .and_then(|tries| u32::try_from(tries).ok()),
            backoff_base: wait("backoff_base_ms"),
            backoff_multiplier: row.get("backoff_multiplier"),
            backoff_max: wait("backoff_max_ms"),
        })
    });
    Ok(routes.collect())
}

/// Where namespaces want their tasks to run, by name. Unknown ones are missing; none for one whose placement can't be
/// read.
pub async fn read_placements(
    client: &impl GenericClient,
    names: &[String],
) -> Result<HashMap<String, Option<Placement>>, Error> {
    let statement = client.prepare_cached(READ_PLACEMENTS).await?;
    let rows = client.query(&statement, &[&names]).await?;
    let placements = rows.iter().map(|row| {
        let name: String = row.get("name");
        let placement = match serde_json::from_str(row.get("placement")) {
            Ok(placement) => Some(placement),
            Err(error) => {
                tracing::warn!(namespace = name, %error, "a placement can't be read: the last known one stays");
                None
            }
        };
        (name, placement)
    });
    Ok(placements.collect())
}
