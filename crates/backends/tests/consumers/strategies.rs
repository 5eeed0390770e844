//! Effects that keep copies out by themselves, whatever message asks for them: by an id that a client
//! gave, by the version of a state.

use semel_core::inbox::Seen;
use semel_core::memory::MemoryBroker;
use semel_core::{Event, InboxStore, Limit, Message, Source};
use serde_json::json;

use super::{order, publish};

/// Effects of this version come to nothing.
const UNLUCKY: i64 = 9;

/// A state of a lane.
fn version((lane, number): (u64, u64)) -> Event {
    let event = Event::new("price", lane.to_string(), "PriceSet").with_sequence(number);
    event.with_json(&json!({ "order": number })).unwrap()
}

/// What follows from a message that takes effect.
fn told(by: &str, message: &Message) -> Event {
    let (lane, number) = (&message.event.aggregate_id, message.event.sequence());
    Event::new(by, lane, "Told").with_sequence(number.unwrap_or_default())
}

/// What followed: by whom, in which lane, from which version.
async fn followed(mut outbox: impl Source) -> Vec<(String, String, u64)> {
    let limit = Limit { events: 100, ..Limit::default() };
    let made = outbox.next_batch(limit).await.unwrap().deliveries;
    let what = |event: &Event| {
        (event.aggregate_type.clone(), event.aggregate_id.clone(), event.sequence().unwrap())
    };
    let mut all: Vec<_> = made.iter().map(|made| what(&made.message.event)).collect();
    all.sort_unstable();
    all
}

/// No copy of these comes as far as the handler.
async fn assert_remembered(inbox: &impl InboxStore, consumer: &str, events: &[Event]) {
    let mut tx = inbox.begin().await.unwrap();
    for event in events {
        let seen = inbox.record(&mut tx, consumer, event.id).await.unwrap();
        assert_ne!(seen, Seen::First, "{event:?}");
    }
    inbox.rollback(tx).await;
}

