//! A replica in the place of a server that had more, or a server that has lost what it did last, gives
//! positions once more. A source that has seen them must not take new events for old ones.

use std::ops::Range;
use std::time::{Duration, Instant};

use semel_backends::mysql::{MySqlPool, MysqlConfig, MysqlStore};
use semel_core::{Limit, Outcome, Settlement, Source, Timestamp};
use semel_testkit::services::{Private, Service};
use semel_testkit::workload::{delivered_numbers, events, retry};

use super::{Database, Relay, database};

/// The state after five events, in the place of a later one.
const GO_BACK: [&str; 3] = [
    "DELETE FROM semel_outbox WHERE position > 5",
    "UPDATE semel_counter SET last = 5",
    "UPDATE semel_cursor SET position = 5, ahead = '[]'",
];

#[tokio::test]
async fn a_server_that_has_gone_back_gives_positions_again() {
    let database: Database = database!();
    let mut relay = database.relay().await;
    database.commit(&events("a", 0..5)).await;
    assert_eq!(relay.deliver_all(10).await.len(), 5);
    database.commit(&events("a", 5..12)).await;
    let flight = relay.take(10).await;
    relay.settle(&flight[..4], |_| Outcome::Delivered).await;

    for sql in GO_BACK {
        database.run(sql).await;
    }
    database.commit(&events("a", 100..104)).await;
    let settled = Settlement { receipt: flight[4].receipt, outcome: Outcome::Delivered };
    let kept = relay.source.settle(&[settled]).await.unwrap();
    assert!(!kept.is_held(), "the cursor does not go where there is nothing");
    let delivered = relay.deliver_all(10).await;
    assert_eq!(delivered_numbers(&delivered), [100, 101, 102, 103]);
    relay.settle(&flight[5..], |_| Outcome::Delivered).await;
    assert!(database.relay().await.deliver_all(10).await.is_empty(), "all is settled");
}

/// Of what was not settled nothing is recorded, and whoever had it has dropped it: all of it comes again, also
/// if the server that refused it is gone by then.
#[tokio::test]
async fn a_settlement_that_is_refused_leaves_nothing_behind() {
    let database: Database = database!();
    let mut relay = database.relay().await;
    database.commit(&events("a", 0..3)).await;
    let flight = relay.take(10).await;
    let settlements = [
        Settlement { receipt: flight[0].receipt, outcome: retry(Timestamp::now(), 1) },
        Settlement { receipt: flight[1].receipt, outcome: Outcome::Released },
    ];
    database.run("UPDATE semel_counter SET last = 2").await;
    assert!(!relay.source.settle(&settlements).await.unwrap().is_held());
    assert_eq!(database.number("SELECT count(*) FROM semel_parked").await, 0);

    database.run("UPDATE semel_counter SET last = 3").await;
    let again = relay.deliver_all(10).await;
    assert_eq!(delivered_numbers(&again), [0, 1, 2]);
    assert!(again.iter().all(|got| got.message.attempt == 1), "no attempt was recorded");
    assert!(database.relay().await.deliver_all(10).await.is_empty(), "all is settled");
}

/// Another pipeline has numbered so many events since that nothing but its id tells the server.
#[tokio::test]
async fn a_replica_takes_the_place_of_its_server() {
    let Some(server) = Private::start(Service::Mysql) else { return };
    let config = MysqlConfig::new(server.address()).unwrap();
    let store = config.connect().await.unwrap();
    store.migrate().await.unwrap();
    let mut relay = Relay { source: store.source("orders").await.unwrap() };
    commit(&store, 0..5).await;
    assert_eq!(relay.deliver_all(10).await.len(), 5);
    commit(&store, 5..8).await;
    let flight = relay.take(10).await;
    assert_eq!(delivered_numbers(&flight), [5, 6, 7]);

    let another = config.connect().await.unwrap();
    for sql in GO_BACK {
        sqlx::query(sql).execute(another.pool()).await.unwrap();
    }
    sqlx::query("SET GLOBAL server_id = 4711").execute(another.pool()).await.unwrap();
    cut_all(another.pool()).await;
    let replica = config.connect().await.unwrap();
    commit(&replica, 100..110).await;
    let mut other = Relay { source: replica.source("others").await.unwrap() };
    assert_eq!(other.deliver_all(20).await.len(), 15, "so ten were numbered anew");

    let began = Instant::now();
    let mut found = Vec::new();
    while found.len() < 10 {
        assert!(began.elapsed() < Duration::from_secs(60), "only {found:?}");
        // First its connections are gone.
        if let Ok(batch) = relay.source.next_batch(Limit::default()).await {
            found.extend(delivered_numbers(&batch.deliveries));
            relay.settle(&batch.deliveries, |_| Outcome::Delivered).await;
            relay.settle(&flight, |_| Outcome::Delivered).await;
        }
    }
    assert_eq!(found, (100..110).collect::<Vec<_>>());
}

async fn commit(store: &MysqlStore, numbers: Range<u64>) {
    let mut tx = store.begin().await.unwrap();
    store.outbox().append_all(&mut tx, &events("a", numbers)).await.unwrap();
    tx.commit().await.unwrap();
}

/// Ends all connections but the one that asks.
async fn cut_all(pool: &MySqlPool) {
    let mut connection = pool.acquire().await.unwrap();
    let others = "SELECT cast(id AS SIGNED) FROM information_schema.processlist \
        WHERE id <> connection_id() AND user = 'root'";
    let others: Vec<i64> = sqlx::query_scalar(others).fetch_all(&mut *connection).await.unwrap();
    for other in others {
        let kill = sqlx::AssertSqlSafe(format!("KILL {other}"));
        // It may have ended by itself.
        sqlx::raw_sql(kill).execute(&mut *connection).await.ok();
    }
}
