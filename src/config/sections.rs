//! The sections, their keys and defaults.

use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use secrecy::SecretString;

use super::kinds::{
    ADDRESS, ATTEMPTS, BATCH, BOOLEAN, COUNT, DATABASE_URL, DURATION, FRAME_SIZE, LOG_FILTER,
    LOG_FORMAT, LOSSES, MULTIPLIER, NAME, OPTIONAL_BODY_SIZE, OPTIONAL_DURATION, PATH,
    POSITIVE_DURATION,
};
use super::reader::Reader;
use crate::store;

/// `[database]`, with the defaults of the store itself.
pub(super) fn database(reader: &mut Reader<'_>) -> store::Settings {
    reader.require(
        "database.url",
        "is missing: give --database-url, DATABASE_URL, FENCEPOST_DATABASE__URL or url in [database]",
    );
    let default = store::Settings::new("");
    store::Settings {
        url: reader.take("database.url", SecretString::default(), &DATABASE_URL),
        pool_size: reader.take("database.pool_size", default.pool_size, &COUNT),
        acquire_timeout: reader.take(
            "database.acquire_timeout",
            default.acquire_timeout,
            &POSITIVE_DURATION,
        ),
        connect_timeout: reader.take(
            "database.connect_timeout",
            default.connect_timeout,
            &POSITIVE_DURATION,
        ),
        statement_timeout: reader.take(
            "database.statement_timeout",
            default.statement_timeout,
            &POSITIVE_DURATION,
        ),
        session_settings: reader.take(
            "database.session_settings",
            default.session_settings,
            &BOOLEAN,
        ),
        tls_root: reader.take("database.tls_root", default.tls_root, &PATH),
    }
}

/// `[server]`: where this replica listens.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Server {
    /// For workers and gRPC producers.
    pub grpc: SocketAddr,
    /// For HTTP producers, operators and probes.
    pub http: SocketAddr,
    /// What people call this replica; its identity is new at every start.
    pub name: String,
    /// Whether operators see payloads, and results where nobody waits for them, over HTTP.
    pub show_payloads: bool,
}

impl Server {
    pub(super) fn read(reader: &mut Reader<'_>) -> Self {
        let local = |port| SocketAddr::from((Ipv4Addr::LOCALHOST, port));
        let host = nix::unistd::gethostname().ok();
        let name = host.and_then(|name| name.into_string().ok());
        let name = name.filter(|name| !name.is_empty());
        let grpc = reader.take("server.grpc", local(7433), &ADDRESS);
        let http = reader.take("server.http", local(7434), &ADDRESS);
        // Port 0 is any that is free, so two of them are two.
        let apart = grpc != http || grpc.port() == 0;
        reader.relate(apart, "server.http", "must not be that of server.grpc");
        Self {
            grpc,
            http,
            name: reader.take(
                "server.name",
                name.unwrap_or_else(|| "replica".to_owned()),
                &NAME,
            ),
            show_payloads: reader.take("server.show_payloads", false, &BOOLEAN),
        }
    }
}

/// `[workers]`: what is expected of connected workers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Workers {
    /// A worker that answers no ping for so long is lost.
    pub silence_window: Duration,
    /// A delivery is accepted or refused within this time.
    pub accept_timeout: Duration,
    /// How long a worker whose stream ended may take to come back, here or elsewhere.
    pub reconnect_grace: Duration,
    /// The largest frame that is sent or taken, in bytes.
    pub max_frame: usize,
}

impl Workers {
    pub(super) fn read(reader: &mut Reader<'_>) -> Self {
        Self {
            silence_window: reader.take(
                "workers.silence_window",
                Duration::from_secs(30),
                &POSITIVE_DURATION,
            ),
            accept_timeout: reader.take(
                "workers.accept_timeout",
                Duration::from_secs(10),
                &POSITIVE_DURATION,
            ),
            reconnect_grace: reader.take(
                "workers.reconnect_grace",
                Duration::from_secs(2),
                &DURATION,
            ),
            max_frame: reader.take("workers.max_frame", 16 << 20, &FRAME_SIZE),
        }
    }
}

/// `[replica]`: life and death of replicas.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Replica {
    /// A replica whose beat stands still for so long is dead.
    pub dead_after: Duration,
    /// Between two beats.
    pub beat: Duration,
    /// How long a drain waits for running tasks.
    pub drain_timeout: Duration,
}

impl Replica {
    pub(super) fn read(reader: &mut Reader<'_>) -> Self {
        let replica = Self {
            dead_after: reader.take(
                "replica.dead_after",
                Duration::from_secs(15),
                &POSITIVE_DURATION,
            ),
            beat: reader.take("replica.beat", Duration::from_secs(3), &POSITIVE_DURATION),
            drain_timeout: reader.take("replica.drain_timeout", Duration::from_secs(30), &DURATION),
        };
        // A replica is fit to start work for half the death time after its last beat.
        reader.relate(
            replica.beat.saturating_mul(2) < replica.dead_after,
            "replica.beat",
            "must be less than half of replica.dead_after",
        );
        replica
    }
}

