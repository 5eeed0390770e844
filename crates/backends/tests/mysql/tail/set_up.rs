//! Servers that do not allow it: a source that must tail says what to run, any other polls.

use std::time::Duration;

use semel_backends::mysql::{MysqlConfig, MysqlStore, Tailing};
use semel_core::Fault;
use semel_core::diagnosis::{Log, Severity};

use super::super::check::finding;
use super::super::{Relay, database, on_server, url_of};
use super::{commit_one, private, run, tailing};

/// It polls, and one that must tail is refused with this code.
async fn is_refused(store: &MysqlStore, code: &str) {
    let failure = store.tailing_source("orders", Tailing::Required).await.unwrap_err();
    assert_eq!((failure.fault(), failure.code()), (Fault::Misconfigured, code), "{failure:?}");
    assert!(failure.fix().is_some());
    let source = store.tailing_source("orders", Tailing::WherePossible).await.unwrap();
    let mut relay = Relay { source };
    for _ in 0..15 {
        assert!(relay.take(1).await.is_empty());
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    assert!(!relay.source.is_tailing());
    assert!(!store.is_tailed("orders").await.unwrap());
}

#[tokio::test]
async fn a_server_without_a_log() {
    let Some((_server, store)) = private(&["--skip-log-bin"]).await else { return };
    is_refused(&store, "E-TAIL-LOG").await;
    for (log, severity) in
        [(Log::Required, Severity::Problem), (Log::WherePossible, Severity::Advice)]
    {
        let found = finding(&store, log, "binlog").await;
        assert_eq!(found.severity, severity, "{found:?}");
        assert!(found.fix.is_some_and(|fix| fix.contains("log_bin")));
    }
    let mut relay = Relay { source: store.source("orders").await.unwrap() };
    commit_one(&store, 1).await;
    assert_eq!(relay.deliver_all(10).await.len(), 1);
}

/// The log says when, and the table says what: nobody looks into the rows of the log.
#[tokio::test]
async fn any_image_of_rows_will_do() {
    let Some((server, admin)) = private(&[]).await else { return };
    for (number, image) in (0..).zip(["MINIMAL", "NOBLOB", "FULL"]) {
        run(&admin, &format!("SET GLOBAL binlog_row_image = {image}")).await;
        // It counts for sessions that are opened later.
        let store = MysqlConfig::new(server.address()).unwrap().connect().await.unwrap();
        let found = finding(&store, Log::Required, "row-image").await;
        assert_eq!(found.severity, Severity::Good, "{found:?}");
        assert!(found.what.contains(image), "{found:?}");
        let mut relay = tailing(&store).await;
        commit_one(&store, number).await;
        relay.expect_news(&[number]).await;
        assert!(relay.source.is_tailing(), "{image}");
        drop(relay);
        store.close().await;
    }
}

/// The format can be changed while the server runs, and the source finds out.
#[tokio::test]
async fn a_log_of_statements() {
    let Some((_server, store)) = private(&["--binlog-format=MIXED"]).await else { return };
    is_refused(&store, "E-TAIL-FORMAT").await;
    let source = store.tailing_source("orders", Tailing::WherePossible).await.unwrap();
    let mut relay = Relay { source };
    commit_one(&store, 1).await;
    assert_eq!(relay.deliver_all(10).await.len(), 1);
    run(&store, "SET GLOBAL binlog_format = ROW").await;
    relay.until(true).await;
}

#[tokio::test]
async fn a_user_without_replication() {
    let database = database!();
    let login = format!("u{}", &database.name[database.name.len() - 12..]);
    // A server may have a user without a name, for this host.
    let (user, name) = (format!("{login}@localhost"), &database.name);
    on_server(
        &database.server,
        &format!("CREATE USER {user} IDENTIFIED BY 'p@ss+w%rd/'; GRANT ALL ON {name}.* TO {user}"),
    )
    .await;
    let server = database.server.replacen("root@", &format!("{login}:p%40ss%2Bw%25rd%2F@"), 1);
    let config = MysqlConfig::new(&url_of(&server, name)).unwrap();
    let store = config.connect().await.unwrap();
    is_refused(&store, "E-TAIL-PRIVILEGE").await;
    commit_one(&store, 1).await;

    // What the failure says to run helps.
    let grant = format!("GRANT REPLICATION SLAVE, REPLICATION CLIENT ON *.* TO {user}");
    on_server(&database.server, &grant).await;
    let mut relay = tailing(&store).await;
    assert_eq!(relay.deliver_all(10).await.len(), 1);
    commit_one(&store, 2).await;
    relay.expect_news(&[2]).await;
    drop(relay);
    store.close().await;
    on_server(&database.server, &format!("DROP USER {user}")).await;
}

/// The log comes the way that the URL asks for, and from whom it trusts.
#[cfg(feature = "tls")]
#[tokio::test]
async fn a_server_that_wants_encryption() {
    use std::os::unix::fs::PermissionsExt;
    let folder = tempfile::tempdir().unwrap();
    std::fs::set_permissions(folder.path(), PermissionsExt::from_mode(0o755)).unwrap();
    let rcgen::CertifiedKey { cert, signing_key } =
        rcgen::generate_simple_self_signed(["127.0.0.1".to_owned()]).unwrap();
    let (certificate, key) = (folder.path().join("cert.pem"), folder.path().join("key.pem"));
    std::fs::write(&certificate, cert.pem()).unwrap();
    std::fs::write(&key, signing_key.serialize_pem()).unwrap();
    let (certificate, key) = (certificate.display(), key.display());
    let options = [format!("--ssl-cert={certificate}"), format!("--ssl-key={key}")];
    let Some((server, store)) = private(&[&options[0], &options[1]]).await else { return };
    run(&store, "SET GLOBAL require_secure_transport = ON").await;
    let modes = [
        "PREFERRED".to_owned(),
        "REQUIRED".to_owned(),
        format!("VERIFY_IDENTITY&ssl-ca={certificate}"),
    ];
    for (number, mode) in (0..).zip(modes) {
        let url = format!("{}?ssl-mode={mode}", server.address());
        let store = MysqlConfig::new(&url).unwrap().connect().await.unwrap();
        let mut relay = tailing(&store).await;
        commit_one(&store, number).await;
        relay.expect_news(&[number]).await;
    }
    let trusting = format!("{}?ssl-mode=REQUIRED", server.address());
    let strict = format!("{}?ssl-mode=VERIFY_IDENTITY", server.address());
    assert!(MysqlConfig::new(&trusting).unwrap().connect().await.is_ok());
    assert!(MysqlConfig::new(&strict).unwrap().connect().await.is_err());
}
