//! What visitors of the page cost a relay: how long it takes to empty an outbox without a page,
//! and while somebody opens another view every second. `./dev bench page`
//!
//! The server is that of `SEMEL_TEST_POSTGRES_URL`; the tables are made anew in its database
//! `semel_bench`. Arguments: events (300000), rounds (5).

#![expect(clippy::print_stdout, reason = "it reports to the terminal")]

use std::error::Error;
use std::fs::{self, File};
use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, sleep};
use std::time::{Duration, Instant};

use semel_backends::postgres::{PgPool, PostgresConfig};

type Outcomes<T> = Result<T, Box<dyn Error + Send + Sync>>;

const ADDRESS: &str = "127.0.0.1:19464";

const FILL: &str = "\
insert into semel.outbox (aggregate_type, aggregate_id, event_type, payload)
select 'order', (g % 50000)::text, 'OrderPlaced', '{\"total\": ' || g || '}'
from generate_series(1, $1) g";

/// What the page asks for when somebody goes through its views.
const VIEWS: &[&str] = &[
    "overview",
    "pipelines/{}/history",
    "pipelines/{}/events",
    "pipelines/{}/events?q=state:dead",
    "pipelines/{}/events?q=aggregate:order/77",
    "pipelines/{}/dead",
    "pipelines/{}/workings",
    "pipelines/{}/activity",
];

#[tokio::main(flavor = "current_thread")]
async fn main() -> Outcomes<()> {
    let mut numbers = std::env::args().filter_map(|argument| argument.parse::<i32>().ok());
    let (events, rounds) = (numbers.next().unwrap_or(300_000), numbers.next().unwrap_or(5));
    let Ok(server) = std::env::var("SEMEL_TEST_POSTGRES_URL") else {
        println!("SEMEL_TEST_POSTGRES_URL is not set: nothing to measure");
        return Ok(());
    };
    let url = fill(&server, events).await?;
    let folder = tempfile::tempdir()?;
    let (mut alone, mut watched) = (Vec::new(), Vec::new());
    for round in 0..rounds {
        alone.push(drain(folder.path(), &url, &format!("alone{round}"), false)?);
        watched.push(drain(folder.path(), &url, &format!("watched{round}"), true)?);
    }
    println!("{events} events, alone: {alone:.2?}");
    println!("{events} events, watched: {watched:.2?}");
    let ratio = median(watched).as_secs_f64() / median(alone).as_secs_f64();
    println!("watched takes {ratio:.3} of the time (goal: at most 1.05)");
    Ok(())
}

async fn fill(server: &str, events: i32) -> Outcomes<String> {
    let admin = PgPool::connect(server).await?;
    sqlx::raw_sql("drop database if exists semel_bench with (force)").execute(&admin).await?;
    sqlx::raw_sql("create database semel_bench").execute(&admin).await?;
    let url = format!("{}/semel_bench", server.rsplit_once('/').map_or(server, |(base, _)| base));
    let store = PostgresConfig::new(&url)?.connect().await?;
    store.migrate().await?;
    sqlx::query(FILL).bind(events).execute(store.pool()).await?;
    sqlx::raw_sql("vacuum analyze").execute(store.pool()).await?;
    Ok(url)
}

/// Empties the outbox for a pipeline of its own.
fn drain(folder: &Path, url: &str, pipeline: &str, is_watched: bool) -> Outcomes<Duration> {
    let http = if is_watched { format!("[http]\nlisten = \"{ADDRESS}\"\n") } else { String::new() };
    let config = format!(
        "[source.orders]\nurl = \"{url}\"\nbatch = 1000\nmode = \"poll\"\n[sink.out]\ntype = \"file\"\n\
         path = \"{pipeline}.ndjson\"\n[pipeline.{pipeline}]\nfrom = \"orders\"\nto = \"out\"\n{http}"
    );
    fs::write(folder.join("semel.toml"), config)?;
    let stopped = Arc::new(AtomicBool::new(false));
    let visitor = is_watched.then(|| {
        let (stopped, pipeline) = (Arc::clone(&stopped), pipeline.to_owned());
        thread::spawn(move || visit(&pipeline, &stopped))
    });
    let began = Instant::now();
    let ended = Command::new(env!("CARGO_BIN_EXE_semel"))
        .args(["relay", "--config", "semel.toml", "--drain"])
        .current_dir(folder)
        .stdout(Stdio::null())
        .stderr(File::create(folder.join("log"))?)
        .status()?;
    let took = began.elapsed();
    stopped.store(true, Ordering::SeqCst);
    if let Some(visits) = visitor.and_then(|visitor| visitor.join().ok()) {
        println!("{pipeline}: {visits} answers to the visitor");
    }
    if !ended.success() {
        return Err(fs::read_to_string(folder.join("log"))?.into());
    }
    fs::remove_file(folder.join(format!("{pipeline}.ndjson")))?;
    Ok(took)
}

/// Keeps the page open, and looks at another view every second; says how often that worked.
fn visit(pipeline: &str, stopped: &AtomicBool) -> usize {
    let mut answers = 0;
    let mut live = None;
    for view in VIEWS.iter().cycle() {
        if stopped.load(Ordering::SeqCst) {
            break;
        }
        live = live.or_else(|| open("api/live").ok());
        if ask(&format!("api/{}", view.replace("{}", pipeline))).is_ok() {
            answers += 1;
            sleep(Duration::from_secs(1));
        } else {
            sleep(Duration::from_millis(20));
        }
    }
    answers
}

fn open(path: &str) -> std::io::Result<TcpStream> {
    let mut stream = TcpStream::connect(ADDRESS)?;
    stream.set_read_timeout(Some(Duration::from_secs(30)))?;
    write!(stream, "GET /{path} HTTP/1.1\r\nhost: {ADDRESS}\r\nconnection: close\r\n\r\n")?;
    Ok(stream)
}

fn ask(path: &str) -> std::io::Result<()> {
    let mut answer = String::new();
    open(path)?.read_to_string(&mut answer)?;
    let is_good = answer.starts_with("HTTP/1.1 200");
    if is_good { Ok(()) } else { Err(std::io::Error::other(answer)) }
}

fn median(mut values: Vec<Duration>) -> Duration {
    values.sort_unstable();
    values[values.len() / 2]
}
