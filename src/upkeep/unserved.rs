//! Judges that nobody serves a route, keeps the list of such routes, and fails tasks where that is asked for: by a
//! `strict` route or by a deadline for the start.
//!
//! A route is judged after it has looked unserved for the death time of a replica and the reconnect grace of a worker,
//! during which this replica's own heartbeats never failed: whoever served it may only be changing over. Every replica
//! watches; the one that wins the tick looks under the chores' lock, and writes.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use deadpool_postgres::GenericClient;
use parking_lot::Mutex;

use super::chores::{ANY_POLICY, BATCH, policies, to_return};
use crate::dispatch::Hub;
use crate::domain::id::{NOBODY, RouteId, TaskId};
use crate::domain::outcome::{Failure, Outcome};
use crate::domain::policy::{Defaults, Policy};
use crate::domain::quota::{Limited, Usage};
use crate::domain::route::{Route, Unserved};
use crate::domain::scope::{self, Group};
use crate::domain::settlement::decide;
use crate::domain::verdict::{self, Facts, Reason};
use crate::store::quotas::{self, Ask};
use crate::store::settle::{self, Return, Returned};
use crate::store::unserved::{self as store, Judged, Stuck};
use crate::store::{Error, fleet, pauses, routes};

/// The first due task of each lane of a route.
type Heads = BTreeMap<i16, TaskId>;

/// A route with due work that nobody can take at this moment.
#[derive(Debug, Clone)]
struct Sight {
    route: RouteId,
    reason: Reason,
    heads: Heads,
}

/// For how long this replica has seen which routes unserved: plain data.
#[derive(Debug)]
pub struct Watch {
    patience: Duration,
    dead_after: Duration,
    seen: HashMap<RouteId, (Instant, Sight)>,
    looked_at: Option<Instant>,
    failed_beats: u64,
}

impl Watch {
    /// A watch that has seen nothing yet.
    #[must_use]
    pub fn new(dead_after: Duration, reconnect_grace: Duration) -> Self {
        Self {
            patience: dead_after + reconnect_grace,
            dead_after,
            seen: HashMap::new(),
            looked_at: None,
            failed_beats: 0,
        }
    }

    /// Takes in what looks unserved now; answers all of that, and what has done so for long enough.
    fn look(
        &mut self,
        sights: &[Sight],
        failed_beats: u64,
        now: Instant,
    ) -> (Vec<RouteId>, Vec<Judged>) {
        let frozen = self.looked_at.is_some_and(|at| now - at > self.dead_after);
        if frozen || failed_beats != self.failed_beats {
            self.seen.clear();
        }
        (self.looked_at, self.failed_beats) = (Some(now), failed_beats);
        let before = std::mem::take(&mut self.seen);
        let (mut looks_so, mut judged) = (Vec::new(), Vec::new());
        for sight in sights {
            let known = before.get(&sight.route);
            // A full pool that goes on taking tasks serves the route, however long the line is; so does one that had
            // no worker a look ago, and may have filled up between the reading of the line and of the workers.
            let moves = sight.reason == Reason::WorkersAtCapacity
                && known.is_some_and(|(_, earlier)| {
                    earlier.reason != sight.reason || earlier.heads != sight.heads
                });
            let since = match known {
                Some((since, _)) if !moves => *since,
                _ => now,
            };
            self.seen.insert(sight.route, (since, sight.clone()));
            if !moves {
                looks_so.push(sight.route);
            }
            if now - since > self.patience {
                judged.push(Judged {
                    route: sight.route,
                    reason: sight.reason,
                    lasts: now - since,
                });
            }
        }
        (looks_so, judged)
    }
}

/// What one look came to.
#[derive(Debug)]
pub(super) struct Looked {
    looks_so: Vec<RouteId>,
    judged: Vec<Judged>,
    routes: HashMap<RouteId, Arc<Route>>,
    groups: Vec<Group>,
}

/// Looks at every route that has due work. Workers are those that the replicas have written down: all replicas see
/// the same ones, so what one has listed for a reason is not unlisted or renamed by another one that knows less.
pub(super) async fn look(
    client: &impl GenericClient,
    hub: &Hub,
    watch: &Mutex<Watch>,
) -> Result<Looked, Error> {
    let lanes = routes::find_due(client).await?;
    let mut heads: BTreeMap<RouteId, Heads> = BTreeMap::new();
    let mut due: HashSet<RouteId> = HashSet::new();
    {
        let watch = watch.lock();
        // What is paused is not served on purpose.
        for lane in lanes.iter().filter(|lane| !lane.paused) {
            if lane.due_in.is_zero() {
                due.insert(lane.route);
            }
            if lane.due_in.is_zero() || watch.seen.contains_key(&lane.route) {
                let lanes = heads.entry(lane.route).or_default();
                lanes.insert(lane.priority, lane.head);
            }
        }
    }
    let wanted: Vec<RouteId> = heads.keys().copied().collect();
    let known = hub.routes.get_by(client, &wanted).await?;
    let groups = if known.is_empty() {
        Vec::new()
    } else {
        scope::staying(&fleet::read_groups(client, None, None).await?).collect()
    };
    let sights = heads.into_iter().filter_map(|(id, heads)| {
        let route = known.get(&id).filter(|route| {
            // What a strict route puts back is not due for a while, and nobody serves the route all the same.
            due.contains(&id) || route.unserved == Unserved::Strict
        })?;
        let reason = verdict::census(route, &groups).err()?;
        Some(Sight {
            route: id,
            reason,
            heads,
        })
    });
    let sights: Vec<Sight> = sights.collect();
    let (looks_so, judged) = watch
        .lock()
        .look(&sights, hub.fitness.failed_beats(), Instant::now());
    Ok(Looked {
        looks_so,
        judged,
        routes: known,
        groups,
    })
}

