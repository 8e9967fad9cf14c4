//! Cancelling: one task, those of a filter, those that a pause asks to stop.

use std::collections::BTreeSet;
use std::time::Duration;

use chrono::{DateTime, Utc};
use deadpool_postgres::GenericClient;

use super::{Client, Error, millis, storable};
use crate::domain::id::{DispatcherId, RouteId, RunId, TaskId};

const CANCEL: &str = include_str!("../../sql/cancel_tasks.sql");
const LOCK_FREE: &str = include_str!("../../sql/lock_free_tasks.sql");
const MATCH: &str = include_str!("../../sql/match_unfinished.sql");
const FIND_KEY: &str = include_str!("../../sql/find_key.sql");
const NOTIFY: &str = include_str!("../../sql/notify_orders.sql");

/// Tasks that one transaction cancels at most, so that it holds few locks for a short time.
pub const BATCH: usize = 500;

/// Unfinished tasks that one look for matches reads: some 20 ms of work however rare the filter is.
const LOOKED_AT: i64 = 5_000;

/// Rows that one batch waits for in vain at most: each wait lasts as long as the connection's lock timeout.
const WAITS: u64 = 2;

/// Which tasks are meant, where not all are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Only {
    /// Those that wait.
    Waiting,
    /// Those that a replica has.
    Running,
}

/// How to cancel.
#[derive(Clone, Debug)]
pub struct How {
    /// What a running task gets to stop.
    pub grace: Duration,
    /// Why, for those who look at the task later.
    pub reason: String,
    /// None for both.
    pub only: Option<Only>,
}

/// What became of a request to cancel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CancelAnswer {
    /// The task.
    pub id: TaskId,
    /// Its route, while it is unfinished.
    pub route: Option<RouteId>,
    /// The replica that holds it, when it runs.
    pub dispatcher: Option<DispatcherId>,
    /// The run of a workflow's member that ended here, which may have ended with it.
    pub run: Option<RunId>,
    /// `cancelled`, `requested`, `passed_over`, `done`, `failed`, or `ended` where it ended just now.
    pub state: String,
    /// It had ended before.
    pub over: bool,
}

impl CancelAnswer {
    /// The route of a task that ended here.
    #[must_use]
    pub fn ended_on(&self) -> Option<RouteId> {
        self.route
            .filter(|_| !self.over && self.state == "cancelled")
    }
}

/// Cancels tasks: a waiting one at once, a running one by request. Waits for rows that somebody else has locked. A task
/// that never was is left out.
pub async fn cancel(
    client: &impl GenericClient,
    ids: &[TaskId],
    how: &How,
) -> Result<Vec<CancelAnswer>, Error> {
    let only = how.only.map(|only| match only {
        Only::Waiting => 0_i16,
        Only::Running => 1,
    });
    let statement = client.prepare_cached(CANCEL).await?;
    let rows = client
        .query(
            &statement,
            &[&ids, &millis(how.grace), &storable(&how.reason), &only],
        )
        .await?;
    let answers = rows.iter().map(|row| {
        Ok(CancelAnswer {
            id: row.try_get("id")?,
            route: row.try_get("route_id")?,
            dispatcher: row.try_get("dispatcher")?,
            run: row.try_get("run_id")?,
            state: row.try_get("state")?,
            over: row.try_get("over")?,
        })
    });
    answers.collect()
}

/// What became of many.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// They waited, and have ended as cancelled.
    pub ended: u64,
    /// They run, and are asked to stop.
    pub requested: u64,
    /// They had ended before it came to them.
    pub over: u64,
    /// They are locked by a transaction that goes on; asking again finds them.
    pub busy: u64,
    /// The runs of workflows whose members ended here, which may have ended with them.
    pub runs: BTreeSet<RunId>,
    /// The route of each task that ended here.
    pub routes: Vec<RouteId>,
}

impl Counts {
    fn note(&mut self, answer: &CancelAnswer) {
        self.runs.extend(answer.run);
        self.routes.extend(answer.ended_on());
        match answer.state.as_str() {
            _ if answer.over => self.over += 1,
            "cancelled" => self.ended += 1,
            "requested" => self.requested += 1,
            // It is not of the state that is meant any more.
            _ => {}
        }
    }
}

