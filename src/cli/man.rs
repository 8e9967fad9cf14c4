//! `fencepost man`: a manual page a command.

use std::path::PathBuf;

use clap::CommandFactory as _;

use super::{Cli, Usage, output};

/// Where the pages go.
#[derive(Debug, Clone, clap::Args)]
pub struct Args {
    /// The directory, which is made if it is not there
    #[arg(value_name = "DIR")]
    pub directory: PathBuf,
}

/// Writes the pages of all commands.
///
/// # Errors
/// [`Usage`], when the directory can't be written to.
pub fn run(args: Args) -> anyhow::Result<u8> {
    let directory = args.directory.display().to_string();
    let written = std::fs::create_dir_all(&args.directory)
        .and_then(|()| clap_mangen::generate_to(Cli::command(), &args.directory));
    written.map_err(|error| Usage(format!("cannot write to {directory}: {error}")))?;
    output::say(&format!(
        "the pages are in {directory}: man {directory}/fencepost.1"
    ));
    Ok(0)
}
