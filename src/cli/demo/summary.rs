//! The numbers at the end, as a table and as one object.

use std::collections::HashMap;
use std::time::Duration;

use anyhow::Context as _;
use comfy_table::presets::NOTHING;
use comfy_table::{CellAlignment, Table};
use hdrhistogram::Histogram;
use serde::Serialize;

use super::cast::{Cast, Kill, Timing};
use super::watch::Counts;
use crate::cli::stage::evidence::Evidence;
use crate::store::demo::Times;
use crate::worker::ledger::Run;

/// Significant digits of percentiles.
const DIGITS: u8 = 3;

/// No demo takes longer.
const LONGEST_WAIT_US: u64 = 24 * 3_600_000_000;

/// What the demo found.
#[derive(Debug, Serialize)]
pub(super) struct Summary {
    version: &'static str,
    /// Tasks on the producer's own list.
    pub(super) enqueued: u64,
    done: u64,
    /// Tasks with more than one attempt.
    retried: u64,
    dead: u64,
    /// Not ended; 0 unless the deadline passed.
    pub(super) waiting: u64,
    superseded: usize,
    reruns: usize,
    pub(super) duplicates: usize,
    pub(super) lost: usize,
    /// Handlers started, over all attempts.
    starts: usize,
    /// Tasks ended per second, from the first enqueue to the last end.
    tasks_per_s: f64,
    /// From a task's enqueue to its first start.
    start_ms: Percentiles,
    killed: Vec<Kill>,
    wall_s: f64,
    settings: Settings,
}

#[derive(Debug, Serialize)]
struct Percentiles {
    p50: f64,
    p99: f64,
}

#[derive(Debug, Serialize)]
struct Settings {
    replicas: u16,
    workers: u16,
    slots_per_worker: u32,
    #[serde(flatten)]
    timing: Timing,
}

impl Summary {
    pub(super) fn new(
        args: &super::Args,
        cast: &Cast,
        enqueued: u64,
        counts: Counts,
        evidence: &Evidence,
        speed: Speed,
    ) -> Self {
        Self {
            version: env!("CARGO_PKG_VERSION"),
            enqueued,
            done: counts.done,
            retried: counts.retried,
            dead: counts.dead,
            waiting: counts.waiting + counts.running,
            superseded: evidence.superseded,
            reruns: evidence.reruns,
            duplicates: evidence.duplicates,
            lost: evidence.lost,
            starts: evidence.starts,
            tasks_per_s: rounded(speed.tasks_per_s),
            start_ms: speed.start_ms,
            killed: cast.kills.clone(),
            wall_s: 0.0,
            settings: Settings {
                replicas: args.replicas,
                workers: args.workers,
                slots_per_worker: cast.slots,
                timing: cast.timing,
            },
        }
    }

    /// Says how long all of it took, the end of the processes included.
    pub(super) fn took(&mut self, time: Duration) {
        self.wall_s = rounded(time.as_secs_f64());
    }

    /// Nothing lost, nothing twice, nothing left.
    pub(super) fn holds(&self) -> bool {
        self.lost == 0 && self.duplicates == 0 && self.waiting == 0
    }

    pub(super) fn table(&self) -> String {
        let mut rows = vec![
            (
                "enqueued",
                self.enqueued.to_string(),
                "tasks of three types, in equal parts",
            ),
            ("done", self.done.to_string(), "ended well"),
            (
                "retried",
                self.retried.to_string(),
                "needed more than one attempt",
            ),
            (
                "dead",
                self.dead.to_string(),
                "failed three times: dead letters now",
            ),
        ];
        if self.waiting > 0 {
            rows.push((
                "waiting",
                self.waiting.to_string(),
                "had not ended at the deadline",
            ));
        }
        rows.extend([
            (
                "superseded",
                self.superseded.to_string(),
                "reports that came too late, and changed nothing",
            ),
            (
                "reruns",
                self.reruns.to_string(),
                "starts that repeat one cut off by a kill",
            ),
            ("duplicates", self.duplicates.to_string(), "counted twice"),
            (
                "lost",
                self.lost.to_string(),
                "enqueued, and neither ended nor waiting",
            ),
            (
                "tasks/s",
                format!("{:.0}", self.tasks_per_s),
                "from the first enqueue to the last end",
            ),
            (
                "p50",
                format!("{} ms", self.start_ms.p50),
                "from enqueue to first start, all enqueued at once",
            ),
            ("p99", format!("{} ms", self.start_ms.p99), ""),
            (
                "wall",
                format!("{:.1} s", self.wall_s),
                "start and end of all processes included",
            ),
        ]);
        let mut table = Table::new();
        table.load_style(NOTHING);
        for (name, number, meaning) in rows {
            table.add_row([name, number.as_str(), meaning]);
        }
        if let Some(column) = table.column_mut(1) {
            column.set_cell_alignment(CellAlignment::Right);
        }
        table.to_string()
    }

    /// One line for each process that was killed.
    pub(super) fn kills(&self) -> String {
        let lines: Vec<String> = self.killed.iter().map(Kill::to_string).collect();
        lines.join("\n")
    }
}

impl std::fmt::Display for Kill {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self {
            name,
            pid,
            at_s,
            replaced_by,
            ..
        } = self;
        write!(
            f,
            "{at_s:.1} s: {name} (process {pid}) killed with SIGKILL, {replaced_by} takes its place"
        )
    }
}

/// Throughput and latency of a run.
#[derive(Debug)]
pub(super) struct Speed {
    tasks_per_s: f64,
    start_ms: Percentiles,
}

impl Speed {
    /// From the times of the producer's tasks and all runs. Start and enqueue are told by two clocks, which are the
    /// same where the database is on this machine.
    pub(super) fn measure(times: &[Times], runs: &[Run]) -> anyhow::Result<Self> {
        let mut starts: HashMap<i64, i64> = HashMap::with_capacity(times.len());
        for run in runs {
            let first = starts.entry(run.task_id).or_insert(run.start_us);
            *first = run.start_us.min(*first);
        }
        let mut waits = Histogram::<u64>::new_with_max(LONGEST_WAIT_US, DIGITS)
            .context("making a histogram")?;
        for times in times {
            if let Some(start_us) = starts.get(&times.id) {
                waits.saturating_record(u64::try_from(start_us - times.enqueued_us).unwrap_or(0));
            }
        }
        let first = times.iter().map(|times| times.enqueued_us).min();
        let ends = || times.iter().filter_map(|times| times.ended_us);
        let span_s = match (first, ends().max()) {
            (Some(first), Some(last)) => (last - first).max(1) as f64 / 1e6,
            _ => f64::INFINITY,
        };
        let ms = |quantile| rounded(waits.value_at_quantile(quantile) as f64 / 1e3);
        Ok(Self {
            tasks_per_s: ends().count() as f64 / span_s,
            start_ms: Percentiles {
                p50: ms(0.5),
                p99: ms(0.99),
            },
        })
    }
}

/// To a tenth.
fn rounded(number: f64) -> f64 {
    (number * 10.0).round() / 10.0
}
