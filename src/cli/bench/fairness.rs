//! Many tenants at once: what share of the slots each gets beside its weight, how long a tenant that had nothing to do waits for
//! its first start, and whether quotas hold and are used.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::Serialize;
use tokio::time::{Instant, sleep};

use super::Common;
use super::figures::{Percentiles, Report, rounded};
use super::ground::{Ground, run};
use super::producer::{Answer, BATCH, Producer};
use super::worker::HOLD;
use crate::domain::quota::Limited;
use crate::store::queues::{NamespaceSettings, set_namespace};
use crate::store::quotas::{Ask, count};
use crate::store::routes;
use crate::worker::ledger::now_us;

const QUEUE: &str = "fairness";

/// Tenants that have more to do than they can get, by weight.
const WEIGHTS: [i32; 6] = [1, 1, 2, 2, 4, 4];

/// Between two looks at what is claimed under the quota.
const LOOK: Duration = Duration::from_millis(10);

/// Many tenants: shares against weights, waits for the first start, and quotas that must hold.
#[derive(Clone, Debug, clap::Args)]
pub(super) struct Args {
    /// Seconds to measure, after one to warm up
    #[arg(long, value_name = "SECONDS", default_value_t = 10, value_parser = clap::value_parser!(u32).range(2..=600))]
    seconds: u32,
    /// Milliseconds that a task lasts; those of the six last half of it to one and a half, so that slots don't free in step
    #[arg(long, value_name = "MS", default_value_t = 200, value_parser = clap::value_parser!(u32).range(10..=10_000))]
    task_ms: u32,
    /// Quota of one more tenant, beside the six of weights 1 to 4
    #[arg(long, value_name = "N", default_value_t = 7, value_parser = clap::value_parser!(u32).range(1..=1000))]
    quota: u32,
    /// Quiet tenants, each of which has one task in the middle of it
    #[arg(long, value_name = "N", default_value_t = 20, value_parser = clap::value_parser!(u32).range(0..=1000))]
    quiet: u32,
    /// Workers to start, each a process
    #[arg(long, value_name = "W", default_value_t = 2, value_parser = clap::value_parser!(u16).range(1..=64))]
    workers: u16,
    /// Tasks that each worker runs at the same time
    #[arg(long, value_name = "S", default_value_t = 60, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    slots: u32,
    #[command(flatten)]
    pub(super) common: Common,
}

#[derive(Serialize)]
struct Settings {
    seconds: u32,
    task_ms: u32,
    quota: u32,
    quiet: u32,
    replicas: u16,
    workers: u16,
    slots: u32,
}

#[derive(Serialize)]
struct Share {
    weight: i32,
    starts: usize,
    /// Of all starts of the tenants with weights; 1 is what its weight says.
    of_its_due: f64,
}

#[derive(Serialize)]
struct Figures {
    shares: BTreeMap<String, Share>,
    /// How far the tenant that is furthest off is from its due.
    share_error: f64,
    /// From the moment before the enqueue call of a quiet tenant to its handler's first line.
    first_start_ms: Percentiles,
    first_start_ms_by_tenant: BTreeMap<String, f64>,
    /// Most tasks of the limited tenant at the same time, by the tables and by the handlers.
    quota_most_claimed: i64,
    quota_most_running: i64,
    quota_overshoot: i64,
    /// What handlers ran of what the quota allows.
    quota_utilisation: f64,
}

pub(super) async fn measure(args: &Args, ground: &mut Ground) -> anyhow::Result<Report> {
    let producer = ground.open().await?;
    ground.raise_replicas().await?;
    let tenants = prepare(args, ground, &producer).await?;
    ground.raise_workers(QUEUE, args.workers, args.slots)?;
    ground.say("running");
    let started = wait_for_start(&tenants.limited).await?;
    let (most_claimed, quiet) = watch(args, &producer, tenants.quota, tenants.quiet).await?;
    let window = (started + 1_000_000, now_us());
    ground.stage.stop_workers().await;

    let shares = shares(&tenants.deep, window).await?;
    let share_error = shares
        .values()
        .map(|share| (share.of_its_due - 1.0).abs())
        .fold(0.0, f64::max);
    let mut waits = BTreeMap::new();
    for (name, producer, enqueued_us) in &quiet {
        if let Some(answer) = producer.answers().await?.first() {
            waits.insert(name.clone(), answer.started_us - enqueued_us);
        }
    }
    let running = tenants.limited.answers().await?;
    let quota = i64::from(args.quota);
    let most_running = most_at_once(&running);
    let overshoot = (most_claimed.max(most_running) - quota).max(0);
    let figures = Figures {
        shares,
        share_error: rounded(share_error, 3),
        first_start_ms: Percentiles::of_us(waits.values().copied())?,
        first_start_ms_by_tenant: waits
            .iter()
            .map(|(name, us)| (name.clone(), rounded(*us as f64 / 1e3, 1)))
            .collect(),
        quota_most_claimed: most_claimed,
        quota_most_running: most_running,
        quota_overshoot: overshoot,
        quota_utilisation: rounded(utilisation(&running, window, quota), 3),
    };
    let settings = Settings {
        seconds: args.seconds,
        task_ms: args.task_ms,
        quota: args.quota,
        quiet: args.quiet,
        replicas: args.common.replicas,
        workers: args.workers,
        slots: args.slots,
    };
    let holds = overshoot == 0 && waits.len() == quiet.len();
    Report::new("fairness", &settings, &figures, holds)
}

