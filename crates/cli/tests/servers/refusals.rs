//! Everything that can be wrong with a database: the exit code, what is said, and what to run.

use std::fs;

use semel_testkit::services::Service;

use super::server::{Folder, Server, execute};

/// A command on a URL, the code it must end with, and what it must say.
struct Case {
    what: &'static str,
    url: String,
    arguments: &'static [&'static str],
    code: i32,
    says: &'static [&'static str],
}

fn case(
    what: &'static str,
    url: impl Into<String>,
    arguments: &'static [&'static str],
    code: i32,
    says: &'static [&'static str],
) -> Case {
    Case { what, url: url.into(), arguments, code, says }
}

const RELAY: &[&str] = &["relay", "--drain"];
const STATUS: &[&str] = &["status"];
const LIST: &[&str] = &["events", "list"];
const UP: &[&str] = &["migrate", "up", "--database", "URL"];
const MIGRATIONS: &[&str] = &["migrate", "status", "--database", "URL"];
const DOWN: &[&str] = &["migrate", "down", "--yes", "--database", "URL"];
const GRANTS: &[&str] = &["grants", "--database", "URL"];
const SEND: &[&str] = &[
    "send",
    "--database",
    "URL",
    "--aggregate-type",
    "order",
    "--aggregate-id",
    "42",
    "--type",
    "T",
];
const SEND_LARGE: &[&str] = &[
    "send",
    "--database",
    "URL",
    "--aggregate-type",
    "order",
    "--aggregate-id",
    "42",
    "--type",
    "T",
    "--payload",
    "@large",
    "--content-type",
    "text/plain",
];

const ALL: &[&[&str]] = &[RELAY, STATUS, LIST, UP, MIGRATIONS, DOWN, GRANTS, SEND];

