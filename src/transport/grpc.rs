//! The gRPC door: one bidirectional stream a session.

use std::pin::Pin;

use futures_util::{Stream, stream};
use tokio::sync::oneshot;
use tonic::{Request, Response, Status, Streaming};

use super::admission::{self, Denied};
use super::entry::{self, Entry};
use super::session;
use crate::domain::scope::Transport;
use crate::proto::worker::worker_service_server::{WorkerService, WorkerServiceServer};
use crate::proto::worker::{DispatcherFrame, WorkerFrame};

/// The door.
#[derive(Clone, Debug)]
pub struct GrpcDoor {
    entry: Entry,
}

impl GrpcDoor {
    /// A door that leads to this entry.
    #[must_use]
    pub fn new(entry: Entry) -> Self {
        Self { entry }
    }

    /// The service to mount.
    #[must_use]
    pub fn service(self) -> WorkerServiceServer<Self> {
        let limit = self.entry.settings.max_frame_bytes;
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
        let register = entry::registration(inbound.message()).await;
        let register = register.map_err(to_status)??;
        let admitted = self.entry.admit(register, Transport::Grpc).await;
        let (hub, admitted) = admitted.map_err(to_status)?;
        let (opened, open) = oneshot::channel();
        let settings = self.entry.settings;
        self.entry
            .sessions
            .spawn(session::live(hub, settings, admitted, inbound, opened));
        let open = open.await;
        let opened = open
            .map_err(|_| Status::internal("The session ended before it began."))?
            .map_err(to_status)?;
        let frames = stream::unfold(opened, |mut opened| async move {
            let frame = opened.next().await?;
            Some((Ok(frame), opened))
        });
        Ok(Response::new(Box::pin(frames)))
    }
}

fn to_status(denied: Denied) -> Status {
    let text = denied.to_string();
    let mut status = match denied.status {
        admission::Status::InvalidArgument => Status::invalid_argument(text),
        admission::Status::PermissionDenied => Status::permission_denied(text),
        admission::Status::Unavailable => Status::unavailable(text),
    };
    if !denied.field.is_empty()
        && let Ok(field) = denied.field.parse()
    {
        status.metadata_mut().insert("fencepost-field", field);
    }
    status
}
