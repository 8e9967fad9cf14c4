//! The server's processes: `initdb` once, then `postgres`, from start to exit.

use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::net::{Ipv4Addr, TcpListener};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use super::account::Account;
use super::binaries::Binaries;
use super::{Error, Options};

/// Between two looks at a process or port; short beside the second that a start takes.
const LOOK: Duration = Duration::from_millis(20);

/// For an orderly stop; the shutdown checkpoint is most of it.
const STOP_DEADLINE: Duration = Duration::from_secs(10);

/// For an immediate stop: PostgreSQL itself kills its children after five seconds.
const QUIT_DEADLINE: Duration = Duration::from_secs(7);

/// How much of the log's end an error quotes, in bytes.
const LOG_TAIL: u64 = 2048;

/// One server's command line and, while it runs, its process.
#[derive(Debug)]
pub(super) struct Postgres {
    program: PathBuf,
    arguments: Vec<String>,
    home: PathBuf,
    account: Option<Account>,
    port: u16,
    child: Option<Child>,
}

impl Postgres {
    pub(super) fn new(
        binaries: &Binaries,
        home: &Path,
        account: Option<Account>,
        options: &Options,
    ) -> Self {
        let mut settings = vec![
            (
                "listen_addresses".to_owned(),
                Ipv4Addr::LOCALHOST.to_string(),
            ),
            ("unix_socket_directories".to_owned(), String::new()),
            (
                "max_connections".to_owned(),
                options.max_connections.to_string(),
            ),
            ("logging_collector".to_owned(), "off".to_owned()),
            ("log_destination".to_owned(), "stderr".to_owned()),
        ];
        if !options.durable {
            // synchronous_commit stays on: off, a killed server would lose its last commits, and a
            // commit without fsync is only a write to the system's cache.
            settings.extend(
                ["fsync", "full_page_writes"].map(|name| (name.to_owned(), "off".to_owned())),
            );
        }
        settings.extend(options.settings.iter().cloned());
        let arguments = settings
            .into_iter()
            .flat_map(|(name, value)| ["-c".to_owned(), format!("{name}={value}")]);
        Self {
            program: binaries.postgres(),
            arguments: arguments.collect(),
            home: home.to_owned(),
            account,
            port: 0,
            child: None,
        }
    }

    pub(super) fn port(&self) -> u16 {
        self.port
    }

    pub(super) fn pid(&self) -> Option<u32> {
        self.child.as_ref().map(Child::id)
    }

    pub(super) fn url(&self) -> String {
        format!(
            "postgres://postgres@{}:{}/postgres",
            Ipv4Addr::LOCALHOST,
            self.port
        )
    }

    /// Takes a loopback port that is free at this moment.
    pub(super) fn choose_port(&mut self) -> Result<(), Error> {
        self.port = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))
            .and_then(|listener| listener.local_addr())
            .map_err(Error::io("choosing a loopback port"))?
            .port();
        Ok(())
    }

    pub(super) fn port_is_taken(&self) -> bool {
        TcpListener::bind((Ipv4Addr::LOCALHOST, self.port)).is_err()
    }

    /// Starts the server and waits until it accepts connections.
    pub(super) async fn start(&mut self, deadline: Duration) -> Result<(), Error> {
        let log = self.log_file()?;
        let errors = log
            .try_clone()
            .map_err(Error::io("opening the server's log"))?;
        let mut command = Command::new(&self.program);
        command
            .arg("-D")
            .arg(self.home.join("data"))
            .args(["-p", &self.port.to_string()])
            .args(&self.arguments)
            .current_dir("/")
            .stdin(Stdio::null())
            .stdout(log)
            .stderr(errors)
            .process_group(0);
        if let Some(account) = self.account {
            command.uid(account.uid).gid(account.gid);
        }
        self.child = Some(
            command
                .spawn()
                .map_err(Error::io(format!("starting {}", self.program.display())))?,
        );
        let started = self.wait_until_ready(deadline).await;
        if started.is_err() {
            self.quit().await?;
        }
        started
    }

    async fn wait_until_ready(&mut self, deadline: Duration) -> Result<(), Error> {
        let end = Instant::now() + deadline;
        loop {
            let connected = accepts_connections(&self.url()).await;
            // Looked at after the connection, which another server on this port could have taken.
            if let Some(status) = self.exited()? {
                return Err(Error::Ended {
                    status: status.to_string(),
                    log: self.log_tail(),
                });
            }
            if connected {
                return Ok(());
            }
            if Instant::now() > end {
                return Err(Error::Deadline {
                    deadline,
                    log: self.log_tail(),
                });
            }
            tokio::time::sleep(LOOK).await;
        }
    }

    /// Orderly: sessions are ended, data is flushed.
    pub(super) async fn stop(&mut self) -> Result<(), Error> {
        self.signal(Signal::SIGINT);
        if self.wait_for_exit(STOP_DEADLINE).await? {
            Ok(())
        } else {
            self.quit().await
        }
    }

    /// At once: the next start recovers from the log.
    pub(super) async fn quit(&mut self) -> Result<(), Error> {
        self.signal(Signal::SIGQUIT);
        if !self.wait_for_exit(QUIT_DEADLINE).await? {
            self.signal(Signal::SIGKILL);
            self.wait_for_exit(QUIT_DEADLINE).await?;
        }
        Ok(())
    }

    async fn wait_for_exit(&mut self, deadline: Duration) -> Result<bool, Error> {
        let end = Instant::now() + deadline;
        while self.child.is_some() && self.exited()?.is_none() {
            if Instant::now() > end {
                return Ok(false);
            }
            tokio::time::sleep(LOOK).await;
        }
        Ok(true)
    }

    /// Its exit status once it has ended; forgets the process then, so that no signal meets a reused pid.
    fn exited(&mut self) -> Result<Option<ExitStatus>, Error> {
        let Some(child) = self.child.as_mut() else {
            return Ok(None);
        };
        let status = child
            .try_wait()
            .map_err(Error::io("waiting for PostgreSQL"))?;
        if status.is_some() {
            self.child = None;
        }
        Ok(status)
    }

    fn signal(&self, signal: Signal) {
        if let Some(pid) = self.pid().and_then(|pid| i32::try_from(pid).ok()) {
            // The child is not reaped yet, so the pid is its own; a process that has ended takes no signal.
            kill(Pid::from_raw(pid), signal).ok();
        }
    }

    fn log_path(&self) -> PathBuf {
        self.home.join("server.log")
    }

    fn log_file(&self) -> Result<File, Error> {
        let path = self.log_path();
        File::options()
            .create(true)
            .append(true)
            .open(&path)
            .map_err(Error::io(format!("opening {}", path.display())))
    }

    fn log_tail(&self) -> String {
        let read = || -> io::Result<Vec<u8>> {
            let mut file = File::open(self.log_path())?;
            let length = file.metadata()?.len();
            file.seek(SeekFrom::Start(length.saturating_sub(LOG_TAIL)))?;
            let mut bytes = Vec::new();
            file.read_to_end(&mut bytes)?;
            Ok(bytes)
        };
        read().map_or_else(
            |error| format!("(unreadable: {error})"),
            |bytes| String::from_utf8_lossy(&bytes).trim().to_owned(),
        )
    }
}

