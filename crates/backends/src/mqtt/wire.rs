//! Bytes to and from the broker, plain or encrypted.

use std::io;
use std::path::Path;
use std::sync::Arc;

use bytes::BytesMut;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use semel_core::Failure;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use super::config::{MqttConfig, MqttVersion};
use super::error::{lost, tls};
use super::packet::{self, Incoming};

/// A connection, and what is about to be written to it.
pub(super) struct Wire {
    stream: Box<dyn Stream>,
    version: MqttVersion,
    input: BytesMut,
    pub(super) output: BytesMut,
}

trait Stream: AsyncRead + AsyncWrite + Send + Unpin {
    fn socket(&self) -> &TcpStream;
}

impl Stream for TcpStream {
    fn socket(&self) -> &TcpStream {
        self
    }
}

impl Stream for TlsStream<TcpStream> {
    fn socket(&self) -> &TcpStream {
        self.get_ref().0
    }
}

impl Wire {
    pub(super) async fn open(
        config: &MqttConfig,
        encryption: Option<&TlsConnector>,
    ) -> Result<Self, Failure> {
        let (host, port) = (config.host.as_str(), config.port);
        let failed = |error| lost(&format!("cannot connect to {host}:{port}"), error);
        let plain = TcpStream::connect((host, port)).await.map_err(failed)?;
        plain.set_nodelay(true).map_err(failed)?;
        let stream: Box<dyn Stream> = match encryption {
            None => Box::new(plain),
            Some(encryption) => {
                let name = ServerName::try_from(host.to_owned())
                    .map_err(|error| tls(&format!("{host:?} is no name of a server"), error))?;
                Box::new(encryption.connect(name, plain).await.map_err(failed)?)
            }
        };
        let (input, output) = (BytesMut::new(), BytesMut::new());
        Ok(Self { stream, version: config.version, input, output })
    }

    /// Writes what is in `output`.
    pub(super) async fn flush(&mut self) -> io::Result<()> {
        if self.output.is_empty() {
            return confirm(self.stream.socket());
        }
        self.stream.write_all_buf(&mut self.output).await?;
        self.stream.flush().await
    }

    /// The next packet. Nothing is lost when it is dropped.
    pub(super) async fn next(&mut self) -> io::Result<Incoming> {
        loop {
            if let Some(packet) = self.next_received()? {
                return Ok(packet);
            }
            if self.stream.read_buf(&mut self.input).await? == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
        }
    }

    /// The next packet, if it is there already.
    pub(super) fn next_received(&mut self) -> io::Result<Option<Incoming>> {
        packet::read(self.version, &mut self.input)
    }
}

/// A broker with Nagle's algorithm holds its next answers until it knows that the last ones have
/// arrived. What is written tells it; when there is nothing to write, the operating system would
/// tell it 40 ms later.
fn confirm(socket: &TcpStream) -> io::Result<()> {
    #[cfg(target_os = "linux")]
    socket.set_quickack(true)?;
    #[cfg(not(target_os = "linux"))]
    let _ = socket;
    Ok(())
}

/// How to encrypt, if the URL asks for it.
pub(super) fn encryption(config: &MqttConfig) -> Result<Option<TlsConnector>, Failure> {
    if !config.encrypted {
        return match config.ca_file {
            Some(_) => Err(tls("ca_file needs mqtts://", io::Error::other("the URL says mqtt://"))),
            None => Ok(None),
        };
    }
    let roots = roots(config.ca_file.as_deref())?;
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let settings = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|error| tls("no TLS", error))?
        .with_root_certificates(roots)
        .with_no_client_auth();
    Ok(Some(TlsConnector::from(Arc::new(settings))))
}

/// Whom to trust: the given authorities, or else what the operating system trusts.
fn roots(ca_file: Option<&Path>) -> Result<RootCertStore, Failure> {
    let mut roots = RootCertStore::empty();
    let Some(path) = ca_file else {
        roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
        return Ok(roots);
    };
    let unusable = || format!("cannot read ca_file {}", path.display());
    let certificates: Vec<_> = CertificateDer::pem_file_iter(path)
        .and_then(Iterator::collect)
        .map_err(|error| tls(&unusable(), error))?;
    let (added, _) = roots.add_parsable_certificates(certificates);
    if added == 0 {
        return Err(tls(&unusable(), io::Error::other("it has no certificate")));
    }
    Ok(roots)
}
