//! Whatever happens to the session, events come, and the source tails again when it can.

use std::time::{Duration, Instant};

use mysql_async::{BinlogStreamRequest, Conn};
use semel_backends::mysql::{MysqlConfig, Tailing};
use semel_core::{Limit, Outcome, Source};
use semel_testkit::proxy::Proxy;
use semel_testkit::workload::{event, events};
use sqlx::Row;
use tokio::time::timeout;

use super::super::{Relay, database};
use super::{PATIENCE, commit_one, private, run, tailing, tails};

#[tokio::test]
async fn the_connection_is_killed() {
    let database = database!();
    let mut relay = database.tailing().await;
    for round in 0..3 {
        database.cut_tail().await;
        database.commit(&events("a", 0..3)).await;
        assert_eq!(relay.deliver_all(10).await.len(), 3, "round {round}");
        relay.until(false).await;
        relay.until(true).await;
    }
}

#[tokio::test]
async fn the_server_is_killed_and_comes_back() {
    let Some((server, store)) = private(&[]).await else { return };
    let mut relay = tailing(&store).await;
    for round in 0..2 {
        server.kill();
        assert!(relay.source.next_batch(Limit::default()).await.is_err(), "round {round}");
        server.restart();
        let writer = MysqlConfig::new(server.address()).unwrap().connect().await.unwrap();
        commit_one(&writer, round).await;
        let began = Instant::now();
        let mut delivered = 0;
        while delivered == 0 {
            assert!(began.elapsed() < PATIENCE);
            if let Ok(batch) = relay.source.next_batch(Limit::default()).await {
                relay.settle(&batch.deliveries, |_| Outcome::Delivered).await;
                delivered = batch.deliveries.len();
            }
        }
        assert_eq!(delivered, 1);
        relay.until(true).await;
        commit_one(&writer, round).await;
        relay.expect_news(&[round]).await;
    }
}

/// A replica with the same number: the server keeps the one that came last.
#[tokio::test]
async fn another_has_the_same_server_id() {
    let Some((server, store)) = private(&[]).await else { return };
    let mut relay = tailing(&store).await;
    let ours = sqlx::raw_sql("SHOW SLAVE HOSTS").fetch_one(store.pool()).await.unwrap();
    let ours: String = ours.try_get_unchecked(0).unwrap();
    let ours = ours.parse().unwrap();
    let replica = Conn::from_url(server.address()).await.unwrap();
    let replica = replica.get_binlog_stream(BinlogStreamRequest::new(ours)).await.unwrap();
    commit_one(&store, 1).await;
    assert_eq!(relay.deliver_all(10).await.len(), 1);
    relay.until(false).await;
    relay.until(true).await;
    commit_one(&store, 2).await;
    relay.expect_news(&[2]).await;
    drop(replica);
}

/// Nothing comes any more, not even that there is nothing.
#[tokio::test]
async fn the_server_falls_silent() {
    let database = database!();
    let url = database.url();
    let (_, rest) = url.split_once('@').unwrap();
    let (address, _) = rest.split_once('/').unwrap();
    let proxy = Proxy::start(address).await;
    let config = MysqlConfig::new(&url.replacen(address, &proxy.address(), 1)).unwrap();
    let store = config.connect().await.unwrap();
    let mut relay = tailing(&store).await;
    proxy.swallow_replies(true);
    assert!(relay.is_woken(PATIENCE).await, "it never noticed");
    proxy.swallow_replies(false);
    proxy.cut();
    let began = Instant::now();
    while relay.source.is_tailing() {
        assert!(began.elapsed() < PATIENCE);
        let look = relay.source.next_batch(Limit::default());
        drop(timeout(Duration::from_secs(5), look).await);
    }
    relay.until(true).await;
}

/// It polls, and the log is not asked again and again.
#[tokio::test]
async fn a_source_that_need_not_tail_begins_by_polling() {
    let database = database!();
    database.commit(&[event("a", 1)]).await;
    let source = database.store.tailing_source("orders", Tailing::WherePossible).await.unwrap();
    let mut relay = Relay { source };
    assert!(!relay.source.is_tailing());
    assert_eq!(relay.deliver_all(10).await.len(), 1);
    assert!(database.tails().await.is_empty());
    relay.until(true).await;
    run(&database.store, "DO 1").await;
    assert_eq!(tails(&database.store).await.len(), 1);
}
