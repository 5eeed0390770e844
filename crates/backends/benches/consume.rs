//! What each strategy of a consumer costs over the bare transaction of its handler, on PostgreSQL, in one run:
//! ids, positions, a version per aggregate, a unique constraint; and how the tables grow.
//! `cargo bench -p semel-backends --features postgres --bench consume`
//!
//! The handler inserts one row. Arguments: messages per round (20000), rounds (5). The server is that of
//! `SEMEL_TEST_POSTGRES_URL`, in a database of its own.

#![expect(clippy::print_stdout, reason = "it reports to the terminal")]

use std::error::Error;
use std::sync::Arc;
use std::time::{Duration, Instant};

use async_trait::async_trait;
use semel_backends::once::OrAlreadyApplied;
use semel_backends::postgres::{PgPool, Postgres, PostgresConfig, PostgresStore, Transaction};
use semel_core::delivery::Log;
use semel_core::marks::apply_if_version;
use semel_core::{Event, EventId, Failure, HandlerError, Message, Position, Publication, Sink};
use semel_relay::{Consumer, Handler, handler_fn};

type Outcomes<T> = Result<T, Box<dyn Error>>;
type Tx = Transaction<'static, Postgres>;

/// What is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Strategy {
    /// Begin, the handler for each message, commit: nothing is remembered.
    Bare,
    Ids,
    IdsAndLetters,
    /// One mark per partition, and letters, which it needs.
    Positions,
    /// One mark per aggregate, without ids.
    Version,
    /// The handler's own constraint, without ids.
    Unique,
}

const ALL: [Strategy; 6] = [
    Strategy::Bare,
    Strategy::Ids,
    Strategy::IdsAndLetters,
    Strategy::Positions,
    Strategy::Version,
    Strategy::Unique,
];

#[tokio::main]
async fn main() -> Outcomes<()> {
    let mut numbers = std::env::args().filter_map(|argument| argument.parse::<usize>().ok());
    let count = numbers.next().unwrap_or(20_000);
    let rounds = numbers.next().unwrap_or(5);
    let Ok(server) = std::env::var("SEMEL_TEST_POSTGRES_URL") else {
        println!("set SEMEL_TEST_POSTGRES_URL: ./dev services env");
        return Ok(());
    };
    let name = format!("bench_{}", EventId::now().as_uuid().simple());
    let admin = PgPool::connect(&server).await?;
    run(&admin, format!("create database {name}")).await?;
    let (base, _) = server.rsplit_once('/').ok_or("a URL with a database")?;
    let store = PostgresConfig::new(&format!("{base}/{name}"))?.connect().await?;
    store.migrate().await?;
    let schema = "create table payments (order_id text, number bigint, id uuid);
        create table unique_payments (order_id text, number bigint, id uuid primary key)";
    run(store.pool(), schema.to_owned()).await?;
    for batch in [100, 1] {
        let count = if batch == 1 { count / 10 } else { count };
        compare(&store, count, batch, rounds).await?;
    }
    growth(&store).await?;
    store.close().await;
    run(&admin, format!("drop database {name} with (force)")).await
}

async fn compare(store: &PostgresStore, count: usize, batch: usize, rounds: usize) -> Outcomes<()> {
    let mut times = vec![Vec::new(); ALL.len()];
    for round in 0..=rounds {
        for (strategy, times) in ALL.into_iter().zip(&mut times) {
            let time = measure(store, strategy, count, batch, round).await?;
            // The first round only warms up.
            if round > 0 {
                times.push(time);
            }
        }
    }
    let medians: Vec<_> = times.into_iter().map(median).collect();
    for (strategy, time) in ALL.into_iter().zip(&medians) {
        let (rate, bare) = (count as f64 / time.as_secs_f64(), medians[0].as_secs_f64());
        let cost = (time.as_secs_f64() / bare - 1.0) * 100.0;
        println!("{batch:>3} a transaction, {strategy:?}: {rate:.0} messages/s, {cost:+.1} %");
    }
    Ok(())
}

