//! Workflows: staging them, what operators order, and looking at them.

mod view;

use std::time::Duration;

use tokio::time::Instant;

use super::{Error, LONGEST_PAGE, State};
use crate::domain::id::{RunId, TaskId, WorkflowId};
use crate::store::enqueue::NewTask;
use crate::store::workflows::{self, Filter, NewWorkflow, Order, Started, Workflow};
use crate::store::{dispatchers, runs};

pub use view::{AddedView, EventView, ListedRunView, MemberView, StartedView, WorkflowView};

/// How long a call goes on with the members after its order is stored; what is left then is a chore's.
const TEND: Duration = Duration::from_secs(10);

/// The states of a run.
const STATES: [&str; 4] = ["running", "done", "failed", "cancelled"];

impl State {
    /// Stages a workflow with all its members, or nothing.
    pub async fn start_workflow(&self, workflow: NewWorkflow) -> Result<Started, Error> {
        check_members(&workflow.members)?;
        Ok(workflows::start(&self.pool, workflow, self.limits.database).await?)
    }

    /// Adds members to a workflow that is not over, all or none.
    pub async fn add_members(
        &self,
        workflow: WorkflowId,
        members: Vec<NewTask>,
    ) -> Result<(RunId, Vec<TaskId>), Error> {
        check_members(&members)?;
        if members.is_empty() {
            return Err(Error::invalid_value(
                "members",
                "members must not be empty.",
            ));
        }
        Ok(workflows::add_members(&self.pool, workflow, members, self.limits.database).await?)
    }

    /// Gives an order, and sees to the members as far as that goes at once; answers the workflow as it is then.
    pub async fn order_workflow(
        &self,
        workflow: WorkflowId,
        order: Order,
        by: String,
        reason: String,
    ) -> Result<Workflow, Error> {
        let ordered = self.pool.run(self.limits.database, move |client| {
            Box::pin(async move {
                let run = workflows::order(client, workflow, &order, &by, &reason).await?;
                let mut open = runs::find_open(client, workflow).await?;
                open.retain(|one| *one != run);
                open.push(run);
                Ok(open)
            })
        });
        self.tend(ordered.await?).await?;
        self.workflow(workflow, None).await
    }

    /// Does what these runs need until they need nothing, or the time is over. A failure after the order was stored is
    /// none of the caller's: the chores go on.
    pub(super) async fn tend(&self, runs: Vec<RunId>) -> Result<(), Error> {
        let (until, grace) = (Instant::now() + TEND, self.limits.cancel_grace);
        if runs.is_empty() {
            return Ok(());
        }
        loop {
            let runs = runs.clone();
            let tended = self.pool.run(self.limits.database, move |client| {
                Box::pin(async move {
                    let (mut moved, mut routes) = (false, Vec::new());
                    let mut cancelled = Vec::new();
                    for (run, step) in runs::look(client, &runs).await? {
                        let done = runs::take_step(client, run, step, grace).await?;
                        moved |= done.moved;
                        routes.extend(done.routes);
                        cancelled.extend(done.cancelled);
                    }
                    if !routes.is_empty() {
                        dispatchers::wake_sleepers(client, &routes, 0).await?;
                    }
                    Ok((moved, routes, cancelled))
                })
            });
            let (moved, routes, cancelled) = match tended.await {
                Ok(tended) => tended,
                Err(error) => {
                    tracing::debug!(%error, "a workflow's members are left to the chores");
                    return Ok(());
                }
            };
            self.count_cancelled(cancelled).await;
            if let Some(hub) = self.hub.borrow().as_ref() {
                for route in routes {
                    hub.wakes.route(route, true);
                }
            }
            if !moved || Instant::now() >= until {
                return Ok(());
            }
        }
    }

    /// A run of a workflow, the newest one unless told.
    pub async fn workflow(
        &self,
        workflow: WorkflowId,
        run: Option<RunId>,
    ) -> Result<Workflow, Error> {
        let found = self.pool.run(self.limits.database, move |client| {
            Box::pin(async move { workflows::read(client, workflow, run).await })
        });
        found.await?.ok_or_else(|| {
            let (what, id, field) = match run {
                Some(run) => ("run", run, "run_id"),
                None => ("workflow", workflow, "workflow_id"),
            };
            Error::new("FP-032", format!("there is no {what} {id}.")).at(field)
        })
    }

    /// Runs with ids below `before`, newest first; and where the next page begins.
    pub async fn workflows(
        &self,
        filter: Filter,
        before: Option<RunId>,
        limit: u32,
    ) -> Result<(Vec<workflows::Listed>, Option<RunId>), Error> {
        check_limit(limit)?;
        if let Some(state) = &filter.state
            && !STATES.contains(&state.as_str())
        {
            let message = format!("state must be one of {}.", STATES.join(", "));
            return Err(Error::invalid_value("state", message));
        }
        let page = self.pool.run(self.limits.database, move |client| {
            Box::pin(async move { workflows::list(client, &filter, before, limit).await })
        });
        Ok(page.await?)
    }

    /// Members of a run, the newest one unless told, with ordinals above `after`.
    pub async fn members(
        &self,
        workflow: WorkflowId,
        run: Option<RunId>,
        after: i32,
        limit: u32,
    ) -> Result<Vec<workflows::Member>, Error> {
        check_limit(limit)?;
        let run = self.workflow(workflow, run).await?.run_id;
        let members = self.pool.run(self.limits.database, move |client| {
            Box::pin(async move { workflows::list_members(client, run, after, limit).await })
        });
        Ok(members.await?)
    }

    /// Events of a run, the newest one unless told, with ids above `after`.
    pub async fn workflow_events(
        &self,
        workflow: WorkflowId,
        run: Option<RunId>,
        after: i64,
        limit: u32,
    ) -> Result<Vec<workflows::Event>, Error> {
        check_limit(limit)?;
        let run = self.workflow(workflow, run).await?.run_id;
        let events = self.pool.run(self.limits.database, move |client| {
            Box::pin(async move { workflows::list_events(client, run, after, limit).await })
        });
        Ok(events.await?)
    }
}

fn check_limit(limit: u32) -> Result<(), Error> {
    if (1..=LONGEST_PAGE).contains(&limit) {
        return Ok(());
    }
    let message = format!("limit must be between 1 and {LONGEST_PAGE}.");
    Err(Error::invalid_value("limit", message))
}

/// A member has no namespace of its own.
fn check_members(members: &[NewTask]) -> Result<(), Error> {
    let place = members.iter().position(|member| member.namespace.is_some());
    place.map_or(Ok(()), |place| {
        let message = format!(
            "task {}: a member is in the namespace of its workflow and names none.",
            place + 1
        );
        Err(Error::invalid_value("namespace", message))
    })
}
