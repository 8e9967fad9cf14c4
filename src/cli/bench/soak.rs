//! Whether it stays fast: a steady flow of tasks, its last third beside its first.

use anyhow::Context as _;
use serde::Serialize;

use super::Common;
use super::cost::{Cpu, CpuSeconds, Memory, memory};
use super::figures::{Percentiles, Report, rounded};
use super::flow;
use super::ground::{Ground, run};
use super::worker::STAMP;
use crate::cli::stage::process::Role;
use crate::store::bench::{self, LiveTable};

const QUEUE: &str = "soak";

/// Tasks that every process has run before the first wait is measured.
const WARM_UP: u32 = 1000;

/// A steady flow of tasks: waits in its first and its last third.
#[derive(Clone, Debug, clap::Args)]
pub(super) struct Args {
    /// How long tasks are enqueued
    #[arg(long, value_name = "SECONDS", default_value_t = 120, value_parser = clap::value_parser!(u32).range(3..=86_400))]
    seconds: u32,
    /// Tasks a second, in a commit every 20 ms
    #[arg(long, value_name = "N", default_value_t = 2000, value_parser = clap::value_parser!(u32).range(50..=100_000))]
    rate: u32,
    /// Workers to start, each a process
    #[arg(long, value_name = "W", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=64))]
    workers: u16,
    /// Tasks that each worker runs at the same time
    #[arg(long, value_name = "S", default_value_t = 500, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    slots: u32,
    /// Hold a snapshot open meanwhile, so that no dead row can be vacuumed
    #[arg(long)]
    hold_snapshot: bool,
    #[command(flatten)]
    pub(super) common: Common,
}

#[derive(Serialize)]
struct Settings {
    seconds: u32,
    rate: u32,
    payload_bytes: u32,
    replicas: u16,
    workers: u16,
    slots: u32,
    hold_snapshot: bool,
}

#[derive(Serialize)]
struct Figures {
    tasks: usize,
    /// From the time at which a task was to be committed to the handler's first line.
    first_third_ms: Percentiles,
    last_third_ms: Percentiles,
    /// p99 of the last third, as a multiple of that of the first.
    growth: f64,
    duplicates: usize,
    lost: usize,
    damaged: usize,
    reruns: usize,
    cpu_s: CpuSeconds,
    /// Right after the last end: the table of unfinished tasks, which is empty then.
    live_table: LiveTable,
    replicas_mb: Memory,
    workers_mb: Memory,
}

pub(super) async fn measure(args: &Args, ground: &mut Ground) -> anyhow::Result<Report> {
    let mut producer = ground.open().await?;
    ground.raise_replicas().await?;
    ground.raise_workers(QUEUE, args.workers, args.slots)?;
    let mut warm_up = producer.fresh();
    warm_up.enqueue_many(QUEUE, STAMP, WARM_UP).await?;
    ground.finished(&warm_up).await?;

    let holder = ground.holder()?;
    let mut held = holder.get().await?;
    let snapshot = if args.hold_snapshot {
        Some(bench::hold_snapshot(&mut held).await?)
    } else {
        None
    };
    ground.say("a steady flow");
    let cpu = Cpu::read(&ground.stage);
    flow::run(ground, &mut producer, QUEUE, args.rate, args.seconds).await?;
    ground.finished(&producer).await?;
    let cpu = Cpu::read(&ground.stage).since(cpu);
    let live_table = run(producer.pool(), |client| {
        Box::pin(bench::read_live_table(client))
    });
    let live_table = live_table.await?;
    drop(snapshot);
    let (replicas_mb, workers_mb) = (
        memory(&ground.stage, Role::Replica),
        memory(&ground.stage, Role::Worker),
    );
    ground.stage.stop_workers().await;
    let evidence = producer.judge(ground.stage.read_ledgers()?).await?;
    let answers = producer.answers().await?;
    let damaged = producer.count() - answers.len();
    let third = answers.len() / 3;
    let first = answers.get(..third).context("nothing ran")?;
    let last = answers
        .get(answers.len() - third..)
        .context("nothing ran")?;
    let (first_third_ms, last_third_ms) = (flow::waits(first)?, flow::waits(last)?);
    let figures = Figures {
        tasks: producer.count(),
        growth: rounded(last_third_ms.p99() / first_third_ms.p99().max(0.01), 2),
        first_third_ms,
        last_third_ms,
        duplicates: evidence.duplicates,
        lost: evidence.lost,
        damaged,
        reruns: evidence.reruns,
        cpu_s: cpu,
        live_table,
        replicas_mb,
        workers_mb,
    };
    let settings = Settings {
        seconds: args.seconds,
        rate: args.rate,
        payload_bytes: args.common.payload_bytes,
        replicas: args.common.replicas,
        workers: args.workers,
        slots: args.slots,
        hold_snapshot: args.hold_snapshot,
    };
    let holds = evidence.duplicates + evidence.lost + damaged == 0;
    Report::new("soak", &settings, &figures, holds)
}
