//! What every benchmark stands on: the stage with a database for measurements, a namespace and a producer.

use std::time::Duration;

use tokio::time::sleep;

use super::producer::Producer;
use super::{Common, cost};
use crate::cli::output;
use crate::cli::stage::Stage;
use crate::embedded;
use crate::store::{self, Pool, bench};

/// For one statement.
pub(super) const DATABASE_DEADLINE: Duration = Duration::from_secs(60);

/// Between two looks whether the work is done, short against every run.
const LOOK: Duration = Duration::from_millis(20);

/// Connections of one replica to the database, its listener and what comes and goes besides.
const PER_REPLICA: u16 = 24;

/// The private server: memory for the working set, and no checkpoint within a run.
const SERVER: [(&str, &str); 3] = [
    ("shared_buffers", "512MB"),
    ("max_wal_size", "8GB"),
    ("checkpoint_timeout", "15min"),
];

pub(super) struct Ground {
    pub(super) stage: Stage,
    pub(super) namespace: String,
    /// Those that workers serve beside it.
    pub(super) tenants: Vec<String>,
    replicas: u16,
    payload_bytes: u32,
    quiet: bool,
    private: bool,
}

impl Ground {
    /// Nothing runs yet.
    pub(super) fn new(common: &Common) -> anyhow::Result<Self> {
        Ok(Self {
            stage: Stage::new("bench", common.database_url.as_ref())?,
            // Somebody else's tasks may share the database.
            namespace: format!("bench-{:08x}", fastrand::u32(..)),
            tenants: Vec::new(),
            replicas: common.replicas,
            payload_bytes: common.payload_bytes,
            quiet: common.json,
            private: common.database_url.is_none(),
        })
    }

    /// Opens the database, for somebody who enqueues on one connection.
    pub(super) async fn open(&mut self) -> anyhow::Result<Producer> {
        self.say("starting PostgreSQL, replicas and workers");
        let private = embedded::Options {
            max_connections: 20 + PER_REPLICA * self.replicas,
            settings: SERVER
                .map(|(name, value)| (name.to_owned(), value.to_owned()))
                .into(),
            ..embedded::Options::default()
        };
        self.stage.open_database(private).await?;
        let producer = Producer::new(
            self.stage.settings(),
            self.namespace.clone(),
            self.payload_bytes,
        )?;
        if !self.private {
            let session = run(producer.pool(), |client| {
                Box::pin(bench::read_session(client))
            });
            self.stage.given_database = cost::server_of(session.await?);
        }
        Ok(producer)
    }

    /// A connection that may idle in a transaction for as long as it likes.
    pub(super) fn holder(&self) -> anyhow::Result<Pool> {
        Ok(Pool::new(&store::Settings {
            session_settings: false,
            ..self.stage.settings()
        })?)
    }

    /// Starts the replicas with the settings that they have by default, except for a log that programs can read.
    pub(super) async fn raise_replicas(&mut self) -> anyhow::Result<()> {
        let settings = [("FENCEPOST_LOG__FORMAT", "json".to_owned())];
        self.stage.raise_replicas(self.replicas, &settings).await
    }

    /// Starts workers of a queue with so many slots each.
    pub(super) fn raise_workers(
        &mut self,
        queue: &str,
        workers: u16,
        slots: u32,
    ) -> anyhow::Result<()> {
        for number in 0..workers {
            let name = format!("{queue}-worker-{}", number + 1);
            self.spawn_worker(&name, usize::from(number), queue, slots, 1)?;
        }
        Ok(())
    }

    /// Starts one process of `copies` workers.
    pub(super) fn spawn_worker(
        &mut self,
        name: &str,
        first: usize,
        queue: &str,
        slots: u32,
        copies: u32,
    ) -> anyhow::Result<()> {
        let (slots, copies) = (slots.to_string(), copies.to_string());
        let bytes = self.payload_bytes.to_string();
        let mut namespaces = vec![self.namespace.clone()];
        namespaces.extend_from_slice(&self.tenants);
        let namespaces = namespaces.join(",");
        let arguments = [
            "bench-worker",
            "--namespace",
            &namespaces,
            "--queue",
            queue,
            "--slots",
            &slots,
            "--copies",
            &copies,
            "--payload-bytes",
            &bytes,
        ];
        self.stage.spawn_worker(name, first, &arguments)
    }

    /// Whether the database is a server of our own.
    pub(super) fn is_private(&self) -> bool {
        self.private
    }

    /// Waits until every task that `producer` has enqueued has ended.
    pub(super) async fn finished(&mut self, producer: &Producer) -> anyhow::Result<()> {
        let Some(mut ids) = producer.ids() else {
            return Ok(());
        };
        let pool = producer.pool();
        loop {
            let asked = ids.clone();
            let unfinished = run(pool, move |client| {
                Box::pin(bench::find_unfinished(client, asked))
            });
            match unfinished.await? {
                Some(first) => ids = first..=*ids.end(),
                None => return Ok(()),
            }
            self.stage.check()?;
            sleep(LOOK).await;
        }
    }

    /// What is being done, for people who wait.
    pub(super) fn say(&self, text: &str) {
        if !self.quiet {
            output::say(text);
        }
    }
}

/// One piece of database work of a benchmark.
pub(super) async fn run<T, F>(pool: &Pool, work: F) -> anyhow::Result<T>
where
    T: Send + 'static,
    F: for<'c> FnOnce(&'c mut crate::store::Client) -> crate::store::Work<'c, T> + Send + 'static,
{
    Ok(pool.run(DATABASE_DEADLINE, work).await?)
}
