//! A marker in every secret that a running relay or proxy has is in nothing that it serves, and not in its
//! log; nor in what commands say that come in with it.

use std::collections::BTreeSet;
use std::fs;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::Stdio;
use std::time::Duration;

use semel_dashboard::paths;
use semel_testkit::services::Service;
use serde_json::Value;

use super::secrets::{MARKER, SINKS, is_silent, secrets_of};
#[cfg(feature = "proxy")]
use crate::proxy::program::Program;
use crate::servers::server::Server;
use crate::shop::{Running, Shop, all};

/// A pipeline for each sink, whose broker is away; and one whose sink answers, and wants nothing.
#[test]
fn no_secret_of_a_running_relay_is_ever_said() {
    let shop = Shop::new();
    shop.insert_of_type("1", "OrderPlaced");
    let schema: Value = serde_json::from_str(&shop.expect(0, &["config", "schema"])).unwrap();
    let access = &schema["properties"]["http"]["properties"]["access"]["additionalProperties"];
    assert_eq!(secrets_of(access), BTreeSet::from(["token".into()]));
    let kinds = schema["properties"]["sink"]["additionalProperties"]["oneOf"].to_string();
    let there = SINKS.iter().filter(|(kind, _)| kinds.contains(&format!("\"const\":\"{kind}\"")));
    let refusing = format!(
        "url = 'http://{}/MARKER?key=MARKER'\nplain_http = true\nallow = ['127.0.0.1']\n\
         secret = 'whsec_c4n4ry5ecretc4n4ry5ecretc4n4ry5ecret'\nauthorization = 'Bearer MARKER'",
        refuse_everything()
    );
    let mut text = "[source.orders]\nurl = 'sqlite://shop.db'\n".to_owned();
    let mut names = Vec::new();
    for (name, kind, lines) in there.map(|(kind, lines)| (*kind, *kind, *lines)).chain([(
        "refusing",
        "webhook",
        refusing.as_str(),
    )]) {
        text += &format!("[sink.{name}]\ntype = '{kind}'\n{lines}\n");
        text += &format!("[pipeline.{name}]\nfrom = 'orders'\nto = '{name}'\ntopic = 'orders'\n");
        names.push(name);
    }
    let mut page = Page::serve(&shop, &text);
    shop.wait_until("it is refused", || {
        page.get("/api/pipelines/refusing/dead").contains("\"aggregate_id\":\"1\"")
    });
    page.is_silent_about(&names);
    page.relay.signal("TERM");
    page.relay.0.wait().unwrap();
    let log = shop.read("log");
    assert!(!log.contains(MARKER), "{log}");
}

#[tokio::test]
async fn no_secret_of_a_running_source_is_ever_said() {
    let Some(server) = Server::start(Service::Postgres, "canary").await else { return };
    // The server of the tests believes everybody.
    no_secret_is_said_by_a_relay_of(&server, &format!("postgres:{MARKER}")).await;
    server.remove().await;
}

#[tokio::test]
async fn no_secret_of_a_running_source_on_mysql_is_ever_said() {
    let Some(server) = Server::start(Service::Mysql, "canary").await else { return };
    let user = format!("{}@localhost", server.name);
    server.run(&format!("create user {user} identified by '{MARKER}'")).await;
    server.run(&format!("grant all on {}.* to {user}", server.name)).await;
    no_secret_is_said_by_a_relay_of(&server, &format!("{}:{MARKER}", server.name)).await;
    server.run(&format!("drop user {user}")).await;
    server.remove().await;
}

async fn no_secret_is_said_by_a_relay_of(server: &Server, user: &str) {
    let shop = Shop::new();
    let url = server.url_of(user);
    shop.expect(0, &["migrate", "up", "--database", &url]);
    let outbox = server.outbox();
    server
        .run(&format!(
            "insert into {outbox} (aggregate_type, aggregate_id, event_type, payload)
             values ('order', '1', 'OrderPlaced', '{{}}')"
        ))
        .await;
    let page = Page::serve(
        &shop,
        &format!(
            "[source.orders]\nurl = '{url}'\n[sink.out]\ntype = 'file'\npath = 'events.ndjson'\n\
             [pipeline.orders]\nfrom = 'orders'\nto = 'out'\n"
        ),
    );
    shop.wait_until("it is published", || shop.published().len() == 1);
    page.is_silent_about(&["orders"]);
    drop(page);
    let log = shop.read("log");
    assert!(!log.contains(MARKER), "{log}");
    let id = shop.published()[0]["id"].as_str().unwrap().to_owned();
    for arguments in [
        &["status"][..],
        &["check"],
        &["verify"],
        &["verify", "--consumer", "bills", "--inbox", &url],
        &["events", "list"],
        &["events", "show", &id, "--inbox", &url],
        &["dead", "list", "--consumer", "bills", "--database", &url],
        &["keys", "list", "--store", &url],
        &["migrate", "status", "--database", &url],
        &["grants", "--database", &url],
    ] {
        let output = shop.command(arguments).env("SEMEL_LOG", "debug").output().unwrap();
        is_silent(&arguments.join(" ").replace(MARKER, "MARKER"), &output);
        assert!([0, 1].contains(&output.status.code().unwrap()), "{}", all(&output));
    }
}

