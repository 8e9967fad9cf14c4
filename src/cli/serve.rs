//! `fencepost serve`: one replica.

use std::io::IsTerminal as _;
use std::path::PathBuf;

use anyhow::Context as _;
use tokio_util::sync::CancellationToken;

use super::signals::{Parent, Signals};
use super::{EXIT_INTERRUPTED, output};
use crate::config::{Config, Flag, Log, LogFormat, Sources};
use crate::embedded::{Embedded, Options};
use crate::server::{self, Addresses};
use crate::store;

/// Run one replica of the dispatcher.
#[derive(Clone, Debug, clap::Args)]
pub struct Args {
    /// Configuration file [default: fencepost.toml, where there is one]
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// The database, as `postgres://USER:PASSWORD@HOST/DATABASE`; also `DATABASE_URL`
    #[arg(long, value_name = "URL", conflicts_with = "embedded")]
    pub database_url: Option<String>,
    /// Start a private PostgreSQL from this machine's binaries, keep its data in DIR, and migrate it
    #[arg(long, value_name = "DIR", num_args = 0..=1, default_missing_value = "fencepost-data")]
    pub embedded: Option<PathBuf>,
    /// Where workers and gRPC producers connect [default: 127.0.0.1:7433]
    #[arg(long, value_name = "ADDRESS")]
    pub grpc: Option<String>,
    /// Where HTTP is served [default: 127.0.0.1:7434]
    #[arg(long, value_name = "ADDRESS")]
    pub http: Option<String>,
    /// A name for people [default: the host's]
    #[arg(long)]
    pub name: Option<String>,
    /// Print one line of JSON with the addresses on stdout once both ports are open
    #[arg(long)]
    pub announce: bool,
    /// Drain when stdin ends, since whoever started this replica is gone
    #[arg(long, hide = true)]
    pub with_parent: bool,
}

/// Serves until SIGTERM or SIGINT, then drains; a second signal ends it at once.
pub async fn run(args: Args) -> anyhow::Result<u8> {
    let signals = Signals::listen()?;
    let parent = args.with_parent.then(Parent::watch).transpose()?;
    let database = match &args.embedded {
        Some(directory) => Some(start_embedded(directory.clone()).await?),
        None => None,
    };
    let sources = Sources::of_process(args.config.clone(), flags(&args, database.as_ref()));
    let config = Config::load(&sources)?;
    log_as(&config.log);
    if database.is_some() {
        store::migrate::run(&config.database).await?;
    }
    let settings = server::Settings::from(&config);
    let stop = CancellationToken::new();
    let announce = args.announce;
    let serving = server::serve(
        settings,
        |addresses| opened(addresses, announce),
        stop.clone().cancelled_owned(),
    );
    let interrupted = watch(signals, parent, &stop);
    let served = tokio::select! {
        served = serving => served,
        () = interrupted => return Ok(EXIT_INTERRUPTED),
    };
    if let Some(database) = database {
        database
            .stop()
            .await
            .context("stopping the private PostgreSQL")?;
    }
    served?;
    Ok(0)
}

async fn start_embedded(directory: PathBuf) -> anyhow::Result<Embedded> {
    output::say(&format!(
        "starting a private PostgreSQL in {}",
        directory.display()
    ));
    let options = Options {
        directory: Some(directory),
        ..Options::default()
    };
    let database = Embedded::start(options)
        .await
        .context("starting a private PostgreSQL")?;
    output::say(&format!("it answers at {}", database.url()));
    Ok(database)
}

fn flags(args: &Args, database: Option<&Embedded>) -> Vec<Flag> {
    let embedded = database.map(Embedded::url);
    let given = [
        ("--embedded", "database.url", embedded.as_ref()),
        ("--database-url", "database.url", args.database_url.as_ref()),
        ("--grpc", "server.grpc", args.grpc.as_ref()),
        ("--http", "server.http", args.http.as_ref()),
        ("--name", "server.name", args.name.as_ref()),
    ];
    let flags = given.into_iter().filter_map(|(flag, key, value)| {
        Some(Flag {
            flag,
            key,
            value: value?.clone(),
        })
    });
    flags.collect()
}

fn opened(addresses: Addresses, announce: bool) {
    tracing::info!(grpc = %addresses.grpc, http = %addresses.http, "listening");
    if announce {
        let line = serde_json::json!({"grpc": addresses.grpc.to_string(), "http": addresses.http.to_string()});
        // Whoever asked for the line is gone: there is nobody to tell.
        output::line(&line.to_string()).ok();
    }
}

/// What the drivers say of each lost connection is left out: the heartbeat says once that the database is away.
const QUIET: &str = "deadpool=error,tokio_postgres=warn";

/// `FENCEPOST_LOG` filters, else the configuration does.
fn log_as(log: &Log) {
    let filter = super::log_filter(&format!("{QUIET},{}", log.level));
    let base = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr);
    // A program that has set up its own logging keeps it.
    let _kept = match log.format {
        LogFormat::Text => base.with_ansi(std::io::stderr().is_terminal()).try_init(),
        LogFormat::Json => base.json().try_init(),
    };
}

/// The first reason to end fires `stop`; returns at the second signal.
async fn watch(mut signals: Signals, parent: Option<Parent>, stop: &CancellationToken) {
    let gone = async {
        match parent {
            Some(mut parent) => parent.gone().await,
            None => std::future::pending().await,
        }
    };
    tokio::select! {
        () = signals.next() => tracing::info!("shutting down; a second signal ends it at once"),
        () = gone => tracing::info!("shutting down: whoever started this replica is gone"),
    }
    stop.cancel();
    signals.next().await;
}
