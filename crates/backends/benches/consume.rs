//! What each strategy of a consumer costs over the bare transaction of its handler, on PostgreSQL, in one run:
//! ids, positions, a version per aggregate, a unique constraint, an id of the client; beside it, the runtime when it remembers
//! nothing, and copies of what took effect; and how the tables grow.
//! `cargo bench -p semel-backends --features postgres --bench consume`
//!
//! Two handlers: a usual one that inserts a row with a primary key and updates another, and the least that
//! can be, an INSERT into a table without an index. Argument: messages of each strategy (100000; a tenth where each is a transaction).
//! The strategies take turns, each time in another order. Each is compared with the bare handler of the same turn, and the median
//! of that is told: what the machine does meanwhile concerns both. A turn is as many
//! transactions as make some 25 ms: one alone after seven others would find nothing of its own in the processor's caches, which
//! is not how a busy consumer runs. Each has a database and connections of its own: what serves several is slower for all. Then one table after the
//! other grows by a million messages (`SEMEL_BENCH_GROWTH`). The server is that of `SEMEL_TEST_POSTGRES_URL`.

#![expect(clippy::print_stdout, reason = "it reports to the terminal")]

use std::error::Error;
use std::sync::Arc;
use std::time::{Duration, Instant};

use async_trait::async_trait;
use bytes::Bytes;
use semel_backends::once::OrAlreadyApplied;
use semel_backends::postgres::{
    PgPool, Postgres, PostgresConfig, PostgresInbox, PostgresStore, Transaction,
};
use semel_core::delivery::Log;
use semel_core::inbox::{InboxStore, Opening, Seen};
use semel_core::marks::apply_if_version;
use semel_core::{Event, EventId, Failure, HandlerError, Message, Position, Publication, Sink};
use semel_relay::{Consumer, Handler, handler_fn};

type Outcomes<T> = Result<T, Box<dyn Error + Send + Sync>>;
type Tx = Transaction<'static, Postgres>;

/// What the handler does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Work {
    /// A payment with its key, and the account that it goes to.
    Usual,
    /// One row without a key.
    Least,
}

/// What is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Strategy {
    /// Begin, the handler for each message, commit: nothing is remembered.
    Bare,
    /// The same once more: what it differs by is chance.
    BareAgain,
    /// The runtime around it, and nothing is remembered.
    Runtime,
    Ids,
    /// The same once more, of messages that took effect already.
    Copies,
    IdsAndLetters,
    /// One mark per partition, and letters, which it needs.
    Positions,
    /// One mark per aggregate, without ids.
    Version,
    /// The handler's own constraint, without ids.
    Unique,
    /// An id that the client gave, in an upsert, without ids of messages.
    Upsert,
}

const ALL: [Strategy; 10] = [
    Strategy::Bare,
    Strategy::BareAgain,
    Strategy::Runtime,
    Strategy::Ids,
    Strategy::Copies,
    Strategy::IdsAndLetters,
    Strategy::Positions,
    Strategy::Version,
    Strategy::Unique,
    Strategy::Upsert,
];

/// What a strategy of the consumer remembers, and where.
const GROWING: [(Strategy, &str); 2] =
    [(Strategy::Ids, "semel.inbox"), (Strategy::Positions, "semel.marks")];

/// How many messages take effect in one transaction, and how many transactions make a turn: as many
/// messages as the settings allow when there is a backlog, fewer, and one.
const BATCHES: [(usize, usize); 3] = [(500, 1), (100, 5), (1, 40)];

