use std::net::SocketAddr;
use std::process::{ExitStatus, Stdio};
use std::sync::Arc;
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use parking_lot::Mutex;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::TcpStream;
use tokio::process::{Child, Command};
use tokio::task::JoinSet;

use super::eventually;

/// A replica is up, or ends, within this time even on a busy machine.
const STEP: Duration = Duration::from_secs(30);

/// A real `fencepost serve` in a process of its own. It is killed when dropped.
#[derive(Debug)]
pub struct Replica {
    child: Child,
    grpc: SocketAddr,
    http: SocketAddr,
    log: Arc<Mutex<Vec<String>>>,
    _readers: JoinSet<()>,
}

impl Replica {
    /// Starts a replica on free ports and waits until it is ready. `env` are pairs of a configuration key such
    /// as `WAKE__POLL` and its value.
    pub async fn start(database: &str, env: &[(&str, &str)]) -> Self {
        let replica = Self::spawn(database, env).await;
        replica.ready().await;
        replica
    }

    /// Starts a replica and waits for its ports only.
    pub async fn spawn(database: &str, env: &[(&str, &str)]) -> Self {
        let any = SocketAddr::from(([127, 0, 0, 1], 0));
        Self::spawn_at(database, env, any).await
    }

    /// As [`Replica::spawn`], with the workers' port at the address of an earlier replica.
    pub async fn spawn_at(database: &str, env: &[(&str, &str)], grpc: SocketAddr) -> Self {
        let mut child = Command::new(env!("CARGO_BIN_EXE_fencepost"))
            .args(["serve", "--announce", "--http", "127.0.0.1:0"])
            .args(["--grpc", &grpc.to_string(), "--database-url", database])
            .envs(
                env.iter()
                    .map(|(key, value)| (format!("FENCEPOST_{key}"), value)),
            )
            .env_remove("DATABASE_URL")
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .unwrap();
        let log = Arc::new(Mutex::new(Vec::new()));
        let mut readers = JoinSet::new();
        let mut lines = BufReader::new(child.stderr.take().unwrap()).lines();
        readers.spawn({
            let log = Arc::clone(&log);
            async move {
                while let Ok(Some(line)) = lines.next_line().await {
                    log.lock().push(line);
                }
            }
        });
        let mut announced = BufReader::new(child.stdout.take().unwrap()).lines();
        let line = tokio::time::timeout(STEP, announced.next_line())
            .await
            .unwrap()
            .unwrap();
        let line = line.unwrap_or_else(|| panic!("no announcement; the log: {:#?}", log.lock()));
        let addresses: serde_json::Value = serde_json::from_str(&line).unwrap();
        let address = |door: &str| addresses[door].as_str().unwrap().parse().unwrap();
        Self {
            child,
            grpc: address("grpc"),
            http: address("http"),
            log,
            _readers: readers,
        }
    }

    /// Where workers connect.
    pub fn grpc(&self) -> SocketAddr {
        self.grpc
    }

    /// Where HTTP is served, the WebSocket for workers included.
    pub fn http(&self) -> SocketAddr {
        self.http
    }

    /// Where workers connect, as a URL.
    pub fn url(&self) -> String {
        format!("http://{}", self.grpc)
    }

    /// Waits until `/readyz` is green.
    pub async fn ready(&self) {
        self.readyz_turns(200).await;
    }

    /// Waits until `/readyz` answers with this status.
    pub async fn readyz_turns(&self, status: u16) {
        eventually(STEP, async || {
            (ask(self.http, "GET", "/readyz").await == Some(status)).then_some(())
        })
        .await;
    }

    /// The status that a GET is answered with.
    pub async fn get(&self, path: &str) -> Option<u16> {
        ask(self.http, "GET", path).await
    }

    /// The status that a POST without a body is answered with.
    pub async fn post(&self, path: &str) -> Option<u16> {
        ask(self.http, "POST", path).await
    }

    pub fn signal(&self, signal: Signal) {
        let pid = self.child.id().expect("the replica has ended");
        kill(Pid::from_raw(pid.try_into().unwrap()), signal).unwrap();
    }

    /// SIGKILL, and waits for the end.
    pub async fn kill(&mut self) {
        self.child.kill().await.unwrap();
    }

    /// SIGTERM, and waits for the end.
    pub async fn terminate(&mut self) -> ExitStatus {
        self.signal(Signal::SIGTERM);
        self.ended().await
    }

    /// Waits until the process has ended by itself.
    pub async fn ended(&mut self) -> ExitStatus {
        let ended = tokio::time::timeout(STEP, self.child.wait()).await;
        ended.expect("the replica does not end").unwrap()
    }

    /// Whether the process still runs.
    pub fn is_up(&mut self) -> bool {
        self.child.try_wait().unwrap().is_none()
    }

    /// Lines of the log that contain `text`.
    pub fn said(&self, text: &str) -> usize {
        self.log
            .lock()
            .iter()
            .filter(|line| line.contains(text))
            .count()
    }

    /// All of the log, for the message of a test that fails.
    pub fn log(&self) -> String {
        self.log.lock().join("\n")
    }
}

async fn ask(address: SocketAddr, method: &str, path: &str) -> Option<u16> {
    let asked = async {
        let mut stream = TcpStream::connect(address).await.ok()?;
        let request = format!(
            "{method} {path} HTTP/1.1\r\nHost: test\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
        );
        stream.write_all(request.as_bytes()).await.ok()?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.ok()?;
        answer.split(' ').nth(1)?.parse().ok()
    };
    tokio::time::timeout(Duration::from_secs(2), asked)
        .await
        .ok()?
}
