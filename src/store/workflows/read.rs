//! Looking at workflows.

use tokio_postgres::Row;

use crate::domain::id::{RunId, TaskId, WorkflowId};
use crate::store::{Client, Error, storable};

const READ: &str = include_str!("../../../sql/read_workflow.sql");
const LIST: &str = include_str!("../../../sql/list_workflows.sql");
const LIST_MEMBERS: &str = include_str!("../../../sql/list_members.sql");
const LIST_EVENTS: &str = include_str!("../../../sql/list_events.sql");

/// Runs that one page of a list looks at, at most.
const LOOKED_AT: i64 = 10_000;

/// One run of a workflow.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Workflow {
    /// Over all its runs.
    pub workflow_id: WorkflowId,
    /// This run.
    pub run_id: RunId,
    /// This run's number, from 1.
    pub run_number: i32,
    /// Tenant.
    pub namespace: String,
    /// For people.
    pub name: String,
    /// `all`, `race` or `fail_fast`.
    pub mode: String,
    /// running, done, failed or cancelled.
    pub state: String,
    /// Who paused it, why and when, as a JSON object.
    pub paused: Option<String>,
    /// The task that its end enqueued.
    pub continued_as: Option<TaskId>,
    /// RFC 3339.
    pub created_at: String,
    /// RFC 3339.
    pub ended_at: Option<String>,
    /// Members in all, done, failed and cancelled.
    pub members: [i64; 4],
}

/// Reads a run of a workflow, the newest one unless told.
pub async fn read(
    client: &Client,
    workflow: WorkflowId,
    run: Option<RunId>,
) -> Result<Option<Workflow>, Error> {
    let statement = client.prepare_cached(READ).await?;
    let row = client.query_opt(&statement, &[&workflow, &run]).await?;
    row.as_ref().map(read_row).transpose()
}

fn read_row(row: &Row) -> Result<Workflow, Error> {
    Ok(Workflow {
        workflow_id: row.try_get("workflow_id")?,
        run_id: row.try_get("run_id")?,
        run_number: row.try_get("run_number")?,
        namespace: row.try_get("namespace")?,
        name: row.try_get("name")?,
        mode: row.try_get("mode")?,
        state: row.try_get("state")?,
        paused: row.try_get("paused")?,
        continued_as: row.try_get("continued_as")?,
        created_at: row.try_get("created_at")?,
        ended_at: row.try_get("ended_at")?,
        members: [
            row.try_get("total")?,
            row.try_get("done")?,
            row.try_get("failed")?,
            row.try_get("cancelled")?,
        ],
    })
}

/// Which runs to list; absent is any.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Filter {
    /// Tenant.
    pub namespace: Option<String>,
    /// As [`Workflow::state`].
    pub state: Option<String>,
    /// The name, as it is.
    pub name: Option<String>,
}

/// A line of a list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listed {
    /// Over all its runs.
    pub workflow_id: WorkflowId,
    /// This run.
    pub run_id: RunId,
    /// Its number, from 1.
    pub run_number: i32,
    /// Tenant.
    pub namespace: String,
    /// For people.
    pub name: String,
    /// As [`Workflow::mode`].
    pub mode: String,
    /// As [`Workflow::state`].
    pub state: String,
    /// Whether it is paused.
    pub paused: bool,
    /// RFC 3339.
    pub created_at: String,
    /// RFC 3339.
    pub ended_at: Option<String>,
}

/// Lists runs with ids below `before`, newest first, at most `limit`; and where the next page begins. The work of a page
/// is bounded: it ends early where the filters match little.
pub async fn list(
    client: &Client,
    filter: &Filter,
    before: Option<RunId>,
    limit: u32,
) -> Result<(Vec<Listed>, Option<RunId>), Error> {
    let statement = client.prepare_cached(LIST).await?;
    let (before, limit) = (before.unwrap_or(i64::MAX), i64::from(limit));
    let text = |given: &Option<String>| given.as_deref().map(storable);
    let (namespace, state, name) = (
        text(&filter.namespace),
        text(&filter.state),
        text(&filter.name),
    );
    let rows = client
        .query(
            &statement,
            &[&namespace, &state, &name, &before, &LOOKED_AT, &limit],
        )
        .await?;
    let (mut runs, mut next) = (Vec::new(), None);
    for row in &rows {
        if row.try_get::<_, i64>("looked_at")? == LOOKED_AT {
            next = row.try_get("last_run")?;
        }
        if row.try_get::<_, Option<i64>>("run_id")?.is_some() {
            runs.push(listed(row)?);
        }
    }
    if i64::try_from(runs.len()).is_ok_and(|found| found == limit) {
        next = runs.last().map(|run: &Listed| run.run_id);
    }
    Ok((runs, next))
}

fn listed(row: &Row) -> Result<Listed, Error> {
    Ok(Listed {
        workflow_id: row.try_get("workflow_id")?,
        run_id: row.try_get("run_id")?,
        run_number: row.try_get("run_number")?,
        namespace: row.try_get("namespace")?,
        name: row.try_get("name")?,
        mode: row.try_get("mode")?,
        state: row.try_get("state")?,
        paused: row.try_get("is_paused")?,
        created_at: row.try_get("created_at")?,
        ended_at: row.try_get("ended_at")?,
    })
}

/// A member, and the task that stands for it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Member {
    /// Its place, from 1.
    pub ordinal: i32,
    /// Its task now.
    pub task_id: TaskId,
    /// As a task's, or `ended` where the outcome has left history.
    pub state: String,
    /// Failed tries so far.
    pub attempt: i32,
    /// What went wrong, in a word.
    pub error_class: Option<String>,
}

/// Members of a run with ordinals above `after`, at most `limit`.
pub async fn list_members(
    client: &Client,
    run: RunId,
    after: i32,
    limit: u32,
) -> Result<Vec<Member>, Error> {
    let statement = client.prepare_cached(LIST_MEMBERS).await?;
    let rows = client
        .query(&statement, &[&run, &after, &i64::from(limit)])
        .await?;
    let members = rows.iter().map(|row| {
        Ok(Member {
            ordinal: row.try_get("ordinal")?,
            task_id: row.try_get("task_id")?,
            state: row.try_get("state")?,
            attempt: row.try_get("attempt")?,
            error_class: row.try_get("error_class")?,
        })
    });
    members.collect()
}

/// Something that happened to a run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Event {
    /// Grows within a run.
    pub event_id: i64,
    /// `staged`, `paused`, `member_done` and so on.
    pub kind: String,
    /// The task that it is about.
    pub task_id: Option<TaskId>,
    /// The place of that member.
    pub ordinal: Option<i32>,
    /// A JSON object.
    pub detail: Option<String>,
    /// RFC 3339.
    pub recorded_at: String,
}

/// Events of a run with ids above `after`, oldest first, at most `limit`.
pub async fn list_events(
    client: &Client,
    run: RunId,
    after: i64,
    limit: u32,
) -> Result<Vec<Event>, Error> {
    let statement = client.prepare_cached(LIST_EVENTS).await?;
    let rows = client
        .query(&statement, &[&run, &after, &i64::from(limit)])
        .await?;
    let events = rows.iter().map(|row| {
        Ok(Event {
            event_id: row.try_get("event_id")?,
            kind: row.try_get("kind")?,
            task_id: row.try_get("task_id")?,
            ordinal: row.try_get("ordinal")?,
            detail: row.try_get("detail")?,
            recorded_at: row.try_get("recorded_at")?,
        })
    });
    events.collect()
}