/// One that knows its store, in front of a service that takes nothing.
#[cfg(feature = "proxy")]
#[tokio::test(flavor = "multi_thread")]
async fn no_secret_of_a_running_proxy_is_ever_said() {
    let Some(server) = Server::start(Service::Postgres, "canary_proxy").await else { return };
    let store = server.url_of(&format!("postgres:{MARKER}"));
    server.expect(0, &store, &["migrate", "up", "--database", &store]);
    let secret = MARKER.repeat(3);
    let proxy = Program::start(
        &refuse_everything(),
        &store,
        &format!("fingerprint_secret = '{secret}'\nencryption_keys = '{secret}AAAAAAA='"),
    );
    for attempt in ["once", "again"] {
        let request = format!(
            "POST /orders HTTP/1.1\r\nhost: shop\r\nauthorization: Bearer {MARKER}\r\n\
             idempotency-key: {MARKER}\r\ncontent-length: 2\r\nconnection: close\r\n\r\n{{}}"
        );
        let said = String::from_utf8(proxy.client.say(request.as_bytes()).await).unwrap();
        assert!(said.starts_with("HTTP/1.1 400 ") && !said.contains(MARKER), "{attempt}: {said}");
    }
    for (path, status) in [("/livez", 200), ("/readyz", 200), ("/metrics", 200), ("/nowhere", 404)]
    {
        let request = format!("GET {path} HTTP/1.1\r\nhost: shop\r\nconnection: close\r\n\r\n");
        let said = String::from_utf8(proxy.admin.say(request.as_bytes()).await).unwrap();
        assert!(said.starts_with(&format!("HTTP/1.1 {status} ")), "{path}: {said}");
        assert!(!said.contains(MARKER), "{path}: {said}");
    }
    assert!(!proxy.log().contains(MARKER), "{}", proxy.log());
    drop(proxy);
    server.remove().await;
}

/// The page of a relay, which ends with it.
struct Page {
    relay: Running,
    address: String,
    token: String,
}

impl Page {
    /// Of a relay with this configuration, in which MARKER stands for the secret, and a token.
    fn serve(shop: &Shop, text: &str) -> Self {
        let token = MARKER.repeat(3);
        let http = format!(
            "[http]\nlisten = '127.0.0.1:0'\n[http.access.olga]\nrole = 'admin'\ntoken = '{token}'\n"
        );
        shop.write_config(&format!("{text}{http}").replace("MARKER", MARKER));
        for arguments in [&["config", "check"][..], &["config", "show"]] {
            let output = shop.command(arguments).output().unwrap();
            assert!(output.status.success(), "{}", all(&output));
            is_silent("page", &output);
        }
        let log = fs::File::create(shop.file("log")).unwrap();
        let mut relay = shop.command(&["relay"]);
        let relay = relay.env("SEMEL_LOG", "debug").stdout(Stdio::null()).stderr(log);
        let relay = Running(relay.spawn().unwrap());
        Self { relay, address: shop.page(), token }
    }

    /// On any path that the page has, for any of these pipelines.
    fn is_silent_about(&self, pipelines: &[&str]) {
        let nowhere = self.get("/api/nowhere");
        assert!(nowhere.starts_with("HTTP/1.1 404 ") && nowhere.ends_with("\r\n\r\n"), "{nowhere}");
        assert!(paths().len() > 10 && !nowhere.contains(MARKER));
        for pipeline in pipelines {
            let events = self.get(&format!("/api/pipelines/{pipeline}/events"));
            let (_, events) = events.split_once("\r\n\r\n").unwrap();
            let events: Value = serde_json::from_str(events).unwrap();
            let id = events["events"][0]["id"].as_str().unwrap();
            for path in paths() {
                let path = path
                    .replace("{pipeline}", pipeline)
                    .replace("{id}", id)
                    .replace("{key}", &"0".repeat(64))
                    .replace("{file}", "main.js");
                assert!(!path.contains('{'), "what stands there? {path}");
                let mut said = self.get(&path);
                if said.starts_with("HTTP/1.1 405 ") {
                    said = self.ask("POST", &path, r#"{"action":"retry","dry_run":true}"#);
                }
                assert!(said.starts_with("HTTP/1.1 200 "), "{path}: {said}");
                assert!(!said.contains(MARKER), "{path}: {said}");
            }
        }
    }

    fn get(&self, path: &str) -> String {
        self.ask("GET", path, "")
    }

    fn ask(&self, method: &str, path: &str, body: &str) -> String {
        let Self { address, token, .. } = self;
        let mut connection = TcpStream::connect(address).unwrap();
        connection.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
        let request = format!(
            "{method} {path} HTTP/1.1\r\nHost: {address}\r\nAuthorization: Bearer {token}\r\n\
             Content-Type: application/json\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{body}",
            body.len()
        );
        connection.write_all(request.as_bytes()).unwrap();
        let (mut answer, mut piece) = (Vec::new(), [0; 4096]);
        // What is live has no end: its first piece will do.
        while !(path.ends_with("/live") && answer.windows(5).any(|five| five == b"data:")) {
            match connection.read(&mut piece).unwrap() {
                0 => break,
                read => answer.extend_from_slice(&piece[..read]),
            }
        }
        String::from_utf8_lossy(&answer).into_owned()
    }
}

/// An endpoint that says of every event that it is wrong; gives its address.
fn refuse_everything() -> String {
    let endpoint = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = endpoint.local_addr().unwrap().to_string();
    std::thread::spawn(move || {
        for mut connection in endpoint.incoming().flatten() {
            std::thread::spawn(move || {
                let refusal = "HTTP/1.1 400 Bad Request\r\ncontent-length: 0\r\n\r\n";
                let mut request = [0; 16_384];
                while connection.read(&mut request).is_ok_and(|read| read > 0) {
                    connection.write_all(refusal.as_bytes()).ok();
                }
            });
        }
    });
    address
}