/// Runs every case; `URL` in the arguments is its URL. All that is wrong is told at once.
fn check(folder: &Folder, cases: &[Case]) {
    folder.configure("");
    let mut wrong = Vec::new();
    for Case { what, url, arguments, code, says } in cases {
        let arguments: Vec<_> =
            arguments.iter().map(|&each| if each == "URL" { url.as_str() } else { each }).collect();
        let output = folder.semel(url, &arguments);
        let said = [output.stdout, output.stderr].concat();
        let said = String::from_utf8_lossy(&said);
        let missing: Vec<_> = says.iter().filter(|part| !said.contains(**part)).collect();
        let complete = *code == 0
            || *code == 1
            || ["error[", "effect ", "run "].iter().all(|part| said.contains(part));
        if output.status.code() != Some(*code) || !missing.is_empty() || !complete {
            let ended = output.status.code();
            wrong.push(format!(
                "{what}: {arguments:?} ended with {ended:?}, not {code}; \
                                it does not say {missing:?}:\n{said}"
            ));
        }
        assert!(!said.contains("hunter2"), "{what}: {said}");
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// Each command that connects, on one URL.
fn all(
    what: &'static str,
    url: &str,
    code: i32,
    says: &'static [&'static str],
) -> impl Iterator<Item = Case> {
    ALL.iter().map(move |arguments| case(what, url, arguments, code, says))
}

#[test]
fn a_url_that_is_none_of_ours() {
    let folder = Folder::new();
    let mut cases = Vec::new();
    for url in ["oracle://me:hunter2@db/shop", "hunter2", ""] {
        cases.extend(all("another database", url, 78, &["the URL must begin with sqlite://"]));
    }
    for url in ["postgres://me:hunter2@db:port/shop", "mysql://me:hunter2@db:port/shop"] {
        cases.extend(all("a port that is none", url, 78, &["cannot read the database URL"]));
    }
    cases.extend(all("no database", "mysql://me:hunter2@db", 78, &["names no database"]));
    check(&folder, &cases);
}

#[test]
fn a_server_that_is_not_there() {
    let mut cases: Vec<_> =
        all("down", "postgres://me:hunter2@127.0.0.1:1/shop", 69, &["E-POSTGRES-DOWN", "refused"])
            .collect();
    cases.extend(all(
        "down",
        "mysql://me:hunter2@127.0.0.1:1/shop",
        69,
        &["E-MYSQL-DOWN", "refused"],
    ));
    cases.push(case("no such host", "postgres://nowhere.invalid/shop", STATUS, 69, &["nowhere"]));
    // Each tries for some seconds: all at once.
    std::thread::scope(|scope| {
        for case in &cases {
            scope.spawn(|| check(&Folder::new(), std::slice::from_ref(case)));
        }
    });
}

#[test]
fn a_command_that_is_wrong() {
    let folder = Folder::new();
    for arguments in [
        &["grants"][..],
        &["grants", "--kind", "oracle"],
        &["grants", "--kind", "postgres", "--database", "postgres://db/shop"],
        &["grants", "--kind", "postgres", "--role", ""],
        &["grants", "--kind", "mysql", "--role", "a name that is too long for it"],
        &["migrate", "down"],
        &["send", "--database", "sqlite://shop.db"],
    ] {
        folder.expect(64, "", arguments);
    }
}

async fn databases_that_are_not_ready(server: &Server) {
    let postgres = server.service == Service::Postgres;
    let url = server.url.as_str();
    let elsewhere = format!("{}_missing", server.url);
    let cases: Vec<_> =
        all("no such database", &elsewhere, 78, &["-ACCESS", "check host, database"])
            .chain([
                case("no tables", url, RELAY, 78, &["E-SCHEMA-MISSING", "semel migrate up"]),
                case("no tables", url, STATUS, 78, &["E-SCHEMA-MISSING", "semel migrate up"]),
                case("no tables", url, LIST, 78, &["E-SCHEMA-MISSING", "semel migrate up"]),
                case("no tables", url, SEND, 78, &["E-SCHEMA-MISSING", "semel migrate up"]),
                case("no tables", url, GRANTS, 78, &["E-SCHEMA-MISSING", "semel migrate up"]),
                case("no tables", url, MIGRATIONS, 1, &["missing 0001_tables"]),
                case("no tables", url, DOWN, 0, &["there are no tables"]),
            ])
            .collect();
    check(server, &cases);

    server.expect(0, url, &["migrate", "up", "--database", url]);
    let migrations = if postgres { "semel.migrations" } else { "semel_migrations" };
    server.run(&format!("insert into {migrations} (version, name) values (99, 'later')")).await;
    check(server, &all("newer", url, 78, &["E-SCHEMA-NEWER", "99"]).collect::<Vec<_>>());
    server.run(&format!("delete from {migrations}")).await;
    let older = [RELAY, STATUS, LIST, SEND, GRANTS]
        .map(|command| case("older", url, command, 78, &["E-SCHEMA-MISSING", "semel migrate up"]));
    check(server, &older);
    let cursor = if postgres { "semel.cursor" } else { "semel_cursor" };
    server.run(&format!("insert into {migrations} (version, name) values (1, 'x')")).await;
    if postgres {
        server.run("drop view semel.events; drop function semel.events_of(text)").await;
        server.run("alter table semel.cursor rename to moved").await;
    } else {
        server.run(&format!("rename table {cursor} to moved")).await;
    }
    let torn = [RELAY, STATUS, LIST]
        .map(|command| case("a table is missing", url, command, 78, &["E-SCHEMA-MISSING"]));
    check(server, &torn);
}

async fn users_who_may_not(server: &Server) {
    let postgres = server.service == Service::Postgres;
    let nobody = server.url_of("semel_nobody:hunter2");
    check(server, &all("unknown", &nobody, 77, &["-LOGIN", "check user"]).collect::<Vec<_>>());

    let user = format!("weak_{}", std::process::id());
    let url = if postgres {
        server.run(&format!("create role {user} login")).await;
        server.url_of(&user)
    } else {
        let password = format!("create user {user}@localhost identified by 'right'");
        server.run(&password).await;
        let wrong = server.url_of(&format!("{user}:hunter2"));
        check(server, &all("wrong password", &wrong, 77, &["-LOGIN"]).collect::<Vec<_>>());
        server.run(&format!("grant select on semel_keys to {user}@localhost")).await;
        server.url_of(&format!("{user}:right"))
    };
    let denied = [RELAY, STATUS, LIST, SEND].map(|command| {
        case("no privileges", url.as_str(), command, 77, &["-PRIVILEGE", "semel grants"])
    });
    check(server, &denied);
    let drop =
        if postgres { format!("drop role {user}") } else { format!("drop user {user}@localhost") };
    server.run(&drop).await;
}

fn events_that_are_wrong(server: &Server) {
    fs::write(server.file("large"), vec![b'x'; 1024 * 1024 + 1]).unwrap();
    let url = server.url.as_str();
    check(server, &[case("too large", url, SEND_LARGE, 1, &["the limit is 1048576", "no event"])]);
}

/// Names are data: nothing in them is taken for SQL.
async fn names_with_quotes(server: &Server) {
    let (url, name) = (server.url.as_str(), "o'b\"r`i\\en; drop table x; -- {}");
    let text = r#"
        source.s.url = "${DATABASE_URL}"
        sink.out = { type = "file", path = "quoted.ndjson" }
        pipeline."o'r\"d`e\\rs; --" = { from = "s", to = "out" }
    "#;
    fs::write(server.file("semel.toml"), text).unwrap();
    let send = ["send", "--database", url, "--aggregate-type", name, "--aggregate-id", name];
    let more = ["--type", name, "--header", "x=o'b\"r", "--key", name, "--payload", "\"'\""];
    server.expect(0, url, &[&send[..], &more].concat());
    server.expect(0, url, &["relay", "--drain"]);
    let published = fs::read_to_string(server.file("quoted.ndjson")).unwrap();
    let event: serde_json::Value = serde_json::from_str(published.trim()).unwrap();
    for field in ["aggregate_type", "aggregate_id", "event_type", "key"] {
        assert_eq!(event[field], name, "{field}");
    }
    let listed = server.expect(0, url, &["events", "list", "--aggregate", name]);
    assert!(listed.contains("published"), "{listed}");
}

/// A database whose name has to be quoted everywhere.
async fn a_database_with_quotes(server: &Server) {
    let odd = if server.service == Service::Postgres {
        format!("\"{}'\"\"x\"", server.name)
    } else {
        format!("`{}'\"x`", server.name)
    };
    server.run(&format!("create database {odd}")).await;
    let url = format!("{}%27%22x", server.url);
    for command in [UP, MIGRATIONS, SEND, STATUS, GRANTS] {
        check(server, &[case("a quoted database", url.as_str(), command, 0, &[])]);
    }
    server.run(&format!("drop database {odd}")).await;
}

async fn all_that_can_be_wrong(service: Service) {
    let Some(server) = Server::start(service, "wrong").await else { return };
    server.configure("");
    server.expect(0, &server.url, &["migrate", "up", "--database", &server.url]);
    users_who_may_not(&server).await;
    events_that_are_wrong(&server);
    names_with_quotes(&server).await;
    a_database_with_quotes(&server).await;
    server.remove().await;
    let Some(server) = Server::start(service, "unready").await else { return };
    databases_that_are_not_ready(&server).await;
    server.remove().await;
}

#[tokio::test]
async fn all_that_can_be_wrong_with_sqlite() {
    sqlx::any::install_default_drivers();
    let folder = Folder::new();
    fs::write(folder.file("noise.db"), "this is not a database at all, not even a small one")
        .unwrap();
    fs::write(folder.file("empty.db"), "").unwrap();
    let others = [RELAY, STATUS, LIST, MIGRATIONS, DOWN, GRANTS, SEND];
    let mut cases: Vec<_> = others
        .iter()
        .map(|command| case("no file", "sqlite://none.db", command, 78, &["E-SQLITE-ACCESS"]))
        .collect();
    cases.extend(all("no folder", "sqlite://none/x.db", 78, &["E-SQLITE-ACCESS"]));
    cases.extend(all("in memory", "sqlite://:memory:", 78, &["E-SQLITE-MEMORY"]));
    cases.extend(all("no database", "sqlite://noise.db", 78, &["E-SQLITE-CORRUPT"]));
    for command in [RELAY, STATUS, LIST, SEND, GRANTS] {
        cases.push(case("no tables", "sqlite://empty.db", command, 78, &["semel migrate up"]));
    }
    check(&folder, &cases);
    assert!(!folder.file("none.db").exists(), "a mistyped name must not make a file");

    let url = "sqlite://shop.db";
    folder.expect(0, url, &["migrate", "up", "--database", url]);
    let path = format!("sqlite://{}", folder.file("shop.db").display());
    let newer = "insert into semel_migrations (version, name) values (99, 'later')";
    execute(&path, newer).await.unwrap();
    check(&folder, &all("newer", url, 78, &["E-SCHEMA-NEWER", "99"]).collect::<Vec<_>>());
    execute(&path, "delete from semel_migrations").await.unwrap();
    let older = [RELAY, STATUS, LIST, SEND, GRANTS]
        .map(|command| case("older", url, command, 78, &["E-SCHEMA-MISSING", "semel migrate up"]));
    check(&folder, &older);
}

#[tokio::test]
async fn all_that_can_be_wrong_with_postgres() {
    all_that_can_be_wrong(Service::Postgres).await;
}

#[tokio::test]
async fn all_that_can_be_wrong_with_mysql() {
    all_that_can_be_wrong(Service::Mysql).await;
}
