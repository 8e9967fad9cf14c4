//! `fencepost enqueue`: one task, or one for each line of a file.

use std::ffi::OsString;
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::path::PathBuf;

use anyhow::Context as _;
use bytes::Bytes;
use serde::Serialize;
use tokio::io::AsyncReadExt as _;

use super::database::Database;
use super::output::{self, Output};
use super::{Usage, lines, wait};
use crate::api::{self, milliseconds};
use crate::store::enqueue::{Answer, NewTask};

/// What to enqueue.
#[derive(Debug, Clone, clap::Args)]
pub struct Args {
    /// Task queue: which workers
    #[arg(long, value_name = "Q")]
    pub queue: String,
    /// Task type: what they have to do
    #[arg(long = "type", value_name = "T")]
    pub task_type: String,
    /// The payload itself, @FILE, or - for stdin [default: null]
    #[arg(long, value_name = "JSON|@FILE|-", allow_hyphen_values = true)]
    pub payload: Option<OsString>,
    /// A task for each line of the payload's source (stdin unless given); blank lines are passed over
    #[arg(long)]
    pub lines: bool,
    /// Idempotency key; with --lines each task's is KEY-LINE
    #[arg(long)]
    pub key: Option<String>,
    /// How long the key is remembered after the task's end; 0 for no longer than it is unfinished [default: as the
    /// server is set, a day]
    #[arg(
        long,
        allow_hyphen_values = true,
        value_name = "TIME",
        requires = "key"
    )]
    pub dedupe_for: Option<String>,
    /// What happens when a task with this key waits already: keep it, or replace it
    #[arg(long, value_name = "keep|replace", requires = "key")]
    pub on_duplicate: Option<String>,
    /// Run it after this time, such as 250ms, 5m or 2h
    #[arg(long, allow_hyphen_values = true, value_name = "TIME")]
    pub delay: Option<String>,
    /// Run it at this time (RFC 3339)
    #[arg(long, value_name = "TIME")]
    pub run_at: Option<String>,
    /// 0 (first) to 3 [default: 1]
    #[arg(long, allow_negative_numbers = true)]
    pub priority: Option<i32>,
    /// The only node that may run it
    #[arg(long)]
    pub node: Option<String>,
    /// Tries before it is a dead letter
    #[arg(long, allow_negative_numbers = true, value_name = "N")]
    pub max_attempts: Option<i32>,
    /// How long a try may run; 0 for no limit
    #[arg(long, allow_hyphen_values = true, value_name = "TIME")]
    pub run_timeout: Option<String>,
    /// How long a try may show no progress; 0 for no limit
    #[arg(long, allow_hyphen_values = true, value_name = "TIME")]
    pub heartbeat_timeout: Option<String>,
    /// How long it may wait for a worker
    #[arg(long, allow_hyphen_values = true, value_name = "TIME")]
    pub schedule_to_start: Option<String>,
    /// When it is done: completed, or accepted by a worker
    #[arg(long)]
    pub settle: Option<String>,
    /// Tasks of the same key run one at a time, in order, unless their queue says otherwise
    #[arg(long, value_name = "KEY")]
    pub concurrency_key: Option<String>,
    /// A label for people, as NAME=VALUE; may be repeated
    #[arg(long = "label", value_name = "NAME=VALUE")]
    pub labels: Vec<String>,
    /// Further settings, as a JSON object
    #[arg(long, value_name = "JSON")]
    pub options: Option<String>,
    /// [default: default]
    #[arg(long, value_name = "N")]
    pub namespace: Option<String>,
    /// Media type of the payload [default: application/json]
    #[arg(long, value_name = "TYPE")]
    pub content_type: Option<String>,
    /// Wait for its end and print the result; exit code 0 when done, 1 when failed, cancelled or late
    #[arg(long, conflicts_with = "lines")]
    pub wait: bool,
    /// How long to wait [default: for ever]
    #[arg(long, requires = "wait", value_name = "TIME")]
    pub timeout: Option<String>,
    /// What stdout gets: ids and the result as they are, or JSON
    #[arg(long, value_enum, default_value = "table")]
    pub output: Output,
    /// Where it is enqueued
    #[command(flatten)]
    pub database: Database,
}

/// Where payloads come from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Source {
    Given(Bytes),
    File(PathBuf),
    Stdin,
}

impl Source {
    fn of(argument: Option<&OsString>, is_lines: bool) -> Self {
        let Some(argument) = argument else {
            return if is_lines {
                Self::Stdin
            } else {
                // As `payload jsonb default 'null'` of fencepost.enqueue.
                Self::Given(Bytes::from_static(b"null"))
            };
        };
        match argument.as_bytes() {
            b"-" => Self::Stdin,
            [b'@', path @ ..] => Self::File(OsString::from_vec(path.to_vec()).into()),
            given => Self::Given(Bytes::copy_from_slice(given)),
        }
    }

