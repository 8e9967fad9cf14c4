//! All slots taken, tasks waiting: what the waiting costs, and how soon a freed slot is used.

use std::time::Duration;

use anyhow::Context as _;
use serde::Serialize;
use tokio::time::sleep;

use super::figures::{Percentiles, rate, rounded};
use super::ground::{Ground, run};
use super::producer::Producer;
use super::worker::HOLD;
use crate::store::bench::read_counters;
use crate::store::demo::Stand;

/// Tasks that wait, and then run one after the other in the one slot that is freed.
const WAITING: usize = 300;

/// How long each of those runs, in milliseconds: longer than the writes of the result before.
const SHORT_MS: i64 = 5;

/// So long the tasks at the other slots run, in milliseconds, unless they are stopped.
const LONG_MS: i64 = 3_600_000;

/// A session that has fallen idle reports the last of what it has done within ten seconds, so both counts begin after
/// that; a short span is not worth the wait.
const LATE_REPORTS: Duration = Duration::from_secs(11);

/// Between two looks whether all slots are taken.
const LOOK: Duration = Duration::from_millis(20);

#[derive(Debug, Serialize)]
pub(super) struct FullPool {
    waiting: usize,
    /// Transactions of the whole database while nothing waits and nothing runs.
    idle_statements_per_s: f64,
    /// The same while all slots are taken and tasks wait.
    full_statements_per_s: f64,
    /// The highest attempt of a task that waited.
    pub(super) waiting_attempts: i32,
    /// From the end of a handler to the start of the next one at that slot.
    freed_slot_ms: Percentiles,
    /// The first of them: after the whole span, in which nothing started.
    first_freed_slot_ms: f64,
}

pub(super) async fn measure(
    ground: &mut Ground,
    producer: &Producer,
    queue: &str,
    slots: u32,
    span: Duration,
) -> anyhow::Result<FullPool> {
    let late = LATE_REPORTS.min(span);
    ground.say("an idle replica");
    sleep(late).await;
    let idle_statements_per_s = statements(producer, span).await?;
    ground.say("a full pool");
    let mut holders = producer.fresh();
    let mut lasts = vec![LONG_MS; slots as usize - 1];
    lasts.push(i64::try_from((late + span).as_millis())? + 2000);
    holders.commit(queue, HOLD, &lasts).await?;
    while holders
        .states()
        .await?
        .iter()
        .any(|state| state.stand != Stand::Running)
    {
        ground.stage.check()?;
        sleep(LOOK).await;
    }
    let mut waiting = producer.fresh();
    waiting.commit(queue, HOLD, &[SHORT_MS; WAITING]).await?;
    // What asked for the states above is counted late.
    sleep(late).await;
    let full_statements_per_s = statements(producer, span).await?;
    let still = waiting.states().await?;
    let all_wait = still.iter().all(|state| state.stand == Stand::Waiting);
    anyhow::ensure!(all_wait, "a task started although every slot was taken");

    ground.finished(&waiting).await?;
    let ended = waiting.states().await?;
    let attempts = ended.iter().chain(&still).map(|state| state.attempt);
    let waiting_attempts = attempts.max().context("nothing waited")?;
    // The holder whose end frees the slot, then what runs in there.
    let mut runs = holders.answers().await?;
    runs.extend(waiting.answers().await?);
    runs.sort_by_key(|run| run.started_us);
    let freed: Vec<i64> = runs
        .iter()
        .zip(runs.iter().skip(1))
        .map(|(before, next)| next.started_us - before.ended_us)
        .collect();
    let first = *freed.first().context("no slot was freed")?;
    let freed_slot_ms = Percentiles::of_us(freed)?;
    // What still runs would outlast everybody.
    ground.stage.kill_workers().await?;
    Ok(FullPool {
        waiting: WAITING,
        idle_statements_per_s,
        full_statements_per_s,
        waiting_attempts,
        freed_slot_ms,
        first_freed_slot_ms: rounded(first as f64 / 1e3, 2),
    })
}

/// Transactions per second over a span in which we send none.
async fn statements(producer: &Producer, span: Duration) -> anyhow::Result<f64> {
    let read = || run(producer.pool(), |client| Box::pin(read_counters(client)));
    let before = read().await?;
    sleep(span).await;
    let after = read().await?;
    Ok(rate(
        (after.transactions - before.transactions) as f64,
        span,
    ))
}
