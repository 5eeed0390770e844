//! A connection of the same kind as those of the pool, by the client that can read the log.

#[cfg(feature = "tls")]
use mysql_async::ClientIdentity;
use mysql_async::{Conn, DriverError, Error, OptsBuilder, SslOpts};
use semel_core::Failure;
use sqlx::ConnectOptions;
use sqlx::mysql::{MySqlConnectOptions, MySqlSslMode};

#[cfg(not(feature = "tls"))]
use super::refusal::no_tls;
use super::refusal::of_login;
#[cfg(feature = "tls")]
use super::refusal::tls;

/// The largest event of the log that is taken in: it is held in memory while it is looked at. Larger
/// ones end the session, and the next one begins behind them.
const LARGEST_EVENT: usize = 64 * 1024 * 1024;
/// Nothing waits on this connection but the log itself.
const IDLE_SECONDS: usize = 28_800;

/// Connects to the same server, with the same user and database.
pub(super) async fn connect(options: &MySqlConnectOptions) -> Result<Conn, Failure> {
    crate::crypto::choose_provider();
    let mode = options.get_ssl_mode();
    let encrypted = encryption(options, mode)?;
    let tries_without = matches!(mode, MySqlSslMode::Preferred) && encrypted.is_some();
    let connected = Conn::new(plain(options).ssl_opts(encrypted)).await;
    match connected {
        Err(Error::Driver(DriverError::NoClientSslFlagFromServer)) if tries_without => {
            Conn::new(plain(options)).await.map_err(|error| of_login(&error))
        }
        connected => connected.map_err(|error| of_login(&error)),
    }
}

fn plain(options: &MySqlConnectOptions) -> OptsBuilder {
    // The options show the password in no other way.
    let url = options.to_url_lossy();
    let password = url
        .password()
        .map(|text| percent_encoding::percent_decode_str(text).decode_utf8_lossy().into_owned());
    let socket = options.get_socket().map(|path| path.to_string_lossy().into_owned());
    OptsBuilder::default()
        .ip_or_hostname(options.get_host())
        .tcp_port(options.get_port())
        .socket(socket)
        .prefer_socket(false)
        .user(Some(options.get_username()))
        .pass(password)
        .db_name(options.get_database())
        .max_allowed_packet(Some(LARGEST_EVENT))
        .wait_timeout(Some(IDLE_SECONDS))
}

/// As the pool does it, except that `VERIFY_CA` verifies the name as well.
#[cfg(feature = "tls")]
fn encryption(
    options: &MySqlConnectOptions,
    mode: MySqlSslMode,
) -> Result<Option<SslOpts>, Failure> {
    if matches!(mode, MySqlSslMode::Disabled) || options.get_socket().is_some() {
        return Ok(None);
    }
    let url = options.to_url_lossy();
    let file = |name: &str| {
        let found = url.query_pairs().find(|(key, _)| key == name);
        found.map(|(_, shown)| pem(&shown)).transpose()
    };
    let verifies = matches!(mode, MySqlSslMode::VerifyCa | MySqlSslMode::VerifyIdentity);
    let mut trusted: Vec<Vec<u8>> = file("ssl-ca")?.into_iter().collect();
    if verifies {
        let roots = rustls_native_certs::load_native_certs().certs;
        trusted.extend(roots.into_iter().map(|root| root.to_vec()));
    }
    let identity = file("ssl-cert")?.zip(file("ssl-key")?);
    let identity =
        identity.map(|(certificate, key)| ClientIdentity::new(certificate.into(), key.into()));
    let encryption = SslOpts::default()
        .with_root_certs(trusted.into_iter().map(Into::into).collect())
        .with_disable_built_in_roots(verifies)
        .with_client_identity(identity)
        .with_danger_accept_invalid_certs(!verifies);
    Ok(Some(encryption))
}

/// The options show what is in them, or the word "file" in front of its path.
#[cfg(feature = "tls")]
fn pem(shown: &str) -> Result<Vec<u8>, Failure> {
    match shown.strip_prefix("file: ") {
        Some(path) => std::fs::read(path).map_err(|error| tls(format!("MySQL: {path}: {error}"))),
        None => Ok(shown.as_bytes().to_vec()),
    }
}

#[cfg(not(feature = "tls"))]
fn encryption(
    options: &MySqlConnectOptions,
    mode: MySqlSslMode,
) -> Result<Option<SslOpts>, Failure> {
    match mode {
        MySqlSslMode::Disabled | MySqlSslMode::Preferred => Ok(None),
        _ if options.get_socket().is_some() => Ok(None),
        _ => Err(no_tls()),
    }
}
