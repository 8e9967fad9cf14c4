//! What the loops of one term share.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicUsize, Ordering};
use std::time::Duration;

use parking_lot::{Mutex, RwLock};
use tokio::sync::{Notify, watch};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::direct::Direct;
use super::fitness::{BootTime, Fitness};
use super::in_flight::InFlight;
use super::routes::Routes;
use super::settler::Settler;
use super::wakes::{Awaited, Wakes};
use crate::domain::id::DispatcherId;
use crate::domain::pause::Pause;
use crate::domain::placement::Nodes;
use crate::domain::policy::Defaults;
use crate::domain::route::Route;
use crate::domain::scope::{self, Group, RemoteGroup};
use crate::fleet::Fleet;
use crate::store::Pool;
use crate::store::claim::Deadlines;
use crate::telemetry::Telemetry;

/// Longest wait for one call to the database, connection included. It is longer than the statement timeout of
/// the connection, so that the server gives up first and says so.
pub const DATABASE_DEADLINE: Duration = Duration::from_secs(20);

/// How this replica dispatches.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Rows in one claim at most.
    pub batch: i32,
    /// Longest wait between two looks for due work.
    pub poll: Duration,
    /// Sleep on notifications; false behind a transaction pooler, where polling works alone.
    pub listen: bool,
    /// Waiting for so long counts as much as one priority; none for never.
    pub ageing_step: Option<Duration>,
    /// Silence after which others declare a replica dead.
    pub dead_after: Duration,
    /// A worker has this long to accept or refuse a task.
    pub accept_timeout: Duration,
    /// A worker whose stream ended has this long to come back with its tasks.
    pub reconnect_grace: Duration,
    /// A task that is being cancelled has this long to stop.
    pub cancel_grace: Duration,
    /// Deliveries that may end with the worker or replica vanishing.
    pub max_losses: i32,
    /// Bytes in a payload at most.
    pub max_payload_bytes: usize,
    /// Bytes in a result at most.
    pub max_result_bytes: usize,
    /// What tasks run under where nothing nearer to them says otherwise.
    pub defaults: Defaults,
}

impl Settings {
    /// How long claims may last, for the backstop in the row.
    #[must_use]
    pub fn deadlines(&self) -> Deadlines {
        Deadlines {
            run_timeout: self.defaults.run_timeout,
            allowance: self.accept_timeout + self.dead_after,
        }
    }
}

/// The hub of the current term, where there is one.
pub type CurrentHub = watch::Receiver<Option<Arc<Hub>>>;

/// What the loops of one term share. A term is one identity of this replica: from its registration until it
/// is declared dead or stops.
#[derive(Debug)]
pub struct Hub {
    /// This identity.
    pub dispatcher: DispatcherId,
    /// How to dispatch.
    pub settings: Settings,
    /// The database.
    pub pool: Pool,
    /// Who is connected here.
    pub fleet: Fleet,
    /// What is being delivered here.
    pub in_flight: InFlight,
    /// Callers that wait here.
    pub direct: Direct,
    /// What this process counts.
    pub telemetry: Arc<Telemetry>,
    /// Routes by number.
    pub routes: Routes,
    /// Where reports go.
    pub settler: Settler,
    /// Why to look.
    pub wakes: Arc<Wakes>,
    /// Whether work may be started.
    pub fitness: Fitness,
    /// True once this replica takes nothing new.
    pub draining: watch::Sender<bool>,
    /// The workers of other replicas, as of their last beats; the last known state while the database is away.
    pub elsewhere: RwLock<Vec<RemoteGroup>>,
    /// Whether somebody waits at another replica for the end of a task, as of its last word.
    pub awaited_elsewhere: Awaited,
    /// What operators have paused, as of the last look; the last known state while the database is away.
    pub pauses: RwLock<Vec<Pause>>,
    /// Somebody has ordered something: the rows that say what are to be read before the next beat.
    pub orders: Notify,
    /// Ends the term: every loop and every session.
    pub ended: CancellationToken,
    /// Sweeps and adoptions whose outcome nobody learned, and when they were given up.
    pub(super) given_up: Mutex<Vec<(i64, Instant)>>,
    /// Held while a worker's tasks are adopted; alone while claims of unknown outcome are put back.
    pub(super) adoptions: tokio::sync::RwLock<()>,
    /// Deliveries that were left claimed when their stream ended in the drain.
    pub left: AtomicUsize,
    sweeps: AtomicI64,
}

impl Hub {
    /// The hub of a term that starts now.
    #[must_use]
    pub fn new(
        dispatcher: DispatcherId,
        settings: Settings,
        pool: Pool,
        settler: Settler,
        wakes: Arc<Wakes>,
        registered: BootTime,
    ) -> Self {
        Self {
            dispatcher,
            fitness: Fitness::new(registered, settings.dead_after),
            settings,
            pool,
            fleet: Fleet::default(),
            in_flight: InFlight::default(),
            direct: Direct::default(),
            routes: settler.routes().clone(),
            telemetry: Arc::clone(settler.telemetry()),
            settler,
            wakes,
            draining: watch::Sender::new(false),
            elsewhere: RwLock::default(),
            awaited_elsewhere: Awaited::default(),
            pauses: RwLock::default(),
            orders: Notify::new(),
            ended: CancellationToken::new(),
            given_up: Mutex::default(),
            adoptions: tokio::sync::RwLock::default(),
            left: AtomicUsize::new(0),
            sweeps: AtomicI64::new(0),
        }
    }

    /// Whether this replica takes nothing new.
    #[must_use]
    pub fn is_draining(&self) -> bool {
        *self.draining.borrow()
    }

    /// Whether a pause covers this route, as far as is known here. Claims ask the table itself.
    #[must_use]
    pub fn is_paused(&self, route: &Route) -> bool {
        let pauses = self.pauses.read();
        pauses.iter().any(|pause| pause.address.covers(route))
    }

    /// The workers of all replicas, as far as they take new tasks.
    #[must_use]
    pub fn groups(&self) -> Vec<Group> {
        let mut groups = self.fleet.groups(std::time::Instant::now());
        groups.extend(scope::staying(&self.elsewhere.read()));
        groups
    }

    /// The nodes that may run tasks of this route now.
    pub fn nodes<'r>(&self, route: &'r Route) -> Nodes<'r> {
        scope::nodes(route, || self.groups())
    }

    /// The number of the next sweep or adoption.
    pub(super) fn next_sweep(&self) -> i64 {
        self.sweeps.fetch_add(1, Ordering::Relaxed) + 1
    }

    /// The outcome of this sweep is unknown: what it may have claimed is looked for later.
    pub(super) fn give_up(&self, sweep: i64) {
        self.given_up.lock().push((sweep, Instant::now()));
    }
}
