//! `fencepost bench`: what the product costs and how fast it is, with real replicas and workers over loopback.
//!
//! Nothing is switched off for a number: commits reach the disk, payloads are checked at the worker, results are
//! stored, history is kept. Reading order: `ground` is what every benchmark stands on, `payload` and `worker` are
//! the work, then one file a benchmark; `figures` and `cost` are how numbers are made.

mod arrival;
mod cost;
mod drain;
mod enqueue;
mod fairness;
mod figures;
mod flow;
mod full_pool;
mod ground;
mod half_load;
mod idle;
mod latency;
mod payload;
mod producer;
mod soak;
pub mod worker;

use super::signals::Signals;
use super::{EXIT_INTERRUPTED, output};
use figures::Report;
use ground::Ground;

/// Measure this program on this machine.
#[derive(Clone, Debug, clap::Args)]
pub struct Args {
    /// What to measure
    #[command(subcommand)]
    what: What,
}

#[derive(Clone, Debug, clap::Subcommand)]
enum What {
    /// From commit to handler: idle, at half load, with all slots taken, and before the first worker comes
    Latency(latency::Args),
    /// A backlog from the first claim to the last end
    Drain(drain::Args),
    /// Producers: many tasks a call, and one a commit
    Enqueue(enqueue::Args),
    /// Many tenants: shares against weights, waits for the first start, and quotas that must hold
    Fairness(fairness::Args),
    /// A steady flow of tasks: waits in its first and its last third
    Soak(soak::Args),
    /// What a replica costs while many workers are connected and nothing happens
    Idle(idle::Args),
}

impl What {
    fn common(&self) -> &Common {
        match self {
            Self::Latency(args) => &args.common,
            Self::Drain(args) => &args.common,
            Self::Enqueue(args) => &args.common,
            Self::Fairness(args) => &args.common,
            Self::Soak(args) => &args.common,
            Self::Idle(args) => &args.common,
        }
    }
}

/// What all benchmarks can be told.
#[derive(Clone, Debug, clap::Args)]
struct Common {
    /// Bytes of each payload
    #[arg(long, value_name = "B", default_value_t = 200, value_parser = clap::value_parser!(u32).range(64..=200_000))]
    payload_bytes: u32,
    /// Replicas to start
    #[arg(long, value_name = "R", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=16))]
    replicas: u16,
    /// Use this migrated database, in a namespace of its own, instead of a private server
    #[arg(long, value_name = "URL")]
    database_url: Option<String>,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// Measures, then ends whatever it has started: also after a signal or a failure.
///
/// Answers 1 when a count does not come out: tasks lost or run twice, or payloads that arrived damaged.
///
/// # Errors
/// What keeps the benchmark from coming to its end: no PostgreSQL, or a process that ends by itself.
pub async fn run(args: Args) -> anyhow::Result<u8> {
    let mut signals = Signals::listen()?;
    let common = args.what.common().clone();
    let mut ground = Ground::new(&common)?;
    let measured = tokio::select! {
        measured = measure(&args.what, &mut ground) => measured.map(Some),
        () = signals.next() => Ok(None),
    };
    if measured.is_err() {
        output::say(&ground.stage.logs());
    }
    tokio::select! {
        () = ground.stage.stop() => {}
        // Dropped, everything is killed.
        () = signals.next() => return Ok(EXIT_INTERRUPTED),
    }
    let Some(report) = measured? else {
        return Ok(EXIT_INTERRUPTED);
    };
    report.print(common.json)?;
    Ok(u8::from(!report.holds))
}

async fn measure(what: &What, ground: &mut Ground) -> anyhow::Result<Report> {
    match what {
        What::Latency(args) => latency::measure(args, ground).await,
        What::Drain(args) => drain::measure(args, ground).await,
        What::Enqueue(args) => enqueue::measure(args, ground).await,
        What::Fairness(args) => fairness::measure(args, ground).await,
        What::Soak(args) => soak::measure(args, ground).await,
        What::Idle(args) => idle::measure(args, ground).await,
    }
}
