//! A steady flow of tasks: commits at a fixed pace, whatever becomes of those before.

use std::time::Duration;

use tokio::time::{MissedTickBehavior, interval};

use super::figures::Percentiles;
use super::ground::Ground;
use super::producer::{Answer, Producer};
use super::worker::STAMP;
use crate::worker::ledger::now_us;

/// Between two commits.
const EVERY: Duration = Duration::from_millis(20);

/// Commits `rate` tasks a second to `queue` for `seconds`. Every task counts from the tick at which it was to be sent, so
/// that a database that keeps its producer waiting is not let off the tasks that were not sent meanwhile.
pub(super) async fn run(
    ground: &mut Ground,
    producer: &mut Producer,
    queue: &str,
    rate: u32,
    seconds: u32,
) -> anyhow::Result<()> {
    let every_us = i64::try_from(EVERY.as_micros())?;
    let commits = u64::from(seconds) * 1000 / u64::try_from(EVERY.as_millis())?;
    let all = u64::from(seconds) * u64::from(rate);
    let sent_before = producer.count();
    let mut ticks = interval(EVERY);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Burst);
    let mut scheduled = now_us();
    for number in 1..=commits {
        ticks.tick().await;
        let due = usize::try_from(all * number / commits)?;
        let batch = due.saturating_sub(producer.count() - sent_before);
        if batch > 0 {
            let told = vec![scheduled; batch];
            producer.commit(queue, STAMP, &told).await?;
        }
        scheduled += every_us;
        ground.stage.check()?;
    }
    Ok(())
}

/// From the time at which each was to be committed to its handler's first line.
pub(super) fn waits(answers: &[Answer]) -> anyhow::Result<Percentiles> {
    Percentiles::of_us(answers.iter().map(|answer| answer.started_us - answer.told))
}
