//! The client for what this program asks of others over HTTP: owners' webhooks, a collector of spans.

use std::error::Error as _;
use std::sync::Arc;

use bytes::Bytes;
use http_body_util::Full;
use hyper_rustls::{HttpsConnector, HttpsConnectorBuilder};
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::client::legacy::{self, Client as LegacyClient};
use hyper_util::rt::TokioExecutor;
use rustls::crypto::ring;
use rustls::{ClientConfig, RootCertStore};

/// A client with a pool of connections. It follows no redirects.
pub type Client = LegacyClient<HttpsConnector<HttpConnector>, Full<Bytes>>;

/// A client. Over http, or over https with the authorities that this machine trusts; without any, https fails and says why.
pub fn client() -> Client {
    let mut http = HttpConnector::new();
    http.enforce_http(false);
    http.set_nodelay(true);
    let connector = HttpsConnectorBuilder::new()
        .with_tls_config(tls())
        .https_or_http()
        .enable_http1()
        .wrap_connector(http);
    LegacyClient::builder(TokioExecutor::new()).build(connector)
}

/// What went wrong, with its cause.
pub fn sentence(error: &legacy::Error) -> String {
    match error.source() {
        Some(cause) => format!("{error}: {cause}"),
        None => error.to_string(),
    }
}

fn tls() -> ClientConfig {
    let mut authorities = RootCertStore::empty();
    authorities.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
    let provider = Arc::new(ring::default_provider());
    let builder = ClientConfig::builder_with_provider(provider);
    let builder = builder.with_safe_default_protocol_versions();
    builder
        // The provider has all versions that are safe; the pair is fixed at build time.
        .unwrap_or_else(|_| ClientConfig::builder())
        .with_root_certificates(authorities)
        .with_no_client_auth()
}
