//! Routes and namespaces as operators see and set them.

use std::time::Duration;

use chrono::{DateTime, Utc};
use deadpool_postgres::GenericClient;
use tokio_postgres::Row;

use super::letter_events::{self, Hook};
use super::rates::{self, RateSettings};
use super::{Client, Error, storable};
use crate::domain::id::{NamespaceId, RouteId};
use crate::domain::rate::{Bucket, Rate};

const LIST_QUEUES: &str = include_str!("../../sql/list_queues.sql");
const DECLARE_QUEUE: &str = include_str!("../../sql/declare_queue.sql");
const LIST_NAMESPACES: &str = include_str!("../../sql/list_namespaces.sql");
const COUNT_SHARES: &str = include_str!("../../sql/count_shares.sql");
const SET_NAMESPACE: &str = include_str!("../../sql/set_namespace.sql");

/// Lifts a quota that was set.
pub const NO_QUOTA: i32 = -1;

/// A route and what there is of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Queue {
    /// Its number.
    pub route: RouteId,
    /// Tenant.
    pub namespace: String,
    /// Pool of workers.
    pub task_queue: String,
    /// What the worker must know how to do.
    pub task_type: String,
    /// The only node that may run its tasks.
    pub node: Option<String>,
    /// Whether somebody has declared it.
    pub declared: bool,
    /// `wait` or `strict`: what becomes of its due tasks while nobody serves it.
    pub unserved: String,
    /// Whether it or its namespace is paused.
    pub paused: bool,
    /// Its tasks that may be claimed at the same time over all replicas.
    pub max_in_flight: Option<i32>,
    /// Its tasks that may start in a time.
    pub rate: Option<Rate>,
    /// When the next one may start, by its own rate and that of its namespace, if that is later.
    pub throttled_until: Option<DateTime<Utc>>,
    /// Its tasks with one concurrency key that are let go at a time.
    pub key_limit: i32,
    /// How many of them may start in a time.
    pub key_rate: Option<Rate>,
    /// `skip` or `stop`: what a dead letter at the head of a concurrency key does.
    pub on_dead_key: String,
    /// Due tasks.
    pub ready: Counted,
    /// Tasks that are not due yet.
    pub later: Counted,
    /// Tasks that stand outside of the line.
    pub held: Held,
    /// Tasks that a replica has.
    pub claimed: i64,
    /// Since the first of the due ones was due.
    pub oldest: Option<Duration>,
    /// Why nobody serves it, and since when, where that has been judged.
    pub unserved_since: Option<(String, DateTime<Utc>)>,
    /// When, to a minute, a worker was last on the node that it is pinned to; none if there never was one.
    pub node_seen: Option<DateTime<Utc>>,
}

/// A count that ends at a bound.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counted {
    /// Exact below the bound.
    pub tasks: i64,
    /// What the statistics say where the bound was reached.
    pub estimate: Option<i64>,
}

/// Tasks that stand outside of the line, by what holds them; a task may stand in several of these counts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Held {
    /// Their workflow is paused.
    pub workflow: i64,
    /// Other tasks with their concurrency key are before them.
    pub key: i64,
    /// They are throttled.
    pub throttle: i64,
}

/// Which routes to list.
#[derive(Clone, Copy, Debug, Default)]
pub struct Wanted<'w> {
    /// Those of this namespace.
    pub namespace: Option<&'w str>,
    /// Those of this queue.
    pub task_queue: Option<&'w str>,
    /// These.
    pub routes: Option<&'w [RouteId]>,
    /// Those behind this one: namespace, queue, type and node.
    pub after: Option<&'w [String; 4]>,
}

/// Lists routes by name, at most `limit`; each count of waiting tasks ends at `bound`.
pub async fn list(
    client: &impl GenericClient,
    wanted: Wanted<'_>,
    bound: i64,
    limit: i64,
) -> Result<Vec<Queue>, Error> {
    let statement = client.prepare_cached(LIST_QUEUES).await?;
    let (namespace, task_queue) = (
        wanted.namespace.map(storable),
        wanted.task_queue.map(storable),
    );
    let after = |part: usize| {
        wanted
            .after
            .and_then(|key| key.get(part))
            .map(|text| storable(text))
    };
    let rows = client
        .query(
            &statement,
            &[
                &namespace,
                &task_queue,
                &bound,
                &limit,
                &wanted.routes,
                &after(0),
                &after(1),
                &after(2),
                &after(3),
            ],
        )
        .await?;
    rows.iter().map(queue).collect()
}

