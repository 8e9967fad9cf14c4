//! Who enqueues, on one connection, and keeps the list of what it has enqueued.

use std::collections::HashMap;
use std::ops::RangeInclusive;

use anyhow::Context as _;
use serde::Deserialize;

use super::ground::{DATABASE_DEADLINE, run};
use super::payload;
use crate::cli::stage::evidence::{self, Evidence};
use crate::store::demo::{State, find_states};
use crate::store::enqueue::{NewTask, enqueue};
use crate::store::{self, Pool, bench};
use crate::worker::ledger::Run;

/// Tasks of one bulk call.
pub(super) const BATCH: usize = 1000;

/// What a handler of a benchmark answers.
#[derive(Clone, Copy, Debug, Deserialize)]
pub(super) struct Answer {
    /// What its payload told it.
    pub(super) told: i64,
    /// When it started and ended, in microseconds by the clock of this machine.
    pub(super) started_us: i64,
    pub(super) ended_us: i64,
}

pub(super) struct Producer {
    pool: Pool,
    namespace: String,
    payload_bytes: u32,
    /// In the order in which they were enqueued.
    tasks: Vec<i64>,
}

impl Producer {
    pub(super) fn new(
        settings: store::Settings,
        namespace: String,
        payload_bytes: u32,
    ) -> anyhow::Result<Self> {
        let pool = Pool::new(&store::Settings {
            pool_size: 1,
            ..settings
        })?;
        Ok(Self {
            pool,
            namespace,
            payload_bytes,
            tasks: Vec::new(),
        })
    }

    /// Another one, with an empty list and the same connection.
    pub(super) fn fresh(&self) -> Self {
        Self {
            pool: self.pool.clone(),
            namespace: self.namespace.clone(),
            payload_bytes: self.payload_bytes,
            tasks: Vec::new(),
        }
    }

    /// Another one, for a tenant of its own.
    pub(super) fn for_tenant(&self, namespace: &str) -> Self {
        Self {
            namespace: namespace.to_owned(),
            ..self.fresh()
        }
    }

    pub(super) fn namespace(&self) -> &str {
        &self.namespace
    }

    pub(super) fn pool(&self) -> &Pool {
        &self.pool
    }

    /// So many tasks, in calls of [`BATCH`].
    pub(super) async fn enqueue_many(
        &mut self,
        queue: &str,
        task_type: &str,
        count: u32,
    ) -> anyhow::Result<()> {
        let end = self.tasks.len() + count as usize;
        while self.tasks.len() < end {
            let batch = (end - self.tasks.len()).min(BATCH);
            self.commit(queue, task_type, &vec![0; batch]).await?;
        }
        Ok(())
    }

    /// One task a value that its handler is told, in one transaction.
    pub(super) async fn commit(
        &mut self,
        queue: &str,
        task_type: &str,
        told: &[i64],
    ) -> anyhow::Result<()> {
        let tasks = self.make(self.tasks.len(), queue, task_type, told);
        self.send(tasks).await
    }

    /// Tasks from this number on, one a value that its handler is told.
    pub(super) fn make(
        &self,
        first: usize,
        queue: &str,
        task_type: &str,
        told: &[i64],
    ) -> Vec<NewTask> {
        let tasks = (first as u64..).zip(told).map(|(number, told)| NewTask {
            namespace: Some(self.namespace.clone()),
            task_queue: Some(queue.to_owned()),
            task_type: Some(task_type.to_owned()),
            payload: Some(payload::make(number, *told, self.payload_bytes).into()),
            ..NewTask::default()
        });
        tasks.collect()
    }

    /// Enqueues these in one transaction.
    pub(super) async fn send(&mut self, tasks: Vec<NewTask>) -> anyhow::Result<()> {
        let enqueued = enqueue(&self.pool, tasks, DATABASE_DEADLINE).await?;
        self.tasks
            .extend(enqueued.iter().map(|enqueued| enqueued.task_id));
        Ok(())
    }

    pub(super) fn count(&self) -> usize {
        self.tasks.len()
    }

    /// None before the first task.
    pub(super) fn ids(&self) -> Option<RangeInclusive<i64>> {
        let (first, last) = (self.tasks.iter().min()?, self.tasks.iter().max()?);
        Some(*first..=*last)
    }

    fn some_ids(&self) -> anyhow::Result<RangeInclusive<i64>> {
        self.ids().context("nothing was enqueued")
    }

    /// Where the tasks on the list stand now.
    pub(super) async fn states(&self) -> anyhow::Result<Vec<State>> {
        let ids = self.some_ids()?;
        let states = run(&self.pool, |client| Box::pin(find_states(client, ids))).await?;
        let own = self.numbers();
        Ok(states
            .into_iter()
            .filter(|state| own.contains_key(&state.id))
            .collect())
    }

    /// What the handlers of the tasks on the list answered, in the order of the list, as the database has it.
    pub(super) async fn answers(&self) -> anyhow::Result<Vec<Answer>> {
        let ids = self.some_ids()?;
        let results = run(&self.pool, |client| {
            Box::pin(bench::read_results(client, ids))
        });
        let own = self.numbers();
        let mut answers: Vec<(usize, Answer)> = Vec::with_capacity(own.len());
        for (id, result) in results.await? {
            if let Some(number) = own.get(&id) {
                let answer = serde_json::from_slice(&result).context("a result is not ours")?;
                answers.push((*number, answer));
            }
        }
        answers.sort_by_key(|(number, _)| *number);
        Ok(answers.into_iter().map(|(_, answer)| answer).collect())
    }

    /// Whether each task on the list has ended once, by the database and by what the workers wrote down.
    pub(super) async fn judge(&self, runs: Vec<Run>) -> anyhow::Result<Evidence> {
        let states = self.states().await?;
        Ok(evidence::judge(
            self.tasks.iter().copied(),
            &states,
            runs,
            &[],
        ))
    }

    fn numbers(&self) -> HashMap<i64, usize> {
        self.tasks.iter().copied().zip(0..).collect()
    }
}
