//! The demo's worker: what its three types do.

use std::path::PathBuf;
use std::time::Duration;

use tokio_util::sync::CancellationToken;

use crate::cli::EXIT_INTERRUPTED;
use crate::cli::signals::{Parent, Signals};
use crate::worker::{Failure, Options, Success, Task, Worker};

/// The one queue of the demo.
pub(super) const QUEUE: &str = "demo";

/// Attempts that the second type fails.
const FAILS: u32 = 2;

/// Attempts of a task that always fails.
const ATTEMPTS: i32 = 3;

/// Every handler takes up to so long, so that work is in flight at any moment.
const LONGEST_RUN_MS: u64 = 5;

/// Longer than any handler, and than the answers to the last results take.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(5);

/// One worker of the demo.
#[derive(Clone, Debug, clap::Args)]
pub struct Args {
    /// Replicas, tried in turn
    #[arg(long, value_delimiter = ',', required = true)]
    pub connect: Vec<String>,
    /// The demo's namespace
    #[arg(long)]
    pub namespace: String,
    /// Its name
    #[arg(long)]
    pub identity: String,
    /// Tasks to run at the same time
    #[arg(long)]
    pub slots: u32,
    /// Where it writes down what it did
    #[arg(long)]
    pub ledger: PathBuf,
}

/// The three task types.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Kind {
    Succeeds,
    FailsTwice,
    AlwaysFails,
}

impl Kind {
    pub(super) const ALL: [Self; 3] = [Self::Succeeds, Self::FailsTwice, Self::AlwaysFails];

    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Succeeds => "succeeds",
            Self::FailsTwice => "fails-twice",
            Self::AlwaysFails => "always-fails",
        }
    }

    /// One of each, again and again, from number `first` on.
    pub(super) fn in_turn(first: usize) -> impl Iterator<Item = Self> {
        let kinds = Self::ALL.into_iter().cycle();
        kinds.skip(first % Self::ALL.len())
    }

    /// None is the server's own limit, out of reach: a kill may cost an attempt.
    pub(super) fn max_attempts(self) -> Option<i32> {
        (self == Self::AlwaysFails).then_some(ATTEMPTS)
    }

    /// Tries until the end, when none is cut off.
    pub(super) fn tries(self) -> u64 {
        match self {
            Self::Succeeds => 1,
            Self::FailsTwice | Self::AlwaysFails => 3,
        }
    }

    async fn run(self, task: Task) -> Result<Success, Failure> {
        tokio::time::sleep(Duration::from_millis(fastrand::u64(..=LONGEST_RUN_MS))).await;
        let fails = match self {
            Self::Succeeds => false,
            Self::FailsTwice => task.attempt() <= FAILS,
            Self::AlwaysFails => true,
        };
        if fails {
            return Err(Failure::retryable("demo", "this attempt fails by design"));
        }
        Ok(Success::empty())
    }
}

/// Serves until a signal, or until the demo is gone; then drains. A second signal ends it at once.
///
/// # Errors
/// Those of [`Worker::run`], and signals that cannot be caught.
pub async fn run(args: Args) -> anyhow::Result<u8> {
    let mut signals = Signals::listen()?;
    let mut demo = Parent::watch()?;
    let worker = Worker::new(Options {
        connect: args.connect,
        identity: args.identity,
        namespaces: vec![args.namespace],
        task_queue: QUEUE.into(),
        slots: args.slots,
        drain_timeout: DRAIN_TIMEOUT,
        ledger: Some(args.ledger),
        ..Options::default()
    });
    let worker = Kind::ALL.into_iter().fold(worker, |worker, kind| {
        worker.handle(kind.name(), move |task| kind.run(task))
    });
    let stop = CancellationToken::new();
    let interrupted = async {
        tokio::select! {
            () = signals.next() => {}
            () = demo.gone() => {}
        }
        stop.cancel();
        signals.next().await;
    };
    tokio::select! {
        ended = worker.run(stop.clone().cancelled_owned()) => ended.map(|()| 0).map_err(Into::into),
        () = interrupted => Ok(EXIT_INTERRUPTED),
    }
}
