//! Settling: completions, every other move of a claimed task, and the second look at what matched no row.

use std::collections::HashMap;
use std::time::Duration;

use bytes::Bytes;

use deadpool_postgres::GenericClient;

use super::{Error, millis, storable};
use crate::domain::id::{DispatcherId, KeyHash, NOBODY, RouteId, RunId, TaskId, Token};
use crate::domain::outcome::Failure;
use crate::domain::settlement::{Cause, Move};

const COMPLETE: &str = include_str!("../../sql/complete_tasks.sql");
const RETURN: &str = include_str!("../../sql/return_tasks.sql");
const LOOK_AGAIN: &str = include_str!("../../sql/look_again.sql");
const LOCK: &str = include_str!("../../sql/lock_task.sql");

/// A success to be stored.
#[derive(Clone, Debug)]
pub struct Completion {
    /// The delivery that reports it.
    pub token: Token,
    /// The result and its media type.
    pub result: Option<(Bytes, String)>,
    /// Who reports it.
    pub worker: Option<String>,
}

/// A move of a claimed task other than its success.
#[derive(Clone, Debug)]
pub struct Return {
    /// The delivery that it ends.
    pub token: Token,
    /// None for a worker's own report, which the current fence is enough for; else the claim's owner.
    pub owner: Option<DispatcherId>,
    /// How.
    pub how: Move,
    /// Until it is due again; None keeps its place in the line.
    pub delay: Option<Duration>,
    /// Why.
    pub error: Option<Failure>,
    /// The worker that had it.
    pub worker: Option<String>,
    /// The node of that worker.
    pub node: Option<String>,
}

/// Where a returned task went.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Goes {
    /// Back to the line.
    Ready,
    /// It is a dead letter.
    Dead,
    /// It ends as cancelled, as somebody had asked.
    Cancelled,
}

/// A task that a return moved.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Returned {
    /// The task.
    pub id: TaskId,
    /// Its route.
    pub route: RouteId,
    /// The run of a workflow's member.
    pub run: Option<RunId>,
    /// Its concurrency key, where that has room now.
    pub key: Option<KeyHash>,
    /// Where it went.
    pub goes: Goes,
    /// How.
    pub how: Move,
    /// The class of the failure, where history has one.
    pub class: Option<String>,
    /// Why it is dead, where it is.
    pub cause: Option<Cause>,
}

impl Returned {
    /// The run that may have ended with this task.
    #[must_use]
    pub fn ended_in(&self) -> Option<RunId> {
        self.run.filter(|_| self.goes != Goes::Ready)
    }
}

/// A task that a completion ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Completed {
    /// The task.
    pub id: TaskId,
    /// Its route.
    pub route: RouteId,
    /// It ended as cancelled, as somebody had asked or its workflow was over.
    pub cancelled: bool,
    /// The run of a workflow's member, which may have ended with it.
    pub run: Option<RunId>,
    /// Its concurrency key, which has room now.
    pub key: Option<KeyHash>,
}

/// What a second look says of a report that matched no row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The row matches and was only locked by somebody else.
    Busy,
    /// This very report has been stored before.
    Recorded,
    /// Another delivery has the task, or it has ended.
    Superseded,
}

/// Ends tasks as done, one entry a task; answers those that it ended. The others want a second look.
pub async fn complete(
    client: &impl GenericClient,
    batch: &[Completion],
) -> Result<Vec<Completed>, Error> {
    let (ids, epochs, fences) = split(batch.iter().map(|entry| entry.token));
    let results: Vec<Option<&[u8]>> = batch
        .iter()
        .map(|entry| entry.result.as_ref().map(|(body, _)| body.as_ref()))
        .collect();
    let types: Vec<Option<String>> = batch
        .iter()
        .map(|entry| entry.result.as_ref().map(|(_, kind)| storable(kind)))
        .collect();
    let workers: Vec<Option<String>> = batch
        .iter()
        .map(|entry| entry.worker.as_deref().map(storable))
        .collect();
    let statement = client.prepare_cached(COMPLETE).await?;
    let rows = client
        .query(
            &statement,
            &[&ids, &epochs, &fences, &results, &types, &workers],
        )
        .await?;
    let completed = rows.iter().map(|row| Completed {
        id: row.get("id"),
        route: row.get("route_id"),
        cancelled: row.get("cancelled"),
        run: row.get("run_id"),
        key: row.get("key_hash"),
    });
    Ok(completed.collect())
}

