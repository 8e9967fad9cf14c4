//! One dead letter on a page.

use crate::api::dead_letters::LetterView;
use crate::cli::database::Database;
use crate::cli::output::{self, Output};
use crate::store::dead_letters::Letter;

#[derive(Debug, Clone, clap::Args)]
pub(super) struct Show {
    /// The dead task's id
    #[arg(value_name = "ID")]
    id: i64,
    /// With its payload
    #[arg(long)]
    payload: bool,
    /// What stdout gets
    #[arg(long, value_enum, default_value = "table")]
    output: Output,
    #[command(flatten)]
    database: Database,
}

pub(super) async fn show(args: Show) -> anyhow::Result<u8> {
    let state = args.database.open()?.state;
    let letter = state.dead_letter(args.id, args.payload).await?;
    if args.output == Output::Json {
        output::json(&LetterView::from(letter))?;
        return Ok(0);
    }
    output::line(&sheet(&letter).to_string())?;
    if !letter.failures.is_empty() {
        output::line(&failures(&letter).to_string())?;
    }
    if letter.chain.len() > 1 {
        output::line(&chain(&letter).to_string())?;
    }
    Ok(0)
}

fn sheet(letter: &Letter) -> comfy_table::Table {
    let line = &letter.listed;
    let owner = match (&letter.told_at, &letter.tell_error) {
        (Some(at), _) => Some(format!("told at {at}")),
        (None, Some(error)) => Some(format!("not told: {error}")),
        (None, None) => letter.telling.then(|| "is being told".to_owned()),
    };
    let payload = letter.payload.as_ref().map(|bytes| {
        let text = std::str::from_utf8(bytes);
        text.map_or_else(|_| format!("{} bytes", bytes.len()), str::to_owned)
    });
    let workflow = letter
        .workflow
        .map(|(workflow, run, ordinal)| format!("{workflow}, run {run}, member {ordinal}"));
    let lost_on = letter.lost_on();
    let mut table = output::table(&["dead letter", &line.id.to_string()]);
    for (name, value) in [
        ("namespace", Some(line.namespace.clone())),
        ("queue", Some(line.task_queue.clone())),
        ("type", Some(line.task_type.clone())),
        ("node", line.node.clone()),
        ("cause", Some(line.cause.clone())),
        ("error class", Some(line.error_class.clone())),
        ("error", letter.error_message.clone()),
        ("failed tries", Some(line.attempt.to_string())),
        ("losses", (line.losses > 0).then(|| line.losses.to_string())),
        ("lost on", (!lost_on.is_empty()).then(|| lost_on.join(", "))),
        ("enqueued at", Some(line.enqueued_at.clone())),
        ("died at", Some(line.dead_at.clone())),
        ("owner", owner),
        ("judged", line.judged.then(|| "yes".to_owned())),
        ("redriven as", line.redriven_as.map(|id| id.to_string())),
        ("workflow", workflow),
        ("concurrency key", letter.concurrency_key.clone()),
        ("labels", letter.labels.clone()),
        ("content type", Some(letter.content_type.clone())),
        ("payload bytes", Some(letter.payload_bytes.to_string())),
        ("payload", payload),
    ] {
        if let Some(value) = value {
            table.add_row([name, &value]);
        }
    }
    table
}

fn failures(letter: &Letter) -> comfy_table::Table {
    let mut table = output::table(&[
        "try",
        "failed at",
        "move",
        "worker",
        "node",
        "class",
        "error",
    ]);
    for failed in &letter.failures {
        table.add_row([
            failed.attempt.to_string(),
            failed.failed_at.clone(),
            failed.how.clone(),
            failed.worker.clone().unwrap_or_default(),
            failed.node.clone().unwrap_or_default(),
            failed.error_class.clone(),
            failed.error_message.clone().unwrap_or_default(),
        ]);
    }
    table
}

fn chain(letter: &Letter) -> comfy_table::Table {
    let mut table = output::table(&["redriven as", "state", "died at"]);
    for task in &letter.chain {
        table.add_row([
            task.id.to_string(),
            task.state.clone(),
            task.dead_at.clone().unwrap_or_default(),
        ]);
    }
    table
}
