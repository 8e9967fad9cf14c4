//! Workers as operators see them, and what operators order.

use std::time::Duration;

use super::{Client, Error, millis, storable};
use crate::domain::id::DispatcherId;
use crate::domain::scope::Order;

const LIST: &str = include_str!("../../sql/list_workers.sql");
const ORDER: &str = include_str!("../../sql/order_worker.sql");
const LIFT: &str = include_str!("../../sql/lift_order.sql");

/// What an operator ordered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ordered {
    /// `drain` or `cordon`.
    pub action: String,
    /// By whom, where they said so.
    pub by: String,
    /// Why.
    pub reason: String,
    /// When, RFC 3339.
    pub at: String,
}

/// A worker that is connected somewhere.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Present {
    /// Made by the dispatcher, new for every registration.
    pub worker_id: String,
    /// `ready`, `opening`, `unreachable`, `draining` or `cordoned`.
    pub state: String,
    /// Tasks at the same time.
    pub slots: i32,
    /// Tasks in flight.
    pub busy: i32,
    /// Of these, cancelled tasks that it has not stopped within their grace.
    pub stuck: i32,
    /// Where it runs.
    pub node: Option<String>,
    /// Its pool.
    pub task_queue: String,
    /// The door that it came in by.
    pub transport: String,
    /// What it was built from.
    pub build_id: String,
    /// The replica that it is connected to.
    pub dispatcher: DispatcherId,
    /// The name of that replica.
    pub replica: String,
    /// Since when, RFC 3339.
    pub connected_at: String,
}

/// A worker, or an order for one that is away.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Worker {
    /// A name for people.
    pub identity: String,
    /// The worker, unless it is away.
    pub present: Option<Present>,
    /// What was ordered.
    pub order: Option<Ordered>,
}

/// Lists the workers of all live replicas, as of their last beats, and orders for workers that are away; those behind
/// an identity and worker, if told.
pub async fn list(
    client: &Client,
    silence: Duration,
    limit: i64,
    after: Option<&[String; 2]>,
) -> Result<Vec<Worker>, Error> {
    let statement = client.prepare_cached(LIST).await?;
    let rows = client
        .query(
            &statement,
            &[
                &millis(silence),
                &limit,
                &after.map(|[identity, _]| storable(identity)),
                &after.map(|[_, worker]| storable(worker)),
            ],
        )
        .await?;
    let workers = rows.iter().map(|row| {
        let worker_id: Option<String> = row.try_get("worker_id")?;
        let action: Option<String> = row.try_get("action")?;
        let present = |worker_id| {
            Ok::<_, tokio_postgres::Error>(Present {
                worker_id,
                state: row.try_get("state")?,
                slots: row.try_get("slots")?,
                busy: row.try_get("busy")?,
                stuck: row.try_get("stuck")?,
                node: row.try_get("node")?,
                task_queue: row.try_get("task_queue")?,
                transport: row.try_get("transport")?,
                build_id: row.try_get("build_id")?,
                dispatcher: row.try_get("dispatcher")?,
                replica: row.try_get("replica")?,
                connected_at: row.try_get("connected_at")?,
            })
        };
        let ordered = |action| {
            Ok::<_, tokio_postgres::Error>(Ordered {
                action,
                by: row.try_get("ordered_by")?,
                reason: row.try_get("reason")?,
                at: row.try_get("ordered_at")?,
            })
        };
        Ok(Worker {
            identity: row.try_get("identity")?,
            present: worker_id.map(present).transpose()?,
            order: action.map(ordered).transpose()?,
        })
    });
    workers.collect()
}

/// Orders something for workers, in place of what was ordered before.
pub async fn order(
    client: &Client,
    identities: &[String],
    order: Order,
    by: &str,
    reason: &str,
) -> Result<(), Error> {
    let action = order.name();
    let statement = client.prepare_cached(ORDER).await?;
    client
        .execute(
            &statement,
            &[&identities, &action, &storable(by), &storable(reason)],
        )
        .await?;
    Ok(())
}

/// Lifts what was ordered for workers.
pub async fn lift(client: &Client, identities: &[String]) -> Result<(), Error> {
    let statement = client.prepare_cached(LIFT).await?;
    client.execute(&statement, &[&identities]).await?;
    Ok(())
}
