//! `fencepost dead-letter`: list, show, redrive, discard, and the redrives by filter: redrives, stop, resume.

mod choice;
mod redrives;
mod show;

use clap::Subcommand;

use super::database::{Database, Session};
use super::output::{self, Output};
use crate::api::dead_letters::{AnswerView, LetterLineView, Started};
use crate::store::dead_letters::Listed;
use crate::store::redrives::Plan;
use choice::{Filter, Which};

/// Lines that one look at the database fetches.
const PAGE: u32 = 500;

/// What to do with dead letters.
#[derive(Debug, Clone, clap::Args)]
pub struct Args {
    #[command(subcommand)]
    command: DeadLetterCommand,
}

#[derive(Debug, Clone, Subcommand)]
enum DeadLetterCommand {
    /// List dead letters, the last to die first
    List(List),
    /// Show one, with each failed try and what it was redriven as
    Show(show::Show),
    /// Make new tasks of dead letters: of these at once, or of all that a filter takes by and by
    Redrive(Box<Redrive>),
    /// Discard dead letters; what their tasks did stays in history
    Discard(Discard),
    /// List redrives by filter, the newest first
    Redrives(redrives::List),
    /// Stop a redrive by filter: no further letter goes
    Stop(redrives::Stop),
    /// Let a redrive go on that was stopped, or halted by its canary
    Resume(redrives::Resume),
}

