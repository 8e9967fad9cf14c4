//! What replicas tell each other of their workers, and what operators order.

use std::time::Duration;

use deadpool_postgres::GenericClient;

use super::{Error, millis};
use crate::domain::id::DispatcherId;
use crate::domain::placement::Placement;
use crate::domain::scope::{
    FrameLimits, Group, Namespaces, Order, RemoteGroup, Scope, Transport, WorkerState,
};

const WRITE_FLEET: &str = include_str!("../../sql/write_fleet.sql");
const READ_FLEET: &str = include_str!("../../sql/read_fleet.sql");
const WRITE_WORKERS: &str = include_str!("../../sql/write_workers.sql");
const ADMIT_WORKER: &str = include_str!("../../sql/admit_worker.sql");
const READ_ORDERS: &str = include_str!("../../sql/read_orders.sql");

/// Writes what differs in a replica's slot groups.
pub async fn write_groups(
    client: &impl GenericClient,
    dispatcher: DispatcherId,
    groups: &[Group],
) -> Result<(), Error> {
    let keys: Vec<String> = groups.iter().map(|group| key(&group.scope)).collect();
    let namespaces: Vec<Option<String>> = groups
        .iter()
        .map(|group| names(&group.scope.namespaces))
        .collect();
    let queues: Vec<&str> = groups
        .iter()
        .map(|group| group.scope.task_queue.as_str())
        .collect();
    let types: Vec<String> = groups
        .iter()
        .map(|group| json(&group.scope.task_types))
        .collect();
    let nodes: Vec<&str> = groups
        .iter()
        .map(|group| group.scope.node.as_str())
        .collect();
    let count = |part: fn(&Group) -> u32| -> Vec<i32> {
        groups.iter().map(|group| int(part(group))).collect()
    };
    let frames = |door| -> Vec<i64> {
        let limits = groups.iter().map(|group| group.frames.behind(door));
        limits
            .map(|bytes| i64::try_from(bytes).unwrap_or(i64::MAX))
            .collect()
    };
    let statement = client.prepare_cached(WRITE_FLEET).await?;
    client
        .execute(
            &statement,
            &[
                &dispatcher,
                &keys,
                &namespaces,
                &queues,
                &types,
                &nodes,
                &count(|group| group.workers),
                &count(|group| group.unreachable),
                &count(|group| group.slots),
                &count(|group| group.free),
                &frames(Transport::Grpc),
                &frames(Transport::WebSocket),
            ],
        )
        .await?;
    Ok(())
}

/// The slot groups of all live replicas but `own`, as of their last beats. With a `silence`, a replica that nobody has
/// declared dead is left out too when its last beat is older: where no replica lives, nobody declares any dead.
pub async fn read_groups(
    client: &impl GenericClient,
    own: Option<DispatcherId>,
    silence: Option<Duration>,
) -> Result<Vec<RemoteGroup>, Error> {
    let statement = client.prepare_cached(READ_FLEET).await?;
    let rows = client
        .query(&statement, &[&own, &silence.map(millis)])
        .await?;
    let groups = rows.iter().map(|row| {
        let count = |column| u32::try_from(row.get::<_, i32>(column)).unwrap_or(0);
        let bytes = |column| usize::try_from(row.get::<_, i64>(column)).unwrap_or(0);
        let namespaces: Option<Vec<String>> = row.get("namespaces");
        RemoteGroup {
            dispatcher: row.get("dispatcher"),
            draining: row.get("draining"),
            group: Group {
                scope: Scope {
                    namespaces: namespaces.map_or(Namespaces::All, |names| {
                        Namespaces::Only(names.into_iter().collect())
                    }),
                    task_queue: row.get("task_queue"),
                    task_types: row
                        .get::<_, Vec<String>>("task_types")
                        .into_iter()
                        .collect(),
                    node: row.get("node"),
                },
                workers: count("workers"),
                unreachable: count("unreachable"),
                slots: count("slots"),
                free: count("free"),
                frames: FrameLimits {
                    grpc: bytes("grpc_frame_bytes"),
                    websocket: bytes("websocket_frame_bytes"),
                },
            },
        }
    });
    Ok(groups.collect())
}

/// Writes what differs in a replica's workers.
pub async fn write_workers(
    client: &impl GenericClient,
    dispatcher: DispatcherId,
    workers: &[WorkerState],
) -> Result<(), Error> {
    let text = |part: fn(&WorkerState) -> &str| -> Vec<&str> { workers.iter().map(part).collect() };
    let slots: Vec<i32> = workers.iter().map(|worker| int(worker.slots)).collect();
    let busy: Vec<i32> = workers.iter().map(|worker| int(worker.busy)).collect();
    let stuck: Vec<i32> = workers.iter().map(|worker| int(worker.stuck)).collect();
    let statement = client.prepare_cached(WRITE_WORKERS).await?;
    client
        .execute(
            &statement,
            &[
                &dispatcher,
                &text(|worker| &worker.worker_id),
                &text(|worker| &worker.identity),
                &text(|worker| &worker.node),
                &text(|worker| &worker.task_queue),
                &text(|worker| &worker.build_id),
                &text(|worker| worker.transport),
                &text(|worker| worker.state),
                &slots,
                &busy,
                &stuck,
            ],
        )
        .await?;
    Ok(())
}

/// What a registering worker meets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Met {
    /// Where the namespaces that it names want their tasks to run.
    pub placements: Vec<(String, Placement)>,
    /// What an operator ordered for it.
    pub order: Option<Order>,
}

/// Looks at the namespaces that a worker names, which are made where they are new, and for orders.
pub async fn admit_worker(
    client: &impl GenericClient,
    namespaces: &[String],
    identity: &str,
) -> Result<Met, Error> {
    let statement = client.prepare_cached(ADMIT_WORKER).await?;
    let rows = client.query(&statement, &[&namespaces, &identity]).await?;
    let action: Option<&str> = rows.first().and_then(|row| row.get("action"));
    let placements = rows.iter().filter_map(|row| {
        let name: String = row.get::<_, Option<String>>("name")?;
        let placement = serde_json::from_str(row.get::<_, Option<&str>>("placement")?).ok()?;
        Some((name, placement))
    });
    Ok(Met {
        placements: placements.collect(),
        order: action.map(to_order),
    })
}

fn to_order(action: &str) -> Order {
    if action == "drain" {
        Order::Drain
    } else {
        Order::Cordon
    }
}

/// What operators ordered, by worker identity.
pub async fn read_orders(client: &impl GenericClient) -> Result<Vec<(String, Order)>, Error> {
    let statement = client.prepare_cached(READ_ORDERS).await?;
    let rows = client.query(&statement, &[]).await?;
    let orders = rows
        .iter()
        .map(|row| (row.get("identity"), to_order(row.get("action"))));
    Ok(orders.collect())
}

/// Names a scope within its replica. Only equality matters, and only within one process.
fn key(scope: &Scope) -> String {
    use std::hash::{DefaultHasher, Hash, Hasher};
    let mut hasher = DefaultHasher::new();
    scope.hash(&mut hasher);
    format!("{:016x}", hasher.finish())
}

fn names(namespaces: &Namespaces) -> Option<String> {
    match namespaces {
        Namespaces::All => None,
        Namespaces::Only(names) => Some(json(names)),
    }
}

fn json(names: &std::collections::BTreeSet<String>) -> String {
    serde_json::json!(names).to_string()
}

fn int(count: u32) -> i32 {
    i32::try_from(count).unwrap_or(i32::MAX)
}