async fn measure(
    store: &PostgresStore,
    strategy: Strategy,
    count: usize,
    batch: usize,
    round: usize,
) -> Outcomes<Duration> {
    // Versions and offsets rise from one comparison to the next.
    let round = if batch == 1 { round + 1_000 } else { round };
    let messages: Vec<_> = (0..count).map(|number| message(number, round)).collect();
    let consumer = Consumer::new("payments", store.inbox(), insert());
    let with_letters = Consumer::builder("payments", store.inbox())
        .dead_letters(store.letters())
        .build_with(insert());
    let by_position = Consumer::builder("payments", store.inbox())
        .dead_letters(store.letters())
        .by_position(store.marks())
        .build_with(insert());
    let began = Instant::now();
    for batch in messages.chunks(batch) {
        let all_confirmed = match strategy {
            Strategy::Ids => consumer.publish(batch).await.all_confirmed(),
            Strategy::IdsAndLetters => with_letters.publish(batch).await.all_confirmed(),
            Strategy::Positions => by_position.publish(batch).await.all_confirmed(),
            Strategy::Bare | Strategy::Version | Strategy::Unique => {
                by_hand(store, strategy, batch).await?
            }
        };
        if !all_confirmed {
            return Err("a message was not confirmed".into());
        }
    }
    Ok(began.elapsed())
}

/// Without an inbox.
async fn by_hand(store: &PostgresStore, strategy: Strategy, batch: &[Message]) -> Outcomes<bool> {
    let mut tx = store.begin().await?;
    for message in batch {
        match strategy {
            Strategy::Unique => {
                let inserted = row(UNIQUE, message).execute(&mut *tx).await;
                inserted.or_already_applied("unique_payments_pkey").map_err(|e| e.to_string())?;
            }
            Strategy::Version => {
                let (message, marks) = (message.clone(), store.marks());
                let event = &message.event;
                let (scope, version) = (event.lane().scope(), event.sequence().unwrap_or(0));
                let done = apply_if_version(&marks, &mut tx, "prices", &scope, version, |tx| {
                    Box::pin(async move {
                        row(PLAIN, &message).execute(&mut **tx).await?;
                        Ok::<_, HandlerError>(Default::default())
                    })
                });
                done.await.map_err(|error| error.to_string())?;
            }
            _ => {
                row(PLAIN, message).execute(&mut *tx).await?;
            }
        }
    }
    tx.commit().await?;
    Ok(true)
}

fn insert() -> impl Handler<Tx> {
    handler_fn(|tx: &mut Tx, message: &Message| {
        Box::pin(async move {
            row(PLAIN, message).execute(&mut **tx).await?;
            Ok::<_, HandlerError>(Default::default())
        })
    })
}

const PLAIN: &str = "insert into payments (order_id, number, id) values ($1, $2, $3)";
const UNIQUE: &str = "insert into unique_payments (order_id, number, id) values ($1, $2, $3)";

type Query<'q> = sqlx::query::Query<'q, Postgres, sqlx::postgres::PgArguments>;

fn row<'q>(sql: &'static str, message: &'q Message) -> Query<'q> {
    let event = &message.event;
    let number = event.sequence().unwrap_or(0).cast_signed();
    sqlx::query(sql).bind(event.aggregate_id.as_str()).bind(number).bind(event.id.as_uuid())
}

/// A thousand aggregates, whose versions rise, in one partition.
fn message(number: usize, round: usize) -> Message {
    let version = (round * 1_000_000 + number) as u64;
    let event = Event::new("order", (number % 1_000).to_string(), "OrderPlaced");
    let mut message = Message::first("orders", event.with_sequence(version));
    message.publication = Publication::First;
    message.position = Some(Position { log: Arc::new(Orders), offset: version });
    message
}

/// A partition that is read once, so that nobody asks for its end.
#[derive(Debug)]
struct Orders;

#[async_trait]
impl Log for Orders {
    fn name(&self) -> &str {
        "orders/0"
    }

    async fn end(&self) -> Result<u64, Failure> {
        Ok(u64::MAX)
    }
}

/// How much a message leaves behind.
async fn growth(store: &PostgresStore) -> Outcomes<()> {
    for table in ["semel.inbox", "semel.marks"] {
        let (rows, bytes): (i64, i64) = sqlx::query_as(sqlx::AssertSqlSafe(format!(
            "select count(*), pg_total_relation_size('{table}') from {table}"
        )))
        .fetch_one(store.pool())
        .await?;
        println!("{table}: {rows} rows, {:.1} MB with indexes", bytes as f64 / 1e6);
    }
    Ok(())
}

async fn run(pool: &PgPool, sql: String) -> Outcomes<()> {
    sqlx::raw_sql(sqlx::AssertSqlSafe(sql)).execute(pool).await?;
    Ok(())
}

fn median(mut times: Vec<Duration>) -> Duration {
    times.sort_unstable();
    times[times.len() / 2]
}
