//! How soon a source that the binary log tells of commits has an event, beside polling, in one run.
//! `cargo bench -p semel-backends --features mysql --bench binlog`
//!
//! The server is that of `SEMEL_TEST_MYSQL_URL`; the tables are made anew in its database
//! `semel_bench_tail`. Arguments: transactions per second (200), seconds (10), rounds (3).

#![expect(clippy::print_stdout, reason = "it reports to the terminal")]

mod stopwatch;

use std::error::Error;
use std::sync::Arc;
use std::time::{Duration, Instant};

use semel_backends::mysql::{MySqlPool, MysqlConfig, MysqlStore, Tailing};
use semel_core::Event;
use semel_relay::{Relay, Settings, Stop};
use tokio::time::{MissedTickBehavior, interval, sleep};

use self::stopwatch::StopWatch;

type Outcomes<T> = Result<T, Box<dyn Error>>;

const WRITERS: u32 = 8;

#[tokio::main]
async fn main() -> Outcomes<()> {
    let mut numbers = std::env::args().filter_map(|argument| argument.parse::<u32>().ok());
    let pace = numbers.next().unwrap_or(200);
    let time = Duration::from_secs(u64::from(numbers.next().unwrap_or(10)));
    let rounds = numbers.next().unwrap_or(3);
    let Ok(server) = std::env::var("SEMEL_TEST_MYSQL_URL") else {
        println!("SEMEL_TEST_MYSQL_URL is not set: nothing to measure");
        return Ok(());
    };
    let store = fresh_store(&server).await?;
    for round in 0..rounds {
        for (name, poll) in [("tail", None), ("poll 100 ms", Some(100)), ("poll 10 ms", Some(10))] {
            let pipeline = format!("{name} {round}");
            println!(
                "{name}, {pace} tx/s: {}",
                latency(&store, &pipeline, poll, pace, time).await?
            );
        }
    }
    store.close().await;
    Ok(())
}

async fn fresh_store(server: &str) -> Outcomes<MysqlStore> {
    let admin = MySqlPool::connect(server).await?;
    sqlx::raw_sql("DROP DATABASE IF EXISTS semel_bench_tail; CREATE DATABASE semel_bench_tail")
        .execute(&admin)
        .await?;
    let base = server.rsplit_once('/').map_or(server, |(base, _)| base);
    let url = format!("{base}/semel_bench_tail");
    let store = MysqlConfig::new(&url)?.connections(40).connect().await?;
    store.migrate().await?;
    Ok(store)
}

/// From the answer to a commit to the call of the sink, in a whole relay.
async fn latency(
    store: &MysqlStore,
    pipeline: &str,
    poll: Option<u64>,
    pace: u32,
    time: Duration,
) -> Outcomes<String> {
    let source = match poll {
        None => store.tailing_source(pipeline, Tailing::Required).await?,
        Some(_) => store.source(pipeline).await?,
    };
    let settings = Settings {
        batch_events: 1_000,
        in_flight_events: 4_000,
        poll_interval: Duration::from_millis(poll.unwrap_or(100)),
        ..Settings::default()
    };
    let watch = Arc::new(StopWatch::default());
    let (stopper, stop) = Stop::new();
    let relay = Relay::new(pipeline, source, Arc::clone(&watch)).with_settings(settings);
    let relay = tokio::spawn(relay.run(stop));
    // What earlier rounds wrote, and the beginning.
    sleep(Duration::from_secs(5)).await;
    let writers: Vec<_> = (0..WRITERS)
        .map(|_| tokio::spawn(write(store.clone(), Arc::clone(&watch), pace, time)))
        .collect();
    for writer in writers {
        writer.await?.map_err(|error| error.to_string())?;
    }
    sleep(Duration::from_secs(1)).await;
    stopper.stop();
    relay.await??;
    Ok(watch.summary())
}

async fn write(
    store: MysqlStore,
    watch: Arc<StopWatch>,
    pace: u32,
    time: Duration,
) -> Result<(), String> {
    let mut ticks = interval(Duration::from_secs(1) * WRITERS / pace);
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
