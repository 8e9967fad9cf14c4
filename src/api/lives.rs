//! What operators follow: the life of one task, and that of replicas.

use serde::Serialize;
use utoipa::ToSchema;

use super::dead_letters::FailedView;
use super::operators::{LONGEST_LIST, SILENCE};
use super::{Error, State};
use crate::domain::id::DispatcherId;
use crate::store::dispatchers::{self, Replica};
use crate::store::history::{self, History};
use crate::store::queues;

/// What a replica has claimed is counted so far.
const COUNTED: i64 = 10_000;

/// The life of one task, beside what reading it answers.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, ToSchema)]
pub struct HistoryView {
    task_id: String,
    /// The task that it is a redrive of, else its own id.
    origin: String,
    enqueued_at: String,
    #[schema(required)]
    concurrency_key: Option<String>,
    #[schema(required)]
    max_attempts: Option<i32>,
    #[schema(required)]
    run_timeout_ms: Option<i32>,
    #[schema(required)]
    heartbeat_timeout_ms: Option<i32>,
    #[schema(required)]
    workflow_id: Option<String>,
    #[schema(required)]
    run_id: Option<String>,
    #[schema(required)]
    ordinal: Option<i32>,
    payload_bytes: i32,
    #[schema(required)]
    result_bytes: Option<i32>,
    /// Failed tries.
    attempt: i32,
    /// Deliveries whose worker or replica vanished; null where that is known no longer.
    #[schema(required)]
    losses: Option<i32>,
    /// Deliveries; null where that is known no longer.
    #[schema(required)]
    fence: Option<i32>,
    /// Who has it now.
    #[schema(required)]
    dispatcher: Option<String>,
    #[schema(required)]
    replica: Option<String>,
    #[schema(required)]
    claimed_at: Option<String>,
    #[schema(required)]
    deadline: Option<String>,
    #[schema(required)]
    start_by: Option<String>,
    /// Why it died, where its letter is there.
    #[schema(required)]
    letter_cause: Option<String>,
    #[schema(required)]
    redriven_as: Option<String>,
    /// Failed and lost deliveries, the first at first.
    failures: Vec<FailedView>,
}

impl From<History> for HistoryView {
    fn from(history: History) -> Self {
        Self {
            task_id: history.id.to_string(),
            origin: history.origin.to_string(),
            enqueued_at: history.enqueued_at,
            concurrency_key: history.concurrency_key,
            max_attempts: history.max_attempts,
            run_timeout_ms: history.run_timeout_ms,
            heartbeat_timeout_ms: history.heartbeat_timeout_ms,
            workflow_id: history.workflow.map(|workflow| workflow.0.to_string()),
            run_id: history.workflow.map(|workflow| workflow.1.to_string()),
            ordinal: history.workflow.map(|workflow| workflow.2),
            payload_bytes: history.payload_bytes,
            result_bytes: history.result_bytes,
            attempt: history.attempt,
            losses: history.losses,
            fence: history.fence,
            dispatcher: history.dispatcher.map(|id| id.to_string()),
            replica: history.replica,
            claimed_at: history.claimed_at,
            deadline: history.deadline,
            start_by: history.start_by,
            letter_cause: history.letter_cause,
            redriven_as: history.redriven_as.map(|id| id.to_string()),
            failures: history.failures.into_iter().map(Into::into).collect(),
        }
    }
}

/// One start of a replica.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, ToSchema)]
pub struct ReplicaView {
    /// New at every start.
    pub dispatcher: String,
    /// What people call it.
    pub name: String,
    /// Of the program.
    pub version: String,
    /// `up`, `draining`, `silent` or `dead`.
    pub state: String,
    /// Whether it is the one that answers.
    pub answers: bool,
    /// It waits to be told of new work.
    pub sleeping: bool,
    /// A quota keeps it from claiming.
    pub held_back: bool,
    /// Since when it is there.
    pub since: String,
    /// Since when it is not.
    #[schema(required)]
    pub dead_at: Option<String>,
    /// Milliseconds since its last beat.
    pub silent_ms: u64,
    /// Workers that are connected to it.
    pub workers: i64,
    /// Their slots.
    pub slots: i64,
    /// Of these, taken ones.
    pub busy: i64,
    /// Tasks that it has, counted up to 10,000.
    pub claimed: i64,
}

impl ReplicaView {
    pub(super) fn new(replica: Replica, own: Option<DispatcherId>) -> Self {
        Self {
            answers: own == Some(replica.id),
            dispatcher: replica.id.to_string(),
            name: replica.name,
            version: replica.version,
            state: replica.state,
            sleeping: replica.sleeping,
            held_back: replica.held_back,
            since: replica.started_at,
            dead_at: replica.dead_at,
            silent_ms: u64::try_from(replica.silent.as_millis()).unwrap_or(u64::MAX),
            workers: replica.workers,
            slots: replica.slots,
            busy: replica.busy,
            claimed: replica.claimed,
        }
    }
}

/// What a namespace has of the slots now.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, ToSchema)]
pub struct ShareView {
    /// Tenant.
    pub namespace: String,
    /// Its tasks that replicas have claimed.
    pub claimed: i64,
}

/// The first of these, and whether there are more.
fn up_to_longest<T>(lines: impl Iterator<Item = T>) -> (Vec<T>, bool) {
    let mut lines: Vec<T> = lines.collect();
    let longest = usize::try_from(LONGEST_LIST).unwrap_or_default();
    let more = lines.len() > longest;
    lines.truncate(longest);
    (lines, more)
}

impl State {
    /// The namespaces that have anything claimed, the most at first, at most 1,000; and whether there are more.
    pub async fn shares(&self) -> Result<(Vec<ShareView>, bool), Error> {
        let found = self.pool.run(self.limits.database, |client| {
            Box::pin(async move { queues::count_shares(client, LONGEST_LIST + 1).await })
        });
        let views = found.await?.into_iter();
        let views = views.map(|(namespace, claimed)| ShareView { namespace, claimed });
        Ok(up_to_longest(views))
    }

    /// How the deliveries of a task went, and who has it.
    pub async fn history(&self, id: i64) -> Result<HistoryView, Error> {
        let found = self.pool.run(self.limits.database, move |client| {
            Box::pin(async move { history::read(client, id).await })
        });
        match found.await? {
            Some(history) => Ok(history.into()),
            None => Err(self.absence(id).await?),
        }
    }

    /// The starts of replicas that are kept, the living first, at most 1,000; and whether there are more.
    pub async fn replicas(&self) -> Result<(Vec<ReplicaView>, bool), Error> {
        let found = self.pool.run(self.limits.database, |client| {
            Box::pin(
                async move { dispatchers::list(client, SILENCE, LONGEST_LIST + 1, COUNTED).await },
            )
        });
        let own = self.hub.borrow().as_ref().map(|hub| hub.dispatcher);
        let views = found.await?.into_iter();
        Ok(up_to_longest(views.map(|one| ReplicaView::new(one, own))))
    }

    /// Refuses what would show payloads where operators may not see them.
    pub(super) fn may_show_payloads(&self) -> Result<(), Error> {
        if self.show_payloads {
            return Ok(());
        }
        let message = "payloads are hidden here: server.show_payloads = true shows them.";
        Err(Error::new("FP-116", message).at("payload"))
    }
}
