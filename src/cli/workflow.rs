//! `fencepost workflow`: start, add, show, members, events, list, pause, resume, cancel, re-run.

use std::path::PathBuf;

use anyhow::Context as _;
use bytes::Bytes;
use clap::Subcommand;
use tokio::io::AsyncReadExt as _;

use super::Usage;
use super::database::Database;
use super::output::{self, Output};
use crate::api::http::read_workflow;
use crate::api::{
    AddedView, EventView, LONGEST_PAGE, ListedRunView, MemberView, StartedView, WorkflowView,
};
use crate::store::workflows::{Filter, Order, Workflow};

/// What to do with workflows.
#[derive(Debug, Clone, clap::Args)]
pub struct Args {
    #[command(subcommand)]
    command: WorkflowCommand,
}

#[derive(Debug, Clone, Subcommand)]
enum WorkflowCommand {
    /// Stage a workflow with its members from a JSON file, as `POST /v1/workflows` takes it
    Start(Start),
    /// Add members to a workflow that is not over, from a JSON file with `members`
    Add(Add),
    /// Show a workflow: its newest run, or another one
    Show(Show),
    /// List the members of a run
    Members(Page),
    /// List what happened to a run, oldest first
    Events(Page),
    /// List the runs of workflows, newest first
    List(List),
    /// Stop claiming its members; those that run run on
    Pause(Change),
    /// Let its members be claimed again
    Resume(Change),
    /// End it as cancelled, with all members that are not finished
    Cancel(Change),
    /// Run its members again under a new run id: those that are not done, or all
    ReRun(ReRun),
}

#[derive(Debug, Clone, clap::Args)]
struct Start {
    /// The file, or - for stdin
    #[arg(value_name = "FILE|-")]
    file: PathBuf,
    /// What stdout gets
    #[arg(long, value_enum, default_value = "table")]
    output: Output,
    #[command(flatten)]
    database: Database,
}

#[derive(Debug, Clone, clap::Args)]
struct Add {
    /// The workflow's id
    #[arg(value_name = "ID")]
    id: i64,
    /// The file, or - for stdin
    #[arg(value_name = "FILE|-")]
    file: PathBuf,
    /// What stdout gets
    #[arg(long, value_enum, default_value = "table")]
    output: Output,
    #[command(flatten)]
    database: Database,
}

#[derive(Debug, Clone, clap::Args)]
struct Show {
    /// The workflow's id
    #[arg(value_name = "ID")]
    id: i64,
    /// The run's id [default: the newest]
    #[arg(long, value_name = "RUN")]
    run: Option<i64>,
    /// What stdout gets
    #[arg(long, value_enum, default_value = "table")]
    output: Output,
    #[command(flatten)]
    database: Database,
}

#[derive(Debug, Clone, clap::Args)]
struct Page {
    /// The workflow's id
    #[arg(value_name = "ID")]
    id: i64,
    /// The run's id [default: the newest]
    #[arg(long, value_name = "RUN")]
    run: Option<i64>,
    /// Lines after this ordinal, or event
    #[arg(long, value_name = "N", default_value_t = 0)]
    after: i64,
    /// Lines at most
    #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..=i64::from(LONGEST_PAGE)))]
    limit: u32,
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
    /// running, done, failed or cancelled
    #[arg(long)]
    state: Option<String>,
    /// Of workflows with this name
    #[arg(long)]
    name: Option<String>,
    /// Lines at most
    #[arg(long, default_value_t = 50, value_parser = clap::value_parser!(u32).range(1..=i64::from(LONGEST_PAGE)))]
    limit: u32,
    /// What stdout gets
    #[arg(long, value_enum, default_value = "table")]
    output: Output,
    #[command(flatten)]
    database: Database,
}

#[derive(Debug, Clone, clap::Args)]
struct Change {
    /// The workflow's id
    #[arg(value_name = "ID")]
    id: i64,
    /// Why, for those who look at it later
    #[arg(long, default_value = "")]
    reason: String,
    /// Who says so
    #[arg(long, env = "USER", hide_env = true, default_value = "")]
    by: String,
    /// What stdout gets
    #[arg(long, value_enum, default_value = "table")]
    output: Output,
    #[command(flatten)]
    database: Database,
}

