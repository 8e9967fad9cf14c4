use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bytes::Bytes;
use fencepost::proto::worker::worker_service_client::WorkerServiceClient;
use fencepost::proto::worker::{
    Accepted, Cancel, DispatcherFrame, Drain, Failed, FailureKind, GoAway, Held, Pong, Progress,
    Refused, RefusedReason, Register, Result as Report, ResultAck, Results, Snoozed, Succeeded,
    Task, Verdict, Welcome, WorkerFrame, dispatcher_frame::Frame as In, result::Outcome,
    worker_frame::Frame as Out,
};
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Status, Streaming};

/// No step of a script takes longer, unless something is broken.
const STEP: Duration = Duration::from_secs(20);

const FRAME_BYTES: usize = 64 << 20;

/// Frames that may wait for the test: more than any test leaves unread.
const UNREAD: usize = 100_000;

/// A worker that does what the test says, frame by frame. It answers pings, until it is hushed; nothing else is done
/// by itself. Dropped, its stream is reset.
#[derive(Debug)]
pub struct ScriptedWorker {
    frames: mpsc::Sender<WorkerFrame>,
    inbound: mpsc::Receiver<In>,
    hushed: Arc<AtomicBool>,
    answered: watch::Receiver<u32>,
    _reading: JoinSet<()>,
    pub welcome: Welcome,
    tasks: VecDeque<Task>,
    acks: VecDeque<ResultAck>,
    cancels: VecDeque<Cancel>,
    go_aways: VecDeque<GoAway>,
}

/// What workers of these tests register as, unless they say otherwise: queue `q`, type `t`, one slot.
pub fn register() -> Register {
    Register {
        protocol: 1,
        identity: "scripted".into(),
        namespaces: vec!["default".into()],
        task_queue: "q".into(),
        task_types: vec!["t".into()],
        slots: 1,
        instance: "1".into(),
        ..Register::default()
    }
}

impl ScriptedWorker {
    /// One slot, nothing brought along.
    pub async fn connect(url: &str) -> Self {
        Self::connect_as(url, register()).await
    }

    pub async fn connect_with_slots(url: &str, slots: u32) -> Self {
        let register = Register {
            slots,
            ..register()
        };
        Self::connect_as(url, register).await
    }

    /// Comes back with these tasks.
    pub async fn resume(url: &str, held: &[&Task]) -> Self {
        Self::connect_as(url, resuming(held)).await
    }

    pub async fn connect_as(url: &str, register: Register) -> Self {
        Self::try_connect(url, register).await.unwrap()
    }

    pub async fn try_connect(url: &str, register: Register) -> Result<Self, Status> {
        step(Self::register(url, register)).await
    }

    /// Without a limit of time, so that the test may go away in the middle.
    pub async fn register(url: &str, register: Register) -> Result<Self, Status> {
        let (frames, stream) = mpsc::channel(1024);
        let frame = WorkerFrame {
            frame: Some(Out::Register(register)),
        };
        frames.send(frame).await.unwrap();
        let endpoint = tonic::transport::Endpoint::from_shared(url.to_owned()).unwrap();
        let channel = endpoint.connect().await;
        let channel = channel.map_err(|error| Status::unavailable(error.to_string()))?;
        let client = WorkerServiceClient::new(channel);
        let mut client = client
            .max_decoding_message_size(FRAME_BYTES)
            .max_encoding_message_size(FRAME_BYTES);
        let mut inbound = client
            .connect(ReceiverStream::new(stream))
            .await?
            .into_inner();
        let welcome = match inbound.message().await?.and_then(|first| first.frame) {
            Some(In::Welcome(welcome)) => welcome,
            other => panic!("not Welcome: {other:?}"),
        };
        let (unread, read) = mpsc::channel(UNREAD);
        let hushed = Arc::new(AtomicBool::new(false));
        let (answering, answered) = watch::channel(0);
        let mut reading = JoinSet::new();
        reading.spawn(self::read(
            inbound,
            frames.clone(),
            unread,
            Arc::clone(&hushed),
            answering,
        ));
        Ok(Self {
            frames,
            inbound: read,
            hushed,
            answered,
            _reading: reading,
            welcome,
            tasks: VecDeque::new(),
            acks: VecDeque::new(),
            cancels: VecDeque::new(),
            go_aways: VecDeque::new(),
        })
    }

