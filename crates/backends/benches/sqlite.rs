//! How fast SQLite takes events up and a source drains them to nowhere, beside a bare SELECT of the
//! same rows in the same run. `cargo bench -p semel-backends --features sqlite --bench sqlite`
//!
//! Arguments: events (200000), payload bytes (200), rounds (3).

#![expect(clippy::print_stdout, reason = "it reports to the terminal")]

use std::error::Error;
use std::time::{Duration, Instant};

use futures_util::TryStreamExt;
use semel_backends::sqlite::{Durability, SqliteConfig, SqliteStore};
use semel_core::{Event, Limit, Outcome, Settlement, Source};

type Outcomes<T> = Result<T, Box<dyn Error>>;

#[tokio::main]
async fn main() -> Outcomes<()> {
    let mut numbers = std::env::args().filter_map(|argument| argument.parse::<usize>().ok());
    let count = numbers.next().unwrap_or(200_000);
    let bytes = numbers.next().unwrap_or(200);
    let rounds = numbers.next().unwrap_or(3);
    for durability in [Durability::PowerLoss, Durability::ProcessCrash] {
        let folder = tempfile::tempdir()?;
        let url = format!("sqlite://{}/bench.db", folder.path().display());
        let store = SqliteConfig::new(&url)?.durability(durability).connect().await?;
        store.migrate().await?;
        let began = Instant::now();
        fill(&store, count, bytes).await?;
        println!("{durability:?}: append in thousands: {}", rate(count, began.elapsed()));
        commits(&store).await?;
        for batch in [100, 1_000, 10_000] {
            let mut drains = Vec::new();
            let mut selects = Vec::new();
            for round in 0..rounds {
                drains.push(drain(&store, &format!("{batch} {round}"), batch).await?);
                selects.push(select(&store).await?);
            }
            let (drain, select) = (median(drains), median(selects));
            println!(
                "{durability:?}: drain in batches of {batch}: {} ({:.2} of a bare SELECT, {})",
                rate(count, drain),
                select.as_secs_f64() / drain.as_secs_f64(),
                rate(count, select),
            );
        }
        println!("{durability:?}: an empty poll: {:?}", empty_poll(&store).await?);
    }
    Ok(())
}

async fn fill(store: &SqliteStore, count: usize, bytes: usize) -> Outcomes<()> {
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

/// What an event in the business transaction costs, beside a bare second INSERT.
async fn commits(store: &SqliteStore) -> Outcomes<()> {
    const COMMITS: usize = 300;
    sqlx::raw_sql("CREATE TABLE orders (id TEXT); CREATE TABLE second (id TEXT, data TEXT)")
        .execute(store.pool())
        .await?;
    let mut times: [Vec<Duration>; 3] = Default::default();
    for _ in 0..3 {
        for (kind, times) in times.iter_mut().enumerate() {
            let began = Instant::now();
            for _ in 0..COMMITS {
                let mut tx = store.begin().await?;
                sqlx::query("INSERT INTO orders VALUES ('42')").execute(&mut *tx).await?;
                let second = sqlx::query("INSERT INTO second VALUES ('42', ?)");
                let event = Event::new("order", "42", "OrderPlaced");
                match kind {
                    0 => {}
                    1 => {
                        second.bind("x".repeat(200)).execute(&mut *tx).await?;
                    }
                    _ => store.outbox().append(&mut tx, event).await?,
                }
                tx.commit().await?;
            }
            times.push(began.elapsed());
        }
    }
    let [alone, second, event] = times.map(|times| rate(COMMITS, median(times)));
    println!(
        "  commits: order alone {alone}, with a second INSERT {second}, with an event {event}"
    );
    sqlx::raw_sql("DELETE FROM semel_outbox WHERE payload = 'null'").execute(store.pool()).await?;
    Ok(())
}

async fn drain(store: &SqliteStore, pipeline: &str, batch: usize) -> Outcomes<Duration> {
    let mut source = store.source(pipeline).await?;
    let limit = Limit { events: batch, bytes: usize::MAX };
    let began = Instant::now();
    loop {
        let deliveries = source.next_batch(limit).await?.deliveries;
        if deliveries.is_empty() {
            return Ok(began.elapsed());
        }
        let settled: Vec<_> = deliveries
            .iter()
            .map(|got| Settlement { receipt: got.receipt, outcome: Outcome::Delivered })
            .collect();
        assert!(source.settle(&settled).await?.is_held());
    }
}

async fn select(store: &SqliteStore) -> Outcomes<Duration> {
    let began = Instant::now();
    let mut rows = sqlx::query("SELECT * FROM semel_outbox ORDER BY seq").fetch(store.pool());
    while rows.try_next().await?.is_some() {}
    Ok(began.elapsed())
}

async fn empty_poll(store: &SqliteStore) -> Outcomes<Duration> {
    const POLLS: u32 = 1_000;
    drain(store, "empty", 10_000).await?;
    let mut source = store.source("empty").await?;
    let began = Instant::now();
    for _ in 0..POLLS {
        assert!(source.next_batch(Limit::default()).await?.deliveries.is_empty());
    }
    Ok(began.elapsed() / POLLS)
}

fn median(mut times: Vec<Duration>) -> Duration {
    times.sort_unstable();
    times[times.len() / 2]
}

fn rate(count: usize, time: Duration) -> String {
    #[expect(clippy::cast_precision_loss, reason = "a rate needs no 53 bits")]
    let rate = count as f64 / time.as_secs_f64();
    format!("{rate:.0}/s")
}