#[derive(Debug, Clone, clap::Args)]
struct ReRun {
    /// Members that are done run again too
    #[arg(long)]
    all: bool,
    #[command(flatten)]
    change: Change,
}

/// Does it.
///
/// # Errors
/// [`crate::api::Error`], [`Usage`] and what input and output may run into.
pub async fn run(args: Args) -> anyhow::Result<u8> {
    match args.command {
        WorkflowCommand::Start(args) => start(args).await,
        WorkflowCommand::Add(args) => add(args).await,
        WorkflowCommand::Show(args) => {
            let state = args.database.open()?.state;
            show(state.workflow(args.id, args.run).await?, args.output)
        }
        WorkflowCommand::Members(args) => members(args).await,
        WorkflowCommand::Events(args) => events(args).await,
        WorkflowCommand::List(args) => list(args).await,
        WorkflowCommand::Pause(args) => change(args, Order::Pause).await,
        WorkflowCommand::Resume(args) => change(args, Order::Resume).await,
        WorkflowCommand::Cancel(args) => change(args, Order::Cancel).await,
        WorkflowCommand::ReRun(args) => {
            let members = if args.all { "all" } else { "unfinished" }.to_owned();
            change(args.change, Order::Rerun { members }).await
        }
    }
}

async fn read_file(path: &PathBuf) -> anyhow::Result<Bytes> {
    if path.as_os_str() == "-" {
        let mut bytes = Vec::new();
        let mut stdin = tokio::io::stdin();
        stdin
            .read_to_end(&mut bytes)
            .await
            .context("cannot read stdin")?;
        return Ok(bytes.into());
    }
    let read = tokio::fs::read(path).await;
    let bytes = read.map_err(|error| Usage(format!("cannot read {}: {error}", path.display())))?;
    Ok(bytes.into())
}

async fn start(args: Start) -> anyhow::Result<u8> {
    let workflow = read_workflow(&read_file(&args.file).await?)?;
    let started = args.database.open()?.state.start_workflow(workflow).await?;
    if !started.created {
        let message = format!("workflow {} has this key already", started.workflow_id);
        output::say(&message);
    }
    match args.output {
        Output::Json => output::json(&StartedView::from(started))?,
        Output::Table => output::line(&started.workflow_id.to_string())?,
    }
    Ok(0)
}

async fn add(args: Add) -> anyhow::Result<u8> {
    let given = read_workflow(&read_file(&args.file).await?)?;
    let state = args.database.open()?.state;
    let (run, tasks) = state.add_members(args.id, given.members).await?;
    let task_ids: Vec<String> = tasks.iter().map(i64::to_string).collect();
    match args.output {
        Output::Json => output::json(&AddedView {
            run_id: run.to_string(),
            task_ids,
        })?,
        Output::Table => {
            for id in task_ids {
                output::line(&id)?;
            }
        }
    }
    Ok(0)
}

fn show(run: Workflow, output: Output) -> anyhow::Result<u8> {
    if output == Output::Json {
        output::json(&WorkflowView::from(run))?;
        return Ok(0);
    }
    let [total, done, failed, cancelled] = run.members;
    let mut table = output::table(&["workflow", &run.workflow_id.to_string()]);
    for (name, value) in [
        ("run", Some(run.run_id.to_string())),
        ("run number", Some(run.run_number.to_string())),
        ("namespace", Some(run.namespace)),
        ("name", Some(run.name).filter(|name| !name.is_empty())),
        ("mode", Some(run.mode)),
        ("state", Some(run.state)),
        ("paused", run.paused),
        ("members", Some(total.to_string())),
        (
            "unfinished",
            Some((total - done - failed - cancelled).to_string()),
        ),
        ("done", Some(done.to_string())),
        ("failed", Some(failed.to_string())),
        ("cancelled", Some(cancelled.to_string())),
        ("continued as", run.continued_as.map(|id| id.to_string())),
        ("created at", Some(run.created_at)),
        ("ended at", run.ended_at),
    ] {
        if let Some(value) = value {
            table.add_row([name, &value]);
        }
    }
    output::line(&table.to_string())?;
    Ok(0)
}

