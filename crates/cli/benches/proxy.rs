//! What `semel proxy` adds to a request without a key, beside nginx as a plain reverse proxy: the
//! median of one connection, and the rate of many, in the same run.
//!
//! `./dev bench keys`. Arguments: seconds of each measurement (3), rounds (3), connections (32).

#![expect(clippy::print_stdout, reason = "it reports to the terminal")]

use std::collections::HashMap;
use std::error::Error;
use std::fs::{self, File};
use std::net::TcpListener as StdListener;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;

type Outcome<T> = Result<T, Box<dyn Error + Send + Sync>>;

const REQUEST: &[u8] = b"GET /orders/1 HTTP/1.1\r\nhost: shop\r\naccept: */*\r\n\r\n";
const BODY: &str = "{\"order\":1,\"total\":99}";

#[tokio::main]
async fn main() -> Outcome<()> {
    let mut numbers = std::env::args().filter_map(|argument| argument.parse::<u64>().ok());
    let seconds = Duration::from_secs(numbers.next().unwrap_or(3));
    let rounds = numbers.next().unwrap_or(3);
    let connections = numbers.next().unwrap_or(32);
    let folder = tempfile::tempdir()?;
    let upstream = upstream().await?;
    let semel = semel(&upstream, folder.path())?;
    let nginx = nginx(&upstream, folder.path());
    let mut others = vec![("no proxy", upstream.clone()), ("semel", semel.address.clone())];
    match &nginx {
        Ok(nginx) => others.push(("nginx", nginx.address.clone())),
        Err(error) => println!("there is no nginx to compare with: {error}"),
    }
    for (_, address) in &others {
        answering(address).await?;
    }
    let (mut ratios, mut added) = (Vec::new(), Vec::new());
    for round in 1..=rounds {
        println!("round {round}:");
        let mut figures = HashMap::new();
        for (name, address) in &others {
            let p50 = latency(address, seconds).await?;
            let rate = rate(address, seconds, connections).await?;
            figures.insert(*name, (p50, rate));
            let adds = p50.saturating_sub(figures["no proxy"].0);
            println!("  {name}: p50 {p50:?} (adds {adds:?}), {rate:.0}/s over {connections}");
        }
        // Whoever comes second finds a warmer machine: they take turns.
        others[1..].reverse();
        let Some((nginx, nginx_rate)) = figures.get("nginx") else { continue };
        let (bare, (semel, semel_rate)) = (figures["no proxy"].0, figures["semel"]);
        println!("  semel is {:.2} of nginx", semel_rate / nginx_rate);
        ratios.push(semel_rate / nginx_rate);
        added.push([semel, *nginx].map(|p50| p50.saturating_sub(bare)));
    }
    if !ratios.is_empty() {
        ratios.sort_by(f64::total_cmp);
        let median = |which: usize| {
            let mut all: Vec<_> = added.iter().map(|added| added[which]).collect();
            all.sort_unstable();
            all[all.len() / 2]
        };
        let (ratio, ours, theirs) = (ratios[ratios.len() / 2], median(0), median(1));
        println!("median: {ratio:.2} of nginx; semel adds {ours:?}, nginx {theirs:?}");
    }
    Ok(())
}

/// A service that costs as little as possible.
async fn upstream() -> Outcome<String> {
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let address = listener.local_addr()?.to_string();
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            stream.set_nodelay(true).ok();
            tokio::spawn(async move {
                let length = BODY.len();
                let answer = format!(
                    "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n\
                     content-length: {length}\r\n\r\n{BODY}"
                );
                let mut buffer = Vec::new();
                while stream.read_buf(&mut buffer).await.is_ok_and(|read| read > 0) {
                    if buffer.ends_with(b"\r\n\r\n") {
                        buffer.clear();
                        if stream.write_all(answer.as_bytes()).await.is_err() {
                            return;
                        }
                    }
                }
            });
        }
    });
    Ok(address)
}

/// A program that listens; ended with this value.
struct Listening {
    address: String,
    process: Child,
}