#[tokio::main]
async fn main() -> Outcomes<()> {
    let mut numbers = std::env::args().filter_map(|argument| argument.parse::<usize>().ok());
    let count = numbers.next().unwrap_or(100_000);
    let Ok(server) = std::env::var("SEMEL_TEST_POSTGRES_URL") else {
        println!("set SEMEL_TEST_POSTGRES_URL: ./dev services env");
        return Ok(());
    };
    let admin = PgPool::connect(&server).await?;
    let (base, _) = server.rsplit_once('/').ok_or("a URL with a database")?;
    let (mut names, mut configs) = (Vec::new(), Vec::new());
    for _ in ALL {
        let name = format!("bench_{}", EventId::now().as_uuid().simple());
        run(&admin, format!("create database {name}")).await?;
        configs.push(prepared(&format!("{base}/{name}")).await?);
        names.push(name);
    }
    let works = [Work::Usual, Work::Least];
    let rounds = works.into_iter().flat_map(|work| BATCHES.map(|batch| (work, batch)));
    for (round, (work, (batch, turn))) in rounds.enumerate() {
        let count = if batch == 1 { count / 10 } else { count };
        let size = Size { batch, turn, turns: count.div_ceil(batch * turn) };
        // In a task of the runtime, as consumers are: outside of one, each answer changes threads.
        tokio::spawn(compare(configs.clone(), work, size, round)).await??;
    }
    let growth = std::env::var("SEMEL_BENCH_GROWTH").ok().and_then(|n| n.parse().ok());
    for (strategy, table) in GROWING {
        grow(&configs[0], strategy, table, growth.unwrap_or(1_000_000)).await?;
    }
    for name in names {
        run(&admin, format!("drop database {name} with (force)")).await?;
    }
    Ok(())
}

/// A database with the tables of semel and of the handlers.
async fn prepared(url: &str) -> Outcomes<PostgresConfig> {
    let config = PostgresConfig::new(url)?;
    let store = config.connect().await?;
    store.migrate().await?;
    let schema = "create table payments (order_id text, number bigint, id uuid);
        create table keyed_payments (order_id text, number bigint primary key, id uuid);
        create table unique_payments (order_id text, number bigint, id uuid primary key);
        create table accounts (id text primary key, payments bigint not null) with (fillfactor = 50);
        insert into accounts select n, 0 from generate_series(0, 999) n";
    run(store.pool(), schema.to_owned()).await?;
    store.close().await;
    Ok(config)
}

/// How much is done at a time, and how often.
#[derive(Clone, Copy, Debug)]
struct Size {
    /// Messages of a transaction.
    batch: usize,
    /// Transactions of a turn.
    turn: usize,
    turns: usize,
}

/// All strategies in turn, so that each has the same company; how long each turn took.
async fn compare(
    configs: Vec<PostgresConfig>,
    work: Work,
    Size { batch, turn, turns }: Size,
    round: usize,
) -> Outcomes<()> {
    let mut stores = Vec::new();
    for config in configs {
        stores.push(config.connect().await?);
    }
    let consumers: Vec<_> =
        ALL.iter().zip(&stores).map(|(one, store)| consumer(store, *one, handler(work))).collect();
    let runtime = Consumer::new("payments", Forgetful(stores[2].clone()), handler(work));
    let mut times = ALL.map(|_| Vec::new());
    let mut order: Vec<_> = (0..ALL.len()).collect();
    for number_of_turn in 0..turns {
        shuffle(&mut order);
        for number in order.iter().copied() {
            let first = number_of_turn * turn * batch;
            let messages: Vec<_> =
                (first..first + turn * batch).map(|place| message(place, round)).collect();
            if let (Some(consumer), Strategy::Copies) = (&consumers[number], ALL[number]) {
                for messages in messages.chunks(batch) {
                    consumer.publish(messages).await;
                }
            }
            let began = Instant::now();
            for messages in messages.chunks(batch) {
                let all_confirmed = match (&consumers[number], ALL[number]) {
                    (Some(consumer), _) => consumer.publish(messages).await.all_confirmed(),
                    (None, Strategy::Runtime) => runtime.publish(messages).await.all_confirmed(),
                    (None, strategy) => by_hand(&stores[number], work, strategy, messages).await?,
                };
                if !all_confirmed {
                    return Err("a message was not confirmed".into());
                }
            }
            times[number].push(began.elapsed());
        }
    }
    for store in stores {
        store.close().await;
    }
    for (strategy, own) in ALL.into_iter().zip(&times) {
        let rate = (turn * batch) as f64 / median(own.iter().map(Duration::as_secs_f64));
        let pairs = times[0].iter().zip(own);
        let share = median(pairs.map(|(bare, own)| bare.as_secs_f64() / own.as_secs_f64()));
        println!(
            "{work:?} handler, {batch:>3} a transaction, {strategy:?}: {rate:.0} messages/s, {share:.2} of bare"
        );
    }
    Ok(())
}

