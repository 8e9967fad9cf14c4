//! What a replica costs while many workers are connected to it and nothing happens.

use std::hint::black_box;
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use serde::Serialize;
use tokio::time::sleep;

use super::Common;
use super::cost::{Cpu, Memory, memory};
use super::figures::{Report, rounded};
use super::ground::Ground;
use super::worker::COPIES;
use crate::cli::stage::process::Role;

/// For all workers to connect.
const CONNECT_DEADLINE: Duration = Duration::from_secs(60);

/// Between two looks whether they have.
const LOOK: Duration = Duration::from_millis(100);

/// After they have: their first pings come close together.
const SETTLE: Duration = Duration::from_secs(2);

/// What a replica costs while many workers are connected and nothing happens.
#[derive(Clone, Debug, clap::Args)]
pub(super) struct Args {
    /// Workers to connect
    #[arg(long, value_name = "W", default_value_t = 1000, value_parser = clap::value_parser!(u32).range(1..=20_000))]
    workers: u32,
    /// How long to watch
    #[arg(long, value_name = "SECONDS", default_value_t = 30, value_parser = clap::value_parser!(u32).range(1..=86_400))]
    seconds: u32,
    #[command(flatten)]
    pub(super) common: Common,
}

#[derive(Serialize)]
struct Settings {
    workers: u32,
    seconds: u32,
    replicas: u16,
}

#[derive(Serialize)]
struct Figures {
    /// Before the first worker.
    alone_mb: Memory,
    replicas_mb: Memory,
    /// Of one core, all replicas together.
    replicas_cpu_percent: Option<f64>,
    /// What a page of memory cost that nobody touched meanwhile, in microseconds. Above a few of them this machine takes
    /// idle memory away, and whoever has idle workers pays for it: a ping touches some twenty pages.
    cold_page_us: f64,
}

/// Memory that is left alone.
struct Untouched(Vec<u8>);

impl Untouched {
    const PAGE: usize = 4096;
    const PAGES: usize = 2048;

    fn new() -> Self {
        Self(vec![1; Self::PAGE * Self::PAGES])
    }

    /// Microseconds a page, in the mean.
    fn touch(self) -> f64 {
        let start = Instant::now();
        for page in self.0.chunks(Self::PAGE) {
            black_box(page.first().copied());
        }
        rounded(start.elapsed().as_secs_f64() * 1e6 / Self::PAGES as f64, 2)
    }
}

pub(super) async fn measure(args: &Args, ground: &mut Ground) -> anyhow::Result<Report> {
    let _producer = ground.open().await?;
    ground.raise_replicas().await?;
    let alone_mb = memory(&ground.stage, Role::Replica);
    let (mut left, mut number) = (args.workers, 0);
    while left > 0 {
        let copies = left.min(COPIES);
        number += 1;
        ground.spawn_worker(&format!("idle-{number}"), number, "idle", 1, copies)?;
        left -= copies;
    }
    wait_for(ground, args.workers).await?;
    ground.say("watching");
    sleep(SETTLE).await;
    let (untouched, cpu, start) = (Untouched::new(), Cpu::read(&ground.stage), Instant::now());
    sleep(Duration::from_secs(u64::from(args.seconds))).await;
    let used = Cpu::read(&ground.stage).since(cpu).replicas;
    let span = start.elapsed().as_secs_f64();
    ground.stage.check()?;
    let figures = Figures {
        alone_mb,
        replicas_mb: memory(&ground.stage, Role::Replica),
        replicas_cpu_percent: used.map(|seconds| rounded(seconds / span * 100.0, 2)),
        cold_page_us: untouched.touch(),
    };
    let settings = Settings {
        workers: args.workers,
        seconds: args.seconds,
        replicas: args.common.replicas,
    };
    // A slow goodbye of so many is no part of the measurement.
    ground.stage.kill_workers().await?;
    Report::new("idle", &settings, &figures, true)
}

/// Until the replicas have logged so many connections.
async fn wait_for(ground: &mut Ground, workers: u32) -> anyhow::Result<()> {
    let end = Instant::now() + CONNECT_DEADLINE;
    loop {
        let logs = ground.stage.replica_logs()?;
        let connected = logs.matches("\"worker connected\"").count();
        if connected >= workers as usize {
            return Ok(());
        }
        if Instant::now() >= end {
            bail!("only {connected} of {workers} workers have connected in time");
        }
        ground.stage.check().context("while workers connect")?;
        sleep(LOOK).await;
    }
}
