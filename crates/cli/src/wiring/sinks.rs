//! Which sinks there are, and which keys each of them has.

use std::path::Path;
#[cfg(feature = "kafka")]
use std::sync::Arc;

use semel_backends::ndjson::{FileSink, StdoutSink};
#[cfg(feature = "sinks")]
use semel_core::Failure;
use semel_core::Schedule;
#[cfg(feature = "kafka")]
use semel_core::Sink;
#[cfg(feature = "kafka")]
use semel_core::coordination::Share;
#[cfg(feature = "sinks")]
use semel_core::wire::Format;

use super::arrivals_in;
use super::connect::{ConnectSink, sink};
#[cfg(any(feature = "aws", feature = "kafka"))]
use super::logins::both_or_neither;
#[cfg(any(feature = "mqtt", feature = "nats", feature = "rabbitmq"))]
use super::logins::login;
#[cfg(feature = "redis")]
use super::logins::redis_login;
#[cfg(feature = "kafka")]
use super::{Connecting, connect::ConnectShare};
use crate::config::Section;

/// A kind of sink, known by its `type`.
#[derive(Debug)]
pub(crate) struct SinkKind {
    /// The value of `type`.
    pub(crate) name: &'static str,
    /// What it is, in a few words for the help.
    pub(crate) summary: &'static str,
    /// When it is tried again, unless the pipeline says else.
    pub(crate) schedule: fn() -> Schedule,
    /// Which characters its topics may hold.
    pub(crate) topic_may_hold: fn(char) -> bool,
    /// Reads its other keys; all of them before it gives up for one.
    pub(crate) parse: fn(&mut Section<'_>) -> Option<ConnectSink>,
}

/// All sinks.
pub(crate) const SINKS: &[SinkKind] = &[
    SinkKind {
        name: "stdout",
        summary: "standard output, one JSON object per line",
        schedule: Schedule::broker,
        topic_may_hold: |_| true,
        parse: |_| Some(sink((), |()| async { Ok(StdoutSink) })),
    },
    SinkKind {
        name: "file",
        summary: "a file, one JSON object per line",
        schedule: Schedule::broker,
        topic_may_hold: |_| true,
        parse: |section| {
            let path = section.required("path")?;
            let sink = sink(path.clone(), FileSink::open);
            Some(sink.readable(move |_| std::future::ready(arrivals_in(Path::new(&path)))))
        },
    },
    #[cfg(feature = "kafka")]
    SinkKind {
        name: "kafka",
        summary: "topics of Apache Kafka",
        schedule: Schedule::broker,
        topic_may_hold: |each| each.is_ascii_alphanumeric() || "._-".contains(each),
        parse: kafka,
    },
    #[cfg(feature = "rabbitmq")]
    SinkKind {
        name: "rabbitmq",
        summary: "an exchange or queues of RabbitMQ",
        schedule: Schedule::broker,
        topic_may_hold: |_| true,
        parse: rabbitmq,
    },
    #[cfg(feature = "nats")]
    SinkKind {
        name: "nats",
        summary: "subjects of NATS JetStream",
        schedule: Schedule::broker,
        topic_may_hold: |each| !each.is_whitespace() && !each.is_control() && !"*>".contains(each),
        parse: nats,
    },
    #[cfg(feature = "mqtt")]
    SinkKind {
        name: "mqtt",
        summary: "topics of an MQTT broker",
        schedule: Schedule::broker,
        topic_may_hold: super::topics::mqtt_may_hold,
        parse: mqtt,
    },
    #[cfg(feature = "redis")]
    SinkKind {
        name: "redis",
        summary: "streams of Redis",
        schedule: Schedule::broker,
        topic_may_hold: |_| true,
        parse: redis,
    },
    #[cfg(feature = "aws")]
    SinkKind {
        name: "sqs",
        summary: "queues of Amazon SQS, standard and FIFO",
        schedule: Schedule::broker,
        topic_may_hold: |_| true,
        parse: sqs,
    },
    #[cfg(feature = "aws")]
    SinkKind {
        name: "sns",
        summary: "topics of Amazon SNS, standard and FIFO",
        schedule: Schedule::broker,
        topic_may_hold: |_| true,
        parse: sns,
    },
    #[cfg(feature = "aws")]
    SinkKind {
        name: "eventbridge",
        summary: "buses of Amazon EventBridge",
        schedule: Schedule::broker,
        topic_may_hold: |_| true,
        parse: eventbridge,
    },
    #[cfg(feature = "webhook")]
    SinkKind {
        name: "webhook",
        summary: "an HTTP endpoint, signed by Standard Webhooks",
        schedule: Schedule::webhook,
        topic_may_hold: |_| true,
        parse: webhook,
    },
];

/// Sinks that were not built in, each with its feature.
const LEFT_OUT: &[(&str, &str)] = &[
    #[cfg(not(feature = "kafka"))]
    ("kafka", "kafka"),
    #[cfg(not(feature = "rabbitmq"))]
    ("rabbitmq", "rabbitmq"),
    #[cfg(not(feature = "nats"))]
    ("nats", "nats"),
    #[cfg(not(feature = "mqtt"))]
    ("mqtt", "mqtt"),
    #[cfg(not(feature = "redis"))]
    ("redis", "redis"),
    #[cfg(not(feature = "aws"))]
    ("sqs", "aws"),
    #[cfg(not(feature = "aws"))]
    ("sns", "aws"),
    #[cfg(not(feature = "aws"))]
    ("eventbridge", "aws"),
    #[cfg(not(feature = "webhook"))]
    ("webhook", "webhook"),
];

/// The feature that a sink of this name needs, if it was not built in.
pub(crate) fn missing_feature(name: &str) -> Option<&'static str> {
    LEFT_OUT.iter().find(|(known, _)| *known == name).map(|(_, feature)| *feature)
}

