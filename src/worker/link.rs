//! Opens sessions: endpoints in turn, backoff between attempts, denials told apart.

use std::time::Duration;

use tokio::sync::mpsc;
use tokio::time::{Instant, timeout};
use tokio_stream::wrappers::ReceiverStream;
use tonic::transport::{ClientTlsConfig, Endpoint};
use tonic::{Code, Status, Streaming};

use super::outbox::{Outbox, STREAM_DEPTH};
use super::session::End;
use super::{Error, Options};
use crate::proto::worker::worker_service_client::WorkerServiceClient;
use crate::proto::worker::{
    DispatcherFrame, Register, Welcome, WorkerFrame, dispatcher_frame, worker_frame,
};

const FIRST_PAUSE: Duration = Duration::from_millis(100);
const LONGEST_PAUSE: Duration = Duration::from_secs(5);

/// For the TCP handshake. Short, as the reconnect grace of running tasks is 2 s.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);

/// From the first packet to Welcome, which may wait for the dispatcher's database.
const WELCOME_TIMEOUT: Duration = Duration::from_secs(10);

/// HTTP/2 windows: a full batch of tasks in flight at the default frame limit of most peers,
/// where the standard 64 KiB would cost a round trip per 64 KiB.
const WINDOW_BYTES: u32 = 4 << 20;

/// An admitted session.
pub(super) struct Connection {
    pub(super) welcome: Welcome,
    pub(super) inbound: Streaming<DispatcherFrame>,
    pub(super) outbox: Outbox,
}

pub(super) struct Link {
    endpoints: Vec<Endpoint>,
    turn: usize,
    max_frame_bytes: usize,
    /// Attempts since the last session that lasted.
    failures: u32,
    pause: Duration,
    opened: Instant,
    /// The trouble that was logged last, so that each is logged once.
    told: Option<String>,
}

impl Link {
    pub(super) fn new(options: &Options) -> Result<Self, Error> {
        let endpoints: Result<_, _> = options.connect.iter().map(|url| endpoint(url)).collect();
        Ok(Self {
            endpoints: endpoints?,
            turn: 0,
            max_frame_bytes: options.max_frame_bytes,
            failures: 0,
            pause: Duration::ZERO,
            opened: Instant::now(),
            told: None,
        })
    }

    /// Tries until a dispatcher says Welcome; fails on a final denial only.
    pub(super) async fn open(&mut self, register: Register) -> Result<Connection, Error> {
        loop {
            tokio::time::sleep(self.pause).await;
            let Some(endpoint) = self.endpoints.get(self.turn % self.endpoints.len()) else {
                return Err(Error::Options("no dispatcher address"));
            };
            match connect(endpoint, register.clone(), self.max_frame_bytes).await {
                Ok(connection) => {
                    let welcome = &connection.welcome;
                    tracing::info!(
                        dispatcher = %endpoint.uri(), replica = welcome.replica,
                        session = welcome.session_id, slots = welcome.slots, "connected"
                    );
                    self.told = None;
                    self.opened = Instant::now();
                    return Ok(connection);
                }
                Err(status) => {
                    self.failed(&describe(&denial(status)?));
                }
            }
        }
    }

    /// Takes note of a session's end: the next one goes to the next dispatcher.
    pub(super) fn ended(&mut self, end: &End) {
        // A session that ends at once counts as a failed attempt, or two dispatchers that send
        // each other's workers away would be a hot loop.
        if self.opened.elapsed() > LONGEST_PAUSE {
            self.failures = 0;
        }
        match end {
            End::Drained => {}
            End::Lost(why) => self.failed(why),
            End::GoAway if self.failures == 0 => {
                tracing::info!("the dispatcher sends its workers elsewhere");
                self.turn += 1;
                self.failures = 1;
                self.pause = Duration::ZERO;
            }
            End::GoAway => self.failed("the dispatcher sends its workers elsewhere"),
        }
    }

    fn failed(&mut self, why: &str) {
        self.pause = pause(self.failures);
        self.failures = self.failures.saturating_add(1);
        self.turn = self.turn.wrapping_add(1);
        if self.told.as_deref() == Some(why) {
            tracing::debug!(reason = why, pause = ?self.pause, "no dispatcher");
        } else {
            tracing::warn!(reason = why, pause = ?self.pause, "no dispatcher; trying on");
            self.told = Some(why.to_owned());
        }
    }
}

/// Doubles from 100 ms to 5 s; half of it is jitter, so that a restart is no stampede.
fn pause(failures: u32) -> Duration {
    let full = FIRST_PAUSE
        .saturating_mul(1 << failures.min(16))
        .min(LONGEST_PAUSE);
    full.mul_f64(0.5 + fastrand::f64() / 2.0)
}

/// Passes a status that a later attempt may not meet, and ends the worker on the others.
pub(super) fn denial(status: Status) -> Result<Status, Error> {
    match status.code() {
        Code::InvalidArgument | Code::Unauthenticated | Code::PermissionDenied => {
            Err(Error::Denied {
                code: status.code(),
                message: status.message().to_owned(),
            })
        }
        _ => Ok(status),
    }
}

/// A status for the log, with the cause that tonic keeps apart ("transport error: refused").
pub(super) fn describe(status: &Status) -> String {
    let mut text = format!("{:?}: {}", status.code(), status.message());
    let mut source = std::error::Error::source(status);
    while let Some(cause) = source {
        text.push_str(": ");
        text.push_str(&cause.to_string());
        source = cause.source();
    }
    text
}

fn endpoint(url: &str) -> Result<Endpoint, Error> {
    let bad = |source| Error::Address {
        url: url.to_owned(),
        source,
    };
    let endpoint = Endpoint::from_shared(url.to_owned())
        .map_err(bad)?
        .connect_timeout(CONNECT_TIMEOUT)
        .initial_stream_window_size(WINDOW_BYTES)
        .initial_connection_window_size(WINDOW_BYTES)
        .tcp_nodelay(true);
    if endpoint.uri().scheme_str() == Some("https") {
        return endpoint
            .tls_config(ClientTlsConfig::new().with_native_roots())
            .map_err(bad);
    }
    Ok(endpoint)
}

async fn connect(
    endpoint: &Endpoint,
    register: Register,
    max_frame_bytes: usize,
) -> Result<Connection, Status> {
    let (stream, frames) = mpsc::channel::<WorkerFrame>(STREAM_DEPTH);
    let mut outbox = Outbox::new(stream);
    outbox.push(worker_frame::Frame::Register(register));
    let admitted = async {
        let channel = endpoint.connect().await;
        let channel = channel.map_err(|error| Status::from_error(Box::new(error)))?;
        let mut client = WorkerServiceClient::new(channel)
            .max_decoding_message_size(max_frame_bytes)
            .max_encoding_message_size(max_frame_bytes);
        let stream = client.connect(ReceiverStream::new(frames)).await?;
        let mut inbound = stream.into_inner();
        match inbound.message().await?.and_then(|first| first.frame) {
            Some(dispatcher_frame::Frame::Welcome(welcome)) => Ok((welcome, inbound)),
            Some(_) => Err(Status::internal("the first frame is not Welcome")),
            None => Err(Status::unavailable("the stream ended before Welcome")),
        }
    };
    let (welcome, inbound) = timeout(WELCOME_TIMEOUT, admitted)
        .await
        .map_err(|_| Status::deadline_exceeded("no Welcome in time"))??;
    Ok(Connection {
        welcome,
        inbound,
        outbox,
    })
}
