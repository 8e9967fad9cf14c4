//! `fencepost completions`: what a shell needs to complete commands and flags.

use clap::CommandFactory as _;
use clap_complete::{generate, shells};

use super::{Cli, output};

/// Which shell.
#[derive(Debug, Clone, clap::Args)]
pub struct Args {
    /// The shell
    #[arg(value_enum)]
    pub shell: Shell,
}

/// The shells that completions are made for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Shell {
    /// GNU Bash
    Bash,
    /// Z shell
    Zsh,
    /// fish
    Fish,
}

/// Prints the completions.
///
/// # Errors
/// What output may run into.
pub fn run(args: Args) -> anyhow::Result<u8> {
    let (mut command, mut script) = (Cli::command(), Vec::new());
    let name = command.get_name().to_owned();
    match args.shell {
        Shell::Bash => generate(shells::Bash, &mut command, name, &mut script),
        Shell::Zsh => generate(shells::Zsh, &mut command, name, &mut script),
        Shell::Fish => generate(shells::Fish, &mut command, name, &mut script),
    }
    output::bytes(&script)?;
    Ok(0)
}
