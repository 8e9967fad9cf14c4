//! One replica: its ports, its terms, its shutdown.
//!
//! The ports are open from the start and stay open; what needs the database says so until there is one. A term is
//! one identity in the database: when others declare it dead, a new one begins in the same process.

mod cross_site;
mod health;
mod readiness;
mod term;

use std::future::Future;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::serve::ListenerExt as _;
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tonic::transport::server::TcpIncoming;
use tonic_health::pb::health_server::HealthServer;
use tonic_health::server::{HealthReporter, HealthService};

use crate::api::{self, Events, Hints, Readiness, Waits};
use crate::config::Config;
use crate::dispatch::settler::{self, Settler};
use crate::dispatch::{self, Hub, Wakes};
use crate::domain::backoff::Backoff;
use crate::domain::policy::Defaults;
use crate::store::{self, Pool};
use crate::telemetry::Telemetry;
use crate::telemetry::trace::{self, Exporter};
use crate::transport::entry::Entry;
use crate::transport::grpc::GrpcDoor;
use crate::transport::{session, websocket};
use crate::upkeep::retention;

/// HTTP/2 windows: results come in frames of many tasks, and a window below that stalls the stream.
const HTTP2_WINDOW: u32 = 4 * 1024 * 1024;
/// Connections have this long to end by themselves once nothing is in flight any more.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(2);

/// All settings of a replica.
#[derive(Clone, Debug)]
pub struct Settings {
    /// A name for people; every start gets a new identity beside it.
    pub name: String,
    /// Where workers and gRPC producers connect.
    pub grpc: SocketAddr,
    /// Where HTTP is served.
    pub http: SocketAddr,
    /// The database.
    pub store: store::Settings,
    /// Dispatching.
    pub dispatch: dispatch::Settings,
    /// Settling.
    pub settle: settler::Settings,
    /// Worker sessions.
    pub sessions: session::Settings,
    /// Bounds of the producers' side.
    pub limits: api::Limits,
    /// Whether operators see what tasks carry.
    pub show_payloads: bool,
    /// Bytes that a payload and a result may have, where this configuration says so; stored for all doors.
    pub stored_limits: (Option<i32>, Option<i32>),
    /// How long dispatch keys of new tasks are remembered, where this configuration says so; stored for all doors.
    pub stored_remember: Option<Duration>,
    /// How long things are kept.
    pub retention: retention::Settings,
    /// Time between two heartbeats.
    pub beat: Duration,
    /// Time that running tasks have to end at a shutdown.
    pub drain_timeout: Duration,
    /// Where spans go, where they go anywhere.
    pub tracing: Option<trace::Settings>,
}

impl From<&Config> for Settings {
    fn from(config: &Config) -> Self {
        let (tasks, limits) = (&config.tasks, &config.limits);
        let bytes = |limit: Option<usize>| limit.and_then(|limit| i32::try_from(limit).ok());
        let max_losses = i32::try_from(tasks.max_losses).unwrap_or(i32::MAX);
        Self {
            name: config.server.name.clone(),
            grpc: config.server.grpc,
            http: config.server.http,
            store: config.database.clone(),
            dispatch: dispatch::Settings {
                batch: i32::try_from(config.sweep.batch).unwrap_or(i32::MAX),
                ageing_step: config.dispatch.ageing_step,
                poll: config.wake.poll,
                listen: config.wake.listen,
                dead_after: config.replica.dead_after,
                accept_timeout: config.workers.accept_timeout,
                reconnect_grace: config.workers.reconnect_grace,
                cancel_grace: tasks.cancel_grace,
                max_losses,
                // What the database has is learned at the registration.
                max_payload_bytes: 0,
                max_result_bytes: 0,
                defaults: Defaults {
                    max_attempts: tasks.max_attempts,
                    backoff: Backoff {
                        base: tasks.backoff_base,
                        multiplier: tasks.backoff_multiplier,
                        max: tasks.backoff_max,
                    },
                    run_timeout: tasks.run_timeout.unwrap_or_default(),
                },
            },
            settle: settler::Settings {
                batch: config.settle.batch,
                high_water: config.settle.high_water,
                low_water: config.settle.low_water,
                max_losses,
                cancel_grace: tasks.cancel_grace + config.replica.dead_after,
            },
            sessions: session::Settings {
                silence_window: config.workers.silence_window,
                grid: Instant::now(),
                max_frame_bytes: config.workers.max_frame,
                drain_timeout: config.replica.drain_timeout,
            },
            limits: api::Limits {
                body: config.workers.max_frame,
                cancel_grace: tasks.cancel_grace + config.replica.dead_after,
                ..api::Limits::default()
            },
            show_payloads: config.server.show_payloads,
            stored_limits: (bytes(limits.payload), bytes(limits.result)),
            stored_remember: config.retention.dispatch_keys,
            retention: retention::Settings {
                interval: config.retention.interval,
                history: config.retention.history,
                results: config.retention.results,
                dead_letters: config.retention.dead_letters,
                workflows: config.retention.workflows,
            },
            beat: config.replica.beat,
            drain_timeout: config.replica.drain_timeout,
            tracing: tracing(config),
        }
    }
}

