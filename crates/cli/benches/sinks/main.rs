//! How fast each sink is when the engine feeds it, beside a bare loop of the same client library and the
//! broker's own load tool, and, where these do less than the sink, both of them once more with the same
//! promise; against the same server in the same run.
//! `./dev bench sinks [NAME …] [--events N] [--rounds N]`
//!
//! Servers are those of `SEMEL_TEST_*`; webhooks have one in this process. Every measurement is a process of its own, so that its memory
//! is its own. Both sides make their events as they go and send the same bytes.

#![expect(clippy::print_stdout, reason = "it reports to the terminal")]
#![allow(clippy::cast_precision_loss, reason = "ratios for people")]

mod engine;
mod events;
mod kafka;
mod mqtt;
mod nats;
mod rabbitmq;
mod redis;
mod webhook;

use std::error::Error;
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::BoxFuture;
use semel_core::Sink;

use self::events::Load;

type Outcomes<T> = Result<T, Box<dyn Error + Send + Sync>>;
type Soon<T> = BoxFuture<'static, Outcomes<T>>;

/// A broker to be measured.
struct Broker {
    name: &'static str,
    server: At,
    /// Makes an empty topic; connects the sink; sends with a bare client.
    make: fn(Target) -> Soon<()>,
    sink: fn(Target) -> Soon<Arc<dyn Sink>>,
    bare: fn(Target, Load) -> Soon<Duration>,
    remove: fn(Target) -> Soon<()>,
    /// Where `bare` does less than the sink has to.
    alike: Option<Alike>,
    native: Option<Native>,
}

/// Where the server is.
enum At {
    /// This variable of the environment says.
    Variable(&'static str),
    /// In this process.
    Here(fn() -> Soon<String>),
}

/// A bare client that keeps the promise of the sink, which it says in a few words, and the load tool
/// when it does so too.
struct Alike {
    promise: &'static str,
    run: fn(Target, Load) -> Soon<Duration>,
    native: Option<Native>,
}

/// The load tool of a broker: its name, and how many events it sends in a second.
struct Native {
    tool: &'static str,
    run: fn(&Target, Load) -> Outcomes<f64>,
}

/// A server, and a topic on it.
#[derive(Clone)]
struct Target {
    server: String,
    topic: String,
}

const BROKERS: [&Broker; 7] = [
    &kafka::BROKER,
    &kafka::ONCE,
    &rabbitmq::BROKER,
    &nats::BROKER,
    &redis::BROKER,
    &mqtt::BROKER,
    &webhook::BROKER,
];
/// In how many lanes events come: what costs a sink that waits for confirmations lane by lane.
const LANES: [usize; 3] = [10_000, 100, 20];

/// What is asked for.
struct Wish {
    names: Vec<String>,
    events: usize,
    rounds: usize,
}

/// The first word to a process that measures one side.
const ONE: &str = "--one";
/// The sides.
const ENGINE: &str = "engine";
const BARE: &str = "bare";
const ALIKE: &str = "alike";

/// As the program has it.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

#[tokio::main]
async fn main() -> Outcomes<()> {
    let words: Vec<String> = std::env::args().skip(1).filter(|word| word != "--bench").collect();
    if let [mark, way, name, server, topic, events, lanes] = &words[..]
        && mark == ONE
    {
        let target = Target { server: server.clone(), topic: topic.clone() };
        let load = Load { count: events.parse()?, lanes: lanes.parse()?, ..Load::default() };
        // In a task of the runtime, as relays are: outside of one, each answer changes threads.
        let (way, broker) = (way.clone(), find(name)?);
        return tokio::spawn(async move { measure(&way, broker, target, load).await }).await?;
    }
    let wish = Wish::read(words)?;
    let load = Load { count: wish.events, ..Load::default() };
    println!("events/s; {load}, medians of {} alternating runs", wish.rounds);
    let peers = ["bare", "alike", "own tool", "tool alike"];
    let peers = peers.map(|peer| format!("{peer:>10} {:>6}", "ratio")).join(" ");
    println!("{:<10} {:>6} {:>10} {peers} {:>10}", "sink", "lanes", "engine", "memory");
    let mut notes = Vec::new();
    for broker in BROKERS {
        if wish.names.is_empty() || wish.names.iter().any(|name| name == broker.name) {
            notes.push(format!("{}: {}", broker.name, compare(broker, &wish).await?));
        }
    }
    println!("alike, own tool, and tool alike: {}", notes.join("; "));
    Ok(())
}

impl Wish {
    fn read(words: Vec<String>) -> Outcomes<Self> {
        let mut wish = Self { names: Vec::new(), events: Load::default().count, rounds: 3 };
        let mut words = words.into_iter();
        while let Some(word) = words.next() {
            let mut number = || words.next().ok_or(format!("{word} needs a number"));
            match word.as_str() {
                "--events" => wish.events = number()?.parse()?,
                "--rounds" => wish.rounds = number()?.parse()?,
                name => wish.names.push(find(name)?.name.to_owned()),
            }
        }
        Ok(wish)
    }
}

fn find(name: &str) -> Outcomes<&'static Broker> {
    let found = BROKERS.into_iter().find(|broker| broker.name == name);
    found.ok_or_else(|| format!("no broker {name:?}").into())
}

