//! How to reach the database.

use std::path::PathBuf;
use std::time::Duration;

use secrecy::{ExposeSecret, SecretString};
use tokio_postgres::Config;
use tokio_postgres::config::TargetSessionAttrs;

use super::Error;
use super::tls::Trust;

/// A lock that is not granted by then belongs to a transaction that somebody left open: the statement
/// fails as a conflict, and its caller goes on with other work.
pub(super) const LOCK_TIMEOUT: Duration = Duration::from_secs(2);

/// No transaction of ours waits for anything but the database.
const IDLE_IN_TRANSACTION: Duration = Duration::from_secs(5);

/// A peer that has vanished is noticed after idle + 3 × interval when silent, and after the user
/// time-out when data is outstanding: both within the default death time of a replica (15 s).
const KEEPALIVE_IDLE: Duration = Duration::from_secs(5);
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(3);
const KEEPALIVE_RETRIES: u32 = 3;
const TCP_USER_TIMEOUT: Duration = Duration::from_secs(10);

/// Where the database is and how long to wait for it.
#[derive(Debug, Clone)]
pub struct Settings {
    /// `postgres://user:password@host[,host]/database?sslmode=…`. With several hosts the writable one is
    /// used. `sslmode`: `disable`; `prefer` (default) and `require` encrypt without looking at the
    /// certificate, as libpq does; `verify-full` (and `verify-ca`, treated alike) check it and the name.
    pub url: SecretString,
    /// Connections that one replica shares for everything but claims (two more), ends (two) and listening (one).
    pub pool_size: usize,
    /// How long to wait for a connection of the pool.
    pub acquire_timeout: Duration,
    /// How long making a connection may take, for each host.
    pub connect_timeout: Duration,
    /// The server's limit for one statement; callers' own deadlines are larger.
    pub statement_timeout: Duration,
    /// Whether planner and time-out settings are sent at connect. `false` behind a pooler in transaction
    /// mode, which refuses them: set them on the role there.
    pub session_settings: bool,
    /// A PEM file of authorities to trust instead of the system's, for `verify-full`.
    pub tls_root: Option<PathBuf>,
}

impl Settings {
    /// The defaults, for this URL.
    #[must_use]
    pub fn new(url: impl Into<String>) -> Self {
        Self {
            url: SecretString::from(url.into()),
            pool_size: 16,
            acquire_timeout: Duration::from_secs(5),
            connect_timeout: Duration::from_secs(5),
            statement_timeout: Duration::from_secs(15),
            session_settings: true,
            tls_root: None,
        }
    }

    /// Says what is wrong with a database URL, without repeating it: it holds a password.
    ///
    /// # Errors
    /// [`Error::Settings`] with a sentence.
    pub fn check_url(url: &str) -> Result<(), Error> {
        parse(url).map(drop)
    }

    /// The driver's configuration and what certificate to accept.
    pub(super) fn connection(&self, application: &str) -> Result<(Config, Trust), Error> {
        let (mut config, trust) = parse(self.url.expose_secret())?;
        config
            .application_name(application)
            .connect_timeout(self.connect_timeout)
            .keepalives(true)
            .keepalives_idle(KEEPALIVE_IDLE)
            .keepalives_interval(KEEPALIVE_INTERVAL)
            .keepalives_retries(KEEPALIVE_RETRIES)
            .tcp_user_timeout(TCP_USER_TIMEOUT);
        if config.get_target_session_attrs() == TargetSessionAttrs::Any {
            config.target_session_attrs(TargetSessionAttrs::ReadWrite);
        }
        if self.session_settings {
            // What the URL itself asks for comes last and wins.
            let own = config.get_options().unwrap_or_default();
            config.options(format!("{} {own}", self.session_options()));
        }
        Ok((config, trust))
    }

    /// To the planner the claimed rows of a freshly analysed queue do not exist, so the plans of the hot
    /// statements must not depend on its guess: they look rows up one by one, never by a walk over a table
    /// that a join could hash or merge. The shape of a plan is the same for every argument then, so each statement is planned once
    /// a session: planning a claim anew takes longer than the claim. What is decided under a lock is read by a statement of its own after it, which must
    /// see what others have committed meanwhile, whatever isolation applications beside it are given by default.
    fn session_options(&self) -> String {
        format!(
            "-c enable_seqscan=off -c enable_hashjoin=off -c enable_mergejoin=off -c jit=off \
             -c plan_cache_mode=force_generic_plan \
             -c default_transaction_isolation=read\\ committed \
             -c statement_timeout={} -c lock_timeout={} -c idle_in_transaction_session_timeout={}",
            self.statement_timeout.as_millis(),
            LOCK_TIMEOUT.as_millis(),
            IDLE_IN_TRANSACTION.as_millis(),
        )
    }

    /// The longest that a connection attempt may take over all hosts.
    pub(super) fn connect_deadline(&self, config: &Config) -> Duration {
        let hosts = u32::try_from(config.get_hosts().len().max(1)).unwrap_or(u32::MAX);
        self.connect_timeout.saturating_mul(hosts)
    }
}

/// The driver knows `disable`, `prefer` and `require` only; the stricter modes are ours.
fn parse(url: &str) -> Result<(Config, Trust), Error> {
    if !["postgres://", "postgresql://"]
        .iter()
        .any(|scheme| url.starts_with(scheme))
    {
        return Err(Error::Settings(
            "the URL must start with postgres:// or postgresql://".into(),
        ));
    }
    let mut trust = Trust::Anyone;
    let mut plain = url.to_owned();
    if let Some((base, query)) = url.split_once('?') {
        let options = query.split('&').map(|option| match option {
            "sslmode=verify-full" | "sslmode=verify-ca" => {
                trust = Trust::Authorities;
                "sslmode=require"
            }
            "sslmode=allow" => "sslmode=prefer",
            other => other,
        });
        let options: Vec<&str> = options.collect();
        plain = format!("{base}?{}", options.join("&"));
    }
    if plain.contains("sslrootcert=") {
        return Err(Error::Settings(
            "instead of sslrootcert in the URL set database.tls_root".into(),
        ));
    }
    let config: Config = plain
        .parse()
        .map_err(|error: tokio_postgres::Error| Error::Settings(super::error::chain(&error)))?;
    if config.get_hosts().is_empty() {
        return Err(Error::Settings("the URL names no host".into()));
    }
    Ok((config, trust))
}
