//! The command line: one module a command. stdout is data, stderr is talk.

pub mod bench;
pub mod completions;
pub mod config;
mod database;
pub mod dead_letter;
pub mod demo;
pub mod doctor;
pub mod enqueue;
pub mod healthcheck;
mod lines;
pub mod man;
pub mod migrate;
pub mod namespace;
mod output;
pub mod pause;
pub mod queue;
pub mod serve;
mod signals;
mod stage;
pub mod task;
mod wait;
pub mod watch;
pub mod worker;
pub mod workers;
pub mod workflow;

use std::io::{self, IsTerminal as _};
use std::process::ExitCode;
use std::time::Duration;

use clap::{Parser, Subcommand};
use tracing_subscriber::EnvFilter;

use crate::store::queues::NO_QUOTA;
use crate::{api, store};

/// Exit code after a second signal, as shells report an interrupt.
const EXIT_INTERRUPTED: u8 = 130;

/// Exit code for what the caller has to change: usage, configuration, refused input.
const EXIT_USAGE: u8 = 2;

/// A durable task dispatcher on PostgreSQL.
#[derive(Debug, Parser)]
#[command(name = "fencepost", version, max_term_width = 100)]
pub struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// The commands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Run one replica of the dispatcher
    Serve(Box<serve::Args>),
    /// Run tasks with a command, or with a built-in handler
    Worker(Box<worker::Args>),
    /// Bring the database's schema up to date
    Migrate(migrate::Args),
    /// Enqueue a task, or one for each line of a file
    Enqueue(Box<enqueue::Args>),
    /// Look at tasks, ask why they do not run, and cancel them
    Task(task::Args),
    /// Look at dead letters, make new tasks of them, discard them
    #[command(visible_alias = "dead")]
    DeadLetter(dead_letter::Args),
    /// Look at queues, find those that nobody serves, and declare them
    Queue(queue::Args),
    /// Look at namespaces and set where their tasks run
    Namespace(namespace::Args),
    /// Stage groups of tasks that end together, look at them, pause, cancel and run them again
    Workflow(workflow::Args),
    /// Keep tasks from starting: of a namespace, a queue, a type, a node, or any combination; what runs runs on
    Pause(pause::Pause),
    /// End a pause
    Resume(pause::Resume),
    /// Look at the connected workers, and order them to take nothing new
    Workers(workers::Args),
    /// Watch queues, rates and workers: a live view on a terminal, else a line a second
    Watch(watch::Args),
    /// See it work: a private PostgreSQL, replicas and workers, 10,000 tasks, two of the processes killed half-way
    Demo(demo::Args),
    /// One worker of the demo
    #[command(hide = true)]
    DemoWorker(Box<demo::worker::Args>),
    /// Measure this program on this machine
    Bench(Box<bench::Args>),
    /// Workers of a benchmark
    #[command(hide = true)]
    BenchWorker(Box<bench::worker::Args>),
    /// Show and check the settings that a replica started here would go by
    Config(config::Args),
    /// Look at the database and say what is wrong and what to do: exit code 1 for a problem
    Doctor(doctor::Args),
    /// Ask a replica on this machine whether it is ready: exit code 0 or 1
    Healthcheck(healthcheck::Args),
    /// Print completions for a shell
    Completions(completions::Args),
    /// Write manual pages, one a command
    Man(man::Args),
    /// Print the version
    Version,
}

/// Wrong use of the command line that its grammar lets through.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct Usage(pub String);

/// A quota as people give it: a number of tasks, or `none`. The database judges the number.
fn quota(text: &str) -> Result<i32, Usage> {
    let number = match text {
        "none" => Some(NO_QUOTA),
        _ => text.parse().ok().filter(|number| *number >= 0),
    };
    number.ok_or_else(|| Usage("a quota is a number of tasks from 0 on, or none".to_owned()))
}

/// What threads that block get when all else is over: to write out what they were given.
const LAST_WORK: Duration = Duration::from_secs(2);

