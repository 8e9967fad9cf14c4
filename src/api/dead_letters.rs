//! Dead letters and redrives, for every door.

mod view;

use super::{Error, LONGEST_PAGE, State};
use crate::domain::id::TaskId;
use crate::store::dead_letters::{self, Answer, Choice, Letter, Page, Position};
use crate::store::redrives::{self, Plan, Redrive, RedriveId};

pub use view::{AnswerView, FailedView, LetterLineView, LetterView, RedriveView};

/// Letters in one call by ids, which is one transaction.
pub const MOST_LETTERS: usize = 1_000;

/// Letters that one transaction of a discard by filter takes.
const DISCARDED: i32 = 500;

/// Transactions of one discard by filter. What is left then is for the next call.
const DISCARDS: usize = 100;

/// What a redrive by filter has come to so far.
#[derive(Debug, Clone, PartialEq)]
pub enum Started {
    /// Nothing was started: so many letters it would take.
    Counted(i64),
    /// It stands in the database; replicas drive it.
    Running(Box<Redrive>),
}

/// What a discard has come to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Discarded {
    /// Letters that are gone.
    pub letters: i64,
    /// There are more: repeat the call.
    pub more: bool,
}

impl State {
    /// Lists letters that a filter takes, the last to die first.
    pub async fn dead_letters(
        &self,
        filter: Vec<u8>,
        before: Option<Position>,
        limit: u32,
    ) -> Result<Page, Error> {
        check_limit(limit)?;
        let page = self.pool.run(self.limits.database, move |client| {
            Box::pin(async move { dead_letters::list(client, &filter, before, limit).await })
        });
        Ok(page.await?)
    }

    /// Reads one letter with its history.
    pub async fn dead_letter(&self, id: TaskId, payload: bool) -> Result<Letter, Error> {
        let found = self.pool.run(self.limits.database, move |client| {
            Box::pin(async move { dead_letters::read(client, id, payload).await })
        });
        let missing = || {
            let message = format!("there is no dead letter {id}.");
            Error::new("FP-130", message).at("task_id")
        };
        found.await?.ok_or_else(missing)
    }

    /// Redrives letters by their ids, in one transaction; those that can't be say why.
    pub async fn redrive(
        &self,
        ids: Vec<TaskId>,
        forced: bool,
        clear_pin: bool,
    ) -> Result<Vec<Answer>, Error> {
        check_ids(&ids)?;
        let answers = self.pool.run(self.limits.database, move |client| {
            Box::pin(async move { dead_letters::redrive(client, &ids, forced, clear_pin).await })
        });
        Ok(answers.await?)
    }

    /// Starts a redrive by filter, or only counts what it would take.
    pub async fn start_redrive(&self, plan: Plan, dry_run: bool) -> Result<Started, Error> {
        let started = self.pool.run(self.limits.database, move |client| {
            Box::pin(async move {
                let (id, total) = redrives::start(client, &plan, dry_run).await?;
                match id {
                    None => Ok((total, None)),
                    Some(id) => Ok((
                        total,
                        redrives::list(client, Some(id), None, 1).await?.pop(),
                    )),
                }
            })
        });
        Ok(match started.await? {
            (total, None) => Started::Counted(total),
            (_, Some(redrive)) => Started::Running(Box::new(redrive)),
        })
    }

    /// Lists redrives by filter, the newest first.
    pub async fn redrives(
        &self,
        before: Option<RedriveId>,
        limit: u32,
    ) -> Result<Vec<Redrive>, Error> {
        check_limit(limit)?;
        let found = self.pool.run(self.limits.database, move |client| {
            Box::pin(async move { redrives::list(client, None, before, limit).await })
        });
        Ok(found.await?)
    }

    /// Reads one redrive.
    pub async fn get_redrive(&self, id: RedriveId) -> Result<Redrive, Error> {
        let found = self.pool.run(self.limits.database, move |client| {
            Box::pin(async move { redrives::list(client, Some(id), None, 1).await })
        });
        found.await?.pop().ok_or_else(|| no_redrive(id))
    }

    /// Stops a redrive: once this has been answered no further letter goes.
    pub async fn stop_redrive(&self, id: RedriveId, reason: String) -> Result<Redrive, Error> {
        let stopped = self.pool.run(self.limits.database, move |client| {
            Box::pin(async move { redrives::stop(client, id, &reason).await })
        });
        if !stopped.await? {
            return Err(no_redrive(id));
        }
        self.get_redrive(id).await
    }

    /// Lets a stopped redrive go on, or one that its canary halted.
    pub async fn resume_redrive(&self, id: RedriveId) -> Result<Redrive, Error> {
        let resumed = self.pool.run(self.limits.database, move |client| {
            Box::pin(async move { redrives::resume(client, id).await })
        });
        if !resumed.await? {
            return Err(no_redrive(id));
        }
        self.get_redrive(id).await
    }

    /// How many letters a filter takes.
    pub async fn count_dead_letters(&self, choice: Choice) -> Result<i64, Error> {
        let count = self.pool.run(self.limits.database, move |client| {
            Box::pin(async move { dead_letters::count(client, &choice).await })
        });
        Ok(count.await?)
    }

    /// Discards letters by their ids; history stays.
    pub async fn discard(&self, ids: Vec<TaskId>) -> Result<Discarded, Error> {
        check_ids(&ids)?;
        let discarded = self.pool.run(self.limits.database, move |client| {
            Box::pin(async move { dead_letters::discard(client, &ids).await })
        });
        Ok(Discarded {
            letters: i64::try_from(discarded.await?).unwrap_or(i64::MAX),
            more: false,
        })
    }

    /// Discards the letters that a filter takes and that have died by now, in small transactions.
    pub async fn discard_matching(&self, choice: Choice) -> Result<Discarded, Error> {
        let (mut letters, mut from) = (0, None);
        for _ in 0..DISCARDS {
            let choice = choice.clone();
            let batch = self.pool.run(self.limits.database, move |client| {
                Box::pin(async move {
                    dead_letters::discard_matching(client, &choice, from, DISCARDED).await
                })
            });
            let (discarded, next) = batch.await?;
            letters += discarded;
            from = next;
            if from.is_none() {
                break;
            }
        }
        Ok(Discarded {
            letters,
            more: from.is_some(),
        })
    }
}

fn no_redrive(id: RedriveId) -> Error {
    Error::new("FP-131", format!("there is no redrive {id}.")).at("redrive_id")
}

fn check_limit(limit: u32) -> Result<(), Error> {
    if (1..=LONGEST_PAGE).contains(&limit) {
        return Ok(());
    }
    let message = format!("limit must be between 1 and {LONGEST_PAGE}.");
    Err(Error::invalid_value("limit", message))
}

fn check_ids(ids: &[TaskId]) -> Result<(), Error> {
    if (1..=MOST_LETTERS).contains(&ids.len()) {
        return Ok(());
    }
    let message = format!("ids must be 1 to {MOST_LETTERS} ids of dead letters.");
    Err(Error::invalid_value("ids", message))
}
