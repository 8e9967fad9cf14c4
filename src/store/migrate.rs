//! The schema's versions: applied under a lock, so that a second migration waits for the first.

use std::borrow::Cow;
use std::fmt::Write;
use std::time::Duration;

use sqlx::migrate::{Migrate, MigrateError, Migration, MigrationType, Migrator};
use sqlx::postgres::{PgConnectOptions, PgSslMode};
use sqlx::{ConnectOptions, Connection, PgConnection, Row, SqlSafeStr};
use tokio::time::timeout;
use tokio_postgres::Config;
use tokio_postgres::config::{Host, SslMode};

use super::error::chain;
use super::tls::Trust;
use super::{Error as StoreError, Settings};

/// The files in `migrations/`, oldest first: version, description, text.
const FILES: &[(i64, &str, &str)] = &include!(concat!(env!("OUT_DIR"), "/migrations.rs"));

const SCHEMA: &str = "fencepost";

/// The ledger stands in our schema, since the database is the application's.
const LEDGER: &str = "fencepost.migration";

/// PostgreSQL 14, as `server_version_num` has it.
const OLDEST_SERVER: i32 = 140_000;

/// Why the schema could not be brought up to date, or looked at.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The server is older than 14.
    #[error("PostgreSQL {} is too old: fencepost needs 14 or newer", .version / 10_000)]
    OldServer {
        /// Its `server_version_num`.
        version: i32,
    },
    /// The database does not store UTF-8.
    #[error("the database's encoding is {encoding}: fencepost needs one made with encoding UTF8")]
    Encoding {
        /// Its `server_encoding`.
        encoding: String,
    },
    /// The ledger and this program disagree on a migration's text.
    #[error("migration {version} differs from the one that this database has had")]
    Modified {
        /// The migration.
        version: i64,
    },
    /// The database failed; from a migration, its number stands in the message.
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// A migration that a database is yet to have.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pending {
    /// Its number.
    pub version: i64,
    /// What it is about.
    pub description: &'static str,
}

/// Applies what is missing, each migration in a transaction of its own. Migrations of a newer release are
/// left alone, so that a rolling upgrade can run both.
///
/// # Errors
/// [`Error`]; what was applied before stays.
pub async fn run(settings: &Settings) -> Result<(), Error> {
    let mut connection = connect(settings).await?;
    migrator()
        .run_direct(None, &mut connection, false)
        .await
        .map_err(from_migrate)?;
    connection.close().await.map_err(from_sqlx)?;
    Ok(())
}

/// What [`run`] would apply; changes nothing.
///
/// # Errors
/// [`Error`].
pub async fn check(settings: &Settings) -> Result<Vec<Pending>, Error> {
    let mut connection = connect(settings).await?;
    let applied = match connection
        .list_applied_migrations(LEDGER)
        .await
        .map_err(from_migrate)
    {
        Ok(applied) => applied,
        Err(Error::Store(StoreError::NotMigrated(_))) => Vec::new(),
        Err(error) => return Err(error),
    };
    connection.close().await.map_err(from_sqlx)?;
    let mut pending = Vec::new();
    for (migration, &(version, description, _)) in migrations().iter().zip(FILES) {
        match applied.iter().find(|applied| applied.version == version) {
            None => pending.push(Pending {
                version,
                description,
            }),
            Some(applied) if applied.checksum != migration.checksum => {
                return Err(Error::Modified { version });
            }
            Some(_) => {}
        }
    }
    Ok(pending)
}

/// All migrations and their rows in the ledger as one script for `psql`, for an empty database; [`check`]
/// finds nothing pending after it.
#[must_use]
pub fn sql() -> String {
    let mut script = include_str!("../../migrations/script/begin.psql").to_owned();
    for migration in migrations() {
        let checksum = migration
            .checksum
            .iter()
            .fold(String::new(), |mut hex, byte| {
                write!(hex, "{byte:02x}").ok();
                hex
            });
        // The text goes in last: what it holds is not looked at for places to fill.
        let part = include_str!("../../migrations/script/migration.psql")
            .replace(":version", &migration.version.to_string())
            .replace(":description", &migration.description.replace('\'', "''"))
            .replace(":checksum", &checksum)
            .replacen(":text", migration.sql.as_str(), 1);
        script.push_str(&part);
    }
    script
}

fn migrations() -> Vec<Migration> {
    let migration = |&(version, description, text): &(i64, &'static str, &'static str)| {
        Migration::new(
            version,
            Cow::Borrowed(description),
            MigrationType::Simple,
            text.into_sql_str(),
            false,
        )
    };
    FILES.iter().map(migration).collect()
}

