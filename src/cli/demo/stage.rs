//! What the demo runs on: the database, the processes, and the end of both.

use std::io::ErrorKind;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context as _, bail};
use serde::Serialize;
use tempfile::TempDir;
use tokio::time::Instant;

use super::Args;
use super::processes::{Life, Process, Role, stop_all};
use crate::embedded::{self, Embedded};
use crate::store::{self, migrate};
use crate::worker::ledger;

/// Tasks that one worker runs at the same time: enough that three keep two cores busy.
const SLOTS: u32 = 64;

/// Connections of one replica to the database; more bring nothing on the few cores of a laptop.
const POOL: usize = 8;

/// How quickly the replicas notice things, in milliseconds.
#[derive(Clone, Copy, Debug, Serialize)]
pub(super) struct Timing {
    /// Silence after which a replica is declared dead.
    pub(super) dead_after_ms: u64,
    /// Between two of its beats.
    pub(super) beat_ms: u64,
    /// What a worker whose stream broke has to come back.
    pub(super) reconnect_grace_ms: u64,
}

impl Timing {
    /// Short, since the demo's replicas are alone.
    const PRIVATE: Self = Self {
        dead_after_ms: 3000,
        beat_ms: 500,
        reconnect_grace_ms: 500,
    };

    /// The defaults: with a shorter death time ours would declare the database's other replicas dead.
    const SHARED: Self = Self {
        dead_after_ms: 15_000,
        beat_ms: 3000,
        reconnect_grace_ms: 500,
    };
}

/// What was killed.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Kill {
    pub(super) name: String,
    pub(super) pid: u32,
    /// Seconds after the demo's start.
    pub(super) at_s: f64,
    /// What took its place.
    pub(super) replaced_by: String,
    /// Microseconds since 1970, by the ledgers' clock.
    #[serde(skip)]
    pub(super) at_us: i64,
}

/// Dropped, it ends the processes first, then the database, then the directory.
pub(super) struct Stage {
    began: Instant,
    pub(super) namespace: String,
    pub(super) timing: Timing,
    pub(super) slots: u32,
    pub(super) processes: Vec<Process>,
    pub(super) kills: Vec<Kill>,
    database: Option<Embedded>,
    url: String,
    /// gRPC addresses of the replicas; a replacement takes over the address.
    addresses: Vec<String>,
    scratch: TempDir,
}

impl Stage {
    /// Nothing runs yet.
    pub(super) fn new(args: &Args, began: Instant) -> anyhow::Result<Self> {
        let scratch = tempfile::Builder::new()
            .prefix("fencepost-demo-")
            .tempdir()
            .context("making a temporary directory")?;
        Ok(Self {
            began,
            // Somebody else's tasks may share the database.
            namespace: format!("demo-{:08x}", fastrand::u32(..)),
            timing: if args.database_url.is_some() {
                Timing::SHARED
            } else {
                Timing::PRIVATE
            },
            slots: SLOTS,
            processes: Vec::new(),
            kills: Vec::new(),
            database: None,
            url: args.database_url.clone().unwrap_or_default(),
            addresses: Vec::new(),
            scratch,
        })
    }

    /// To a millisecond.
    fn elapsed_s(&self) -> f64 {
        (self.began.elapsed().as_secs_f64() * 1000.0).round() / 1000.0
    }

    /// How to reach the database, once it is open.
    pub(super) fn settings(&self) -> store::Settings {
        store::Settings {
            pool_size: 2,
            ..store::Settings::new(self.url.clone())
        }
    }

    /// Starts a private server and migrates it; a given database must have the schema already.
    pub(super) async fn open_database(&mut self, args: &Args) -> anyhow::Result<()> {
        if args.database_url.is_some() {
            let pending = migrate::check(&self.settings()).await?;
            if !pending.is_empty() {
                bail!(
                    "the database lacks {} of the schema's migrations: run `fencepost migrate` with its URL first",
                    pending.len()
                );
            }
            return Ok(());
        }
        let per_replica = u16::try_from(POOL + 4).unwrap_or(u16::MAX);
        let database = Embedded::start(embedded::Options {
            // One more is there while its predecessor's connections are still being ended.
            max_connections: 20 + per_replica * (args.replicas + 1),
            ..embedded::Options::default()
        })
        .await
        .context("starting a private PostgreSQL")?;
        self.url = database.url();
        self.database = Some(database);
        migrate::run(&self.settings()).await?;
        Ok(())
    }

