//! `semel check`: what is wrong is found, what it prints is run, and then it is right.

use std::fs;
use std::process::Command;

use semel_testkit::services::{Private, Service};
use serde_json::Value;

use super::server::{Folder, Server, execute};

/// Statements one by one, as an administrator would run them.
fn psql(folder: &Folder, url: &str, sql: &str) {
    fs::write(folder.file("fix.sql"), sql).unwrap();
    let done = Command::new("psql")
        .args(["--no-psqlrc", "--quiet", "--set=ON_ERROR_STOP=1", "--file"])
        .arg(folder.file("fix.sql"))
        .arg(url)
        .output()
        .unwrap();
    assert!(done.status.success(), "{sql}\n{}", String::from_utf8_lossy(&done.stderr));
}

fn codes(folder: &Folder, code: i32, url: &str, severity: &str) -> Vec<String> {
    let printed = folder.expect(code, url, &["check", "--database", url, "--output", "json"]);
    let databases: Vec<Value> = serde_json::from_str(&printed).unwrap();
    let findings = databases[0]["findings"].as_array().unwrap();
    let found = findings.iter().filter(|finding| finding["severity"] == severity);
    found.map(|finding| finding["code"].as_str().unwrap().to_owned()).collect()
}

#[tokio::test]
async fn what_is_printed_sets_everything_right() {
    let Some(server) = Private::start(Service::Postgres) else { return };
    sqlx::any::install_default_drivers();
    let (folder, admin) = (Folder::new(), server.address());
    let relay = admin.replacen("postgres@", "relay@", 1);
    psql(
        &folder,
        admin,
        "create role relay login;
        select pg_create_physical_replication_slot('standby', true);
        alter system set wal_level = replica;
        alter system set max_replication_slots = 1;
        alter system set fsync = off;
        alter system set autovacuum = off;",
    );
    server.restart();
    let problems = codes(&folder, 1, &relay, "problem");
    assert_eq!(problems, ["schema"]);
    let expected =
        ["durability", "autovacuum", "wal-level", "replication", "slots", "wal-keep", "slot-left"];
    assert_eq!(codes(&folder, 1, &relay, "advice"), expected);

    let fix = |code: i32| {
        let sql = folder.expect(code, &relay, &["check", "--database", &relay, "--fix-sql"]);
        psql(&folder, admin, &sql);
        server.restart();
    };
    fix(1);
    // With the tables come their privileges, with the level a slot of our own.
    psql(&folder, admin, "select pg_create_logical_replication_slot('semel_old', 'pgoutput')");
    let problems = codes(&folder, 1, &relay, "problem");
    assert_eq!(problems, ["privileges", "slot-left"]);
    fix(1);
    assert_eq!(codes(&folder, 0, &relay, "advice"), ["slot-left"]);
    let text = folder.expect(0, &relay, &["check", "--database", &relay]);
    assert!(text.contains("standby") && text.contains("1 piece of advice"), "{text}");
    assert!(text.contains("pg_drop_replication_slot('standby')"), "{text}");
    let sql = folder.expect(0, &relay, &["check", "--database", &relay, "--fix-sql"]);
    assert!(sql.lines().all(|line| line.starts_with("-- ")), "others' slots are theirs: {sql}");

    execute(admin, "select pg_drop_replication_slot('standby')").await.unwrap();
    let text = folder.expect(0, &relay, &["check", "--database", &relay]);
    assert!(text.ends_with("all right\n"), "{text}");
    assert_eq!(folder.expect(0, &relay, &["check", "--database", &relay, "--fix-sql"]), "");

    // The relay that it is all for.
    folder.configure("");
    folder.expect(0, &relay, &["relay", "--drain"]);
    let text = folder.expect(0, &relay, &["check"]);
    assert!(text.contains("advice   retention") && text.contains("[retention]"), "{text}");
    folder.configure("[retention]\nkeep = \"7d\"");
    let text = folder.expect(0, &relay, &["check"]);
    assert!(text.contains("ok       retention") && text.ends_with("all right\n"), "{text}");
}

