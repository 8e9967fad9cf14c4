//! Who plays in the demo: the stage, how quickly its replicas notice things, and what was killed.

use std::time::Duration;

use anyhow::Context as _;
use serde::Serialize;
use tokio::time::Instant;

use super::Args;
use crate::cli::stage::Stage;
use crate::embedded;
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

/// The processes of the demo, and the kills among them.
pub(super) struct Cast {
    began: Instant,
    pub(super) stage: Stage,
    pub(super) namespace: String,
    pub(super) timing: Timing,
    pub(super) slots: u32,
    pub(super) kills: Vec<Kill>,
}

impl Cast {
    /// Nothing runs yet.
    pub(super) fn new(args: &Args, began: Instant) -> anyhow::Result<Self> {
        Ok(Self {
            began,
            stage: Stage::new("demo", args.database_url.as_ref())?,
            // Somebody else's tasks may share the database.
            namespace: format!("demo-{:08x}", fastrand::u32(..)),
            timing: if args.database_url.is_some() {
                Timing::SHARED
            } else {
                Timing::PRIVATE
            },
            slots: SLOTS,
            kills: Vec::new(),
        })
    }

    /// To a millisecond.
    fn elapsed_s(&self) -> f64 {
        (self.began.elapsed().as_secs_f64() * 1000.0).round() / 1000.0
    }

    /// Starts the database, the replicas, then the workers.
    pub(super) async fn raise(&mut self, args: &Args) -> anyhow::Result<()> {
        let per_replica = u16::try_from(POOL + 4).unwrap_or(u16::MAX);
        let private = embedded::Options {
            // One more is there while its predecessor's connections are still being ended.
            max_connections: 20 + per_replica * (args.replicas + 1),
            ..embedded::Options::default()
        };
        self.stage.open_database(private).await?;
        let settings = self.replica_settings();
        self.stage.raise_replicas(args.replicas, &settings).await?;
        for number in 0..args.workers {
            self.spawn_worker(&format!("worker-{}", number + 1), usize::from(number))?;
        }
        Ok(())
    }

    /// Kills the first worker and the last replica, and puts others in their place.
    pub(super) async fn strike(&mut self, args: &Args) -> anyhow::Result<()> {
        let worker = format!("worker-{}", args.workers + 1);
        let replica = format!("replica-{}", args.replicas + 1);
        // The replacement takes over the address.
        let address = self.stage.addresses.last().cloned().unwrap_or_default();
        self.kill("worker-1", &worker).await?;
        self.kill(&format!("replica-{}", args.replicas), &replica)
            .await?;
        let settings = self.replica_settings();
        let process = self.stage.spawn_replica(&replica, &address, &settings)?;
        process.address().await?;
        let first = self.stage.addresses.len() - 1;
        self.spawn_worker(&worker, first)
    }

    async fn kill(&mut self, name: &str, replaced_by: &str) -> anyhow::Result<()> {
        let at_s = self.elapsed_s();
        let process = self.stage.processes.iter_mut().find(|one| one.name == name);
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

    fn replica_settings(&self) -> [(&'static str, String); 5] {
        let timing = self.timing;
        let ms = |ms: u64| format!("{ms}ms");
        [
            ("FENCEPOST_DATABASE__POOL_SIZE", POOL.to_string()),
            ("FENCEPOST_REPLICA__DEAD_AFTER", ms(timing.dead_after_ms)),
            ("FENCEPOST_REPLICA__BEAT", ms(timing.beat_ms)),
            ("FENCEPOST_REPLICA__DRAIN_TIMEOUT", ms(timing.dead_after_ms)),
            (
                "FENCEPOST_WORKERS__RECONNECT_GRACE",
                ms(timing.reconnect_grace_ms),
            ),
        ]
    }

    fn spawn_worker(&mut self, name: &str, first: usize) -> anyhow::Result<()> {
        let slots = self.slots.to_string();
        let arguments = [
            "demo-worker",
            "--namespace",
            &self.namespace,
            "--slots",
            &slots,
        ];
        self.stage.spawn_worker(name, first, &arguments)
    }
}

/// So long may `tasks` take: a multiple of what two slow cores need.
pub(super) fn deadline(tasks: u32) -> Duration {
    Duration::from_secs(120) + Duration::from_millis(5) * tasks.saturating_sub(10_000)
}
