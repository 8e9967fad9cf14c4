//! `fencepost worker`: a worker without a program of one's own.

mod exec;

use std::path::PathBuf;
use std::time::Duration;

use anyhow::Context as _;
use tokio_util::sync::CancellationToken;

use super::signals::Signals;
use super::{EXIT_INTERRUPTED, Usage};
use crate::telemetry::trace::{self, Exporter};
use crate::worker::{self, Failure, Options, Success, Task, Worker};

/// Run tasks with a command, or with a built-in handler.
#[derive(Clone, Debug, clap::Args)]
#[command(group = clap::ArgGroup::new("what").required(true))]
pub struct Args {
    /// Dispatchers as http://HOST:PORT or https://HOST:PORT, tried in turn
    #[arg(
        long,
        value_name = "URL",
        value_delimiter = ',',
        default_value = "http://127.0.0.1:7433"
    )]
    pub connect: Vec<String>,
    /// Task queue to serve
    #[arg(long, value_name = "QUEUE")]
    pub queue: String,
    /// Task types to serve
    #[arg(
        long = "type",
        value_name = "TYPE",
        value_delimiter = ',',
        required = true
    )]
    pub types: Vec<String>,
    /// Namespaces to serve; * for all that are allowed
    #[arg(
        long = "namespace",
        value_name = "NAMESPACE",
        value_delimiter = ',',
        default_value = "default"
    )]
    pub namespaces: Vec<String>,
    /// Node that this worker runs on
    #[arg(long)]
    pub node: Option<String>,
    /// Tasks to run at the same time
    #[arg(long, default_value_t = 16, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    pub slots: u32,
    /// Name for people [default: host and process id]
    #[arg(long)]
    pub identity: Option<String>,
    /// Append every start, end and answer to this file
    #[arg(long, value_name = "FILE")]
    pub ledger: Option<PathBuf>,
    /// Wait this long for running tasks after the first signal
    #[arg(long, value_name = "DURATION", default_value = "30s", value_parser = humantime::parse_duration)]
    pub drain_timeout: Duration,
    /// Collector for spans of handlers, over OTLP/HTTP; the program must be built with the feature `otel`
    #[arg(long, value_name = "URL", env = "FENCEPOST_TRACING__ENDPOINT")]
    pub trace_endpoint: Option<String>,
    /// Run `sh -c CMD` per task: payload on stdin, `FENCEPOST_*` in the environment; exit 0 = stdout
    /// is the result, 75 = snooze for 30 s, 65 = never retry, any other = retry
    #[arg(long, value_name = "CMD", group = "what")]
    pub exec: Option<String>,
    /// Return the payload as the result
    #[arg(long, group = "what")]
    pub echo: bool,
    /// Sleep for MS milliseconds, then succeed
    #[arg(long, value_name = "MS", group = "what")]
    pub sleep: Option<u64>,
}

/// What to do with a task.
#[derive(Clone, Debug)]
enum Job {
    Exec(String),
    Echo,
    Sleep(Duration),
}

impl Job {
    async fn run(self, task: Task) -> Result<Success, Failure> {
        match self {
            Self::Exec(command) => exec::run(&command, &task).await,
            Self::Echo => Ok(Success::bytes(task.payload().clone(), task.content_type())),
            Self::Sleep(time) => tokio::select! {
                () = tokio::time::sleep(time) => Ok(Success::empty()),
                () = task.cancelled().cancelled() => Err(Failure::Cancelled),
            },
        }
    }
}

/// The worker that the arguments describe, not yet connected.
#[must_use]
pub fn worker(args: Args) -> Worker {
    let defaults = Options::default();
    let job = match (args.exec, args.sleep) {
        (Some(command), _) => Job::Exec(command),
        (None, Some(ms)) => Job::Sleep(Duration::from_millis(ms)),
        (None, None) => Job::Echo,
    };
    let worker = Worker::new(Options {
        connect: args.connect,
        identity: args.identity.unwrap_or(defaults.identity),
        namespaces: args.namespaces,
        task_queue: args.queue,
        node: args.node,
        slots: args.slots,
        build_id: concat!("fencepost ", env!("CARGO_PKG_VERSION")).to_owned(),
        drain_timeout: args.drain_timeout,
        ledger: args.ledger,
        ..defaults
    });
    args.types.into_iter().fold(worker, |worker, task_type| {
        let job = job.clone();
        worker.handle(task_type, move |task| job.clone().run(task))
    })
}

/// Serves until SIGTERM or SIGINT, then drains; a second signal ends it at once.
///
/// Answers the exit code: 0 after a drain, 130 after a second signal.
///
/// # Errors
/// Those of [`Worker::run`], and signals that cannot be caught.
pub async fn run(args: Args) -> anyhow::Result<u8> {
    let mut signals = Signals::listen().context("cannot catch signals")?;
    let exporter = traces(&args)?;
    let stop = CancellationToken::new();
    let serving = worker(args).run(stop.clone().cancelled_owned());
    tokio::pin!(serving);
    let ended = tokio::select! {
        ended = &mut serving => ended,
        () = signals.next() => {
            tracing::info!("draining; a second signal ends it at once");
            stop.cancel();
            tokio::select! {
                ended = &mut serving => ended,
                () = signals.next() => return Ok(EXIT_INTERRUPTED),
            }
        }
    };
    if let Some(exporter) = exporter {
        exporter.flush().await;
    }
    match ended {
        Ok(()) => Ok(0),
        // Nothing has been tried: it is how the worker was called.
        Err(error @ (worker::Error::Options(_) | worker::Error::Address { .. })) => {
            Err(Usage(error.to_string()).into())
        }
        Err(error) => Err(error.into()),
    }
}

/// Has handlers traced, where there is a collector. A trace that begins here is recorded.
fn traces(args: &Args) -> Result<Option<Exporter>, Usage> {
    let endpoint = trace::endpoint(args.trace_endpoint.as_deref().unwrap_or_default())
        .map_err(|error| Usage(format!("--trace-endpoint {error}")))?;
    let Some(endpoint) = endpoint else {
        return Ok(None);
    };
    let identity = args.identity.clone();
    let installed = trace::install(&trace::Settings {
        endpoint,
        sample_ratio: 1.0,
        service_name: "fencepost-worker".to_owned(),
        instance: identity.unwrap_or_else(|| Options::default().identity),
    });
    let installed = installed.map_err(|error| Usage(format!("--trace-endpoint: {error}")))?;
    Ok(Some(installed))
}
