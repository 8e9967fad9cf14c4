//! Parses the command line and returns an exit code.

use std::io::IsTerminal as _;
use std::process::ExitCode;

use clap::Parser as _;
use fencepost::cli::{self, Cli, Command};
use tracing_subscriber::EnvFilter;

fn main() -> ExitCode {
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => {
            // Help into a closed pipe is no failure.
            error.print().ok();
            return ExitCode::from(u8::try_from(error.exit_code()).unwrap_or(1));
        }
    };
    if !matches!(cli.command, Command::Serve(_)) {
        log_to_stderr(&cli);
    }
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build();
    match runtime {
        Ok(runtime) => ExitCode::from(runtime.block_on(cli::run(cli))),
        Err(_) => ExitCode::FAILURE,
    }
}

/// A replica logs as its configuration says; here are the others. `FENCEPOST_LOG` filters; programs that stay tell what they do, the others only what is wrong.
fn log_to_stderr(cli: &Cli) {
    let level = match cli.command {
        Command::Worker(_) | Command::DemoWorker(_) | Command::BenchWorker(_) => "info",
        _ => "warn",
    };
    let filter = EnvFilter::try_from_env("FENCEPOST_LOG").unwrap_or_else(|_| level.into());
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .with_ansi(std::io::stderr().is_terminal())
        .init();
}
