//! NATS JetStream, beside a bare loop of the same client that sends and awaits batches together.

use std::sync::Arc;
use std::time::{Duration, Instant};

use async_nats::HeaderMap;
use async_nats::jetstream::{self, stream};
use futures_util::future::try_join_all;
use futures_util::{TryStreamExt, stream as streams};
use semel_backends::nats::NatsConfig;
use semel_core::wire::{Binding, Format};
use semel_core::{Message, Sink};

use crate::events::{AT_ONCE, Load};
use crate::{At, Broker, Outcomes, Target};

pub(crate) const BROKER: Broker = Broker {
    name: "nats",
    server: At::Variable("SEMEL_TEST_NATS_URL"),
    make: |target| Box::pin(make(target)),
    sink: |target| {
        Box::pin(async move {
            Ok(Arc::new(NatsConfig::new(&target.server)?.connect().await?) as Arc<dyn Sink>)
        })
    },
    bare: |target, load| Box::pin(bare(target, load)),
    remove: |target| Box::pin(remove(target)),
    alike: None,
    native: None,
};

async fn context(target: &Target) -> Outcomes<jetstream::Context> {
    Ok(jetstream::new(async_nats::connect(&target.server).await?))
}

async fn make(target: Target) -> Outcomes<()> {
    let subjects = vec![target.topic.clone()];
    let config = stream::Config { name: target.topic.clone(), subjects, ..Default::default() };
    context(&target).await?.create_stream(config).await?;
    Ok(())
}

async fn remove(target: Target) -> Outcomes<()> {
    context(&target).await?.delete_stream(&target.topic).await?;
    Ok(())
}

/// The same bytes on the wire, as many batches under way; nothing is kept in order.
async fn bare(target: Target, load: Load) -> Outcomes<Duration> {
    let context = context(&target).await?;
    let (context, topic) = (&context, &target.topic);
    let began = Instant::now();
    streams::iter(load.batches(topic).map(Ok))
        .try_for_each_concurrent(AT_ONCE, async |batch: Vec<Message>| {
            let send = async |message: &Message| {
                let body = message.event.payload.bytes().clone();
                let sent = context.publish_with_headers(topic.clone(), headers(message), body);
                sent.await?.await
            };
            try_join_all(batch.iter().map(send)).await?;
            Outcomes::Ok(())
        })
        .await?;
    Ok(began.elapsed())
}

fn headers(message: &Message) -> HeaderMap {
    let mut headers = HeaderMap::new();
    Format::Plain.headers(&message.event, Binding::Nats, &mut |name, value| {
        headers.insert(name, value);
    });
    headers.insert("Nats-Msg-Id", format!("{}/{}", message.event.id, message.topic));
    headers
}
