//! The worker SDK: connect to dispatchers, run tasks in async handlers, report the results.
//!
//! ```no_run
//! use fencepost::worker::{Options, Success, Task, Worker};
//!
//! # async fn example() -> Result<(), Box<dyn std::error::Error>> {
//! let worker = Worker::new(Options {
//!     task_queue: "emails".into(),
//!     slots: 32,
//!     ..Options::default()
//! })
//! .handle("welcome", |task: Task| async move {
//!     let order: serde_json::Value = task.json()?;
//!     tokio::fs::write("/tmp/welcome", order.to_string()).await?;
//!     Ok(Success::json(serde_json::json!({ "sent": true })))
//! });
//! worker
//!     .run(async {
//!         tokio::signal::ctrl_c().await.ok();
//!     })
//!     .await?;
//! # Ok(())
//! # }
//! ```
//!
//! Handlers run on the runtime that called [`Worker::run`]; the stream lives on a thread of its
//! own. A handler that blocks its thread therefore never delays a ping, and never costs the
//! worker its session.
//!
//! Reading order: [`Task`] and [`Success`] / [`Failure`] are what a handler sees; `engine` keeps
//! what outlives a connection, `link` and `dial` open connections, `session` speaks the protocol.

pub mod ledger;

mod dial;
mod engine;
mod held;
mod link;
mod outbox;
mod outcome;
mod session;
mod stream;
mod task;
mod traced;

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

pub use outcome::{Failure, Outcome, Success};
pub use task::Task;

use engine::{Engine, Finished, Start};

/// Who this worker is, what it serves and how much it takes.
#[derive(Clone, Debug)]
pub struct Options {
    /// Dispatchers as `http://host:port` or `https://host:port`, tried in turn from the first:
    /// workers spread over replicas by different orders, or by one name for all of them, each of
    /// whose addresses is tried. Certificates are checked against the system's roots.
    pub connect: Vec<String>,
    /// A name for people, 1 to 200 characters; it grants nothing. Default: host and process id.
    pub identity: String,
    /// Namespaces to serve; `*` stands for all that this worker is allowed. Default: `default`.
    pub namespaces: Vec<String>,
    /// The one task queue to serve; required.
    pub task_queue: String,
    /// The node that this worker runs on, for pinned tasks and placement.
    pub node: Option<String>,
    /// Tasks that run at the same time, 1 to 100,000. Default: 16.
    pub slots: u32,
    /// Largest frame taken or sent, in bytes. Default: 16 MiB.
    pub max_frame_bytes: usize,
    /// The build of this worker, shown to operators.
    pub build_id: String,
    /// Longest wait for running tasks and unacknowledged results after the shutdown signal;
    /// then handlers are cancelled and get five more seconds. Default: 30 s.
    pub drain_timeout: Duration,
    /// A file to append every start, end and answer to; see [`ledger`].
    pub ledger: Option<PathBuf>,
}

impl Default for Options {
    fn default() -> Self {
        let host = std::env::var("HOSTNAME").unwrap_or_else(|_| "worker".into());
        Self {
            connect: vec!["http://127.0.0.1:7433".into()],
            identity: format!("{host}-{}", std::process::id()),
            namespaces: vec!["default".into()],
            task_queue: String::new(),
            node: None,
            slots: 16,
            max_frame_bytes: 16 << 20,
            build_id: String::new(),
            drain_timeout: Duration::from_secs(30),
            ledger: None,
        }
    }
}

