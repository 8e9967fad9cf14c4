//! A private PostgreSQL server from the machine's own binaries, for the demo, the benchmarks and the tests.
//!
//! The server is a direct child in a process group of its own, so that Ctrl-C in the terminal reaches
//! this process first and the server is stopped last. It listens on a loopback port only and trusts
//! whoever can reach that port. Dropping an [`Embedded`] stops the server; should this process be killed
//! outright, a watchdog stops it (see [`watchdog`]).

mod account;
mod binaries;
mod process;
mod watchdog;

use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use tempfile::TempDir;

use account::Account;
use process::Postgres;
use watchdog::Watchdog;

/// Time to accept connections; the upper end is crash recovery of a persistent directory.
const START_DEADLINE: Duration = Duration::from_mins(1);

/// Other processes may take the port between our choice of it and the server's bind.
const PORT_TRIES: usize = 5;

/// Why a private server could not be started or stopped.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// No PostgreSQL server binaries on this machine.
    #[error(
        "no PostgreSQL server binaries found (looked in FENCEPOST_PG_BIN, PATH, /usr/lib/postgresql/*/bin \
         and Homebrew); install PostgreSQL 14 or newer (Debian and Ubuntu: `apt install postgresql`, Fedora: \
         `dnf install postgresql-server`, macOS: `brew install postgresql@17`), set FENCEPOST_PG_BIN to the \
         directory of `initdb` and `postgres`, or give the URL of a running server"
    )]
    NoBinaries,
    /// `FENCEPOST_PG_BIN` names a directory without `initdb` and `postgres`.
    #[error("FENCEPOST_PG_BIN is {}, which lacks initdb or postgres", .0.display())]
    WrongBinaries(PathBuf),
    /// Started as root, and there is no account to give the server to.
    #[error(
        "PostgreSQL refuses to run as root, and neither user `postgres` nor `nobody` exists to run it as"
    )]
    NoAccount,
    /// A file, directory or process could not be handled.
    #[error("{doing}: {source}")]
    Io {
        /// What was being done, with the path.
        doing: String,
        /// The system's answer.
        source: io::Error,
    },
    /// `initdb` failed.
    #[error("initdb failed: {0}")]
    Initdb(String),
    /// The directory belongs to a server that is still running.
    #[error("{} is in use by another server (process {pid})", .directory.display())]
    InUse {
        /// The persistent directory.
        directory: PathBuf,
        /// That server's process id.
        pid: i32,
    },
    /// The server ended before it accepted connections.
    #[error("PostgreSQL ended at start ({status}); its log ends with:\n{log}")]
    Ended {
        /// How it ended.
        status: String,
        /// The last lines of its log.
        log: String,
    },
    /// The server did not accept connections in time.
    #[error("PostgreSQL did not accept connections within {} s; its log ends with:\n{log}", .deadline.as_secs())]
    Deadline {
        /// The time it was given.
        deadline: Duration,
        /// The last lines of its log.
        log: String,
    },
}

impl Error {
    fn io(doing: impl Into<String>) -> impl FnOnce(io::Error) -> Self {
        let doing = doing.into();
        move |source| Self::Io { doing, source }
    }
}

/// How to run a private server.
#[derive(Debug, Clone)]
pub struct Options {
    /// Where data and log live, kept and reused; `None` is a temporary directory, removed at the end.
    pub directory: Option<PathBuf>,
    /// Whether commits reach the disk. `false` is for tests: a crash of the machine loses the data,
    /// a crash of the server does not.
    pub durable: bool,
    /// Connections that the server allows.
    pub max_connections: u16,
    /// Further server settings, name and value; they win over ours.
    pub settings: Vec<(String, String)>,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            directory: None,
            durable: true,
            max_connections: 100,
            settings: Vec::new(),
        }
    }
}

/// A running private server; stopped when dropped.
#[derive(Debug)]
pub struct Embedded {
    // The order of the fields is the order of their end: server, watchdog, directory.
    postgres: Postgres,
    _watchdog: Watchdog,
    home: Home,
}

/// The directory with `data/` and `server.log`.
#[derive(Debug)]
enum Home {
    Kept(PathBuf),
    Temporary(TempDir),
}

