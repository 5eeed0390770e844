//! What `semel check` finds: each mistake is made, found, and put right by the SQL it gives.

use std::process::{Child, Command};
use std::time::{Duration, Instant};

use semel_backends::postgres::{PostgresConfig, PostgresStore, grants_sql};
use semel_core::Insight;
use semel_core::diagnosis::{Diagnose, Finding, Log, Needs, Severity};
use semel_testkit::services::{Private, Service};
use semel_testkit::workload::event;
use tempfile::TempDir;

use super::tail::PATIENCE;
use super::{Database, database, unmigrated};

async fn findings(store: &PostgresStore, log: Log) -> Vec<Finding> {
    let needs = Needs { log, ..Needs::default() };
    store.diagnose(&needs).await.unwrap()
}

pub(super) async fn finding(store: &PostgresStore, log: Log, code: &str) -> Finding {
    let all = findings(store, log).await;
    let found = all.iter().find(|one| one.code == code).cloned();
    assert!(found.is_some(), "{code}: {all:?}");
    found.unwrap()
}

impl Database {
    /// The finding is as bad as that, its SQL helps, and then it is good.
    async fn is_found_and_fixed(&self, store: &PostgresStore, code: &str, severity: Severity) {
        let log = if severity == Severity::Problem { Log::Required } else { Log::WherePossible };
        let found = finding(store, log, code).await;
        assert_eq!(found.severity, severity, "{found:?}");
        assert!(!found.effect.is_empty(), "{found:?}");
        self.run(&found.sql.unwrap()).await;
        let found = finding(store, log, code).await;
        assert_eq!(found.severity, Severity::Good, "{found:?}");
    }

    /// A user of its own, who has no privileges at all.
    async fn user(&self) -> (String, PostgresStore) {
        let role = self.pool().connect_options().get_database().unwrap().to_owned();
        self.run(&format!("create role {role} login")).await;
        let url = self.url().replacen("postgres@", &format!("{role}@"), 1);
        let store = PostgresConfig::new(&url).unwrap().connect().await.unwrap();
        (role, store)
    }

    async fn forget(&self, role: &str, store: PostgresStore) {
        store.close().await;
        self.run(&format!("drop owned by {role}; drop role {role}")).await;
    }
}

#[tokio::test]
async fn tables_are_missing_or_newer() {
    let database = unmigrated!();
    let found = finding(&database.store, Log::WherePossible, "schema").await;
    assert_eq!(found.severity, Severity::Problem);
    assert!(found.fix.unwrap().contains("semel migrate up"));
    database.run(&found.sql.unwrap()).await;
    assert!(database.store.status().await.unwrap().is_current());
    let found = finding(&database.store, Log::WherePossible, "schema").await;
    assert_eq!(found.severity, Severity::Good);
    database.run("insert into semel.migrations (version, name) values (99, 'later')").await;
    let found = finding(&database.store, Log::WherePossible, "schema").await;
    assert_eq!(found.severity, Severity::Problem);
    assert!(found.what.contains("version 99"), "{found:?}");
}