fn median(numbers: impl Iterator<Item = f64>) -> f64 {
    let mut numbers: Vec<_> = numbers.collect();
    numbers.sort_unstable_by(f64::total_cmp);
    numbers[numbers.len() / 2]
}

/// None when it is done by hand.
fn consumer<H: Handler<Tx>>(
    store: &PostgresStore,
    strategy: Strategy,
    handler: H,
) -> Option<Consumer<PostgresInbox, H>> {
    match strategy {
        Strategy::Ids | Strategy::Copies => Some(Consumer::new("payments", store.inbox(), handler)),
        Strategy::IdsAndLetters => {
            let builder = Consumer::builder("payments", store.inbox());
            Some(builder.dead_letters(store.letters()).build_with(handler))
        }
        Strategy::Positions => {
            let builder = Consumer::builder("payments", store.inbox());
            let builder = builder.dead_letters(store.letters()).by_position(store.marks());
            Some(builder.build_with(handler))
        }
        Strategy::Bare
        | Strategy::BareAgain
        | Strategy::Runtime
        | Strategy::Version
        | Strategy::Unique
        | Strategy::Upsert => None,
    }
}

/// Another order: in one that comes again and again, a strategy would always have the same connection.
fn shuffle(order: &mut [usize]) {
    for last in (1..order.len()).rev() {
        let other = EventId::now().as_uuid().as_u128() % (last as u128 + 1);
        order.swap(last, other as usize);
    }
}

/// An inbox that remembers nothing.
struct Forgetful(PostgresStore);

impl InboxStore for Forgetful {
    type Tx<'c> = Transaction<'c, Postgres>;

    async fn begin(&self) -> Result<Tx, Failure> {
        self.0.begin().await
    }

    async fn begin_with(&self, _: &str, _: Opening<'_>) -> Result<(Tx, bool), Failure> {
        Ok((self.0.begin().await?, true))
    }

    async fn record(&self, _: &mut Self::Tx<'_>, _: &str, _: EventId) -> Result<Seen, Failure> {
        Ok(Seen::First)
    }

    async fn store_result(
        &self,
        _: &mut Self::Tx<'_>,
        _: &str,
        _: EventId,
        _: Bytes,
    ) -> Result<(), Failure> {
        Ok(())
    }

    async fn commit(&self, tx: Tx) -> Result<(), Failure> {
        self.0.inbox().commit(tx).await
    }

    async fn rollback(&self, tx: Tx) {
        self.0.inbox().rollback(tx).await;
    }

    async fn forget(&self, _: Duration, _: usize) -> Result<usize, Failure> {
        Ok(0)
    }
}