/// The sinks, for the help.
pub(crate) fn sinks_in_words() -> String {
    let line = |kind: &SinkKind| format!("  {:<11}  {}\n", kind.name, kind.summary);
    format!("Sinks:\n{}", SINKS.iter().map(line).collect::<String>())
}

#[cfg(feature = "kafka")]
fn kafka(section: &mut Section<'_>) -> Option<ConnectSink> {
    use semel_backends::kafka::{Compression, KafkaConfig, Sasl};
    let brokers = section.required("brokers");
    let sasl = section.table("sasl", |table| {
        let mechanism = table.required("mechanism");
        let (user, password) = (table.required("user"), table.required_secret("password"));
        let mechanism = checked(table, "mechanism", mechanism?.parse())?;
        Some(Sasl::new(mechanism, user?, password?.reveal()))
    });
    let tls = section.table("tls", kafka_tls);
    let compression = section.optional("compression").map(|name| name.parse::<Compression>());
    let compression = match compression {
        Some(parsed) => checked(section, "compression", parsed),
        None => None,
    };
    let (client, linger) = (section.optional("client_id"), section.duration("linger", LINGERS));
    let (patience, format) = (section.duration("timeout", TIMEOUTS), format(section));
    let sizes = ["batch_bytes", "max_message_bytes", "buffer_bytes"];
    let [batch, message, buffer] = sizes.map(|key| section.size(key, 1024..=1024 * 1024 * 1024));
    let once = exactly_once(section);
    let brokers = brokers?;
    let mut config = checked(section, "brokers", KafkaConfig::new(&brokers))?.format(format);
    config = with(config, client, KafkaConfig::client_id);
    config = with(config, sasl, KafkaConfig::sasl);
    config = with(config, tls, KafkaConfig::tls);
    config = with(config, compression, KafkaConfig::compression);
    config = with(config, linger, KafkaConfig::linger);
    config = with(config, patience, KafkaConfig::patience);
    checked(section, "linger", config.check())?;
    config = with(config, batch, KafkaConfig::batch_bytes);
    config = with(config, message, KafkaConfig::max_message_bytes);
    config = with(config, buffer, KafkaConfig::buffer_bytes);
    let share = once.clone().map(|id| {
        let config = config.clone();
        Arc::new(move |pipeline: &str, share| connect_once(&config, id.as_deref(), pipeline, share))
            as ConnectShare
    });
    let (read, letters) = (config.clone(), config.clone());
    let plain = sink((config, once), |(config, _)| async move { config.connect().await });
    let plain = plain.readable(move |topics| {
        let config = read.clone();
        async move { config.arrivals(&topics).await }
    });
    let plain = plain
        .with_letters(letters, |config, queue| async move { config.dead_letters(&queue).await });
    let plain = plain.with_topics(super::topics::kafka).with_longest_call(patience);
    Some(ConnectSink { share, ..plain })
}

