use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinSet;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mode {
    Forward,
    /// Neither side hears anything, and nobody is told.
    Hold,
    /// Both sides are reset.
    Cut,
}

/// Connections by the port that they have towards the upstream.
type Connections = Arc<Mutex<HashMap<u16, Connection>>>;

#[derive(Debug)]
struct Connection {
    mode: watch::Sender<Mode>,
    /// What the client said first. A server behind another proxy does not see our ports, so this tells whose it is.
    greeting: Arc<Mutex<Vec<u8>>>,
}

/// Bytes of a greeting that are kept: the start-up message of a PostgreSQL client fits.
const GREETING: usize = 1024;

/// A TCP proxy on loopback that can cut its connections, and hold them: nothing is forwarded and nothing is closed.
#[derive(Debug)]
pub struct TcpProxy {
    address: SocketAddr,
    connections: Connections,
    /// What a new connection starts with.
    fresh: watch::Sender<Mode>,
    _accepting: JoinSet<()>,
}

impl TcpProxy {
    pub async fn start(upstream: SocketAddr) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let connections = Connections::default();
        let fresh = watch::Sender::new(Mode::Forward);
        let mut accepting = JoinSet::new();
        let (known, mode) = (Arc::clone(&connections), fresh.subscribe());
        accepting.spawn(async move {
            let mut forwarding = JoinSet::new();
            while let Ok((client, _)) = listener.accept().await {
                let (known, mode) = (Arc::clone(&known), *mode.borrow());
                forwarding.spawn(async move { serve(client, upstream, &known, mode).await });
            }
        });
        Self {
            address,
            connections,
            fresh,
            _accepting: accepting,
        }
    }

    /// In front of the server of a database URL: answers the proxy and the URL that leads through it.
    pub async fn before(url: &str) -> (Self, String) {
        let from = url
            .rfind('@')
            .map_or_else(|| url.find("://").unwrap() + 3, |at| at + 1);
        let to = url[from..].find('/').map_or(url.len(), |at| from + at);
        let upstream = tokio::net::lookup_host(&url[from..to])
            .await
            .unwrap()
            .next()
            .unwrap();
        let proxy = Self::start(upstream).await;
        let through = format!("{}{}{}", &url[..from], proxy.address, &url[to..]);
        (proxy, through)
    }

    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Holds all connections, and those that come.
    pub fn hold(&self) {
        self.fresh.send_replace(Mode::Hold);
        self.set_all(Mode::Hold);
    }

    /// Holds the connection whose client said this when it began.
    pub fn hold_one(&self, said: &str) {
        let connections = self.connections.lock();
        let wanted = said.as_bytes();
        let says = |connection: &&Connection| {
            let greeting = connection.greeting.lock();
            greeting.windows(wanted.len()).any(|part| part == wanted)
        };
        let found = connections.values().find(says);
        found
            .expect("no such connection")
            .mode
            .send_replace(Mode::Hold);
    }

    /// Forwards again, what was held back included.
    pub fn release(&self) {
        self.fresh.send_replace(Mode::Forward);
        self.set_all(Mode::Forward);
    }

    /// Resets all connections; new ones are forwarded.
    pub fn cut(&self) {
        self.set_all(Mode::Cut);
    }

    fn set_all(&self, mode: Mode) {
        for connection in self.connections.lock().values() {
            connection.mode.send_replace(mode);
        }
    }
}

async fn serve(client: TcpStream, upstream: SocketAddr, known: &Connections, mode: Mode) {
    let Ok(server) = TcpStream::connect(upstream).await else {
        return;
    };
    let port = server.local_addr().unwrap().port();
    let mode = watch::Sender::new(mode);
    let (up, down) = (mode.subscribe(), mode.subscribe());
    let greeting = Arc::default();
    let connection = Connection {
        mode,
        greeting: Arc::clone(&greeting),
    };
    known.lock().insert(port, connection);
    for stream in [&client, &server] {
        stream.set_nodelay(true).ok();
        // Dropped, they are reset: a proxy that ends by choice ends by a cut.
        stream.set_zero_linger().ok();
    }
    let ((from_client, to_client), (from_server, to_server)) =
        (client.into_split(), server.into_split());
    tokio::select! {
        () = forward(from_client, to_server, up, Some(greeting)) => {}
        () = forward(from_server, to_client, down, None) => {}
    }
    known.lock().remove(&port);
}

/// Forwards one way until that way ends or is cut.
async fn forward(
    mut from: OwnedReadHalf,
    mut to: OwnedWriteHalf,
    mut mode: watch::Receiver<Mode>,
    greeting: Option<Arc<Mutex<Vec<u8>>>>,
) {
    let mut buffer = vec![0; 64 << 10];
    loop {
        let now = *mode.borrow_and_update();
        let read = tokio::select! {
            read = from.read(&mut buffer), if now == Mode::Forward => read,
            changed = mode.changed() => if changed.is_ok() && *mode.borrow() != Mode::Cut {
                continue;
            } else {
                return;
            },
        };
        match read {
            Ok(0) | Err(_) => {
                // What was sent before the end still arrives.
                to.shutdown().await.ok();
                tokio::time::timeout(Duration::from_millis(100), mode.changed())
                    .await
                    .ok();
                return;
            }
            Ok(bytes) => {
                if let Some(greeting) = &greeting {
                    let mut greeting = greeting.lock();
                    let room = GREETING.saturating_sub(greeting.len());
                    greeting.extend_from_slice(&buffer[..bytes.min(room)]);
                }
                if to.write_all(&buffer[..bytes]).await.is_err() {
                    return;
                }
            }
        }
    }
}
