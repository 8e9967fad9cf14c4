//! Workflows as producers and operators see them: staging, orders, and what there is to read.

mod read;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bytes::Bytes;
use tokio_postgres::types::ToSql;

use super::enqueue::{self, Columns, EnqueueError, NewTask, refusable};
use super::{Client, Error, Pool, Work, storable};
use crate::domain::id::{RunId, TaskId, WorkflowId};
pub use read::{Event, Filter, Listed, Member, Workflow, list, list_events, list_members, read};

const START: &str = include_str!("../../sql/start_workflow.sql");
const ADD: &str = include_str!("../../sql/add_members.sql");
const ORDER: &str = include_str!("../../sql/order_workflow.sql");

/// A workflow to be, as a door received it; nothing in it has been judged.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NewWorkflow {
    /// Absent: `default`. All members are in it.
    pub namespace: Option<String>,
    /// For people.
    pub name: Option<String>,
    /// `all`, `race` or `fail_fast`; absent: `all`.
    pub mode: Option<String>,
    /// The caller's idempotency key.
    pub workflow_key: Option<String>,
    /// Starts paused.
    pub paused: bool,
    /// Who stages it.
    pub by: String,
    /// A JSON object with the fields of a task.
    pub continuation: Option<Bytes>,
    /// Its members, in the order of their ordinals.
    pub members: Vec<NewTask>,
}

/// A workflow that exists now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Started {
    /// Its id, over all its runs.
    pub workflow_id: WorkflowId,
    /// Its newest run.
    pub run_id: RunId,
    /// Of that run.
    pub state: String,
    /// False: the key names a workflow that existed already.
    pub created: bool,
    /// The members' tasks, in their order.
    pub task_ids: Vec<TaskId>,
}

/// Stages a workflow with all its members, or nothing.
///
/// # Errors
/// [`EnqueueError`].
pub async fn start(
    pool: &Pool,
    workflow: NewWorkflow,
    deadline: Duration,
) -> Result<Started, EnqueueError> {
    let repeatable = workflow.workflow_key.is_some();
    let workflow = Arc::new(workflow);
    enqueue::write(pool, deadline, repeatable, || {
        let workflow = Arc::clone(&workflow);
        move |client: &mut Client, sent: Arc<AtomicBool>| -> Work<'_, _> {
            Box::pin(async move { start_once(client, &workflow, &sent).await })
        }
    })
    .await
}

async fn start_once(
    client: &Client,
    workflow: &NewWorkflow,
    sent: &AtomicBool,
) -> Result<Started, Error> {
    let statement = client.prepare_cached(START).await?;
    let text = |given: &Option<String>| given.as_deref().map(|text| refusable(text).into_owned());
    let (mode, name) = (text(&workflow.mode), text(&workflow.name));
    let (namespace, key) = (text(&workflow.namespace), text(&workflow.workflow_key));
    let (by, continuation) = (storable(&workflow.by), workflow.continuation.as_deref());
    let head: [&(dyn ToSql + Sync); 7] = [
        &mode,
        &name,
        &namespace,
        &continuation,
        &key,
        &workflow.paused,
        &by,
    ];
    let columns = Columns::of(&workflow.members);
    sent.store(true, Ordering::Release);
    let row = client
        .query_one(&statement, &with_members(&head, &columns))
        .await?;
    Ok(Started {
        workflow_id: row.try_get("workflow_id")?,
        run_id: row.try_get("run_id")?,
        state: row.try_get("state")?,
        created: row.try_get("created")?,
        task_ids: row.try_get("task_ids")?,
    })
}

/// Parameters of a statement that takes members: those before them, then theirs but for the namespace.
fn with_members<'v>(
    head: &[&'v (dyn ToSql + Sync)],
    columns: &'v Columns<'v>,
) -> Vec<&'v (dyn ToSql + Sync)> {
    let members = columns.values().into_iter().enumerate();
    let members = members.filter(|(place, _)| *place != Columns::NAMESPACE);
    let head = head.iter().copied();
    head.chain(members.map(|(_, value)| value)).collect()
}

/// Adds members, all or none; answers the run and their tasks in their order.
///
/// # Errors
/// [`EnqueueError`].
pub async fn add_members(
    pool: &Pool,
    workflow: WorkflowId,
    members: Vec<NewTask>,
    deadline: Duration,
) -> Result<(RunId, Vec<TaskId>), EnqueueError> {
    let repeatable = members.iter().all(|member| member.dispatch_key.is_some());
    let members: Arc<[NewTask]> = members.into();
    enqueue::write(pool, deadline, repeatable, || {
        let members = Arc::clone(&members);
        move |client: &mut Client, sent: Arc<AtomicBool>| -> Work<'_, _> {
            Box::pin(async move {
                let statement = client.prepare_cached(ADD).await?;
                let columns = Columns::of(&members);
                sent.store(true, Ordering::Release);
                let row = client
                    .query_one(&statement, &with_members(&[&workflow], &columns))
                    .await?;
                Ok((row.try_get("run_id")?, row.try_get("task_ids")?))
            })
        }
    })
    .await
}

/// What an operator orders for a workflow.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Order {
    /// Claims stop; what runs runs on.
    Pause,
    /// Claims go on.
    Resume,
    /// It ends as cancelled.
    Cancel,
    /// A new run of the members that are not done, or of `all`.
    Rerun {
        /// `unfinished` or `all`.
        members: String,
    },
}

/// Gives an order; answers the run that it is about.
pub async fn order(
    client: &Client,
    workflow: WorkflowId,
    order: &Order,
    by: &str,
    reason: &str,
) -> Result<RunId, Error> {
    let (what, members) = match order {
        Order::Pause => ("pause", None),
        Order::Resume => ("resume", None),
        Order::Cancel => ("cancel", None),
        Order::Rerun { members } => ("rerun", Some(storable(members))),
    };
    let statement = client.prepare_cached(ORDER).await?;
    let (by, reason) = (storable(by), storable(reason));
    let row = client
        .query_one(&statement, &[&workflow, &what, &by, &reason, &members])
        .await?;
    Ok(row.try_get("run_id")?)
}