impl Drop for Listening {
    fn drop(&mut self) {
        // Not by SIGKILL: nginx would leave its workers behind.
        let id = self.process.id().to_string();
        Command::new("kill").arg(id).status().ok();
        self.process.wait().ok();
    }
}

fn free_address() -> Outcome<String> {
    Ok(StdListener::bind("127.0.0.1:0")?.local_addr()?.to_string())
}

fn semel(upstream: &str, folder: &Path) -> Outcome<Listening> {
    let address = free_address()?;
    let process = Command::new(env!("CARGO_BIN_EXE_semel"))
        .args(["proxy", "--store", "memory:", "--scope", "single-tenant"])
        .args(["--upstream", &format!("http://{upstream}"), "--listen", &address])
        .args(["--admin", &free_address()?])
        .stderr(File::create(folder.join("semel.log"))?)
        .spawn()?;
    Ok(Listening { address, process })
}

fn nginx(upstream: &str, folder: &Path) -> Outcome<Listening> {
    let address = free_address()?;
    let place = folder.display();
    let temporary: String = ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"]
        .iter()
        .map(|name| format!("{name}_temp_path {place}/{name};\n"))
        .collect();
    let config = format!(
        "daemon off;\nworker_processes auto;\npid {place}/nginx.pid;\nerror_log {place}/nginx.log;\n\
         events {{ worker_connections 1024; }}\n\
         http {{\naccess_log off;\n{temporary}\
         upstream shop {{ server {upstream}; keepalive 64; keepalive_requests 100000000; }}\n\
         server {{\nlisten {address};\nkeepalive_requests 100000000;\n\
         location / {{ proxy_pass http://shop; proxy_http_version 1.1;\n\
         proxy_set_header Connection \"\"; proxy_set_header Host $host;\n\
         proxy_set_header X-Forwarded-For $proxy_add_x_forwarded_for; }}\n}}\n}}\n"
    );
    let path = folder.join("nginx.conf");
    fs::write(&path, config)?;
    let process = Command::new("nginx").arg("-c").arg(&path).stderr(Stdio::null()).spawn()?;
    Ok(Listening { address, process })
}

async fn answering(address: &str) -> Outcome<()> {
    let deadline = Instant::now() + Duration::from_secs(10);
    while TcpStream::connect(address).await.is_err() {
        if Instant::now() > deadline {
            return Err(format!("nobody listens at {address}").into());
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    Ok(())
}

/// One request after another; how long half of them took at most.
async fn latency(address: &str, span: Duration) -> Outcome<Duration> {
    let mut connection = Connection::open(address).await?;
    let (started, mut times) = (Instant::now(), Vec::new());
    while started.elapsed() < span {
        let sent = Instant::now();
        connection.ask().await?;
        times.push(sent.elapsed());
    }
    times.sort_unstable();
    Ok(times[times.len() / 2])
}

/// Many at once; how many in a second.
async fn rate(address: &str, span: Duration, connections: u64) -> Outcome<f64> {
    let (mut running, started) = (JoinSet::new(), Instant::now());
    for _ in 0..connections {
        let mut connection = Connection::open(address).await?;
        running.spawn(async move {
            let mut count = 0_u32;
            while started.elapsed() < span {
                connection.ask().await?;
                count += 1;
            }
            Outcome::Ok(count)
        });
    }
    let mut total = 0.0;
    while let Some(done) = running.join_next().await {
        total += f64::from(done??);
    }
    Ok(total / started.elapsed().as_secs_f64())
}

struct Connection {
    stream: TcpStream,
    buffer: Vec<u8>,
}

impl Connection {
    async fn open(address: &str) -> Outcome<Self> {
        let stream = TcpStream::connect(address).await?;
        stream.set_nodelay(true)?;
        Ok(Self { stream, buffer: Vec::with_capacity(4096) })
    }

    async fn ask(&mut self) -> Outcome<()> {
        self.buffer.clear();
        self.stream.write_all(REQUEST).await?;
        while !self.buffer.ends_with(BODY.as_bytes()) {
            if self.stream.read_buf(&mut self.buffer).await? == 0 {
                return Err("the connection was closed".into());
            }
        }
        Ok(())
    }
}
