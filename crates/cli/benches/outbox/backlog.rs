//! A backlog of any size, and how fast a relay works while it has one.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use async_trait::async_trait;
use semel_backends::postgres::PostgresStore;
use semel_core::{Failure, Message, Published, Sink};
use semel_relay::{Relay, Settings, Stop, Stopper};
use tokio::task::JoinSet;

use super::Outcomes;

/// Rows of 200 bytes of payload, in transactions of ten thousand, with ids of so many days. Triggers
/// are left out, which nobody who reads the rows can see.
pub(super) async fn fill(store: &PostgresStore, count: u64, days: u64) -> Outcomes<()> {
    const LOADERS: u64 = 2;
    let mut loaders = JoinSet::new();
    for loader in 0..LOADERS {
        let (store, count) = (store.clone(), count / LOADERS);
        loaders.spawn(async move { load(&store, count, loader, days).await });
    }
    while let Some(loaded) = loaders.join_next().await {
        loaded??;
    }
    sqlx::raw_sql("vacuum analyze semel.outbox").execute(store.pool()).await?;
    // What the load left to be written would be written while others are measured.
    sqlx::raw_sql("checkpoint").execute(store.pool()).await?;
    Ok(())
}

async fn load(store: &PostgresStore, count: u64, loader: u64, days: u64) -> Outcomes<()> {
    const FAST: &str = "set session_replication_role = replica; set synchronous_commit = off";
    const INSERT: &str = "\
        insert into semel.outbox (aggregate_type, aggregate_id, event_type, payload, id, key_id)
        select 'order', (n % 10000)::text, 'OrderPlaced', x.payload, x.id, x.id
        from generate_series(1, $1) n cross join lateral (
            select '{\"text\":\"' || repeat('x', 189) || '\"}' as payload,
                ($2 || lpad(to_hex(n), 4, '0'))::uuid as id) x";
    let mut connection = store.pool().acquire().await?.detach();
    sqlx::raw_sql(FAST).execute(&mut connection).await?;
    for start in (0..count).step_by(10_000) {
        let day = days - 1 - start * days / count;
        let since =
            std::time::SystemTime::UNIX_EPOCH.elapsed()? - Duration::from_secs(day * 86_400);
        let time = format!("{:012x}7{:03x}", since.as_millis(), since.subsec_micros() % 1000);
        sqlx::query(INSERT)
            .bind(i64::try_from((count - start).min(10_000))?)
            .bind(format!("{time}8{loader:03x}{start:08x}"))
            .execute(&mut connection)
            .await?;
    }
    Ok(())
}

/// Events per second from the first batch on, over the same number of events whatever the backlog
/// is: from one backlog, or from a small one again and again.
pub(super) async fn steady_rate(store: &PostgresStore, backlog: u64) -> Outcomes<f64> {
    const ALL: u32 = 180_000;
    let enough = ALL.min(u32::try_from(backlog / 10 * 9)?);
    let (mut events, mut time) = (0, Duration::ZERO);
    for pass in 0..ALL.div_ceil(enough) {
        let pipeline = format!("steady {pass} {:?}", Instant::now());
        let source = store.source(&pipeline).await?;
        let settings =
            Settings { batch_events: 1_000, in_flight_events: 2_000, ..Settings::default() };
        let (stopper, stop) = Stop::new();
        let sink = Measured { progress: Arc::default(), enough, stopper: Arc::new(stopper) };
        let relay = Relay::new(pipeline, source, sink.clone()).with_settings(settings);
        relay.drain(stop).await?;
        let progress = sink.progress.lock().map_err(|_| "a panic elsewhere")?;
        events += progress.events;
        time += progress.time;
    }
    Ok(f64::from(events) / time.as_secs_f64())
}

/// Confirms everything, and stops the relay when it has seen enough.
#[derive(Clone)]
struct Measured {
    progress: Arc<Mutex<Progress>>,
    enough: u32,
    stopper: Arc<Stopper>,
}

/// What came after the first batch, up to the last that counts.
#[derive(Default)]
struct Progress {
    began: Option<Instant>,
    events: u32,
    time: Duration,
}

#[async_trait]
impl Sink for Measured {
    async fn publish(&self, batch: &[Message]) -> Published {
        let Ok(mut progress) = self.progress.lock() else { return Published::All };
        match progress.began {
            None => progress.began = Some(Instant::now()),
            Some(began) if progress.events < self.enough => {
                progress.events += u32::try_from(batch.len()).unwrap_or(0);
                progress.time = began.elapsed();
                if progress.events >= self.enough {
                    self.stopper.stop();
                }
            }
            Some(_) => {}
        }
        Published::All
    }

    async fn check(&self) -> Result<(), Failure> {
        Ok(())
    }
}
