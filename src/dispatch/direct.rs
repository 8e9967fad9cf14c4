//! Direct dispatch: a caller waits for the result of a request that is in no table.
//!
//! A request without a worker waits in line, in memory and visibly, until a slot is free for it, its caller's time is
//! over or the replica drains; the line is served in order of arrival, and [`Turns`] share free slots with the rows
//! that wait. What a worker has started is never started again: a failure goes to the caller, who decides.
//!
//! A namespace's preference for nodes looks at the workers of this replica alone, since a request can't travel to
//! another one; a requirement holds as for every task.

mod judge;
mod line;
mod placements;
mod turns;

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use parking_lot::{Mutex, MutexGuard};
use tokio::sync::{Notify, oneshot, watch};

use super::hub::Hub;
use super::in_flight::Ended;
use super::reports;
use crate::domain::outcome::Failure;
use crate::fleet::Profile;
use crate::store::{self, Pool};
use judge::{Next, judge};
use line::{Line, Number};
pub use line::{LineEntry, MAX_PARKED, MAX_PARKED_BYTES, serve};
use placements::Placements;
pub use turns::{Turns, Waiting};

/// What a caller asks for.
#[derive(Clone, PartialEq)]
pub struct Request {
    /// Tenant.
    pub namespace: String,
    /// Pool of workers.
    pub task_queue: String,
    /// What the worker must know how to do.
    pub task_type: String,
    /// Empty for none; else only workers on that node may have it.
    pub node: String,
    /// Opaque, passed on as it is.
    pub payload: Bytes,
    /// Media type of the payload.
    pub content_type: String,
    /// Free text for people.
    pub labels: HashMap<String, String>,
}

impl std::fmt::Debug for Request {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Request")
            .field("namespace", &self.namespace)
            .field("task_queue", &self.task_queue)
            .field("task_type", &self.task_type)
            .field("bytes", &self.payload.len())
            .finish_non_exhaustive()
    }
}

/// What a worker made of it. `Debug` leaves the result out.
#[derive(Clone, PartialEq)]
pub struct Reply {
    /// The result and its media type, if there is one.
    pub result: Option<(Bytes, String)>,
    /// The worker's name for people.
    pub worker: String,
    /// The node that it runs on; empty for none.
    pub node: String,
    /// Workers that it was sent to, those that did not take it included.
    pub deliveries: u32,
}

impl std::fmt::Debug for Reply {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Reply")
            .field("worker", &self.worker)
            .field("deliveries", &self.deliveries)
            .finish_non_exhaustive()
    }
}

/// Why there is no result.
#[derive(Debug, thiserror::Error)]
pub enum DirectError {
    /// As many requests wait in line as this replica keeps.
    #[error("as many requests wait for a worker here as this replica keeps")]
    Full,
    /// The replica takes nothing new; no worker has started it.
    #[error("this replica is shutting down")]
    Draining,
    /// The time is over and no worker has started it.
    #[error("no worker that serves this had a free slot in time")]
    NobodyFree,
    /// The time is over while a worker had it; it has been asked to stop.
    #[error("the worker did not end it in time")]
    TimedOut,
    /// A worker had started it and is gone. It may have done the work.
    #[error("the connection to the worker that had it is lost")]
    Lost,
    /// The worker reports a failure that another call may mend.
    #[error("{}", .0.message)]
    Failed(Failure),
    /// The worker reports a failure that no call like this can mend, or a result that can't be passed on.
    #[error("{}", .0.message)]
    Rejected(Failure),
    /// No connected worker takes a frame of its size.
    #[error("{}", .0.message)]
    Unservable(Failure),
    /// The placement of its namespace is not known, and can't be read.
    #[error(transparent)]
    Store(#[from] store::Error),
}

/// The direct requests of one term.
#[derive(Debug, Default)]
pub struct Direct {
    line: Mutex<Line>,
    turns: Mutex<Turns>,
    /// Something in the line has a time at which it is to be looked at.
    news: Notify,
    placements: Placements,
}

impl Direct {
    /// Whose turn it is. Not to be held across an await.
    pub(super) fn turns(&self) -> MutexGuard<'_, Turns> {
        self.turns.lock()
    }

    /// What waits and what runs, for people, in order of arrival.
    #[must_use]
    pub fn list(&self) -> Vec<LineEntry> {
        self.line.lock().list(Instant::now())
    }

    /// Reads placements again.
    ///
    /// # Errors
    /// Those of the database; the last known ones hold.
    pub async fn refresh(&self, pool: &Pool) -> Result<(), store::Error> {
        self.placements.refresh(pool).await?;
        self.news.notify_one();
        Ok(())
    }
}

