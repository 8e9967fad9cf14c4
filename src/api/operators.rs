//! What operators ask and order: why a task does not run, what nobody serves, queues, namespaces, workers.

mod view;

pub(super) use view::{Count, HeldView, RouteView, time};

use std::collections::{BTreeSet, HashMap};
use std::time::Duration;

use super::page::{Listing, Window};
use super::{Error, State};
use chrono::DateTime;

use crate::domain::id::RouteId;
use crate::domain::route::Route;
use crate::domain::scope::{self, Group, Order};
use crate::domain::verdict::{self, Claimed, Facts, Reason, Stage};
use crate::store::queues::{self, Declaration, NamespaceSettings, Wanted};
use crate::store::quotas::{self, Ask};
use crate::store::{Client, fleet, keys, pauses, routes, unserved, workers};

pub use view::{
    DeclaredView, NamespaceView, NodeSeen, QueueView, ResumedKeyView, StoppedKeyView, UnservedView,
    WhyView, WorkerView,
};

/// Counts of waiting tasks stop here: beyond it an estimate is enough, and counting on would read the line.
pub(super) const COUNTED: i64 = 10_000;

/// Which queues to list, and how far to count in each.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct QueueChoice {
    /// Those of this namespace.
    pub namespace: Option<String>,
    /// Those of this name.
    pub task_queue: Option<String>,
    /// Counts of waiting tasks are exact up to this, 1 to 10,000, and estimates beyond it.
    pub count_to: i64,
}

impl Default for QueueChoice {
    fn default() -> Self {
        Self {
            namespace: None,
            task_queue: None,
            count_to: COUNTED,
        }
    }
}

/// The most lines of a list of operators: enough for people, and bounded for the database.
pub(super) const LONGEST_LIST: i64 = 1_000;

/// A replica that has been silent for so long is not there, even where none lives that could declare it dead: several
/// times the longest beat that is of use.
pub(super) const SILENCE: Duration = Duration::from_mins(1);

impl State {
    /// Why this task is not running: what each gate says of it.
    pub async fn why(&self, id: i64) -> Result<WhyView, Error> {
        let found = self.pool.run(self.limits.database, move |client| {
            Box::pin(async move {
                let Some(located) = unserved::locate(client, id).await? else {
                    return Ok(None);
                };
                let route = routes::read(client, &[located.route]).await?.pop();
                let limits = route.iter().flat_map(Route::limits);
                let asks: Vec<Ask> = limits.map(Ask::anew).collect();
                let usages = quotas::count(client, &asks).await?;
                let pauses = pauses::read(client).await?;
                let groups = live_groups(client).await?;
                Ok(Some((located, route, pauses, groups, usages)))
            })
        });
        let Some((mut located, route, pauses, groups, usages)) = found.await? else {
            return Err(Error::no_task(id));
        };
        let Some(route) = route else {
            let message = format!("the route of task {id} can't be read.");
            return Err(Error::new("FP-114", message));
        };
        if let Stage::Claimed(claimed) = &mut located.stage {
            claimed.worker = self.worker_of(id, claimed);
        }
        let facts = Facts {
            route: &route,
            stage: located.stage,
            pauses: &pauses,
            groups: &groups,
            quotas: &usages,
        };
        let stops = verdict::stops(&facts);
        let sights = (located.unserved_since, located.node_seen);
        Ok(WhyView::new(id, &route, sights, &stops))
    }

    /// The worker that has a task, if this replica is the one that delivered it.
    fn worker_of(&self, id: i64, claimed: &Claimed) -> Option<String> {
        let hub = self.hub.borrow().clone()?;
        let worker = hub.in_flight.worker_of(id)?;
        (hub.dispatcher == claimed.dispatcher).then(|| worker.identity.clone())
    }