#[cfg(feature = "kafka")]
fn kafka_tls(table: &mut Section<'_>) -> Option<semel_backends::kafka::Tls> {
    use semel_backends::kafka::Tls;
    let (ca, own) = (table.optional("ca_file"), table.optional("certificate_file"));
    let key = table.optional("key_file");
    both_or_neither(table, ["certificate_file", "key_file"]);
    let tls = ca.map_or_else(Tls::default, |ca| Tls::default().ca_file(ca));
    Some(match own.zip(key) {
        Some((own, key)) => tls.identity(own, key),
        None => tls,
    })
}

/// `delivery` and `transactional_id`: whether every event is to be there once, and under which name
/// if it is not made of that of the pipeline.
#[cfg(feature = "kafka")]
fn exactly_once(section: &mut Section<'_>) -> Option<Option<String>> {
    let ways = [("at_least_once", false), ("exactly_once", true)];
    let once = section.choice("delivery", &ways).unwrap_or(false);
    let id = section.optional("transactional_id");
    if id.is_some() && !once {
        section.wrong("transactional_id", "is for delivery = \"exactly_once\" alone");
    }
    once.then_some(id)
}

#[cfg(feature = "kafka")]
fn connect_once(
    config: &semel_backends::kafka::KafkaConfig,
    id: Option<&str>,
    pipeline: &str,
    share: Share,
) -> Connecting<Arc<dyn Sink>> {
    let config = config.clone();
    let id = id.map_or_else(|| format!("semel-{pipeline}"), str::to_owned);
    Box::pin(async move {
        Ok(Arc::new(config.connect_exactly_once(&id, share).await?) as Arc<dyn Sink>)
    })
}

#[cfg(feature = "rabbitmq")]
fn rabbitmq(section: &mut Section<'_>) -> Option<ConnectSink> {
    use semel_backends::rabbitmq::{ExchangeKind, RabbitmqConfig};
    let url = section.required_secret("url");
    let login = login(section);
    let (ca, exchange) = (section.optional("ca_file"), section.optional("exchange"));
    let declared = match section.optional("declare_exchange") {
        Some(kind) => checked(section, "declare_exchange", kind.parse::<ExchangeKind>()),
        None => None,
    };
    let queue = section.table("declare_queue", declared_queue);
    let (format, timeout) = (format(section), section.duration("timeout", TIMEOUTS));
    let size = section.size("max_message_bytes", 1024..=1024 * 1024 * 1024);
    let mut config = checked(section, "url", RabbitmqConfig::new(url?.reveal()))?.format(format);
    if let Some((user, password)) = login {
        config = config.credentials(user, &password);
    }
    if let Some(exchange) = exchange {
        config = checked(section, "exchange", config.exchange(&exchange))?;
    }
    config = with(config, ca, RabbitmqConfig::ca_file);
    config = with(config, declared, RabbitmqConfig::declare_exchange);
    config = with(config, queue, RabbitmqConfig::declare_queue);
    checked(section, "exchange", config.check())?;
    config = with(config, timeout, RabbitmqConfig::timeout);
    config = with(config, size, RabbitmqConfig::max_message_bytes);
    let letters = config.clone();
    let sink = sink(config, RabbitmqConfig::connect).with_longest_call(timeout);
    let sink =
        sink.with_topics(super::topics::rabbitmq).with_headers(super::headers::rabbitmq(format));
    Some(
        sink.with_letters(
            letters,
            |config, queue| async move { config.dead_letters(&queue).await },
        ),
    )
}