/// Prints the lines of a broker, and says what else it was compared with.
async fn compare(broker: &Broker, wish: &Wish) -> Outcomes<String> {
    let server = match broker.server {
        At::Here(start) => start().await?,
        At::Variable(variable) => match std::env::var(variable) {
            Ok(server) => server,
            Err(_) => {
                println!("{:<10} {variable} is not set: nothing to measure", broker.name);
                return Ok("not asked".to_owned());
            }
        },
    };
    let (native, note) = run_native(broker, broker.native.as_ref(), &server, wish).await?;
    let native_alike = broker.alike.as_ref().and_then(|alike| alike.native.as_ref());
    let (native_alike, note_alike) = run_native(broker, native_alike, &server, wish).await?;
    for lanes in LANES {
        let (mut engine, mut bare, mut alike, mut memory) = (Vec::new(), Vec::new(), Vec::new(), 0);
        for _ in 0..wish.rounds {
            bare.push(run(BARE, broker, &server, wish.events, lanes).await?.0);
            if broker.alike.is_some() {
                alike.push(run(ALIKE, broker, &server, wish.events, lanes).await?.0);
            }
            let (rate, most) = run(ENGINE, broker, &server, wish.events, lanes).await?;
            engine.push(rate);
            memory = memory.max(most);
        }
        let engine = median(engine);
        let alike = broker.alike.as_ref().map(|_| median(alike));
        let peers = [Some(median(bare)), alike, native, native_alike];
        let beside = peers.map(|rate| compared(engine, rate));
        let (name, beside) = (broker.name, beside.join(" "));
        println!("{name:<10} {lanes:>6} {engine:>10.0} {beside} {memory:>6} MiB");
    }
    let alike = broker.alike.as_ref().map_or("as bare", |alike| alike.promise);
    Ok(format!("{alike}, {note}, {note_alike}"))
}

/// A rate, and the engine's as a ratio to it.
fn compared(engine: f64, rate: Option<f64>) -> String {
    match rate {
        Some(rate) => format!("{rate:>10.0} {:>6.2}", engine / rate),
        None => format!("{:>10} {:>6}", "-", "-"),
    }
}

async fn run_native(
    broker: &Broker,
    native: Option<&Native>,
    server: &str,
    wish: &Wish,
) -> Outcomes<(Option<f64>, String)> {
    let Some(native) = native else { return Ok((None, "no tool".to_owned())) };
    let mut rates = Vec::new();
    for _ in 0..wish.rounds {
        let target = fresh(broker, server).await?;
        let rate = (native.run)(&target, Load { count: wish.events, ..Load::default() });
        (broker.remove)(target).await?;
        match rate {
            Ok(rate) => rates.push(rate),
            Err(why) => return Ok((None, format!("{} cannot be had ({why})", native.tool))),
        }
    }
    Ok((Some(median(rates)), native.tool.to_owned()))
}

async fn fresh(broker: &Broker, server: &str) -> Outcomes<Target> {
    let topic = format!("semel-bench-{}", semel_core::EventId::now());
    let target = Target { server: server.to_owned(), topic };
    (broker.make)(target.clone()).await?;
    Ok(target)
}

/// One measurement in a process of its own: events/s, and the most memory in MiB.
async fn run(
    way: &str,
    broker: &Broker,
    server: &str,
    events: usize,
    lanes: usize,
) -> Outcomes<(f64, u64)> {
    let target = fresh(broker, server).await?;
    let output = Command::new(std::env::current_exe()?)
        .args([ONE, way, broker.name, &target.server, &target.topic])
        .args([events.to_string(), lanes.to_string()])
        .output()?;
    (broker.remove)(target).await?;
    let said = String::from_utf8(output.stdout)?;
    let (rate, memory) = said.trim().split_once(' ').ok_or_else(|| {
        format!("{way} {}: {}", broker.name, String::from_utf8_lossy(&output.stderr))
    })?;
    Ok((rate.parse()?, memory.parse()?))
}

/// In the process of its own.
async fn measure(way: &str, broker: &Broker, target: Target, load: Load) -> Outcomes<()> {
    let took = match (way, &broker.alike) {
        (ENGINE, _) => {
            let sink = (broker.sink)(target.clone()).await?;
            engine::run(sink, &target.topic, load).await?
        }
        (ALIKE, Some(alike)) => (alike.run)(target, load).await?,
        _ => (broker.bare)(target, load).await?,
    };
    let status = std::fs::read_to_string("/proc/self/status")?;
    let most = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap_or("0");
    let most: u64 = most.trim_end_matches("kB").trim().parse()?;
    println!("{} {}", load.count as f64 / took.as_secs_f64(), most / 1024);
    Ok(())
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_unstable_by(f64::total_cmp);
    values[values.len() / 2]
}
