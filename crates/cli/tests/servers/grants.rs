//! `semel grants`: the roles it prints can do their part, and nothing else, on real servers.

use std::fs;

use semel_core::Event;
use semel_core::outbox::AppendError;
use semel_testkit::services::Service;
use serde_json::Value;
use sqlx::error::DatabaseError;

use super::server::{Folder, Server, execute, number};

/// A database with the roles, each of which can log in.
struct Roles {
    server: Server,
    prefix: String,
}

impl Roles {
    async fn start(service: Service, what: &str) -> Option<Self> {
        let server = Server::start(service, what).await?;
        // With a quote in it, as names may have.
        let prefix = format!("r{}\"`{}", std::process::id(), &what[..1]);
        server.configure("");
        let grants = ["grants", "--database", &server.url, "--role", &prefix];
        assert!(server.expect(78, &server.url, &grants).contains("semel migrate up"));
        server.expect(0, &server.url, &["migrate", "up", "--database", &server.url]);
        let sql = server.expect(0, &server.url, &grants);
        for _ in 0..2 {
            server.run(&sql).await;
        }
        let kind = if service == Service::Postgres { "postgres" } else { "mysql" };
        let offline = ["grants", "--kind", kind, "--role", &prefix];
        assert_eq!(server.expect(0, "", &offline), sql, "the same without a connection");
        let roles = Self { server, prefix };
        for role in ROLES {
            roles.server.run(&roles.let_in(role)).await;
        }
        Some(roles)
    }

    fn user(&self, role: &str) -> String {
        format!("u{}_{role}", std::process::id())
    }

    fn let_in(&self, role: &str) -> String {
        let (user, prefix) = (self.user(role), &self.prefix);
        if self.server.service == Service::Postgres {
            let quoted = prefix.replace('"', "\"\"");
            format!("create role {user} login; grant \"{quoted}_{role}\" to {user}")
        } else {
            let quoted = prefix.replace('`', "``");
            format!(
                "create user {user}@localhost; grant `{quoted}_{role}` to {user}@localhost; \
                 set default role `{quoted}_{role}` for {user}@localhost"
            )
        }
    }

    fn url(&self, role: &str) -> String {
        self.server.url_of(&self.user(role))
    }

    /// Runs a command as one of the roles.
    fn expect(&self, code: i32, role: &str, arguments: &[&str]) -> String {
        self.server.expect(code, &self.url(role), arguments)
    }

    fn send(&self, code: i32, role: &str, more: &[&str]) -> String {
        let url = self.url(role);
        let send = ["send", "--database", &url, "--aggregate-type", "order", "--type", "T"];
        self.expect(code, role, &[&send, more].concat())
    }

    async fn denied(&self, role: &str, sql: &str) {
        let error = execute(&self.url(role), sql).await.unwrap_err();
        let code = error.as_database_error().and_then(DatabaseError::code).unwrap_or_default();
        // PostgreSQL: insufficient privilege; MySQL: denied for a table or a column.
        assert!(["42501", "42000"].contains(&&*code), "{role}: {sql}: {error}");
        assert!(error.to_string().contains("denied"), "{role}: {sql}: {error}");
    }

    fn published(&self) -> usize {
        fs::read_to_string(self.server.file("events.ndjson")).unwrap_or_default().lines().count()
    }

    async fn remove(self) {
        let (prefix, postgres) = (&self.prefix, self.server.service == Service::Postgres);
        for role in ROLES {
            let user = self.user(role);
            if postgres {
                let quoted = format!("\"{}_{role}\"", prefix.replace('"', "\"\""));
                self.server
                    .run(&format!("drop owned by {quoted}; drop role {user}, {quoted}"))
                    .await;
            } else {
                let quoted = format!("`{}_{role}`", prefix.replace('`', "``"));
                self.server.run(&format!("drop user {user}@localhost; drop role {quoted}")).await;
            }
        }
        self.server.remove().await;
    }
}

const ROLES: [&str; 4] = ["writer", "poller", "tailer", "viewer"];

async fn each_role_can_do_its_part(service: Service, what: &str) {
    let Some(roles) = Roles::start(service, what).await else { return };
    the_writer_adds_and_sees_nothing(&roles).await;
    the_poller_relays_and_repairs(&roles).await;
    the_viewer_sees_all_but_payloads(&roles).await;
    the_tailer_does_what_the_poller_does(&roles);
    the_tailer_tails(&roles).await;
    roles.remove().await;
}

