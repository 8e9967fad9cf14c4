//! One look, in three forms: a screen, a line, an object.

use std::time::Duration;

use chrono::{DateTime, SecondsFormat, Utc};
use serde::Serialize;

use crate::api::{QueueView, WorkerView};
use crate::cli::output;
use crate::store::totals::Rates;

/// The size of a terminal that does not say.
const SIZE: (usize, usize) = (80, 24);
/// Clears what an earlier frame has left to the right, and below.
const REST_OF_LINE: &str = "\x1b[K";
const REST_OF_SCREEN: &str = "\x1b[J";

/// What one look has seen.
#[derive(Debug, Serialize)]
pub(super) struct Frame {
    /// By the database's clock.
    at: String,
    /// Null at the first look.
    enqueued_per_s: Option<f64>,
    ended_per_s: Option<f64>,
    failed_tries_per_s: Option<f64>,
    ready: i64,
    /// Among these counts is an estimate.
    estimated: bool,
    later: i64,
    held: i64,
    running: i64,
    workers: Workers,
    /// The busiest first.
    queues: Vec<QueueView>,
}

/// The connected workers of all live replicas.
#[derive(Debug, Default, Serialize)]
struct Workers {
    connected: usize,
    slots: i64,
    busy: i64,
}

impl Frame {
    pub(super) fn new(
        at: DateTime<Utc>,
        rates: Option<Rates>,
        mut queues: Vec<QueueView>,
        all: &[WorkerView],
    ) -> Self {
        let mut workers = Workers::default();
        for present in all.iter().filter_map(|worker| worker.present.as_ref()) {
            workers.connected += 1;
            workers.slots += i64::from(present.slots);
            workers.busy += i64::from(present.busy);
        }
        queues.sort_by_key(|queue| std::cmp::Reverse(queue.ready.tasks + queue.claimed));
        let sum = |part: fn(&QueueView) -> i64| queues.iter().map(part).sum();
        // More digits than that are noise.
        let tenths = |rate: f64| (rate * 10.0).round() / 10.0;
        Self {
            at: at.to_rfc3339_opts(SecondsFormat::Millis, true),
            enqueued_per_s: rates.map(|rates| tenths(rates.enqueued)),
            ended_per_s: rates.map(|rates| tenths(rates.ended)),
            failed_tries_per_s: rates.map(|rates| tenths(rates.failed)),
            ready: sum(|queue| queue.ready.tasks),
            estimated: queues
                .iter()
                .any(|queue| queue.ready.estimated || queue.later.estimated),
            later: sum(|queue| queue.later.tasks),
            held: sum(|queue| {
                queue.held.workflow_paused + queue.held.key_busy + queue.held.throttled
            }),
            running: sum(|queue| queue.claimed),
            workers,
            queues,
        }
    }

    /// The totals.
    pub(super) fn line(&self) -> String {
        let about = if self.estimated { "about " } else { "" };
        let Workers {
            connected,
            slots,
            busy,
        } = self.workers;
        format!(
            "{at} ready {about}{ready} later {about}{later} held {held} running {running} in {into} out {out} \
             failed tries {failed} workers {connected} busy {busy}/{slots}",
            at = self.at,
            ready = self.ready,
            later = self.later,
            held = self.held,
            running = self.running,
            into = per_second(self.enqueued_per_s),
            out = per_second(self.ended_per_s),
            failed = per_second(self.failed_tries_per_s),
        )
    }

    /// A screen of this width and height.
    pub(super) fn drawn(&self, size: Option<(usize, usize)>) -> String {
        let (width, height) = size.unwrap_or(SIZE);
        let mut lines: Vec<String> = self.summary();
        lines.push(String::new());
        if self.queues.is_empty() {
            lines.push("no queue matches; the first task of a queue makes it known:".to_owned());
            lines.push("fencepost enqueue --queue Q --type T --payload '{}'".to_owned());
        } else {
            lines.extend(self.table().lines().map(str::to_owned));
        }
        let (lines, left) = lines.split_at(lines.len().min(height.saturating_sub(1)));
        let mut text = String::new();
        for line in lines {
            text.extend(line.chars().take(width));
            text.push_str(REST_OF_LINE);
            text.push('\n');
        }
        if !left.is_empty() {
            text.extend("… and more".chars().take(width));
        }
        text.push_str(REST_OF_SCREEN);
        text
    }

    fn summary(&self) -> Vec<String> {
        let Workers {
            connected,
            slots,
            busy,
        } = self.workers;
        let about = if self.estimated { "about " } else { "" };
        vec![
            format!("fencepost {}   {}", env!("CARGO_PKG_VERSION"), self.at),
            format!(
                "in {}   out {}   failed tries {}",
                per_second(self.enqueued_per_s),
                per_second(self.ended_per_s),
                per_second(self.failed_tries_per_s)
            ),
            format!(
                "ready {about}{}   later {about}{}   held {}   running {}",
                self.ready, self.later, self.held, self.running
            ),
            if connected == 0 {
                "no worker is connected; start one: fencepost worker --help".to_owned()
            } else {
                format!("workers {connected}   busy {busy} of {slots} slots")
            },
        ]
    }

    fn table(&self) -> String {
        let mut table = output::table(&[
            "namespace",
            "queue",
            "type",
            "node",
            "ready",
            "oldest",
            "later",
            "held",
            "running",
            "",
        ]);
        for queue in &self.queues {
            let paused = queue.paused.then_some("paused");
            let state = queue.unserved_reason.as_deref().or(paused);
            let age =
                |ms: u64| humantime::format_duration(Duration::from_secs(ms / 1000)).to_string();
            table.add_row([
                queue.route.namespace.clone(),
                queue.route.task_queue.clone(),
                queue.route.task_type.clone(),
                queue.route.node.clone().unwrap_or_default(),
                queue.ready.to_string(),
                queue.oldest_ms.map(age).unwrap_or_default(),
                queue.later.to_string(),
                queue.held.to_string(),
                queue.claimed.to_string(),
                state.unwrap_or_default().to_owned(),
            ]);
        }
        table.to_string()
    }
}

/// A dash before the second look.
fn per_second(rate: Option<f64>) -> String {
    rate.map_or_else(|| "-".to_owned(), |rate| format!("{rate:.1}/s"))
}