macro_rules! strategies {
    ($database:ident, $store:ident, $inbox:ident, $driver:ident, $fresh:expr, $once:literal, $unique:literal, $newer:literal) => {
        mod $database {
            use std::time::Duration;

            use bytes::Bytes;
            use semel_backends::once::OrAlreadyApplied;
            use semel_backends::$database::{
                Transaction, $driver, $inbox as Inbox, $store as Store,
            };
            use semel_core::marks::apply_if_version;
            use semel_core::{HandlerError, OutboxWriter};
            use semel_relay::{Consumer, Handlers, Report, Stop};
            use serde::Deserialize;
            use tokio::task::JoinSet;
            use tokio::time::timeout;

            use super::*;

            type Tx = Transaction<'static, $driver>;

            #[derive(Deserialize)]
            struct Order {
                order: i64,
            }

            /// Once for each order; what came before the statement is undone with it.
            async fn once(
                store: &Store,
                tx: &mut Tx,
                order: Order,
                message: &Message,
            ) -> Result<(), HandlerError> {
                let told = told("once", message);
                OutboxWriter::append(&store.outbox(), tx, &[told]).await?;
                let insert = sqlx::query($once).bind(order.order).bind(order.order);
                let inserted = insert.execute(&mut **tx).await.or_already_applied($unique)?;
                HandlerError::unless_changed(inserted.rows_affected())
            }

            /// The row has the version.
            async fn by_row(
                store: &Store,
                tx: &mut Tx,
                order: Order,
                message: &Message,
            ) -> Result<(), HandlerError> {
                let told = told("by row", message);
                OutboxWriter::append(&store.outbox(), tx, &[told]).await?;
                let number = i64::try_from(message.event.sequence().unwrap()).unwrap();
                let lane: i64 = message.event.aggregate_id.parse().unwrap();
                let update = sqlx::query($newer).bind(number).bind(lane).bind(number);
                HandlerError::unless_changed(update.execute(&mut **tx).await?.rows_affected())?;
                if order.order == UNLUCKY {
                    return Err(HandlerError::reject("unlucky"));
                }
                Ok(())
            }

            /// A mark has the version.
            async fn by_mark(
                store: &Store,
                tx: &mut Tx,
                order: Order,
                message: &Message,
            ) -> Result<(), HandlerError> {
                let (outbox, told) = (store.outbox(), told("by mark", message));
                let (lane, number) = (&message.event.aggregate_id, message.event.sequence());
                let marks = store.marks();
                let done = apply_if_version(&marks, tx, "prices", lane, number.unwrap(), |tx| {
                    Box::pin(async move {
                        OutboxWriter::append(&outbox, tx, &[told]).await?;
                        if order.order == UNLUCKY {
                            return Err(HandlerError::reject("unlucky"));
                        }
                        Ok(Bytes::new())
                    })
                });
                done.await?;
                Ok(())
            }

            async fn drain(
                broker: &MemoryBroker,
                name: &str,
                consumer: Consumer<Inbox, Handlers<Tx>>,
            ) -> Report {
                let draining = consumer.drain(broker.subscribe(name, &[]), Stop::never());
                timeout(Duration::from_secs(60), draining).await.unwrap().unwrap()
            }

            async fn run(store: &Store, sql: &'static str) {
                let mut tx = store.begin().await.unwrap();
                sqlx::raw_sql(sql).execute(&mut *tx).await.unwrap();
                tx.commit().await.unwrap();
            }

            #[tokio::test(flavor = "multi_thread")]
            async fn an_id_of_the_client_keeps_out_what_another_message_brought() {
                let Some(database) = $fresh else { return };
                let (store, broker) = (database.store.clone(), MemoryBroker::new());
                let table = "create table payments (order_id bigint primary key, other bigint)";
                run(&store, table).await;
                let consumer = || {
                    let builder = Consumer::builder("payments", store.inbox());
                    builder.on_with("OrderPlaced", store.clone(), once).build()
                };
                let orders: Vec<_> = (1..=10).chain(1..=10).map(order).collect();
                publish(&broker, &orders).await;
                let report = drain(&broker, "payments", consumer()).await;
                assert_eq!((report.published, report.failed, report.dead), (20, 0, 0));
                assert_remembered(&store.inbox(), "payments", &orders).await;

                let mut at_once = JoinSet::new();
                for _ in 0..8 {
                    let consumer = consumer();
                    at_once.spawn(async move {
                        let broker = MemoryBroker::new();
                        publish(&broker, &[order(11)]).await;
                        drain(&broker, "payments", consumer).await
                    });
                }
                let reports = at_once.join_all().await;
                assert!(reports.iter().all(|report| report.published == 1), "{reports:?}");
                let mut tx = store.begin().await.unwrap();
                let sql = "select count(*) from payments";
                let paid: i64 = sqlx::query_scalar(sql).fetch_one(&mut *tx).await.unwrap();
                assert_eq!(paid, 11);
                drop(tx);
                let mut lanes: Vec<i64> = followed(store.source("told").await.unwrap())
                    .await
                    .into_iter()
                    .map(|(_, lane, _)| lane.parse().unwrap())
                    .collect();
                lanes.sort_unstable();
                assert_eq!(lanes, (1..=11).collect::<Vec<_>>(), "each effect once, as a whole");
            }

            #[tokio::test]
            async fn stale_and_repeated_versions_have_no_effect() {
                let Some(database) = $fresh else { return };
                let (store, broker) = (database.store.clone(), MemoryBroker::new());
                run(&store, "create table prices (item bigint primary key, version bigint)").await;
                run(&store, "insert into prices values (1, 0), (2, 0)").await;
                let with = |name| Consumer::builder(name, store.inbox());
                let consumers = [
                    (
                        "by mark",
                        with("by mark").on_with("PriceSet", store.clone(), by_mark).build(),
                    ),
                    ("by row", with("by row").on_with("PriceSet", store.clone(), by_row).build()),
                ];
                let waves = [
                    (vec![(1, 1), (1, 3), (1, 3), (2, 2), (1, 2), (2, 1), (1, 5), (2, 7)], 0),
                    (vec![(1, 4), (1, 5), (2, 7), (2, 2)], 0),
                    // What dies is no newer version.
                    (vec![(1, 9), (1, 8), (2, 13)], 1),
                ];
                for (versions, dead) in waves {
                    let events: Vec<_> = versions.into_iter().map(version).collect();
                    publish(&broker, &events).await;
                    for (name, consumer) in &consumers {
                        let report = drain(&broker, name, consumer.clone()).await;
                        let expected = (events.len() as u64 - dead, dead);
                        assert_eq!((report.published, report.dead), expected, "{name}: {report:?}");
                        if dead == 0 {
                            assert_remembered(&store.inbox(), name, &events).await;
                        }
                    }
                }
                let took_effect =
                    [("1", 1), ("1", 3), ("1", 5), ("1", 8), ("2", 2), ("2", 7), ("2", 13)];
                let expected: Vec<_> = ["by mark", "by row"]
                    .into_iter()
                    .flat_map(|by| took_effect.map(|(lane, n)| (by.to_owned(), lane.to_owned(), n)))
                    .collect();
                assert_eq!(followed(store.source("told").await.unwrap()).await, expected);
            }
        }
    };
}

