//! `fencepost doctor`: looks at the database and says what is wrong and what to do.

use super::database::Database;
use super::output::{self, Output};
use crate::domain::checkup::{Finding, Verdict, judge};
use crate::store::{Settings, checkup, migrate};
use crate::worker::ledger::now_us;

/// Where to look.
#[derive(Debug, Clone, clap::Args)]
pub struct Args {
    /// Name transactions that have been open for so many seconds and keep dead rows
    #[arg(long, value_name = "SECONDS", default_value_t = 60, value_parser = clap::value_parser!(u32))]
    held_for: u32,
    /// What stdout gets
    #[arg(long, value_enum, default_value = "table")]
    output: Output,
    #[command(flatten)]
    database: Database,
}

/// Looks, and prints what it found. Answers 1 when something is a problem; warnings alone answer 0.
///
/// # Errors
/// A database that can't be reached or read, and what output may run into.
pub async fn run(args: Args) -> anyhow::Result<u8> {
    let schema = schema(&args.database).await?;
    let mut findings = vec![schema];
    if findings.iter().all(|found| found.verdict == Verdict::Ok) {
        let pool = args.database.open()?.state.pool;
        let client = pool.get().await?;
        let asked_ms = now_us() / 1000;
        let facts = checkup::read(&client, args.held_for.into()).await?;
        let skew_ms = asked_ms - facts.server.clock_ms;
        findings.extend(judge(&facts, skew_ms));
    }
    print(args.output, &findings)?;
    let worst = findings.iter().map(|found| found.verdict).max();
    Ok(u8::from(worst == Some(Verdict::Problem)))
}

/// Without its schema nothing else can be asked.
async fn schema(database: &Database) -> anyhow::Result<Finding> {
    let pending = migrate::check(&Settings::new(database.url.clone())).await?;
    let (verdict, found, advice) = match pending.len() {
        0 => (Verdict::Ok, "up to date".to_owned(), String::new()),
        missing => (
            Verdict::Problem,
            format!("{missing} migrations are missing"),
            "run `fencepost migrate`".to_owned(),
        ),
    };
    Ok(Finding {
        check: "schema",
        verdict,
        found,
        advice,
    })
}

fn print(how: Output, findings: &[Finding]) -> anyhow::Result<()> {
    if how == Output::Json {
        return output::json(&findings);
    }
    let mut table = output::table(&["check", "", "found", "what to do"]);
    for Finding {
        check,
        verdict,
        found,
        advice,
    } in findings
    {
        table.add_row([check, verdict.name(), found, advice]);
    }
    output::line(&table.to_string())?;
    Ok(())
}
