//! How long a committed task waits for its handler: at an idle replica, at half of its load, at one whose slots are all
//! taken, and where the first worker comes after the task.

use std::time::Duration;

use serde::Serialize;
use tokio::time::{MissedTickBehavior, interval};

use super::Common;
use super::arrival::{self, Arrival};
use super::figures::{Percentiles, Report};
use super::full_pool::{self, FullPool};
use super::ground::Ground;
use super::half_load::{self, HalfLoad};
use super::producer::Producer;
use super::worker::STAMP;
use crate::worker::ledger::now_us;

const QUEUE: &str = "latency";

/// Between two tasks of the producer.
const EVERY: Duration = Duration::from_millis(20);

/// Tasks that every process has run before the first wait is measured.
const WARM_UP: u32 = 1000;

/// From commit to handler: idle, at half load, with all slots taken, and before the first worker comes.
#[derive(Clone, Debug, clap::Args)]
pub(super) struct Args {
    /// Tasks to time, one every 20 ms
    #[arg(long, value_name = "N", default_value_t = 500, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    tasks: u32,
    /// Workers to start, each a process
    #[arg(long, value_name = "W", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=64))]
    workers: u16,
    /// Tasks that each worker runs at the same time
    #[arg(long, value_name = "S", default_value_t = 16, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    slots: u32,
    /// How long half of what the workers sustain is enqueued; 0 leaves that out
    #[arg(long, value_name = "SECONDS", default_value_t = 10, value_parser = clap::value_parser!(u32).range(0..=86_400))]
    half_load: u32,
    /// How long all slots stay taken while tasks wait, and how long the idle replica is watched for comparison; 0
    /// leaves both out
    #[arg(long, value_name = "SECONDS", default_value_t = 60, value_parser = clap::value_parser!(u32).range(0..=86_400))]
    full_pool: u32,
    /// How often a task meets its first worker
    #[arg(long, value_name = "N", default_value_t = 10, value_parser = clap::value_parser!(u16).range(0..=1000))]
    arrivals: u16,
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
    half_load_s: u32,
    full_pool_s: u32,
}

#[derive(Serialize)]
struct Figures {
    /// From the moment before the enqueue call to the handler's first line.
    idle_ms: Percentiles,
    half_load: Option<HalfLoad>,
    full_pool: Option<FullPool>,
    arrival: Option<Arrival>,
    duplicates: usize,
    lost: usize,
    damaged: usize,
}

pub(super) async fn measure(args: &Args, ground: &mut Ground) -> anyhow::Result<Report> {
    let mut producer = ground.open().await?;
    ground.raise_replicas().await?;
    ground.raise_workers(QUEUE, args.workers, args.slots)?;
    let mut warm_up = producer.fresh();
    warm_up.enqueue_many(QUEUE, STAMP, WARM_UP).await?;
    ground.finished(&warm_up).await?;

    ground.say("a task every 20 ms");
    let waits = run_idle(ground, &mut producer, args.tasks).await?;
    let idle_ms = Percentiles::of_us(waits)?;
    let half_load = if args.half_load > 0 {
        let seconds = args.half_load;
        Some(half_load::measure(ground, &mut producer, QUEUE, seconds, &idle_ms).await?)
    } else {
        None
    };
    let slots = u32::from(args.workers) * args.slots;
    let full_pool = if args.full_pool > 0 {
        let span = Duration::from_secs(u64::from(args.full_pool));
        Some(full_pool::measure(ground, &producer, QUEUE, slots, span).await?)
    } else {
        None
    };
    let arrival = if args.arrivals > 0 {
        Some(arrival::measure(ground, &producer, args.arrivals).await?)
    } else {
        None
    };
    ground.stage.stop_workers().await;
    let evidence = producer.judge(ground.stage.read_ledgers()?).await?;
    let damaged = producer.count() - producer.answers().await?.len();
    let attempts = full_pool.as_ref().map_or(0, |full| full.waiting_attempts);
    let holds = evidence.duplicates + evidence.lost + damaged == 0 && attempts == 0;
    let figures = Figures {
        idle_ms,
        half_load,
        full_pool,
        arrival,
        duplicates: evidence.duplicates,
        lost: evidence.lost,
        damaged,
    };
    let settings = Settings {
        tasks: args.tasks,
        payload_bytes: args.common.payload_bytes,
        replicas: args.common.replicas,
        workers: args.workers,
        slots: args.slots,
        half_load_s: args.half_load,
        full_pool_s: args.full_pool,
    };
    Report::new("latency", &settings, &figures, holds)
}

/// One task a tick. A producer that is still held up by the task before counts from the tick at which it should have
/// sent, so that a stall is not hidden by the tasks that it kept from being sent; one that waited for the tick counts
/// from when it sends.
async fn run_idle(
    ground: &mut Ground,
    producer: &mut Producer,
    tasks: u32,
) -> anyhow::Result<Vec<i64>> {
    let every_us = i64::try_from(EVERY.as_micros())?;
    let mut ticks = interval(EVERY);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Burst);
    ticks.tick().await;
    let mut scheduled = now_us();
    for _ in 0..tasks {
        scheduled += every_us;
        let held_up = now_us() >= scheduled;
        ticks.tick().await;
        let sent = if held_up { scheduled } else { now_us() };
        producer.commit(QUEUE, STAMP, &[sent]).await?;
    }
    ground.finished(producer).await?;
    let answers = producer.answers().await?;
    Ok(answers
        .iter()
        .map(|answer| answer.started_us - answer.told)
        .collect())
}