/// Cancels at most [`BATCH`] tasks (sorted, unique). Rows that nobody has locked go first, in one transaction; each of
/// the others in one of its own, so that an open transaction of somebody else delays its own task and no other.
pub async fn cancel_batch(client: &mut Client, ids: &[TaskId], how: &How) -> Result<Counts, Error> {
    let mut counts = Counts::default();
    if ids.is_empty() {
        return Ok(counts);
    }
    let transaction = client.transaction().await?;
    let statement = transaction.prepare_cached(LOCK_FREE).await?;
    let rows = transaction.query(&statement, &[&ids]).await?;
    let free: Vec<TaskId> = rows.iter().map(|row| row.get("id")).collect();
    for answer in cancel(&transaction, &free, how).await? {
        counts.note(&answer);
    }
    transaction.commit().await?;
    for id in ids.iter().filter(|id| free.binary_search(id).is_err()) {
        if counts.busy >= WAITS {
            counts.busy += 1;
            continue;
        }
        match cancel(client, &[*id], how).await {
            Ok(answers) => answers.iter().for_each(|answer| counts.note(answer)),
            Err(Error::Conflict(_)) => counts.busy += 1,
            Err(error) => return Err(error),
        }
    }
    if counts.requested > 0 {
        announce(client).await?;
    }
    Ok(counts)
}

/// Tells the replicas that there are orders for them. Without it they see them with their next beat.
pub async fn announce(client: &impl GenericClient) -> Result<(), Error> {
    let statement = client.prepare_cached(NOTIFY).await?;
    client.query(&statement, &[]).await?;
    Ok(())
}

/// Unfinished tasks that are meant; what is absent is any.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Matching {
    /// The namespace's name.
    pub namespace: Option<String>,
    /// The task queue.
    pub task_queue: Option<String>,
    /// The task type.
    pub task_type: Option<String>,
    /// The node that they are pinned to.
    pub node: Option<String>,
    /// `scheduled`, `ready`, `held` or `running`.
    pub state: Option<String>,
    /// Labels that they have, by name and value.
    pub labels: Vec<(String, String)>,
    /// Enqueued then or later.
    pub enqueued_after: Option<DateTime<Utc>>,
    /// Enqueued before.
    pub enqueued_before: Option<DateTime<Utc>>,
}

/// One look for matches.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Found {
    /// Those that match, by id.
    pub ids: Vec<TaskId>,
    /// Where the next look begins; none at the end.
    pub next: Option<TaskId>,
}

/// Looks for matches among the unfinished tasks above `after`; the work of one look is bounded.
pub async fn find(
    client: &impl GenericClient,
    matching: &Matching,
    after: TaskId,
) -> Result<Found, Error> {
    let text = |name: &Option<String>| name.as_deref().map(storable);
    let given = &matching.labels;
    let labels: Option<(Vec<String>, Vec<String>)> = (!given.is_empty()).then(|| {
        let stored = given
            .iter()
            .map(|(name, value)| (storable(name), storable(value)));
        stored.unzip()
    });
    let (names, values) = labels.unzip();
    let statement = client.prepare_cached(MATCH).await?;
    let rows = client
        .query(
            &statement,
            &[
                &text(&matching.namespace),
                &text(&matching.task_queue),
                &text(&matching.task_type),
                &text(&matching.node),
                &text(&matching.state),
                &names,
                &values,
                &matching.enqueued_after,
                &matching.enqueued_before,
                &after,
                &LOOKED_AT,
            ],
        )
        .await?;
    let mut found = Found::default();
    for row in &rows {
        found.ids.extend(row.try_get::<_, Option<TaskId>>("id")?);
        if row.try_get::<_, i64>("looked_at")? == LOOKED_AT {
            found.next = row.try_get("last_id")?;
        }
    }
    Ok(found)
}

/// The task that a dispatch key names now.
pub async fn find_key(
    client: &impl GenericClient,
    namespace: &str,
    key: &str,
) -> Result<Option<TaskId>, Error> {
    let statement = client.prepare_cached(FIND_KEY).await?;
    let row = client
        .query_opt(&statement, &[&storable(namespace), &storable(key)])
        .await?;
    Ok(row.map(|row| row.try_get("task_id")).transpose()?)
}