#[cfg(feature = "rabbitmq")]
fn declared_queue(table: &mut Section<'_>) -> Option<semel_backends::rabbitmq::RabbitmqQueue> {
    use semel_backends::rabbitmq::{QueueKind, RabbitmqQueue};
    let (name, kind) = (table.required("name"), table.optional("type"));
    let binding = table.optional("binding");
    let mut queue = checked(table, "name", RabbitmqQueue::new(&name?))?;
    if let Some(kind) = kind {
        queue = queue.kind(checked(table, "type", kind.parse::<QueueKind>())?);
    }
    if let Some(binding) = binding {
        queue = checked(table, "binding", queue.bound_by(&binding))?;
    }
    Some(queue)
}

#[cfg(feature = "nats")]
fn nats(section: &mut Section<'_>) -> Option<ConnectSink> {
    use semel_backends::nats::{NatsConfig, NatsStream};
    let url = section.required_secret("url");
    let login = login(section);
    let (token, ca) = (section.secret("token"), section.optional("ca_file"));
    let credentials = section.optional("credentials_file");
    let stream = section.table("create_stream", |table| {
        let (name, subjects) = (table.required("name"), table.list("subjects"));
        let replicas = table.integer("replicas", 1..=5_usize).unwrap_or(1);
        if subjects.is_none() {
            table.wrong("subjects", "needs a list such as [\"order.>\"]");
        }
        Some(NatsStream::new(name?, subjects?).replicas(replicas))
    });
    let (format, timeout) = (format(section), section.duration("timeout", TIMEOUTS));
    let mut config = checked(section, "url", NatsConfig::new(url?.reveal()))?.format(format);
    if let Some((user, password)) = login {
        config = config.credentials(user, password);
    }
    config = with(config, token, NatsConfig::token);
    config = with(config, credentials, NatsConfig::credentials_file);
    config = with(config, ca, NatsConfig::ca_file);
    config = with(config, stream, NatsConfig::create_stream);
    config = with(config, timeout, NatsConfig::timeout);
    let (read, letters) = (config.clone(), config.clone());
    let sink = sink(config, NatsConfig::connect).with_longest_call(timeout);
    let sink = sink
        .with_letters(letters, |config, queue| async move { config.dead_letters(&queue).await });
    let sink = sink.with_topics(super::topics::nats);
    Some(sink.readable(move |topics| {
        let config = read.clone();
        async move { config.arrivals(&topics).await }
    }))
}

#[cfg(feature = "mqtt")]
fn mqtt(section: &mut Section<'_>) -> Option<ConnectSink> {
    use semel_backends::mqtt::{MqttConfig, MqttVersion};
    let url = section.required_secret("url");
    let login = login(section);
    let (ca, client) = (section.optional("ca_file"), section.optional("client_id"));
    let version = section.integer("version", 3..=5_u8);
    let (format, timeout) = (format(section), section.duration("timeout", TIMEOUTS));
    let (retain, strict) = (section.boolean("retain"), section.boolean("require_subscriber"));
    let window = section.integer("max_in_flight", 1..=u16::MAX - 1);
    let size = section.size("max_message_bytes", 1024..=256 * 1024 * 1024);
    let mut config = checked(section, "url", MqttConfig::new(url?.reveal()))?;
    let has_headers = version != Some(3);
    if let Some(version) = version {
        let version = checked(section, "version", MqttVersion::try_from(version))?;
        config = checked(section, "version", config.version(version))?;
    }
    config = checked(section, "format", config.format(format))?;
    if let Some((user, password)) = login {
        config = config.credentials(user, password);
    }
    config = with(config, ca, MqttConfig::ca_file);
    config = with(config, client, MqttConfig::client_id);
    config = with(config, retain, MqttConfig::retain);
    config = with(config, strict, MqttConfig::require_subscriber);
    config = with(config, window, MqttConfig::max_in_flight);
    config = with(config, size, MqttConfig::max_message_bytes);
    config = with(config, timeout, MqttConfig::timeout);
    let sink = sink(config, MqttConfig::connect).with_longest_call(timeout);
    let sink = sink.with_topics(super::topics::mqtt);
    Some(if has_headers { sink.with_headers(super::headers::mqtt(format)) } else { sink })
}

