//! Opens one session at one dispatcher, at whichever of its addresses admits this worker.

use std::net::SocketAddr;
use std::time::Duration;

use tokio::sync::mpsc;
use tokio::time::timeout;
use tokio_stream::wrappers::ReceiverStream;
use tonic::transport::{ClientTlsConfig, Endpoint, Uri};
use tonic::{Code, Status, Streaming};

use super::Error;
use super::outbox::{Outbox, STREAM_DEPTH};
use crate::proto::worker::worker_service_client::WorkerServiceClient;
use crate::proto::worker::{DispatcherFrame, Register, Welcome, dispatcher_frame, worker_frame};

/// For the TCP handshake. Short, as the reconnect grace of running tasks is 2 s.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);

/// For one name. What a resolver needs to ask a second server after the first was silent.
const RESOLVE_TIMEOUT: Duration = Duration::from_secs(10);

/// From the first packet to Welcome, which may wait for the dispatcher's database.
const WELCOME_TIMEOUT: Duration = Duration::from_secs(10);

/// HTTP/2 windows: a full batch of tasks in flight at the default frame limit of most peers,
/// where the standard 64 KiB would cost a round trip per 64 KiB.
const WINDOW_BYTES: u32 = 4 << 20;

/// An admitted session.
pub(super) struct Connection {
    pub(super) peer: SocketAddr,
    pub(super) welcome: Welcome,
    pub(super) inbound: Streaming<DispatcherFrame>,
    pub(super) outbox: Outbox,
}

/// One entry of [`super::Options::connect`]: a name that may stand for many replicas.
#[derive(Clone)]
pub(super) struct Dispatcher {
    uri: Uri,
    host: String,
    port: u16,
}

impl Dispatcher {
    /// Fails, before anything is opened, on what can never connect; no system roots are that too.
    pub(super) fn new(url: &str) -> Result<Self, Error> {
        let bad = |source| Error::Address {
            url: url.to_owned(),
            source,
        };
        let endpoint = Endpoint::from_shared(url.to_owned()).map_err(bad)?;
        let uri = endpoint.uri().clone();
        let default_port = match uri.scheme_str() {
            Some("http") => 80,
            Some("https") => 443,
            _ => {
                return Err(Error::Options(
                    "a dispatcher address starts with http:// or https://",
                ));
            }
        };
        let host = uri.host().unwrap_or_default();
        // An IPv6 address stands in brackets in a URL, and without them everywhere else.
        let host = host.trim_matches(['[', ']']).to_owned();
        let port = uri.port_u16().unwrap_or(default_port);
        let dispatcher = Self { uri, host, port };
        let _usable = dispatcher.endpoint(([0; 4], port).into()).map_err(bad)?;
        Ok(dispatcher)
    }

    pub(super) fn uri(&self) -> &Uri {
        &self.uri
    }

    /// Tries every address of the name once, `last` after all others; the answer of the last one
    /// tried stands for all, except that a final denial ends the round.
    pub(super) async fn open(
        self,
        register: Register,
        max_frame_bytes: usize,
        last: Option<SocketAddr>,
    ) -> Result<Connection, Status> {
        let mut failed = Status::unavailable("the name has no address");
        for address in self.addresses(last).await? {
            let admitted = self.register(address, register.clone(), max_frame_bytes);
            let admitted = timeout(WELCOME_TIMEOUT, admitted)
                .await
                .unwrap_or_else(|_| Err(Status::deadline_exceeded("no Welcome in time")));
            match admitted {
                Err(status) if !is_final(&status) => {
                    tracing::debug!(dispatcher = %self.uri, %address, reason = describe(&status), "not admitted");
                    failed = status;
                }
                ended => return ended,
            }
        }
        Err(failed)
    }

    async fn addresses(&self, last: Option<SocketAddr>) -> Result<Vec<SocketAddr>, Status> {
        let resolved = tokio::net::lookup_host((self.host.as_str(), self.port));
        let unresolved = |why: &dyn std::fmt::Display| {
            Status::unavailable(format!("cannot resolve {}: {why}", self.host))
        };
        let addresses = timeout(RESOLVE_TIMEOUT, resolved)
            .await
            .map_err(|_| unresolved(&"no answer in time"))?
            .map_err(|error| unresolved(&error))?;
        Ok(in_order(addresses.collect(), last))
    }

