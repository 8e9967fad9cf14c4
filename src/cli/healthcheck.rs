//! `fencepost healthcheck`: for container images, which have no HTTP client.

use std::net::SocketAddr;
use std::time::Duration;

use anyhow::Context as _;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

/// A replica answers at once; orchestrators ask again anyway.
const DEADLINE: Duration = Duration::from_secs(3);

/// Which replica to ask.
#[derive(Debug, Clone, clap::Args)]
pub struct Args {
    /// Its HTTP address
    #[arg(long, value_name = "ADDR", default_value = "127.0.0.1:7434")]
    pub http: SocketAddr,
}

/// Answers 0 when `GET /readyz` is answered with 200.
///
/// # Errors
/// No answer, or another one.
pub async fn run(args: Args) -> anyhow::Result<u8> {
    let asked = tokio::time::timeout(DEADLINE, status(args.http)).await;
    let status = asked
        .with_context(|| format!("{} did not answer within {DEADLINE:?}", args.http))?
        .with_context(|| format!("{} did not answer", args.http))?;
    anyhow::ensure!(
        status.split(' ').nth(1) == Some("200"),
        "{} answered {status:?}",
        args.http
    );
    Ok(0)
}

/// The first line of the answer. HTTP/1.0 needs no more than a socket.
async fn status(address: SocketAddr) -> std::io::Result<String> {
    let mut socket = TcpStream::connect(address).await?;
    let request = format!("GET /readyz HTTP/1.0\r\nhost: {address}\r\n\r\n");
    socket.write_all(request.as_bytes()).await?;
    let mut answer = Vec::new();
    socket.take(4096).read_to_end(&mut answer).await?;
    let answer = String::from_utf8_lossy(&answer);
    Ok(answer.lines().next().unwrap_or_default().to_owned())
}