#[tokio::test]
async fn a_user_has_too_few_privileges_and_then_too_many() {
    let database = database!();
    let (role, store) = database.user().await;
    database.is_found_and_fixed(&store, "privileges", Severity::Problem).await;
    let granted = |role: &str| {
        format!(
            "select count(*), sum(hashtext(what)::bigint)::text from (
                select concat(table_name, ' ', privilege_type)
                from information_schema.role_table_grants
                where table_schema = 'semel' and grantee = '{role}'
                union all select concat(table_name, '.', column_name, ' ', privilege_type)
                from information_schema.role_column_grants
                where table_schema = 'semel' and grantee = '{role}'
            ) as granted (what)"
        )
    };
    let prefix = format!("p{role}");
    database.run(&grants_sql(&prefix).unwrap()).await;
    let mut sums = Vec::new();
    for role in [&role, &format!("{prefix}_poller")] {
        let sum: (i64, String) = sqlx::query_as(sqlx::AssertSqlSafe(granted(role)))
            .fetch_one(database.pool())
            .await
            .unwrap();
        sums.push(sum);
    }
    assert_eq!(sums[0], sums[1], "the same as `semel grants` gives to a poller");
    store.source("orders").await.unwrap();
    let entry = store.note("anna@shop", "retry", "orders", "all").await.unwrap();
    store.conclude(entry, 1).await.unwrap();

    let found = finding(&store, Log::WherePossible, "excess").await;
    assert_eq!(found.severity, Severity::Good, "{found:?}");
    database
        .run(&format!(
            "grant all on all tables in schema semel to {role}; grant all on schema semel to {role}"
        ))
        .await;
    database.is_found_and_fixed(&store, "excess", Severity::Advice).await;
    let found = finding(&store, Log::WherePossible, "privileges").await;
    assert_eq!(found.severity, Severity::Good, "not too much was taken: {found:?}");
    store.conclude(entry, 2).await.unwrap();

    database.is_found_and_fixed(&store, "replication", Severity::Problem).await;
    let found = finding(&store, Log::Unread, "excess").await;
    assert_eq!(found.severity, Severity::Advice, "who polls needs no replication: {found:?}");
    database.run(&found.sql.unwrap()).await;
    assert_eq!(finding(&store, Log::Unread, "excess").await.severity, Severity::Good);

    for role in ["writer", "poller", "tailer", "viewer"].map(|role| format!("{prefix}_{role}")) {
        database.run(&format!("drop owned by {role}; drop role {role}")).await;
    }
    database.forget(&role, store).await;
}

#[tokio::test]
async fn superusers_and_owners_are_told_that_they_are() {
    let database = database!();
    let found = finding(&database.store, Log::WherePossible, "excess").await;
    assert!(found.what.contains("superuser") && found.sql.is_none(), "{found:?}");
    let (role, store) = database.user().await;
    database
        .run(&format!(
            "grant usage on schema semel to {role}; alter table semel.outbox owner to {role}"
        ))
        .await;
    let found = finding(&store, Log::WherePossible, "excess").await;
    assert!(found.what.contains("owns") && found.fix.unwrap().contains("semel grants"));
    database.run(&format!("reassign owned by {role} to postgres")).await;
    database.forget(&role, store).await;
}

#[tokio::test]
async fn publications_of_every_wrong_kind() {
    let database = database!();
    let store = &database.store;
    database.run("create table other (n integer)").await;
    let wrong = [
        ("", Severity::Problem),
        ("create publication semel_outbox", Severity::Problem),
        ("create publication semel_outbox for table other", Severity::Problem),
        (
            "create publication semel_outbox for table semel.outbox with (publish = 'update')",
            Severity::Problem,
        ),
        ("create publication semel_outbox for table semel.outbox", Severity::Advice),
        (
            "create publication semel_outbox for table semel.outbox where (seq > 7)
            with (publish = 'insert')",
            Severity::Advice,
        ),
    ];
    for (sql, severity) in wrong {
        database.run("drop publication if exists semel_outbox").await;
        database.run(sql).await;
        database.is_found_and_fixed(store, "publication", severity).await;
    }
    let codes: Vec<_> = findings(store, Log::Unread).await.iter().map(|one| one.code).collect();
    assert!(!codes.contains(&"publication") && !codes.contains(&"wal-level"), "{codes:?}");
}

/// A publication of all tables would keep semel from deleting, and only of a partitioned outbox.
#[tokio::test]
async fn deletions_that_another_publication_forbids() {
    let database = database!();
    database.run("create publication everything for all tables").await;
    let found = finding(&database.store, Log::WherePossible, "replica-identity").await;
    assert_eq!(found.severity, Severity::Good, "{found:?}");
    database.store.partition(Duration::from_secs(3600)).await.unwrap();
    database.commit(&[event("a", 1)]).await;
    let delete = || sqlx::raw_sql("delete from semel.outbox").execute(database.pool());
    assert!(delete().await.unwrap_err().to_string().contains("replica identity"));
    database.is_found_and_fixed(&database.store, "replica-identity", Severity::Problem).await;
    delete().await.unwrap();
}