    /// Takes one frame in; false when the stream has ended.
    async fn pump(&mut self) -> bool {
        match self.inbound.recv().await {
            Some(In::Tasks(tasks)) => self.tasks.extend(tasks.tasks),
            Some(In::Acks(acks)) => self.acks.extend(acks.acks),
            Some(In::Cancel(cancel)) => self.cancels.push_back(cancel),
            Some(In::GoAway(go_away)) => self.go_aways.push_back(go_away),
            Some(In::Ping(_) | In::Pong(_) | In::Welcome(_)) => {}
            None => return false,
        }
        true
    }

    /// From here on pings go without an answer.
    pub fn hush(&self) {
        self.hushed.store(true, Ordering::Relaxed);
    }

    /// Waits until so many more pings have come and been answered.
    pub async fn answers_pings(&self, number: u32) {
        let mut answered = self.answered.clone();
        let wanted = *answered.borrow() + number;
        let reached = step(answered.wait_for(|count| *count >= wanted)).await;
        assert!(reached.is_ok(), "the dispatcher ended the stream");
    }

    async fn wait<T>(&mut self, take: impl Fn(&mut Self) -> Option<T>) -> T {
        step(async {
            loop {
                if let Some(found) = take(self) {
                    return found;
                }
                assert!(self.pump().await, "the dispatcher ended the stream");
            }
        })
        .await
    }

    /// The next task, neither accepted nor refused yet.
    pub async fn task(&mut self) -> Task {
        self.wait(|worker| worker.tasks.pop_front()).await
    }

    /// The next task; none when the stream ends first, or nothing comes for a while.
    pub async fn next_task(&mut self) -> Option<Task> {
        let next = async {
            while self.tasks.is_empty() && self.pump().await {}
            self.tasks.pop_front()
        };
        tokio::time::timeout(Duration::from_secs(2), next)
            .await
            .ok()?
    }

    /// The next task, accepted.
    pub async fn accept_next(&mut self) -> Task {
        let task = self.task().await;
        self.accept(&[&task]).await;
        task
    }

    /// The next answer to a result.
    pub async fn ack(&mut self) -> ResultAck {
        self.wait(|worker| worker.acks.pop_front()).await
    }

    /// Waits for the answer, which must be about this task.
    pub async fn verdict(&mut self, task: &Task) -> Verdict {
        let ack = self.ack().await;
        assert_eq!(ack.token, task.token);
        ack.verdict()
    }

    pub async fn recorded(&mut self, task: &Task) {
        assert_eq!(self.verdict(task).await, Verdict::Recorded);
    }

    pub async fn superseded(&mut self, task: &Task) {
        assert_eq!(self.verdict(task).await, Verdict::Superseded);
    }

    /// Waits to be asked to stop this task.
    pub async fn cancelled(&mut self, task: &Task) {
        let cancel = self.wait(|worker| worker.cancels.pop_front()).await;
        assert_eq!(cancel.tokens, std::slice::from_ref(&task.token));
    }

    /// Waits to be sent elsewhere.
    pub async fn sent_away(&mut self) -> GoAway {
        self.wait(|worker| worker.go_aways.pop_front()).await
    }

    /// Waits until the dispatcher ends the stream; answers the tasks that came before.
    pub async fn ended(mut self) -> Vec<Task> {
        step(async { while self.pump().await {} }).await;
        self.tasks.into()
    }

    /// Waits for this time, in which no task may come.
    pub async fn gets_nothing_for(&mut self, time: Duration) {
        let came = tokio::time::timeout(time, async {
            while self.tasks.is_empty() && self.pump().await {}
        });
        came.await.expect_err("a task came, or the stream ended");
    }

