//! What outlives a connection: running handlers, kept results, the ledger.

use std::collections::HashMap;
use std::time::Duration;

use bytes::Bytes;
use tokio::runtime::{Builder, Handle};
use tokio::sync::mpsc;
use tokio::task::{Id, JoinError, JoinSet};
use tokio_util::sync::CancellationToken;

use super::held::Held;
use super::ledger::{Ledger, now_us};
use super::link::Link;
use super::session::{End, Session};
use super::{Error, Failure, Options, Outcome, Success, Task, outcome};
use crate::proto::worker as proto;

/// Progress reports waiting for the stream. Each is only a sign of life, so those beyond it are
/// dropped rather than kept.
const PROGRESS_QUEUE: usize = 1024;

/// What handlers get after the drain timeout, to stop and to have that reported.
const CANCEL_GRACE: Duration = Duration::from_secs(5);

/// Starts a handler on the user's runtime.
pub(super) type Start = Box<dyn Fn(&mut JoinSet<Finished>, &Handle, Task) -> Id + Send + Sync>;

/// A handler's answer and when it came.
pub(super) struct Finished {
    token: Bytes,
    answer: Result<Success, Failure>,
    end_us: i64,
}

impl Finished {
    pub(super) fn now(token: Bytes, answer: Result<Success, Failure>) -> Self {
        let end_us = now_us();
        Self {
            token,
            answer,
            end_us,
        }
    }
}

pub(super) struct Engine {
    pub(super) options: Options,
    pub(super) held: Held,
    pub(super) ledger: Ledger,
    pub(super) running: JoinSet<Finished>,
    pub(super) progress: mpsc::Receiver<proto::Progress>,
    handlers: HashMap<String, Start>,
    handlers_run_on: Handle,
    report_progress: mpsc::Sender<proto::Progress>,
    cancel_all: CancellationToken,
    instance: String,
}

impl Engine {
    pub(super) fn new(
        options: Options,
        handlers: HashMap<String, Start>,
        handlers_run_on: Handle,
    ) -> Result<Self, Error> {
        let (report_progress, progress) = mpsc::channel(PROGRESS_QUEUE);
        let ledger = Ledger::open(options.ledger.as_deref()).map_err(Error::Ledger)?;
        Ok(Self {
            options,
            held: Held::default(),
            ledger,
            running: JoinSet::new(),
            progress,
            handlers,
            handlers_run_on,
            report_progress,
            cancel_all: CancellationToken::new(),
            instance: format!("{:032x}", fastrand::u128(..)),
        })
    }

    /// Blocks this thread until the worker has drained, was denied, or is abandoned.
    pub(super) fn drive(
        mut self,
        stop: &CancellationToken,
        abandon: &CancellationToken,
    ) -> Result<(), Error> {
        let runtime = Builder::new_current_thread()
            .enable_all()
            .build()
            .map_err(Error::Start)?;
        let drain_timeout = self.options.drain_timeout;
        let cancel_all = self.cancel_all.clone();
        let stopping = stop.clone();
        let out_of_time = async move {
            stopping.cancelled().await;
            tokio::time::sleep(drain_timeout).await;
            cancel_all.cancel();
            tokio::time::sleep(CANCEL_GRACE).await;
        };
        runtime.block_on(async {
            tokio::select! {
                ended = self.run(stop) => ended,
                () = abandon.cancelled() => Ok(()),
                () = out_of_time => Err(Error::DrainTimedOut {
                    running: self.running.len(),
                    unreported: self.held.finished().count(),
                }),
            }
        })
    }

    async fn run(&mut self, stop: &CancellationToken) -> Result<(), Error> {
        let mut link = Link::new(&self.options, self.register())?;
        loop {
            let idle = self.is_idle();
            let connection = tokio::select! {
                connection = link.open(&mut self.held) => connection?,
                () = stop.cancelled(), if idle => return Ok(()),
            };
            match Session::new(self, connection).run(&mut link, stop).await? {
                End::Drained => return Ok(()),
                End::Lost(why) => link.lost(&why),
            }
        }
    }

    /// Nothing runs and nothing waits for an answer.
    pub(super) fn is_idle(&self) -> bool {
        self.held.is_settled() && self.running.is_empty()
    }

    pub(super) fn serves(&self, task_type: &str) -> bool {
        self.handlers.contains_key(task_type)
    }

    /// Starts the handler of a task that [`Engine::serves`].
    pub(super) fn start(&mut self, wire: proto::Task) {
        let Some(start) = self.handlers.get(&wire.task_type) else {
            return;
        };
        let (token, task_id) = (wire.token.clone(), wire.task_id);
        let cancel = self.cancel_all.child_token();
        let task = Task::new(wire, cancel.clone(), self.report_progress.clone());
        let run = start(&mut self.running, &self.handlers_run_on, task);
        self.held.start(token, task_id, run, cancel);
    }

    /// The report of a run that has ended, kept until its ack; none for an abandoned task.
    pub(super) fn finish(
        &mut self,
        joined: Result<Finished, JoinError>,
        max_bytes: usize,
    ) -> Option<proto::Result> {
        let finished = match joined {
            Ok(finished) => finished,
            Err(error) => {
                let token = self.held.token_of(error.id())?;
                Finished::now(token, Err(died(error)))
            }
        };
        let answer = finished.answer.and_then(|success| {
            outcome::fits(&success.payload, max_bytes)?;
            Ok(success)
        });
        self.ledger
            .ended(&finished.token, finished.end_us, Outcome::of(&answer));
        let result = outcome::report(finished.token, answer);
        self.held.finish(&result).then_some(result)
    }

    /// The Register of every session, without the tasks to resume.
    fn register(&self) -> proto::Register {
        let options = &self.options;
        proto::Register {
            protocol: 1,
            identity: options.identity.clone(),
            namespaces: options.namespaces.clone(),
            task_queue: options.task_queue.clone(),
            task_types: self.handlers.keys().cloned().collect(),
            node: options.node.clone().unwrap_or_default(),
            slots: options.slots,
            max_frame_bytes: options.max_frame_bytes as u64,
            build_id: options.build_id.clone(),
            capabilities: Vec::new(),
            instance: self.instance.clone(),
            resume: Vec::new(),
        }
    }
}

fn died(error: JoinError) -> Failure {
    let Ok(panic) = error.try_into_panic() else {
        return Failure::retryable("aborted", "the handler was aborted");
    };
    let text = panic
        .downcast_ref::<&str>()
        .map(|text| (*text).to_owned())
        .or_else(|| panic.downcast_ref::<String>().cloned())
        .unwrap_or_else(|| "a value that is not text".to_owned());
    Failure::retryable("panic", format!("the handler panicked: {text}"))
}
