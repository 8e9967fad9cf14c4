//! One read of the database for scrapes: what lists for operators show, bounded as they are.

use std::collections::{BTreeSet, HashMap};

use crate::api::QueueView;
use crate::api::operators::{COUNTED, LONGEST_LIST};
use crate::domain::checkup::Holder;
use crate::domain::id::RouteId;
use crate::domain::quota::Limited;
use crate::store::queues::{self, Wanted};
use crate::store::quotas::{self, Ask};
use crate::store::{Client, Error, checkup, dead_letters, routes};
use crate::telemetry::{DatabaseNow, LettersNow, NamespaceNow, QueueNow, SHOWN};

/// Snapshots that are looked at: the oldest ones come first.
const HOLDERS: i64 = 10;
/// Lanes with due tasks that are looked for beyond the routes that are listed anyway.
const LANES: i32 = 2_000;
/// Routes whose dead letters are counted.
const ROUTES: i32 = 1_000;

/// Reads all.
pub(super) async fn read(client: &Client) -> Result<DatabaseNow, Error> {
    let holders = checkup::find_holders(client, 0, HOLDERS).await?;
    let upkeep = checkup::read_upkeep(client).await?;
    Ok(DatabaseNow {
        queues: read_queues(client).await?,
        namespaces: read_namespaces(client).await?,
        letters: read_letters(client).await?,
        replicas: u64::try_from(upkeep.alive).unwrap_or(0),
        silent: upkeep.silent.len() as u64,
        partitions_ahead: upkeep.days_ahead * 86_400.0,
        snapshot: oldest(&holders),
    })
}

/// The first routes by name and, where there are more, those that have something to do.
async fn read_queues(client: &Client) -> Result<Vec<QueueNow>, Error> {
    let mut found = queues::list(client, Wanted::default(), COUNTED + 1, LONGEST_LIST).await?;
    if i64::try_from(found.len()).is_ok_and(|count| count >= LONGEST_LIST) {
        let listed: BTreeSet<RouteId> = found.iter().map(|queue| queue.route).collect();
        let lanes = routes::find_due_from(client, None, LANES).await?.lanes;
        let due: BTreeSet<RouteId> = lanes.iter().map(|lane| lane.route).collect();
        let more: Vec<RouteId> = due.difference(&listed).copied().collect();
        let wanted = Wanted {
            routes: Some(&more),
            ..Wanted::default()
        };
        found.extend(queues::list(client, wanted, COUNTED + 1, LONGEST_LIST).await?);
    }
    Ok(found
        .into_iter()
        .map(|queue| as_shown(QueueView::new(queue, COUNTED)))
        .collect())
}

fn as_shown(queue: QueueView) -> QueueNow {
    let route = queue.route;
    QueueNow {
        name: [route.namespace, route.task_queue, route.task_type],
        ready: queue.ready.tasks,
        later: queue.later.tasks,
        held: [
            queue.held.workflow_paused,
            queue.held.key_busy,
            queue.held.throttled,
        ],
        claimed: queue.claimed,
        oldest: std::time::Duration::from_millis(queue.oldest_ms.unwrap_or(0)),
        estimated: queue.ready.estimated || queue.later.estimated,
        paused: queue.paused,
        unserved: queue.unserved_reason,
        quota: queue.max_in_flight.map(i64::from),
    }
}

async fn read_namespaces(client: &Client) -> Result<Vec<NamespaceNow>, Error> {
    let all = queues::list_namespaces(client, None, LONGEST_LIST).await?;
    let bound = all
        .into_iter()
        .filter_map(|one| Some((Limited::Namespace(one.id), (one.name, one.max_in_flight?))));
    let mut bound: HashMap<Limited, (String, i32)> = bound.take(SHOWN).collect();
    if bound.is_empty() {
        return Ok(Vec::new());
    }
    let asks: Vec<Ask> = bound.keys().map(|of| Ask::anew(*of)).collect();
    let usages = quotas::count(client, &asks).await?;
    let used = usages.into_iter().filter_map(|usage| {
        let (name, quota) = bound.remove(&usage.of)?;
        Some(NamespaceNow {
            name,
            used: usage.claimed,
            quota: quota.into(),
        })
    });
    Ok(used.collect())
}

async fn read_letters(client: &Client) -> Result<Vec<LettersNow>, Error> {
    let counted = dead_letters::count_by_route(client, COUNTED, ROUTES).await?;
    let letters = counted.into_iter().map(|one| LettersNow {
        name: [one.namespace, one.task_queue],
        letters: one.letters,
        more: one.looked_at >= COUNTED,
    });
    Ok(letters.collect())
}

/// The longest of these, and the most transactions since one of them.
fn oldest(holders: &[Holder]) -> (f64, f64) {
    let seconds = holders.iter().filter_map(|holder| holder.seconds).max();
    let transactions = holders.iter().filter_map(|holder| holder.transactions);
    (
        seconds.unwrap_or(0).max(0) as f64,
        f64::from(transactions.max().unwrap_or(0)),
    )
}
