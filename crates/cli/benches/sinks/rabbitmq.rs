//! RabbitMQ, beside a bare loop of the same client with confirms and the mandatory flag.

use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::future::try_join_all;
use futures_util::{TryStreamExt, stream};
use lapin::options::{BasicPublishOptions, ConfirmSelectOptions, QueueDeclareOptions};
use lapin::types::{AMQPValue, FieldTable};
use lapin::{BasicProperties, Channel, Connection, ConnectionProperties};
use semel_backends::rabbitmq::RabbitmqConfig;
use semel_core::wire::{Binding, Format};
use semel_core::{Message, Sink};

use crate::events::{AT_ONCE, BATCH, Load, event};
use crate::{Alike, At, Broker, Outcomes, Target};

pub(crate) const BROKER: Broker = Broker {
    name: "rabbitmq",
    server: At::Variable("SEMEL_TEST_RABBITMQ_URL"),
    make: |target| Box::pin(make(target)),
    sink: |target| {
        Box::pin(async move {
            Ok(Arc::new(RabbitmqConfig::new(&target.server)?.connect().await?) as Arc<dyn Sink>)
        })
    },
    bare: |target, load| Box::pin(bare(target, load)),
    remove: |target| Box::pin(remove(target)),
    alike: Some(Alike {
        promise: "an event of a lane is sent when the one before it is confirmed",
        run: |target, load| Box::pin(lane_by_lane(target, load)),
        native: None,
    }),
    native: None,
};

async fn connect(target: &Target) -> Outcomes<Connection> {
    Ok(Connection::connect(&target.server, ConnectionProperties::default()).await?)
}

/// Classic and durable.
async fn make(target: Target) -> Outcomes<()> {
    let channel = connect(&target).await?.create_channel().await?;
    let options = QueueDeclareOptions { durable: true, ..Default::default() };
    channel.queue_declare(target.topic.into(), options, FieldTable::default()).await?;
    Ok(())
}

async fn remove(target: Target) -> Outcomes<()> {
    let channel = connect(&target).await?.create_channel().await?;
    channel.queue_delete(target.topic.into(), Default::default()).await?;
    Ok(())
}

/// The same bytes on the wire, as many batches under way; nothing is kept in order, and nobody looks
/// at what was returned.
async fn bare(target: Target, load: Load) -> Outcomes<Duration> {
    let connection = connect(&target).await?;
    let (channel, topic) = (&confirming(&connection).await?, &target.topic);
    let began = Instant::now();
    stream::iter(load.batches(topic).map(Ok))
        .try_for_each_concurrent(AT_ONCE, async |batch: Vec<Message>| {
            try_join_all(batch.iter().map(|message| send(channel, topic, message))).await?;
            Outcomes::Ok(())
        })
        .await?;
    Ok(began.elapsed())
}

/// All lanes side by side, as many events under way at most, each of a lane after the one before it.
async fn lane_by_lane(target: Target, load: Load) -> Outcomes<Duration> {
    let connection = connect(&target).await?;
    let (channel, topic, payload) =
        (&confirming(&connection).await?, &target.topic, &load.payload());
    let began = Instant::now();
    stream::iter((0..load.lanes).map(Ok))
        .try_for_each_concurrent(AT_ONCE * BATCH, async |lane: usize| {
            for number in (lane..load.count).step_by(load.lanes) {
                let message = Message::first(&**topic, event(number, load.lanes, payload));
                send(channel, topic, &message).await?;
            }
            Outcomes::Ok(())
        })
        .await?;
    Ok(began.elapsed())
}

async fn confirming(connection: &Connection) -> Outcomes<Channel> {
    let channel = connection.create_channel().await?;
    channel.confirm_select(ConfirmSelectOptions::default()).await?;
    Ok(channel)
}

async fn send(channel: &Channel, topic: &str, message: &Message) -> Outcomes<()> {
    let options = BasicPublishOptions { mandatory: true, ..Default::default() };
    let (key, body) = (topic.into(), message.event.payload.bytes());
    let sent = channel.basic_publish("".into(), key, options, body, properties(message));
    assert!(sent.await?.await?.is_ack());
    Ok(())
}

fn properties(message: &Message) -> BasicProperties {
    let mut headers = FieldTable::default();
    Format::Plain.headers(&message.event, Binding::Amqp, &mut |name, value| {
        headers.insert(name.into(), AMQPValue::LongString(value.into()));
    });
    BasicProperties::default()
        .with_content_type("text/plain".into())
        .with_headers(headers)
        .with_delivery_mode(2)
        .with_message_id(message.event.id.to_string().into())
}