/// Writes the list, and fails what is to be failed; answers these tasks: those of strict routes, and those that have not
/// started in time.
pub(super) async fn write(
    client: &impl GenericClient,
    looked: &Looked,
    defaults: &Defaults,
    max_losses: i32,
) -> Result<[Vec<Returned>; 2], Error> {
    let news = store::write(client, &looked.looks_so, &looked.judged).await?;
    for judged in &looked.judged {
        if let Some(route) = looked.routes.get(&judged.route) {
            say(route, judged, news.contains(&judged.route));
        }
    }
    let spent = fail_strict(client, looked, defaults, max_losses).await?;
    let expired = expire(client, looked, max_losses).await?;
    Ok([spent, expired])
}

fn say(route: &Route, judged: &Judged, is_news: bool) {
    let (queue, kind) = (&route.task_queue, &route.task_type);
    let (namespace, reason) = (&route.namespace, judged.reason.name());
    let seconds = judged.lasts.as_secs();
    if is_news {
        tracing::warn!(
            namespace,
            queue,
            r#type = kind,
            node = route.node,
            reason,
            seconds,
            "nobody serves this queue; `fencepost queue unserved` lists all such queues"
        );
    } else {
        tracing::debug!(
            namespace,
            queue,
            r#type = kind,
            node = route.node,
            reason,
            seconds,
            "nobody serves this queue yet"
        );
    }
}

/// Spends an attempt of each due task on strict routes.
async fn fail_strict(
    client: &impl GenericClient,
    looked: &Looked,
    defaults: &Defaults,
    max_losses: i32,
) -> Result<Vec<Returned>, Error> {
    let strict: HashMap<RouteId, Reason> = looked
        .judged
        .iter()
        .filter(|judged| {
            let route = looked.routes.get(&judged.route);
            route.is_some_and(|route| route.unserved == Unserved::Strict)
        })
        .map(|judged| (judged.route, judged.reason))
        .collect();
    if strict.is_empty() {
        return Ok(Vec::new());
    }
    let wanted: Vec<RouteId> = strict.keys().copied().collect();
    let stuck = store::find_waiting(client, &wanted, BATCH).await?;
    let tasks: Vec<(TaskId, RouteId)> = stuck
        .iter()
        .map(|task| (task.token.id, task.route))
        .collect();
    let policies = policies(client, &tasks, defaults).await?;
    let outcomes = stuck.iter().filter_map(|task| {
        let reason = strict.get(&task.route)?;
        let failure = Failure::new(
            reason.name(),
            sentence("Nobody could take the task", reason.sentence()),
        );
        let policy = *policies.get(&task.token.id)?;
        Some((task, Outcome::Unserved(failure), policy))
    });
    end(client, outcomes, max_losses).await
}

/// Ends tasks that have not started by their deadline for that.
async fn expire(
    client: &impl GenericClient,
    looked: &Looked,
    max_losses: i32,
) -> Result<Vec<Returned>, Error> {
    let expired = store::find_expired(client, BATCH).await?;
    if expired.is_empty() {
        return Ok(Vec::new());
    }
    let mut wanted: Vec<RouteId> = expired.iter().map(|task| task.route).collect();
    wanted.sort_unstable();
    wanted.dedup();
    let routes = routes::read(client, &wanted).await?;
    let routes: HashMap<RouteId, Route> =
        routes.into_iter().map(|route| (route.id, route)).collect();
    let mut asks: Vec<Ask> = routes
        .values()
        .flat_map(Route::limits)
        .map(Ask::anew)
        .collect();
    asks.sort_unstable_by_key(|ask| ask.of);
    asks.dedup();
    let counted = if asks.is_empty() {
        Vec::new()
    } else {
        quotas::count(client, &asks).await?
    };
    let pauses = pauses::read(client).await?;
    let outcomes = expired.iter().map(|task| {
        let above: Vec<Limited> = routes
            .get(&task.route)
            .map(|route| route.limits().collect())
            .unwrap_or_default();
        let usages: Vec<Usage> = counted
            .iter()
            .filter(|usage| above.contains(&usage.of))
            .copied()
            .collect();
        let verdict = routes.get(&task.route).map(|route| {
            verdict::judge(&Facts {
                route,
                stage: task.stage.clone(),
                pauses: &pauses,
                groups: &looked.groups,
                quotas: &usages,
            })
        });
        let why = verdict.map_or_else(
            || "its route can't be read".to_owned(),
            |verdict| format!("{}: {}", verdict.name(), verdict.sentence()),
        );
        let message = sentence("The task has not started by its deadline for that", &why);
        let failure = Failure::new("schedule_to_start", message);
        (task, Outcome::Expired(failure), ANY_POLICY)
    });
    let moved = end(client, outcomes, max_losses).await?;
    tracing::info!(
        found = expired.len(),
        moved = moved.len(),
        "tasks that did not start in time are dead letters"
    );
    Ok(moved)
}

fn sentence(what: &str, why: &str) -> String {
    format!("{what}: {why}.")
}

/// Moves ready tasks; one that a replica has claimed meanwhile stays as it is.
async fn end<'t>(
    client: &impl GenericClient,
    outcomes: impl Iterator<Item = (&'t Stuck, Outcome, Policy)>,
    max_losses: i32,
) -> Result<Vec<Returned>, Error> {
    let returns = outcomes.filter_map(|(task, outcome, policy)| {
        let settlement = decide(outcome, task.attempt, &policy, fastrand::f64());
        to_return(settlement, task.token, NOBODY)
    });
    let returns: Vec<Return> = returns.collect();
    settle::give_back(client, &returns, max_losses).await
}

#[cfg(test)]
mod tests;