#[cfg(feature = "postgres")]
strategies!(
    postgres,
    PostgresStore,
    PostgresInbox,
    Postgres,
    crate::postgres::Database::new().await,
    "insert into payments values ($1, $2) on conflict do nothing",
    "payments_pkey",
    "update prices set version = $1 where item = $2 and version < $3"
);
#[cfg(feature = "mysql")]
strategies!(
    mysql,
    MysqlStore,
    MysqlInbox,
    MySql,
    crate::mysql::Database::new().await,
    "insert into payments values (?, ?)",
    "PRIMARY",
    "update prices set version = ? where item = ? and version < ?"
);
#[cfg(feature = "sqlite")]
strategies!(
    sqlite,
    SqliteStore,
    SqliteInbox,
    Sqlite,
    Some(crate::sqlite::Database::new().await),
    "insert into payments values (?, ?) on conflict do nothing",
    "payments.order_id",
    "update prices set version = ? where item = ? and version < ?"
);

/// So that `unless_changed` would take a copy for the first.
#[cfg(feature = "mysql")]
#[tokio::test]
async fn what_mysql_finds_and_leaves_as_it_was_counts_as_changed() {
    let Some(database) = crate::mysql::Database::new().await else { return };
    let mut tx = database.store.begin().await.unwrap();
    sqlx::raw_sql("create temporary table payments (order_id bigint primary key)")
        .execute(&mut *tx)
        .await
        .unwrap();
    for (sql, rows) in [
        ("insert ignore into payments values (1)", [1, 0]),
        ("insert into payments values (2) on duplicate key update order_id = order_id", [1, 1]),
    ] {
        for rows in rows {
            let said = sqlx::query(sql).execute(&mut *tx).await.unwrap();
            assert_eq!(said.rows_affected(), rows, "{sql}");
        }
    }
}

/// A statement that ignores this says of it what it says of a copy.
#[cfg(feature = "mysql")]
#[tokio::test]
async fn a_payment_that_violates_a_foreign_key_is_not_taken_for_applied_on_mysql() {
    use semel_backends::mysql::{MySql, Transaction};
    use semel_backends::once::OrAlreadyApplied;
    use semel_core::{HandlerError, Schedule};
    use semel_relay::{Consumer, Settings, Stop};

    async fn pay(
        tx: &mut Transaction<'static, MySql>,
        order: serde_json::Value,
        _: &Message,
    ) -> Result<(), HandlerError> {
        let insert = sqlx::query("insert into payments values (?)").bind(order["order"].as_i64());
        insert.execute(&mut **tx).await.or_already_applied("PRIMARY")?;
        Ok(())
    }

    let Some(database) = crate::mysql::Database::new().await else { return };
    let (store, broker) = (database.store.clone(), MemoryBroker::new());
    let mut tx = store.begin().await.unwrap();
    for sql in [
        "create table orders (id bigint primary key)",
        "create table payments (id bigint primary key, foreign key (id) references orders (id))",
        "insert into orders values (1)",
    ] {
        sqlx::raw_sql(sql).execute(&mut *tx).await.unwrap();
    }
    tx.commit().await.unwrap();

    publish(&broker, &[order(1), order(1), order(2)]).await;
    let schedule = Schedule::new(vec![std::time::Duration::ZERO; 2]);
    let consumer = Consumer::builder("payments", store.inbox())
        .on("OrderPlaced", pay)
        .settings(Settings { schedule, ..Settings::default() })
        .build();
    let report = consumer.drain(broker.subscribe("payments", &[]), Stop::never()).await.unwrap();
    assert_eq!((report.published, report.failed, report.dead), (2, 2, 1), "the copy was applied");
    assert_eq!(broker.dead_letters("payments")[0].0.event.aggregate_id, "2");

    let mut tx = store.begin().await.unwrap();
    for copy_or_orphan in ["1", "2"] {
        let sql = "insert ignore into payments values (?)";
        let said = sqlx::query(sql).bind(copy_or_orphan).execute(&mut *tx).await.unwrap();
        assert_eq!(said.rows_affected(), 0, "{copy_or_orphan}");
    }
}
