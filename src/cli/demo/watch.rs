//! The run as it goes: where the producer's tasks stand, and how that is shown on stderr.

use std::collections::HashMap;
use std::io::{self, IsTerminal as _};
use std::time::Duration;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use tokio::time::Instant;

use super::worker::Kind;
use crate::cli::output;
use crate::cli::stage::process::{Life, Process};
use crate::store::demo::{Stand, State};

/// Between two lines where stderr is no terminal.
const LINE_EVERY: Duration = Duration::from_secs(2);

/// How many tasks of one type stand where.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Counts {
    pub(super) waiting: u64,
    pub(super) running: u64,
    pub(super) done: u64,
    /// Tasks that needed, or wait for, a further attempt, wherever they stand.
    pub(super) retried: u64,
    pub(super) dead: u64,
    pub(super) cancelled: u64,
}

impl Counts {
    fn add(&mut self, state: State) {
        match state.stand {
            Stand::Waiting => self.waiting += 1,
            Stand::Running => self.running += 1,
            Stand::Done => self.done += 1,
            Stand::Failed => self.dead += 1,
            Stand::Cancelled => self.cancelled += 1,
        }
        // A dead letter's last failure led to no other attempt.
        let last = i32::from(state.stand == Stand::Failed);
        self.retried += u64::from(state.attempt > last);
    }

    pub(super) fn ended(&self) -> u64 {
        self.done + self.dead + self.cancelled
    }
}

/// The producer's tasks by type, from one snapshot.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Tally([Counts; Kind::ALL.len()]);

impl Tally {
    /// Those of `states` that the producer knows.
    pub(super) fn of(states: &[State], kinds: &HashMap<i64, Kind>) -> Self {
        let mut tally = Self::default();
        for state in states {
            let kind = kinds.get(&state.id);
            let index = Kind::ALL.iter().position(|one| Some(one) == kind);
            if let Some(counts) = index.and_then(|index| tally.0.get_mut(index)) {
                counts.add(*state);
            }
        }
        tally
    }

    pub(super) fn total(&self) -> Counts {
        self.0.iter().fold(Counts::default(), |sum, one| Counts {
            waiting: sum.waiting + one.waiting,
            running: sum.running + one.running,
            done: sum.done + one.done,
            retried: sum.retried + one.retried,
            dead: sum.dead + one.dead,
            cancelled: sum.cancelled + one.cancelled,
        })
    }

    /// One row a type.
    pub(super) fn table(&self) -> String {
        let mut table = output::table(&["type", "waiting", "running", "done", "retried", "dead"]);
        for (kind, counts) in Kind::ALL.into_iter().zip(self.0) {
            let numbers = [
                counts.waiting,
                counts.running,
                counts.done,
                counts.retried,
                counts.dead,
            ];
            let mut row = vec![kind.name().to_owned()];
            row.extend(numbers.map(|number| number.to_string()));
            table.add_row(row);
        }
        for column in table.column_iter_mut().skip(1) {
            column.set_cell_alignment(comfy_table::CellAlignment::Right);
        }
        table.to_string()
    }
}

/// How progress is shown.
pub(super) enum Display {
    /// On a terminal: a bar and a table that change.
    Live(ProgressBar),
    /// Elsewhere: a line from time to time.
    Lines(Instant),
    /// With `--json` and no terminal.
    Silent,
}

impl Display {
    pub(super) fn new(tasks: u64, json: bool) -> Self {
        if io::stderr().is_terminal() {
            let bar = ProgressBar::with_draw_target(Some(tasks), ProgressDrawTarget::stderr());
            let style = ProgressStyle::with_template(
                "{elapsed} [{bar:40}] {pos} of {len} tasks ended\n{msg}",
            );
            Self::Live(bar.with_style(style.unwrap_or_else(|_| ProgressStyle::default_bar())))
        } else if json {
            Self::Silent
        } else {
            Self::Lines(Instant::now())
        }
    }

    /// Something that happened, kept on the screen.
    pub(super) fn say(&self, text: &str) {
        match self {
            Self::Live(bar) => bar.suspend(|| output::say(text)),
            Self::Lines(_) => output::say(text),
            Self::Silent => {}
        }
    }

    pub(super) fn show(&mut self, tally: &Tally, processes: &[Process]) {
        let total = tally.total();
        match self {
            Self::Live(bar) => {
                let lives: Vec<String> = processes.iter().map(life).collect();
                bar.set_message(format!("{}\n {}", tally.table(), lives.join("\n ")));
                bar.set_position(total.ended());
            }
            Self::Lines(last) => {
                if last.elapsed() >= LINE_EVERY {
                    *last = Instant::now();
                    output::say(&format!(
                        "{} tasks ended, {} running, {} waiting",
                        total.ended(),
                        total.running,
                        total.waiting
                    ));
                }
            }
            Self::Silent => {}
        }
    }

    /// Leaves room for the summary.
    pub(super) fn clear(&self) {
        if let Self::Live(bar) = self {
            bar.finish_and_clear();
        }
    }
}

fn life(process: &Process) -> String {
    let life = match process.life {
        Life::Up => "up".to_owned(),
        Life::Killed(at) => format!("killed at {at:.1} s"),
        Life::Stopped => "stopped".to_owned(),
    };
    format!("{:<11} process {:<8} {life}", process.name, process.pid)
}
