//! Emptying a backlog into nowhere through the engine, beside COPY of the same rows.

use std::time::{Duration, Instant};

use async_trait::async_trait;
use futures_util::TryStreamExt;
use semel_backends::postgres::{PgPool, PostgresStore};
use semel_core::{Failure, Limit, Message, Published, Sink, Source};
use semel_relay::{Relay, Settings, Stop};
use sqlx::AssertSqlSafe;

use super::{Effort, Outcomes, backlog, median, per_second, store_in};

const MEASURED: u64 = 500_000;

pub(super) async fn measure(server: &str, effort: Effort) -> Outcomes<()> {
    let largest = effort.backlog.max(MEASURED);
    let mut stores = Vec::new();
    for size in [10_000, 100_000, MEASURED, largest] {
        let store = store_in(server, &format!("semel_bench_{size}")).await?;
        backlog::fill(&store, size, 1).await?;
        stores.push((size, store));
    }
    flatness(&stores, effort.rounds).await?;
    beside_copy(&stores[2].1, effort.rounds).await?;
    let (_, store) = &stores[3];
    under_a_snapshot(store, largest, effort.rounds).await?;

    println!("an empty poll: {:?} (target 1 ms)", empty_poll(store).await?);
    sqlx::query("select pg_stat_force_next_flush()").execute(store.pool()).await?;
    let dead: i64 = sqlx::query_scalar(
        "select n_dead_tup + n_tup_upd + n_tup_del from pg_stat_user_tables
        where relid = 'semel.outbox'::regclass",
    )
    .fetch_one(store.pool())
    .await?;
    println!("rows of the outbox that were changed or are dead: {dead} (target 0)");
    println!("resident memory at its highest: {} MiB (target 64)", peak_memory()? / 1024);
    let admin = PgPool::connect(server).await?;
    for (size, store) in stores {
        store.close().await;
        let sql = AssertSqlSafe(format!("drop database semel_bench_{size} with (force)"));
        sqlx::raw_sql(sql).execute(&admin).await?;
    }
    Ok(())
}

/// Whether the rate depends on how much waits. The backlogs come in turn, so that a machine that is
/// slow for a while is slow for all of them.
async fn flatness(stores: &[(u64, PostgresStore)], rounds: usize) -> Outcomes<()> {
    let mut rates = vec![Vec::new(); stores.len()];
    for _ in 0..rounds {
        for ((size, store), rates) in stores.iter().zip(&mut rates) {
            rates.push(backlog::steady_rate(store, *size).await?);
        }
    }
    let (mut least, mut most) = (f64::MAX, 0.0_f64);
    for ((size, _), rates) in stores.iter().zip(rates) {
        let rate = median(rates);
        println!("backlog of {size}: {rate:.0} events/s");
        (least, most) = (least.min(rate), most.max(rate));
    }
    println!("slowest to fastest backlog: {:.2} (target 0.80)", least / most);
    Ok(())
}

/// All of a backlog, and the same while somebody keeps an old snapshot, in turn.
async fn under_a_snapshot(store: &PostgresStore, size: u64, rounds: usize) -> Outcomes<()> {
    let (mut without, mut under) = (Vec::new(), Vec::new());
    for _ in 0..rounds {
        without.push(drained(store, size).await?);
        let mut idle = store.pool().begin_with("begin isolation level repeatable read").await?;
        sqlx::query("select count(*) from semel.cursor").execute(&mut *idle).await?;
        under.push(drained(store, size).await?);
        idle.rollback().await?;
    }
    let (without, under) = (median(without), median(under));
    println!("all of {size}: {without:.0} events/s");
    println!(
        "under an idle snapshot: {under:.0} events/s (ratio {:.2}, target 0.80)",
        under / without
    );
    Ok(())
}

/// Events per second, when all of them are published.
pub(super) async fn drained(store: &PostgresStore, size: u64) -> Outcomes<f64> {
    let pipeline = format!("drain {size} {:?}", Instant::now());
    let source = store.source(&pipeline).await?;
    let settings =
        Settings { batch_events: 10_000, in_flight_events: 20_000, ..Settings::default() };
    let began = Instant::now();
    let relay = Relay::new(pipeline, source, Nowhere).with_settings(settings);
    let report = relay.drain(Stop::never()).await?;
    assert_eq!(report.published, size);
    Ok(per_second(size, began.elapsed()))
}

async fn beside_copy(store: &PostgresStore, rounds: usize) -> Outcomes<()> {
    let (mut drains, mut copies) = (Vec::new(), Vec::new());
    for _ in 0..rounds {
        drains.push(drained(store, MEASURED).await?);
        copies.push(per_second(MEASURED, copy(store).await?));
    }
    let (drained, copied) = (median(drains), median(copies));
    println!(
        "drain of {MEASURED}: {drained:.0} events/s, COPY {copied:.0} rows/s (ratio {:.2}, target 0.50)",
        drained / copied
    );
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
    const POLLS: usize = 1_000;
    let source = store.source("idle").await?;
    let settings =
        Settings { batch_events: 10_000, in_flight_events: 20_000, ..Settings::default() };
    Relay::new("idle", source, Nowhere).with_settings(settings).drain(Stop::never()).await?;
    let mut source = store.source("idle").await?;
    source.next_batch(Limit::default()).await?;
    let mut times = Vec::with_capacity(POLLS);
    for _ in 0..POLLS {
        let began = Instant::now();
        source.next_batch(Limit::default()).await?;
        times.push(began.elapsed().as_secs_f64());
    }
    Ok(Duration::from_secs_f64(median(times)))
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
