//! Relays that tail the log of a real server: what they say when they cannot any more.

use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use semel_core::telemetry;
use semel_testkit::services::{Private, Service};
use serde_json::Value;
use sqlx::{AnyConnection, Connection};

use super::server::{Folder, Running, execute};

/// With a page, whose address is in the log.
fn configure(folder: &Folder, more: &str) {
    let text = format!(
        "[source.orders]\nurl = \"${{DATABASE_URL}}\"\n{more}\n[sink.out]\ntype = \"file\"\n\
         path = \"events.ndjson\"\n[pipeline.orders]\nfrom = \"orders\"\nto = \"out\"\n\
         [http]\nlisten = \"127.0.0.1:0\"\n"
    );
    fs::write(folder.file("semel.toml"), text).unwrap();
}

/// What `status` says of the pipeline: whether it tails, and why not.
fn news(folder: &Folder, url: &str, more: &[&str]) -> (Option<bool>, String) {
    let status = folder.expect(0, url, &[&["status", "--output", "json"], more].concat());
    let status: Value = serde_json::from_str(&status).unwrap();
    let why = status[0]["polling_because"].as_str().unwrap_or_default().to_owned();
    (status[0]["tailing"].as_bool(), why)
}

async fn page_of(relay: &mut Running, log: std::path::PathBuf) -> String {
    let page = || {
        let log = fs::read_to_string(&log).unwrap();
        let (_, rest) = log.split_once("metrics on ")?;
        rest.lines().next().map(|url| url.trim().to_owned())
    };
    relay.until("it has a page", || page().is_some()).await;
    page().unwrap()
}

/// How often it handed over so far: to the log, and to polling.
fn handovers(page: &str) -> (u64, u64) {
    let address = page.trim_start_matches("http://").trim_end_matches('/');
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
    let request = format!("GET /metrics HTTP/1.1\r\nhost: {address}\r\nconnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    let count = |to: &str| -> u64 {
        let name = telemetry::SOURCE_HANDOVERS.name;
        let series = format!("{name}{{pipeline=\"orders\",to=\"{to}\"}} ");
        let value = answer.lines().find_map(|line| line.strip_prefix(series.as_str()));
        value.map_or(0, |value| value.trim().parse().unwrap())
    };
    (count("tail"), count("poll"))
}

/// While it tails it has been there once more than it left.
fn counts_as_tailing(page: &str, left: u64) -> bool {
    let (to_tail, to_poll) = handovers(page);
    to_poll >= left && to_tail == to_poll + 1
}

/// Whoever looks learns it from the relay itself, in the database and over its page.
#[tokio::test]
async fn status_says_why_a_relay_polls() {
    let Some(server) = Private::start(Service::Postgres) else { return };
    sqlx::any::install_default_drivers();
    let (folder, url) = (Folder::new(), server.address());
    folder.expect(0, url, &["migrate", "up", "--database", url]);
    execute(url, "create table other (content text)").await.unwrap();
    configure(&folder, "log_budget = \"16MiB\"");
    assert_eq!(news(&folder, url, &[]), (Some(false), "no relay runs".to_owned()));
    let mut relay = folder.relay(url);
    let page = page_of(&mut relay, folder.file("relay.log")).await;
    let tails = (Some(true), String::new());
    relay.until("it tails", || news(&folder, url, &[]) == tails).await;
    relay.until("the page says so", || news(&folder, url, &["--api", &page]) == tails).await;
    relay.until("it counts that", || counts_as_tailing(&page, 0)).await;

    // A transaction that is open holds back the log of every slot.
    let mut open = AnyConnection::connect(url).await.unwrap();
    sqlx::raw_sql("begin; insert into other values ('long')").execute(&mut open).await.unwrap();
    let busy =
        "insert into other select repeat(md5(random()::text), 50) from generate_series(1, 20000)";
    execute(url, busy).await.unwrap();
    execute(url, "checkpoint").await.unwrap();
    let is_told = |(tailing, why): (Option<bool>, String)| {
        let budget = "E-TAIL-BUDGET: PostgreSQL: tailing holds back more than 16 MiB of log";
        tailing == Some(false) && why.starts_with(budget) && why.contains("`semel check`")
    };
    relay.until("it polls", || is_told(news(&folder, url, &[]))).await;
    relay.until("the page says why", || is_told(news(&folder, url, &["--api", &page]))).await;
    let polls = |(to_tail, to_poll): (u64, u64)| to_poll > 0 && to_tail == to_poll;
    relay.until("it counts that it polls", || polls(handovers(&page))).await;
    let text = folder.expect(0, url, &["status"]);
    assert!(text.contains("polling (E-TAIL-BUDGET: "), "{text}");
    assert!(relay.log().contains("E-TAIL-BUDGET"), "one line of the log, too: {}", relay.log());
    open.close().await.unwrap();
    relay.until("it tails again", || news(&folder, url, &[]) == tails).await;
    relay.until("the page says so", || news(&folder, url, &["--api", &page]) == tails).await;
    relay.until("it counts that, too", || counts_as_tailing(&page, 1)).await;
    drop(relay);
}
