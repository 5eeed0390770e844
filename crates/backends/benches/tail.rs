//! How soon a source that the log tells of commits has an event, beside polling; and how fast it
//! drains a backlog, beside `pg_recvlogical` on the same backlog. Both sides are in one run. Before
//! that one transaction of a million events, and after it the memory that both took; later messages, which
//! are carried from the log into the outbox.
//! With the feature `kafka` also how fast a relay brings that backlog to Kafka, beside others whose
//! events cost no database.
//! `cargo bench -p semel-backends --features kafka,postgres --bench tail`
//!
//! The server is that of `SEMEL_TEST_POSTGRES_URL`, with `wal_level = logical`; the tables are made
//! anew in its database `semel_bench_tail`. Arguments: events of the backlog (200000), rounds (3),
//! transactions per second (1000), seconds (10). Kafka is that of `SEMEL_TEST_KAFKA_BROKERS`.

#![expect(clippy::print_stdout, reason = "it reports to the terminal")]

#[cfg(feature = "kafka")]
#[path = "tail/kafka.rs"]
mod kafka;
#[path = "tail/messages.rs"]
mod messages;
mod stopwatch;

use std::error::Error;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use semel_backends::postgres::{PgPool, PostgresConfig, PostgresSource, PostgresStore, Tailing};
use semel_core::{Event, Limit, Outcome, Settlement, Sink, Source};
use semel_relay::{Relay, Settings, Stop};
use tokio::time::{MissedTickBehavior, interval, sleep};

use self::stopwatch::StopWatch;

/// How many aggregates there are events of.
const LANES: usize = 10_000;

type Outcomes<T> = Result<T, Box<dyn Error + Send + Sync>>;

/// As the program has it.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

#[tokio::main]
async fn main() -> Outcomes<()> {
    // In a task of the runtime, as relays are: outside of one, each answer changes threads.
    tokio::spawn(measure()).await?
}

async fn measure() -> Outcomes<()> {
    let numbers = std::env::args().filter_map(|argument| argument.parse::<usize>().ok());
    let mut numbers = numbers.collect::<Vec<_>>().into_iter();
    let count = numbers.next().unwrap_or(200_000);
    let rounds = numbers.next().unwrap_or(3);
    let pace = numbers.next().unwrap_or(1_000);
    let seconds = numbers.next().unwrap_or(10);
    let Ok(server) = std::env::var("SEMEL_TEST_POSTGRES_URL") else {
        println!("SEMEL_TEST_POSTGRES_URL is not set: nothing to measure");
        return Ok(());
    };
    let (store, url) = fresh_store(&server).await?;
    large_transaction(&store, 1_000_000).await?;
    backlog(&store, &url, count, rounds).await?;
    // Before what keeps all events in memory for the sake of measuring.
    println!("resident memory at its highest: {} MiB (target 64)", peak_memory()? / 1024);
    #[cfg(feature = "kafka")]
    kafka::beside_others(&store, count, rounds).await?;
    // A new pipeline would begin with the backlog.
    run(&store, "truncate semel.outbox").await?;
    messages::carried(&store, &url, count).await?;
    run(&store, "truncate semel.outbox").await?;
    let time = Duration::from_secs(seconds as u64);
    for round in 0..rounds {
        let load = Load { round, pace, time };
        let tail = Ok(Tailing::Required);
        let ways = [("tail", tail), ("poll 100 ms", Err(100)), ("poll 10 ms", Err(10))];
        for (name, way) in ways {
            let watch = Arc::new(StopWatch::default());
            latency(&store, load, way, &watch, Arc::clone(&watch)).await?;
            println!("{name}, {pace} tx/s: {}", watch.summary());
        }
        #[cfg(feature = "kafka")]
        kafka::until_acknowledged(&store, load).await?;
    }
    store.close().await;
    Ok(())
}

