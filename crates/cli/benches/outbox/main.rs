//! What the outbox costs its writers, and how fast and how soon a relay empties it, each beside a
//! limit or a peer measured in the same run. `./dev bench outbox`
//!
//! The server is that of `SEMEL_TEST_POSTGRES_URL`; the tables are made anew in its database
//! `semel_bench`, and each backlog in one of its own. Arguments: rounds (3), seconds of a round of writers (10),
//! largest backlog (5000000); and `writers`, `drain`, `partitions` or `latency` for only one of the parts.

#![expect(clippy::print_stdout, reason = "it reports to the terminal")]
#![allow(clippy::cast_precision_loss, reason = "ratios for people")]

mod backlog;
mod drain;
mod latency;
mod partitions;
mod writers;

use std::error::Error;
use std::time::Duration;

use semel_backends::postgres::{PgPool, PostgresConfig, PostgresStore};
use sqlx::AssertSqlSafe;

type Outcomes<T> = Result<T, Box<dyn Error + Send + Sync>>;

/// How much is measured.
#[derive(Clone, Copy)]
struct Effort {
    rounds: usize,
    seconds: u64,
    backlog: u64,
}

/// As the program has it.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

#[tokio::main]
async fn main() -> Outcomes<()> {
    let mut numbers = std::env::args().filter_map(|argument| argument.parse::<u64>().ok());
    let effort = Effort {
        rounds: numbers.next().map_or(3, |rounds| usize::try_from(rounds).unwrap_or(3)),
        seconds: numbers.next().unwrap_or(10),
        backlog: numbers.next().unwrap_or(5_000_000),
    };
    let Ok(server) = std::env::var("SEMEL_TEST_POSTGRES_URL") else {
        println!("SEMEL_TEST_POSTGRES_URL is not set: nothing to measure");
        return Ok(());
    };
    let parts = ["writers", "drain", "partitions", "latency"];
    let chosen: Vec<_> = std::env::args().filter(|word| parts.contains(&word.as_str())).collect();
    let wanted = |part: &str| chosen.is_empty() || chosen.iter().any(|word| word == part);
    if wanted("writers") {
        writers::measure(&server, effort).await?;
    }
    if wanted("drain") {
        drain::measure(&server, effort).await?;
    }
    if wanted("partitions") {
        partitions::measure(&server, effort).await?;
    }
    if wanted("latency") {
        latency::measure(&server, effort).await?;
    }
    Ok(())
}

/// New tables in the database of the benchmark.
async fn fresh_store(server: &str) -> Outcomes<PostgresStore> {
    store_in(server, "semel_bench").await
}

async fn store_in(server: &str, database: &str) -> Outcomes<PostgresStore> {
    let admin = PgPool::connect(server).await?;
    for sql in ["drop database if exists", "create database"] {
        let forced = if sql.starts_with("drop") { "with (force)" } else { "" };
        let sql = AssertSqlSafe(format!("{sql} {database} {forced}"));
        sqlx::raw_sql(sql).execute(&admin).await?;
    }
    admin.close().await;
    let base = server.rsplit_once('/').map_or(server, |(base, _)| base);
    let config = PostgresConfig::new(&format!("{base}/{database}"))?;
    let store = config.connections(80).connect().await?;
    store.migrate().await?;
    Ok(store)
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_unstable_by(f64::total_cmp);
    values[values.len() / 2]
}

fn per_second(count: u64, time: Duration) -> f64 {
    count as f64 / time.as_secs_f64()
}
