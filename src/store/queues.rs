//! Routes and namespaces as operators see and set them.

use tokio_postgres::Row;

use super::letter_events::{self, Hook};
use super::{Client, Error, storable};
use crate::domain::id::RouteId;

const LIST_QUEUES: &str = include_str!("../../sql/list_queues.sql");
const DECLARE_QUEUE: &str = include_str!("../../sql/declare_queue.sql");
const LIST_NAMESPACES: &str = include_str!("../../sql/list_namespaces.sql");
const SET_NAMESPACE: &str = include_str!("../../sql/set_namespace.sql");

/// A route and what there is of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Queue {
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
    /// Due tasks, counted up to the bound.
    pub ready: i64,
    /// Tasks that a replica has.
    pub claimed: i64,
}

/// Lists routes by name, at most `limit`; each count of due tasks ends at `bound`.
pub async fn list(
    client: &Client,
    namespace: Option<&str>,
    task_queue: Option<&str>,
    bound: i64,
    limit: i64,
) -> Result<Vec<Queue>, Error> {
    let statement = client.prepare_cached(LIST_QUEUES).await?;
    let (namespace, task_queue) = (namespace.map(storable), task_queue.map(storable));
    let rows = client
        .query(&statement, &[&namespace, &task_queue, &bound, &limit])
        .await?;
    rows.iter().map(queue).collect()
}

fn queue(row: &Row) -> Result<Queue, Error> {
    Ok(Queue {
        namespace: row.try_get("namespace")?,
        task_queue: row.try_get("task_queue")?,
        task_type: row.try_get("task_type")?,
        node: row.try_get("node")?,
        declared: row.try_get("declared")?,
        unserved: row.try_get("unserved")?,
        paused: row.try_get("paused")?,
        ready: row.try_get("ready")?,
        claimed: row.try_get("claimed")?,
    })
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
}

/// Declares a route, which is made if it is new.
pub async fn declare(client: &Client, route: &Declaration) -> Result<RouteId, Error> {
    let namespace = route.namespace.as_deref().unwrap_or("default");
    let (node, unserved) = (
        route.node.as_deref().map(storable),
        route.unserved.as_deref().map(storable),
    );
    let statement = client.prepare_cached(DECLARE_QUEUE).await?;
    let row = client
        .query_one(
            &statement,
            &[
                &storable(&route.task_queue),
                &storable(&route.task_type),
                &storable(namespace),
                &node,
                &unserved,
            ],
        )
        .await?;
    Ok(row.try_get("route_id")?)
}

/// A namespace and its settings.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Namespace {
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
    let statement = client.prepare_cached(LIST_NAMESPACES).await?;
    let rows = client
        .query(&statement, &[&name.map(storable), &limit])
        .await?;
    let namespaces = rows.iter().map(|row| {
        Ok(Namespace {
            name: row.try_get("name")?,
            placement: row.try_get("placement")?,
            require_declared_queues: row.try_get("require_declared_queues")?,
            paused: row.try_get("paused")?,
            weight: row.try_get("weight")?,
            max_in_flight: row.try_get("max_in_flight")?,
            webhook: row.try_get("dead_letter_webhook")?,
            notify: row.try_get("dead_letter_notify")?,
        })
    });
    namespaces.collect()
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
            ],
        )
        .await?;
    if !settings.hook.is_empty() {
        letter_events::set_hook(&transaction, name, &settings.hook).await?;
    }
    transaction.commit().await?;
    Ok(())
}
