//! The tailing session is encrypted as the URL says, and checks whom it talks to.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};
use semel_backends::postgres::{PgPool, PostgresConfig, Tailing};
use semel_core::{Limit, Source};
use semel_testkit::services::{Private, Service};
use semel_testkit::workload::event;
use tempfile::TempDir;

use super::super::Relay;
use super::PATIENCE;

/// Whom somebody trusts, and who can vouch for a server.
struct Authority {
    issuer: Issuer<'static, KeyPair>,
    file: PathBuf,
}

impl Authority {
    fn new(folder: &Path, name: &str) -> Self {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let file = folder.join(format!("{name}.pem"));
        fs::write(&file, params.self_signed(&key).unwrap().pem()).unwrap();
        Self { issuer: Issuer::new(params, key), file }
    }

    /// Lets a server show a certificate of this authority for a name.
    async fn vouch_for(&self, server: &PgPool, name: &str) {
        let data: String =
            sqlx::query_scalar("show data_directory").fetch_one(server).await.unwrap();
        let key = KeyPair::generate().unwrap();
        let params = CertificateParams::new(vec![name.to_owned()]).unwrap();
        let certificate = params.signed_by(&key, &self.issuer).unwrap();
        write(&data, "server.crt", &certificate.pem());
        write(&data, "server.key", &key.serialize_pem());
        for sql in ["alter system set ssl = on", "select pg_reload_conf()"] {
            sqlx::raw_sql(sql).execute(server).await.unwrap();
        }
    }
}

/// As a file that the server takes for a secret.
fn write(folder: &str, name: &str, text: &str) {
    let path = Path::new(folder).join(name);
    fs::write(&path, text).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
    let owner = fs::metadata(folder).unwrap();
    chown(&path, Some(owner.uid()), Some(owner.gid())).unwrap();
}

/// Whether a new connection of this URL is encrypted and let in.
async fn is_let_in(url: &str) -> bool {
    match PostgresConfig::new(url).unwrap().patience(Duration::from_secs(3)).connect().await {
        Ok(store) => {
            let sql = "select ssl from pg_stat_ssl where pid = pg_backend_pid()";
            let encrypted = sqlx::query_scalar(sql).fetch_one(store.pool()).await.unwrap();
            store.close().await;
            encrypted
        }
        Err(_) => false,
    }
}

async fn until(what: &str, url: &str, let_in: bool) {
    let began = Instant::now();
    while is_let_in(url).await != let_in {
        assert!(began.elapsed() < PATIENCE, "{what}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

#[tokio::test]
async fn it_is_encrypted_and_talks_to_nobody_else() {
    let Some(server) = Private::start(Service::Postgres) else { return };
    let folder = TempDir::new().unwrap();
    let [trusted, stranger] =
        ["trusted", "stranger"].map(|name| Authority::new(folder.path(), name));
    let admin = PgPool::connect(server.address()).await.unwrap();
    trusted.vouch_for(&admin, "localhost").await;
    let url = |authority: &Authority| {
        let file = authority.file.display();
        let address = server.address().replacen("127.0.0.1", "localhost", 1);
        format!("{address}?sslmode=verify-full&sslrootcert={file}")
    };
    until("the server never shows its certificate", &url(&trusted), true).await;
    assert!(!is_let_in(&url(&stranger)).await, "a certificate of somebody else");

    let store = PostgresConfig::new(&url(&trusted)).unwrap().connect().await.unwrap();
    store.migrate().await.unwrap();
    let source = store.tailing_source("orders", Tailing::Required).await.unwrap();
    let mut relay = Relay { source };
    relay.until(true).await;
    let sql = "select bool_and(s.ssl) from pg_stat_replication r join pg_stat_ssl s using (pid)";
    assert!(sqlx::query_scalar::<_, bool>(sql).fetch_one(&admin).await.unwrap());

    // Connections that are open stay so; the log is told of in a new one.
    for (authority, name) in [(&stranger, "localhost"), (&trusted, "elsewhere.example")] {
        drop(tokio::join!(store.pool().acquire(), store.pool().acquire(), store.pool().acquire()));
        authority.vouch_for(&admin, name).await;
        until("the server never shows its new certificate", &url(&trusted), false).await;
        sqlx::raw_sql("select pg_terminate_backend(pid) from pg_stat_replication")
            .execute(&admin)
            .await
            .unwrap();
        let failure = store.tailing_source("other", Tailing::Required).await.unwrap_err();
        assert_eq!(failure.code(), "E-TAIL-TLS", "{name}: {failure:?}");
        trusted.vouch_for(&admin, "localhost").await;
        until("the server never shows its certificate again", &url(&trusted), true).await;
    }
    let mut tx = store.begin().await.unwrap();
    store.outbox().append(&mut tx, event("a", 1)).await.unwrap();
    tx.commit().await.unwrap();
    let source = store.tailing_source("orders", Tailing::WherePossible).await.unwrap();
    let mut relay = Relay { source };
    assert_eq!(relay.deliver_all(10).await.len(), 1);
    relay.until(true).await;
    relay.source.next_batch(Limit::default()).await.unwrap();
}