#[tokio::test]
async fn tables_that_were_changed() {
    let database = database!();
    let store = &database.store;
    database.run("alter table semel.outbox alter column seq set cache 50").await;
    database.is_found_and_fixed(store, "sequence", Severity::Problem).await;
    database.run("alter table semel.cursor set (autovacuum_enabled = false)").await;
    database.is_found_and_fixed(store, "autovacuum", Severity::Advice).await;
    database.store.partition(Duration::from_secs(3600)).await.unwrap();
    database.drop_partitions().await;
    database.is_found_and_fixed(store, "partitions", Severity::Advice).await;
}

#[tokio::test]
async fn transactions_that_somebody_forgot() {
    let database = database!();
    let mut open = database.begin().await;
    database.append(&mut open, &[event("a", 1)]).await;
    let process: i32 =
        sqlx::query_scalar("select pg_backend_pid()").fetch_one(&mut *open).await.unwrap();
    let mut prepared = database.begin().await;
    database.append(&mut prepared, &[event("b", 1)]).await;
    let name = database.pool().connect_options().get_database().unwrap().to_owned();
    let prepare = format!("prepare transaction '{name}'");
    sqlx::raw_sql(sqlx::AssertSqlSafe(prepare)).execute(&mut *prepared).await.unwrap();
    drop(prepared);

    let about = |all: &[Finding], code: &str, what: &str| {
        all.iter().any(|one| one.code == code && one.what.contains(what))
    };
    let needs = Needs { long: Duration::ZERO, ..Needs::default() };
    let now = database.store.diagnose(&needs).await.unwrap();
    assert!(about(&now, "transactions", &format!("process {process} ")), "{now:?}");
    assert!(about(&now, "prepared", &name), "{now:?}");
    // Neither is old enough to be told of without being asked.
    let later = findings(&database.store, Log::WherePossible).await;
    assert!(!about(&later, "transactions", &format!("process {process} ")), "{later:?}");
    assert!(!about(&later, "prepared", &name), "{later:?}");
    database.run(&format!("rollback prepared '{name}'")).await;
    open.rollback().await.unwrap();
}

#[tokio::test]
async fn a_pooler_in_between() {
    let Some(database) = Database::pooled().await else { return };
    let store = &database.store;
    for (log, severity) in [
        (Log::Required, Severity::Problem),
        (Log::WherePossible, Severity::Advice),
        (Log::Unread, Severity::Good),
    ] {
        let found = finding(store, log, "pooler").await;
        assert_eq!(found.severity, severity, "{found:?}");
    }
    assert_eq!(finding(store, Log::Unread, "schema").await.severity, Severity::Good);
}

#[tokio::test]
async fn the_slot_of_messages() {
    let database = database!();
    let found = async || {
        let needs = Needs { messages: true, log: Log::Required, ..Needs::default() };
        let all = database.store.diagnose(&needs).await.unwrap();
        let mut left = all.iter().filter(|one| one.code == "slot-left");
        let drops = |one: &Finding| one.sql.as_deref().is_some_and(|sql| sql.contains("messages"));
        assert!(!left.any(drops), "nobody is told to drop it: {all:?}");
        all.into_iter().find(|one| one.code == "messages").unwrap()
    };
    let missing = found().await;
    assert_eq!(missing.severity, Severity::Problem, "{missing:?}");
    let sql = missing.sql.unwrap();
    let (publication, slot) = sql.split_once("\nselect").unwrap();
    database.run(publication).await;
    database.run(&format!("select{slot}")).await;
    let unread = found().await;
    assert_eq!(unread.severity, Severity::Advice, "{unread:?}");
    assert!(unread.what.contains("no relay reads"), "{unread:?}");

    let carrying = database.store.carry_messages("orders").await.unwrap();
    carrying.caught_up().await.unwrap();
    let good = found().await;
    assert_eq!(good.severity, Severity::Good, "{good:?}");
    database.run("drop publication semel_messages").await;
    assert!(found().await.what.contains("no publication"));
}

