//! Consumers as a service writes them, on each database: typed handlers, unique constraints, events
//! that follow from events, dead letters.

mod ignored;
mod strategies;

use std::sync::Arc;

use async_trait::async_trait;
use semel_core::admin::{AdminStore, Filter, Selection, State};
use semel_core::delivery::Log;
use semel_core::letters::LettersAdmin;
use semel_core::memory::MemoryBroker;
use semel_core::{Event, Failure, Headers, Limit, Message, Position, Publication, Sink};
use serde_json::json;

fn order(id: i64) -> Event {
    let event = Event::new("order", id.to_string(), "OrderPlaced");
    event.with_json(&json!({ "order": id })).unwrap()
}

async fn publish(broker: &MemoryBroker, events: &[Event]) {
    let messages: Vec<_> =
        events.iter().map(|event| Message::first("orders", event.clone())).collect();
    broker.publish(&messages).await;
}

/// A partition that the test makes up.
#[derive(Debug)]
struct Partition;

#[async_trait]
impl Log for Partition {
    fn name(&self) -> &str {
        "orders/0"
    }

    async fn end(&self) -> Result<u64, Failure> {
        Ok(1_000)
    }
}

/// Orders as a relay puts them into a partition that delivers exactly once.
fn logged(ids: std::ops::RangeInclusive<i64>) -> Vec<Message> {
    let message = |id: i64| {
        let mut message = Message::first("orders", order(id));
        message.publication = Publication::First;
        message.position = Some(Position { log: Arc::new(Partition), offset: id.unsigned_abs() });
        message
    };
    ids.map(message).collect()
}