async fn change(args: Change, order: Order) -> anyhow::Result<u8> {
    let state = args.database.open()?.state;
    let workflow = state
        .order_workflow(args.id, order, args.by, args.reason)
        .await?;
    show(workflow, args.output)
}

async fn members(args: Page) -> anyhow::Result<u8> {
    let state = args.database.open()?.state;
    let after = i32::try_from(args.after).unwrap_or(i32::MAX);
    let members = state.members(args.id, args.run, after, args.limit).await?;
    if args.output == Output::Json {
        let views: Vec<MemberView> = members.into_iter().map(MemberView::from).collect();
        output::json(&views)?;
        return Ok(0);
    }
    if members.is_empty() {
        output::say("no member there; `fencepost workflow add ID FILE` adds some");
        return Ok(0);
    }
    let mut table = output::table(&["member", "task", "state", "tries", "error"]);
    for member in members {
        table.add_row([
            member.ordinal.to_string(),
            member.task_id.to_string(),
            member.state,
            member.attempt.to_string(),
            member.error_class.unwrap_or_default(),
        ]);
    }
    output::line(&table.to_string())?;
    Ok(0)
}

async fn events(args: Page) -> anyhow::Result<u8> {
    let state = args.database.open()?.state;
    let events = state
        .workflow_events(args.id, args.run, args.after, args.limit)
        .await?;
    if args.output == Output::Json {
        let views: Vec<EventView> = events.into_iter().map(EventView::from).collect();
        output::json(&views)?;
        return Ok(0);
    }
    if events.is_empty() {
        output::say("no event there; `fencepost workflow show ID` shows where the run stands");
        return Ok(0);
    }
    let mut table = output::table(&["event", "at", "what", "member", "task", "detail"]);
    for event in events {
        let text = |number: Option<String>| number.unwrap_or_default();
        table.add_row([
            event.event_id.to_string(),
            event.recorded_at,
            event.kind,
            text(event.ordinal.map(|ordinal| ordinal.to_string())),
            text(event.task_id.map(|id| id.to_string())),
            text(event.detail),
        ]);
    }
    output::line(&table.to_string())?;
    Ok(0)
}

async fn list(args: List) -> anyhow::Result<u8> {
    let filter = Filter {
        namespace: args.namespace,
        state: args.state,
        name: args.name,
    };
    let state = args.database.open()?.state;
    let (mut runs, mut before) = (Vec::new(), None);
    loop {
        let found = u32::try_from(runs.len()).unwrap_or(u32::MAX);
        let missing = args.limit.saturating_sub(found);
        if missing == 0 {
            break;
        }
        let (page, next) = state.workflows(filter.clone(), before, missing).await?;
        runs.extend(page);
        before = next;
        if before.is_none() {
            break;
        }
    }
    if args.output == Output::Json {
        let views: Vec<ListedRunView> = runs.into_iter().map(ListedRunView::from).collect();
        output::json(&views)?;
        return Ok(0);
    }
    if runs.is_empty() {
        output::say("no workflow matches; `fencepost workflow start FILE` stages one");
        return Ok(0);
    }
    let mut table = output::table(&[
        "workflow",
        "run",
        "namespace",
        "name",
        "mode",
        "state",
        "paused",
        "created at",
        "ended at",
    ]);
    for run in runs {
        table.add_row([
            run.workflow_id.to_string(),
            run.run_id.to_string(),
            run.namespace,
            run.name,
            run.mode,
            run.state,
            if run.paused { "yes" } else { "" }.to_owned(),
            run.created_at,
            run.ended_at.unwrap_or_default(),
        ]);
    }
    output::line(&table.to_string())?;
    Ok(0)
}
