//! Cancelling: one task, by its id or its dispatch key, and all that match a filter.

use std::time::{Duration, Instant};

use chrono::{DateTime, Utc};
use serde::Serialize;
use utoipa::ToSchema;

use super::{Error, State};
use crate::dispatch::counts;
use crate::domain::id::RouteId;
use crate::store::cancel::{self, BATCH, CancelAnswer, Counts, How, Matching, Only};
use crate::store::tasks::Parts;

/// A call cancels for so long and then answers where it stands: well within the time of a request.
const BUDGET: Duration = Duration::from_secs(10);

/// What an unfinished task can be.
const STATES: [(&str, Only); 4] = [
    ("scheduled", Only::Waiting),
    ("ready", Only::Waiting),
    ("held", Only::Waiting),
    ("running", Only::Running),
];

/// Cancels all unfinished tasks that match.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CancelMatching {
    /// Which.
    pub matching: Matching,
    /// It is meant that the filter is empty.
    pub all: bool,
    /// Only count them.
    pub dry_run: bool,
    /// Why, for those who look at them later.
    pub reason: String,
    /// Where an earlier call stopped; 0 for the beginning.
    pub after: i64,
    /// A call that takes longer stops and says where.
    pub budget: Duration,
}

impl Default for CancelMatching {
    fn default() -> Self {
        Self {
            matching: Matching::default(),
            all: false,
            dry_run: false,
            reason: String::new(),
            after: 0,
            budget: BUDGET,
        }
    }
}

/// What a call came to. Repeating the whole is safe: it finds what is left.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, ToSchema)]
pub struct CancelReport {
    /// Nothing was cancelled, only counted.
    pub dry_run: bool,
    /// Unfinished tasks that match.
    pub matched: u64,
    /// Of these, what waited and has ended as cancelled.
    pub ended: u64,
    /// What runs and is asked to stop.
    pub requested: u64,
    /// What had ended before it came to it.
    pub over: u64,
    /// What somebody's open transaction has locked: it is left as it is, and a repeat finds it.
    pub busy: u64,
    /// The `after` of the next call; null at the end.
    #[schema(required)]
    pub next: Option<String>,
}

impl CancelReport {
    fn add(&mut self, counts: &Counts) {
        self.ended += counts.ended;
        self.requested += counts.requested;
        self.over += counts.over;
        self.busy += counts.busy;
        self.matched += counts.ended + counts.requested + counts.over + counts.busy;
    }
}

/// One task that was to be cancelled.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, ToSchema)]
pub struct CancelView {
    /// The task; a string in JSON.
    #[serde(serialize_with = "as_text")]
    #[schema(value_type = String)]
    pub task_id: i64,
    /// `cancelled`, `requested` (it runs), or the state in which it had ended already; in an answer about several,
    /// `not_found` too, and `busy` where somebody's open transaction has locked it, so that a repeat is due.
    pub state: String,
}

impl CancelView {
    /// Whether nothing has been asked of the task.
    #[must_use]
    pub fn is_missed(&self) -> bool {
        ["not_found", "busy"].contains(&self.state.as_str())
    }
}

#[expect(
    clippy::trivially_copy_pass_by_ref,
    reason = "serde passes a reference"
)]
fn as_text<S: serde::Serializer>(id: &i64, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(id)
}

/// Reads an instant of a filter.
pub fn instant(field: &str, text: &str) -> Result<DateTime<Utc>, Error> {
    match DateTime::parse_from_rfc3339(text) {
        Ok(at) => Ok(at.to_utc()),
        Err(_) => {
            let message =
                format!("{field} must be a time such as 2030-01-31T08:00:00Z (RFC 3339).");
            Err(Error::invalid_value(field, message))
        }
    }
}

impl State {
    /// Cancels a task: `cancelled`, `requested` (it runs), or the state in which it had ended already.
    pub async fn cancel(&self, id: i64, reason: String) -> Result<String, Error> {
        let how = self.how(reason, None);
        let answers = self
            .pool
            .run(self.limits.database, move |client| {
                Box::pin(async move {
                    let answers = cancel::cancel(client, &[id], &how).await?;
                    if answers.iter().any(|answer| answer.state == "requested") {
                        cancel::announce(client).await?;
                    }
                    Ok(answers)
                })
            })
            .await?;
        self.count_cancelled(answers.iter().filter_map(CancelAnswer::ended_on).collect())
            .await;
        // Its workflow may have ended with it.
        self.tend(answers.iter().filter_map(|answer| answer.run).collect())
            .await?;
        match answers.into_iter().next() {
            None => Err(Error::no_task(id)),
            // It ended between the statement's snapshot and its lock; a new snapshot tells how.
            Some(answer) if answer.state == "ended" => {
                Ok(self.get(id, Parts::default()).await?.state)
            }
            Some(answer) => Ok(answer.state),
        }
    }