macro_rules! consumers {
    ($database:ident, $store:ident, $inbox:ident, $driver:ident, $fresh:expr, $insert:literal, $unique:literal) => {
        mod $database {
            use std::time::Duration;

            use semel_backends::once::OrAlreadyApplied;
            use semel_backends::$database::{
                Transaction, $driver, $inbox as Inbox, $store as Store,
            };
            use semel_core::inbox::Seen;
            use semel_core::{HandlerError, InboxStore, OutboxWriter, Source};
            use semel_relay::{Consumer, Handlers, Report, Stop};
            use serde::Deserialize;
            use tokio::task::JoinSet;
            use tokio::time::timeout;

            use super::*;

            type Tx<'c> = Transaction<'c, $driver>;

            #[derive(Deserialize)]
            struct Order {
                order: i64,
            }

            /// One payment for each order, and an event that says so.
            async fn pay(
                store: &Store,
                tx: &mut Tx<'_>,
                order: Order,
                message: &Message,
            ) -> Result<i64, HandlerError> {
                let insert = sqlx::query($insert).bind(order.order).bind(order.order);
                insert.execute(&mut **tx).await.or_already_applied($unique)?;
                let paid = Event::new("payment", &message.event.aggregate_id, "PaymentTaken");
                OutboxWriter::append(&store.outbox(), tx, &[paid]).await?;
                if order.order == 13 {
                    return Err(HandlerError::reject("unlucky"));
                }
                Ok(order.order)
            }

            async fn drain(
                broker: &MemoryBroker,
                consumer: Consumer<Inbox, Handlers<Tx<'static>>>,
            ) -> Report {
                let subscription = broker.subscribe("payments", &[]);
                let draining = consumer.drain(subscription, Stop::never());
                timeout(Duration::from_secs(60), draining).await.unwrap().unwrap()
            }

            async fn count(store: &Store) -> i64 {
                let mut tx = store.begin().await.unwrap();
                let sql = "select count(*) from payments";
                sqlx::query_scalar(sql).fetch_one(&mut *tx).await.unwrap()
            }

            async fn run(store: &Store, sql: &'static str) {
                let mut tx = store.begin().await.unwrap();
                sqlx::raw_sql(sql).execute(&mut *tx).await.unwrap();
                tx.commit().await.unwrap();
            }

            const TABLE: &str = "create table payments (order_id bigint not null, \
                 other bigint not null, constraint payments_order unique (order_id), \
                 constraint payments_other unique (other))";

            #[tokio::test]
            async fn consume_take_effect_produce_is_one_transaction() {
                let Some(database) = $fresh else { return };
                let (store, broker) = (database.store.clone(), MemoryBroker::new());
                run(&store, TABLE).await;
                let events: Vec<_> = (1..=20).map(order).collect();
                publish(&broker, &events).await;
                publish(&broker, &events).await;
                let consumer = Consumer::builder("payments", store.inbox())
                    .on_with("OrderPlaced", store.clone(), pay)
                    .dead_letters(store.letters())
                    .build();
                let report = drain(&broker, consumer.clone()).await;
                assert_eq!((report.published, report.dead), (39, 1), "its copy is the same letter");
                assert_eq!(count(&store).await, 19);

                let mut source = store.source("payments").await.unwrap();
                let limit = Limit { events: 100, ..Limit::default() };
                let made = source.next_batch(limit).await.unwrap().deliveries;
                let causes: Vec<_> = events
                    .iter()
                    .filter(|event| event.aggregate_id != "13")
                    .map(|event| event.id.to_string())
                    .collect();
                let mut told: Vec<_> = made
                    .iter()
                    .map(|made| made.message.event.headers.get(Headers::CAUSATION_ID).unwrap())
                    .collect();
                told.sort_unstable();
                assert_eq!(told, causes);

                let letters = LettersAdmin::new(store.letters(), "payments");
                let dead = Filter { state: Some(State::Dead), ..Filter::default() };
                let page = letters.list(&dead, None, 10).await.unwrap();
                assert_eq!(page.events[0].event.aggregate_id, "13");
                assert_eq!(letters.retry(&Selection::Matching(dead)).await.unwrap(), 1);
                let again = Consumer::builder("payments", store.inbox())
                    .on("OrderPlaced", forgive)
                    .dead_letters(store.letters())
                    .build();
                assert_eq!(drain(&broker, again).await.published, 1);
                assert_eq!(count(&store).await, 20);
                assert_eq!(letters.stats().await.unwrap().counts, [0; 6]);
            }

            async fn forgive(
                tx: &mut Tx<'_>,
                order: Order,
                _: &Message,
            ) -> Result<(), HandlerError> {
                let insert = sqlx::query($insert).bind(order.order).bind(order.order);
                insert.execute(&mut **tx).await?;
                Ok(())
            }

            /// Nothing but the inbox keeps a second payment out.
            #[tokio::test(flavor = "multi_thread")]
            async fn of_64_consumers_that_get_the_same_message_one_takes_effect() {
                let Some(database) = $fresh else { return };
                let store = database.store.clone();
                run(&store, "create table payments (order_id bigint, other bigint)").await;
                let event = order(1);
                let mut consumers = JoinSet::new();
                for _ in 0..64 {
                    let (store, event) = (store.clone(), event.clone());
                    consumers.spawn(async move {
                        let broker = MemoryBroker::new();
                        publish(&broker, &[event]).await;
                        let consumer = Consumer::builder("payments", store.inbox());
                        drain(&broker, consumer.on("OrderPlaced", forgive).build()).await
                    });
                }
                let reports = consumers.join_all().await;
                assert!(reports.iter().all(|report| report.published == 1), "{reports:?}");
                assert_eq!(count(&store).await, 1);
            }

            /// Nothing but the mark keeps a second payment out.
            #[tokio::test]
            async fn by_position_one_mark_stands_for_all_ids() {
                let Some(database) = $fresh else { return };
                let (store, broker) = (database.store.clone(), MemoryBroker::new());
                run(&store, "create table payments (order_id bigint, other bigint)").await;
                let consumer = || {
                    Consumer::builder("payments", store.inbox())
                        .on_with("OrderPlaced", store.clone(), pay)
                        .dead_letters(store.letters())
                        .by_position(store.marks())
                        .build()
                };
                let orders = logged(1..=20);
                for dead in [1, 0] {
                    broker.publish(&orders).await;
                    assert_eq!(drain(&broker, consumer()).await.dead, dead);
                }
                assert_eq!(count(&store).await, 19);

                // An owner and one that does not know yet that it is none.
                let more = logged(14..=60);
                let (owner, late) = (consumer(), consumer());
                let both = async { tokio::join!(owner.publish(&more), late.publish(&more)) };
                let (one, other) = timeout(Duration::from_secs(60), both).await.unwrap();
                assert!(one.all_confirmed() && other.all_confirmed(), "{one:?} {other:?}");
                assert_eq!(count(&store).await, 59);
                let inbox = store.inbox();
                let mut tx = inbox.begin().await.unwrap();
                for message in orders.iter().chain(&more) {
                    let seen = inbox.record(&mut tx, "payments", message.event.id).await.unwrap();
                    assert_eq!(seen, Seen::First, "there is no row for it");
                }
                inbox.rollback(tx).await;
            }

            #[tokio::test]
            async fn a_unique_constraint_says_that_the_effect_was_there() {
                let Some(database) = $fresh else { return };
                let (store, broker) = (database.store.clone(), MemoryBroker::new());
                run(&store, TABLE).await;
                run(&store, "insert into payments values (1, 100)").await;
                run(&store, "insert into payments values (99, 2)").await;
                publish(&broker, &[order(1), order(3)]).await;
                let builder = || {
                    Consumer::builder("payments", store.inbox()).on_with(
                        "OrderPlaced",
                        store.clone(),
                        pay,
                    )
                };
                let report = drain(&broker, builder().build()).await;
                assert_eq!((report.published, report.failed), (2, 0));
                assert_eq!(count(&store).await, 3);

                // Another constraint than the one that was named.
                publish(&broker, &[order(2)]).await;
                let settings = semel_relay::Settings {
                    schedule: semel_core::Schedule::new(vec![Duration::ZERO; 2]),
                    ..Default::default()
                };
                let report = drain(&broker, builder().settings(settings).build()).await;
                assert_eq!((report.failed, report.dead), (2, 1));
                let failure = &broker.dead_letters("payments")[0].1;
                assert_eq!(failure.code(), "E-HANDLER", "{failure}");
            }
        }
    };
}