async fn the_writer_adds_and_sees_nothing(roles: &Roles) {
    let outbox = roles.server.outbox();
    let key = ["--aggregate-id", "a", "--payload", "\"secret-a\"", "--key", "k"];
    roles.send(0, "writer", &key);
    assert!(roles.send(1, "writer", &key).contains("E-EVENT-DUPLICATE"));
    roles.send(0, "writer", &["--aggregate-id", "b", "--header", "tenant=t"]);
    append_several(roles).await;
    let guarded = if roles.server.service == Service::Postgres { "txid" } else { "position" };
    let changes = [
        format!("select count(*) from {outbox}"),
        format!("select payload from {outbox}"),
        format!("update {outbox} set event_type = 'X'"),
        format!("delete from {outbox} where event_type = 'X'"),
        format!("delete from {outbox}"),
        // What decides about the order is for the database to say.
        format!(
            "insert into {outbox} ({guarded}, aggregate_type, aggregate_id, event_type, payload)
             values ('7', 'order', '1', 'T', '1')"
        ),
    ];
    for sql in changes {
        roles.denied("writer", &sql).await;
    }
    roles.expect(77, "writer", &["status"]);
    roles.expect(77, "writer", &["relay", "--drain"]);
}

/// In one call, as a service would; and a call that repeats one of them.
async fn append_several(roles: &Roles) {
    use semel_backends::{mysql::MysqlConfig, postgres::PostgresConfig};
    let event = |id: &str| Event::new("order", id, "T").with_header("tenant", "t");
    let events = [event("c"), event("c").with_idempotency_key("c2")];
    let again = [event("c"), events[1].clone()];
    let url = roles.url("writer");
    let (first, second) = if roles.server.service == Service::Postgres {
        let store = PostgresConfig::new(&url).unwrap().connect().await.unwrap();
        let mut tx = store.begin().await.unwrap();
        let first = store.outbox().append_all(&mut tx, &events).await;
        tx.commit().await.unwrap();
        let mut tx = store.begin().await.unwrap();
        (first, store.outbox().append_all(&mut tx, &again).await)
    } else {
        let store = MysqlConfig::new(&url).unwrap().connect().await.unwrap();
        let mut tx = store.begin().await.unwrap();
        let first = store.outbox().append_all(&mut tx, &events).await;
        tx.commit().await.unwrap();
        let mut tx = store.begin().await.unwrap();
        (first, store.outbox().append_all(&mut tx, &again).await)
    };
    first.unwrap();
    assert!(matches!(second, Err(AppendError::Duplicate { .. })), "{second:?}");
}

async fn the_poller_relays_and_repairs(roles: &Roles) {
    let outbox = roles.server.outbox();
    roles.server.configure("topic = \"{header.tenant}\"");
    roles.expect(1, "poller", &["relay", "--drain"]);
    assert_eq!(roles.published(), 3, "one lacks the header");
    let listed = roles.expect(0, "poller", &["dead", "list", "--output", "json"]);
    assert!(listed.contains("E-") || listed.contains("tenant"), "{listed}");
    roles.server.configure("");
    assert!(
        roles
            .expect(0, "poller", &["dead", "retry", "--all", "--yes"])
            .contains("1 events retried")
    );
    roles.expect(0, "poller", &["relay", "--drain"]);
    assert_eq!(roles.published(), 4);
    let replayed = roles.expect(0, "poller", &["replay", "--all", "--yes", "--aggregate", "b"]);
    assert!(replayed.contains("1 events replayed"), "{replayed}");
    roles.expect(0, "poller", &["relay", "--drain"]);
    assert_eq!(roles.published(), 5);
    let deleted = roles.expect(0, "poller", &["clean", "--older-than", "0s", "--limit", "1"]);
    assert!(deleted.contains("1 events deleted"), "{deleted}");
    if roles.server.service == Service::Postgres {
        // As after a restore from a dump on another server.
        roles.server.run("update semel.outbox set txid = '4000000000000'").await;
        roles.server.run("update semel.cursor set server = 'another'").await;
        roles.expect(0, "poller", &["relay", "--drain"]);
    }
    roles.send(77, "poller", &["--aggregate-id", "b"]);
    for column in ["payload", "event_type", "aggregate_id"] {
        roles.denied("poller", &format!("update {outbox} set {column} = 'X'")).await;
    }
}

