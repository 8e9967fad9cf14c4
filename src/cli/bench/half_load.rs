//! How long a committed task waits for its handler while half of what these workers sustain is enqueued.

use anyhow::Context as _;
use serde::Serialize;

use super::figures::{Percentiles, rate, rounded};
use super::flow;
use super::ground::{Ground, run};
use super::producer::Producer;
use super::worker::STAMP;
use crate::store::bench;

/// A backlog from which the workers' highest rate is read: some seconds' work for those of the default settings.
const BACKLOG: u32 = 20_000;

/// Waits under half of the load.
#[derive(Debug, Serialize)]
pub(super) struct HalfLoad {
    /// Of a backlog, from the first claim to the last end.
    sustained_per_s: f64,
    /// What was enqueued, half of that.
    rate_per_s: u32,
    /// From the time at which a task was to be committed to the handler's first line.
    waits_ms: Percentiles,
    /// p99, as a multiple of that of the idle replica.
    of_idle_p99: f64,
}

pub(super) async fn measure(
    ground: &mut Ground,
    producer: &mut Producer,
    queue: &str,
    seconds: u32,
    idle: &Percentiles,
) -> anyhow::Result<HalfLoad> {
    ground.say("a backlog, for the highest rate");
    let mut backlog = producer.fresh();
    backlog.enqueue_many(queue, STAMP, BACKLOG).await?;
    ground.finished(&backlog).await?;
    let ids = backlog.ids().context("nothing was enqueued")?;
    let span = run(backlog.pool(), |client| {
        Box::pin(bench::read_span(client, ids))
    });
    let span = span.await?.context("no task has ended")?;
    let sustained_per_s = rate(f64::from(BACKLOG), span);

    ground.say("half of that, for the waits");
    let half = u128::from(BACKLOG) * 1_000_000 / 2 / span.as_micros().max(1);
    let rate_per_s = u32::try_from(half)?.max(1);
    let before = producer.count();
    flow::run(ground, producer, queue, rate_per_s, seconds).await?;
    ground.finished(producer).await?;
    let answers = producer.answers().await?;
    let of_flow = answers.get(before..).context("nothing ran")?;
    let waits_ms = flow::waits(of_flow)?;
    Ok(HalfLoad {
        sustained_per_s,
        rate_per_s,
        of_idle_p99: rounded(waits_ms.p99() / idle.p99().max(0.01), 2),
        waits_ms,
    })
}
