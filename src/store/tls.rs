//! TLS to the database, with rustls; libpq's meaning of `sslmode`.

use std::path::Path;
use std::sync::Arc;

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, ring, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{ClientConfig, DigitallySignedStruct, RootCertStore, SignatureScheme};
use tokio_postgres_rustls::MakeRustlsConnect;

use super::Error;

/// Whose certificate is accepted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Trust {
    /// `prefer` and `require`: encrypted, the server's identity is not checked.
    Anyone,
    /// `verify-full`: signed by a known authority, for this host name.
    Authorities,
}

/// The connector for one pool; unused when the URL says `sslmode=disable`.
pub(super) fn connector(trust: Trust, root: Option<&Path>) -> Result<MakeRustlsConnect, Error> {
    let provider = Arc::new(ring::default_provider());
    let builder = ClientConfig::builder_with_provider(Arc::clone(&provider))
        .with_safe_default_protocol_versions()
        .map_err(|error| Error::Settings(error.to_string()))?;
    let config = match trust {
        Trust::Anyone => builder
            .dangerous()
            .with_custom_certificate_verifier(Arc::new(AnyCertificate { provider }))
            .with_no_client_auth(),
        Trust::Authorities => builder
            .with_root_certificates(authorities(root)?)
            .with_no_client_auth(),
    };
    Ok(MakeRustlsConnect::new(config))
}

fn authorities(root: Option<&Path>) -> Result<RootCertStore, Error> {
    let mut store = RootCertStore::empty();
    match root {
        Some(path) => {
            let unreadable = |error: &dyn std::fmt::Display| {
                Error::Settings(format!("database.tls_root {}: {error}", path.display()))
            };
            for certificate in
                CertificateDer::pem_file_iter(path).map_err(|error| unreadable(&error))?
            {
                let certificate = certificate.map_err(|error| unreadable(&error))?;
                store.add(certificate).map_err(|error| unreadable(&error))?;
            }
        }
        None => {
            store.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
        }
    }
    if store.is_empty() {
        return Err(Error::Settings(
            "no certificate authority to verify the server with".into(),
        ));
    }
    Ok(store)
}

/// Takes any certificate, but only from who holds its key.
#[derive(Debug)]
struct AnyCertificate {
    provider: Arc<CryptoProvider>,
}

impl ServerCertVerifier for AnyCertificate {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let algorithms = &self.provider.signature_verification_algorithms;
        verify_tls12_signature(message, certificate, signature, algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let algorithms = &self.provider.signature_verification_algorithms;
        verify_tls13_signature(message, certificate, signature, algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider
            .signature_verification_algorithms
            .supported_schemes()
    }
}