/// Without an inbox.
async fn by_hand(
    store: &PostgresStore,
    work: Work,
    strategy: Strategy,
    batch: &[Message],
) -> Outcomes<bool> {
    let mut tx = store.begin().await?;
    for message in batch {
        match strategy {
            Strategy::Unique => {
                let inserted = row(UNIQUE, message).execute(&mut *tx).await;
                inserted.or_already_applied("unique_payments_pkey").map_err(|e| e.to_string())?;
                work.update(&mut tx, message).await?;
            }
            Strategy::Upsert => {
                let inserted = row(UPSERT, message).execute(&mut *tx).await?;
                let changed = HandlerError::unless_changed(inserted.rows_affected());
                changed.map_err(|error| error.to_string())?;
                work.update(&mut tx, message).await?;
            }
            Strategy::Version => {
                let (message, marks) = (message.clone(), store.marks());
                let event = &message.event;
                let (scope, version) = (event.lane().scope(), event.sequence().unwrap_or(0));
                let done = apply_if_version(&marks, &mut tx, "prices", &scope, version, |tx| {
                    Box::pin(async move {
                        work.take_effect(tx, &message).await?;
                        Ok::<_, HandlerError>(Default::default())
                    })
                });
                done.await.map_err(|error| error.to_string())?;
            }
            _ => work.take_effect(&mut tx, message).await?,
        }
    }
    tx.commit().await?;
    Ok(true)
}

fn handler(work: Work) -> impl Handler<Tx> {
    handler_fn(move |tx: &mut Tx, message: &Message| {
        Box::pin(async move {
            work.take_effect(tx, message).await?;
            Ok::<_, HandlerError>(Default::default())
        })
    })
}

impl Work {
    async fn take_effect(self, tx: &mut Tx, message: &Message) -> Result<(), sqlx::Error> {
        let insert = if self == Self::Usual { KEYED } else { PLAIN };
        row(insert, message).execute(&mut **tx).await?;
        self.update(tx, message).await
    }

    /// The part that is the same whoever sees to the key of the payment.
    async fn update(self, tx: &mut Tx, message: &Message) -> Result<(), sqlx::Error> {
        if self == Self::Usual {
            let account = sqlx::query(ACCOUNT).bind(message.event.aggregate_id.as_str());
            account.execute(&mut **tx).await?;
        }
        Ok(())
    }
}

const PLAIN: &str = "insert into payments (order_id, number, id) values ($1, $2, $3)";
const KEYED: &str = "insert into keyed_payments (order_id, number, id) values ($1, $2, $3)";
const ACCOUNT: &str = "update accounts set payments = payments + 1 where id = $1";
const UNIQUE: &str = "insert into unique_payments (order_id, number, id) values ($1, $2, $3)";
const UPSERT: &str = "insert into unique_payments (order_id, number, id) values ($1, $2, $3) \
    on conflict do nothing";

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

/// What so many messages leave behind, whose handler does nothing.
async fn grow(
    config: &PostgresConfig,
    strategy: Strategy,
    table: &str,
    count: usize,
) -> Outcomes<()> {
    const BATCH: usize = 1000;
    let nothing = handler_fn(|_: &mut Tx, _: &Message| Box::pin(async { Ok(Default::default()) }));
    let store = config.connect().await?;
    let consumer = consumer(&store, strategy, nothing).ok_or("a strategy of the consumer")?;
    let began = Instant::now();
    for first in (0..count).step_by(BATCH) {
        let batch: Vec<_> = (first..count.min(first + BATCH)).map(|n| message(n, 1_000)).collect();
        if !consumer.publish(&batch).await.all_confirmed() {
            return Err("a message was not confirmed".into());
        }
    }
    let took = began.elapsed().as_secs_f64();
    let sql = format!("select count(*), pg_total_relation_size('{table}') from {table}");
    let (rows, bytes): (i64, i64) =
        sqlx::query_as(sqlx::AssertSqlSafe(sql)).fetch_one(store.pool()).await?;
    let (megabytes, each) = (bytes as f64 / 1e6, bytes as f64 / count as f64);
    println!(
        "{count} messages, {strategy:?}: {rows} rows, {megabytes:.1} MB with indexes, {each:.1} bytes a message, \
         {took:.0} s"
    );
    store.close().await;
    Ok(())
}

async fn run(pool: &PgPool, sql: String) -> Outcomes<()> {
    sqlx::raw_sql(sqlx::AssertSqlSafe(sql)).execute(pool).await?;
    Ok(())
}