async fn fresh_store(server: &str) -> Outcomes<(PostgresStore, String)> {
    let admin = PgPool::connect(server).await?;
    sqlx::raw_sql(
        "select pg_drop_replication_slot(slot_name) from pg_replication_slots
        where database = 'semel_bench_tail'",
    )
    .execute(&admin)
    .await?;
    sqlx::raw_sql("drop database if exists semel_bench_tail with (force)").execute(&admin).await?;
    sqlx::raw_sql("create database semel_bench_tail").execute(&admin).await?;
    let base = server.rsplit_once('/').map_or(server, |(base, _)| base);
    let url = format!("{base}/semel_bench_tail");
    let store = PostgresConfig::new(&url)?.connections(40).connect().await?;
    store.migrate().await?;
    Ok((store, url))
}

/// Written while a source tails, which must not need memory for all of it.
async fn large_transaction(store: &PostgresStore, rows: usize) -> Outcomes<()> {
    let source = store.tailing_source("large", Tailing::Required).await?;
    run(
        store,
        &format!(
            "insert into semel.outbox (aggregate_type, aggregate_id, event_type, payload)
            select 'order', n % 10000, 'OrderPlaced', '{{\"text\":\"' || repeat('x', 189) || '\"}}'
            from generate_series(1, {rows}) n"
        ),
    )
    .await?;
    println!("one transaction of {rows}: {}", rate(rows, drain(source).await?));
    run(store, "truncate semel.outbox").await
}

/// The same backlog through a slot and by a source, in turns.
async fn backlog(store: &PostgresStore, url: &str, count: usize, rounds: usize) -> Outcomes<()> {
    run(store, "create publication bench for table semel.outbox with (publish = 'insert')").await?;
    for round in 0..rounds {
        run(
            store,
            &format!("select pg_create_logical_replication_slot('bench_{round}', 'pgoutput')"),
        )
        .await?;
    }
    fill(store, count).await?;
    let end: String =
        sqlx::query_scalar("select pg_current_wal_lsn()::text").fetch_one(store.pool()).await?;
    let (mut slots, mut sources) = (Vec::new(), Vec::new());
    for round in 0..rounds {
        slots.push(receive(url, &format!("bench_{round}"), &end, false)?);
        let source =
            store.tailing_source(&format!("backlog {round}"), Tailing::WherePossible).await?;
        sources.push(drain(source).await?);
    }
    for round in 0..rounds {
        run(store, &format!("select pg_drop_replication_slot('bench_{round}')")).await?;
    }
    let (slot, source) = (median(slots), median(sources));
    println!(
        "a backlog of {count}: {} ({:.2} of pg_recvlogical, {})",
        rate(count, source),
        slot.as_secs_f64() / source.as_secs_f64(),
        rate(count, slot),
    );
    Ok(())
}

async fn run(store: &PostgresStore, sql: &str) -> Outcomes<()> {
    sqlx::raw_sql(sqlx::AssertSqlSafe(sql)).execute(store.pool()).await?;
    Ok(())
}

/// Ten events in each transaction, 200 bytes in each event.
async fn fill(store: &PostgresStore, count: usize) -> Outcomes<()> {
    for start in (0..count).step_by(10) {
        let events: Vec<_> = (start..count.min(start + 10)).map(made).collect();
        let mut tx = store.begin().await?;
        sqlx::raw_sql("set local synchronous_commit = off").execute(&mut *tx).await?;
        store.outbox().append_all(&mut tx, &events).await?;
        tx.commit().await?;
    }
    run(store, "checkpoint").await
}

fn made(number: usize) -> Event {
    let payload = format!("{{\"text\":\"{}\"}}", "x".repeat(189));
    Event::new("order", (number % LANES).to_string(), "OrderPlaced")
        .with_bytes("application/json", payload)
}

/// What the server's own client takes to receive it all.
fn receive(url: &str, slot: &str, end: &str, messages: bool) -> Outcomes<Duration> {
    let began = Instant::now();
    let status = Command::new("pg_recvlogical")
        .args(["--dbname", url, "--slot", slot, "--start", "--endpos", end, "--no-loop"])
        .args(["--option", "proto_version=1", "--option", "publication_names=bench"])
        .args(["--option", &format!("messages={messages}")])
        .args(["--file", "/dev/null"])
        .stderr(Stdio::null())
        .status()?;
    assert!(status.success(), "pg_recvlogical: {status}");
    Ok(began.elapsed())
}

