//! From PostgreSQL 17 on a standby has the slot as well, and keeps the messages when it takes over.

use std::fs::{self, File};
use std::io::Write;
use std::net::TcpListener;
use std::ops::Range;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::time::{Duration, Instant};

use semel_backends::postgres::{PgPool, PostgresConfig, PostgresStore};
use semel_testkit::services::{Service, service};
use semel_testkit::workload::{delivered_numbers, events};
use tempfile::TempDir;
use tokio::time::sleep;

use super::super::tail::PATIENCE;
use super::super::{Relay, connect};

/// Its slot is as it was before anything was carried: what comes again is known by its id.
#[tokio::test]
async fn a_standby_that_is_promoted_has_what_was_not_carried() {
    const SLOTS: &str = "select count(*) from pg_replication_slots where synced and not temporary";
    let Some(address) = service(Service::Postgres) else { return };
    let shared = connect(&address).await;
    let version = "select current_setting('server_version_num')::bigint";
    if number(shared.pool(), version).await < 170_000 {
        return; // Slots do not follow.
    }
    let primary = Server::start();
    let store = connect(&primary.address).await;
    store.migrate().await.unwrap();
    store.prepare_messages().await.unwrap();
    let standby = primary.standby(store.pool()).await;
    let copy = standby.connect().await;
    soon("the slot has followed", async || {
        run(store.pool(), "select pg_log_standby_snapshot()").await;
        // An error while the standby is behind.
        sqlx::raw_sql("select pg_sync_replication_slots()").execute(copy.pool()).await.ok();
        number(copy.pool(), SLOTS).await == 1
    })
    .await;

    emit(&store, 0..3).await;
    assert_eq!(carry_and_deliver(&store).await, [0, 1, 2]);
    emit(&store, 3..6).await;
    let end = "select pg_wal_lsn_diff(pg_current_wal_flush_lsn(), '0/0')::bigint";
    let replayed = "select pg_wal_lsn_diff(pg_last_wal_replay_lsn(), '0/0')::bigint";
    let end = number(store.pool(), end).await;
    soon("all is replayed", async || number(copy.pool(), replayed).await >= end).await;
    primary.run("crash");

    run(copy.pool(), "select pg_promote()").await;
    assert_eq!(carry_and_deliver(&copy).await, [3, 4, 5]);
    emit(&copy, 6..8).await;
    assert_eq!(carry_and_deliver(&copy).await, [6, 7]);
}

async fn emit(store: &PostgresStore, numbers: Range<u64>) {
    let mut tx = store.begin().await.unwrap();
    store.outbox().as_messages().append_all(&mut tx, &events("a", numbers)).await.unwrap();
    tx.commit().await.unwrap();
}

async fn carry_and_deliver(store: &PostgresStore) -> Vec<u64> {
    store.carry_messages("orders").await.unwrap().caught_up().await.unwrap();
    let mut relay = Relay { source: store.source("orders").await.unwrap() };
    delivered_numbers(&relay.deliver_all(10).await)
}

async fn soon(what: &str, is_so: impl AsyncFn() -> bool) {
    let began = Instant::now();
    while !is_so().await {
        assert!(began.elapsed() < PATIENCE, "never: {what}");
        sleep(Duration::from_millis(100)).await;
    }
}

async fn number(pool: &PgPool, sql: &'static str) -> i64 {
    sqlx::query_scalar(sql).fetch_one(pool).await.unwrap()
}

async fn run(pool: &PgPool, sql: &'static str) {
    sqlx::raw_sql(sql).execute(pool).await.unwrap();
}

/// One of PostgreSQL 17, whatever is installed.
struct Server {
    folder: TempDir,
    address: String,
}

impl Server {
    fn start() -> Self {
        let folder = tempfile::Builder::new().prefix("semel-server-").tempdir().unwrap();
        fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o755)).unwrap();
        let mut server = Self { folder, address: String::new() };
        server.run("start");
        let address = fs::read_to_string(server.file("address")).unwrap();
        address.trim().clone_into(&mut server.address);
        server
    }

    fn run(&self, action: &str) {
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../scripts/server");
        let mut command = Command::new(script);
        command.args(["postgres17", action]).arg(self.folder.path());
        let done = command.env_remove("SEMEL_TEST_POSTGRES17_URL").output().unwrap();
        assert!(done.status.success(), "{action}: {}", String::from_utf8_lossy(&done.stderr));
    }

    fn file(&self, name: &str) -> PathBuf {
        self.folder.path().join("postgres17").join(name)
    }

    /// A copy of it, which follows it.
    async fn standby(&self, primary: &PgPool) -> Standby {
        let (data, copy) = (self.file("data"), self.file("standby"));
        let mut backup = primary.acquire().await.unwrap();
        let begin = "select pg_create_physical_replication_slot('standby', true); \
            select pg_backup_start('standby', true)";
        sqlx::raw_sql(begin).execute(&mut *backup).await.unwrap();
        // What goes meanwhile makes it complain, and is not needed.
        Command::new("cp").arg("--recursive").args([&data, &copy]).status().unwrap();
        let label: String = sqlx::query_scalar("select labelfile from pg_backup_stop(false)")
            .fetch_one(&mut *backup)
            .await
            .unwrap();
        fs::remove_file(copy.join("postmaster.pid")).unwrap();
        fs::remove_dir_all(copy.join("pg_replslot")).unwrap();
        fs::create_dir(copy.join("pg_replslot")).unwrap();
        fs::write(copy.join("backup_label"), label).unwrap();
        fs::write(copy.join("standby.signal"), "").unwrap();
        let settings = File::options().append(true).open(copy.join("postgresql.auto.conf"));
        let port = primary.connect_options().get_port();
        write!(
            settings.unwrap(),
            "primary_conninfo = 'host=127.0.0.1 port={port} user=postgres dbname=postgres'
            primary_slot_name = 'standby'
            hot_standby_feedback = on"
        )
        .unwrap();
        let chown = ["--recursive", "--reference"].map(Path::new);
        let chowned = Command::new("chown").args(chown).args([&data, &copy]).status().unwrap();
        assert!(chowned.success(), "{chowned}");
        Standby::start(&self.file("programs/bin/postgres"), &copy)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.run("stop");
    }
}

struct Standby {
    process: Child,
    port: u16,
}

impl Standby {
    fn start(program: &Path, data: &Path) -> Self {
        let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let owner = fs::metadata(data).unwrap();
        let log = File::create(data.with_extension("log")).unwrap();
        let process = Command::new(program)
            .args(["-p", &port.to_string(), "-D"])
            .arg(data)
            .uid(owner.uid())
            .gid(owner.gid())
            .current_dir("/")
            .stderr(log)
            .spawn();
        Self { process: process.unwrap(), port }
    }

    async fn connect(&self) -> PostgresStore {
        let url = format!("postgres://postgres@127.0.0.1:{}/postgres", self.port);
        let config = PostgresConfig::new(&url).unwrap();
        soon("the standby answers", async || config.connect().await.is_ok()).await;
        connect(&url).await
    }
}

impl Drop for Standby {
    fn drop(&mut self) {
        // At once, with all its processes.
        Command::new("kill").args(["-s", "QUIT", &self.process.id().to_string()]).status().ok();
        self.process.wait().ok();
    }
}