fn migrator() -> Migrator {
    let mut migrator = Migrator::with_migrations(migrations());
    migrator.dangerous_set_table_name(LEDGER);
    migrator.create_schema(SCHEMA);
    migrator.set_ignore_missing(true);
    migrator
}

/// A connection to the first host that can be written to.
async fn connect(settings: &Settings) -> Result<PgConnection, Error> {
    let (config, trust) = settings.connection("fencepost migrate")?;
    let shared = options(settings, &config, trust);
    let ports = config.get_ports();
    let mut last = StoreError::Settings("the URL names no host".into());
    for (n, host) in config.get_hosts().iter().enumerate() {
        let port = ports
            .get(n)
            .or_else(|| ports.first())
            .copied()
            .unwrap_or(5432);
        let options = match host {
            Host::Tcp(name) => shared.clone().host(name),
            Host::Unix(directory) => shared.clone().socket(directory),
        };
        match open(options.port(port), settings.connect_timeout).await {
            Ok(Some(connection)) => return Ok(connection),
            Ok(None) => last = StoreError::unavailable("the server is a standby"),
            Err(Error::Store(error @ StoreError::Unavailable(_))) => last = error,
            Err(error) => return Err(error),
        }
    }
    Err(last.into())
}

fn options(settings: &Settings, config: &Config, trust: Trust) -> PgConnectOptions {
    let mut options = PgConnectOptions::new()
        .application_name("fencepost migrate")
        .ssl_mode(match (trust, config.get_ssl_mode()) {
            (Trust::Authorities, _) => PgSslMode::VerifyFull,
            (Trust::Anyone, SslMode::Disable) => PgSslMode::Disable,
            (Trust::Anyone, SslMode::Require) => PgSslMode::Require,
            (Trust::Anyone, _) => PgSslMode::Prefer,
        })
        .disable_statement_logging();
    if let Some(user) = config.get_user() {
        options = options.username(user);
    }
    if let Some(password) = config.get_password() {
        options = options.password(&String::from_utf8_lossy(password));
    }
    if let Some(database) = config.get_dbname() {
        options = options.database(database);
    }
    if settings.session_settings {
        // Notices that something exists already are no news.
        options = options.options([("client_min_messages", "warning")]);
    }
    if let Some(root) = &settings.tls_root {
        options = options.ssl_root_cert(root);
    }
    options
}

/// Connects, and refuses a server or database that the schema can't live in; none when it is a standby.
async fn open(options: PgConnectOptions, limit: Duration) -> Result<Option<PgConnection>, Error> {
    let connected = timeout(limit, options.connect())
        .await
        .map_err(|_| StoreError::unavailable("no connection in time"))?;
    let mut connection = connected.map_err(from_sqlx)?;
    let row = sqlx::query(include_str!("../../sql/read_server.sql"))
        .fetch_one(&mut connection)
        .await
        .map_err(from_sqlx)?;
    let version: i32 = row.try_get("version").map_err(from_sqlx)?;
    let encoding: String = row.try_get("encoding").map_err(from_sqlx)?;
    let standby: bool = row.try_get("standby").map_err(from_sqlx)?;
    if version < OLDEST_SERVER {
        return Err(Error::OldServer { version });
    }
    if encoding != "UTF8" {
        return Err(Error::Encoding { encoding });
    }
    Ok((!standby).then_some(connection))
}

fn from_migrate(error: MigrateError) -> Error {
    match error {
        MigrateError::VersionMismatch(version) => Error::Modified { version },
        MigrateError::ExecuteMigration(sqlx::Error::Database(server), version) => {
            let message = format!("migration {version}: {}", server.message());
            match StoreError::from_server(&server.code().unwrap_or_default(), &message) {
                // To migrate is what was tried.
                StoreError::NotMigrated(fault) => StoreError::Internal(fault).into(),
                error => error.into(),
            }
        }
        MigrateError::Execute(error) | MigrateError::ExecuteMigration(error, _) => {
            from_sqlx(error).into()
        }
        error => StoreError::internal(chain(&error)).into(),
    }
}

fn from_sqlx(error: sqlx::Error) -> StoreError {
    match error {
        sqlx::Error::Database(server) => {
            StoreError::from_server(&server.code().unwrap_or_default(), server.message())
        }
        sqlx::Error::Io(_) | sqlx::Error::Tls(_) => StoreError::unavailable(chain(&error)),
        error => StoreError::internal(chain(&error)),
    }
}
