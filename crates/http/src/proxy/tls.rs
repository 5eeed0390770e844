//! TLS: what the proxy shows to its clients, and whom it believes to be the upstream.

use std::fmt;
use std::sync::Arc;

use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ClientConfig, RootCertStore, ServerConfig};
use semel_core::Failure;

/// What the proxy shows to clients that speak TLS.
///
/// ```
/// use semel_http::proxy::Identity;
///
/// let nothing = Identity::from_pem(b"", b"").unwrap_err();
/// assert_eq!(nothing.code(), "E-PROXY-CERTIFICATE");
/// ```
#[derive(Clone)]
pub struct Identity(pub(super) Arc<ServerConfig>);

impl Identity {
    /// A certificate with those that lead to its authority, and its private key, both as PEM.
    ///
    /// TLS 1.2 and 1.3, without early data; clients choose HTTP/2 or HTTP/1.1.
    ///
    /// # Errors
    /// `Misconfigured` if they cannot be read, or do not belong together.
    pub fn from_pem(certificates: &[u8], key: &[u8]) -> Result<Self, Failure> {
        let wrong = |why: &dyn fmt::Display| {
            let what = format!("the certificate and its key cannot be used: {why}");
            Failure::misconfigured("E-PROXY-CERTIFICATE", what)
                .with_fix("give a PEM file with the certificate first, and one with its key")
        };
        let chain: Vec<_> = CertificateDer::pem_slice_iter(certificates)
            .collect::<Result<_, _>>()
            .map_err(|error| wrong(&error))?;
        if chain.is_empty() {
            return Err(wrong(&"there is no certificate"));
        }
        let key = PrivateKeyDer::from_pem_slice(key).map_err(|error| wrong(&error))?;
        let mut config = ServerConfig::builder_with_provider(provider())
            .with_safe_default_protocol_versions()
            .map_err(|error| wrong(&error))?
            .with_no_client_auth()
            .with_single_cert(chain, key)
            .map_err(|error| wrong(&error))?;
        config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
        Ok(Self(Arc::new(config)))
    }
}

impl fmt::Debug for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Identity")
    }
}

/// Whom the operating system trusts.
pub(super) fn system() -> RootCertStore {
    let mut roots = RootCertStore::empty();
    roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
    roots
}

/// Those whose certificates these are, as PEM.
pub(super) fn authorities(pem: &[u8]) -> Result<RootCertStore, Failure> {
    let mut roots = RootCertStore::empty();
    let certificates: Vec<_> = CertificateDer::pem_slice_iter(pem)
        .collect::<Result<_, _>>()
        .map_err(|error| no_authorities(&error))?;
    let (added, _) = roots.add_parsable_certificates(certificates);
    if added == 0 {
        return Err(no_authorities(&"there is no certificate"));
    }
    Ok(roots)
}

/// How to speak to an upstream whose certificate one of these has signed.
pub(super) fn trusting(roots: RootCertStore) -> Result<ClientConfig, Failure> {
    let builder = ClientConfig::builder_with_provider(provider());
    let builder =
        builder.with_safe_default_protocol_versions().map_err(|error| no_authorities(&error))?;
    Ok(builder.with_root_certificates(roots).with_no_client_auth())
}

fn no_authorities(why: &dyn fmt::Display) -> Failure {
    let what = format!("the authorities of the upstream cannot be used: {why}");
    Failure::misconfigured("E-PROXY-CA", what).with_fix("give a file of PEM certificates")
}

fn provider() -> Arc<rustls::crypto::CryptoProvider> {
    Arc::new(rustls::crypto::ring::default_provider())
}
