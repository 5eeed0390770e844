//! The address of the server for a replication connection, which is none of the pool.

use std::path::Path;

use pgwire_replication::{ReplicationConfig, SslMode, TlsConfig};
use semel_core::Failure;
use sqlx::ConnectOptions;
use sqlx::postgres::{PgConnectOptions, PgSslMode};

use super::refusal::no_tls;

/// The same server, user and database as those of the pool.
pub(in super::super) fn config(
    options: &PgConnectOptions,
    slot: &str,
    publication: &str,
) -> Result<ReplicationConfig, Failure> {
    crate::crypto::choose_provider();
    // A host may be a folder as well, as it is where nothing else is said.
    let folder = Some(options.get_host()).filter(|host| host.starts_with('/')).map(Path::new);
    let socket = options.get_socket().map(|socket| &**socket).or(folder);
    let socket = socket.map(|socket| socket.to_string_lossy().into_owned());
    let user = options.get_username();
    // The options show everything but the password and the certificates. Not every host and user can
    // stand in a URL as they are.
    let url = options.clone().host("host").username("user").to_url_lossy();
    // A file is shown with this word in front of its path.
    let path = |shown: &str| shown.strip_prefix("file: ").unwrap_or(shown).into();
    let parameter =
        |name: &str| url.query_pairs().find(|(key, _)| key == name).map(|(_, value)| path(&value));
    let mut tls = TlsConfig {
        mode: mode(options.get_ssl_mode(), socket.is_some())?,
        ca_pem_path: parameter("sslrootcert")
            .or_else(|| std::env::var_os("SSL_CERT_FILE").map(Into::into)),
        client_cert_pem_path: parameter("sslcert"),
        client_key_pem_path: parameter("sslkey"),
        ..TlsConfig::default()
    };
    if !tls.is_mtls() {
        (tls.client_cert_pem_path, tls.client_key_pem_path) = (None, None);
    }
    let config = ReplicationConfig::new(
        socket.unwrap_or_else(|| options.get_host().to_owned()),
        user,
        url.password().map(decode).unwrap_or_default(),
        options.get_database().unwrap_or(user),
        slot,
        publication,
    );
    Ok(config.with_port(options.get_port()).with_tls(tls))
}

fn mode(mode: PgSslMode, is_socket: bool) -> Result<SslMode, Failure> {
    let can = cfg!(feature = "tls");
    match mode {
        _ if is_socket => Ok(SslMode::Disable),
        PgSslMode::Disable | PgSslMode::Allow => Ok(SslMode::Disable),
        PgSslMode::Prefer => Ok(if can { SslMode::Prefer } else { SslMode::Disable }),
        _ if !can => Err(no_tls()),
        PgSslMode::Require => Ok(SslMode::Require),
        PgSslMode::VerifyCa => Ok(SslMode::VerifyCa),
        PgSslMode::VerifyFull => Ok(SslMode::VerifyFull),
    }
}

/// Text with `%20` and the like.
fn decode(text: &str) -> String {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let [first, after @ ..] = rest {
        let code = (*first == b'%').then(|| after.get(..2)).flatten();
        let code = code.and_then(|hex| std::str::from_utf8(hex).ok());
        match code.and_then(|hex| u8::from_str_radix(hex, 16).ok()) {
            Some(byte) => {
                bytes.push(byte);
                rest = &after[2..];
            }
            None => {
                bytes.push(*first);
                rest = after;
            }
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(url: &str) -> ReplicationConfig {
        config(&url.parse().unwrap(), "slot", "publication").unwrap()
    }

    #[test]
    fn a_password_arrives_as_it_was_meant() {
        let config = of("postgres://me%40home:p%40s%2Bs%25%20%C3%A9+%2F@db:5433/shop");
        assert_eq!((config.user.as_str(), config.password.as_str()), ("me@home", "p@s+s% é+/"));
        assert_eq!((config.host.as_str(), config.port), ("db", 5433));
        assert_eq!(config.database, "shop");
    }

    #[test]
    fn without_a_database_it_is_the_users() {
        assert_eq!(of("postgres://me@db").database, "me");
    }

    #[test]
    fn a_socket_is_a_host_and_needs_no_tls() {
        let config = of("postgres://me@%2Fvar%2Frun/shop?sslmode=require");
        assert!(config.is_unix_socket());
        assert_eq!((config.host.as_str(), config.tls.mode), ("/var/run", SslMode::Disable));
    }

    /// As it is by default beside a server, and with `PGHOST`.
    #[test]
    fn a_host_that_is_a_folder_is_a_socket() {
        let options = "postgres://me:p%40s@db/shop?sslmode=require".parse::<PgConnectOptions>();
        let config = config(&options.unwrap().host("/tmp"), "slot", "publication").unwrap();
        assert!(config.is_unix_socket());
        assert_eq!((config.host.as_str(), config.tls.mode), ("/tmp", SslMode::Disable));
        assert_eq!((config.user.as_str(), config.password.as_str()), ("me", "p@s"));
    }

    #[test]
    fn a_host_and_a_user_need_not_fit_into_a_url() {
        let config = of("postgres://a%3Ab%2Fc:p%40s@db:5433/shop?hostaddr=::1");
        assert_eq!((config.host.as_str(), config.port), ("::1", 5433));
        assert_eq!((config.user.as_str(), config.password.as_str()), ("a:b/c", "p@s"));
        assert_eq!(config.database, "shop");
    }

    #[test]
    fn what_is_encrypted_stays_encrypted() {
        let options = "postgres://me@db/shop?sslmode=verify-full&sslrootcert=ca.pem".parse();
        let config = config(&options.unwrap(), "slot", "publication");
        if cfg!(feature = "tls") {
            let tls = config.unwrap().tls;
            assert_eq!(tls.mode, SslMode::VerifyFull);
            assert_eq!(tls.ca_pem_path.unwrap().to_str(), Some("ca.pem"));
        } else {
            assert_eq!(config.unwrap_err().code(), "E-TAIL-TLS");
        }
    }
}
