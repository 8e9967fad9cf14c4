//! Commands that work on the database directly: the same calls as the doors make.

use std::time::Duration;

use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::api::{self, Events, Hints, Limits, Waits};
use crate::store::{Pool, Settings};

/// Where the database is.
#[derive(Debug, Clone, clap::Args)]
pub struct Database {
    /// The database, as `postgres://USER:PASSWORD@HOST/DATABASE`
    #[arg(
        long = "database-url",
        env = "DATABASE_URL",
        hide_env_values = true,
        value_name = "URL"
    )]
    pub(super) url: String,
}

/// What a command needs of the producers' side, and the poller of its waits; dropped, that ends too.
pub(super) struct Session {
    pub(super) state: api::State,
    _poller: JoinSet<()>,
}

impl Database {
    pub(super) fn open(&self) -> anyhow::Result<Session> {
        let pool = Pool::new(&Settings {
            pool_size: 2,
            ..Settings::new(self.url.clone())
        })?;
        // Nobody settles in this process: the poller goes by its clock.
        let (waits, poller) = Waits::new(pool.clone(), Hints::none(), CancellationToken::new());
        let mut owned = JoinSet::new();
        owned.spawn(poller.run(CancellationToken::new()));
        // Nobody listens in this process.
        let (events, _) = Events::new(pool.clone(), CancellationToken::new());
        let (_, hub) = watch::channel(None);
        let (_, readiness) = watch::channel(api::Readiness::default());
        let state = api::State {
            pool,
            waits,
            hub,
            readiness,
            limits: Limits {
                database: Duration::from_secs(15),
                ..Limits::default()
            },
            metrics: api::Metrics::default(),
            events,
            show_payloads: true,
        };
        Ok(Session {
            state,
            _poller: owned,
        })
    }
}
