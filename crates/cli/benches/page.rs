//! What visitors of the page cost a relay, and how long they wait: an outbox is emptied again and
//! again, while somebody has the page open and looks at a view for one second, and not for the next.
//! The two kinds of seconds are compared. `./dev bench page`
//!
//! The server is that of `SEMEL_TEST_POSTGRES_URL`; the tables are made anew in its database
//! `semel_bench`. One event in a hundred becomes a dead letter. Arguments: events (1000000), rounds
//! (5).

#![expect(clippy::print_stdout, reason = "it reports to the terminal")]

use std::collections::BTreeMap;
use std::error::Error;
use std::fs::{self, File};
use std::io::{Read, Write};
use std::net::TcpStream;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, sleep};
use std::time::{Duration, Instant};

use semel_backends::postgres::{PgPool, PostgresConfig};
use tempfile::TempDir;

type Outcomes<T> = Result<T, Box<dyn Error + Send + Sync>>;
/// How long each view took, each time.
type Waits = BTreeMap<&'static str, Vec<Duration>>;

const ADDRESS: &str = "127.0.0.1:19464";

/// What is too large for the limit becomes a dead letter, and holds nobody up.
const EVENTS: &str = "\
insert into semel.outbox (aggregate_type, aggregate_id, event_type, payload)
select 'order', case g % 100 when 0 then 'large-' || g else (g % 50000)::text end,
    (array['OrderPlaced', 'OrderPaid'])[1 + g % 2],
    '{\"total\": ' || g || ', \"note\": \"' || repeat('x', case g % 100 when 0 then 2000 else 9 end) || '\"}'
from generate_series(1, $1) g";

/// A consumer and a service with idempotency keys in the same database.
const OTHERS: &str = "\
insert into semel.inbox (consumer, message_id)
    select 'payments', id from semel.outbox order by seq limit 200000;
insert into semel.keys (key, fingerprint, token, attempt, version, body, until)
    select sha256(g::text::bytea), sha256('x'), g, 1, 1, decode(repeat('70', 300) || '01', 'hex'),
        now() + interval '1 day'
    from generate_series(1, 100000) g;
vacuum analyze";

/// What the page asks for when somebody goes through its views.
const VIEWS: &[&str] = &[
    "",
    "api/overview",
    "api/pipelines/{}/history",
    "api/pipelines/{}/events",
    "api/pipelines/{}/events?before=5000",
    "api/pipelines/{}/events?q=state:dead",
    "api/pipelines/{}/events?q=state:published",
    "api/pipelines/{}/events?q=aggregate:order/77",
    "api/pipelines/{}/events?q=event:Nothing",
    "api/pipelines/{}/dead",
    "api/pipelines/{}/workings",
    "api/pipelines/{}/consumers",
    "api/pipelines/{}/keys",
    "api/pipelines/{}/activity",
];

#[tokio::main(flavor = "current_thread")]
async fn main() -> Outcomes<()> {
    let mut numbers = std::env::args().filter_map(|argument| argument.parse::<i32>().ok());
    let (events, rounds) = (numbers.next().unwrap_or(1_000_000), numbers.next().unwrap_or(5));
    let Ok(server) = std::env::var("SEMEL_TEST_POSTGRES_URL") else {
        println!("SEMEL_TEST_POSTGRES_URL is not set: nothing to measure");
        return Ok(());
    };
    let bench = Bench::fill(&server, events).await?;
    let (mut visitor, mut pace) = (Visitor::default(), Pace::default());
    for round in 0..rounds {
        visitor = bench.drain(&format!("watched{round}"), visitor, &mut pace).await?;
    }
    let calm = bench.look_around(&format!("watched{}", rounds - 1))?;
    println!("{events} events of which one in a hundred is a dead letter, {rounds} rounds");
    println!("{:<50} {:>10} {:>10} {:>10}", "slowest answer", "at rest", "draining", "median");
    for (view, waits) in &mut visitor.waits {
        let rest = calm.get(view).and_then(|waits| waits.iter().max()).copied().unwrap_or_default();
        let slowest = waits.iter().max().copied().unwrap_or_default();
        let [rest, slowest, middle] =
            [rest, slowest, median(waits)].map(|time| format!("{time:.1?}"));
        println!("/{view:<49} {rest:>10} {slowest:>10} {middle:>10}");
    }
    let [alone, watched] = pace.rates();
    println!("alone:   {alone:.0} events/s; watched: {watched:.0}; {} seconds of each", pace.pairs);
    println!(
        "watched, it relays at {:.3} of the rate alone (goal: at least 0.95)",
        watched / alone
    );
    Ok(())
}

