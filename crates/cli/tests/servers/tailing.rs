//! Relays that tail the log of a real server: what they say when they cannot any more.

use std::fs;

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
    let text = folder.expect(0, url, &["status"]);
    assert!(text.contains("polling (E-TAIL-BUDGET: "), "{text}");
    assert!(relay.log().contains("E-TAIL-BUDGET"), "one line of the log, too: {}", relay.log());
    open.close().await.unwrap();
    relay.until("it tails again", || news(&folder, url, &[]) == tails).await;
    relay.until("the page says so", || news(&folder, url, &["--api", &page]) == tails).await;
    drop(relay);
}