/// A slot of a standby belongs to no database, and may hold back nothing yet.
#[tokio::test]
async fn a_physical_slot_with_a_name_like_ours() {
    let Some(server) = Private::start(Service::Postgres) else { return };
    let store = PostgresConfig::new(server.address()).unwrap().connect().await.unwrap();
    let run = async |sql: &'static str| {
        sqlx::raw_sql(sql).execute(store.pool()).await.unwrap();
    };
    for (create, log) in [
        ("select pg_create_physical_replication_slot('semel_physical')", "none reserved"),
        ("select pg_create_physical_replication_slot('semel_physical', true)", "reserved)"),
    ] {
        run(create).await;
        let found = finding(&store, Log::WherePossible, "slot-left").await;
        assert_eq!(found.severity, Severity::Advice, "{found:?}");
        assert!(
            found.what.contains("semel_physical (log: ") && found.what.contains(log),
            "{found:?}"
        );
        run("select pg_drop_replication_slot('semel_physical')").await;
        let found = finding(&store, Log::WherePossible, "slot-left").await;
        assert_eq!(found.severity, Severity::Good, "{found:?}");
    }
}

/// It is there and does not get on, so nobody would look for a slot that was left.
#[tokio::test]
async fn a_reader_that_stands_still_holds_back_log() {
    let Some(server) = Private::start(Service::Postgres) else { return };
    let store = PostgresConfig::new(server.address()).unwrap().connect().await.unwrap();
    for sql in [
        "select pg_create_physical_replication_slot('standby', true)",
        "alter system set max_wal_size = '32MB'",
        "select pg_reload_conf()",
    ] {
        sqlx::raw_sql(sql).execute(store.pool()).await.unwrap();
    }
    let number = async |sql: &str| -> i64 {
        let number = sqlx::query_scalar(sqlx::AssertSqlSafe(sql));
        number.fetch_one(store.pool()).await.unwrap()
    };
    let reader = Reader::start(server.address(), "standby");
    soon(async || number("select count(*) from pg_replication_slots where active").await == 1)
        .await;
    let behind = async || finding(&store, Log::Unread, "slot-behind").await;
    assert_eq!(behind().await.severity, Severity::Good);

    reader.signal("STOP");
    for _ in 0..5 {
        let switch = "select pg_logical_emit_message(false, 'test', 'content'), pg_switch_wal()";
        sqlx::raw_sql(switch).execute(store.pool()).await.unwrap();
    }
    let found = behind().await;
    assert_eq!(found.severity, Severity::Advice, "{found:?}");
    assert!(found.what.contains("standby (log: extended)"), "{found:?}");
    let fix = found.fix.unwrap();
    let look = fix.split_once(": ").and_then(|(_, look)| look.split_once(';')).unwrap().0;
    let lags =
        format!("select count(*) from ({look} and sent_lsn < pg_current_wal_lsn()) as reader");
    assert_eq!(number(&lags).await, 1, "{fix}");
    let left = finding(&store, Log::Unread, "slot-left").await;
    assert_eq!(left.severity, Severity::Good, "it has a reader: {left:?}");

    reader.signal("CONT");
    soon(async || behind().await.severity == Severity::Good).await;
}

async fn soon(is_so: impl AsyncFn() -> bool) {
    let began = Instant::now();
    while !is_so().await {
        assert!(began.elapsed() < PATIENCE, "it never is");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

/// PostgreSQL's own, of a slot.
struct Reader {
    process: Child,
    _folder: TempDir,
}

impl Reader {
    fn start(url: &str, slot: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let process = Command::new("pg_receivewal")
            .args(["--synchronous", "--slot", slot, "--dbname", url, "--directory"])
            .arg(folder.path())
            .spawn()
            .unwrap();
        Self { process, _folder: folder }
    }

    fn signal(&self, signal: &str) {
        let id = self.process.id().to_string();
        assert!(Command::new("kill").args(["-s", signal, &id]).status().unwrap().success());
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        self.process.kill().ok();
        self.process.wait().ok();
    }
}
