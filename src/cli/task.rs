//! `fencepost task`: show, list, cancel, why, wait.

mod cancel;
mod why;

use clap::Subcommand;

use super::database::{Database, Session};
use super::output::{self, Output};
use super::wait;
use crate::api::{self, ListedView, TaskView};
use crate::store::tasks::{Filter, Listed, Parts, Task};

/// Lines that one look at the database fetches.
const PAGE: u32 = 500;

/// What to do with tasks.
#[derive(Debug, Clone, clap::Args)]
pub struct Args {
    #[command(subcommand)]
    command: TaskCommand,
}

#[derive(Debug, Clone, Subcommand)]
enum TaskCommand {
    /// Show one task
    Show(Show),
    /// List tasks, newest first
    List(List),
    /// Cancel tasks by id, by dispatch key or by filter: waiting ones at once, running ones through their workers
    Cancel(Box<cancel::Cancel>),
    /// Ask why a task is not running
    Why(why::Why),
    /// Wait for a task's end and print its result; exit code 0 when done, 1 when failed, cancelled or late
    Wait(Wait),
}

#[derive(Debug, Clone, clap::Args)]
struct Show {
    /// The task's id
    #[arg(value_name = "ID")]
    id: i64,
    /// With payload and result
    #[arg(long)]
    payload: bool,
    /// What stdout gets
    #[arg(long, value_enum, default_value = "table")]
    output: Output,
    #[command(flatten)]
    database: Database,
}

#[derive(Debug, Clone, clap::Args)]
struct List {
    /// Of this namespace
    #[arg(long, value_name = "N")]
    namespace: Option<String>,
    /// Of this task queue
    #[arg(long, value_name = "Q")]
    queue: Option<String>,
    /// Of this type
    #[arg(long = "type", value_name = "T")]
    task_type: Option<String>,
    /// scheduled, ready, held, running, done, failed or cancelled
    #[arg(long)]
    state: Option<String>,
    /// Lines at most
    #[arg(long, default_value_t = 50, value_parser = clap::value_parser!(u32).range(1..))]
    limit: u32,
    /// What stdout gets
    #[arg(long, value_enum, default_value = "table")]
    output: Output,
    #[command(flatten)]
    database: Database,
}

#[derive(Debug, Clone, clap::Args)]
struct Wait {
    /// The task's id
    #[arg(value_name = "ID")]
    id: i64,
    /// How long to wait, such as 30s or 5m [default: for ever]
    #[arg(long, value_name = "TIME")]
    timeout: Option<String>,
    /// What stdout gets: the result as it is, or the task as JSON
    #[arg(long, value_enum, default_value = "table")]
    output: Output,
    #[command(flatten)]
    database: Database,
}

/// Does it; 1 when a task to cancel does not exist, or one that was waited for did not end as done.
///
/// # Errors
/// [`crate::api::Error`] and what output may run into.
pub async fn run(args: Args) -> anyhow::Result<u8> {
    match args.command {
        TaskCommand::Show(args) => show(args).await,
        TaskCommand::List(args) => list(args).await,
        TaskCommand::Cancel(args) => cancel::cancel(*args).await,
        TaskCommand::Why(args) => why::why(args).await,
        TaskCommand::Wait(args) => {
            let time = args.timeout.as_deref();
            let time = time.map(|time| api::span("timeout", time)).transpose()?;
            wait::wait(&args.database.open()?, args.id, time, args.output).await
        }
    }
}

async fn show(args: Show) -> anyhow::Result<u8> {
    let parts = Parts {
        payload: args.payload,
        result: args.payload,
    };
    let task = args.database.open()?.state.get(args.id, parts).await?;
    match args.output {
        Output::Json => output::json(&TaskView::from(task))?,
        Output::Table => output::line(&sheet(&task).to_string())?,
    }
    Ok(0)
}

fn sheet(task: &Task) -> comfy_table::Table {
    let text = |bytes: &Option<Vec<u8>>| {
        let bytes = bytes.as_ref()?;
        Some(match std::str::from_utf8(bytes) {
            Ok(text) => text.to_owned(),
            Err(_) => format!("{} bytes", bytes.len()),
        })
    };
    let mut table = output::table(&["task", &task.id.to_string()]);
    for (name, value) in [
        ("state", Some(task.state.clone())),
        ("namespace", Some(task.namespace.clone())),
        ("queue", Some(task.task_queue.clone())),
        ("type", Some(task.task_type.clone())),
        ("node", task.node.clone()),
        ("failed tries", Some(task.attempt.to_string())),
        (
            "priority",
            task.priority.map(|priority| priority.to_string()),
        ),
        (
            "cancel requested",
            task.cancel_requested.then(|| "yes".into()),
        ),
        ("enqueued at", Some(task.enqueued_at.clone())),
        ("due at", task.visible_after.clone()),
        ("ended at", task.ended_at.clone()),
        ("worker", task.worker.clone()),
        ("error class", task.error_class.clone()),
        ("error", task.error_message.clone()),
        ("dispatch key", task.dispatch_key.clone()),
        ("labels", task.labels.clone()),
        ("content type", Some(task.content_type.clone())),
        ("payload", text(&task.payload)),
        ("result type", task.result_type.clone()),
        ("result", text(&task.result)),
        (
            "result kept",
            task.result_expired.then(|| "no longer".into()),
        ),
    ] {
        if let Some(value) = value {
            table.add_row([name, &value]);
        }
    }
    table
}

async fn list(args: List) -> anyhow::Result<u8> {
    let filter = Filter {
        namespace: args.namespace,
        task_queue: args.queue,
        task_type: args.task_type,
        state: args.state,
        ..Filter::default()
    };
    let tasks = pages(&args.database.open()?, &filter, args.limit).await?;
    if args.output == Output::Json {
        let views: Vec<ListedView> = tasks.into_iter().map(ListedView::from).collect();
        output::json(&views)?;
        return Ok(0);
    }
    if tasks.is_empty() {
        output::say(if filter == Filter::default() {
            "no tasks yet; enqueue one: fencepost enqueue --queue QUEUE --type TYPE --payload '{}'"
        } else {
            "no task matches; `fencepost task list` without filters shows all"
        });
        return Ok(0);
    }
    let mut table = output::table(&[
        "id",
        "state",
        "namespace",
        "queue",
        "type",
        "node",
        "tries",
        "enqueued at",
        "ended at",
        "error",
    ]);
    for task in tasks {
        table.add_row([
            task.id.to_string(),
            task.state,
            task.namespace,
            task.task_queue,
            task.task_type,
            task.node.unwrap_or_default(),
            task.attempt.to_string(),
            task.enqueued_at,
            task.ended_at.unwrap_or_default(),
            task.error_class.unwrap_or_default(),
        ]);
    }
    output::line(&table.to_string())?;
    Ok(0)
}

async fn pages(session: &Session, filter: &Filter, limit: u32) -> anyhow::Result<Vec<Listed>> {
    let mut tasks: Vec<Listed> = Vec::new();
    let mut before = None;
    loop {
        let found = u32::try_from(tasks.len()).unwrap_or(u32::MAX);
        let missing = limit.saturating_sub(found).min(PAGE);
        if missing == 0 {
            return Ok(tasks);
        }
        let page = session.state.list(filter.clone(), before, missing).await?;
        tasks.extend(page.tasks);
        before = page.before;
        if before.is_none() {
            return Ok(tasks);
        }
    }
}