/// Who is there.
struct Tenants {
    deep: Vec<(String, i32, Producer)>,
    limited: Producer,
    quota: Limited,
    quiet: Vec<(String, Producer)>,
}

/// Sets weights and the quota, and enqueues more than can be done.
async fn prepare(args: &Args, ground: &mut Ground, producer: &Producer) -> anyhow::Result<Tenants> {
    ground.say("enqueueing the backlogs");
    let name = |kind: &str, number: usize| format!("{}-{kind}{number}", producer.namespace());
    let most =
        u64::from(args.slots) * u64::from(args.workers) * u64::from(args.seconds + 10) * 1000
            / u64::from(args.task_ms);
    let sum: i32 = WEIGHTS.iter().sum();
    let task_ms = i64::from(args.task_ms);
    let mut deep = Vec::new();
    for (number, weight) in WEIGHTS.into_iter().enumerate() {
        let tenant = name("deep", number + 1);
        let weighted = NamespaceSettings {
            weight: Some(weight),
            ..NamespaceSettings::default()
        };
        set(producer, &tenant, weighted).await?;
        let mut backlog = producer.for_tenant(&tenant);
        let tasks = most * u64::from(weight.unsigned_abs()) * 2 / u64::from(sum.unsigned_abs());
        hold(&mut backlog, tasks, || {
            fastrand::i64(task_ms / 2..=task_ms * 3 / 2)
        })
        .await?;
        deep.push((tenant, weight, backlog));
    }
    let tenant = name("limited", 1);
    let under_quota = NamespaceSettings {
        // Its quota is what bounds it, not its share.
        weight: Some(100),
        max_in_flight: Some(i32::try_from(args.quota)?),
        ..NamespaceSettings::default()
    };
    set(producer, &tenant, under_quota).await?;
    let mut limited = producer.for_tenant(&tenant);
    let tasks =
        u64::from(args.quota) * u64::from(args.seconds + 10) * 1000 / u64::from(args.task_ms);
    hold(&mut limited, tasks, || task_ms).await?;
    let quiet: Vec<String> = (1..=args.quiet as usize)
        .map(|number| name("quiet", number))
        .collect();
    ground.tenants = deep.iter().map(|(tenant, ..)| tenant.clone()).collect();
    ground.tenants.push(tenant);
    ground.tenants.extend_from_slice(&quiet);
    let quota = namespace_of(producer, &limited).await?;
    Ok(Tenants {
        deep,
        limited,
        quota,
        quiet: quiet
            .into_iter()
            .map(|tenant| (tenant.clone(), producer.for_tenant(&tenant)))
            .collect(),
    })
}

async fn set(producer: &Producer, tenant: &str, settings: NamespaceSettings) -> anyhow::Result<()> {
    let tenant = tenant.to_owned();
    run(producer.pool(), move |client| {
        Box::pin(async move { set_namespace(client, &tenant, &settings).await })
    })
    .await
}

/// Enqueues so many tasks, each of which lasts as many milliseconds as `lasts` says.
async fn hold(producer: &mut Producer, tasks: u64, lasts: impl Fn() -> i64) -> anyhow::Result<()> {
    let mut left = usize::try_from(tasks)?.max(1);
    while left > 0 {
        let batch = left.min(BATCH);
        left -= batch;
        let told: Vec<i64> = (0..batch).map(|_| lasts()).collect();
        producer.commit(QUEUE, HOLD, &told).await?;
    }
    Ok(())
}

/// The quota of a tenant that has tasks.
async fn namespace_of(producer: &Producer, tenant: &Producer) -> anyhow::Result<Limited> {
    let name = tenant.namespace().to_owned();
    let found = run(producer.pool(), |client| {
        Box::pin(async move {
            let due = routes::find_due(client).await?;
            let due: Vec<i32> = due.iter().map(|lane| lane.route).collect();
            routes::read(client, &due).await
        })
    });
    let found = found
        .await?
        .into_iter()
        .find(|route| route.namespace == name);
    let route = found.ok_or_else(|| anyhow::anyhow!("the limited tenant has no task"))?;
    Ok(Limited::Namespace(route.namespace_id))
}

