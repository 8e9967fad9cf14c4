//! One task, one `sh -c` in a process group of its own.

use std::io::{self, Error, ErrorKind};
use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use bytes::Bytes;
use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;
use serde::de::IgnoredAny;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWriteExt as _};
use tokio::process::{Child, Command};

use crate::worker::{Failure, Success, Task};

/// `EX_TEMPFAIL` of sysexits.h: not now.
const EXIT_SNOOZE: i32 = 75;

/// `EX_DATAERR` of sysexits.h: this input can never work.
const EXIT_TERMINAL: i32 = 65;

const SNOOZE: Duration = Duration::from_secs(30);

/// From SIGTERM to SIGKILL; shorter than what the SDK leaves a cancelled handler.
const KILL_GRACE: Duration = Duration::from_secs(3);

/// The end of a whole process group is no event: it is looked for this often.
const KILL_CHECK: Duration = Duration::from_millis(20);

/// Of stderr only the end is kept, as that is where the reason stands.
const STDERR_TAIL: usize = 4096;

/// More stdout than any dispatcher takes as a result; reading stops here.
const MAX_STDOUT: u64 = 64 << 20;

/// Runs the command to its end, and to the end of everything that holds its stdout or stderr.
pub(super) async fn run(command: &str, task: &Task) -> Result<Success, Failure> {
    let mut child = command_for(command, task)
        .spawn()
        .map_err(|error| Failure::retryable("spawn", error.to_string()))?;
    let mut group = Group::of(&child);
    let ended = tokio::select! {
        ended = talk(&mut child, task.payload()) => Some(ended),
        () = task.cancelled().cancelled() => None,
    };
    let Some(ended) = ended else {
        group.stop(&mut child).await;
        return Err(Failure::Cancelled);
    };
    match ended {
        Ok(ended) => {
            group.leave();
            answer(ended)
        }
        Err(error) => {
            group.stop(&mut child).await;
            Err(broken(&error))
        }
    }
}

struct Ended {
    status: ExitStatus,
    stdout: Vec<u8>,
    stderr: String,
}

fn command_for(command: &str, task: &Task) -> Command {
    let mut sh = Command::new("sh");
    // Where programs of OpenTelemetry look for it. The worker's own is nothing to its tasks.
    match task.trace_context() {
        "" => sh.env_remove("TRACEPARENT"),
        context => sh.env("TRACEPARENT", context),
    };
    sh.arg("-c")
        .arg(command)
        .env("FENCEPOST_TASK_ID", task.id().to_string())
        .env("FENCEPOST_TOKEN", task.token())
        .env("FENCEPOST_ATTEMPT", task.attempt().to_string())
        .env("FENCEPOST_TYPE", task.task_type())
        .env("FENCEPOST_NAMESPACE", task.namespace())
        .env("FENCEPOST_QUEUE", task.queue())
        .env("FENCEPOST_FENCE", task.fence().to_string())
        .env("FENCEPOST_IDEMPOTENCY_KEY", task.idempotency_key())
        .env("FENCEPOST_CONTENT_TYPE", task.content_type())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .process_group(0)
        .kill_on_drop(true);
    sh
}

/// Feeds stdin and reads both outputs at once, so that no pipe can fill up and block the command.
async fn talk(child: &mut Child, payload: &Bytes) -> io::Result<Ended> {
    let (stdin, out, err) = (child.stdin.take(), child.stdout.take(), child.stderr.take());
    let feed = async {
        if let Some(mut stdin) = stdin {
            // A command that does not read its stdin closes it: no failure.
            stdin.write_all(payload).await.ok();
        }
        Ok(())
    };
    let stdout = async {
        let mut bytes = Vec::new();
        if let Some(out) = out {
            out.take(MAX_STDOUT + 1).read_to_end(&mut bytes).await?;
        }
        if bytes.len() as u64 > MAX_STDOUT {
            return Err(ErrorKind::FileTooLarge.into());
        }
        Ok(bytes)
    };
    let stderr = async {
        match err {
            Some(err) => tail(err).await,
            None => Ok(String::new()),
        }
    };
    let ((), stdout, stderr, status) = tokio::try_join!(feed, stdout, stderr, child.wait())?;
    Ok(Ended {
        status,
        stdout,
        stderr,
    })
}

fn broken(error: &Error) -> Failure {
    if error.kind() == ErrorKind::FileTooLarge {
        let message = format!("the command wrote more than {MAX_STDOUT} bytes");
        return Failure::terminal("result_too_large", message);
    }
    Failure::retryable("io", error.to_string())
}

async fn tail(mut pipe: impl AsyncRead + Unpin) -> io::Result<String> {
    let mut kept = Vec::new();
    let mut chunk = [0; STDERR_TAIL];
    loop {
        let count = pipe.read(&mut chunk).await?;
        if count == 0 {
            return Ok(String::from_utf8_lossy(&kept).trim_end().to_owned());
        }
        kept.extend(chunk.iter().take(count));
        let surplus = kept.len().saturating_sub(STDERR_TAIL);
        kept.drain(..surplus);
    }
}

fn answer(ended: Ended) -> Result<Success, Failure> {
    let said = |otherwise: String| match ended.stderr.as_str() {
        "" => otherwise,
        text => text.to_owned(),
    };
    match ended.status.code() {
        Some(0) => Ok(success(ended.stdout)),
        Some(EXIT_SNOOZE) => Err(Failure::Snooze { after: SNOOZE }),
        Some(EXIT_TERMINAL) => Err(Failure::terminal("exit_65", said("exit code 65".into()))),
        Some(code) => Err(Failure::retryable(
            format!("exit_{code}"),
            said(format!("exit code {code}")),
        )),
        None => Err(Failure::retryable("signal", said(ended.status.to_string()))),
    }
}

fn success(stdout: Vec<u8>) -> Success {
    if stdout.is_empty() {
        return Success::empty();
    }
    let content_type = match std::str::from_utf8(&stdout) {
        Ok(text) if serde_json::from_str::<IgnoredAny>(text).is_ok() => "application/json",
        // PostgreSQL's text has no NUL.
        Ok(text) if !text.contains('\0') => "text/plain",
        _ => "application/octet-stream",
    };
    Success::bytes(stdout, content_type)
}

/// The command's process group; killed when dropped, so that an aborted handler leaves nothing.
struct Group(Option<Pid>);

impl Group {
    fn of(child: &Child) -> Self {
        let leader = child.id().and_then(|id| i32::try_from(id).ok());
        Self(leader.map(Pid::from_raw))
    }

    /// False when the group is gone.
    fn signal(&self, signal: impl Into<Option<Signal>>) -> bool {
        self.0.is_some_and(|group| killpg(group, signal).is_ok())
    }

    /// SIGTERM, then SIGKILL to what is left after the grace.
    async fn stop(&mut self, child: &mut Child) {
        self.signal(Signal::SIGTERM);
        let gone = async {
            child.wait().await.ok();
            while self.signal(None) {
                tokio::time::sleep(KILL_CHECK).await;
            }
        };
        if tokio::time::timeout(KILL_GRACE, gone).await.is_err() {
            self.signal(Signal::SIGKILL);
            child.wait().await.ok();
        }
        self.leave();
    }

    /// Everything has ended: the group's number may soon be somebody else's.
    fn leave(&mut self) {
        self.0 = None;
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        self.signal(Signal::SIGKILL);
    }
}
