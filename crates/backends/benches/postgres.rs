//! How fast PostgreSQL takes events up and a source drains them to nowhere, beside COPY of the same
//! rows in the same run. `cargo bench -p semel-backends --features postgres --bench postgres`
//!
//! The server is that of `SEMEL_TEST_POSTGRES_URL`; the tables are made anew in its database
//! `semel_bench`. Arguments: events (500000), payload bytes (200), rounds (3), batch (100, 1000 and 10000).

#![expect(clippy::print_stdout, reason = "it reports to the terminal")]

use std::error::Error;
use std::time::{Duration, Instant};

use futures_util::TryStreamExt;
use semel_backends::postgres::{PgPool, PostgresConfig, PostgresStore};
use semel_core::{Event, Limit, Outcome, Settlement, Source};

type Outcomes<T> = Result<T, Box<dyn Error>>;

#[tokio::main(flavor = "current_thread")]
async fn main() -> Outcomes<()> {
    let mut numbers = std::env::args().filter_map(|argument| argument.parse::<usize>().ok());
    let count = numbers.next().unwrap_or(500_000);
    let bytes = numbers.next().unwrap_or(200);
    let rounds = numbers.next().unwrap_or(3);
    let batches = numbers.next().map_or(vec![100, 1_000, 10_000], |batch| vec![batch]);
    let Ok(server) = std::env::var("SEMEL_TEST_POSTGRES_URL") else {
        println!("SEMEL_TEST_POSTGRES_URL is not set: nothing to measure");
        return Ok(());
    };
    let store = fresh_store(&server).await?;
    let began = Instant::now();
    fill(&store, count, bytes).await?;
    println!("append in thousands: {}", rate(count, began.elapsed()));
    println!("one event per transaction: {}", commits(&store).await?);
    for batch in batches {
        let mut drains = Vec::new();
        let mut copies = Vec::new();
        for round in 0..rounds {
            drains.push(drain(&store, &format!("{batch} {round}"), batch).await?);
            copies.push(copy(&store).await?);
        }
        let (drain, copy) = (median(drains), median(copies));
        println!(
            "drain in batches of {batch}: {} ({:.2} of COPY, {})",
            rate(count, drain),
            copy.as_secs_f64() / drain.as_secs_f64(),
            rate(count, copy),
        );
    }
    println!("an empty poll: {:?}", empty_poll(&store).await?);
    under_an_idle_snapshot(&store).await
}

async fn fresh_store(server: &str) -> Outcomes<PostgresStore> {
    let admin = PgPool::connect(server).await?;
    sqlx::raw_sql("drop database if exists semel_bench with (force)").execute(&admin).await?;
    sqlx::raw_sql("create database semel_bench").execute(&admin).await?;
    let base = server.rsplit_once('/').map_or(server, |(base, _)| base);
    let store = PostgresConfig::new(&format!("{base}/semel_bench"))?.connect().await?;
    store.migrate().await?;
    Ok(store)
}

async fn fill(store: &PostgresStore, count: usize, bytes: usize) -> Outcomes<()> {
    let payload = format!("{{\"text\":\"{}\"}}", "x".repeat(bytes.saturating_sub(11)));
    let made = |number: usize| {
        Event::new("order", (number % 10_000).to_string(), "OrderPlaced")
            .with_bytes("application/json", payload.clone())
    };
    for start in (0..count).step_by(1_000) {
        let events: Vec<_> = (start..count.min(start + 1_000)).map(made).collect();
        let mut tx = store.begin().await?;
        store.outbox().append_all(&mut tx, &events).await?;
        tx.commit().await?;
    }
    Ok(())
}

async fn commits(store: &PostgresStore) -> Outcomes<String> {
    const COMMITS: usize = 1_000;
    let began = Instant::now();
    for number in 0..COMMITS {
        let mut tx = store.begin().await?;
        let event = Event::new("order", number.to_string(), "OrderPlaced");
        store.outbox().append(&mut tx, event).await?;
        tx.commit().await?;
    }
    Ok(rate(COMMITS, began.elapsed()))
}

/// Reads and confirms everything, as a relay with an infinitely fast sink would.
async fn drain(store: &PostgresStore, pipeline: &str, batch: usize) -> Outcomes<Duration> {
    let mut source = store.source(pipeline).await?;
    let limit = Limit { events: batch, bytes: 64 * 1024 * 1024 };
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

/// The same rows as fast as the server can give them.
async fn copy(store: &PostgresStore) -> Outcomes<Duration> {
    const COPY: &str = "copy (select seq, id, aggregate_type, aggregate_id, event_type, payload, \
        payload_bytes, content_type, headers, idempotency_key, created_at, available_at \
        from semel.outbox order by seq) to stdout (format binary)";
    let mut connection = store.pool().acquire().await?;
    let began = Instant::now();
    let mut rows = connection.copy_out_raw(COPY).await?;
    while rows.try_next().await?.is_some() {}
    Ok(began.elapsed())
}

async fn empty_poll(store: &PostgresStore) -> Outcomes<Duration> {
    const POLLS: u32 = 1_000;
    drain(store, "idle", 10_000).await?;
    let mut source = store.source("idle").await?;
    let began = Instant::now();
    for _ in 0..POLLS {
        source.next_batch(Limit::default()).await?;
    }
    Ok(began.elapsed() / POLLS)
}

/// One event at a time while a repeatable-read transaction does nothing: does it become slower?
async fn under_an_idle_snapshot(store: &PostgresStore) -> Outcomes<()> {
    let mut idle = store.pool().begin_with("begin isolation level repeatable read").await?;
    sqlx::query("select count(*) from semel.cursor").execute(&mut *idle).await?;
    let mut source = store.source("idle").await?;
    for part in 1..=5 {
        const EVENTS: u32 = 2_000;
        fill(store, EVENTS as usize, 200).await?;
        let began = Instant::now();
        for _ in 0..EVENTS {
            let batch = source.next_batch(Limit { events: 1, ..Limit::default() }).await?;
            let receipt = batch.deliveries[0].receipt;
            let settlement = Settlement { receipt, outcome: Outcome::Delivered };
            assert!(source.settle(&[settlement]).await?.is_held());
        }
        println!("under an idle snapshot, part {part}: {:?} per event", began.elapsed() / EVENTS);
    }
    idle.rollback().await?;
    Ok(())
}

fn median(mut times: Vec<Duration>) -> Duration {
    times.sort_unstable();
    times[times.len() / 2]
}

#[expect(clippy::cast_precision_loss, reason = "a rate for people")]
fn rate(count: usize, time: Duration) -> String {
    format!("{:.0} events/s", count as f64 / time.as_secs_f64())
}