#[cfg(feature = "redis")]
fn redis(section: &mut Section<'_>) -> Option<ConnectSink> {
    use semel_backends::redis::RedisConfig;
    let url = section.required_secret("url");
    let login = redis_login(section, url.as_ref());
    let (ca, prefix) = (section.optional("ca_file"), section.optional("key_prefix"));
    let length = section.integer("max_len", 1..=u64::MAX >> 1);
    let size = section.size("max_field_bytes", 1024..=1024 * 1024 * 1024);
    let (format, timeout) = (format(section), section.duration("timeout", TIMEOUTS));
    let mut config = checked(section, "url", RedisConfig::new(url?.reveal()))?.format(format);
    if let Some((user, password)) = login {
        config = config.credentials(user, password);
    }
    config = with(config, ca, RedisConfig::ca_file);
    config = with(config, prefix, RedisConfig::key_prefix);
    config = with(config, length, RedisConfig::max_len);
    config = with(config, size, RedisConfig::max_field_bytes);
    config = with(config, timeout, RedisConfig::timeout);
    let (read, letters) = (config.clone(), config.clone());
    let sink = sink(config, RedisConfig::connect).with_longest_call(timeout);
    let sink = sink
        .with_letters(letters, |config, queue| async move { config.dead_letters(&queue).await });
    Some(sink.readable(move |topics| {
        let config = read.clone();
        async move { config.arrivals(&topics).await }
    }))
}

#[cfg(feature = "aws")]
fn sqs(section: &mut Section<'_>) -> Option<ConnectSink> {
    let Aws { config, timeout, .. } = aws(section)?;
    let letters = config.clone();
    let sink = sink(config, semel_backends::aws::AwsConfig::connect_sqs).with_longest_call(timeout);
    let sink = sink.with_topics(super::topics::sqs);
    Some(
        sink.with_letters(
            letters,
            |config, queue| async move { config.dead_letters(&queue).await },
        ),
    )
}

#[cfg(feature = "aws")]
fn sns(section: &mut Section<'_>) -> Option<ConnectSink> {
    use super::topics::{is_of_another_region, sns, sns_without_prefix};
    const ELSEWHERE: &str =
        "its region is not that of the sink; write the region of the topic there";
    let (prefix, aws) = (section.optional("arn_prefix"), aws(section));
    let Aws { config, timeout, region } = aws?;
    let is_elsewhere =
        move |arn: &str| region.as_ref().is_some_and(|region| is_of_another_region(arn, region));
    if prefix.as_deref().is_some_and(&is_elsewhere) {
        section.wrong("arn_prefix", ELSEWHERE);
    }
    let no_topic = if prefix.is_some() { sns } else { sns_without_prefix };
    let sink = sink((config, prefix), |(config, prefix)| config.connect_sns(prefix));
    let sink = sink.with_topics(move |topic| match no_topic(topic) {
        None if is_elsewhere(topic) => Some(ELSEWHERE),
        known => known,
    });
    Some(sink.with_longest_call(timeout))
}

#[cfg(feature = "aws")]
fn eventbridge(section: &mut Section<'_>) -> Option<ConnectSink> {
    let (source, aws) = (section.optional("source"), aws(section));
    let Aws { config, timeout, .. } = aws?;
    let sink = sink((config, source), |(config, source)| config.connect_eventbridge(source));
    Some(sink.with_topics(super::topics::eventbridge).with_longest_call(timeout))
}

#[cfg(feature = "aws")]
struct Aws {
    config: semel_backends::aws::AwsConfig,
    timeout: Option<std::time::Duration>,
    /// That of ARNs, where it is known: what only speaks like AWS may call it anything.
    region: Option<String>,
}