    async fn read(self) -> anyhow::Result<Bytes> {
        Ok(match self {
            Self::Given(bytes) => bytes,
            Self::File(path) => tokio::fs::read(&path)
                .await
                .map_err(|error| Usage(format!("cannot read {}: {error}", path.display())))?
                .into(),
            Self::Stdin => {
                let mut bytes = Vec::new();
                tokio::io::stdin()
                    .read_to_end(&mut bytes)
                    .await
                    .context("cannot read stdin")?;
                bytes.into()
            }
        })
    }
}

/// Enqueues; 1 when a task that was waited for did not end as done, 2 when lines were refused.
///
/// # Errors
/// [`api::Error`], [`Usage`] and what input and output may run into.
pub async fn run(args: Args) -> anyhow::Result<u8> {
    let source = Source::of(args.payload.as_ref(), args.lines);
    let time = args.timeout.as_deref();
    let time = time.map(|time| api::span("timeout", time)).transpose()?;
    let mut task = new_task(&args)?;
    let session = args.database.open()?;
    if args.lines {
        return lines::run(&session, source, &task, args.key.as_deref(), args.output).await;
    }
    task.payload = Some(source.read().await?);
    task.dispatch_key = args.key;
    let enqueued = session.state.enqueue(vec![task]).await?;
    let enqueued = enqueued.first().context("the database answered nothing")?;
    match enqueued.answer {
        Answer::Created => {}
        Answer::Existing => {
            output::say(&format!("task {} has this key already", enqueued.task_id));
        }
        Answer::Replaced => output::say("it replaces a task with this key that waited"),
    }
    if args.wait {
        return wait::wait(&session, enqueued.task_id, time, args.output).await;
    }
    match args.output {
        Output::Table => output::line(&enqueued.task_id.to_string())?,
        Output::Json => {
            #[derive(Serialize)]
            struct View {
                task_id: String,
                created: bool,
                answer: &'static str,
            }
            output::json(&View {
                task_id: enqueued.task_id.to_string(),
                created: enqueued.created,
                answer: enqueued.answer.name(),
            })?;
        }
    }
    Ok(0)
}

/// The task but for its payload and key.
fn new_task(args: &Args) -> anyhow::Result<NewTask> {
    let ms = |field, given: &Option<String>| {
        let given = given.as_deref();
        given.map(|text| milliseconds(field, text)).transpose()
    };
    let mut labels = serde_json::Map::new();
    for label in &args.labels {
        let Some((name, value)) = label.split_once('=') else {
            return Err(Usage(format!("--label {label:?} is not of the form NAME=VALUE")).into());
        };
        labels.insert(name.into(), value.into());
    }
    Ok(NewTask {
        namespace: args.namespace.clone(),
        task_queue: Some(args.queue.clone()),
        task_type: Some(args.task_type.clone()),
        payload: None,
        content_type: args.content_type.clone(),
        dispatch_key: None,
        delay_ms: ms("delay", &args.delay)?,
        run_at: args.run_at.clone(),
        priority: args.priority,
        node: args.node.clone(),
        max_attempts: args.max_attempts,
        run_timeout_ms: ms("run_timeout", &args.run_timeout)?,
        heartbeat_timeout_ms: ms("heartbeat_timeout", &args.heartbeat_timeout)?,
        schedule_to_start_ms: ms("schedule_to_start", &args.schedule_to_start)?,
        settle: args.settle.clone(),
        concurrency_key: args.concurrency_key.clone(),
        labels: (!labels.is_empty()).then(|| serde_json::Value::from(labels).to_string().into()),
        options: options(args)?,
    })
}

/// The options, with those that have flags of their own.
fn options(args: &Args) -> anyhow::Result<Option<Bytes>> {
    let dedupe = args.dedupe_for.as_deref();
    let dedupe = dedupe.map(|text| milliseconds("dedupe_for_ms", text));
    let flags = [
        ("dedupe_for_ms", dedupe.transpose()?.map(Into::into)),
        (
            "on_duplicate",
            args.on_duplicate.as_deref().map(serde_json::Value::from),
        ),
    ];
    if flags.iter().all(|(_, value)| value.is_none()) {
        return Ok(args.options.clone().map(Bytes::from));
    }
    let given = args.options.as_deref().unwrap_or("{}");
    let mut options: serde_json::Map<String, serde_json::Value> = serde_json::from_str(given)
        .map_err(|error| Usage(format!("--options is not a JSON object: {error}")))?;
    for (name, value) in flags {
        if let Some(value) = value {
            options.insert(name.to_owned(), value);
        }
    }
    Ok(Some(serde_json::to_vec(&options)?.into()))
}
