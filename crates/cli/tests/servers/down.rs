//! `semel migrate down`: nothing is dropped that somebody still needs.

use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use semel_testkit::services::Service;
use sqlx::any::install_default_drivers;
use sqlx::{AnyConnection, AssertSqlSafe, Connection};

use super::server::{Folder, Server, execute, number};

/// What all databases have in common. `url` is that of a database without tables.
fn tables_go_when_nothing_is_lost_by_it(folder: &Folder, url: &str) {
    let run = |code, arguments: &[&str]| folder.expect(code, url, arguments);
    let migrate =
        |code, what: &[&str]| run(code, &[&["migrate"], what, &["--database", url]].concat());
    let send = ["send", "--database", url, "--aggregate-type", "order", "--aggregate-id", "42"];
    let send = [&send[..], &["--type", "OrderPlaced"]].concat();
    folder.configure("topic = \"{header.tenant}\"");

    assert!(migrate(0, &["down", "--yes"]).contains("there are no tables"));
    assert!(migrate(0, &["down", "--dry-run"]).to_lowercase().contains("drop table"));
    migrate(1, &["status"]);
    migrate(0, &["up"]);
    migrate(0, &["status"]);
    run(0, &send);
    run(0, &send);
    let message = migrate(1, &["down", "--yes"]);
    assert!(message.contains("E-EVENTS-LEFT") && message.contains("2 that no pipeline has read"));
    run(1, &["relay", "--drain"]);
    let message = migrate(1, &["down", "--yes"]);
    let expected = "pipeline orders: 1 not published, 1 failed or dead";
    assert!(message.contains(expected) && message.contains("semel dead"), "{message}");

    folder.configure("");
    run(0, &["dead", "retry", "--all", "--yes"]);
    run(0, &["relay", "--drain"]);
    let message = migrate(64, &["down"]);
    assert!(message.contains("E-NOT-CONFIRMED") && message.contains("--yes"), "{message}");
    migrate(0, &["status"]);
    migrate(0, &["down", "--dry-run"]);
    migrate(0, &["status"]);
    let told = migrate(0, &["down", "--yes"]);
    assert!(told.contains("the tables are gone, with 2 events"), "{told}");
    // Who it was is in the log, for the table of changes is gone.
    assert!(told.contains("drops the tables of ") && told.contains('@'), "{told}");
    assert!(migrate(1, &["status"]).contains("missing 0001_tables"));

    migrate(0, &["up"]);
    run(0, &send);
    migrate(64, &["down", "--force"]);
    assert!(migrate(0, &["down", "--force", "--yes"]).contains("with 1 events"));
    assert!(migrate(0, &["down", "--yes"]).contains("there are no tables"));
}

#[test]
fn sqlite_tables_go_when_nothing_is_lost_by_it() {
    let folder = Folder::new();
    std::fs::write(folder.file("shop.db"), "").unwrap();
    tables_go_when_nothing_is_lost_by_it(&folder, "sqlite://shop.db");
}

#[tokio::test]
async fn postgres_tables_go_when_nothing_is_lost_by_it() {
    let Some(server) = Server::start(Service::Postgres, "down").await else { return };
    tables_go_when_nothing_is_lost_by_it(&server, &server.url);
    let left = "select count(*) from pg_namespace where nspname = 'semel'";
    assert_eq!(number(&server.url, left).await.unwrap(), 0, "the schema is gone as well");
    server.remove().await;
}

#[tokio::test]
async fn mysql_tables_go_when_nothing_is_lost_by_it() {
    let Some(server) = Server::start(Service::Mysql, "down").await else { return };
    tables_go_when_nothing_is_lost_by_it(&server, &server.url);
    let left = "select count(*) from information_schema.tables where table_schema = database()";
    assert_eq!(number(&server.url, left).await.unwrap(), 0);
    server.remove().await;
}

/// What a consumer has put aside is acknowledged at the broker: it is nowhere else. `insert` writes one.
async fn letters_of_consumers_are_not_lost(folder: &Folder, url: &str, insert: &str) {
    let migrate = |code, what: &[&str]| {
        folder.expect(code, url, &[&["migrate"], what, &["--database", url]].concat())
    };
    migrate(0, &["up"]);
    execute(url, insert).await.unwrap();
    let message = migrate(1, &["down", "--yes"]);
    assert!(message.contains("E-EVENTS-LEFT") && message.contains("1 letters"), "{message}");
    migrate(0, &["status"]);
    assert!(migrate(0, &["down", "--yes", "--force"]).contains("the tables are gone"));
}

#[tokio::test]
async fn letters_in_sqlite_are_not_lost() {
    install_default_drivers();
    let folder = Folder::new();
    let file = folder.file("shop.db");
    std::fs::write(&file, "").unwrap();
    let insert = "insert into semel_letters (consumer, message_id, lane, place, state, attempts, message, \
        changed_at) values ('billing', 'm', 1, 0, 'behind', 0, '{}', 0)";
    let url = format!("sqlite://{}", file.display());
    letters_of_consumers_are_not_lost(&folder, &url, insert).await;
}

#[tokio::test]
async fn letters_in_postgres_are_not_lost() {
    let Some(server) = Server::start(Service::Postgres, "down_l").await else { return };
    let insert = "insert into semel.letters (consumer, message_id, lane, place, state, attempts, message) \
        values ('billing', gen_random_uuid(), 1, 0, 'dead', 5, '{}')";
    letters_of_consumers_are_not_lost(&server, &server.url, insert).await;
    server.remove().await;
}

