//! Runs of workflows: what they need, and doing it, a step at a time. Every step may be done twice, by anybody, and left
//! half done: the next look finds the rest.

use std::time::Duration;

use deadpool_postgres::GenericClient;

use super::cancel::{self, CancelAnswer, How};
use super::{Client, Error};
use crate::domain::id::{RouteId, RunId, TaskId, WorkflowId};

const WALK: &str = include_str!("../../sql/walk_runs.sql");
const FIND_OPEN: &str = include_str!("../../sql/find_open_runs.sql");
const LOOK: &str = include_str!("../../sql/look_at_runs.sql");
const FINISH: &str = include_str!("../../sql/finish_run.sql");
const SETTLE: &str = include_str!("../../sql/settle_run.sql");
const HOLD: &str = include_str!("../../sql/hold_members.sql");
const RELEASE: &str = include_str!("../../sql/release_members.sql");
const LOCK_MEMBERS: &str = include_str!("../../sql/lock_members.sql");

/// Members that one transaction moves at most, so that it holds few locks for a short time.
const BATCH: i32 = 500;

/// What a run needs next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// It may be time for its end.
    Finish,
    /// It is paused, and a member's row does not say so.
    Hold,
    /// It is no longer paused, and a member's row says that it is.
    Release,
    /// It is over, and a member is not.
    Cancel,
    /// It is over with all its members, and nobody has noted that.
    Settle,
}

/// What a step came to.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Done {
    /// Something changed, so another look is worth its price.
    pub moved: bool,
    /// Somebody else has the run's row: the same again, a little later.
    pub busy: bool,
    /// The state in which the run has ended here.
    pub ended: Option<String>,
    /// Routes whose rows may be claimed again.
    pub routes: Vec<RouteId>,
    /// The route of each member that has ended as cancelled here.
    pub cancelled: Vec<RouteId>,
}

/// Runs above `after` that have something to wait for, in order, at most `limit`.
pub async fn walk(
    client: &impl GenericClient,
    after: RunId,
    limit: i32,
) -> Result<Vec<RunId>, Error> {
    let statement = client.prepare_cached(WALK).await?;
    let rows = client.query(&statement, &[&after, &limit]).await?;
    Ok(rows.iter().map(|row| row.get("run_id")).collect())
}

/// The runs of one workflow that have something to wait for.
pub async fn find_open(
    client: &impl GenericClient,
    workflow: WorkflowId,
) -> Result<Vec<RunId>, Error> {
    let statement = client.prepare_cached(FIND_OPEN).await?;
    let rows = client.query(&statement, &[&workflow]).await?;
    Ok(rows.iter().map(|row| row.get("run_id")).collect())
}

/// What these runs need, where they need anything.
pub async fn look(
    client: &impl GenericClient,
    runs: &[RunId],
) -> Result<Vec<(RunId, Step)>, Error> {
    let statement = client.prepare_cached(LOOK).await?;
    let rows = client.query(&statement, &[&runs]).await?;
    let steps = rows.iter().map(|row| {
        let step = match row.get("step") {
            "finish" => Step::Finish,
            "hold" => Step::Hold,
            "release" => Step::Release,
            "cancel" => Step::Cancel,
            _ => Step::Settle,
        };
        (row.get("run_id"), step)
    });
    Ok(steps.collect())
}

/// Does one step of one run in a transaction of its own. `grace` is what a running member gets to stop.
pub async fn take_step(
    client: &mut Client,
    run: RunId,
    step: Step,
    grace: Duration,
) -> Result<Done, Error> {
    match step {
        Step::Finish => finish(client, run).await,
        Step::Hold => hold(client, run).await,
        Step::Release => release(client, run).await,
        Step::Cancel => cancel(client, run, grace).await,
        Step::Settle => settle_run(client, run).await,
    }
}

/// Ends the run if it is time.
pub async fn finish(client: &impl GenericClient, run: RunId) -> Result<Done, Error> {
    let statement = client.prepare_cached(FINISH).await?;
    let state: Option<String> = client.query_one(&statement, &[&run]).await?.get("state");
    let busy = state.as_deref() == Some("busy");
    let ended = state.filter(|_| !busy);
    Ok(Done {
        moved: ended.is_some(),
        busy,
        ended,
        ..Done::default()
    })
}

async fn hold(client: &impl GenericClient, run: RunId) -> Result<Done, Error> {
    let statement = client.prepare_cached(HOLD).await?;
    let held = client.query(&statement, &[&run, &BATCH]).await?;
    Ok(Done {
        moved: !held.is_empty(),
        ..Done::default()
    })
}

async fn release(client: &impl GenericClient, run: RunId) -> Result<Done, Error> {
    let statement = client.prepare_cached(RELEASE).await?;
    let released = client.query(&statement, &[&run, &BATCH]).await?;
    let mut routes: Vec<RouteId> = released.iter().map(|row| row.get("route_id")).collect();
    routes.sort_unstable();
    routes.dedup();
    Ok(Done {
        moved: !released.is_empty(),
        routes,
        ..Done::default()
    })
}

async fn cancel(client: &mut Client, run: RunId, grace: Duration) -> Result<Done, Error> {
    let transaction = client.transaction().await?;
    let statement = transaction.prepare_cached(LOCK_MEMBERS).await?;
    let rows = transaction.query(&statement, &[&run, &BATCH]).await?;
    let mut ids: Vec<TaskId> = rows.iter().map(|row| row.get("id")).collect();
    ids.sort_unstable();
    let mut cancelled = Vec::new();
    if !ids.is_empty() {
        let how = How {
            grace,
            reason: "Its workflow is over.".to_owned(),
            only: None,
        };
        let answers = cancel::cancel(&transaction, &ids, &how).await?;
        cancelled.extend(answers.iter().filter_map(CancelAnswer::ended_on));
    }
    transaction.commit().await?;
    Ok(Done {
        moved: !ids.is_empty(),
        cancelled,
        ..Done::default()
    })
}

async fn settle_run(client: &impl GenericClient, run: RunId) -> Result<Done, Error> {
    let statement = client.prepare_cached(SETTLE).await?;
    client.query(&statement, &[&run]).await?;
    Ok(Done::default())
}
