//! The gRPC door: one bidirectional stream a session.

use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use futures_util::{Stream, stream};
use tokio::sync::{oneshot, watch};
use tokio_util::task::TaskTracker;
use tonic::{Request, Response, Status, Streaming};

use super::admission::{Denied, admit};
use super::session::{self, Opened, Settings};
use crate::dispatch::Hub;
use crate::proto::worker::worker_frame::Frame;
use crate::proto::worker::worker_service_server::{WorkerService, WorkerServiceServer};
use crate::proto::worker::{DispatcherFrame, Register, WorkerFrame};

/// A stream has to say who it is within this time.
const REGISTER_TIMEOUT: Duration = Duration::from_secs(10);

/// The hub of the current term; none before the first one and between two.
pub type CurrentHub = watch::Receiver<Option<Arc<Hub>>>;

/// The door.
#[derive(Clone, Debug)]
pub struct GrpcDoor {
    hub: CurrentHub,
    settings: Settings,
    sessions: TaskTracker,
}

impl GrpcDoor {
    /// A door to the current hub, whose sessions run on `sessions`.
    #[must_use]
    pub fn new(hub: CurrentHub, settings: Settings, sessions: TaskTracker) -> Self {
        Self {
            hub,
            settings,
            sessions,
        }
    }

    /// The service to mount.
    #[must_use]
    pub fn service(self) -> WorkerServiceServer<Self> {
        let limit = self.settings.max_frame_bytes;
        WorkerServiceServer::new(self)
            .max_decoding_message_size(limit)
            .max_encoding_message_size(limit)
    }
}

type Frames = Pin<Box<dyn Stream<Item = Result<DispatcherFrame, Status>> + Send>>;

#[tonic::async_trait]
impl WorkerService for GrpcDoor {
    type ConnectStream = Frames;

    async fn connect(
        &self,
        request: Request<Streaming<WorkerFrame>>,
    ) -> Result<Response<Frames>, Status> {
        let mut inbound = request.into_inner();
        let register = first_frame(&mut inbound).await?;
        let hub = self.hub.borrow().clone();
        let hub = hub.ok_or_else(|| {
            Status::unavailable("This replica has no connection to its database yet.")
        })?;
        if hub.is_draining() {
            return Err(Status::unavailable("This replica is shutting down."));
        }
        let worker_id = format!("{}-{:08x}", hub.dispatcher, fastrand::u32(..));
        let admitted =
            admit(register, worker_id, "grpc", self.settings.max_frame_bytes).map_err(to_status)?;
        let (opened, open) = oneshot::channel();
        self.sessions
            .spawn(session::live(hub, self.settings, admitted, inbound, opened));
        let open = open.await;
        let opened = open
            .map_err(|_| Status::internal("The session ended before it began."))?
            .map_err(|error| {
                Status::unavailable(format!("The tasks can't be taken up: {error}."))
            })?;
        Ok(Response::new(outbound(opened)))
    }
}

async fn first_frame(inbound: &mut Streaming<WorkerFrame>) -> Result<Register, Status> {
    let first = tokio::time::timeout(REGISTER_TIMEOUT, inbound.message()).await;
    match first {
        Err(_) => Err(Status::invalid_argument(
            "The stream did not register in time.",
        )),
        Ok(Ok(Some(WorkerFrame {
            frame: Some(Frame::Register(register)),
        }))) => Ok(register),
        Ok(Ok(_)) => Err(Status::invalid_argument(
            "The first frame must be Register.",
        )),
        Ok(Err(status)) => Err(status),
    }
}

fn to_status(denied: Denied) -> Status {
    tracing::warn!(
        field = denied.field,
        reason = denied.message,
        "a registration is denied"
    );
    let mut status = Status::invalid_argument(denied.to_string());
    if let Ok(field) = denied.field.parse() {
        status.metadata_mut().insert("fencepost-field", field);
    }
    status
}

/// The frames of the session until it ends; what is queued by then still goes out.
fn outbound(opened: Opened) -> Frames {
    let Opened { frames, end } = opened;
    let frames = stream::unfold((frames, end), |(mut frames, end)| async move {
        let next = tokio::select! {
            biased;
            frame = frames.recv() => frame,
            () = end.cancelled() => {
                frames.close();
                frames.recv().await
            }
        };
        Some((Ok(next?), (frames, end)))
    });
    Box::pin(frames)
}
