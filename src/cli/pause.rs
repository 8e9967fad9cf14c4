//! `fencepost pause` and `fencepost resume`.

use super::database::Database;
use super::output::{self, Output};
use crate::api::{PauseView, page};
use crate::domain::pause::Address;
use crate::store::pauses::NewPause;

/// Which tasks are meant.
#[derive(Debug, Clone, clap::Args)]
struct Named {
    /// Tasks of this namespace
    #[arg(long, value_name = "N")]
    namespace: Option<String>,
    /// Tasks of this task queue
    #[arg(long, value_name = "Q")]
    queue: Option<String>,
    /// Tasks of this type
    #[arg(long = "type", value_name = "T")]
    task_type: Option<String>,
    /// Tasks that are pinned to this node
    #[arg(long, value_name = "L")]
    node: Option<String>,
    /// Every task
    #[arg(long)]
    all: bool,
}

impl Named {
    fn address(self) -> Address {
        Address {
            namespace: self.namespace,
            task_queue: self.queue,
            task_type: self.task_type,
            node: self.node,
        }
    }
}

/// What to pause.
#[derive(Debug, Clone, clap::Args)]
pub struct Pause {
    #[command(flatten)]
    named: Named,
    /// Why, for those who look at it later
    #[arg(long, default_value = "")]
    reason: String,
    /// Who orders it
    #[arg(long, env = "USER", hide_env = true, default_value = "")]
    by: String,
    /// Ask what runs there to stop: it ends as cancelled
    #[arg(long)]
    cancel_running: bool,
    /// Pause nothing, and show what is paused
    #[arg(
        long,
        conflicts_with_all = ["namespace", "queue", "task_type", "node", "all", "cancel_running"]
    )]
    list: bool,
    /// What stdout gets
    #[arg(long, value_enum, default_value = "table")]
    output: Output,
    #[command(flatten)]
    database: Database,
}

/// What to resume.
#[derive(Debug, Clone, clap::Args)]
pub struct Resume {
    #[command(flatten)]
    named: Named,
    /// What stdout gets
    #[arg(long, value_enum, default_value = "table")]
    output: Output,
    #[command(flatten)]
    database: Database,
}

/// Pauses, or lists what is paused.
///
/// # Errors
/// [`crate::api::Error`] and what output may run into.
pub async fn pause(args: Pause) -> anyhow::Result<u8> {
    let state = args.database.open()?.state;
    if args.list {
        let pauses = page::all(async |window| state.pauses(window).await).await?;
        return list(args.output, pauses);
    }
    let everything = args.named.all;
    let paused = state.pause(NewPause {
        address: args.named.address(),
        everything,
        reason: args.reason,
        by: args.by,
        cancel_running: args.cancel_running,
    });
    let paused = paused.await?;
    if args.output == Output::Json {
        output::json(&paused)?;
        return Ok(0);
    }
    let (name, since) = (&paused.pause.name, &paused.pause.since);
    output::say(&if paused.created {
        format!("paused: {name}")
    } else {
        format!("{name} is paused already, since {since}; who and why are replaced")
    });
    if let Some(cancelled) = paused.cancelled {
        output::say(&format!(
            "{} running tasks are asked to stop",
            cancelled.requested
        ));
    }
    Ok(0)
}

/// Resumes.
///
/// # Errors
/// [`crate::api::Error`] and what output may run into.
pub async fn resume(args: Resume) -> anyhow::Result<u8> {
    let state = args.database.open()?.state;
    let everything = args.named.all;
    let resumed = state.resume(args.named.address(), everything).await?;
    if args.output == Output::Json {
        output::json(&resumed)?;
        return Ok(0);
    }
    output::say(&format!(
        "resumed: {}, paused since {}",
        resumed.name, resumed.paused_since
    ));
    let left = page::all(async |window| state.pauses(window).await).await?;
    if !left.is_empty() {
        let names: Vec<String> = left.into_iter().map(|pause| pause.name).collect();
        output::say(&format!("still paused: {}", names.join("; ")));
    }
    Ok(0)
}

fn list(how: Output, pauses: Vec<PauseView>) -> anyhow::Result<u8> {
    if how == Output::Json {
        output::json(&pauses)?;
        return Ok(0);
    }
    if pauses.is_empty() {
        output::say("nothing is paused; `fencepost pause --queue Q` pauses a queue");
        return Ok(0);
    }
    let mut table = output::table(&["paused", "by", "since", "reason", "cancels what runs"]);
    for pause in pauses {
        let cancels = if pause.cancel_running { "yes" } else { "no" };
        table.add_row([
            pause.name.as_str(),
            &pause.by,
            &pause.since,
            &pause.reason,
            cancels,
        ]);
    }
    output::line(&table.to_string())?;
    Ok(0)
}
