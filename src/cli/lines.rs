//! A task for each line: in batches, each in a transaction of its own, with a progress bar on a terminal.

use anyhow::Context as _;
use bytes::Bytes;
use indicatif::{ProgressBar, ProgressStyle};
use serde::Serialize;
use tokio::io::{AsyncBufRead, AsyncBufReadExt as _, AsyncReadExt as _, BufReader};

use super::EXIT_USAGE;
use super::Usage;
use super::database::Session;
use super::enqueue::Source;
use super::output::{self, Output};
use crate::api;
use crate::store::enqueue::NewTask;

/// Tasks of one transaction: the size at which more brings nothing (measured: 60,000 tasks/s at 1,000).
const BATCH: usize = 1_000;

/// Bytes of one transaction, so that large payloads don't pile up in memory.
const BATCH_BYTES: usize = 8 * 1024 * 1024;

/// No limit of payloads can be set higher; a longer line is not a task.
const LONGEST_LINE: u64 = 64 * 1024 * 1024;

/// The fields that differ from line to line. A refusal of another one would be every line's.
const OWN_FIELDS: [&str; 2] = ["payload", "dispatch_key"];

#[derive(Serialize)]
struct LineView {
    line: u64,
    task_id: String,
    created: bool,
    answer: &'static str,
}

/// One line's task.
struct Line {
    number: u64,
    task: NewTask,
}

#[derive(Default)]
struct Tally {
    created: u64,
    existing: u64,
    refused: u64,
}

/// Enqueues every line that is not refused, names those that are, and answers 2 if there were any.
pub(super) async fn run(
    session: &Session,
    source: Source,
    model: &NewTask,
    key: Option<&str>,
    output: Output,
) -> anyhow::Result<u8> {
    let (mut reader, size) = open(source).await?;
    let bar = progress(size);
    let mut tally = Tally::default();
    let (mut batch, mut bytes) = (Vec::new(), 0);
    let mut number = 0;
    let mut outcome = Ok(());
    loop {
        let line = read_line(&mut reader, number + 1).await;
        let at_end = !matches!(line, Ok(Some(_)));
        if let Ok(Some(text)) = &line {
            number += 1;
            bar.inc(text.len() as u64);
            let payload = text.trim_ascii_end();
            if !payload.trim_ascii_start().is_empty() {
                bytes += payload.len();
                batch.push(Line {
                    number,
                    task: NewTask {
                        payload: Some(Bytes::copy_from_slice(payload)),
                        dispatch_key: key.map(|key| format!("{key}-{number}")),
                        ..model.clone()
                    },
                });
            }
        }
        if batch.len() >= BATCH || bytes >= BATCH_BYTES || (at_end && !batch.is_empty()) {
            outcome = flush(
                session,
                std::mem::take(&mut batch),
                output,
                &bar,
                &mut tally,
            )
            .await;
            bytes = 0;
        }
        if at_end || outcome.is_err() {
            outcome = outcome.and(line.map(drop));
            break;
        }
    }
    bar.finish_and_clear();
    output::say(&format!(
        "{} enqueued, {} had been before, {} refused",
        tally.created, tally.existing, tally.refused
    ));
    outcome?;
    Ok(if tally.refused > 0 { EXIT_USAGE } else { 0 })
}

/// Enqueues a batch. A refused one is halved until the lines at fault stand alone, so that they are named and the
/// others are enqueued.
async fn flush(
    session: &Session,
    batch: Vec<Line>,
    output: Output,
    bar: &ProgressBar,
    tally: &mut Tally,
) -> anyhow::Result<()> {
    // The last part is the next one, which keeps the order of the lines.
    let mut parts = vec![batch];
    while let Some(mut part) = parts.pop() {
        let tasks = part.iter().map(|line| line.task.clone()).collect();
        let error = match session.state.enqueue(tasks).await {
            Ok(enqueued) => {
                for (line, task) in part.iter().zip(enqueued) {
                    if task.created {
                        tally.created += 1;
                    } else {
                        tally.existing += 1;
                    }
                    let view = LineView {
                        line: line.number,
                        task_id: task.task_id.to_string(),
                        created: task.created,
                        answer: task.answer.name(),
                    };
                    bar.suspend(|| match output {
                        Output::Json => output::json(&view),
                        Output::Table => Ok(output::line(&view.task_id)?),
                    })?;
                }
                continue;
            }
            Err(error) => error,
        };
        let own = error.field.as_deref();
        let own = own.is_some_and(|field| OWN_FIELDS.contains(&field));
        if !error.is_refusal() || !own {
            return Err(not_enqueued(error, &part, &parts));
        }
        if part.len() > 1 {
            let rest = part.split_off(part.len() / 2);
            parts.push(rest);
            parts.push(part);
        } else if let Some(line) = part.first() {
            tally.refused += 1;
            let sentence = output::sentence(&error);
            bar.suspend(|| output::say(&format!("line {}: {sentence}", line.number)));
        }
    }
    Ok(())
}

/// Says which lines are missing, so that they can be enqueued later.
fn not_enqueued(error: api::Error, part: &[Line], parts: &[Vec<Line>]) -> anyhow::Error {
    let first = part.first().map_or(0, |line| line.number);
    let last = parts.first().map_or(part, Vec::as_slice).last();
    let last = last.map_or(first, |line| line.number);
    // In a batch of many lines the place that the sentence names is of no use.
    output::say(&format!(
        "stopped: lines {first} to {last} and those after them were not enqueued{}",
        if error.code.code == "FP-111" {
            ", except perhaps some of the former"
        } else {
            ""
        }
    ));
    error.into()
}

async fn open(
    source: Source,
) -> anyhow::Result<(Box<dyn AsyncBufRead + Unpin + Send>, Option<u64>)> {
    Ok(match source {
        Source::Given(bytes) => {
            let size = bytes.len() as u64;
            (
                Box::new(BufReader::new(std::io::Cursor::new(bytes))),
                Some(size),
            )
        }
        Source::File(path) => {
            let unreadable = |error| Usage(format!("cannot read {}: {error}", path.display()));
            let file = tokio::fs::File::open(&path).await.map_err(unreadable)?;
            let size = file.metadata().await.map_err(unreadable)?;
            let size = size.is_file().then_some(size.len());
            (Box::new(BufReader::with_capacity(1 << 16, file)), size)
        }
        Source::Stdin => (Box::new(BufReader::new(tokio::io::stdin())), None),
    })
}

async fn read_line(
    reader: &mut (dyn AsyncBufRead + Unpin + Send),
    number: u64,
) -> anyhow::Result<Option<Vec<u8>>> {
    let mut line = Vec::new();
    reader
        .take(LONGEST_LINE + 1)
        .read_until(b'\n', &mut line)
        .await
        .with_context(|| format!("cannot read line {number}"))?;
    if line.len() as u64 > LONGEST_LINE {
        return Err(Usage(format!("line {number} is longer than {LONGEST_LINE} bytes")).into());
    }
    Ok((!line.is_empty()).then_some(line))
}

/// By bytes of the source; it draws nothing unless stderr is a terminal.
fn progress(size: Option<u64>) -> ProgressBar {
    let (bar, template) = match size {
        Some(size) => (
            ProgressBar::new(size),
            "{elapsed_precise} [{wide_bar}] {bytes}/{total_bytes} {eta}",
        ),
        None => (
            ProgressBar::no_length(),
            "{elapsed_precise} {spinner} {bytes}",
        ),
    };
    let style = ProgressStyle::with_template(template);
    bar.with_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()))
}