#[cfg(feature = "postgres")]
consumers!(
    postgres,
    PostgresStore,
    PostgresInbox,
    Postgres,
    crate::postgres::Database::new().await,
    "insert into payments values ($1, $2)",
    "payments_order"
);
#[cfg(feature = "mysql")]
consumers!(
    mysql,
    MysqlStore,
    MysqlInbox,
    MySql,
    crate::mysql::Database::new().await,
    "insert into payments values (?, ?)",
    "payments_order"
);
#[cfg(feature = "sqlite")]
consumers!(
    sqlite,
    SqliteStore,
    SqliteInbox,
    Sqlite,
    Some(crate::sqlite::Database::new().await),
    "insert into payments values (?, ?)",
    "payments.order_id"
);

macro_rules! limits {
    ($name:ident, $database:ident, $driver:ident, $fresh:expr, |$tx:ident| $fails:expr) => {
        #[tokio::test]
        async fn $name() {
            use semel_backends::$database::{Transaction, $driver};

            async fn fails(
                $tx: &mut Transaction<'_, $driver>,
                _: serde_json::Value,
                _: &Message,
            ) -> Result<(), HandlerError> {
                $fails.await?;
                Ok(())
            }

            let Some(database) = $fresh else { return };
            let inbox = database.store.inbox();
            let consumer = Consumer::builder("p", inbox).on("OrderPlaced", fails).build();
            let published = consumer.publish(&[Message::first("orders", order(1))]).await;
            let Published::Each(verdicts) = &published else { panic!("{published:?}") };
            let [Verdict::Failed(failure)] = &verdicts[..] else { panic!("{verdicts:?}") };
            assert_eq!(failure.fault(), Fault::Transient, "{failure:?}");
        }
    };
}

/// A message whose statement is always stopped, or never sent, becomes a dead letter, and its lane
/// goes on.
#[cfg(any(feature = "postgres", feature = "mysql"))]
mod a_statement_that_is_stopped_is_no_outage {
    use semel_core::{Fault, HandlerError, Published, Verdict};
    use semel_relay::Consumer;

    use super::*;