#[tokio::test]
async fn letters_in_mysql_are_not_lost() {
    let Some(server) = Server::start(Service::Mysql, "down_l").await else { return };
    let insert = "insert into semel_letters (consumer, message_id, lane, place, state, attempts, message, \
        changed_at) values ('billing', unhex(replace(uuid(), '-', '')), 1, 0, 'dead', 5, '{}', now(6))";
    letters_of_consumers_are_not_lost(&server, &server.url, insert).await;
    server.remove().await;
}

#[tokio::test]
async fn messages_that_no_relay_has_carried_are_not_lost() {
    let Some(server) = Server::start(Service::Postgres, "down_m").await else { return };
    let run = |code, arguments: &[&str]| server.expect(code, &server.url, arguments);
    let down = ["migrate", "down", "--yes", "--database", &server.url];
    run(0, &["migrate", "up", "--messages", "--database", &server.url]);
    let emit = async |prefix: &str, text: &str| {
        let emit = format!("perform pg_logical_emit_message(true, '{prefix}', '{text}')");
        server.run(&format!("do $$ begin {emit}; end $$")).await;
    };
    emit("other", "of somebody else").await;
    server.run("create table other (content text); insert into other values ('x')").await;
    let event = r#"{"id": "01890a5d-ac96-774b-bcce-b302099a8057", "aggregate_type": "order",
        "aggregate_id": "42", "event_type": "OrderPlaced", "payload": "{}"}"#;
    emit("semel", event).await;
    let message = run(1, &down);
    let expected = "1 messages that no relay has carried";
    assert!(message.contains("E-EVENTS-LEFT") && message.contains(expected), "{message}");
    run(1, &down);
    server.configure("");
    let text = std::fs::read_to_string(server.file("semel.toml")).unwrap();
    let text = text.replace("[sink.out]", "outbox = \"messages\"\n[sink.out]");
    std::fs::write(server.file("semel.toml"), text).unwrap();
    run(0, &["relay", "--drain"]);
    let is_read = "select count(*) from pg_replication_slots
                   where active and database = current_database()";
    while number(&server.url, is_read).await.unwrap() > 0 {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    assert!(run(0, &down).contains("the tables are gone, with 1 events"));
    server.remove().await;
}

#[tokio::test]
async fn what_is_built_on_the_tables_keeps_them() {
    let Some(server) = Server::start(Service::Postgres, "down_v").await else { return };
    let (up, down) = (["migrate", "up", "--database"], ["migrate", "down", "--yes", "--database"]);
    server.expect(0, &server.url, &[&up[..], &[&server.url]].concat());
    server.run("create view mine as select id from semel.outbox").await;
    let message = server.expect(78, &server.url, &[&down[..], &[&server.url]].concat());
    assert!(message.contains("E-SCHEMA-IN-USE") && message.contains("mine"), "{message}");
    server
        .run(
            "insert into semel.outbox (aggregate_type, aggregate_id, event_type, payload)
                values ('order', '42', 'T', '1')",
        )
        .await;
    server.remove().await;
}

/// A writer that is in the middle of a transaction.
async fn writing(server: &Server) -> AnyConnection {
    let mut writer = AnyConnection::connect(&server.url).await.unwrap();
    let insert = format!(
        "begin; insert into {} (aggregate_type, aggregate_id, event_type, payload)
         values ('order', '42', 'T', '1')",
        server.outbox()
    );
    sqlx::raw_sql(AssertSqlSafe(insert)).execute(&mut writer).await.unwrap();
    writer
}

async fn what_is_written_meanwhile_is_not_lost(service: Service, is_waiting: &str) {
    let Some(server) = Server::start(service, "down_w").await else { return };
    server.expect(0, &server.url, &["migrate", "up", "--database", &server.url]);
    let mut writer = writing(&server).await;
    let mut command = Command::new(env!("CARGO_BIN_EXE_semel"));
    command.args(["migrate", "down", "--yes", "--database", &server.url]);
    let down = command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
    let deadline = Instant::now() + Duration::from_secs(8);
    while number(&server.url, is_waiting).await.unwrap() == 0 {
        assert!(Instant::now() < deadline, "it never waited for the writer");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    sqlx::raw_sql("commit").execute(&mut writer).await.unwrap();
    let output = down.wait_with_output().unwrap();
    let message = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1), "{message}");
    assert!(message.contains("events were written meanwhile"), "{message}");
    let count = format!("select count(*) from {}", server.outbox());
    assert_eq!(number(&server.url, &count).await.unwrap(), 1);
    drop(writer);

    let writer = writing(&server).await;
    let down = ["migrate", "down", "--yes", "--force", "--database", &server.url];
    let message = server.expect(75, &server.url, &down);
    assert!(message.contains("-CONFLICT"), "a writer that does not end: {message}");
    drop(writer);
    server.remove().await;
}

#[tokio::test]
async fn what_is_written_to_postgres_meanwhile_is_not_lost() {
    let waiting = "select count(*) from pg_locks l join pg_database d on d.oid = l.database
                   where not l.granted and d.datname = current_database()";
    what_is_written_meanwhile_is_not_lost(Service::Postgres, waiting).await;
}

#[tokio::test]
async fn what_is_written_to_mysql_meanwhile_is_not_lost() {
    let waiting = "select count(*) from information_schema.processlist
                   where db = database() and state like 'Waiting for table metadata lock%'";
    what_is_written_meanwhile_is_not_lost(Service::Mysql, waiting).await;
}