    async fn register(
        &self,
        address: SocketAddr,
        register: Register,
        max_frame_bytes: usize,
    ) -> Result<Connection, Status> {
        let failed = |error: tonic::transport::Error| Status::from_error(Box::new(error));
        let (stream, frames) = mpsc::channel(STREAM_DEPTH);
        let mut outbox = Outbox::new(stream);
        outbox.push(worker_frame::Frame::Register(register));
        let channel = self.endpoint(address).map_err(failed)?.connect().await;
        let mut client = WorkerServiceClient::new(channel.map_err(failed)?)
            .max_decoding_message_size(max_frame_bytes)
            .max_encoding_message_size(max_frame_bytes);
        let stream = client.connect(ReceiverStream::new(frames)).await?;
        let mut inbound = stream.into_inner();
        match inbound.message().await?.and_then(|first| first.frame) {
            Some(dispatcher_frame::Frame::Welcome(welcome)) => Ok(Connection {
                peer: address,
                welcome,
                inbound,
                outbox,
            }),
            Some(_) => Err(Status::internal("the first frame is not Welcome")),
            None => Err(Status::unavailable("the stream ended before Welcome")),
        }
    }

    /// Connects to the address, and speaks to the name: in `:authority`, and in the certificate,
    /// which must come from a root that the system trusts.
    fn endpoint(&self, address: SocketAddr) -> Result<Endpoint, tonic::transport::Error> {
        let scheme = self.uri.scheme_str().unwrap_or("http");
        let endpoint = Endpoint::from_shared(format!("{scheme}://{address}"))?
            .origin(self.uri.clone())
            .connect_timeout(CONNECT_TIMEOUT)
            .initial_stream_window_size(WINDOW_BYTES)
            .initial_connection_window_size(WINDOW_BYTES)
            .tcp_nodelay(true);
        if scheme != "https" {
            return Ok(endpoint);
        }
        let tls = ClientTlsConfig::new().with_native_roots();
        endpoint.tls_config(tls.domain_name(self.host.clone()))
    }
}

/// A random order, so that workers spread over the replicas behind a name; but the family, IPv4 or
/// IPv6, that the resolver puts first comes first, and `last` last.
fn in_order(mut addresses: Vec<SocketAddr>, last: Option<SocketAddr>) -> Vec<SocketAddr> {
    let preferred = addresses.first().map(SocketAddr::is_ipv4);
    fastrand::shuffle(&mut addresses);
    addresses.sort_by_key(|address| {
        let other_family = Some(address.is_ipv4()) != preferred;
        (Some(*address) == last, other_family)
    });
    addresses
}

/// Whether no later attempt can be admitted.
fn is_final(status: &Status) -> bool {
    matches!(
        status.code(),
        Code::InvalidArgument | Code::Unauthenticated | Code::PermissionDenied
    )
}

/// Passes a status that a later attempt may not meet, and ends the worker on the others.
pub(super) fn denial(status: Status) -> Result<Status, Error> {
    if is_final(&status) {
        return Err(Error::Denied {
            code: status.code(),
            message: status.message().to_owned(),
        });
    }
    Ok(status)
}

/// A status for the log, with the cause that tonic keeps apart ("transport error: refused").
pub(super) fn describe(status: &Status) -> String {
    let mut text = format!("{:?}: {}", status.code(), status.message());
    let mut source = std::error::Error::source(status);
    while let Some(cause) = source {
        text.push_str(": ");
        text.push_str(&cause.to_string());
        source = cause.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_address_that_was_left_comes_last_and_the_rest_in_any_order_of_its_family() {
        let parse = |text: &str| text.parse::<SocketAddr>().unwrap();
        let v4: Vec<_> = (1..=4).map(|n| parse(&format!("10.0.0.{n}:7"))).collect();
        let v6 = parse("[fd00::1]:7");
        let all = [v4.clone(), vec![v6]].concat();
        let mut firsts = std::collections::HashSet::new();
        for _ in 0..200 {
            let ordered = in_order(all.clone(), Some(v4[1]));
            assert_eq!(ordered[3..], [v6, v4[1]]);
            firsts.insert(ordered[0]);
        }
        assert_eq!(firsts, [v4[0], v4[2], v4[3]].into());
        assert_eq!(in_order(vec![v6], Some(v6)), [v6]);
    }

    #[test]
    fn an_https_endpoint_takes_the_roots_of_the_system() {
        let dispatcher = Dispatcher::new("https://dispatcher.example").unwrap();
        assert_eq!(dispatcher.port, 443);
        dispatcher
            .endpoint("127.0.0.1:443".parse().unwrap())
            .unwrap();
        let literal = Dispatcher::new("http://[::1]:7433").unwrap();
        assert_eq!((literal.host.as_str(), literal.port), ("::1", 7433));
        assert!(matches!(
            Dispatcher::new("localhost:7433"),
            Err(Error::Options(_))
        ));
    }
}
