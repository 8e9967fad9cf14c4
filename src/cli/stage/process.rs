//! Replicas and workers of a demo or a benchmark: separate processes of this very program.
//!
//! Each leads a process group of its own, so that Ctrl-C in the terminal reaches us alone, and each ends
//! when its stdin does, so that none outlives us when we are killed. Their logs go to files.

use std::io::{self, Read as _, Seek as _, SeekFrom};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context as _, bail};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use tokio::io::{AsyncBufReadExt as _, BufReader};
use tokio::process::{Child, Command};
use tokio::time::{Instant, timeout, timeout_at};

/// For a replica to open its ports; they open before it asks the database for anything.
const START_DEADLINE: Duration = Duration::from_secs(20);

/// For all of them to drain: nothing is left to do when it is asked.
const STOP_DEADLINE: Duration = Duration::from_secs(8);

/// How much of a log's end is shown when something goes wrong, in bytes.
const LOG_TAIL: u64 = 1500;

/// What a process is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::cli) enum Role {
    Replica,
    Worker,
}

/// Whether a process is there.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(in crate::cli) enum Life {
    Up,
    /// Killed by us, so many seconds after our start.
    Killed(f64),
    /// Stopped by us.
    Stopped,
}

pub(in crate::cli) struct Process {
    pub(in crate::cli) name: String,
    pub(in crate::cli) role: Role,
    pub(in crate::cli) life: Life,
    pub(in crate::cli) pid: u32,
    child: Child,
    log: PathBuf,
}

impl Process {
    /// Starts this program with the arguments; its log is `directory/name.log`.
    pub(in crate::cli) fn spawn(
        directory: &Path,
        name: &str,
        role: Role,
        arguments: &[&str],
        settings: &[(String, String)],
    ) -> anyhow::Result<Self> {
        let log = directory.join(format!("{name}.log"));
        let file = std::fs::File::create(&log).context("making a log file")?;
        let program = std::env::current_exe().context("finding this program")?;
        let mut command = Command::new(program);
        command
            .args(arguments)
            // Where there is no configuration file.
            .current_dir(directory)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(file)
            .process_group(0)
            .kill_on_drop(true);
        // Neither do settings that are meant for somebody else's replicas reach ours.
        for (variable, _) in std::env::vars_os() {
            if is_setting(&variable.to_string_lossy()) {
                command.env_remove(variable);
            }
        }
        let child = command
            .envs(settings.iter().cloned())
            .spawn()
            .with_context(|| format!("starting {name}"))?;
        Ok(Self {
            name: name.to_owned(),
            role,
            life: Life::Up,
            pid: child.id().context("it ended at once")?,
            child,
            log,
        })
    }

    /// The gRPC address that a replica announces once its ports are open.
    pub(in crate::cli) async fn address(&mut self) -> anyhow::Result<String> {
        let stdout = self.child.stdout.take().context("its stdout is taken")?;
        let mut line = String::new();
        let mut reader = BufReader::new(stdout);
        let read = timeout(START_DEADLINE, reader.read_line(&mut line)).await;
        let announced = read
            .ok()
            .and_then(Result::ok)
            .and_then(|_| serde_json::from_str::<serde_json::Value>(&line).ok());
        let address = announced
            .as_ref()
            .and_then(|line| line.get("grpc")?.as_str());
        match address {
            Some(address) => Ok(address.to_owned()),
            None => bail!("{} did not open its ports; {}", self.name, self.log_tail()),
        }
    }

    /// Fails when it has ended by itself.
    pub(in crate::cli) fn check(&mut self) -> anyhow::Result<()> {
        if self.life == Life::Up
            && let Some(status) = self.child.try_wait().context("looking at a process")?
        {
            bail!(
                "{} ended by itself ({status}); {}",
                self.name,
                self.log_tail()
            );
        }
        Ok(())
    }

    /// SIGKILL, and nothing of it is left when this returns.
    pub(in crate::cli) async fn kill(&mut self, at: f64) -> anyhow::Result<()> {
        self.signal(Signal::SIGKILL);
        self.child.wait().await.context("waiting for its end")?;
        self.life = Life::Killed(at);
        Ok(())
    }

    /// SIGTERM, and SIGKILL at the deadline.
    async fn stop(&mut self, end: Instant) {
        self.signal(Signal::SIGTERM);
        if timeout_at(end, self.child.wait()).await.is_err() {
            tracing::debug!(name = self.name, "did not stop in time");
            self.child.kill().await.ok();
        }
        tracing::debug!(name = self.name, "stopped");
        self.life = Life::Stopped;
    }

    fn signal(&self, signal: Signal) {
        // No id: it has been waited for, and its number may be somebody else's.
        let pid = self.child.id().and_then(|pid| i32::try_from(pid).ok());
        if let Some(pid) = pid {
            kill(Pid::from_raw(pid), signal).ok();
        }
    }

    /// All of its log.
    pub(in crate::cli) fn log(&self) -> anyhow::Result<String> {
        let bytes = std::fs::read(&self.log).context("reading a log")?;
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    }

    /// The end of its log, for a report of what went wrong.
    pub(in crate::cli) fn log_tail(&self) -> String {
        let read = || -> io::Result<String> {
            let mut file = std::fs::File::open(&self.log)?;
            let length = file.metadata()?.len();
            file.seek(SeekFrom::Start(length.saturating_sub(LOG_TAIL)))?;
            let mut bytes = Vec::new();
            file.read_to_end(&mut bytes)?;
            Ok(String::from_utf8_lossy(&bytes).trim().to_owned())
        };
        match read() {
            Ok(text) if text.is_empty() => format!("the log of {} is empty", self.name),
            Ok(text) => format!("the log of {} ends with:\n{text}", self.name),
            Err(error) => format!("the log of {} can't be read: {error}", self.name),
        }
    }
}

/// Stops all processes of a role that are up, at the same time.
pub(in crate::cli) async fn stop_all(processes: &mut [Process], role: Role) {
    let end = Instant::now() + STOP_DEADLINE;
    let up = processes
        .iter_mut()
        .filter(|process| process.role == role && process.life == Life::Up);
    futures_util::future::join_all(up.map(|process| process.stop(end))).await;
}

/// Whether an environment variable configures a replica.
fn is_setting(variable: &str) -> bool {
    variable == "DATABASE_URL"
        || variable == "FENCEPOST_LOG"
        || (variable.starts_with("FENCEPOST_") && variable.contains("__"))
}