    /// Starts the replicas, then the workers.
    pub(super) async fn raise(&mut self, args: &Args) -> anyhow::Result<()> {
        for number in 1..=args.replicas {
            self.spawn_replica(&format!("replica-{number}"), "127.0.0.1:0")?;
        }
        for process in &mut self.processes {
            self.addresses.push(process.address().await?);
        }
        for number in 0..args.workers {
            self.spawn_worker(&format!("worker-{}", number + 1), usize::from(number))?;
        }
        Ok(())
    }

    /// Kills the first worker and the last replica, and puts others in their place.
    pub(super) async fn strike(&mut self, args: &Args) -> anyhow::Result<()> {
        let worker = format!("worker-{}", args.workers + 1);
        let replica = format!("replica-{}", args.replicas + 1);
        let address = self.addresses.last().cloned().unwrap_or_default();
        self.kill("worker-1", &worker).await?;
        self.kill(&format!("replica-{}", args.replicas), &replica)
            .await?;
        self.spawn_replica(&replica, &address)?.address().await?;
        let first = self.addresses.len() - 1;
        self.spawn_worker(&worker, first)
    }

    async fn kill(&mut self, name: &str, replaced_by: &str) -> anyhow::Result<()> {
        let at_s = self.elapsed_s();
        let process = self.processes.iter_mut().find(|one| one.name == name);
        let process = process.context("no such process")?;
        process.kill(at_s).await?;
        self.kills.push(Kill {
            name: name.to_owned(),
            pid: process.pid,
            at_s,
            replaced_by: replaced_by.to_owned(),
            // Once it is gone: whatever it started, it started before.
            at_us: ledger::now_us(),
        });
        Ok(())
    }

    fn spawn_replica(&mut self, name: &str, grpc: &str) -> anyhow::Result<&mut Process> {
        let timing = self.timing;
        let ms = |ms: u64| format!("{ms}ms");
        let settings = [
            // Not an argument: others see those, and it may hold a password.
            ("FENCEPOST_DATABASE__URL", self.url.clone()),
            ("FENCEPOST_DATABASE__POOL_SIZE", POOL.to_string()),
            ("FENCEPOST_REPLICA__DEAD_AFTER", ms(timing.dead_after_ms)),
            ("FENCEPOST_REPLICA__BEAT", ms(timing.beat_ms)),
            ("FENCEPOST_REPLICA__DRAIN_TIMEOUT", ms(timing.dead_after_ms)),
            (
                "FENCEPOST_WORKERS__RECONNECT_GRACE",
                ms(timing.reconnect_grace_ms),
            ),
        ];
        let settings = settings.map(|(name, value)| (name.to_owned(), value));
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

    /// Its first replica is number `first`, so that the workers spread.
    fn spawn_worker(&mut self, name: &str, first: usize) -> anyhow::Result<()> {
        let mut urls: Vec<String> = self
            .addresses
            .iter()
            .map(|at| format!("http://{at}"))
            .collect();
        let turn = first % urls.len().max(1);
        urls.rotate_left(turn);
        let (urls, slots) = (urls.join(","), self.slots.to_string());
        let ledger = self.scratch.path().join(format!("{name}.ledger"));
        let ledger = ledger.to_string_lossy();
        let arguments = [
            "demo-worker",
            "--connect",
            &urls,
            "--namespace",
            &self.namespace,
            "--identity",
            name,
            "--slots",
            &slots,
            "--ledger",
            &ledger,
        ];
        let directory = self.scratch.path();
        self.processes.push(Process::spawn(
            directory,
            name,
            Role::Worker,
            &arguments,
            &[],
        )?);
        Ok(())
    }

    /// Fails when a process has ended that was not killed.
    pub(super) fn check(&mut self) -> anyhow::Result<()> {
        self.processes.iter_mut().try_for_each(Process::check)
    }

    /// What the workers wrote down, the killed one too.
    pub(super) fn read_ledgers(&self) -> anyhow::Result<Vec<ledger::Run>> {
        let mut runs = Vec::new();
        let workers = self.processes.iter().filter(|one| one.role == Role::Worker);
        for worker in workers {
            let path: PathBuf = self.scratch.path().join(format!("{}.ledger", worker.name));
            match ledger::read(path) {
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

    /// Everything that is left, in the order of its dependence.
    pub(super) async fn stop(mut self) {
        self.stop_workers().await;
        stop_all(&mut self.processes, Role::Replica).await;
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

/// So long may `tasks` take: a multiple of what two slow cores need.
pub(super) fn deadline(tasks: u32) -> Duration {
    Duration::from_secs(120) + Duration::from_millis(5) * tasks.saturating_sub(10_000)
}
