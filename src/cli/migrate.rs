//! `fencepost migrate`: the schema, up to date.

use super::Usage;
use super::output::{self, Output};
use crate::store::{Settings, migrate};

/// What to do with the migrations.
#[derive(Debug, Clone, clap::Args)]
pub struct Args {
    /// The database, as `postgres://USER:PASSWORD@HOST/DATABASE`
    #[arg(long, env = "DATABASE_URL", hide_env_values = true, value_name = "URL")]
    pub database_url: Option<String>,
    /// Change nothing: list what is missing, and exit with 1 if anything is
    #[arg(long, conflicts_with = "sql")]
    pub check: bool,
    /// Print all migrations as one script for psql
    #[arg(long)]
    pub sql: bool,
    /// What stdout gets of --check
    #[arg(long, value_enum, default_value = "table", requires = "check")]
    pub output: Output,
}

/// Applies the migrations, lists those that are missing, or prints them.
///
/// # Errors
/// Those of [`migrate`].
pub async fn run(args: Args) -> anyhow::Result<u8> {
    if args.sql {
        output::bytes(migrate::sql().as_bytes())?;
        return Ok(0);
    }
    let Some(url) = args.database_url else {
        let message = "--database-url or DATABASE_URL must say where the database is";
        return Err(Usage(message.into()).into());
    };
    let settings = Settings::new(url);
    if args.check {
        let pending = migrate::check(&settings).await?;
        if args.output == Output::Json {
            let views = pending.iter().map(
                |one| serde_json::json!({"version": one.version, "description": one.description}),
            );
            output::json(&views.collect::<Vec<_>>())?;
            return Ok(u8::from(!pending.is_empty()));
        }
        if pending.is_empty() {
            output::say("the schema is up to date; `fencepost doctor` looks at the rest");
        }
        for migration in &pending {
            output::line(&format!(
                "{:04} {}",
                migration.version, migration.description
            ))?;
        }
        return Ok(u8::from(!pending.is_empty()));
    }
    migrate::run(&settings).await?;
    output::say("the schema is up to date");
    Ok(0)
}
