//! Emptying a backlog into nowhere through the engine, beside COPY of the same rows.

use std::time::{Duration, Instant};

use async_trait::async_trait;
use futures_util::TryStreamExt;
use semel_backends::postgres::PostgresStore;
use semel_core::{Failure, Limit, Message, Published, Sink, Source};
use semel_relay::{Relay, Settings, Stop};

use super::{Effort, Outcomes, backlog, fresh_store, median, per_second};

const MEASURED: u64 = 500_000;

pub(super) async fn measure(server: &str, effort: Effort) -> Outcomes<()> {
    let store = fresh_store(server).await?;
    let mut rates = Vec::new();
    let mut backlog = 0;
    let largest = effort.backlog.max(MEASURED);
    for size in [10_000, 100_000, MEASURED, largest] {
        backlog::fill(&store, size - backlog, 1).await?;
        backlog = size;
        let steady = backlog::steady_rate(&store, size, effort.rounds).await?;
        println!("backlog of {size}: {steady:.0} events/s");
        rates.push(steady);
        if size == MEASURED {
            beside_copy(&store, drains(&store, size, effort.rounds).await?, effort.rounds).await?;
        }
    }
    let (least, most) = rates
        .iter()
        .fold((f64::MAX, 0.0_f64), |(least, most), rate| (least.min(*rate), most.max(*rate)));
    println!("slowest to fastest backlog: {:.2} (target 0.80)", least / most);
    let last = drains(&store, largest, effort.rounds).await?;
    println!("all of {largest}: {last:.0} events/s");

    let mut idle = store.pool().begin_with("begin isolation level repeatable read").await?;
    sqlx::query("select count(*) from semel.cursor").execute(&mut *idle).await?;
    let under = drains(&store, largest, effort.rounds).await?;
    println!(
        "under an idle snapshot: {under:.0} events/s (ratio {:.2}, target 0.80)",
        under / last
    );
    idle.rollback().await?;

    println!("an empty poll: {:?} (target 1 ms)", empty_poll(&store).await?);
    sqlx::query("select pg_stat_force_next_flush()").execute(store.pool()).await?;
    let dead: i64 = sqlx::query_scalar(
        "select n_dead_tup + n_tup_upd + n_tup_del from pg_stat_user_tables
        where relid = 'semel.outbox'::regclass",
    )
    .fetch_one(store.pool())
    .await?;
    println!("rows of the outbox that were changed or are dead: {dead} (target 0)");
    println!("resident memory at its highest: {} MiB (target 64)", peak_memory()? / 1024);
    store.close().await;
    Ok(())
}

pub(super) async fn drains(store: &PostgresStore, size: u64, rounds: usize) -> Outcomes<f64> {
    let mut rates = Vec::new();
    for round in 0..rounds {
        let pipeline = format!("drain {size} {round} {:?}", Instant::now());
        let source = store.source(&pipeline).await?;
        let settings =
            Settings { batch_events: 10_000, in_flight_events: 20_000, ..Settings::default() };
        let began = Instant::now();
        let relay = Relay::new(pipeline, source, Nowhere).with_settings(settings);
        let report = relay.drain(Stop::never()).await?;
        assert_eq!(report.published, size);
        rates.push(per_second(size, began.elapsed()));
    }
    Ok(median(rates))
}

async fn beside_copy(store: &PostgresStore, drained: f64, rounds: usize) -> Outcomes<()> {
    let mut copies = Vec::new();
    for _ in 0..rounds {
        copies.push(per_second(MEASURED, copy(store).await?));
    }
    let copied = median(copies);
    println!("drain beside COPY ({copied:.0} rows/s): ratio {:.2} (target 0.50)", drained / copied);
    Ok(())
}

/// The same rows as fast as the server can give them.
async fn copy(store: &PostgresStore) -> Outcomes<Duration> {
    const COPY: &str = "copy (select seq, id, aggregate_type, aggregate_id, event_type, payload, \
        payload_bytes, content_type, headers, idempotency_key, created_at, available_at \
        from semel.outbox order by seq) to stdout";
    let mut connection = store.pool().acquire().await?;
    let began = Instant::now();
    let mut rows = connection.copy_out_raw(COPY).await?;
    while rows.try_next().await?.is_some() {}
    Ok(began.elapsed())
}

pub(super) async fn empty_poll(store: &PostgresStore) -> Outcomes<Duration> {
    const POLLS: u32 = 1_000;
    let source = store.source("idle").await?;
    let settings =
        Settings { batch_events: 10_000, in_flight_events: 20_000, ..Settings::default() };
    Relay::new("idle", source, Nowhere).with_settings(settings).drain(Stop::never()).await?;
    let mut source = store.source("idle").await?;
    source.next_batch(Limit::default()).await?;
    let began = Instant::now();
    for _ in 0..POLLS {
        source.next_batch(Limit::default()).await?;
    }
    Ok(began.elapsed() / POLLS)
}

/// The most memory this process ever had, in KiB.
fn peak_memory() -> Outcomes<u64> {
    let status = std::fs::read_to_string("/proc/self/status")?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap_or("0");
    Ok(line.split_whitespace().next().unwrap_or("0").parse()?)
}

/// Confirms everything.
struct Nowhere;

#[async_trait]
impl Sink for Nowhere {
    async fn publish(&self, _: &[Message]) -> Published {
        Published::All
    }

    async fn check(&self) -> Result<(), Failure> {
        Ok(())
    }
}
