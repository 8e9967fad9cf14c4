//! `fencepost queue`: list, unserved, declare, stopped-keys, resume-key.

use std::time::Duration;

use clap::Subcommand;

use super::database::Database;
use super::output::{self, Output};
use crate::api::{DeclaredView, NodeSeen, QueueChoice, page};
use crate::store::queues::Declaration;
use crate::store::rates::RateSettings;

/// What to do with queues.
#[derive(Debug, Clone, clap::Args)]
pub struct Args {
    #[command(subcommand)]
    command: QueueCommand,
}

#[derive(Debug, Clone, Subcommand)]
enum QueueCommand {
    /// List the known queues with their types and nodes, what waits and what runs
    List(List),
    /// List queues with due tasks that no worker of any replica can take
    Unserved(Unserved),
    /// Declare a queue for one task type and node
    Declare(Declare),
    /// List the dead letters that stop their concurrency keys
    StoppedKeys(StoppedKeys),
    /// Let a concurrency key go on that dead letters have stopped; they stay dead letters
    ResumeKey(ResumeKey),
}

#[derive(Debug, Clone, clap::Args)]
struct List {
    /// Of this namespace
    #[arg(long, value_name = "N")]
    namespace: Option<String>,
    /// Of this task queue
    #[arg(long, value_name = "Q")]
    queue: Option<String>,
    /// What stdout gets
    #[arg(long, value_enum, default_value = "table")]
    output: Output,
    #[command(flatten)]
    database: Database,
}

#[derive(Debug, Clone, clap::Args)]
struct Unserved {
    /// What stdout gets
    #[arg(long, value_enum, default_value = "table")]
    output: Output,
    #[command(flatten)]
    database: Database,
}

#[derive(Debug, Clone, clap::Args)]
struct Declare {
    /// The task queue
    #[arg(long, value_name = "Q")]
    queue: String,
    /// The task type
    #[arg(long = "type", value_name = "T")]
    task_type: String,
    /// The only node that may run its tasks
    #[arg(long, value_name = "L")]
    node: Option<String>,
    /// The namespace
    #[arg(long, value_name = "N", default_value = "default")]
    namespace: String,
    /// What becomes of due tasks while no live worker serves them: `wait`, or `strict`, which spends an attempt per
    /// backoff interval; what was set before stays unless given
    #[arg(long, value_name = "wait|strict")]
    unserved: Option<String>,
    /// How many of its tasks may run at the same time, over all replicas; what was set before stays unless given
    #[arg(long, value_name = "N|none", value_parser = super::quota)]
    max_in_flight: Option<i32>,
    /// How many of its tasks may start in a second, minute or hour, over all replicas; what was set before stays unless given
    #[arg(long, value_name = "N/s|N/min|N/h|none")]
    rate: Option<String>,
    /// How many of them may start at once; unless set, as many as the rate gives in a second
    #[arg(long, value_name = "N", allow_negative_numbers = true)]
    burst: Option<i32>,
    /// How many of its tasks with the same concurrency key are let go at a time: 1 keeps their order; what was set before
    /// stays unless given
    #[arg(long, value_name = "N", allow_negative_numbers = true)]
    key_limit: Option<i32>,
    /// How many of its tasks with the same concurrency key may start in a second, minute or hour; what was set before stays
    /// unless given
    #[arg(long, value_name = "N/s|N/min|N/h|none")]
    key_rate: Option<String>,
    /// How many of these may start at once; unless set, as many as the rate gives in a second
    #[arg(long, value_name = "N", allow_negative_numbers = true)]
    key_burst: Option<i32>,
    /// What a dead letter at the head of a concurrency key does: `skip` lets the next one go, `stop` lets none go before
    /// the letter is redriven or discarded, or the key resumed; what was set before stays unless given
    #[arg(long, value_name = "skip|stop")]
    on_dead_key: Option<String>,
    /// What stdout gets: nothing, or what is declared now
    #[arg(long, value_enum, default_value = "table")]
    output: Output,
    #[command(flatten)]
    database: Database,
}

#[derive(Debug, Clone, clap::Args)]
struct StoppedKeys {
    /// Of this namespace
    #[arg(long, value_name = "N")]
    namespace: Option<String>,
    /// What stdout gets
    #[arg(long, value_enum, default_value = "table")]
    output: Output,
    #[command(flatten)]
    database: Database,
}

#[derive(Debug, Clone, clap::Args)]
struct ResumeKey {
    /// The concurrency key
    #[arg(value_name = "KEY")]
    key: String,
    /// The namespace of the key
    #[arg(long, value_name = "N", default_value = "default")]
    namespace: String,
    /// What stdout gets: nothing, or whether anything had stopped it
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
        QueueCommand::List(args) => list(args).await,
        QueueCommand::Unserved(args) => unserved(args).await,
        QueueCommand::Declare(args) => declare(args).await,
        QueueCommand::StoppedKeys(args) => stopped_keys(args).await,
        QueueCommand::ResumeKey(args) => resume_key(args).await,
    }
}

