//! What the demo and the benchmarks run on: a database, replicas and workers as processes, and the end of them all.

pub(super) mod evidence;
pub(super) mod process;

use std::io::ErrorKind;
use std::path::PathBuf;

use anyhow::{Context as _, bail};
use tempfile::TempDir;

use crate::embedded::{self, Embedded};
use crate::store::{self, migrate};
use crate::worker::ledger;
use process::{Life, Process, Role, stop_all};

/// Dropped, it ends the processes first, then the database, then the directory.
pub(super) struct Stage {
    pub(super) processes: Vec<Process>,
    /// gRPC addresses of the replicas, in the order of their start.
    pub(super) addresses: Vec<String>,
    database: Option<Embedded>,
    /// Process id of a given server, where it runs on this machine.
    pub(super) given_database: Option<u32>,
    url: String,
    scratch: TempDir,
}

impl Stage {
    /// Nothing runs yet. Without a URL the database is a private server; `purpose` stands in the directory's name.
    pub(super) fn new(purpose: &str, url: Option<&String>) -> anyhow::Result<Self> {
        let scratch = tempfile::Builder::new()
            .prefix(&format!("fencepost-{purpose}-"))
            .tempdir()
            .context("making a temporary directory")?;
        Ok(Self {
            processes: Vec::new(),
            addresses: Vec::new(),
            database: None,
            given_database: None,
            url: url.cloned().unwrap_or_default(),
            scratch,
        })
    }

    /// How to reach the database, once it is open.
    pub(super) fn settings(&self) -> store::Settings {
        store::Settings {
            pool_size: 2,
            ..store::Settings::new(self.url.clone())
        }
    }

    /// Starts a private server and migrates it; a given database must have the schema already.
    pub(super) async fn open_database(&mut self, private: embedded::Options) -> anyhow::Result<()> {
        if !self.url.is_empty() {
            let pending = migrate::check(&self.settings()).await?;
            if !pending.is_empty() {
                bail!(
                    "the database lacks {} of the schema's migrations: run `fencepost migrate` with its URL first",
                    pending.len()
                );
            }
            return Ok(());
        }
        let database = Embedded::start(private)
            .await
            .context("starting a private PostgreSQL")?;
        self.url = database.url();
        self.database = Some(database);
        migrate::run(&self.settings()).await?;
        Ok(())
    }

    /// Starts so many replicas on free ports and waits until those are open.
    pub(super) async fn raise_replicas(
        &mut self,
        count: u16,
        settings: &[(&str, String)],
    ) -> anyhow::Result<()> {
        for number in 1..=count {
            self.spawn_replica(&format!("replica-{number}"), "127.0.0.1:0", settings)?;
        }
        for process in &mut self.processes {
            self.addresses.push(process.address().await?);
        }
        Ok(())
    }

    /// `settings` are environment variables, not arguments: others see those, and they may hold a password.
    pub(super) fn spawn_replica(
        &mut self,
        name: &str,
        grpc: &str,
        settings: &[(&str, String)],
    ) -> anyhow::Result<&mut Process> {
        let url = ("FENCEPOST_DATABASE__URL", self.url.clone());
        let settings = settings.iter().cloned().chain([url]);
        let settings: Vec<(String, String)> = settings
            .map(|(name, value)| (name.to_owned(), value))
            .collect();
        let arguments = [
            "serve",
            "--with-parent",
            "--announce",
            "--name",
            name,
            "--grpc",
            grpc,
            "--http",
            "127.0.0.1:0",
        ];
        let directory = self.scratch.path();
        let process = Process::spawn(directory, name, Role::Replica, &arguments, &settings)?;
        self.processes.push(process);
        self.processes.last_mut().context("no process")
    }

    /// Starts a worker: `arguments` are its command and what only that knows. Its first replica is number `first`, so
    /// that the workers spread.
    pub(super) fn spawn_worker(
        &mut self,
        name: &str,
        first: usize,
        arguments: &[&str],
    ) -> anyhow::Result<()> {
        let mut urls: Vec<String> = self
            .addresses
            .iter()
            .map(|at| format!("http://{at}"))
            .collect();
        let turn = first % urls.len().max(1);
        urls.rotate_left(turn);
        let urls = urls.join(",");
        let ledger = self.ledger_of(name);
        let ledger = ledger.to_string_lossy();
        let common = ["--connect", &urls, "--identity", name, "--ledger", &ledger];
        let arguments = [arguments, &common].concat();
        let directory = self.scratch.path();
        let process = Process::spawn(directory, name, Role::Worker, &arguments, &[])?;
        self.processes.push(process);
        Ok(())
    }

    fn ledger_of(&self, worker: &str) -> PathBuf {
        self.scratch.path().join(format!("{worker}.ledger"))
    }

    /// Fails when a process has ended that was not killed.
    pub(super) fn check(&mut self) -> anyhow::Result<()> {
        self.processes.iter_mut().try_for_each(Process::check)
    }

    /// What the workers wrote down, the killed ones too.
    pub(super) fn read_ledgers(&self) -> anyhow::Result<Vec<ledger::Run>> {
        let mut runs = Vec::new();
        let workers = self.processes.iter().filter(|one| one.role == Role::Worker);
        for worker in workers {
            match ledger::read(self.ledger_of(&worker.name)) {
                Ok(of_worker) => runs.extend(of_worker),
                // It was stopped before it had begun.
                Err(error) if error.kind() == ErrorKind::NotFound => {}
                Err(error) => {
                    let what = format!("reading the ledger of {}", worker.name);
                    return Err(anyhow::Error::new(error).context(what));
                }
            }
        }
        Ok(runs)
    }

    /// Workers first, so that the answers to their last results reach them.
    pub(super) async fn stop_workers(&mut self) {
        stop_all(&mut self.processes, Role::Worker).await;
    }

    pub(super) async fn stop_replicas(&mut self) {
        stop_all(&mut self.processes, Role::Replica).await;
    }

    /// Ends the workers with what they are doing.
    pub(super) async fn kill_workers(&mut self) -> anyhow::Result<()> {
        let workers = self
            .processes
            .iter_mut()
            .filter(|one| one.role == Role::Worker && one.life == Life::Up);
        for worker in workers {
            worker.kill(0.0).await?;
        }
        Ok(())
    }

    /// What the replicas have logged so far.
    pub(super) fn replica_logs(&self) -> anyhow::Result<String> {
        let replicas = self
            .processes
            .iter()
            .filter(|one| one.role == Role::Replica);
        replicas.map(Process::log).collect()
    }

    /// The server's process, where it runs on this machine.
    pub(super) fn database_pid(&self) -> Option<u32> {
        match &self.database {
            Some(private) => private.pid(),
            None => self.given_database,
        }
    }

    /// Everything that is left, in the order of its dependence.
    pub(super) async fn stop(mut self) {
        self.stop_workers().await;
        self.stop_replicas().await;
        // Its data goes with it, so no checkpoint: on a busy disk that takes seconds.
        if let Some(database) = &mut self.database
            && let Err(error) = database.kill().await
        {
            tracing::warn!(%error, "the private PostgreSQL did not stop");
        }
    }

    /// The ends of the logs of what is still up.
    pub(super) fn logs(&self) -> String {
        let up = self.processes.iter().filter(|one| one.life == Life::Up);
        up.map(|process| process.log_tail() + "\n").collect()
    }
}
