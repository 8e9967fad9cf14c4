use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use fencepost::proto::worker::worker_service_server::{WorkerService, WorkerServiceServer};
use fencepost::proto::worker::{
    Cancel, DispatcherFrame, GoAway, Register, Result as Report, ResultAck, ResultAcks, Task,
    Tasks, Verdict, Welcome, WorkerFrame, dispatcher_frame::Frame as Out,
    worker_frame::Frame as In,
};
use parking_lot::Mutex;
use tokio::net::TcpListener;
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio_stream::wrappers::{ReceiverStream, TcpListenerStream};
use tonic::{Request, Response, Status, Streaming};

/// No step of a script takes longer, unless something is broken.
const STEP: Duration = Duration::from_secs(20);

const FRAME_BYTES: usize = 32 << 20;

/// A dispatcher on loopback that does what the test says, frame by frame.
pub struct ScriptedDispatcher {
    pub url: String,
    sessions: mpsc::Receiver<ScriptedSession>,
    denials: Arc<Mutex<VecDeque<Status>>>,
    _server: JoinSet<()>,
}

impl ScriptedDispatcher {
    pub async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let (arrived, sessions) = mpsc::channel(16);
        let denials = Arc::default();
        let door = Door {
            arrived,
            denials: Arc::clone(&denials),
        };
        let service = WorkerServiceServer::new(door).max_decoding_message_size(FRAME_BYTES);
        let mut server = JoinSet::new();
        server.spawn(async move {
            tonic::transport::Server::builder()
                .tcp_nodelay(true)
                .add_service(service)
                .serve_with_incoming(TcpListenerStream::new(listener))
                .await
                .unwrap();
        });
        Self {
            url,
            sessions,
            denials,
            _server: server,
        }
    }

    /// The next session is answered with this status.
    pub fn deny(&self, status: Status) {
        self.denials.lock().push_back(status);
    }

    /// Waits until every status of [`Self::deny`] has been given.
    pub async fn denied(&self) {
        super::eventually(STEP, async || self.denials.lock().is_empty().then_some(())).await;
    }

    /// A session that has sent Register and waits for Welcome.
    pub async fn arrival(&mut self) -> ScriptedSession {
        step(self.sessions.recv()).await.unwrap()
    }

    /// A session that has been welcomed with these changes to the plain Welcome.
    pub async fn session(&mut self, change: impl FnOnce(&mut Welcome)) -> ScriptedSession {
        let session = self.arrival().await;
        session.welcome(change).await;
        session
    }
}

struct Door {
    arrived: mpsc::Sender<ScriptedSession>,
    denials: Arc<Mutex<VecDeque<Status>>>,
}

#[tonic::async_trait]
impl WorkerService for Door {
    type ConnectStream = ReceiverStream<Result<DispatcherFrame, Status>>;

    async fn connect(
        &self,
        request: Request<Streaming<WorkerFrame>>,
    ) -> Result<Response<Self::ConnectStream>, Status> {
        let mut frames = request.into_inner();
        let Some(In::Register(register)) = frames.message().await?.and_then(|first| first.frame)
        else {
            return Err(Status::invalid_argument("the first frame is not Register"));
        };
        let denial = self.denials.lock().pop_front();
        if let Some(status) = denial {
            return Err(status);
        }
        let (out, stream) = mpsc::channel(64);
        let session = ScriptedSession {
            register,
            frames,
            out,
        };
        self.arrived.send(session).await.ok();
        Ok(Response::new(ReceiverStream::new(stream)))
    }
}

/// One stream of a worker; dropping it ends the stream.
pub struct ScriptedSession {
    pub register: Register,
    frames: Streaming<WorkerFrame>,
    out: mpsc::Sender<Result<DispatcherFrame, Status>>,
}