impl Drop for Postgres {
    #[expect(
        clippy::disallowed_methods,
        reason = "a drop can't await, and the directory must not go before the server"
    )]
    fn drop(&mut self) {
        for signal in [Signal::SIGQUIT, Signal::SIGKILL] {
            self.signal(signal);
            let end = Instant::now() + QUIT_DEADLINE;
            while Instant::now() < end {
                if self.child.is_none() || !matches!(self.exited(), Ok(None)) {
                    return;
                }
                std::thread::sleep(LOOK);
            }
        }
    }
}

async fn accepts_connections(url: &str) -> bool {
    let connecting = tokio_postgres::connect(url, tokio_postgres::NoTls);
    matches!(
        tokio::time::timeout(Duration::from_secs(1), connecting).await,
        Ok(Ok(_))
    )
}

/// Makes a new cluster in `home/data`, unless there is one.
pub(super) async fn initialise(
    binaries: &Binaries,
    home: &Path,
    account: Option<&Account>,
    durable: bool,
) -> Result<(), Error> {
    let data = home.join("data");
    if data.exists() {
        return Ok(());
    }
    // Renamed when whole, so that an initdb that was killed half-way is never taken for a cluster.
    let making = home.join("data.new");
    if making.exists() {
        std::fs::remove_dir_all(&making)
            .map_err(Error::io(format!("removing {}", making.display())))?;
    }
    let mut command = tokio::process::Command::new(binaries.initdb());
    command
        .arg("-D")
        .arg(&making)
        .args([
            "--username=postgres",
            "--auth=trust",
            "--encoding=UTF8",
            "--locale=C",
            "--no-instructions",
        ])
        .current_dir("/")
        .stdin(Stdio::null())
        .kill_on_drop(true);
    if !durable {
        command.arg("--no-sync");
    }
    if let Some(account) = account {
        command.uid(account.uid).gid(account.gid);
    }
    let output = command.output().await.map_err(Error::io(format!(
        "starting {}",
        binaries.initdb().display()
    )))?;
    if !output.status.success() {
        return Err(Error::Initdb(
            String::from_utf8_lossy(&output.stderr).trim().to_owned(),
        ));
    }
    std::fs::rename(&making, &data).map_err(Error::io(format!("renaming {}", making.display())))
}

/// Waits for the server of a process that was killed: its watchdog is stopping it.
pub(super) async fn wait_until_free(home: &Path) -> Result<(), Error> {
    let end = Instant::now() + STOP_DEADLINE;
    while let Some(pid) = running_postmaster(home) {
        if Instant::now() > end {
            return Err(Error::InUse {
                directory: home.to_owned(),
                pid,
            });
        }
        tokio::time::sleep(LOOK).await;
    }
    Ok(())
}

fn running_postmaster(home: &Path) -> Option<i32> {
    let file = std::fs::read_to_string(home.join("data/postmaster.pid")).ok()?;
    let pid = file.lines().next()?.trim().parse().ok()?;
    // Signal none only asks whether the process exists.
    kill(Pid::from_raw(pid), None).ok().map(|()| pid)
}
