//! How fast tasks are enqueued: in bulk, and one a commit.

use std::time::Instant;

use anyhow::Context as _;
use serde::Serialize;
use tokio::task::JoinSet;

use super::Common;
use super::cost::{Cpu, CpuSeconds};
use super::figures::{Percentiles, Report, rate};
use super::ground::Ground;
use super::producer::Producer;
use super::worker::STAMP;
use crate::worker::ledger::now_us;

const QUEUE: &str = "enqueue";

/// Producers: many tasks a call, and one a commit.
#[derive(Clone, Debug, clap::Args)]
pub(super) struct Args {
    /// Tasks to enqueue in bulk
    #[arg(long, value_name = "N", default_value_t = 50_000, value_parser = clap::value_parser!(u32).range(1..=10_000_000))]
    tasks: u32,
    /// Tasks of one call in bulk, each of which is a transaction
    #[arg(long, value_name = "N", default_value_t = 1000, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    tasks_a_call: u32,
    /// Tasks to enqueue one by one, each with its own commit, on one connection: with nobody to wake, then beside sleeping
    /// replicas
    #[arg(long, value_name = "N", default_value_t = 5_000, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    singles: u32,
    #[command(flatten)]
    pub(super) common: Common,
}

#[derive(Serialize)]
struct Settings {
    tasks: u32,
    tasks_a_call: u32,
    singles: u32,
    payload_bytes: u32,
    replicas: u16,
}

#[derive(Serialize)]
struct Figures {
    bulk_tasks_per_s: f64,
    bulk_cpu_s: CpuSeconds,
    /// With nobody to wake.
    #[serde(flatten)]
    single: Single,
    /// Beside replicas that sleep.
    waking: Single,
    lost: usize,
}

#[derive(Serialize)]
struct Single {
    single_tasks_per_s: f64,
    single_cpu_s: CpuSeconds,
    single_ms: Percentiles,
}

pub(super) async fn measure(args: &Args, ground: &mut Ground) -> anyhow::Result<Report> {
    let mut producer = ground.open().await?;
    // The route is made before the clock runs.
    producer.commit(QUEUE, STAMP, &[0]).await?;
    ground.say("enqueueing");
    // So are the tasks, as applications have theirs.
    let told = vec![0; args.tasks as usize];
    let mut first = producer.count();
    let mut calls = Vec::new();
    for told in told.chunks(args.tasks_a_call as usize) {
        calls.push(producer.make(first, QUEUE, STAMP, told));
        first += told.len();
    }
    let (start, cpu) = (Instant::now(), Cpu::read(&ground.stage));
    for call in calls {
        producer.send(call).await?;
    }
    let (bulk, bulk_cpu_s) = (start.elapsed(), Cpu::read(&ground.stage).since(cpu));
    let (producer, single) = one_by_one(ground, producer, args.singles).await?;
    ground.say("enqueueing beside sleeping replicas");
    ground.raise_replicas().await?;
    let (producer, waking) = one_by_one(ground, producer, args.singles).await?;
    ground.stage.check()?;
    let lost = producer.count() - producer.states().await?.len();
    let common = &args.common;
    let settings = Settings {
        tasks: args.tasks,
        tasks_a_call: args.tasks_a_call,
        singles: args.singles,
        payload_bytes: common.payload_bytes,
        replicas: common.replicas,
    };
    let figures = Figures {
        bulk_tasks_per_s: rate(f64::from(args.tasks), bulk),
        bulk_cpu_s,
        single,
        waking,
        lost,
    };
    Report::new("enqueue", &settings, &figures, lost == 0)
}

/// In a task of its own, as an application's are: the thread that waits for everything is woken more slowly.
async fn one_by_one(
    ground: &Ground,
    mut producer: Producer,
    tasks: u32,
) -> anyhow::Result<(Producer, Single)> {
    let (start, cpu) = (Instant::now(), Cpu::read(&ground.stage));
    let mut enqueueing = JoinSet::new();
    enqueueing.spawn(async move {
        let mut waits = Vec::with_capacity(tasks as usize);
        for _ in 0..tasks {
            let sent = now_us();
            producer.commit(QUEUE, STAMP, &[0]).await?;
            waits.push(now_us() - sent);
        }
        anyhow::Ok((producer, waits))
    });
    let done = enqueueing.join_next().await.context("nobody enqueued")?;
    let (producer, waits) = done??;
    let single = Single {
        single_tasks_per_s: rate(f64::from(tasks), start.elapsed()),
        single_cpu_s: Cpu::read(&ground.stage).since(cpu),
        single_ms: Percentiles::of_us(waits)?,
    };
    Ok((producer, single))
}