/// Reads and confirms everything, as a relay with an infinitely fast sink would.
async fn drain(mut source: PostgresSource) -> Outcomes<Duration> {
    let limit = Limit { events: 1_000, bytes: 64 * 1024 * 1024 };
    let began = Instant::now();
    loop {
        let batch = source.next_batch(limit).await?;
        if batch.deliveries.is_empty() {
            return Ok(began.elapsed());
        }
        let settled = |receipt| Settlement { receipt, outcome: Outcome::Delivered };
        let settlements: Vec<_> =
            batch.deliveries.iter().map(|delivery| settled(delivery.receipt)).collect();
        assert!(source.settle(&settlements).await?.is_held());
    }
}

/// How latency is measured.
#[derive(Clone, Copy)]
struct Load {
    round: usize,
    /// Transactions per second.
    pace: usize,
    time: Duration,
}

/// From the answer to a commit to what the sink tells the watch, in a whole relay.
async fn latency(
    store: &PostgresStore,
    Load { round, pace, time }: Load,
    way: Result<Tailing, u64>,
    watch: &Arc<StopWatch>,
    sink: impl Sink + 'static,
) -> Outcomes<()> {
    let pipeline = format!("{way:?} {round} {:p}", Arc::as_ptr(watch));
    let source = match way {
        Ok(tailing) => store.tailing_source(&pipeline, tailing).await?,
        Err(_) => store.source(&pipeline).await?,
    };
    let interval = Duration::from_millis(way.err().unwrap_or(100));
    let settings = Settings {
        batch_events: 1_000,
        in_flight_events: 4_000,
        poll_interval: interval,
        ..Settings::default()
    };
    let (stopper, stop) = Stop::new();
    let relay = Relay::new(&pipeline, source, sink).with_settings(settings);
    let relay = tokio::spawn(relay.run(stop));
    // The backlog, and the beginning.
    sleep(Duration::from_secs(5)).await;
    let writers: Vec<_> = (0..WRITERS)
        .map(|_| tokio::spawn(write(store.clone(), Arc::clone(watch), pace, time)))
        .collect();
    for writer in writers {
        writer.await?.map_err(|error| error.to_string())?;
    }
    sleep(Duration::from_secs(1)).await;
    stopper.stop();
    relay.await??;
    Ok(())
}

const WRITERS: usize = 8;

async fn write(
    store: PostgresStore,
    watch: Arc<StopWatch>,
    pace: usize,
    time: Duration,
) -> Result<(), String> {
    let mut ticks = interval(
        Duration::from_secs(1) * u32::try_from(WRITERS).unwrap_or(1)
            / u32::try_from(pace).unwrap_or(1),
    );
    ticks.set_missed_tick_behavior(MissedTickBehavior::Skip);
    let began = Instant::now();
    let mut number = 0_u64;
    while began.elapsed() < time {
        ticks.tick().await;
        number += 1;
        let event = Event::new("order", (number % 1_000).to_string(), "OrderPlaced");
        let id = event.id;
        let mut tx = store.begin().await.map_err(|failure| failure.to_string())?;
        let outbox = store.outbox();
        outbox.append(&mut tx, event).await.map_err(|error| error.to_string())?;
        tx.commit().await.map_err(|error| error.to_string())?;
        watch.committed(id);
    }
    Ok(())
}

/// In KiB.
fn peak_memory() -> Outcomes<u64> {
    let status = std::fs::read_to_string("/proc/self/status")?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap_or("0");
    Ok(line.split_whitespace().next().unwrap_or("0").parse()?)
}

fn median(mut times: Vec<Duration>) -> Duration {
    times.sort_unstable();
    times[times.len() / 2]
}

#[expect(clippy::cast_precision_loss, reason = "a rate for people")]
fn rate(count: usize, time: Duration) -> String {
    format!("{:.0} events/s", count as f64 / time.as_secs_f64())
}