/// When the first task of a backlog has started, by the clock of this machine.
async fn wait_for_start(tenant: &Producer) -> anyhow::Result<i64> {
    loop {
        if let Some(first) = tenant
            .answers()
            .await?
            .iter()
            .map(|answer| answer.started_us)
            .min()
        {
            return Ok(first);
        }
        sleep(LOOK).await;
    }
}

/// Samples what is claimed under the quota until the time is over, and has the quiet tenants enqueue in the middle.
async fn watch(
    args: &Args,
    producer: &Producer,
    quota: Limited,
    quiet: Vec<(String, Producer)>,
) -> anyhow::Result<(i64, Vec<(String, Producer, i64)>)> {
    let span = Duration::from_secs(u64::from(args.seconds) + 1);
    let (begin, mut most) = (Instant::now(), 0);
    let mut waiting = quiet;
    let mut enqueued = Vec::new();
    while begin.elapsed() < span {
        if begin.elapsed() > span / 2
            && let Some((tenant, mut one)) = waiting.pop()
        {
            let at = now_us();
            one.commit(QUEUE, HOLD, &[i64::from(args.task_ms)]).await?;
            enqueued.push((tenant, one, at));
        }
        let usages = run(producer.pool(), move |client| {
            Box::pin(async move { count(client, &[Ask::anew(quota)]).await })
        });
        most = usages
            .await?
            .iter()
            .map(|usage| usage.claimed)
            .fold(most, i64::max);
        sleep(LOOK).await;
    }
    Ok((most, enqueued))
}

/// Starts within the window, beside what the weights say.
async fn shares(
    deep: &[(String, i32, Producer)],
    window: (i64, i64),
) -> anyhow::Result<BTreeMap<String, Share>> {
    let mut starts = Vec::new();
    for (tenant, weight, producer) in deep {
        let answers = producer.answers().await?;
        let within = answers
            .iter()
            .filter(|answer| (window.0..window.1).contains(&answer.started_us));
        starts.push((tenant.clone(), *weight, within.count()));
    }
    let all: usize = starts.iter().map(|(_, _, starts)| starts).sum();
    let weights: i32 = starts.iter().map(|(_, weight, _)| weight).sum();
    let share = |(tenant, weight, starts): (String, i32, usize)| {
        let due = all as f64 * f64::from(weight) / f64::from(weights.max(1));
        let share = Share {
            weight,
            starts,
            of_its_due: rounded(starts as f64 / due.max(1.0), 3),
        };
        (tenant, share)
    };
    Ok(starts.into_iter().map(share).collect())
}

/// The most that ran at the same time.
fn most_at_once(answers: &[Answer]) -> i64 {
    let mut turns: Vec<(i64, i64)> = answers
        .iter()
        .flat_map(|answer| [(answer.started_us, 1), (answer.ended_us, -1)])
        .collect();
    // At one instant ends come first.
    turns.sort_unstable();
    let (mut now, mut most) = (0, 0);
    for (_, turn) in turns {
        now += turn;
        most = now.max(most);
    }
    most
}

/// What ran in the window, of what the quota allows. Tasks that had not ended with it count for nothing, so the last ones are
/// left out of the window too.
fn utilisation(answers: &[Answer], (from, to): (i64, i64), quota: i64) -> f64 {
    let longest = answers
        .iter()
        .map(|answer| answer.ended_us - answer.started_us)
        .max();
    let to = to - longest.unwrap_or(0);
    let ran: i64 = answers
        .iter()
        .map(|answer| (answer.ended_us.min(to) - answer.started_us.max(from)).max(0))
        .sum();
    ran as f64 / ((to - from).max(1) * quota) as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answer(started_us: i64, ended_us: i64) -> Answer {
        Answer {
            told: 0,
            started_us,
            ended_us,
        }
    }

    #[test]
    fn overlaps_are_counted_and_neighbours_are_not() {
        let answers = [answer(0, 10), answer(10, 20), answer(5, 15), answer(30, 31)];
        assert_eq!(most_at_once(&answers), 2);
        assert_eq!(most_at_once(&[]), 0);
    }

    #[test]
    fn utilisation_is_what_ran_within_the_window() {
        let answers = [answer(0, 10), answer(10, 20), answer(20, 30)];
        assert!((utilisation(&answers, (0, 30), 1) - 1.0).abs() < 1e-9);
        assert!((utilisation(&answers, (0, 30), 2) - 0.5).abs() < 1e-9);
    }
}