impl Home {
    fn path(&self) -> &Path {
        match self {
            Self::Kept(path) => path,
            Self::Temporary(directory) => directory.path(),
        }
    }
}

impl Embedded {
    /// Finds the binaries, initialises the directory when it is new, starts the server on a free loopback
    /// port and waits until it accepts connections. One to two seconds for a new directory.
    ///
    /// # Errors
    /// [`Error`]: no binaries, a directory that can't be used, or a server that does not come up, with the
    /// end of its log.
    pub async fn start(options: Options) -> Result<Self, Error> {
        let binaries = binaries::find()?;
        let account = account::for_server()?;
        let home = make_home(options.directory.as_deref(), account.as_ref())?;
        process::wait_until_free(home.path()).await?;
        let watchdog = Watchdog::start(home.path(), matches!(home, Home::Temporary(_)))?;
        process::initialise(&binaries, home.path(), account.as_ref(), options.durable).await?;
        let postgres = Postgres::new(&binaries, home.path(), account, &options);
        let mut server = Self {
            postgres,
            _watchdog: watchdog,
            home,
        };
        server.start_on_free_port().await?;
        tracing::debug!(port = server.postgres.port(), "private PostgreSQL is up");
        Ok(server)
    }

    async fn start_on_free_port(&mut self) -> Result<(), Error> {
        for _ in 1..PORT_TRIES {
            self.postgres.choose_port()?;
            match self.postgres.start(START_DEADLINE).await {
                Err(Error::Ended { .. }) if self.postgres.port_is_taken() => {}
                decided => return decided,
            }
        }
        self.postgres.choose_port()?;
        self.postgres.start(START_DEADLINE).await
    }

    /// The server's URL, as its superuser, naming the database `postgres`.
    #[must_use]
    pub fn url(&self) -> String {
        self.postgres.url()
    }

    /// The loopback port; it stays the same over [`Embedded::kill`] and [`Embedded::restart`].
    #[must_use]
    pub fn port(&self) -> u16 {
        self.postgres.port()
    }

    /// Where `data/` and `server.log` live.
    #[must_use]
    pub fn directory(&self) -> &Path {
        self.home.path()
    }

    /// The postmaster's process id while it runs.
    #[must_use]
    pub fn pid(&self) -> Option<u32> {
        self.postgres.pid()
    }

    /// Stops the server in an orderly way: sessions are ended, data is flushed. A server that does not end
    /// within ten seconds is stopped at once, which its next start repairs.
    ///
    /// # Errors
    /// [`Error::Io`] when the process can't be waited for.
    pub async fn stop(mut self) -> Result<(), Error> {
        self.postgres.stop().await
    }

    /// Ends the server as a crash would: no flush, no farewell to its clients.
    ///
    /// # Errors
    /// [`Error::Io`] when the process can't be waited for.
    pub async fn kill(&mut self) -> Result<(), Error> {
        self.postgres.quit().await
    }

    /// Starts the killed server again, on the same port and data.
    ///
    /// # Errors
    /// As [`Embedded::start`].
    pub async fn restart(&mut self) -> Result<(), Error> {
        self.postgres.start(START_DEADLINE).await
    }

    /// A crash and the start after it.
    ///
    /// # Errors
    /// As [`Embedded::start`].
    pub async fn kill_and_restart(&mut self) -> Result<(), Error> {
        self.kill().await?;
        self.restart().await
    }
}

fn make_home(directory: Option<&Path>, account: Option<&Account>) -> Result<Home, Error> {
    let home = match directory {
        Some(path) => {
            std::fs::create_dir_all(path)
                .map_err(Error::io(format!("creating {}", path.display())))?;
            // The server's working directory is elsewhere, so a relative path would lead it astray.
            let path = path
                .canonicalize()
                .map_err(Error::io(format!("opening {}", path.display())))?;
            Home::Kept(path)
        }
        None => Home::Temporary(
            tempfile::Builder::new()
                .prefix("fencepost-postgres-")
                .tempdir()
                .map_err(Error::io("creating a temporary directory"))?,
        ),
    };
    if let Some(account) = account {
        account.own(home.path())?;
    }
    Ok(home)
}