/// Serves the line until the term ends.
pub async fn run(hub: Arc<Hub>) {
    let ended = hub.ended.clone();
    ended.run_until_cancelled(serve_all(&hub)).await;
}

async fn serve_all(hub: &Hub) {
    let mut changes = hub.fleet.changes();
    loop {
        changes.mark_unchanged();
        let again = serve(hub);
        let later = async {
            match again {
                Some(at) => tokio::time::sleep_until(at.into()).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            _ = changes.changed() => {}
            () = hub.direct.news.notified() => {}
            () = later => {}
        }
    }
}

/// Has one request done, within `time`. Dropping the future is how a caller goes away: the request leaves the line, or
/// its worker is asked to stop.
///
/// # Errors
/// [`DirectError`], which says whether a worker may have started it.
pub async fn execute(
    hub: Arc<Hub>,
    request: Request,
    time: Duration,
) -> Result<Reply, DirectError> {
    let until = Instant::now() + time;
    let learned = hub.direct.placements.learn(&hub.pool, &request.namespace);
    tokio::time::timeout_at(until.into(), learned)
        .await
        .map_err(|_| DirectError::NobodyFree)??;
    // Subscribed before the request is in line: a drain in between is not missed.
    let mut draining = hub.draining.subscribe();
    let (ticket, mut ended) = Ticket::take(&hub, request, until)?;
    loop {
        let Ended { outcome, worker } = ticket.ended(&mut ended, &mut draining, until).await?;
        let avoided = match judge(outcome) {
            Next::Reply(result) => {
                return Ok(ticket.reply(result, worker.map(|(_, worker)| worker)));
            }
            Next::Fail(error) => return Err(error),
            Next::Again { elsewhere } => worker.filter(|_| elsewhere).map(|(session, _)| session),
        };
        let (reply, again) = oneshot::channel();
        hub.direct
            .line
            .lock()
            .park_again(ticket.number, reply, avoided);
        ended = again;
    }
}

/// One request's place in line, from its arrival to its end; dropped, it leaves no trace.
struct Ticket {
    hub: Arc<Hub>,
    number: Number,
}

impl Ticket {
    fn take(
        hub: &Arc<Hub>,
        request: Request,
        until: Instant,
    ) -> Result<(Self, oneshot::Receiver<Ended>), DirectError> {
        let placement = hub.direct.placements.get(&request.namespace);
        let (reply, ended) = oneshot::channel();
        let number =
            hub.direct
                .line
                .lock()
                .park(request, placement.unwrap_or_default(), reply, until)?;
        let ticket = Self {
            hub: Arc::clone(hub),
            number,
        };
        Ok((ticket, ended))
    }

    /// Waits for the end of the present delivery, or of the wait for one.
    async fn ended(
        &self,
        ended: &mut oneshot::Receiver<Ended>,
        draining: &mut watch::Receiver<bool>,
        until: Instant,
    ) -> Result<Ended, DirectError> {
        let hub = &self.hub;
        if serve(hub).is_some() {
            // A time has come up that the loop is to wait for.
            hub.direct.news.notify_one();
        }
        let drained = async {
            // The sender lives as long as the hub. What runs may end in peace.
            let drains = draining.wait_for(|draining| *draining).await.is_ok();
            if !drains || !self.withdraw() {
                std::future::pending::<()>().await;
            }
        };
        tokio::select! {
            biased;
            // Without an answer: the session was let go while this replica drains, or the term has ended.
            ended = &mut *ended => ended.map_err(|_| DirectError::Lost),
            () = drained => Err(DirectError::Draining),
            () = tokio::time::sleep_until(until.into()) => Err(if self.withdraw() {
                DirectError::NobodyFree
            } else {
                DirectError::TimedOut
            }),
            () = hub.ended.cancelled() => Err(if self.withdraw() {
                DirectError::Draining
            } else {
                DirectError::Lost
            }),
        }
    }

    /// Leaves the line. False: a worker has it.
    fn withdraw(&self) -> bool {
        self.hub.direct.line.lock().withdraw(self.number)
    }

    fn reply(&self, result: Option<(Bytes, String)>, worker: Option<Arc<Profile>>) -> Reply {
        let deliveries = self.hub.direct.line.lock().deliveries(self.number);
        let (worker, node) = worker.map_or_else(Default::default, |worker| {
            (worker.identity.clone(), worker.scope.node.clone())
        });
        Reply {
            result,
            worker,
            node,
            deliveries,
        }
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        let last = self
            .hub
            .direct
            .line
            .lock()
            .remove(self.number, self.hub.dispatcher);
        // What has ended is not in flight any more: then nobody is told anything.
        if let Some(token) = last {
            reports::cancel(&self.hub, &[token], "The caller no longer waits.");
        }
    }
}
