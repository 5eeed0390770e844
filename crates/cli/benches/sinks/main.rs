//! How fast each sink is when the engine feeds it, beside a bare loop of the same client library, or
//! the broker's own load tool, against the same server in the same run. `./dev bench sinks [NAME …]`
//!
//! Servers are those of `SEMEL_TEST_*`. Every measurement is a process of its own, so that its memory
//! is its own. Both sides make their events as they go and send the same bytes.

#![expect(clippy::print_stdout, reason = "it reports to the terminal")]
#![allow(clippy::cast_precision_loss, reason = "ratios for people")]

mod engine;
mod events;
mod kafka;
mod nats;
mod rabbitmq;
mod redis;

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
    variable: &'static str,
    /// Makes an empty topic; connects the sink; sends with a bare client.
    make: fn(Target) -> Soon<()>,
    sink: fn(Target) -> Soon<Arc<dyn Sink>>,
    bare: fn(Target, Load) -> Soon<Duration>,
    remove: fn(Target) -> Soon<()>,
    /// The broker's own load tool: events/s, if it is installed.
    native: Option<fn(&Target, Load) -> Outcomes<f64>>,
}

/// A server, and a topic on it.
#[derive(Clone)]
struct Target {
    server: String,
    topic: String,
}

const BROKERS: [&Broker; 5] =
    [&kafka::BROKER, &kafka::ONCE, &rabbitmq::BROKER, &nats::BROKER, &redis::BROKER];
const ROUNDS: usize = 3;
/// In how many lanes events come: what costs a sink that waits for confirmations lane by lane.
const LANES: [usize; 3] = [10_000, 100, 20];

#[tokio::main]
async fn main() -> Outcomes<()> {
    let words: Vec<String> = std::env::args().skip(1).filter(|word| word != "--bench").collect();
    if let [way, name, server, topic, lanes] = &words[..] {
        let target = Target { server: server.clone(), topic: topic.clone() };
        return measure(way, find(name)?, target, Load::with_lanes(lanes.parse()?)).await;
    }
    println!("events/s; {}, medians of {ROUNDS} alternating runs", Load::default());
    println!(
        "{:<10} {:>6} {:>12} {:>12} {:>6} {:>10}",
        "sink", "lanes", "engine", "bare", "ratio", "memory"
    );
    for broker in BROKERS {
        if words.is_empty() || words.iter().any(|word| word == broker.name) {
            compare(broker).await?;
        }
    }
    Ok(())
}

fn find(name: &str) -> Outcomes<&'static Broker> {
    let found = BROKERS.into_iter().find(|broker| broker.name == name);
    found.ok_or_else(|| format!("no broker {name:?}").into())
}

async fn compare(broker: &Broker) -> Outcomes<()> {
    let Ok(server) = std::env::var(broker.variable) else {
        println!("{:<10} {} is not set: nothing to measure", broker.name, broker.variable);
        return Ok(());
    };
    for lanes in LANES {
        let (mut engine, mut bare, mut memory) = (Vec::new(), Vec::new(), 0);
        for _ in 0..ROUNDS {
            bare.push(run("bare", broker, &server, lanes).await?.0);
            let (rate, most) = run("engine", broker, &server, lanes).await?;
            engine.push(rate);
            memory = memory.max(most);
        }
        let (engine, bare) = (median(engine), median(bare));
        let (name, ratio) = (broker.name, engine / bare);
        println!("{name:<10} {lanes:>6} {engine:>12.0} {bare:>12.0} {ratio:>6.2} {memory:>6} MiB");
    }
    let Some(native) = broker.native else { return Ok(()) };
    let target = fresh(broker, &server).await?;
    match native(&target, Load::default()) {
        Ok(rate) => println!("{:<10} its own tool: {rate:.0}", broker.name),
        Err(why) => println!("{:<10} its own tool cannot be had: {why}", broker.name),
    }
    (broker.remove)(target).await
}

async fn fresh(broker: &Broker, server: &str) -> Outcomes<Target> {
    let topic = format!("semel-bench-{}", semel_core::EventId::now());
    let target = Target { server: server.to_owned(), topic };
    (broker.make)(target.clone()).await?;
    Ok(target)
}

/// One measurement in a process of its own: events/s, and the most memory in MiB.
async fn run(way: &str, broker: &Broker, server: &str, lanes: usize) -> Outcomes<(f64, u64)> {
    let target = fresh(broker, server).await?;
    let output = Command::new(std::env::current_exe()?)
        .args([way, broker.name, &target.server, &target.topic, &lanes.to_string()])
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
    let took = if way == "engine" {
        let sink = (broker.sink)(target.clone()).await?;
        engine::run(sink, &target.topic, load).await?
    } else {
        (broker.bare)(target, load).await?
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
