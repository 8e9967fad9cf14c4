//! `fencepost config`: what a replica started here would go by.

use std::path::PathBuf;

use clap::Subcommand;
use serde_json::json;

use super::output::{self, Output};
use crate::config::{Config, Sources};

/// Settings of a replica.
#[derive(Debug, Clone, clap::Args)]
pub struct Args {
    #[command(subcommand)]
    command: ConfigCommand,
}

#[derive(Debug, Clone, Subcommand)]
enum ConfigCommand {
    /// Every setting in effect, and where it comes from; secrets are left out
    Show(Show),
    /// Say every mistake at once, or nothing: exit code 0 or 2
    Check(Check),
}

#[derive(Debug, Clone, clap::Args)]
struct Show {
    #[command(flatten)]
    sources: Check,
    /// What stdout gets
    #[arg(long, value_enum, default_value = "table")]
    output: Output,
}

#[derive(Debug, Clone, clap::Args)]
struct Check {
    /// Configuration file [default: fencepost.toml, where there is one]
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
}

/// Shows or checks them.
///
/// # Errors
/// [`crate::config::Errors`] with every mistake, and what output may run into.
pub fn run(args: Args) -> anyhow::Result<u8> {
    match args.command {
        ConfigCommand::Show(args) => show(args),
        ConfigCommand::Check(args) => {
            Config::load(&sources(args))?;
            Ok(0)
        }
    }
}

/// The same files and variables as `serve` reads; it has flags besides.
fn sources(args: Check) -> Sources {
    Sources::of_process(args.config, Vec::new())
}

fn show(args: Show) -> anyhow::Result<u8> {
    let (_, entries) = Config::explain(&sources(args.sources))?;
    if args.output == Output::Json {
        let entries = entries
            .iter()
            .map(|entry| json!({"key": entry.key, "value": entry.value, "origin": entry.origin}));
        output::json(&entries.collect::<Vec<_>>())?;
        return Ok(0);
    }
    let mut table = output::table(&["setting", "value", "from"]);
    for entry in entries {
        table.add_row([entry.key, &entry.value, &entry.origin]);
    }
    output::line(&table.to_string())?;
    Ok(0)
}