    #[cfg(feature = "postgres")]
    limits!(postgres, postgres, Postgres, crate::postgres::Database::new().await, |tx| {
        sqlx::raw_sql("set local statement_timeout = 50; select pg_sleep(10)").execute(&mut **tx)
    });
    #[cfg(feature = "postgres")]
    limits!(
        postgres_after_a_pause,
        postgres,
        Postgres,
        crate::postgres::Database::new().await,
        |tx| async {
            let limit = "set local idle_in_transaction_session_timeout = 50";
            sqlx::raw_sql(limit).execute(&mut **tx).await?;
            tokio::time::sleep(std::time::Duration::from_millis(500)).await;
            sqlx::raw_sql("select 1").execute(&mut **tx).await
        }
    );
    #[cfg(feature = "postgres")]
    limits!(
        postgres_that_pauses_before_the_commit,
        postgres,
        Postgres,
        crate::postgres::Database::new().await,
        |tx| async {
            let limit = "set local idle_in_transaction_session_timeout = 50";
            sqlx::raw_sql(limit).execute(&mut **tx).await?;
            tokio::time::sleep(std::time::Duration::from_millis(500)).await;
            Ok::<_, sqlx::Error>(())
        }
    );
    #[cfg(feature = "postgres")]
    limits!(
        postgres_of_too_many_values,
        postgres,
        Postgres,
        crate::postgres::Database::new().await,
        |tx| {
            let values = 0..=i32::from(u16::MAX);
            let query = sqlx::query::<Postgres>("select 1");
            values.fold(query, sqlx::query::Query::bind).execute(&mut **tx)
        }
    );
    #[cfg(feature = "postgres")]
    limits!(
        postgres_of_too_few_values,
        postgres,
        Postgres,
        crate::postgres::Database::new().await,
        |tx| sqlx::query("select $1::int").execute(&mut **tx)
    );
    #[cfg(feature = "mysql")]
    limits!(mysql, mysql, MySql, crate::mysql::Database::new().await, |tx| {
        sqlx::raw_sql("kill query connection_id()").execute(&mut **tx)
    });
    #[cfg(feature = "mysql")]
    limits!(mysql_of_too_few_values, mysql, MySql, crate::mysql::Database::new().await, |tx| {
        sqlx::query("select ?").execute(&mut **tx)
    });
}

/// It waits for somebody else's row, in a statement that cannot be taken back.
#[cfg(feature = "postgres")]
#[tokio::test(flavor = "multi_thread")]
async fn a_handler_behind_a_lock_is_given_up_in_time() {
    use std::time::Duration;

    use semel_backends::postgres::{Postgres, Transaction};
    use semel_core::{HandlerError, Published, Verdict};
    use semel_relay::Consumer;
    use tokio::time::timeout;

    async fn pay(
        tx: &mut Transaction<'_, Postgres>,
        _: serde_json::Value,
        _: &Message,
    ) -> Result<(), HandlerError> {
        sqlx::query("insert into payments values (1)").execute(&mut **tx).await?;
        Ok(())
    }

    let Some(database) = crate::postgres::Database::new().await else { return };
    let store = database.store.clone();
    let table = "create table payments (order_id bigint primary key)";
    sqlx::raw_sql(table).execute(store.pool()).await.unwrap();
    let mut other = store.begin().await.unwrap();
    sqlx::raw_sql("insert into payments values (1)").execute(&mut *other).await.unwrap();

    let consumer = |limit| {
        let builder = Consumer::builder("payments", store.inbox()).on("OrderPlaced", pay);
        builder.handler_timeout(limit).build()
    };
    let message = [Message::first("orders", order(1))];
    let hasty = consumer(Duration::from_millis(300));
    let given_up = timeout(Duration::from_secs(30), hasty.publish(&message)).await.unwrap();
    let Published::Each(verdicts) = given_up else { panic!("{given_up:?}") };
    let [Verdict::Failed(failure)] = &verdicts[..] else { panic!("{verdicts:?}") };
    assert_eq!(failure.code(), "E-HANDLER-TIMEOUT");

    other.rollback().await.unwrap();
    let patient = consumer(Duration::from_secs(20));
    let again = timeout(Duration::from_secs(30), patient.publish(&message)).await.unwrap();
    assert!(again.all_confirmed(), "{again:?}");
    let count: i64 =
        sqlx::query_scalar("select count(*) from payments").fetch_one(store.pool()).await.unwrap();
    assert_eq!(count, 1);
}
