//! The brokers: where the relay publishes to, and what a consumer reads from. All else is the same.

use std::sync::Arc;
use std::time::Duration;

use rdkafka::ClientConfig;
use rdkafka::admin::{AdminClient, AdminOptions, NewTopic, TopicReplication};
use rdkafka::client::DefaultClientContext;
use semel::backends::kafka::KafkaConfig;
use semel::backends::nats::{NatsConfig, NatsStream};
use semel::backends::rabbitmq::{ExchangeKind, RabbitmqConfig, RabbitmqQueue};
use semel::backends::redis::RedisConfig;
use semel::{Failure, Sink, Source};

use crate::Outcome;

#[derive(Clone)]
pub(crate) enum Broker {
    Kafka(KafkaConfig, String),
    Nats(NatsConfig),
    Rabbitmq(RabbitmqConfig),
    Redis(RedisConfig),
}

impl Broker {
    pub(crate) fn new(name: &str, url: Option<String>) -> Outcome<Self> {
        let url = |default: &str| url.unwrap_or_else(|| default.to_owned());
        Ok(match name {
            "kafka" => {
                let brokers = url("localhost:9092");
                Self::Kafka(KafkaConfig::new(&brokers)?, brokers)
            }
            "nats" => {
                let stream = NatsStream::new("SHOP", ["order.events", "payment.events"]);
                let config = NatsConfig::new(&url("nats://localhost:4222"))?;
                Self::Nats(config.create_stream(stream))
            }
            "rabbitmq" => {
                let config = RabbitmqConfig::new(&url("amqp://guest:guest@localhost:5672/%2f"))?;
                Self::Rabbitmq(with_queues(config)?)
            }
            "redis" => Self::Redis(RedisConfig::new(&url("redis://localhost:6379"))?),
            _ => return Err(format!("{name} is not one of kafka, nats, rabbitmq, redis").into()),
        })
    }

    /// Makes what the broker needs before anybody reads.
    pub(crate) async fn set_up(&self) -> Outcome {
        if let Self::Kafka(_, brokers) = self {
            create_topics(brokers).await?;
        }
        // The sinks of the others make the stream or the queues.
        self.sink().await?;
        Ok(())
    }

    pub(crate) async fn sink(&self) -> Result<Arc<dyn Sink>, Failure> {
        Ok(match self {
            Self::Kafka(config, _) => Arc::new(config.connect().await?),
            Self::Nats(config) => Arc::new(config.clone().connect().await?),
            Self::Rabbitmq(config) => Arc::new(config.clone().connect().await?),
            Self::Redis(config) => Arc::new(config.clone().connect().await?),
        })
    }

    /// What a consumer of this name reads; `gone_after` says when what it has in hand is given to
    /// another one.
    pub(crate) async fn subscribe(
        &self,
        consumer: &str,
        topic: &str,
        gone_after: Duration,
    ) -> Result<Box<dyn Source>, Failure> {
        Ok(match self {
            Self::Kafka(config, _) => {
                let config = config.clone().subscription(consumer, &[topic])?;
                Box::new(config.session_timeout(gone_after).connect().await?)
            }
            Self::Nats(config) => {
                let config = config.clone().subscribe("SHOP", consumer).subject(topic);
                Box::new(config.ack_wait(gone_after).open().await?)
            }
            // It knows by the connection.
            Self::Rabbitmq(config) => {
                Box::new(config.clone().subscription(consumer)?.connect().await?)
            }
            Self::Redis(config) => {
                let config = config.clone().subscribe(consumer, [topic]);
                Box::new(config.claim_after(gone_after).open().await?)
            }
        })
    }
}

/// A queue for each consumer; the topic is the routing key.
fn with_queues(config: RabbitmqConfig) -> Result<RabbitmqConfig, Failure> {
    let mut config = config.exchange("shop")?.declare_exchange(ExchangeKind::Topic);
    for (queue, topic) in [
        ("payment", "order.events"),
        ("inventory", "order.events"),
        ("notification", "payment.events"),
    ] {
        let queue = RabbitmqQueue::new(queue)?.bound_by(topic)?.single_active_consumer();
        config = config.declare_queue(queue);
    }
    Ok(config)
}

/// Topics of Kafka are the operator's to make; here that is us.
async fn create_topics(brokers: &str) -> Outcome {
    let admin: AdminClient<DefaultClientContext> =
        ClientConfig::new().set("bootstrap.servers", brokers).create()?;
    let topics = ["order.events", "payment.events", "order.events.dead", "payment.events.dead"];
    let topics = topics.map(|name| NewTopic::new(name, 3, TopicReplication::Fixed(1)));
    // One that is there already stays as it is.
    admin.create_topics(&topics, &AdminOptions::new()).await?;
    Ok(())
}
