//! The benchmarks' worker: checks every payload and answers when it ran.

use std::path::{Path, PathBuf};
use std::time::Duration;

use tokio::task::JoinSet;
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;

use super::payload;
use crate::cli::EXIT_INTERRUPTED;
use crate::cli::signals::{Parent, Signals};
use crate::worker::ledger::now_us;
use crate::worker::{Error, Failure, Options, Success, Task, Worker};

/// A task that runs for no time.
pub(super) const STAMP: &str = "stamp";

/// A task that runs for as many milliseconds as it is told.
pub(super) const HOLD: &str = "hold";

/// Longer than the answers to the last results take.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(5);

/// Workers in one process at most: each has a thread, and a runtime has 512 for blocking work.
pub(super) const COPIES: u32 = 250;

/// Workers of a benchmark.
#[derive(Clone, Debug, clap::Args)]
pub struct Args {
    /// Replicas, tried in turn
    #[arg(long, value_delimiter = ',', required = true)]
    pub connect: Vec<String>,
    /// The benchmark's namespaces
    #[arg(long = "namespace", value_delimiter = ',', required = true)]
    pub namespaces: Vec<String>,
    /// The queue to serve
    #[arg(long)]
    pub queue: String,
    /// Its name
    #[arg(long)]
    pub identity: String,
    /// Tasks to run at the same time, in each copy
    #[arg(long)]
    pub slots: u32,
    /// Workers in this process; more than one keep no ledger
    #[arg(long)]
    pub copies: u32,
    /// Bytes that every payload must have
    #[arg(long)]
    pub payload_bytes: u32,
    /// Where it writes down what it did
    #[arg(long)]
    pub ledger: PathBuf,
}

/// Serves until a signal, or until the benchmark is gone; then drains. A second signal ends it at once.
///
/// # Errors
/// Those of [`Worker::run`], and signals that cannot be caught.
pub async fn run(args: Args) -> anyhow::Result<u8> {
    let mut signals = Signals::listen()?;
    let mut bench = Parent::watch()?;
    let stop = CancellationToken::new();
    let mut workers: JoinSet<Result<(), Error>> = JoinSet::new();
    for copy in 0..args.copies {
        let identity = if args.copies == 1 {
            args.identity.clone()
        } else {
            format!("{}-{copy}", args.identity)
        };
        let ledger = (args.copies == 1).then_some(args.ledger.as_path());
        let worker = make(&args, identity, ledger);
        workers.spawn(worker.run(stop.clone().cancelled_owned()));
    }
    let interrupted = async {
        tokio::select! {
            () = signals.next() => {}
            () = bench.gone() => {}
        }
        stop.cancel();
        signals.next().await;
    };
    let ended = async {
        while let Some(ended) = workers.join_next().await {
            ended??;
        }
        Ok(0)
    };
    tokio::select! {
        ended = ended => ended,
        () = interrupted => Ok(EXIT_INTERRUPTED),
    }
}

fn make(args: &Args, identity: String, ledger: Option<&Path>) -> Worker {
    let bytes = args.payload_bytes;
    Worker::new(Options {
        connect: args.connect.clone(),
        identity,
        namespaces: args.namespaces.clone(),
        task_queue: args.queue.clone(),
        slots: args.slots,
        drain_timeout: DRAIN_TIMEOUT,
        ledger: ledger.map(Path::to_owned),
        ..Options::default()
    })
    .handle(STAMP, move |task| handle(task, bytes, |_| Duration::ZERO))
    .handle(HOLD, move |task| {
        handle(task, bytes, |told| {
            Duration::from_millis(u64::try_from(told).unwrap_or(0))
        })
    })
}

/// A damaged payload ends the task as a dead letter, which the count at the end finds.
async fn handle(task: Task, bytes: u32, lasts: fn(i64) -> Duration) -> Result<Success, Failure> {
    let started_us = now_us();
    let payload = payload::check(task.payload(), bytes)
        .map_err(|error| Failure::terminal("damaged", format!("{error:#}")))?;
    let told = payload.told;
    let lasts = lasts(told);
    if !lasts.is_zero() {
        tokio::select! {
            () = sleep(lasts) => {}
            () = task.cancelled().cancelled() => {}
        }
    }
    let ended_us = now_us();
    let result =
        format!(r#"{{"told": {told}, "started_us": {started_us}, "ended_us": {ended_us}}}"#);
    Ok(Success::bytes(result, "application/json"))
}
