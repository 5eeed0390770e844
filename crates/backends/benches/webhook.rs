//! How fast the webhook sink sends, beside a bare loop of the same HTTP client with as many requests
//! at once and the same headers, to the same server in the same run.
//! `cargo bench -p semel-backends --features webhook --bench webhook`
//!
//! Arguments: events (20000), payload bytes (200), rounds (3).

#![expect(clippy::print_stdout, reason = "it reports to the terminal")]

use std::error::Error;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use axum::Router;
use axum::body::Bytes;
use axum::http::{HeaderMap, HeaderName, StatusCode};
use futures_util::{StreamExt, stream};
use http_body_util::{BodyExt, Full};
use hyper_util::client::legacy::Client;
use hyper_util::rt::TokioExecutor;
use semel_backends::webhook::{WebhookConfig, WebhookSink};
use semel_core::wire::{Binding, Format};
use semel_core::{Event, Message, Secret, Sink};

type Outcomes<T> = Result<T, Box<dyn Error>>;

const BATCH: usize = 1_000;
const AT_ONCE: usize = 16;

#[tokio::main]
async fn main() -> Outcomes<()> {
    let mut numbers = std::env::args().filter_map(|argument| argument.parse::<usize>().ok());
    let count = numbers.next().unwrap_or(20_000);
    let bytes = numbers.next().unwrap_or(200);
    let rounds = numbers.next().unwrap_or(3);
    let address = serve().await?;
    let config = WebhookConfig::new(&format!("http://{address}/hooks"))?
        .plain_http(true)
        .allow("127.0.0.1")?
        .concurrency(AT_ONCE);
    let unsigned = config.clone().connect().await?;
    let secret = Secret::new("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw");
    let signed = config.secret(&secret)?.connect().await?;
    let batch = batch(bytes);
    // Connections are opened before anything is measured.
    bare(address, &batch, BATCH).await?;
    for (name, sink) in [("signed", signed), ("unsigned", unsigned)] {
        through(&sink, &batch, BATCH).await?;
        let (mut sinks, mut loops) = (Vec::new(), Vec::new());
        for _ in 0..rounds {
            loops.push(bare(address, &batch, count).await?);
            sinks.push(through(&sink, &batch, count).await?);
        }
        let (sink, bare) = (median(sinks), median(loops));
        println!(
            "webhook, {name}: {} ({:.2} of a bare loop, {})",
            rate(count, sink),
            bare.as_secs_f64() / sink.as_secs_f64(),
            rate(count, bare),
        );
    }
    Ok(())
}

/// A server that takes everything.
async fn serve() -> Outcomes<SocketAddr> {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await?;
    let address = listener.local_addr()?;
    let router = Router::new().fallback(|_: Bytes| async { StatusCode::NO_CONTENT });
    tokio::spawn(async move { axum::serve(listener, router).await });
    Ok(address)
}

fn batch(bytes: usize) -> Vec<Message> {
    let payload = format!("{{\"text\":\"{}\"}}", "x".repeat(bytes.saturating_sub(11)));
    let made = |number: usize| {
        let event = Event::new("order", number.to_string(), "OrderPlaced");
        Message::first("order.events", event.with_bytes("application/json", payload.clone()))
    };
    (0..BATCH).map(made).collect()
}

async fn through(sink: &WebhookSink, batch: &[Message], count: usize) -> Outcomes<Duration> {
    let began = Instant::now();
    for _ in 0..count / BATCH {
        let published = sink.publish(batch).await;
        if !published.all_confirmed() {
            return Err(format!("{published:?}").into());
        }
    }
    Ok(began.elapsed())
}

async fn bare(address: SocketAddr, batch: &[Message], count: usize) -> Outcomes<Duration> {
    let client = Client::builder(TokioExecutor::new()).build_http::<Full<Bytes>>();
    let headers = headers(&batch[0].event)?;
    let began = Instant::now();
    for _ in 0..count / BATCH {
        let requests = batch.iter().map(|message| {
            let body = Full::new(message.event.payload.bytes().clone());
            let request = http::Request::post(format!("http://{address}/hooks")).body(body);
            let (client, headers) = (client.clone(), headers.clone());
            async move {
                let mut request = request?;
                *request.headers_mut() = headers;
                let response = client.request(request).await?;
                if response.status() != StatusCode::NO_CONTENT {
                    return Err(response.status().to_string().into());
                }
                response.into_body().collect().await?;
                Outcomes::Ok(())
            }
        });
        let mut answers = stream::iter(requests).buffer_unordered(AT_ONCE);
        while let Some(answer) = answers.next().await {
            answer?;
        }
    }
    Ok(began.elapsed())
}

/// Those of a signed event, made once.
fn headers(event: &Event) -> Outcomes<HeaderMap> {
    let mut pairs = vec![
        ("content-type".to_owned(), "application/json".to_owned()),
        ("user-agent".into(), "semel/0.1.0".into()),
        ("webhook-id".into(), event.id.to_string()),
        ("webhook-timestamp".into(), "1614265330".into()),
        ("webhook-signature".into(), format!("v1,{}=", "x".repeat(43))),
    ];
    Format::Plain.headers(event, Binding::Http, &mut |name, value| {
        pairs.push((name.to_owned(), value.to_owned()));
    });
    let mut headers = HeaderMap::new();
    for (name, value) in pairs {
        headers.insert(name.parse::<HeaderName>()?, value.parse()?);
    }
    Ok(headers)
}

fn median(mut times: Vec<Duration>) -> Duration {
    times.sort_unstable();
    times.get(times.len() / 2).copied().unwrap_or_default()
}

fn rate(count: usize, time: Duration) -> String {
    #[expect(clippy::cast_precision_loss, reason = "a rate")]
    let rate = count as f64 / time.as_secs_f64();
    format!("{rate:.0} events/s")
}
