//! What `semel check` finds: each mistake is made, found, and put right by the SQL it gives.

use mysql_async::{BinlogStreamRequest, Conn};
use semel_backends::mysql::{MysqlConfig, MysqlStore, grants_sql};
use semel_core::Insight;
use semel_core::diagnosis::{Diagnose, Finding, Log, Needs, Severity};
use semel_testkit::services::{Private, Service};

use super::database;

pub(super) async fn finding(store: &MysqlStore, log: Log, code: &str) -> Finding {
    let all = store.diagnose(&Needs { log, ..Needs::default() }).await.unwrap();
    let found = all.iter().find(|one| one.code == code).cloned();
    assert!(found.is_some(), "{code}: {all:?}");
    found.unwrap()
}

async fn run(store: &MysqlStore, sql: &str) {
    let done = sqlx::raw_sql(sqlx::AssertSqlSafe(sql)).execute(store.pool()).await;
    assert!(done.is_ok(), "{sql}: {done:?}");
}

/// The finding is as bad as that, its SQL helps, and then it is good.
async fn is_found_and_fixed(admin: &MysqlStore, store: &MysqlStore, code: &str, how: Severity) {
    let log = if how == Severity::Problem { Log::Required } else { Log::WherePossible };
    let found = finding(store, log, code).await;
    assert_eq!(found.severity, how, "{found:?}");
    assert!(!found.effect.is_empty(), "{found:?}");
    run(admin, &found.sql.unwrap()).await;
    let found = finding(store, log, code).await;
    assert_eq!(found.severity, Severity::Good, "{found:?}");
}

#[tokio::test]
async fn settings_of_the_server() {
    let Some(server) = Private::start(Service::Mysql) else { return };
    let store = MysqlConfig::new(server.address()).unwrap().connect().await.unwrap();
    is_found_and_fixed(&store, &store, "schema", Severity::Problem).await;
    is_found_and_fixed(&store, &store, "binlog-expiry", Severity::Advice).await;
    let wrong = [
        ("SET GLOBAL binlog_format = 'STATEMENT'", "binlog-format", Severity::Problem),
        ("SET GLOBAL binlog_expire_logs_seconds = 60", "binlog-expiry", Severity::Advice),
        ("SET GLOBAL innodb_flush_log_at_trx_commit = 2", "durability", Severity::Advice),
    ];
    for (sql, code, severity) in wrong {
        run(&store, sql).await;
        is_found_and_fixed(&store, &store, code, severity).await;
    }
    run(&store, "SET GLOBAL read_only = 1").await;
    assert_eq!(finding(&store, Log::Unread, "server").await.severity, Severity::Problem);
    let unread = store.diagnose(&Needs { log: Log::Unread, ..Needs::default() }).await.unwrap();
    assert!(unread.iter().all(|one| !one.code.starts_with("binlog")), "{unread:?}");
}

/// What an upgrade adds is not there yet, and everything else is looked at all the same.
#[tokio::test]
async fn tables_of_an_earlier_version() {
    let database = database!();
    let store = &database.store;
    run(store, "DROP TABLE semel_outages").await;
    run(store, "DELETE FROM semel_migrations ORDER BY version DESC LIMIT 1").await;
    assert_ne!(finding(store, Log::Unread, "schema").await.severity, Severity::Good);
    assert_eq!(finding(store, Log::Unread, "privileges").await.severity, Severity::Good);
}

#[tokio::test]
async fn a_reader_with_the_number_of_the_server() {
    let Some(server) = Private::start(Service::Mysql) else { return };
    let store = MysqlConfig::new(server.address()).unwrap().connect().await.unwrap();
    assert_eq!(finding(&store, Log::Required, "server-id").await.severity, Severity::Good);
    let id: u32 = sqlx::query_scalar("SELECT cast(@@server_id AS UNSIGNED)")
        .fetch_one(store.pool())
        .await
        .unwrap();
    let reader = Conn::from_url(server.address()).await.unwrap();
    let reader = reader.get_binlog_stream(BinlogStreamRequest::new(id)).await.unwrap();
    let found = finding(&store, Log::Required, "server-id").await;
    assert_eq!(found.severity, Severity::Advice, "{found:?}");
    assert!(found.what.contains(&format!("readers of the log are {id}")), "{found:?}");
    drop(reader);

    // Who may not ask is not told that there is nobody.
    run(&store, "CREATE USER blind@localhost; GRANT SELECT ON *.* TO blind@localhost").await;
    let url = server.address().replacen("root@", "blind@", 1);
    let blind = MysqlConfig::new(&url).unwrap().connect().await.unwrap();
    let found = finding(&blind, Log::Required, "server-id").await;
    assert!(found.what.contains("not shown"), "{found:?}");
}

#[tokio::test]
async fn a_user_has_too_few_privileges() {
    let database = database!();
    let found = finding(&database.store, Log::WherePossible, "excess").await;
    assert_eq!(found.severity, Severity::Advice, "{found:?}");

    let name = format!("c{}", &uuid::Uuid::now_v7().simple().to_string()[14..]);
    run(&database.store, &format!("CREATE USER {name}@localhost")).await;
    let url = database.url().replacen("root@", &format!("{name}@"), 1);
    // A user without any privilege on the database is not let in.
    run(&database.store, &format!("GRANT SELECT ON semel_migrations TO {name}@localhost")).await;
    let store = MysqlConfig::new(&url).unwrap().connect().await.unwrap();
    is_found_and_fixed(&database.store, &store, "privileges", Severity::Problem).await;
    store.source("orders").await.unwrap();
    let entry = store.note("anna@shop", "retry", "orders", "all").await.unwrap();
    store.conclude(entry, 1).await.unwrap();
    assert_eq!(finding(&store, Log::Unread, "excess").await.severity, Severity::Good);
    is_found_and_fixed(&database.store, &store, "replication", Severity::Problem).await;
    // To be sent the log is not enough: the relay asks where it ends.
    let revoke = format!("REVOKE REPLICATION CLIENT ON *.* FROM {name}@localhost");
    run(&database.store, &revoke).await;
    is_found_and_fixed(&database.store, &store, "replication", Severity::Problem).await;
    store.close().await;
    run(&database.store, &format!("DROP USER {name}@localhost")).await;

    // What `semel grants` gives is enough.
    run(&database.store, &grants_sql(&name).unwrap()).await;
    let let_in = format!(
        "CREATE USER {name}@localhost; GRANT {name}_tailer TO {name}@localhost;
        SET DEFAULT ROLE {name}_tailer FOR {name}@localhost"
    );
    run(&database.store, &let_in).await;
    let store = MysqlConfig::new(&url).unwrap().connect().await.unwrap();
    for code in ["privileges", "replication", "excess"] {
        let found = finding(&store, Log::Required, code).await;
        assert_eq!(found.severity, Severity::Good, "{found:?}");
    }
    store.close().await;
    let drop = format!(
        "DROP USER {name}@localhost; DROP ROLE {name}_writer, {name}_poller, {name}_tailer, {name}_viewer"
    );
    run(&database.store, &drop).await;
}
