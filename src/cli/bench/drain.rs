//! How fast a backlog drains, what that costs, and that nothing is lost or run twice.

use anyhow::Context as _;
use serde::Serialize;

use super::Common;
use super::cost::{Cpu, CpuSeconds, Memory, memory};
use super::figures::{Report, rate, rounded};
use super::ground::{Ground, run};
use super::producer::Producer;
use super::worker::STAMP;
use crate::cli::stage::process::Role;
use crate::store::bench::{self, Counters};

const QUEUE: &str = "drain";

/// A backlog from the first claim to the last end.
#[derive(Clone, Debug, clap::Args)]
pub(super) struct Args {
    /// Tasks in the backlog
    #[arg(long, value_name = "N", default_value_t = 50_000, value_parser = clap::value_parser!(u32).range(1..=10_000_000))]
    tasks: u32,
    /// Workers to start, each a process
    #[arg(long, value_name = "W", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=64))]
    workers: u16,
    /// Tasks that each worker runs at the same time
    #[arg(long, value_name = "S", default_value_t = 2000, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    slots: u32,
    /// Hold a snapshot open meanwhile, so that no dead row can be vacuumed
    #[arg(long)]
    hold_snapshot: bool,
    #[command(flatten)]
    pub(super) common: Common,
}

#[derive(Serialize)]
struct Settings {
    tasks: u32,
    payload_bytes: u32,
    replicas: u16,
    workers: u16,
    slots: u32,
    hold_snapshot: bool,
}

#[derive(Serialize)]
struct Figures {
    /// From the first claim to the last end, by the database's clock.
    tasks_per_s: f64,
    span_s: f64,
    duplicates: usize,
    lost: usize,
    damaged: usize,
    reruns: usize,
    /// From before the workers' start to after the last end.
    cpu_s: CpuSeconds,
    wal_bytes_per_task: f64,
    /// Transactions of the whole database, a statement outside of any being one.
    commits_per_task: f64,
    replicas_mb: Memory,
    workers_mb: Memory,
}

pub(super) async fn measure(args: &Args, ground: &mut Ground) -> anyhow::Result<Report> {
    let mut producer = ground.open().await?;
    ground.raise_replicas().await?;
    ground.say("enqueueing the backlog");
    producer.enqueue_many(QUEUE, STAMP, args.tasks).await?;
    run(producer.pool(), |client| Box::pin(bench::analyze(client))).await?;
    if ground.is_private() {
        run(producer.pool(), |client| {
            Box::pin(bench::checkpoint(client))
        })
        .await?;
    }
    ground.say("draining it");
    let holder = ground.holder()?;
    let mut held = holder.get().await?;
    let snapshot = if args.hold_snapshot {
        Some(bench::hold_snapshot(&mut held).await?)
    } else {
        None
    };
    let (before, cpu) = (counters(&producer).await?, Cpu::read(&ground.stage));
    ground.raise_workers(QUEUE, args.workers, args.slots)?;
    ground.finished(&producer).await?;
    let (at_end, cpu) = (
        counters(&producer).await?,
        Cpu::read(&ground.stage).since(cpu),
    );
    let replicas_mb = memory(&ground.stage, Role::Replica);
    let workers_mb = memory(&ground.stage, Role::Worker);
    drop(snapshot);
    // Sessions that end report what they have done, and the answers to the last results are evidence too.
    ground.stage.stop_workers().await;
    ground.stage.stop_replicas().await;
    let after = counters(&producer).await?;

    let ids = producer.ids().context("nothing was enqueued")?;
    let span = run(producer.pool(), |client| {
        Box::pin(bench::read_span(client, ids))
    });
    let span = span.await?.context("no task has ended")?;
    let evidence = producer.judge(ground.stage.read_ledgers()?).await?;
    let damaged = producer.count() - producer.answers().await?.len();
    let tasks = f64::from(args.tasks);
    let figures = Figures {
        tasks_per_s: rate(tasks, span),
        span_s: rounded(span.as_secs_f64(), 3),
        duplicates: evidence.duplicates,
        lost: evidence.lost,
        damaged,
        reruns: evidence.reruns,
        cpu_s: cpu,
        wal_bytes_per_task: rounded((at_end.wal_bytes - before.wal_bytes) as f64 / tasks, 0),
        commits_per_task: rounded((after.transactions - before.transactions) as f64 / tasks, 4),
        replicas_mb,
        workers_mb,
    };
    let settings = Settings {
        tasks: args.tasks,
        payload_bytes: args.common.payload_bytes,
        replicas: args.common.replicas,
        workers: args.workers,
        slots: args.slots,
        hold_snapshot: args.hold_snapshot,
    };
    let holds = evidence.duplicates + evidence.lost + damaged == 0;
    Report::new("drain", &settings, &figures, holds)
}

async fn counters(producer: &Producer) -> anyhow::Result<Counters> {
    run(producer.pool(), |client| {
        Box::pin(bench::read_counters(client))
    })
    .await
}