    /// The routes with due tasks that no worker of any replica can take now. Pages go by the routes' numbers; within one
    /// the longest wait is first. A full pool is among them only once its line has been judged to stand still, so that a
    /// page can be short and not be the last.
    pub async fn unserved(&self, window: Window) -> Result<Listing<UnservedView>, Error> {
        let after = window.key::<1>()?.map(|[route]| route.parse::<RouteId>());
        let wrong = |_| Error::invalid_value("after", "after must be the next of another page.");
        let after = after.transpose().map_err(wrong)?.unwrap_or(0);
        let found = self.pool.run(self.limits.database, move |client| {
            let window = window.clone();
            Box::pin(async move {
                let due = routes::find_due(client).await?;
                let due: BTreeSet<RouteId> = due
                    .iter()
                    .filter(|lane| lane.is_open() && lane.route > after)
                    .map(|lane| lane.route)
                    .collect();
                let due: Vec<RouteId> = due.into_iter().collect();
                let groups = live_groups(client).await?;
                let mut unserved: Vec<(Route, Reason)> = routes::read(client, &due)
                    .await?
                    .into_iter()
                    .filter_map(|route| {
                        let reason = verdict::census(&route, &groups).err()?;
                        Some((route, reason))
                    })
                    .collect();
                unserved.sort_by_key(|(route, _)| route.id);
                unserved.truncate(window.rows());
                let page = window.cut(unserved, |(route, _)| [route.id.to_string()]);
                let wanted: Vec<RouteId> = page.lines.iter().map(|(route, _)| route.id).collect();
                let waiting = unserved::count_waiting(client, &wanted, COUNTED + 1).await?;
                Ok((page, waiting))
            })
        });
        let (page, waiting) = found.await?;
        let lines = page.lines.into_iter();
        let mut unserved: HashMap<RouteId, (Route, Reason)> = lines
            .map(|(route, reason)| (route.id, (route, reason)))
            .collect();
        let views = waiting.iter().filter_map(|waiting| {
            let (route, reason) = unserved.remove(&waiting.route)?;
            let counts = reason != Reason::WorkersAtCapacity || waiting.since.is_some();
            counts.then(|| UnservedView::new(&route, reason, waiting))
        });
        Ok(Listing {
            lines: views.collect(),
            next: page.next,
        })
    }

    /// The known routes by name, with what waits and what runs.
    pub async fn queues(
        &self,
        choice: QueueChoice,
        window: Window,
    ) -> Result<Listing<QueueView>, Error> {
        let (key, rows) = (window.key::<4>()?, rows(&window));
        let count_to = choice.count_to;
        if !(1..=COUNTED).contains(&count_to) {
            let message = format!("count_to must be between 1 and {COUNTED}.");
            return Err(Error::invalid_value("count_to", message));
        }
        let found = self.pool.run(self.limits.database, move |client| {
            Box::pin(async move {
                let wanted = Wanted {
                    namespace: choice.namespace.as_deref(),
                    task_queue: choice.task_queue.as_deref(),
                    routes: None,
                    after: key.as_ref(),
                };
                queues::list(client, wanted, count_to + 1, rows).await
            })
        });
        let found = found.await?.into_iter();
        let views = found.map(|queue| QueueView::new(queue, count_to));
        Ok(window.cut(views.collect(), |queue| queue.route.key()))
    }

    /// Declares a queue for one type and node.
    pub async fn declare_queue(&self, route: Declaration) -> Result<(), Error> {
        let declared = self.pool.run(self.limits.database, move |client| {
            Box::pin(async move { queues::declare(client, &route).await })
        });
        declared.await?;
        Ok(())
    }

    /// The dead letters that stop their concurrency keys, the longest first.
    pub async fn stopped_keys(
        &self,
        namespace: Option<String>,
        window: Window,
    ) -> Result<Listing<StoppedKeyView>, Error> {
        let (key, rows) = (window.key::<2>()?, rows(&window));
        let after = key.map(|[since, letter]| {
            let since = since.parse().ok().and_then(DateTime::from_timestamp_micros);
            since.zip(letter.parse().ok())
        });
        let wrong = || Error::invalid_value("after", "after must be the next of another page.");
        let after = after.map(|after| after.ok_or_else(wrong)).transpose()?;
        let found = self.pool.run(self.limits.database, move |client| {
            Box::pin(
                async move { keys::list_stopped(client, namespace.as_deref(), rows, after).await },
            )
        });
        let page = window.cut(found.await?, |stopped| {
            let since = stopped.since.timestamp_micros();
            [since.to_string(), stopped.letter.to_string()]
        });
        Ok(page.map(StoppedKeyView::from))
    }

