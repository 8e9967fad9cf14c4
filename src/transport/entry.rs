//! The way in, the same at every door: a worker registers with the current term.

use std::sync::Arc;
use std::time::Duration;

use tokio_util::task::TaskTracker;

use super::admission::{Admitted, Denied, admit, check_met};
use super::session::Settings;
use crate::dispatch::{CurrentHub, DATABASE_DEADLINE, Hub};
use crate::domain::scope::Namespaces;
use crate::domain::scope::Transport;
use crate::proto::worker::worker_frame::Frame;
use crate::proto::worker::{Register, WorkerFrame};
use crate::store::fleet::{self, Met};

/// A stream has to say who it is within this time.
const REGISTER_TIMEOUT: Duration = Duration::from_secs(10);

/// What a door needs to let workers in.
#[derive(Clone, Debug)]
pub struct Entry {
    hub: CurrentHub,
    /// How sessions are kept.
    pub settings: Settings,
    /// Where they run.
    pub sessions: TaskTracker,
}

impl Entry {
    /// A way to the current hub, for sessions that run on `sessions`.
    #[must_use]
    pub fn new(hub: CurrentHub, settings: Settings, sessions: TaskTracker) -> Self {
        Self {
            hub,
            settings,
            sessions,
        }
    }

    /// Judges the registration of a worker that comes in by `transport`.
    ///
    /// # Errors
    /// [`Denied`], with the reason.
    pub async fn admit(
        &self,
        register: Register,
        transport: Transport,
    ) -> Result<(Arc<Hub>, Admitted), Denied> {
        let hub = self.hub.borrow().clone();
        let hub = hub.ok_or_else(|| {
            Denied::unavailable("This replica has no connection to its database yet.")
        })?;
        if hub.is_draining() {
            return Err(Denied::unavailable("This replica is shutting down."));
        }
        let worker_id = format!("{}-{:08x}", hub.dispatcher, fastrand::u32(..));
        let limit = self.settings.max_frame_bytes;
        let admitted = async {
            let mut admitted = admit(register, worker_id, transport, limit)?;
            let met = meet(&hub, &admitted).await?;
            check_met(&admitted, &met.placements, met.order)?;
            admitted.order = met.order;
            Ok(admitted)
        };
        let admitted = admitted.await.inspect_err(|denied: &Denied| {
            tracing::warn!(
                field = denied.field,
                reason = denied.message,
                "a registration is denied"
            );
        })?;
        Ok((hub, admitted))
    }
}

/// Looks up what the worker meets in the database. Namespaces are made only here, after the registration itself has
/// been judged.
async fn meet(hub: &Hub, admitted: &Admitted) -> Result<Met, Denied> {
    let namespaces: Vec<String> = match &admitted.profile.scope.namespaces {
        Namespaces::All => Vec::new(),
        Namespaces::Only(names) => names.iter().cloned().collect(),
    };
    let identity = admitted.profile.identity.clone();
    hub.pool
        .run(DATABASE_DEADLINE, move |client| {
            Box::pin(async move { fleet::admit_worker(client, &namespaces, &identity).await })
        })
        .await
        .map_err(|error| Denied::unavailable(format!("The registration can't be judged: {error}.")))
}

/// Waits for the registration that a stream begins with. Inside: what the stream itself says is wrong with it.
///
/// # Errors
/// [`Denied`] where the stream is in order and begins with nothing, or with something else.
pub(super) async fn registration<E>(
    first: impl Future<Output = Result<Option<WorkerFrame>, E>>,
) -> Result<Result<Register, E>, Denied> {
    match tokio::time::timeout(REGISTER_TIMEOUT, first).await {
        Err(_) => Err(Denied::invalid("", "The stream did not register in time.")),
        Ok(Ok(Some(WorkerFrame {
            frame: Some(Frame::Register(register)),
        }))) => Ok(Ok(register)),
        Ok(Ok(_)) => Err(Denied::invalid("", "The first frame must be Register.")),
        Ok(Err(error)) => Ok(Err(error)),
    }
}