    /// Cancels each of these tasks, whatever becomes of the others.
    pub async fn cancel_each(&self, ids: Vec<i64>, reason: &str) -> Result<Vec<CancelView>, Error> {
        let mut views = Vec::with_capacity(ids.len());
        for id in ids {
            let state = match self.cancel(id, reason.to_owned()).await {
                Ok(state) => state,
                Err(error) if error.code.code == "FP-104" => "not_found".to_owned(),
                Err(error) if error.code.code == "FP-112" => "busy".to_owned(),
                Err(error) => return Err(error),
            };
            views.push(CancelView { task_id: id, state });
        }
        Ok(views)
    }

    /// Cancels the task that a dispatch key names.
    pub async fn cancel_key(
        &self,
        namespace: Option<String>,
        key: String,
        reason: String,
    ) -> Result<CancelView, Error> {
        let namespace = namespace.unwrap_or_else(|| "default".to_owned());
        let missing = format!("no task of namespace {namespace} has the dispatch key {key}.");
        let found = self.pool.run(self.limits.database, move |client| {
            Box::pin(async move { cancel::find_key(client, &namespace, &key).await })
        });
        let Some(id) = found.await? else {
            return Err(Error::new("FP-104", missing).at("dispatch_key"));
        };
        Ok(CancelView {
            task_id: id,
            state: self.cancel(id, reason).await?,
        })
    }

    /// Cancels what matches, in small batches by id, until all is done or its time is over.
    pub async fn cancel_matching(&self, asked: CancelMatching) -> Result<CancelReport, Error> {
        let only = check(&asked)?;
        let until = Instant::now() + asked.budget;
        let mut report = CancelReport {
            dry_run: asked.dry_run,
            ..CancelReport::default()
        };
        let mut after = asked.after;
        loop {
            let matching = asked.matching.clone();
            let found = self.pool.run(self.limits.database, move |client| {
                Box::pin(async move { cancel::find(client, &matching, after).await })
            });
            let found = found.await?;
            if asked.dry_run {
                report.matched += u64::try_from(found.ids.len()).unwrap_or(u64::MAX);
            } else {
                for ids in found.ids.chunks(BATCH) {
                    let (ids, how) = (ids.to_vec(), self.how(asked.reason.clone(), only));
                    let done = self.pool.run(self.limits.database, move |client| {
                        Box::pin(async move { cancel::cancel_batch(client, &ids, &how).await })
                    });
                    let done = done.await?;
                    self.count_cancelled(done.routes.clone()).await;
                    self.tend(done.runs.iter().copied().collect()).await?;
                    report.add(&done);
                }
            }
            match found.next {
                None => return Ok(report),
                Some(last) if Instant::now() >= until => {
                    report.next = Some(last.to_string());
                    return Ok(report);
                }
                Some(last) => after = last,
            }
        }
    }

    /// Counts tasks of these routes that have ended as cancelled; routes that this replica has not met are read first.
    pub(super) async fn count_cancelled(&self, routes: Vec<RouteId>) {
        if routes.is_empty() {
            return;
        }
        let hub = self.hub.borrow().clone();
        if let Some(hub) = hub
            && let Err(error) = hub.routes.get(&self.pool, routes.iter().copied()).await
        {
            tracing::debug!(%error, "cancelled tasks are counted without their routes");
        }
        counts::cancelled(&self.metrics.telemetry, routes);
    }

    fn how(&self, reason: String, only: Option<Only>) -> How {
        How {
            grace: self.limits.cancel_grace,
            reason,
            only,
        }
    }
}

/// Judges a filter; answers which of the two kinds of tasks its state means.
fn check(asked: &CancelMatching) -> Result<Option<Only>, Error> {
    let is_empty = asked.matching == Matching::default();
    if is_empty && !asked.all {
        let message = "an empty filter means every unfinished task: say so with all.";
        return Err(Error::new("FP-041", message).at("all"));
    }
    if !is_empty && asked.all {
        let message = "all and a filter exclude each other.";
        return Err(Error::invalid_value("all", message));
    }
    let Some(state) = &asked.matching.state else {
        return Ok(None);
    };
    match STATES.iter().find(|(name, _)| name == state) {
        Some((_, only)) => Ok(Some(*only)),
        None => {
            let names = STATES.map(|(name, _)| name).join(", ");
            let message = format!("state must be one of {names}.");
            Err(Error::invalid_value("state", message))
        }
    }
}