/// The program: parses the command line, does what was asked, and answers the exit code. The runtime is made here and not in
/// the binary: a future is compiled by the crate that polls it, and a binary that did would compile the library once more.
#[must_use]
pub fn main() -> ExitCode {
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
        Ok(runtime) => {
            let code = runtime.block_on(run(cli));
            // A look-up of a name can't be stopped, and a resolver that is away may take half a minute for it.
            runtime.shutdown_timeout(LAST_WORK);
            ExitCode::from(code)
        }
        Err(error) => {
            output::say(&format!("no threads to run on: {error}"));
            ExitCode::FAILURE
        }
    }
}

/// What `FENCEPOST_LOG` says, or else this.
fn log_filter(otherwise: &str) -> EnvFilter {
    let text = std::env::var("FENCEPOST_LOG").unwrap_or_default();
    if crate::config::is_log_filter(&text) {
        return EnvFilter::new(text);
    }
    if !text.is_empty() {
        output::say(&format!(
            "FENCEPOST_LOG is neither a level nor a list like info,fencepost=debug, and not looked at: {text:?}"
        ));
    }
    EnvFilter::new(otherwise)
}

/// A replica logs as its configuration says; here are the others. `FENCEPOST_LOG` filters; programs that stay tell what
/// they do, the others only what is wrong.
fn log_to_stderr(cli: &Cli) {
    let level = match cli.command {
        Command::Worker(_) | Command::DemoWorker(_) | Command::BenchWorker(_) => "info",
        _ => "warn",
    };
    let filter = log_filter(level);
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(io::stderr)
        .with_ansi(io::stderr().is_terminal())
        .init();
}

/// Does what was asked, says on stderr what went wrong, and answers the exit code.
async fn run(cli: Cli) -> u8 {
    let done = match cli.command {
        Command::Serve(args) => serve::run(*args).await,
        Command::Worker(args) => worker::run(*args).await,
        Command::Migrate(args) => migrate::run(args).await,
        Command::Enqueue(args) => enqueue::run(*args).await,
        Command::Task(args) => task::run(args).await,
        Command::DeadLetter(args) => dead_letter::run(args).await,
        Command::Queue(args) => queue::run(args).await,
        Command::Namespace(args) => namespace::run(args).await,
        Command::Workflow(args) => workflow::run(args).await,
        Command::Pause(args) => pause::pause(args).await,
        Command::Resume(args) => pause::resume(args).await,
        Command::Workers(args) => workers::run(args).await,
        Command::Watch(args) => watch::run(args).await,
        Command::Demo(args) => demo::run(args).await,
        Command::DemoWorker(args) => demo::worker::run(*args).await,
        Command::Bench(args) => bench::run(*args).await,
        Command::BenchWorker(args) => bench::worker::run(*args).await,
        Command::Config(args) => config::run(args),
        Command::Doctor(args) => doctor::run(args).await,
        Command::Healthcheck(args) => healthcheck::run(args).await,
        Command::Completions(args) => completions::run(args),
        Command::Man(args) => man::run(args),
        Command::Version => output::line(concat!("fencepost ", env!("CARGO_PKG_VERSION")))
            .map(|()| 0)
            .map_err(Into::into),
    };
    done.unwrap_or_else(|error| report(&error))
}

/// An error and its causes. Some name their cause themselves.
fn chain(error: &anyhow::Error) -> String {
    let causes = error.chain().map(ToString::to_string);
    causes.fold(String::new(), |said, cause| match said.as_str() {
        "" => cause,
        known if known.ends_with(&cause) => said,
        _ => format!("{said}: {cause}"),
    })
}

/// One line on stderr, and the exit code.
fn report(error: &anyhow::Error) -> u8 {
    if let Some(error) = error.downcast_ref::<io::Error>()
        && error.kind() == io::ErrorKind::BrokenPipe
    {
        // Whoever read our output has seen enough.
        return 0;
    }
    if let Some(error) = error.downcast_ref::<api::Error>() {
        output::say(&output::sentence(error));
        return if error.is_refusal() { EXIT_USAGE } else { 1 };
    }
    output::say(&chain(error));
    let is_usage = error.is::<Usage>()
        || error.is::<crate::config::Errors>()
        || matches!(
            error.downcast_ref::<store::Error>(),
            Some(store::Error::Settings(_))
        )
        || matches!(
            error.downcast_ref::<store::migrate::Error>(),
            Some(store::migrate::Error::Store(store::Error::Settings(_)))
        );
    if is_usage { EXIT_USAGE } else { 1 }
}