    /// Lets a concurrency key go on that dead letters have stopped.
    pub async fn resume_key(
        &self,
        namespace: Option<String>,
        key: String,
    ) -> Result<ResumedKeyView, Error> {
        let lifted = self.pool.run(self.limits.database, move |client| {
            Box::pin(async move { keys::resume(client, namespace.as_deref(), &key).await })
        });
        Ok(ResumedKeyView::new(lifted.await?))
    }

    /// The namespaces by name.
    pub async fn namespaces(&self, window: Window) -> Result<Listing<NamespaceView>, Error> {
        let (key, rows) = (window.key::<1>()?, rows(&window));
        let found = self.pool.run(self.limits.database, move |client| {
            Box::pin(async move {
                let after = key.as_ref().map(|[name]| name.as_str());
                queues::list_namespaces_after(client, None, rows, after).await
            })
        });
        let page = window.cut(found.await?, |namespace| [namespace.name.clone()]);
        Ok(page.map(NamespaceView::from))
    }

    /// Sets what is given of a namespace, which is made if it is new, and answers what it is then.
    pub async fn set_namespace(
        &self,
        name: String,
        settings: NamespaceSettings,
    ) -> Result<NamespaceView, Error> {
        let set = self.pool.run(self.limits.database, move |client| {
            Box::pin(async move {
                queues::set_namespace(client, &name, &settings).await?;
                queues::list_namespaces(client, Some(&name), 1).await
            })
        });
        let gone = || Error::new("FP-114", "the namespace has gone meanwhile.");
        set.await?.pop().map(NamespaceView::from).ok_or_else(gone)
    }

    /// The workers of all live replicas, and the orders for workers that are away, by identity.
    pub async fn workers(&self, window: Window) -> Result<Listing<WorkerView>, Error> {
        let (key, rows) = (window.key::<2>()?, rows(&window));
        let found = self.pool.run(self.limits.database, move |client| {
            Box::pin(async move { workers::list(client, SILENCE, rows, key.as_ref()).await })
        });
        let page = window.cut(found.await?, |worker| {
            let present = worker.present.as_ref();
            let worker_id = present.map(|present| present.worker_id.clone());
            [worker.identity.clone(), worker_id.unwrap_or_default()]
        });
        Ok(page.map(WorkerView::from))
    }

    /// Orders something for workers by their identities, or lifts (`None`) what was ordered; replicas take it up with
    /// their next beat.
    pub async fn order_workers(
        &self,
        identities: Vec<String>,
        order: Option<Order>,
        by: String,
        reason: String,
    ) -> Result<(), Error> {
        let is_name = |text: &String| {
            (1..=200).contains(&text.chars().count()) && !text.chars().any(char::is_control)
        };
        if !identities.iter().all(is_name) {
            let message = "identity must be 1 to 200 characters without control characters.";
            return Err(Error::invalid_value("identity", message));
        }
        let ordered = self.pool.run(self.limits.database, move |client| {
            Box::pin(async move {
                match order {
                    Some(order) => workers::order(client, &identities, order, &by, &reason).await,
                    None => workers::lift(client, &identities).await,
                }
            })
        });
        Ok(ordered.await?)
    }
}

/// As the database counts.
fn rows(window: &Window) -> i64 {
    i64::try_from(window.rows()).unwrap_or(i64::MAX)
}

/// The workers of all live replicas, as far as they take new tasks.
async fn live_groups(client: &Client) -> Result<Vec<Group>, crate::store::Error> {
    let groups = fleet::read_groups(client, None, Some(SILENCE)).await?;
    Ok(scope::staying(&groups).collect())
}