async fn the_viewer_sees_all_but_payloads(roles: &Roles) {
    let outbox = roles.server.outbox();
    roles.server.configure("topic = \"{header.tenant}\"");
    let id = roles.send(0, "writer", &["--aggregate-id", "d", "--payload", "\"secret-d\""]);
    roles.expect(1, "poller", &["relay", "--drain"]);
    let status = roles.expect(0, "viewer", &["status", "--output", "json"]);
    let status: Value = serde_json::from_str(&status).unwrap();
    assert_eq!((&status[0]["dead"], &status[0]["published"]), (&1.into(), &3.into()));
    let listed = roles.expect(0, "viewer", &["events", "list", "--output", "json"]);
    let dead = roles.expect(0, "viewer", &["dead", "list"]);
    let shown = roles.expect(0, "viewer", &["events", "show", id.trim(), "--payload"]);
    for text in [&listed, &dead, &shown] {
        assert!(text.contains(id.trim()) && !text.contains("secret"), "{text}");
    }
    let shown = roles.expect(0, "poller", &["events", "show", id.trim(), "--payload"]);
    assert!(shown.contains("secret-d"), "{shown}");
    roles.expect(77, "viewer", &["dead", "retry", "--all", "--yes"]);
    roles.expect(77, "viewer", &["relay", "--drain"]);
    roles.denied("viewer", &format!("select payload from {outbox}")).await;
    roles.denied("viewer", &format!("delete from {outbox}")).await;
    let count = number(&roles.url("viewer"), &format!("select count(*) from {outbox}")).await;
    assert_eq!(count.unwrap(), 4);
    if roles.server.service == Service::Postgres {
        let payloads = "select count(coalesce(payload, payload_bytes::text)) from semel.readable";
        assert_eq!(number(&roles.url("viewer"), payloads).await.unwrap(), 0);
        assert_eq!(number(&roles.url("poller"), payloads).await.unwrap(), 4);
        let payloads = "select count(payload) from semel.events";
        assert_eq!(number(&roles.url("viewer"), payloads).await.unwrap(), 0);
    }
}

fn the_tailer_does_what_the_poller_does(roles: &Roles) {
    roles.server.configure("");
    assert!(
        roles
            .expect(0, "tailer", &["dead", "retry", "--all", "--yes"])
            .contains("1 events retried")
    );
    roles.expect(0, "tailer", &["relay", "--drain"]);
}

/// As the user to whom the role was granted, in the way that the SQL itself says.
async fn the_tailer_tails(roles: &Roles) {
    roles.server.configure("");
    let config = fs::read_to_string(roles.server.file("semel.toml")).unwrap();
    let config = config.replace("[sink", "mode = \"tail\"\n[sink");
    fs::write(roles.server.file("semel.toml"), config).unwrap();
    if roles.server.service == Service::Postgres {
        // A member of a role does not have its attributes.
        let refused = roles.expect(77, "tailer", &["relay"]);
        assert!(refused.contains("E-TAIL-PRIVILEGE"), "{refused}");
        assert!(refused.contains("alter role NAME with replication"), "{refused}");
        let sql = roles.expect(0, "", &["grants", "--kind", "postgres"]);
        let also = sql.lines().find(|line| line.contains("alter role relay with replication"));
        let also = also.and_then(|line| line.strip_prefix("--   ")).unwrap();
        let (_, also) = also.split_once(';').unwrap();
        roles.server.run(&also.replace("relay", &roles.user("tailer"))).await;
    }
    let mut relay = roles.server.relay(&roles.url("tailer"));
    let status = || roles.expect(0, "viewer", &["status", "--output", "json"]);
    relay.until("it tails", || status().contains("\"tailing\": true")).await;
    let before = roles.published();
    roles.send(0, "writer", &["--aggregate-id", "tailed"]);
    relay.until("it publishes", || roles.published() == before + 1).await;
    assert!(status().contains("\"tailing\": true"), "{}", status());
}

#[tokio::test]
async fn each_role_of_postgres_can_do_its_part_and_nothing_else() {
    each_role_can_do_its_part(Service::Postgres, "grants").await;
}

#[tokio::test]
async fn each_role_of_mysql_can_do_its_part_and_nothing_else() {
    each_role_can_do_its_part(Service::Mysql, "grants").await;
}

#[test]
fn a_file_has_no_roles() {
    let folder = Folder::new();
    for arguments in [["--kind", "sqlite"], ["--database", "sqlite://shop.db"]] {
        folder.expect(0, "", &["migrate", "up", "--database", "sqlite://shop.db"]);
        let sql = folder.expect(0, "", &[&["grants"], &arguments[..]].concat());
        assert!(
            sql.lines().all(|line| line.starts_with("--")) && sql.contains("no roles"),
            "{sql}"
        );
    }
}