#[tokio::test]
async fn what_is_printed_for_mysql_sets_everything_right() {
    let Some(server) = Private::start(Service::Mysql) else { return };
    sqlx::any::install_default_drivers();
    let folder = Folder::new();
    // The database that the server comes with is open to everybody.
    execute(server.address(), "create database shop").await.unwrap();
    let (base, _) = server.address().rsplit_once('/').unwrap();
    let admin = format!("{base}/shop");
    let relay = admin.replacen("root@", "relay@", 1);
    folder.expect(0, &admin, &["migrate", "up", "--database", &admin]);
    // A user without any privilege on the database is not let in.
    let user = "create user relay@localhost; grant select on semel_migrations to relay@localhost";
    execute(&admin, user).await.unwrap();
    assert_eq!(codes(&folder, 1, &relay, "problem"), ["privileges"]);
    let advice = codes(&folder, 1, &relay, "advice");
    assert!(advice.iter().any(|code| code == "replication"), "{advice:?}");

    let sql = folder.expect(1, &relay, &["check", "--database", &relay, "--fix-sql"]);
    execute(&admin, &sql).await.unwrap_or_else(|error| panic!("{sql}\n{error}"));
    let text = folder.expect(0, &relay, &["check", "--database", &relay]);
    assert!(text.ends_with("all right\n"), "{text}");
    assert_eq!(folder.expect(0, &relay, &["check", "--database", &relay, "--fix-sql"]), "");

    folder.configure("");
    folder.expect(0, &relay, &["relay", "--drain"]);
}

#[tokio::test]
async fn how_bad_it_is_depends_on_what_is_configured() {
    let Some(server) = Server::start(Service::Postgres, "check").await else { return };
    server.expect(0, &server.url, &["migrate", "up", "--database", &server.url]);
    server.run("drop publication if exists semel_outbox").await;
    for (mode, code, severity) in
        [("tail", 1, "problem  publication"), ("auto", 0, "advice   publication")]
    {
        configure(&server, mode);
        let text = server.expect(code, &server.url, &["check"]);
        assert!(text.contains(severity) && text.contains("create publication"), "{text}");
    }
    configure(&server, "poll");
    let text = server.expect(0, &server.url, &["check"]);
    assert!(!text.contains("publication semel_outbox") && !text.contains("wal-level"), "{text}");
    server.remove().await;
}

#[tokio::test]
async fn status_says_how_events_are_learned_of() {
    let Some(server) = Server::start(Service::Postgres, "learned").await else { return };
    server.expect(0, &server.url, &["migrate", "up", "--database", &server.url]);
    let status = || server.expect(0, &server.url, &["status"]);
    configure(&server, "poll");
    assert!(status().contains("polling (mode = \"poll\")"), "{}", status());
    server.configure("");
    assert!(status().contains("polling (no relay runs"), "{}", status());
    server.run("drop publication semel_outbox").await;
    assert!(status().contains("polling (there is no publication semel_outbox)"), "{}", status());

    let mut relay = server.relay(&server.url);
    relay.until("it tails", || status().contains("tailing")).await;
    let json = server.expect(0, &server.url, &["status", "--output", "json"]);
    let json: Value = serde_json::from_str(&json).unwrap();
    assert_eq!((&json[0]["tailing"], &json[0]["polling_because"]), (&true.into(), &Value::Null));
    drop(relay);
    server.remove().await;
}

fn configure(server: &Server, mode: &str) {
    let text = format!(
        "[source.orders]\nurl = \"${{DATABASE_URL}}\"\nmode = \"{mode}\"\n[sink.out]\n\
         type = \"stdout\"\n[pipeline.orders]\nfrom = \"orders\"\nto = \"out\"\n"
    );
    fs::write(server.file("semel.toml"), text).unwrap();
}

#[test]
fn sql_is_for_one_database() {
    let folder = Folder::new();
    let text = "[source.a]\nurl = \"sqlite://a.db\"\n[source.b]\nurl = \"sqlite://b.db\"\n\
        [sink.out]\ntype = \"stdout\"\n[pipeline.a]\nfrom = \"a\"\nto = \"out\"\n\
        [pipeline.b]\nfrom = \"b\"\nto = \"out\"\n";
    fs::write(folder.file("semel.toml"), text).unwrap();
    for name in ["a.db", "b.db"] {
        fs::write(folder.file(name), "").unwrap();
    }
    let text = folder.expect(1, "", &["check"]);
    assert_eq!(text.matches("problem  schema").count(), 2, "{text}");
    assert!(text.contains("semel migrate up") && text.contains("2 problems"), "{text}");
    assert!(folder.expect(64, "", &["check", "--fix-sql"]).contains("E-SEVERAL-DATABASES"));
    folder.expect(1, "", &["check", "--fix-sql", "--database", "sqlite://a.db"]);
    folder.expect(0, "", &["migrate", "up", "--database", "sqlite://a.db"]);
    assert!(folder.expect(0, "", &["check", "--database", "sqlite://a.db"]).contains("all right"));
    folder.expect(78, "", &["check", "--database", "sqlite://missing.db"]);
    folder.expect(64, "", &["check", "--database", "sqlite://a.db", "--config", "semel.toml"]);
}
