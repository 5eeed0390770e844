//! Webhooks to a server that takes everything, beside a bare loop of the same HTTP client that signs in
//! the same way, with as many requests at once.

use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::Router;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use futures_util::{TryStreamExt, stream};
use http::header::CONTENT_TYPE;
use http::{HeaderName, HeaderValue, Request, StatusCode};
use http_body_util::{BodyExt, Full};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use ring::hmac::{Context, HMAC_SHA256, Key};
use semel_backends::webhook::WebhookConfig;
use semel_core::wire::{Binding, Format};
use semel_core::{Clock, Message, Secret, Sink, SystemClock};
use tokio::net::TcpListener;

use crate::events::Load;
use crate::{At, Broker, Outcomes, Target};

pub(crate) const BROKER: Broker = Broker {
    name: "webhook",
    server: At::Here(|| Box::pin(serve())),
    make: |_| Box::pin(async { Ok(()) }),
    sink: |target| Box::pin(sink(target)),
    bare: |target, load| Box::pin(bare(target, load)),
    remove: |_| Box::pin(async { Ok(()) }),
    alike: None,
    native: None,
};

const AT_ONCE: usize = 16;
const SECRET: &str = "MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";

async fn serve() -> Outcomes<String> {
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let address = listener.local_addr()?;
    let router = Router::new().fallback(|_: Bytes| async { StatusCode::NO_CONTENT });
    tokio::spawn(async move { axum::serve(listener, router).await });
    Ok(format!("http://{address}/hooks"))
}

async fn sink(target: Target) -> Outcomes<Arc<dyn Sink>> {
    let config = WebhookConfig::new(&target.server)?
        .plain_http(true)
        .allow("127.0.0.1")?
        .concurrency(AT_ONCE)
        .secret(&Secret::new(format!("whsec_{SECRET}")))?;
    Ok(Arc::new(config.connect().await?))
}

/// The same requests; nothing is kept in order.
async fn bare(target: Target, load: Load) -> Outcomes<Duration> {
    let mut tcp = HttpConnector::new();
    tcp.set_nodelay(true);
    let client = &Client::builder(TokioExecutor::new()).build(tcp);
    let (url, key) = (&target.server, &Key::new(HMAC_SHA256, &STANDARD.decode(SECRET)?));
    let began = Instant::now();
    stream::iter(load.batches(&target.topic).flatten().map(Ok))
        .try_for_each_concurrent(AT_ONCE, async |message: Message| {
            let answer = client.request(request(url, key, &message)?).await?;
            if answer.status() != StatusCode::NO_CONTENT {
                return Err(answer.status().to_string().into());
            }
            answer.into_body().collect().await?;
            Outcomes::Ok(())
        })
        .await?;
    Ok(began.elapsed())
}

fn request(url: &str, key: &Key, message: &Message) -> Outcomes<Request<Full<Bytes>>> {
    let (id, now) = (message.event.id.to_string(), SystemClock.now().as_second());
    let body = message.event.payload.bytes().clone();
    let mut signing = Context::with_key(key);
    signing.update(format!("{id}.{now}.").as_bytes());
    signing.update(&body);
    let signature = format!("v1,{}", STANDARD.encode(signing.sign()));
    let mut request = Request::post(url)
        .header(CONTENT_TYPE, "text/plain")
        .header("user-agent", "semel/0.1.0")
        .header("webhook-id", id)
        .header("webhook-timestamp", now)
        .header("webhook-signature", signature)
        .body(Full::new(body))?;
    Format::Plain.headers(&message.event, Binding::Http, &mut |name, value| {
        if let (Ok(name), Ok(value)) = (name.parse::<HeaderName>(), HeaderValue::from_str(value)) {
            request.headers_mut().insert(name, value);
        }
    });
    Ok(request)
}