async fn list(args: List) -> anyhow::Result<u8> {
    let session = args.database.open()?;
    let queues = page::all(async |window| {
        let choice = QueueChoice {
            namespace: args.namespace.clone(),
            task_queue: args.queue.clone(),
            ..QueueChoice::default()
        };
        session.state.queues(choice, window).await
    });
    let queues = queues.await?;
    if args.output == Output::Json {
        output::json(&queues)?;
        return Ok(0);
    }
    if queues.is_empty() {
        output::say(
            "no queue matches; the first task of a queue makes it known, or `fencepost queue declare`",
        );
        return Ok(0);
    }
    let mut table = output::table(&[
        "namespace",
        "queue",
        "type",
        "node",
        "declared",
        "if unserved",
        "max in flight",
        "rate",
        "key limit",
        "key rate",
        "on dead key",
        "paused",
        "throttled until",
        "ready",
        "oldest",
        "later",
        "held",
        "claimed",
        "unserved",
    ]);
    for queue in queues {
        let declared = if queue.declared { "yes" } else { "no" };
        table.add_row([
            queue.route.namespace,
            queue.route.task_queue,
            queue.route.task_type,
            queue.route.node.unwrap_or_default(),
            declared.to_owned(),
            queue.unserved,
            output::quota(queue.max_in_flight),
            queue.rate.to_string(),
            queue.key_limit.to_string(),
            queue.key_rate.unwrap_or_else(|| "none".to_owned()),
            queue.on_dead_key,
            if queue.paused { "yes" } else { "no" }.to_owned(),
            queue.rate.throttled_until.unwrap_or_default(),
            queue.ready.to_string(),
            queue.oldest_ms.map(age).unwrap_or_default(),
            queue.later.to_string(),
            queue.held.to_string(),
            queue.claimed.to_string(),
            queue.unserved_reason.unwrap_or_default(),
        ]);
    }
    output::line(&table.to_string())?;
    Ok(0)
}

async fn unserved(args: Unserved) -> anyhow::Result<u8> {
    let session = args.database.open()?;
    let mut unserved = page::all(async |window| session.state.unserved(window).await).await?;
    unserved.sort_by_key(|one| std::cmp::Reverse(one.oldest_ms));
    if args.output == Output::Json {
        output::json(&unserved)?;
        return Ok(0);
    }
    if unserved.is_empty() {
        output::say(
            "every queue with due tasks is served; `fencepost queue list` shows what waits",
        );
        return Ok(0);
    }
    let mut table = output::table(&[
        "namespace",
        "queue",
        "type",
        "node",
        "node last seen",
        "reason",
        "since",
        "waiting",
        "oldest",
    ]);
    for one in unserved {
        table.add_row([
            one.route.namespace,
            one.route.task_queue,
            one.route.task_type,
            one.route.node.unwrap_or_default(),
            match one.node_seen {
                None => String::new(),
                Some(NodeSeen::Never) => "never".to_owned(),
                Some(NodeSeen::At(at)) => at,
            },
            one.reason.to_owned(),
            one.since.unwrap_or_else(|| "not judged yet".to_owned()),
            one.waiting.to_string(),
            age(one.oldest_ms),
        ]);
    }
    output::line(&table.to_string())?;
    Ok(0)
}

fn age(milliseconds: u64) -> String {
    humantime::format_duration(Duration::from_secs(milliseconds / 1000)).to_string()
}

async fn declare(args: Declare) -> anyhow::Result<u8> {
    let route = Declaration {
        namespace: Some(args.namespace),
        task_queue: args.queue,
        task_type: args.task_type,
        node: args.node,
        unserved: args.unserved,
        max_in_flight: args.max_in_flight,
        rate: RateSettings {
            rate: args.rate,
            burst: args.burst,
        },
        key_limit: args.key_limit,
        key_rate: RateSettings {
            rate: args.key_rate,
            burst: args.key_burst,
        },
        on_dead_key: args.on_dead_key,
    };
    let state = args.database.open()?.state;
    state.declare_queue(route.clone()).await?;
    match args.output {
        Output::Json => output::json(&DeclaredView::from(route))?,
        Output::Table => output::say("declared"),
    }
    Ok(0)
}

async fn stopped_keys(args: StoppedKeys) -> anyhow::Result<u8> {
    let session = args.database.open()?;
    let stopped = page::all(async |window| {
        let namespace = args.namespace.clone();
        session.state.stopped_keys(namespace, window).await
    });
    let stopped = stopped.await?;
    if args.output == Output::Json {
        output::json(&stopped)?;
        return Ok(0);
    }
    if stopped.is_empty() {
        output::say(
            "no dead letter stops a concurrency key; `fencepost queue declare --on-dead-key stop` lets them",
        );
        return Ok(0);
    }
    let mut table = output::table(&[
        "namespace",
        "key",
        "dead letter",
        "queue",
        "type",
        "node",
        "error",
        "since",
    ]);
    for one in stopped {
        table.add_row([
            one.route.namespace,
            one.concurrency_key,
            one.letter_id,
            one.route.task_queue,
            one.route.task_type,
            one.route.node.unwrap_or_default(),
            one.error_class,
            one.since,
        ]);
    }
    output::line(&table.to_string())?;
    Ok(0)
}

async fn resume_key(args: ResumeKey) -> anyhow::Result<u8> {
    let state = args.database.open()?.state;
    let resumed = state.resume_key(Some(args.namespace), args.key).await?;
    if args.output == Output::Json {
        output::json(&resumed)?;
        return Ok(0);
    }
    output::say(&if resumed.was_stopped {
        format!("the key goes on past {} dead letters", resumed.letters)
    } else {
        "no dead letter has stopped this key".to_owned()
    });
    Ok(0)
}