/// Moves claimed tasks, one entry a task; answers those that it moved. The others want a second look.
pub async fn give_back(
    client: &impl GenericClient,
    batch: &[Return],
    max_losses: i32,
) -> Result<Vec<Returned>, Error> {
    let (ids, epochs, fences) = split(batch.iter().map(|entry| entry.token));
    let owners: Vec<Option<DispatcherId>> = batch.iter().map(|entry| entry.owner).collect();
    let moves: Vec<&str> = batch.iter().map(|entry| entry.how.name()).collect();
    let delays: Vec<Option<i64>> = batch.iter().map(|entry| entry.delay.map(millis)).collect();
    let text = |part: fn(&Return) -> Option<&str>| -> Vec<Option<String>> {
        batch
            .iter()
            .map(|entry| part(entry).map(storable))
            .collect()
    };
    let classes = text(|entry| entry.error.as_ref().map(|error| error.class.as_str()));
    let messages = text(|entry| entry.error.as_ref().map(|error| error.message.as_str()));
    let workers = text(|entry| entry.worker.as_deref());
    let nodes = text(|entry| entry.node.as_deref());
    let statement = client.prepare_cached(RETURN).await?;
    let rows = client
        .query(
            &statement,
            &[
                &ids,
                &epochs,
                &fences,
                &owners,
                &moves,
                &delays,
                &classes,
                &messages,
                &workers,
                &nodes,
                &max_losses,
            ],
        )
        .await?;
    let given: HashMap<TaskId, &Return> =
        batch.iter().map(|entry| (entry.token.id, entry)).collect();
    let returned = rows.iter().filter_map(|row| {
        let id = row.get("id");
        let goes = match row.get("goes") {
            "ready" => Goes::Ready,
            "dead" => Goes::Dead,
            _ => Goes::Cancelled,
        };
        let entry = given.get(&id)?;
        let how = entry.how;
        let failed = how.fails() && goes != Goes::Cancelled;
        let class = entry.error.as_ref().map(|error| error.class.as_str());
        Some(Returned {
            id,
            route: row.get("route_id"),
            run: row.get("run_id"),
            key: row.get("key_hash"),
            goes,
            how,
            class: failed.then(|| class.unwrap_or(how.name()).to_owned()),
            cause: (goes == Goes::Dead).then(|| how.cause(entry.owner != Some(NOBODY))),
        })
    });
    Ok(returned.collect())
}

/// A report that matched no row.
#[derive(Clone, Debug)]
pub struct Missed {
    /// The delivery.
    pub token: Token,
    /// Whether it reports success.
    pub success: bool,
    /// Who reports it.
    pub worker: Option<String>,
    /// As in [`Return::owner`].
    pub owner: Option<DispatcherId>,
}

/// What a second look found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Judged {
    /// The task.
    pub id: TaskId,
    /// What its report is worth.
    pub verdict: Verdict,
    /// The run of a workflow's member whose end is recorded: nobody may have looked whether the run has ended.
    pub run: Option<RunId>,
    /// The concurrency key of a task whose report is recorded: nobody may have looked who is next.
    pub key: Option<KeyHash>,
}

/// Looks at the rows and the history of reports that matched no row.
pub async fn look_again(
    client: &impl GenericClient,
    missed: &[Missed],
) -> Result<Vec<Judged>, Error> {
    let (ids, epochs, fences) = split(missed.iter().map(|report| report.token));
    let successes: Vec<bool> = missed.iter().map(|report| report.success).collect();
    let workers: Vec<Option<String>> = missed
        .iter()
        .map(|report| report.worker.as_deref().map(storable))
        .collect();
    let owners: Vec<Option<DispatcherId>> = missed.iter().map(|report| report.owner).collect();
    let statement = client.prepare_cached(LOOK_AGAIN).await?;
    let rows = client
        .query(
            &statement,
            &[&ids, &epochs, &fences, &successes, &workers, &owners],
        )
        .await?;
    let verdicts = rows.iter().map(|row| {
        let verdict = match row.get("verdict") {
            "busy" => Verdict::Busy,
            "recorded" => Verdict::Recorded,
            _ => Verdict::Superseded,
        };
        Judged {
            id: row.get("id"),
            verdict,
            run: row.get("run_id"),
            key: row.get("key_hash"),
        }
    });
    Ok(verdicts.collect())
}

/// Waits for one task's row, within the connection's lock timeout, until the end of the transaction.
pub async fn lock(client: &impl GenericClient, id: TaskId) -> Result<(), Error> {
    let statement = client.prepare_cached(LOCK).await?;
    client.query(&statement, &[&id]).await?;
    Ok(())
}

fn split(tokens: impl Iterator<Item = Token>) -> (Vec<TaskId>, Vec<i32>, Vec<i32>) {
    let mut parts = (Vec::new(), Vec::new(), Vec::new());
    for token in tokens {
        parts.0.push(token.id);
        parts.1.push(token.epoch);
        parts.2.push(token.fence);
    }
    parts
}
