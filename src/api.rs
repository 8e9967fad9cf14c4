//! What producers can ask for, the same through every door: [`State`] does it, [`http`] and [`grpc`] translate,
//! and one [`Error`] says what is wrong.

mod cancels;
pub mod dead_letters;
mod duration;
mod error;
pub mod events;
mod execute;
pub mod grpc;
pub mod http;
mod lives;
mod metrics;
mod operators;
pub mod page;
mod pauses;
mod traces;
mod view;
pub mod waits;
mod workflows;

use std::time::Duration;

use tokio::sync::watch;
use tokio::time::Instant;

use crate::dispatch::CurrentHub;
use crate::store::Pool;
use crate::store::enqueue::{self, Enqueued, NewTask};
use crate::store::tasks::{self, Filter, Page, Parts, Task};

pub use cancels::{CancelMatching, CancelReport, CancelView, instant};
pub use duration::{milliseconds, span};
pub use error::{CODES, Code, Error, Kind, status_of};
pub use events::Events;
pub use execute::{Direct, LONGEST_EXECUTE};
pub use lives::{HistoryView, ReplicaView, ShareView};
pub use metrics::Metrics;
pub use operators::{
    DeclaredView, NamespaceView, NodeSeen, QueueChoice, QueueView, ResumedKeyView, StoppedKeyView,
    UnservedView, WhyView, WorkerView,
};
pub use pauses::{AddressView, PauseView, PausedView, ResumedView};
pub use view::{ListedView, TaskView};
pub use waits::{Hints, Waits};
pub use workflows::{AddedView, EventView, ListedRunView, MemberView, StartedView, WorkflowView};

use waits::Waited;

/// The longest wait in one call, so that a client or proxy in between does not take it for dead.
pub const LONGEST_WAIT: Duration = Duration::from_mins(1);

/// The most lines of a list in one page.
pub const LONGEST_PAGE: u32 = 1_000;

/// What a task can be.
const STATES: [&str; 7] = [
    "scheduled",
    "ready",
    "held",
    "running",
    "done",
    "failed",
    "cancelled",
];

/// Whether this replica is fit for traffic, as its server keeps it.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Readiness {
    /// Whether `/readyz` says yes.
    pub ready: bool,
    /// Why not, a short sentence each.
    pub reasons: Vec<String>,
}

/// Bounds of the producers' side.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Bytes of a request, over HTTP and gRPC alike.
    pub body: usize,
    /// From a request's first byte to its answer; a wait has its own time on top.
    pub request: Duration,
    /// One try of a database call, the wait for a connection included.
    pub database: Duration,
    /// What a running task gets to end by itself after a cancel, before its replica ends it; the death time of a
    /// replica comes on top, so that the owner is always first.
    pub cancel_grace: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            body: 16 * 1024 * 1024,
            request: Duration::from_secs(30),
            database: Duration::from_secs(10),
            // cancel grace 30 s, death time 15 s
            cancel_grace: Duration::from_secs(45),
        }
    }
}

/// All that the doors share.
#[derive(Debug, Clone)]
pub struct State {
    /// The database.
    pub pool: Pool,
    /// Who waits for the end of what.
    pub waits: Waits,
    /// The dispatcher of this replica, for what is asked of it alone.
    pub hub: CurrentHub,
    /// Fed by the server.
    pub readiness: watch::Receiver<Readiness>,
    /// What happens, for those who watch.
    pub events: Events,
    /// Whether operators see what tasks carry: payloads, and results where nobody waits for them.
    pub show_payloads: bool,
    /// Bounds.
    pub limits: Limits,
    /// What this process counts.
    pub metrics: Metrics,
}

impl State {
    /// Enqueues all tasks or none, and answers in their order.
    pub async fn enqueue(&self, tasks: Vec<NewTask>) -> Result<Vec<Enqueued>, Error> {
        Ok(enqueue::enqueue(&self.pool, tasks, self.limits.database).await?)
    }

    /// Reads one task.
    pub async fn get(&self, id: i64, parts: Parts) -> Result<Task, Error> {
        let found = self
            .pool
            .run(self.limits.database, move |client| {
                Box::pin(async move { tasks::read_task(client, id, parts).await })
            })
            .await?;
        match found {
            Some(task) => Ok(task),
            None => Err(self.absence(id).await?),
        }
    }

    /// Says of a task that is not there whether it can have left history.
    async fn absence(&self, id: i64) -> Result<Error, Error> {
        let left = self.pool.run(self.limits.database, move |client| {
            Box::pin(async move { tasks::has_left_history(client, id).await })
        });
        Ok(if left.await? {
            Error::task_left(id)
        } else {
            Error::no_task(id)
        })
    }

    /// Lists tasks with ids below `before`, newest first.
    pub async fn list(
        &self,
        filter: Filter,
        before: Option<i64>,
        limit: u32,
    ) -> Result<Page, Error> {
        if !(1..=LONGEST_PAGE).contains(&limit) {
            let message = format!("limit must be between 1 and {LONGEST_PAGE}.");
            return Err(Error::invalid_value("limit", message));
        }
        if let Some(state) = &filter.state
            && !STATES.contains(&state.as_str())
        {
            let message = format!("state must be one of {}.", STATES.join(", "));
            return Err(Error::invalid_value("state", message));
        }
        let page = self.pool.run(self.limits.database, move |client| {
            Box::pin(async move { tasks::list_tasks(client, &filter, before, limit).await })
        });
        Ok(page.await?)
    }

    /// Answers, with its result, when the task has ended or the time is over, whichever comes first. A replica that
    /// begins to shut down says so instead, at once: another one can go on waiting.
    pub async fn wait(&self, id: i64, time: Duration) -> Result<Task, Error> {
        if time > LONGEST_WAIT {
            let message = format!("timeout must be at most {} s.", LONGEST_WAIT.as_secs());
            return Err(Error::invalid_value("timeout", message));
        }
        let until = Instant::now() + time;
        let parts = Parts {
            payload: false,
            result: true,
        };
        // Subscribed before the look: an end in between is not missed.
        let mut waiting = self.waits.subscribe(id)?;
        let task = self.get(id, parts).await?;
        if task.ended {
            return Ok(task);
        }
        match waiting.ended(until).await {
            Waited::Ended => self.get(id, parts).await,
            Waited::Late => Ok(task),
            Waited::Leaving => Err(Error::new(
                "FP-121",
                "this replica shuts down and waits for nothing; the task goes on: ask another replica.",
            )),
        }
    }
}
