//! `fencepost workers`: list, drain, cordon, uncordon.

use std::collections::BTreeSet;

use clap::Subcommand;
use serde_json::json;

use super::database::{Database, Session};
use super::output::{self, Output};
use crate::api::{WorkerView, page};
use crate::domain::scope::Order;

/// What to do with workers.
#[derive(Debug, Clone, clap::Args)]
pub struct Args {
    #[command(subcommand)]
    command: WorkersCommand,
}

#[derive(Debug, Clone, Subcommand)]
enum WorkersCommand {
    /// List the workers of all live replicas, and the orders for workers that are away
    List(List),
    /// Give workers nothing new and tell them to go; it holds over reconnects, until uncordon
    Drain(Change),
    /// Give workers nothing new; it holds over reconnects, until uncordon
    Cordon(Change),
    /// Lift what was ordered
    Uncordon(Lift),
}

#[derive(Debug, Clone, clap::Args)]
struct List {
    /// What stdout gets
    #[arg(long, value_enum, default_value = "table")]
    output: Output,
    #[command(flatten)]
    database: Database,
}

#[derive(Debug, Clone, clap::Args)]
struct Change {
    /// The workers' identities
    #[arg(required = true, value_name = "IDENTITY")]
    identities: Vec<String>,
    /// Why, for those who look at them later
    #[arg(long, default_value = "")]
    reason: String,
    /// Who orders it
    #[arg(long, env = "USER", hide_env = true, default_value = "")]
    by: String,
    /// What stdout gets: nothing, or what holds for each worker now
    #[arg(long, value_enum, default_value = "table")]
    output: Output,
    #[command(flatten)]
    database: Database,
}

#[derive(Debug, Clone, clap::Args)]
struct Lift {
    /// The workers' identities
    #[arg(required = true, value_name = "IDENTITY")]
    identities: Vec<String>,
    /// What stdout gets: nothing, or what holds for each worker now
    #[arg(long, value_enum, default_value = "table")]
    output: Output,
    #[command(flatten)]
    database: Database,
}

/// Does it.
///
/// # Errors
/// [`crate::api::Error`] and what output may run into.
pub async fn run(args: Args) -> anyhow::Result<u8> {
    match args.command {
        WorkersCommand::List(args) => list(args).await,
        WorkersCommand::Drain(args) => change(args, Order::Drain).await,
        WorkersCommand::Cordon(args) => change(args, Order::Cordon).await,
        WorkersCommand::Uncordon(args) => lift(args).await,
    }
}

async fn list(args: List) -> anyhow::Result<u8> {
    let session = args.database.open()?;
    let workers = page::all(async |window| session.state.workers(window).await).await?;
    if args.output == Output::Json {
        output::json(&workers)?;
        return Ok(0);
    }
    if workers.is_empty() {
        output::say(
            "no worker is connected to any live replica; start one: fencepost worker --connect URL --queue Q --type T --echo",
        );
        return Ok(0);
    }
    let mut table = output::table(&[
        "identity",
        "state",
        "slots",
        "busy",
        "stuck",
        "node",
        "queue",
        "transport",
        "replica",
        "since",
        "order",
    ]);
    for worker in workers {
        table.add_row(line(worker));
    }
    output::line(&table.to_string())?;
    Ok(0)
}

fn line(worker: WorkerView) -> [String; 11] {
    let order = worker.order.map_or_else(String::new, |order| {
        let because = |label: &str, text: &str| match text {
            "" => String::new(),
            text => format!(" {label} {text}"),
        };
        let (by, why) = (because("by", &order.by), because("because:", &order.reason));
        format!("{}{by}{why}", order.action)
    });
    let (identity, state) = (worker.identity, worker.state);
    let Some(present) = worker.present else {
        let none = String::new;
        return [
            identity,
            state,
            none(),
            none(),
            none(),
            none(),
            none(),
            none(),
            none(),
            none(),
            order,
        ];
    };
    [
        identity,
        state,
        present.slots.to_string(),
        present.busy.to_string(),
        present.stuck.to_string(),
        present.node.unwrap_or_default(),
        present.task_queue,
        present.transport,
        format!("{} ({})", present.replica, present.dispatcher),
        present.since,
        order,
    ]
}

async fn change(args: Change, order: Order) -> anyhow::Result<u8> {
    let session = args.database.open()?;
    let (names, by, reason) = (args.identities, args.by, args.reason);
    let ordered = session
        .state
        .order_workers(names.clone(), Some(order), by, reason);
    ordered.await?;
    tell_who_is_away(&session, &names).await?;
    print(args.output, &names, Some(order))
}

/// Who is ordered what, for programs.
fn print(output: Output, names: &[String], order: Option<Order>) -> anyhow::Result<u8> {
    let action = order.map_or("uncordon", Order::name);
    let ordered = names.iter();
    let ordered = ordered.map(|identity| json!({"identity": identity, "action": action}));
    if output == Output::Json {
        output::json(&ordered.collect::<Vec<_>>())?;
    }
    Ok(0)
}

async fn lift(args: Lift) -> anyhow::Result<u8> {
    let session = args.database.open()?;
    let names = args.identities;
    let lifted = session
        .state
        .order_workers(names.clone(), None, String::new(), String::new());
    lifted.await?;
    output::say("lifted; replicas take it up with their next beat");
    print(args.output, &names, None)
}

/// A misspelt name is no failure, since the order holds for whoever comes, but it should not go unseen.
async fn tell_who_is_away(session: &Session, names: &[String]) -> anyhow::Result<()> {
    let workers = page::all(async |window| session.state.workers(window).await).await?;
    let present: BTreeSet<&str> = workers
        .iter()
        .filter(|worker| worker.present.is_some())
        .map(|worker| worker.identity.as_str())
        .collect();
    output::say("ordered; replicas take it up with their next beat");
    for name in names.iter().filter(|name| !present.contains(name.as_str())) {
        output::say(&format!(
            "no worker {name} is connected now; the order holds when it comes"
        ));
    }
    Ok(())
}
