//! An append-only file of what a worker did: the evidence that counts reruns and duplicates.
//!
//! One short line per event, each written with one `write(2)` on a file opened for append, so
//! that a killed process leaves whole lines and several processes may share a file:
//!
//! ```text
//! S task epoch fence start_us attempt type     before the handler starts
//! E task epoch fence end_us outcome            when it has ended
//! A task epoch fence answer                    when the dispatcher has answered the report
//! ```
//!
//! Times are microseconds since 1970 by this machine's clock; `outcome` is spelled as in
//! [`Outcome`], `answer` as in [`Answer`]. The type stands last, since a name may hold spaces.

use std::collections::HashMap;
use std::fmt::Write as _;
use std::fs::{File, OpenOptions};
use std::io::{self, Write as _};
use std::path::Path;
use std::time::SystemTime;

use super::Outcome;
use crate::proto::worker as proto;

/// What the dispatcher said to a report.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Answer {
    /// `recorded`: the report counts.
    Recorded,
    /// `superseded`: it came too late.
    Superseded,
}

/// One start of a handler, and what is known of its end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Run {
    /// The task's id.
    pub task_id: i64,
    /// The epoch of its token.
    pub epoch: i64,
    /// The fence of its token.
    pub fence: i64,
    /// Start of the handler, in microseconds since 1970.
    pub start_us: i64,
    /// End of the handler; none when the process was killed.
    pub end_us: Option<i64>,
    /// How the handler ended.
    pub outcome: Option<Outcome>,
    /// The dispatcher's answer to the report; none when it never came.
    pub answer: Option<Answer>,
    /// Which attempt it was, from 1.
    pub attempt: u32,
    /// The task's type.
    pub task_type: String,
}

/// Microseconds since 1970, by the clock of the ledgers' times.
#[must_use]
#[expect(
    clippy::disallowed_methods,
    reason = "evidence for people and benches, compared between processes; nothing is decided by it"
)]
pub fn now_us() -> i64 {
    SystemTime::now()
        .duration_since(SystemTime::UNIX_EPOCH)
        .ok()
        .and_then(|since| i64::try_from(since.as_micros()).ok())
        .unwrap_or_default()
}

/// Gathers lines and writes them in one go at [`Ledger::flush`]; without a file it does nothing.
pub(super) struct Ledger {
    file: Option<File>,
    lines: String,
}

impl Ledger {
    pub(super) fn open(path: Option<&Path>) -> io::Result<Self> {
        let open = |path| OpenOptions::new().create(true).append(true).open(path);
        Ok(Self {
            file: path.map(open).transpose()?,
            lines: String::new(),
        })
    }

    pub(super) fn started(&mut self, task: &proto::Task, start_us: i64) {
        let attempt = task.attempt;
        self.line(
            'S',
            &task.token,
            format_args!("{start_us} {attempt} {}", task.task_type),
        );
    }

    pub(super) fn ended(&mut self, token: &[u8], end_us: i64, outcome: Outcome) {
        self.line('E', token, format_args!("{end_us} {}", spell(outcome)));
    }

    pub(super) fn answered(&mut self, token: &[u8], verdict: proto::Verdict) {
        let answer = match verdict {
            proto::Verdict::Recorded => "recorded",
            proto::Verdict::Superseded => "superseded",
            proto::Verdict::Unspecified => return,
        };
        self.line('A', token, format_args!("{answer}"));
    }

    /// Hands everything gathered to the operating system.
    pub(super) fn flush(&mut self) -> io::Result<()> {
        if let Some(file) = self.file.as_mut().filter(|_| !self.lines.is_empty()) {
            file.write_all(self.lines.as_bytes())?;
            self.lines.clear();
        }
        Ok(())
    }

    fn line(&mut self, kind: char, token: &[u8], rest: std::fmt::Arguments<'_>) {
        if self.file.is_none() {
            return;
        }
        if let Some([task, epoch, fence]) = parts(token) {
            // Writing to a String cannot fail.
            writeln!(self.lines, "{kind} {task} {epoch} {fence} {rest}").ok();
        }
    }
}

/// Task id, epoch and fence of a token, where it has the form that dispatchers give it.
fn parts(token: &[u8]) -> Option<[i64; 3]> {
    let mut numbers = std::str::from_utf8(token).ok()?.split('.');
    let mut next = || numbers.next()?.parse().ok();
    Some([next()?, next()?, next()?])
}

fn spell(outcome: Outcome) -> &'static str {
    match outcome {
        Outcome::Succeeded => "succeeded",
        Outcome::Retryable => "retryable",
        Outcome::Terminal => "terminal",
        Outcome::Cancelled => "cancelled",
        Outcome::Snoozed => "snoozed",
    }
}

/// Reads a ledger: one [`Run`] per start, in the order of the file. Lines that do not parse (a
/// machine may lose the end of the last one) are left out.
///
/// # Errors
/// The file cannot be read.
pub fn read(path: impl AsRef<Path>) -> io::Result<Vec<Run>> {
    let text = String::from_utf8_lossy(&std::fs::read(path)?).into_owned();
    let mut runs: Vec<Run> = Vec::new();
    let mut latest: HashMap<[i64; 3], usize> = HashMap::new();
    for line in text.lines() {
        let mut fields = line.split(' ');
        let kind = fields.next().unwrap_or_default();
        let mut number = || fields.next()?.parse::<i64>().ok();
        let (Some(task), Some(epoch), Some(fence)) = (number(), number(), number()) else {
            continue;
        };
        let key = [task, epoch, fence];
        if kind == "S" {
            if let Some(run) = start(key, fields) {
                latest.insert(key, runs.len());
                runs.push(run);
            }
        } else if let Some(run) = latest.get(&key).and_then(|&at| runs.get_mut(at)) {
            follow(run, kind, fields);
        }
    }
    Ok(runs)
}

fn start<'a>(key: [i64; 3], mut fields: impl Iterator<Item = &'a str>) -> Option<Run> {
    let [task_id, epoch, fence] = key;
    let start_us = fields.next()?.parse().ok()?;
    let attempt = fields.next()?.parse().ok()?;
    let task_type = fields.collect::<Vec<_>>().join(" ");
    Some(Run {
        task_id,
        epoch,
        fence,
        start_us,
        end_us: None,
        outcome: None,
        answer: None,
        attempt,
        task_type,
    })
}

fn follow<'a>(run: &mut Run, kind: &str, mut fields: impl Iterator<Item = &'a str>) {
    let first = fields.next().unwrap_or_default();
    match kind {
        "E" => {
            run.end_us = first.parse().ok();
            run.outcome = match fields.next().unwrap_or_default() {
                "succeeded" => Some(Outcome::Succeeded),
                "retryable" => Some(Outcome::Retryable),
                "terminal" => Some(Outcome::Terminal),
                "cancelled" => Some(Outcome::Cancelled),
                "snoozed" => Some(Outcome::Snoozed),
                _ => None,
            };
        }
        "A" => {
            run.answer = match first {
                "recorded" => Some(Answer::Recorded),
                "superseded" => Some(Answer::Superseded),
                _ => None,
            };
        }
        _ => {}
    }
}