    pub async fn accept(&self, tasks: &[&Task]) {
        let tokens = tokens(tasks);
        self.send(Out::Accepted(Accepted { tokens })).await;
    }

    pub async fn refuse(&self, task: &Task, reason: RefusedReason) {
        let (tokens, reason) = (tokens(&[task]), reason.into());
        self.send(Out::Refused(Refused { tokens, reason })).await;
    }

    pub async fn progress(&self, task: &Task) {
        self.send(Out::Progress(Progress {
            token: task.token.clone(),
            ..Progress::default()
        }))
        .await;
    }

    pub async fn drain(&self) {
        self.send(Out::Drain(Drain {})).await;
    }

    /// Reports success with this JSON.
    pub async fn succeed(&self, task: &Task, json: impl Into<Bytes>) {
        self.report(vec![succeeded(task, json)]).await;
    }

    pub async fn fail(&self, task: &Task, kind: FailureKind, class: &str) {
        self.report(vec![failed(task, kind, class, None)]).await;
    }

    pub async fn fail_for(&self, task: &Task, retry_after: Duration) {
        let failed = failed(task, FailureKind::Retryable, "later", Some(retry_after));
        self.report(vec![failed]).await;
    }

    pub async fn snooze(&self, task: &Task, after: Duration) {
        let after_ms = u64::try_from(after.as_millis()).unwrap();
        self.report(vec![report(task, Outcome::Snoozed(Snoozed { after_ms }))])
            .await;
    }

    /// One frame of results.
    pub async fn report(&self, results: Vec<Report>) {
        self.send(Out::Results(Results { results })).await;
    }

    async fn send(&self, frame: Out) {
        let frame = WorkerFrame { frame: Some(frame) };
        // A stream that has ended shows in what the test waits for next.
        self.frames.send(frame).await.ok();
    }
}

/// Reads the stream to its end.
async fn read(
    mut inbound: Streaming<DispatcherFrame>,
    answers: mpsc::Sender<WorkerFrame>,
    unread: mpsc::Sender<In>,
    hushed: Arc<AtomicBool>,
    answering: watch::Sender<u32>,
) {
    while let Ok(Some(frame)) = inbound.message().await {
        let Some(frame) = frame.frame else { continue };
        if let In::Ping(ping) = frame {
            let pong = WorkerFrame {
                frame: Some(Out::Pong(Pong {
                    sequence: ping.sequence,
                })),
            };
            if !hushed.load(Ordering::Relaxed) {
                // A stream that has ended shows in the next frame.
                answers.send(pong).await.ok();
                answering.send_modify(|count| *count += 1);
            }
        } else if unread.send(frame).await.is_err() {
            return;
        }
    }
}

/// A registration that brings these tasks along.
pub fn resuming(held: &[&Task]) -> Register {
    let named = |task: &&Task| Held {
        task_id: task.task_id,
        token: task.token.clone(),
    };
    Register {
        resume: held.iter().map(named).collect(),
        ..register()
    }
}

pub fn succeeded(task: &Task, json: impl Into<Bytes>) -> Report {
    let success = Succeeded {
        payload: json.into(),
        content_type: "application/json".into(),
    };
    report(task, Outcome::Succeeded(success))
}

fn failed(task: &Task, kind: FailureKind, class: &str, retry_after: Option<Duration>) -> Report {
    let failed = Failed {
        kind: kind.into(),
        class: class.into(),
        message: "as the test says".into(),
        retry_after_ms: retry_after.map(|after| u64::try_from(after.as_millis()).unwrap()),
    };
    report(task, Outcome::Failed(failed))
}

fn report(task: &Task, outcome: Outcome) -> Report {
    Report {
        token: task.token.clone(),
        outcome: Some(outcome),
    }
}

fn tokens(tasks: &[&Task]) -> Vec<Bytes> {
    tasks.iter().map(|task| task.token.clone()).collect()
}

async fn step<T>(doing: impl Future<Output = T>) -> T {
    tokio::time::timeout(STEP, doing)
        .await
        .expect("the dispatcher did not come this far")
}