impl ScriptedSession {
    /// Welcomes the worker with these changes to the plain Welcome.
    pub async fn welcome(&self, change: impl FnOnce(&mut Welcome)) {
        let mut welcome = Welcome {
            worker_id: "w".into(),
            session_id: "s".into(),
            replica: "scripted".into(),
            slots: self.register.slots,
            ping_interval_ms: 7_500,
            silence_window_ms: 30_000,
            max_frame_bytes: FRAME_BYTES as u64,
            max_result_bytes: 1 << 20,
            ..Welcome::default()
        };
        change(&mut welcome);
        self.send(Out::Welcome(welcome)).await;
    }

    pub async fn send(&self, frame: Out) {
        let frame = DispatcherFrame { frame: Some(frame) };
        step(self.out.send(Ok(frame))).await.unwrap();
    }

    pub async fn deliver(&self, tasks: impl IntoIterator<Item = Task>) {
        let tasks = tasks.into_iter().collect();
        self.send(Out::Tasks(Tasks { tasks })).await;
    }

    pub async fn ack(&self, token: &Bytes, verdict: Verdict) {
        self.ack_all([token], verdict).await;
    }

    pub async fn ack_all(&self, tokens: impl IntoIterator<Item = &Bytes>, verdict: Verdict) {
        let ack = |token: &Bytes| ResultAck {
            token: token.clone(),
            verdict: verdict.into(),
        };
        let acks = tokens.into_iter().map(ack).collect();
        self.send(Out::Acks(ResultAcks { acks })).await;
    }

    pub async fn cancel(&self, token: &Bytes) {
        let tokens = vec![token.clone()];
        let reason = "scripted".into();
        self.send(Out::Cancel(Cancel { tokens, reason })).await;
    }

    pub async fn send_away(&self) {
        let go_away = GoAway {
            within_ms: 30_000,
            reason: "scripted".into(),
        };
        self.send(Out::GoAway(go_away)).await;
    }

    /// The next frame that is not a ping; none when the worker has ended the stream.
    async fn frame(&mut self) -> Option<In> {
        loop {
            match step(self.frames.message()).await.ok().flatten()?.frame {
                Some(In::Ping(_)) => {}
                frame => return frame,
            }
        }
    }

    /// The next frame that is not a ping.
    pub async fn next(&mut self) -> In {
        self.frame().await.expect("the worker ended the stream")
    }

    /// Waits for the worker to end the stream, as the next thing it does.
    pub async fn goodbye(mut self) {
        assert_eq!(self.frame().await, None);
    }

    /// The tokens of an Accepted, which must come next.
    pub async fn accepted(&mut self) -> Vec<Bytes> {
        match self.next().await {
            In::Accepted(accepted) => accepted.tokens,
            other => panic!("not Accepted: {other:?}"),
        }
    }

    /// The results of a Results frame, which must come next.
    pub async fn results(&mut self) -> Vec<Report> {
        match self.next().await {
            In::Results(results) => results.results,
            other => panic!("not Results: {other:?}"),
        }
    }

    /// The only result of a Results frame, which must come next.
    pub async fn result(&mut self) -> Report {
        let mut results = self.results().await;
        assert_eq!(results.len(), 1, "{results:?}");
        results.remove(0)
    }
}

async fn step<T>(doing: impl Future<Output = T>) -> T {
    tokio::time::timeout(STEP, doing)
        .await
        .expect("the worker did not come this far")
}

/// A first delivery of a task, token `id.0.1`.
pub fn task(id: i64, task_type: &str, payload: &str) -> Task {
    Task {
        token: token(id),
        task_id: id,
        namespace: "default".into(),
        task_queue: "q".into(),
        task_type: task_type.into(),
        payload: Bytes::copy_from_slice(payload.as_bytes()),
        content_type: "application/json".into(),
        attempt: 1,
        max_attempts: 3,
        idempotency_key: format!("key-{id}"),
        fence: 1,
        ..Task::default()
    }
}

/// The token of [`task`].
pub fn token(id: i64) -> Bytes {
    format!("{id}.0.1").into()
}