/// `[tasks]`: limits of a task for which neither it, its route nor its namespace sets its own.
#[derive(Debug, Clone, PartialEq)]
pub struct Tasks {
    /// Attempts until a failing task is a dead letter.
    pub max_attempts: u32,
    /// The wait after the first failed attempt.
    pub backoff_base: Duration,
    /// By how much each further wait is longer.
    pub backoff_multiplier: f64,
    /// The longest wait.
    pub backoff_max: Duration,
    /// Counted from acceptance; none is no limit.
    pub run_timeout: Option<Duration>,
    /// How long a worker may take to stop a cancelled task.
    pub cancel_grace: Duration,
    /// Deliveries lost with their worker or replica until the task is a dead letter.
    pub max_losses: u32,
}

impl Tasks {
    pub(super) fn read(reader: &mut Reader<'_>) -> Self {
        let tasks = Self {
            max_attempts: reader.take("tasks.max_attempts", 20, &ATTEMPTS),
            backoff_base: reader.take(
                "tasks.backoff_base",
                Duration::from_secs(1),
                &POSITIVE_DURATION,
            ),
            backoff_multiplier: reader.take("tasks.backoff_multiplier", 2.0, &MULTIPLIER),
            backoff_max: reader.take(
                "tasks.backoff_max",
                Duration::from_mins(10),
                &POSITIVE_DURATION,
            ),
            run_timeout: reader.take(
                "tasks.run_timeout",
                Some(Duration::from_hours(1)),
                &OPTIONAL_DURATION,
            ),
            cancel_grace: reader.take("tasks.cancel_grace", Duration::from_secs(30), &DURATION),
            max_losses: reader.take("tasks.max_losses", 5, &LOSSES),
        };
        reader.relate(
            tasks.backoff_base <= tasks.backoff_max,
            "tasks.backoff_base",
            "must not be longer than tasks.backoff_max",
        );
        tasks
    }
}

/// `[limits]`: what every door refuses.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Limits {
    /// The largest payload, in bytes.
    pub payload: Option<usize>,
    /// The largest result, in bytes.
    pub result: Option<usize>,
}

impl Limits {
    pub(super) fn read(reader: &mut Reader<'_>) -> Self {
        Self {
            payload: reader.take("limits.payload", None, &OPTIONAL_BODY_SIZE),
            result: reader.take("limits.result", None, &OPTIONAL_BODY_SIZE),
        }
    }
}

/// `[wake]`: how this replica learns of new work.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Wake {
    /// Whether to LISTEN; `false` behind a pooler in transaction mode.
    pub listen: bool,
    /// The longest wait between two looks.
    pub poll: Duration,
}

impl Wake {
    pub(super) fn read(reader: &mut Reader<'_>) -> Self {
        Self {
            listen: reader.take("wake.listen", true, &BOOLEAN),
            poll: reader.take("wake.poll", Duration::from_secs(1), &POSITIVE_DURATION),
        }
    }
}

/// `[sweep]`: the claim.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Sweep {
    /// Tasks that one sweep claims at most.
    pub batch: usize,
}

impl Sweep {
    pub(super) fn read(reader: &mut Reader<'_>) -> Self {
        Self {
            batch: reader.take("sweep.batch", 500, &BATCH),
        }
    }
}

/// `[dispatch]`: which task is next.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Dispatch {
    /// A task that has been due for so long stands where one of the next priority stands; none for never.
    pub ageing_step: Option<Duration>,
}

impl Dispatch {
    pub(super) fn read(reader: &mut Reader<'_>) -> Self {
        Self {
            ageing_step: reader.take(
                "dispatch.ageing_step",
                Some(Duration::from_secs(30)),
                &OPTIONAL_DURATION,
            ),
        }
    }
}

/// `[settle]`: results on their way to the database.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Settle {
    /// Results that one statement writes at most.
    pub batch: usize,
    /// With so many waiting, claiming stops.
    pub high_water: usize,
    /// With so few waiting, it goes on.
    pub low_water: usize,
}

impl Settle {
    pub(super) fn read(reader: &mut Reader<'_>) -> Self {
        let settle = Self {
            batch: reader.take("settle.batch", 500, &BATCH),
            high_water: reader.take("settle.high_water", 20_000, &COUNT),
            low_water: reader.take("settle.low_water", 5000, &COUNT),
        };
        reader.relate(
            settle.low_water < settle.high_water,
            "settle.low_water",
            "must be less than settle.high_water",
        );
        settle
    }
}

/// `[log]`: what is said, and how.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Log {
    /// A level, or a list of targets with levels.
    pub level: String,
    /// For people or for machines.
    pub format: LogFormat,
}

/// How a line of the log looks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LogFormat {
    /// For people.
    Text,
    /// One object a line.
    Json,
}

impl Log {
    pub(super) fn read(reader: &mut Reader<'_>) -> Self {
        Self {
            level: reader.take("log.level", "info".to_owned(), &LOG_FILTER),
            format: reader.take("log.format", LogFormat::Text, &LOG_FORMAT),
        }
    }
}