fn queue(row: &Row) -> Result<Queue, Error> {
    let oldest: Option<i64> = row.try_get("oldest_ms")?;
    let reason: Option<String> = row.try_get("unserved_reason")?;
    let (own, above) = (rates::bucket(row, ""), rates::bucket(row, "namespace_"));
    let at: DateTime<Utc> = row.try_get("at")?;
    Ok(Queue {
        route: row.try_get("route_id")?,
        namespace: row.try_get("namespace")?,
        task_queue: row.try_get("task_queue")?,
        task_type: row.try_get("task_type")?,
        node: row.try_get("node")?,
        declared: row.try_get("declared")?,
        unserved: row.try_get("unserved")?,
        paused: row.try_get("paused")?,
        max_in_flight: row.try_get("max_in_flight")?,
        rate: own.map(|bucket| bucket.rate),
        throttled_until: throttled_until(own.into_iter().chain(above), at),
        key_limit: row.try_get("key_limit")?,
        key_rate: rates::of_keys(row)?,
        on_dead_key: row.try_get("on_dead_key")?,
        ready: Counted {
            tasks: row.try_get("ready")?,
            estimate: row.try_get("ready_estimate")?,
        },
        later: Counted {
            tasks: row.try_get("later")?,
            estimate: row.try_get("later_estimate")?,
        },
        held: Held {
            workflow: row.try_get("held_workflow")?,
            key: row.try_get("held_key")?,
            throttle: row.try_get("held_throttle")?,
        },
        claimed: row.try_get("claimed")?,
        oldest: oldest.map(|ms| Duration::from_millis(u64::try_from(ms).unwrap_or(0))),
        unserved_since: reason
            .map(|reason| row.try_get("unserved_since").map(|since| (reason, since)))
            .transpose()?,
        node_seen: row.try_get("node_seen")?,
    })
}

/// When all of these have a token, if that is later.
fn throttled_until(
    buckets: impl IntoIterator<Item = Bucket>,
    at: DateTime<Utc>,
) -> Option<DateTime<Utc>> {
    let free = buckets.into_iter().map(|bucket| bucket.free_at(at));
    free.max().filter(|free| *free > at)
}

/// A route to declare. The database judges the values.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Declaration {
    /// Tenant; none is `default`.
    pub namespace: Option<String>,
    /// Pool of workers.
    pub task_queue: String,
    /// What the worker must know how to do.
    pub task_type: String,
    /// The only node that may run its tasks.
    pub node: Option<String>,
    /// `wait` or `strict`; none keeps what is there, at first `wait`.
    pub unserved: Option<String>,
    /// Its tasks that may be claimed at the same time, -1 for any number; none keeps what is there.
    pub max_in_flight: Option<i32>,
    /// Its tasks that may start in a time.
    pub rate: RateSettings,
    /// Its tasks with one concurrency key that are let go at a time; none keeps what is there, at first 1.
    pub key_limit: Option<i32>,
    /// How many of them may start in a time.
    pub key_rate: RateSettings,
    /// `skip` or `stop`; none keeps what is there, at first `skip`.
    pub on_dead_key: Option<String>,
}

/// Declares a route, which is made if it is new: with all its settings or, where one is refused, not at all.
pub async fn declare(client: &mut Client, route: &Declaration) -> Result<RouteId, Error> {
    let transaction = client.transaction().await?;
    let namespace = route.namespace.as_deref().unwrap_or("default");
    let text = |given: &Option<String>| given.as_deref().map(storable);
    let statement = transaction.prepare_cached(DECLARE_QUEUE).await?;
    let row = transaction
        .query_one(
            &statement,
            &[
                &storable(&route.task_queue),
                &storable(&route.task_type),
                &storable(namespace),
                &text(&route.node),
                &text(&route.unserved),
                &route.max_in_flight,
                &route.key_limit,
                &text(&route.on_dead_key),
            ],
        )
        .await?;
    rates::set_of_queue(&transaction, route).await?;
    transaction.commit().await?;
    Ok(row.try_get("route_id")?)
}