/// Why [`Worker::run`] ended before its shutdown was complete.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The options cannot work, whatever the dispatcher says.
    #[error("{0}")]
    Options(&'static str),
    /// An entry of [`Options::connect`] is not a usable address.
    #[error("bad dispatcher address {url:?}: {source}")]
    Address {
        /// The entry as given.
        url: String,
        /// What is wrong with it.
        source: tonic::transport::Error,
    },
    /// The dispatcher denied this worker for good: `INVALID_ARGUMENT`, `UNAUTHENTICATED` or
    /// `PERMISSION_DENIED`.
    #[error("the dispatcher denied this worker ({code:?}): {message}")]
    Denied {
        /// The status of the stream.
        code: tonic::Code,
        /// The dispatcher's own words.
        message: String,
    },
    /// The ledger could not be opened or written.
    #[error("cannot write the ledger: {0}")]
    Ledger(std::io::Error),
    /// The thread of the stream could not start.
    #[error("cannot start the worker: {0}")]
    Start(std::io::Error),
    /// The thread of the stream panicked, or its runtime is shutting down.
    #[error("the worker's stream died: {0}")]
    Stream(tokio::task::JoinError),
    /// The drain timeout passed with work left; the dispatcher delivers it again.
    #[error("drain timed out with {running} running tasks and {unreported} unreported results")]
    DrainTimedOut {
        /// Handlers that were still running, and were stopped.
        running: usize,
        /// Finished tasks whose result has no acknowledgement.
        unreported: usize,
    },
}

/// A set of handlers, and the connection that feeds them.
pub struct Worker {
    options: Options,
    handlers: HashMap<String, Start>,
}

impl Worker {
    /// A worker without handlers; nothing is checked or opened before [`Worker::run`].
    #[must_use]
    pub fn new(options: Options) -> Self {
        Self {
            options,
            handlers: HashMap::new(),
        }
    }

    /// Registers the handler of one task type; a second one for the same type replaces it.
    ///
    /// An error of any standard type returned with `?` is a retryable failure. A panic is a
    /// retryable failure of class `panic`.
    #[must_use]
    pub fn handle<F, R>(mut self, task_type: impl Into<String>, handler: F) -> Self
    where
        F: Fn(Task) -> R + Send + Sync + 'static,
        R: Future<Output = Result<Success, Failure>> + Send + 'static,
    {
        let handler = Arc::new(handler);
        let start: Start = Box::new(move |running, runtime, mut task| {
            let handler = Arc::clone(&handler);
            let token = task.wire_token();
            let span = task.begin_span();
            let run = async move {
                let outcome = traced::run(span, async move { handler(task).await }).await;
                Finished::now(token, outcome)
            };
            running.spawn_on(run, runtime).id()
        });
        self.handlers.insert(task_type.into(), start);
        self
    }

    /// Serves until `shutdown` resolves, then drains: running tasks finish and their results are
    /// acknowledged, within [`Options::drain_timeout`]. Connections are kept up for ever; when a
    /// dispatcher shuts down, running tasks move to another one and none is started anew.
    ///
    /// Must be called within a tokio runtime, whose threads run the handlers. When it ends with an
    /// error, or its future is dropped, handlers that still run are aborted.
    ///
    /// # Errors
    /// [`Error`]: unusable options, a final denial, a broken ledger, or a drain that timed out.
    pub async fn run(self, shutdown: impl Future<Output = ()>) -> Result<(), Error> {
        self.check()?;
        let stop = CancellationToken::new();
        let abandon = CancellationToken::new();
        let _on_drop = abandon.clone().drop_guard();
        let engine = Engine::new(self.options, self.handlers, Handle::current())?;
        let mut thread = JoinSet::new();
        thread.spawn_blocking({
            let stop = stop.clone();
            move || engine.drive(&stop, &abandon)
        });
        let ended = tokio::select! {
            ended = thread.join_next() => ended,
            () = shutdown => {
                stop.cancel();
                thread.join_next().await
            }
        };
        match ended {
            Some(Ok(ended)) => ended,
            Some(Err(error)) => Err(Error::Stream(error)),
            None => Ok(()),
        }
    }

    fn check(&self) -> Result<(), Error> {
        let options = &self.options;
        let wrong = if options.connect.is_empty() {
            "no dispatcher address"
        } else if options.task_queue.is_empty() {
            "no task queue"
        } else if options.namespaces.is_empty() {
            "no namespace"
        } else if options.slots == 0 {
            "a worker needs at least one slot"
        } else if self.handlers.is_empty() {
            "a worker needs at least one handler"
        } else {
            return Ok(());
        };
        Err(Error::Options(wrong))
    }
}