fn tracing(config: &Config) -> Option<trace::Settings> {
    let tracing = &config.tracing;
    Some(trace::Settings {
        endpoint: tracing.endpoint.clone()?,
        sample_ratio: tracing.sample_ratio,
        service_name: tracing.service_name.clone(),
        instance: config.server.name.clone(),
    })
}

/// Why a replica could not run.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A port can't be opened.
    #[error("can't listen on {address}: {source}")]
    Listen {
        /// Which.
        address: SocketAddr,
        /// Why.
        source: std::io::Error,
    },
    /// The database settings make no connection.
    #[error(transparent)]
    Store(#[from] store::Error),
    /// The way to the collector can't be opened.
    #[error(transparent)]
    Tracing(#[from] trace::Error),
    /// A loop ended that never ends.
    #[error("internal error: {0}")]
    Crashed(String),
}

/// Where a replica listens, for those who asked for any free port.
#[derive(Clone, Copy, Debug)]
pub struct Addresses {
    /// For workers and gRPC producers.
    pub grpc: SocketAddr,
    /// For HTTP.
    pub http: SocketAddr,
}

/// What the parts of a replica share.
struct Replica {
    settings: Settings,
    pool: Pool,
    settler: Settler,
    wakes: Arc<Wakes>,
    /// Whether anybody waits here for the end of a task.
    awaiting: watch::Receiver<bool>,
    hub: watch::Sender<Option<Arc<Hub>>>,
    health: watch::Sender<bool>,
    migrated: watch::Sender<bool>,
}

impl Replica {
    fn api(
        &self,
        waits: Waits,
        events: Events,
        readiness: &watch::Sender<Readiness>,
        telemetry: &Arc<Telemetry>,
    ) -> api::State {
        api::State {
            pool: self.pool.clone(),
            waits,
            hub: self.hub.subscribe(),
            readiness: readiness.subscribe(),
            limits: self.settings.limits,
            events,
            show_payloads: self.settings.show_payloads,
            metrics: api::Metrics::new(telemetry),
        }
    }
}

/// Runs a replica until `shutdown`, then drains it. `opened` learns the addresses once both ports are open.
///
/// # Errors
/// [`Error`], when it can't start or one of its loops dies.
pub async fn serve(
    settings: Settings,
    opened: impl FnOnce(Addresses),
    shutdown: impl Future<Output = ()>,
) -> Result<(), Error> {
    let mut telemetry = Telemetry::default();
    let (exporter, tracing) = Exporter::start(settings.tracing.as_ref(), &telemetry.spans)?;
    telemetry.tracing = tracing;
    let (grpc, http) = (listen(settings.grpc).await?, listen(settings.http).await?);
    opened(Addresses {
        grpc: local(&grpc, settings.grpc),
        http: local(&http, settings.http),
    });

    let (tracker, stop) = (TaskTracker::new(), CancellationToken::new());
    let pool = Pool::new(&settings.store)?;
    let (wakes, telemetry) = (Arc::new(Wakes::default()), Arc::new(telemetry));
    let settler = Settler::start(&pool, settings.settle, &wakes, &telemetry, &tracker, &stop);
    let leaving = CancellationToken::new();
    let hints = Hints {
        settled: settler.settled(),
        told: settings.dispatch.listen.then(|| wakes.ends()),
    };
    let (waits, poller) = Waits::new(pool.clone(), hints, leaving.clone());
    let (events, watcher) = Events::new(pool.clone(), leaving.clone());
    let shutdown = async {
        shutdown.await;
        leaving.cancel();
    };
    let replica = Arc::new(Replica {
        settings,
        pool,
        settler,
        wakes,
        awaiting: waits.busy(),
        hub: watch::Sender::new(None),
        health: watch::Sender::new(true),
        migrated: watch::Sender::new(true),
    });

    let readiness = watch::Sender::new(Readiness::default());
    let mut services = JoinSet::new();
    services.spawn(poller.run(stop.clone()));
    services.spawn(watcher.run(stop.clone()));
    let state = replica.api(waits, events, &readiness, &telemetry);
    services.spawn(readiness::keep(
        Arc::clone(&replica),
        readiness,
        stop.clone(),
    ));
    let entry = Entry::new(
        replica.hub.subscribe(),
        replica.settings.sessions,
        tracker.clone(),
    );
    let reporter = health::reporter().await;
    services.spawn(serve_grpc(
        entry.clone(),
        state.clone(),
        reporter.clone(),
        grpc,
        stop.clone(),
    ));
    let ready = state.readiness.clone();
    services.spawn(health::follow(reporter, ready, stop.clone()));
    services.spawn(serve_http(entry, state, http, stop.clone()));

    let ran = tokio::select! {
        ran = term::run_terms(&replica, shutdown) => ran,
        // A door that is gone must not go unseen: workers and producers would find nobody behind it.
        ended = services.join_next() => Err(Error::Crashed(match ended {
            Some(Err(error)) => error.to_string(),
            _ => "a service of this replica ended".to_owned(),
        })),
    };
    stop.cancel();
    tracker.close();
    let closed = async {
        tracker.wait().await;
        while services.join_next().await.is_some() {}
    };
    if tokio::time::timeout(CLOSE_TIMEOUT, closed).await.is_err() {
        tracing::debug!("some connections did not end in time");
    }
    // What it still has to report ends its spans too.
    drop(replica);
    exporter.flush().await;
    ran
}

async fn listen(address: SocketAddr) -> Result<TcpListener, Error> {
    TcpListener::bind(address)
        .await
        .map_err(|source| Error::Listen { address, source })
}

fn local(listener: &TcpListener, asked: SocketAddr) -> SocketAddr {
    listener.local_addr().unwrap_or(asked)
}

async fn serve_grpc(
    entry: Entry,
    state: api::State,
    health: HealthReporter,
    listener: TcpListener,
    stop: CancellationToken,
) {
    let health = HealthServer::new(HealthService::from_health_reporter(health));
    let silence_window = entry.settings.silence_window;
    // A task must not wait for the acknowledgement of the frame before it, which the worker's kernel delays by 40 ms.
    let incoming = TcpIncoming::from(listener).with_nodelay(Some(true));
    let served = tonic::transport::Server::builder()
        .initial_stream_window_size(HTTP2_WINDOW)
        .initial_connection_window_size(HTTP2_WINDOW)
        // For callers that are gone. Workers have pings of their own, and each look at an idle connection has its price.
        .http2_keepalive_interval(Some(silence_window))
        .http2_keepalive_timeout(Some(silence_window / 2))
        .add_service(GrpcDoor::new(entry).service())
        .add_service(api::grpc::server(state))
        .add_service(health)
        .add_optional_service(health::reflection())
        .serve_with_incoming_shutdown(incoming, stop.cancelled_owned())
        .await;
    if let Err(error) = served {
        tracing::error!(%error, "the gRPC server failed");
    }
}

async fn serve_http(
    entry: Entry,
    state: api::State,
    listener: TcpListener,
    stop: CancellationToken,
) {
    // Small frames go out as they come, not with the next one.
    let listener = listener.tap_io(|connection| {
        if let Err(error) = connection.set_nodelay(true) {
            tracing::debug!(%error, "a connection keeps its delay");
        }
    });
    let router = cross_site::refused(websocket::before(api::http::router(state), entry));
    let served = axum::serve(listener, router)
        .with_graceful_shutdown(stop.cancelled_owned())
        .await;
    if let Err(error) = served {
        tracing::error!(%error, "the HTTP server failed");
    }
}