/// A namespace and its settings.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Namespace {
    /// Its number.
    pub id: NamespaceId,
    /// Its name.
    pub name: String,
    /// Where its tasks run, as JSON.
    pub placement: String,
    /// Whether it takes tasks for declared queues only.
    pub require_declared_queues: bool,
    /// Whether it is paused.
    pub paused: bool,
    /// Its share of the fleet, relative to others.
    pub weight: i32,
    /// Tasks that may be claimed at the same time over all replicas.
    pub max_in_flight: Option<i32>,
    /// Tasks that may start in a time.
    pub rate: Option<Rate>,
    /// When the next one may start, if that is later.
    pub throttled_until: Option<DateTime<Utc>>,
    /// Where its dead letters are posted to.
    pub webhook: Option<String>,
    /// Whether its dead letters are notified of.
    pub notify: bool,
}

/// Lists namespaces by name, or one of them.
pub async fn list_namespaces(
    client: &Client,
    name: Option<&str>,
    limit: i64,
) -> Result<Vec<Namespace>, Error> {
    list_namespaces_after(client, name, limit, None).await
}

/// Lists namespaces by name, those behind one of them.
pub async fn list_namespaces_after(
    client: &Client,
    name: Option<&str>,
    limit: i64,
    after: Option<&str>,
) -> Result<Vec<Namespace>, Error> {
    let statement = client.prepare_cached(LIST_NAMESPACES).await?;
    let rows = client
        .query(
            &statement,
            &[&name.map(storable), &limit, &after.map(storable)],
        )
        .await?;
    let namespaces = rows.iter().map(|row| {
        let bucket = rates::bucket(row, "");
        Ok(Namespace {
            id: row.try_get("namespace_id")?,
            name: row.try_get("name")?,
            placement: row.try_get("placement")?,
            require_declared_queues: row.try_get("require_declared_queues")?,
            paused: row.try_get("paused")?,
            weight: row.try_get("weight")?,
            max_in_flight: row.try_get("max_in_flight")?,
            rate: bucket.map(|bucket| bucket.rate),
            throttled_until: throttled_until(bucket, row.try_get("at")?),
            webhook: row.try_get("dead_letter_webhook")?,
            notify: row.try_get("dead_letter_notify")?,
        })
    });
    namespaces.collect()
}

/// What replicas have claimed of each namespace that has anything claimed, the most at first.
pub async fn count_shares(client: &Client, limit: i64) -> Result<Vec<(String, i64)>, Error> {
    let statement = client.prepare_cached(COUNT_SHARES).await?;
    let rows = client.query(&statement, &[&limit]).await?;
    rows.iter()
        .map(|row| Ok((row.try_get("namespace")?, row.try_get("claimed")?)))
        .collect()
}

/// What to set of a namespace; none keeps what is there.
#[derive(Clone, Debug, Default)]
pub struct NamespaceSettings {
    /// JSON that the database judges.
    pub placement: Option<Vec<u8>>,
    /// Whether it takes tasks for declared queues only.
    pub require_declared_queues: Option<bool>,
    /// Whom it tells of its dead letters.
    pub hook: Hook,
    /// Its share of the slots, relative to others with due work.
    pub weight: Option<i32>,
    /// Its tasks that may be claimed at the same time, -1 for any number.
    pub max_in_flight: Option<i32>,
    /// Its tasks that may start in a time.
    pub rate: RateSettings,
}

impl NamespaceSettings {
    /// Whether nothing is given.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.placement.is_none()
            && self.require_declared_queues.is_none()
            && self.weight.is_none()
            && self.max_in_flight.is_none()
            && self.rate.is_empty()
            && self.hook.is_empty()
    }
}

/// Sets what is given of a namespace, which is made if it is new: all of it or, where something is refused, nothing.
pub async fn set_namespace(
    client: &mut Client,
    name: &str,
    settings: &NamespaceSettings,
) -> Result<(), Error> {
    let transaction = client.transaction().await?;
    let statement = transaction.prepare_cached(SET_NAMESPACE).await?;
    transaction
        .query(
            &statement,
            &[
                &storable(name),
                &settings.placement,
                &settings.require_declared_queues,
                &settings.weight,
                &settings.max_in_flight,
            ],
        )
        .await?;
    if !settings.rate.is_empty() {
        rates::set_of_namespace(&transaction, name, &settings.rate).await?;
    }
    if !settings.hook.is_empty() {
        letter_events::set_hook(&transaction, name, &settings.hook).await?;
    }
    transaction.commit().await?;
    Ok(())
}