/// An outbox that one pipeline after the other empties.
struct Bench {
    events: i64,
    url: String,
    pool: PgPool,
    folder: TempDir,
}

impl Bench {
    async fn fill(server: &str, events: i32) -> Outcomes<Self> {
        let admin = PgPool::connect(server).await?;
        sqlx::raw_sql("drop database if exists semel_bench with (force)").execute(&admin).await?;
        sqlx::raw_sql("create database semel_bench").execute(&admin).await?;
        let base = server.rsplit_once('/').map_or(server, |(base, _)| base);
        let url = format!("{base}/semel_bench");
        let store = PostgresConfig::new(&url)?.connect().await?;
        store.migrate().await?;
        sqlx::query(EVENTS).bind(events).execute(store.pool()).await?;
        for statement in OTHERS.split(';') {
            sqlx::raw_sql(statement).execute(store.pool()).await?;
        }
        let (pool, folder) = (store.pool().clone(), tempfile::tempdir()?);
        Ok(Self { events: events.into(), url, pool, folder })
    }

    /// A relay empties the outbox for a pipeline of its own, while somebody looks at the page.
    async fn drain(&self, pipeline: &str, visitor: Visitor, pace: &mut Pace) -> Outcomes<Visitor> {
        const LAST: &str = "select coalesce(max(top), 0) from semel.cursor where pipeline = $1";
        let (began, mut process) = (Instant::now(), self.relay(pipeline)?);
        let stopped = Arc::new(AtomicBool::new(false));
        let visiting = {
            let (stopped, pipeline) = (Arc::clone(&stopped), pipeline.to_owned());
            thread::spawn(move || visitor.visit(&pipeline, &stopped))
        };
        let mut seen = Vec::new();
        loop {
            let last: i64 = sqlx::query_scalar(LAST).bind(pipeline).fetch_one(&self.pool).await?;
            seen.push((Instant::now(), last));
            if last >= self.events {
                break;
            }
            if process.try_wait()?.is_some() {
                return Err(fs::read_to_string(self.folder.path().join("log"))?.into());
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        println!("{pipeline}: {:.2?}", began.elapsed());
        stopped.store(true, Ordering::SeqCst);
        let mut visitor = visiting.join().map_err(|_| "the visitor panicked")?;
        process.kill()?;
        process.wait()?;
        fs::remove_file(self.folder.path().join(format!("{pipeline}.ndjson")))?;
        pace.learn(&seen, &std::mem::take(&mut visitor.seconds));
        Ok(visitor)
    }

    /// Goes through the views five times while nothing else happens.
    fn look_around(&self, pipeline: &str) -> Outcomes<Waits> {
        let (mut process, mut waits) = (self.relay(pipeline)?, Waits::new());
        let deadline = Instant::now() + Duration::from_secs(60);
        while ask("readyz").is_err() && Instant::now() < deadline {
            sleep(Duration::from_millis(50));
        }
        let asked = VIEWS.iter().cycle().take(5 * VIEWS.len()).try_for_each(|view| {
            waits.entry(*view).or_default().push(ask(&view.replace("{}", pipeline))?);
            std::io::Result::Ok(())
        });
        process.kill()?;
        process.wait()?;
        asked?;
        Ok(waits)
    }

    fn relay(&self, pipeline: &str) -> Outcomes<Child> {
        let Self { url, folder, .. } = self;
        let config = format!(
            "[source.orders]\nurl = \"{url}\"\nbatch = 1000\nmode = \"poll\"\n[sink.out]\n\
             type = \"file\"\npath = \"{pipeline}.ndjson\"\n[pipeline.{pipeline}]\n\
             from = \"orders\"\nto = \"out\"\n[limits]\npayload = \"1KiB\"\n[http]\nlisten = \"{ADDRESS}\"\n"
        );
        fs::write(folder.path().join("semel.toml"), config)?;
        let process = Command::new(env!("CARGO_BIN_EXE_semel"))
            .args(["relay", "--config", "semel.toml"])
            .current_dir(folder.path())
            .stdout(Stdio::null())
            .stderr(File::create(folder.path().join("log"))?)
            .spawn()?;
        Ok(process)
    }
}

/// Somebody who goes through the views, round by round.
#[derive(Default)]
struct Visitor {
    visits: usize,
    waits: Waits,
    /// When a second began that was watched, in turn with one that was not.
    seconds: Vec<Instant>,
}

const SECOND: Duration = Duration::from_secs(1);

impl Visitor {
    /// Opens the page and looks at another view, every other second.
    fn visit(mut self, pipeline: &str, stopped: &AtomicBool) -> Self {
        while ask("readyz").is_err() && !stopped.load(Ordering::SeqCst) {
            sleep(Duration::from_millis(20));
        }
        while !stopped.load(Ordering::SeqCst) {
            let began = Instant::now();
            self.seconds.push(began);
            let live = open("api/live");
            let view = VIEWS[self.visits % VIEWS.len()];
            if let Ok(took) = ask(&view.replace("{}", pipeline)) {
                self.waits.entry(view).or_default().push(took);
                self.visits += 1;
            }
            sleep(SECOND.saturating_sub(began.elapsed()));
            drop(live);
            sleep(SECOND);
        }
        self
    }
}

/// How many events passed in all seconds of each kind.
#[derive(Default)]
struct Pace {
    pairs: usize,
    /// Not watched, watched.
    events: [i64; 2],
}

impl Pace {
    /// A watched second is compared with half of that before it and half of that behind it, so that
    /// what becomes slower by and by is neither's fault.
    fn learn(&mut self, seen: &[(Instant, i64)], watched: &[Instant]) {
        let Some((end, _)) = seen.last() else { return };
        let at = |time: Instant| {
            let place = seen.partition_point(|(when, _)| *when < time);
            seen.get(place).map_or(0, |(_, count)| *count)
        };
        for began in watched.iter().skip(1) {
            let [half, over] = [*began - SECOND / 2, *began + SECOND];
            let next_half = over + SECOND / 2;
            if next_half <= *end {
                self.pairs += 1;
                self.events[0] += at(*began) - at(half) + at(next_half) - at(over);
                self.events[1] += at(over) - at(*began);
            }
        }
    }

    #[expect(clippy::cast_precision_loss, reason = "a rate for people")]
    fn rates(&self) -> [f64; 2] {
        self.events.map(|events| events as f64 / self.pairs.max(1) as f64)
    }
}

fn open(path: &str) -> std::io::Result<TcpStream> {
    let mut stream = TcpStream::connect(ADDRESS)?;
    stream.set_read_timeout(Some(Duration::from_secs(30)))?;
    write!(stream, "GET /{path} HTTP/1.1\r\nhost: {ADDRESS}\r\nconnection: close\r\n\r\n")?;
    Ok(stream)
}

fn ask(path: &str) -> std::io::Result<Duration> {
    let (began, mut answer) = (Instant::now(), String::new());
    open(path)?.read_to_string(&mut answer)?;
    let is_good = answer.starts_with("HTTP/1.1 200");
    if is_good { Ok(began.elapsed()) } else { Err(std::io::Error::other(answer)) }
}

fn median(values: &mut [Duration]) -> Duration {
    values.sort_unstable();
    values.get(values.len() / 2).copied().unwrap_or_default()
}
