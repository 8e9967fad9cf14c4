//! A task that was there before any worker: how soon after the first worker's registration it starts.

use std::time::Duration;

use anyhow::Context as _;
use serde::Serialize;
use tokio::time::sleep;

use super::figures::Percentiles;
use super::ground::Ground;
use super::producer::Producer;
use super::worker::STAMP;

/// What a replica makes of a task that nobody serves takes one look: the worker comes well after it.
const BEFORE: Duration = Duration::from_millis(300);

#[derive(Debug, Serialize)]
pub(super) struct Arrival {
    /// From the registration, as the replica logs it, to the handler's first line.
    start_ms: Percentiles,
}

pub(super) async fn measure(
    ground: &mut Ground,
    producer: &Producer,
    times: u16,
) -> anyhow::Result<Arrival> {
    ground.say("tasks that wait for their first worker");
    let mut waits = Vec::with_capacity(usize::from(times));
    for number in 1..=times {
        let queue = format!("arrival-{number}");
        let mut task = producer.fresh();
        task.commit(&queue, STAMP, &[0]).await?;
        sleep(BEFORE).await;
        let name = format!("{queue}-worker");
        ground.spawn_worker(&name, 0, &queue, 1, 1)?;
        ground.finished(&task).await?;
        let answers = task.answers().await?;
        let start = answers.first().context("the task has no result")?;
        let logs = ground.stage.replica_logs()?;
        let registered = registered_us(&logs, &name).context("no replica has logged the worker")?;
        waits.push(start.started_us - registered);
    }
    Ok(Arrival {
        start_ms: Percentiles::of_us(waits)?,
    })
}

/// When the worker of this identity connected, in microseconds since 1970, by a log in JSON.
fn registered_us(log: &str, identity: &str) -> Option<i64> {
    let lines = log.lines().filter(|line| line.contains(identity));
    let mut read = lines.filter_map(|line| serde_json::from_str::<serde_json::Value>(line).ok());
    let line = read.find(|line| {
        let text = |path: &str| line.pointer(path).and_then(serde_json::Value::as_str);
        text("/fields/message") == Some("worker connected")
            && text("/fields/identity") == Some(identity)
    })?;
    let stamp = line.get("timestamp")?.as_str()?;
    let time = chrono::DateTime::parse_from_rfc3339(stamp).ok()?;
    Some(time.timestamp_micros())
}