#[derive(Debug, Clone, clap::Args)]
struct List {
    #[command(flatten)]
    filter: Filter,
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
struct Redrive {
    #[command(flatten)]
    which: Which,
    /// Letters a second
    #[arg(long, value_name = "N", conflicts_with = "ids")]
    rate: Option<f64>,
    /// Redrive so many first, and the others once these have ended and have not died again
    #[arg(long, value_name = "N", conflicts_with = "ids")]
    canary: Option<i32>,
    /// Halt when more than this share of the canary dies again [default: 0.5]
    #[arg(long, value_name = "0..1", requires = "canary")]
    canary_share: Option<f64>,
    /// Also those that their owner has judged
    #[arg(long)]
    force: bool,
    /// Let any node run the new task
    #[arg(long)]
    clear_pin: bool,
    /// Why, for those who look at it later
    #[arg(long, default_value = "")]
    reason: String,
    /// Who orders it
    #[arg(long, env = "USER", hide_env = true, default_value = "")]
    by: String,
    /// What stdout gets
    #[arg(long, value_enum, default_value = "table")]
    output: Output,
    #[command(flatten)]
    database: Database,
}

#[derive(Debug, Clone, clap::Args)]
struct Discard {
    #[command(flatten)]
    which: Which,
    /// What stdout gets
    #[arg(long, value_enum, default_value = "table")]
    output: Output,
    #[command(flatten)]
    database: Database,
}

/// Does it; 1 when a letter that was named can't be redriven or discarded.
///
/// # Errors
/// [`crate::api::Error`], [`super::Usage`] and what output may run into.
pub async fn run(args: Args) -> anyhow::Result<u8> {
    match args.command {
        DeadLetterCommand::List(args) => list(args).await,
        DeadLetterCommand::Show(args) => show::show(args).await,
        DeadLetterCommand::Redrive(args) => redrive(*args).await,
        DeadLetterCommand::Discard(args) => discard(args).await,
        DeadLetterCommand::Redrives(args) => redrives::list(args).await,
        DeadLetterCommand::Stop(args) => redrives::stop(args).await,
        DeadLetterCommand::Resume(args) => redrives::resume(args).await,
    }
}

async fn list(args: List) -> anyhow::Result<u8> {
    let filter = args.filter.json()?;
    let letters = pages(&args.database.open()?, &filter, args.limit).await?;
    if args.output == Output::Json {
        let views: Vec<LetterLineView> = letters.into_iter().map(Into::into).collect();
        output::json(&views)?;
        return Ok(0);
    }
    if letters.is_empty() {
        output::say(
            "no dead letter matches; `fencepost task list --state failed` shows what history has of them",
        );
        return Ok(0);
    }
    let mut table = output::table(&[
        "id",
        "namespace",
        "queue",
        "type",
        "node",
        "cause",
        "error",
        "tries",
        "died at",
        "judged",
        "redriven as",
    ]);
    for letter in letters {
        let judged = if letter.judged { "yes" } else { "" };
        table.add_row([
            letter.id.to_string(),
            letter.namespace,
            letter.task_queue,
            letter.task_type,
            letter.node.unwrap_or_default(),
            letter.cause,
            letter.error_class,
            letter.attempt.to_string(),
            letter.dead_at,
            judged.to_owned(),
            letter
                .redriven_as
                .map_or_else(String::new, |id| id.to_string()),
        ]);
    }
    output::line(&table.to_string())?;
    Ok(0)
}

async fn pages(session: &Session, filter: &[u8], limit: u32) -> anyhow::Result<Vec<Listed>> {
    let mut letters: Vec<Listed> = Vec::new();
    let mut before = None;
    loop {
        let found = u32::try_from(letters.len()).unwrap_or(u32::MAX);
        let missing = limit.saturating_sub(found).min(PAGE);
        if missing == 0 {
            return Ok(letters);
        }
        let page = session.state.dead_letters(filter.to_vec(), before, missing);
        let page = page.await?;
        letters.extend(page.letters);
        before = page.before;
        if before.is_none() {
            return Ok(letters);
        }
    }
}

async fn redrive(args: Redrive) -> anyhow::Result<u8> {
    let choice = args.which.choice()?;
    let state = args.database.open()?.state;
    if !args.which.ids.is_empty() {
        let answers = state
            .redrive(args.which.ids, args.force, args.clear_pin)
            .await?;
        let views: Vec<AnswerView> = answers.into_iter().map(Into::into).collect();
        return answer(args.output, views);
    }
    let plan = Plan {
        choice,
        rate: args.rate,
        canary: args.canary,
        canary_share: args.canary_share,
        forced: args.force,
        clear_pin: args.clear_pin,
        by: args.by,
        reason: args.reason,
    };
    match state.start_redrive(plan, args.which.dry_run).await? {
        Started::Counted(letters) => counted(args.output, letters, "redrive"),
        Started::Running(redrive) => {
            if redrive.state == "running" {
                output::say(&format!(
                    "started; replicas drive it: fencepost dead-letter redrives, stop {id}, resume {id}",
                    id = redrive.id
                ));
            }
            redrives::one(args.output, *redrive)
        }
    }
}

fn answer(how: Output, views: Vec<AnswerView>) -> anyhow::Result<u8> {
    let code = u8::from(views.iter().any(|view| view.redriven_as.is_none()));
    if how == Output::Json {
        output::json(&views)?;
        return Ok(code);
    }
    let mut table = output::table(&["id", "redriven as", "refused"]);
    for view in views {
        table.add_row([
            view.task_id,
            view.redriven_as.unwrap_or_default(),
            view.refused.unwrap_or_default(),
        ]);
    }
    output::line(&table.to_string())?;
    Ok(code)
}

fn counted(how: Output, letters: i64, verb: &str) -> anyhow::Result<u8> {
    if how == Output::Json {
        output::json(&serde_json::json!({"letters": letters}))?;
    } else {
        output::line(&format!("would {verb} {letters} dead letters"))?;
    }
    Ok(0)
}

async fn discard(args: Discard) -> anyhow::Result<u8> {
    let choice = args.which.choice()?;
    let state = args.database.open()?.state;
    let named = args.which.ids.len();
    let letters = if named > 0 {
        state.discard(args.which.ids).await?.letters
    } else if args.which.dry_run {
        let letters = state.count_dead_letters(choice).await?;
        return counted(args.output, letters, "discard");
    } else {
        let mut letters = 0;
        loop {
            let done = state.discard_matching(choice.clone()).await?;
            letters += done.letters;
            if !done.more {
                break letters;
            }
        }
    };
    if args.output == Output::Json {
        output::json(&serde_json::json!({"discarded": letters}))?;
    } else {
        output::line(&format!("discarded {letters} dead letters"))?;
    }
    Ok(u8::from(
        named > 0 && i64::try_from(named).is_ok_and(|named| letters < named),
    ))
}
