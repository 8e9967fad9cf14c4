//! Redrives by filter: redrives, stop, resume.

use crate::api::dead_letters::RedriveView;
use crate::cli::database::Database;
use crate::cli::output::{self, Output};
use crate::store::redrives::Redrive;

#[derive(Debug, Clone, clap::Args)]
pub(super) struct List {
    /// Lines at most
    #[arg(long, default_value_t = 50, value_parser = clap::value_parser!(u32).range(1..=1000))]
    limit: u32,
    /// What stdout gets
    #[arg(long, value_enum, default_value = "table")]
    output: Output,
    #[command(flatten)]
    database: Database,
}

#[derive(Debug, Clone, clap::Args)]
pub(super) struct Stop {
    /// The redrive's number
    #[arg(value_name = "ID")]
    id: i64,
    /// Why, for those who look at it later
    #[arg(long, default_value = "")]
    reason: String,
    /// What stdout gets
    #[arg(long, value_enum, default_value = "table")]
    output: Output,
    #[command(flatten)]
    database: Database,
}

#[derive(Debug, Clone, clap::Args)]
pub(super) struct Resume {
    /// The redrive's number
    #[arg(value_name = "ID")]
    id: i64,
    /// What stdout gets
    #[arg(long, value_enum, default_value = "table")]
    output: Output,
    #[command(flatten)]
    database: Database,
}

pub(super) async fn list(args: List) -> anyhow::Result<u8> {
    let found = args
        .database
        .open()?
        .state
        .redrives(None, args.limit)
        .await?;
    if found.is_empty() && args.output == Output::Table {
        output::say(
            "no redrive by filter yet; `fencepost dead-letter redrive --queue Q --dry-run` counts what one would take",
        );
        return Ok(0);
    }
    show(args.output, found)
}

pub(super) async fn stop(args: Stop) -> anyhow::Result<u8> {
    let state = args.database.open()?.state;
    let redrive = state.stop_redrive(args.id, args.reason).await?;
    one(args.output, redrive)
}

pub(super) async fn resume(args: Resume) -> anyhow::Result<u8> {
    let redrive = args.database.open()?.state.resume_redrive(args.id).await?;
    one(args.output, redrive)
}

/// One redrive: an object, or a table of one line.
pub(super) fn one(how: Output, redrive: Redrive) -> anyhow::Result<u8> {
    if how == Output::Json {
        output::json(&RedriveView::from(redrive))?;
        return Ok(0);
    }
    show(how, vec![redrive])
}

fn show(how: Output, found: Vec<Redrive>) -> anyhow::Result<u8> {
    let views = found.into_iter().map(RedriveView::from);
    if how == Output::Json {
        output::json(&views.collect::<Vec<_>>())?;
        return Ok(0);
    }
    let mut table = output::table(&[
        "redrive",
        "state",
        "filter",
        "total",
        "redriven",
        "skipped",
        "remaining",
        "rate",
        "started at",
        "by",
        "detail",
    ]);
    for view in views {
        let filter = view.filter.as_ref().map(|filter| filter.get().to_owned());
        table.add_row([
            view.redrive_id,
            view.state,
            filter.unwrap_or_default(),
            view.total.to_string(),
            view.redriven.to_string(),
            view.skipped.to_string(),
            view.remaining.to_string(),
            view.rate
                .map_or_else(String::new, |rate| format!("{rate}/s")),
            view.started_at,
            view.by,
            view.detail,
        ]);
    }
    output::line(&table.to_string())?;
    Ok(0)
}