/// What all services of AWS have in common.
#[cfg(feature = "aws")]
fn aws(section: &mut Section<'_>) -> Option<Aws> {
    use semel_backends::aws::AwsConfig;
    let (region, endpoint) = (section.optional("region"), section.optional("endpoint_url"));
    let (id, key) = (section.optional("access_key_id"), section.secret("secret_access_key"));
    let (token, timeout) = (section.secret("session_token"), section.duration("timeout", TIMEOUTS));
    let format = section.choice("format", &Format::NAMES);
    let size = section.size("max_message_bytes", 1024..=1024 * 1024);
    let concurrency = section.integer("concurrency", 1..=1000_usize);
    both_or_neither(section, ["access_key_id", "secret_access_key"]);
    if token.is_some() && id.is_none() && key.is_none() {
        section.wrong("session_token", "needs access_key_id and secret_access_key beside it");
    }
    let mut config = AwsConfig::new();
    if let Some((id, key)) = id.zip(key) {
        config = config.credentials(id, key, token);
    }
    if let Some(format) = format {
        config = checked(section, "format", config.format(format))?;
    }
    config = with(config, region.clone(), AwsConfig::region);
    let region = region.filter(|_| endpoint.is_none());
    config = with(config, endpoint, AwsConfig::endpoint_url);
    config = with(config, size, AwsConfig::max_message_bytes);
    config = with(config, concurrency, AwsConfig::concurrency);
    config = with(config, timeout, AwsConfig::timeout);
    Some(Aws { config, timeout, region })
}

#[cfg(feature = "webhook")]
fn webhook(section: &mut Section<'_>) -> Option<ConnectSink> {
    use semel_backends::webhook::WebhookConfig;
    let url = section.required_secret("url");
    // Two, so that receivers can change from one to the other.
    let secrets = ["secret", "next_secret"].map(|key| (key, section.secret(key)));
    let authorization = section.secret("authorization");
    let (format, timeout) = (format(section), section.duration("timeout", TIMEOUTS));
    let concurrency = section.integer("concurrency", 1..=1000_usize);
    let (allow, ca) = (section.list("allow").unwrap_or_default(), section.optional("ca_file"));
    let plain = section.boolean("plain_http").unwrap_or(false);
    let url = url?;
    let mut config =
        checked(section, "url", WebhookConfig::new(url.reveal()))?.format(format).plain_http(plain);
    for (key, secret) in secrets {
        if let Some(secret) = secret {
            config = checked(section, key, config.secret(&secret))?;
        }
    }
    if let Some(value) = authorization {
        config = checked(section, "authorization", config.header("authorization", &value))?;
    }
    for network in allow {
        config = checked(section, "allow", config.allow(&network))?;
    }
    checked(section, "url", config.check())?;
    config = with(config, timeout, WebhookConfig::timeout);
    config = with(config, concurrency, WebhookConfig::concurrency);
    config = with(config, ca, WebhookConfig::ca_file);
    // What is sent at the end of the first has as long for its answer.
    let longest_call = timeout.map(|timeout| timeout * 2);
    Some(sink(config, WebhookConfig::connect).with_longest_call(longest_call))
}

/// How long a sink may wait for answers. With less time than an answer takes, every call would fail.
#[cfg(feature = "sinks")]
const TIMEOUTS: std::ops::RangeInclusive<std::time::Duration> =
    std::time::Duration::from_millis(100)..=std::time::Duration::from_secs(300);

/// How long a message may wait for others.
#[cfg(feature = "kafka")]
const LINGERS: std::ops::RangeInclusive<std::time::Duration> =
    std::time::Duration::ZERO..=std::time::Duration::from_secs(300);

#[cfg(feature = "sinks")]
fn format(section: &mut Section<'_>) -> Format {
    section.choice("format", &Format::NAMES).unwrap_or_default()
}

/// What a backend says about the value of a key.
#[cfg(feature = "sinks")]
fn checked<T>(section: &Section<'_>, key: &str, result: Result<T, Failure>) -> Option<T> {
    result
        .map_err(|failure| {
            let fix = failure.fix().map(|fix| format!("; {fix}")).unwrap_or_default();
            section.wrong(key, &format!("{failure}{fix}"));
        })
        .ok()
}

/// The configuration, with one more value if it was given.
#[cfg(feature = "sinks")]
fn with<C, T>(config: C, value: Option<T>, set: impl FnOnce(C, T) -> C) -> C {
    match value {
        Some(value) => set(config, value),
        None => config,
    }
}
