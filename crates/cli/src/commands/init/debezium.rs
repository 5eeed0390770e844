//! From the `application.properties` of Debezium Server with its outbox router.

use std::collections::{BTreeMap, BTreeSet};

use semel_core::Failure;

/// What could be converted, and what could not.
pub(super) struct Converted {
    pub(super) configuration: String,
    /// Settings without a counterpart, one line each.
    pub(super) left: Vec<String>,
}

/// The same outbox, the same topics, the same broker.
pub(super) fn convert(text: &str) -> Result<Converted, Failure> {
    let mut properties = Properties::read(text);
    let source = source(&mut properties)?;
    let sink = sink(&mut properties)?;
    let topic = topic(&mut properties);
    properties.ignore(&["quarkus.", "debezium.format.", "debezium.source.offset."]);
    for key in SETTLED {
        properties.take(key);
    }
    let left = properties.left();
    let mut configuration = format!(
        "# Made from the application.properties of Debezium Server. The rows of a mapped table are\n\
         # deleted once they are published; semel migrate up makes the two tables beside it.\n\n\
         [source.outbox]\n{source}\n[sink.out]\n{sink}\n[pipeline.outbox]\nfrom = \"outbox\"\n\
         to = \"out\"\nrouting = \"debezium\"\n{topic}"
    );
    if !left.is_empty() {
        configuration += "\n# Without a counterpart here:\n";
        left.iter().for_each(|line| configuration += &format!("#   {line}\n"));
    }
    Ok(Converted { configuration, left })
}

/// What semel does anyway, or decides itself.
const SETTLED: &[&str] = &[
    "debezium.transforms",
    "debezium.transforms.outbox.type",
    "debezium.transforms.outbox.table.expand.json.payload",
    "debezium.source.plugin.name",
    "debezium.source.slot.name",
    "debezium.source.publication.name",
    "debezium.source.topic.prefix",
    "debezium.source.database.server.id",
    "debezium.source.tombstones.on.delete",
    "debezium.source.poll.interval.ms",
    "debezium.sink.kafka.producer.key.serializer",
    "debezium.sink.kafka.producer.value.serializer",
    "debezium.source.schema.history.internal",
    "debezium.source.schema.history.internal.file.filename",
];

fn source(properties: &mut Properties) -> Result<String, Failure> {
    const SOURCE: &str = "debezium.source.";
    let class = properties.take("debezium.source.connector.class").unwrap_or_default();
    let (scheme, port) = match class.rsplit('.').next().unwrap_or_default() {
        "PostgresConnector" => ("postgres", "5432"),
        "MySqlConnector" | "MariaDbConnector" => ("mysql", "3306"),
        other => {
            let what = format!("no connector that semel replaces: {other:?}");
            return Err(Failure::misconfigured("E-INIT-CONNECTOR", what).with_fix(
                "give a file with debezium.source.connector.class of PostgreSQL, MySQL or MariaDB",
            ));
        }
    };
    let mut said = |key: &str, default: &str| {
        properties.take(&format!("{SOURCE}{key}")).unwrap_or_else(|| default.to_owned())
    };
    let (host, port) = (said("database.hostname", "127.0.0.1"), said("database.port", port));
    let (user, password) = (said("database.user", "semel"), said("database.password", ""));
    let included = said("database.include.list", "shop");
    let database = said("database.dbname", &included);
    let table = said("table.include.list", "public.outbox");
    // A password stays where it is: this file is likely to be committed.
    let secret = match password.strip_prefix("${").and_then(|rest| rest.strip_suffix('}')) {
        Some(name) => name.to_uppercase().replace(['.', '-'], "_"),
        None => "DATABASE_PASSWORD".to_owned(),
    };
    let (schema, table) = table.rsplit_once('.').unwrap_or(("", &table));
    let mut text = format!(
        "url = \"{scheme}://{user}:${{{secret}}}@{host}:{port}/{database}\"\ntable = {table:?}\n"
    );
    if !schema.is_empty() && scheme == "postgres" {
        text += &format!("schema = {schema:?}\n");
    }
    let columns = columns(properties);
    text += &match columns.is_empty() {
        true => "columns = \"debezium\"\n".to_owned(),
        false => format!("columns = {{ preset = \"debezium\"{columns} }}\n"),
    };
    Ok(text)
}

/// Columns with names of their own.
fn columns(properties: &mut Properties) -> String {
    const ROUTER: &str = "debezium.transforms.outbox.";
    const COLUMNS: &[(&str, &str, &str)] = &[
        ("table.field.event.id", "id", "id"),
        ("table.field.event.key", "aggregate_id", "aggregateid"),
        ("table.field.event.type", "event_type", "type"),
        ("table.field.event.payload", "payload", "payload"),
        ("table.field.event.timestamp", "created_at", ""),
        ("route.by.field", "aggregate_type", "aggregatetype"),
    ];
    let mut text = String::new();
    for (property, key, usual) in COLUMNS {
        let column = properties.take(&format!("{ROUTER}{property}"));
        if let Some(column) = column.filter(|column| column != usual) {
            text += &format!(", {key} = {column:?}");
        }
    }
    text
}

fn topic(properties: &mut Properties) -> String {
    let replacement = properties.take("debezium.transforms.outbox.route.topic.replacement");
    match replacement {
        Some(topic) if topic.contains("${routedByValue}") => {
            format!("topic = {:?}\n", topic.replace("${routedByValue}", "{aggregate_type}"))
        }
        Some(topic) => format!("topic = {topic:?}\n"),
        None => {
            "# topic = \"outbox.event.{aggregate_type}\"   # that is the default of this routing\n"
                .to_owned()
        }
    }
}

fn sink(properties: &mut Properties) -> Result<String, Failure> {
    let kind = properties.take("debezium.sink.type").unwrap_or_default();
    let mut said = |key: &str, default: &str| {
        properties.take(&format!("debezium.sink.{key}")).unwrap_or_else(|| default.to_owned())
    };
    Ok(match kind.as_str() {
        "kafka" => {
            let brokers = said("kafka.producer.bootstrap.servers", "127.0.0.1:9092");
            format!("type = \"kafka\"\nbrokers = {brokers:?}\n")
        }
        "nats-jetstream" => {
            let url = said("nats-jetstream.url", "nats://127.0.0.1:4222");
            let subjects = said("nats-jetstream.subjects", "outbox.event.*");
            let stream = match said("nats-jetstream.create-stream", "false").as_str() {
                "true" => {
                    format!("create_stream = {{ name = \"events\", subjects = [{subjects:?}] }}\n")
                }
                _ => String::new(),
            };
            format!("type = \"nats\"\nurl = {url:?}\n{stream}")
        }
        "redis" => {
            let address = said("redis.address", "127.0.0.1:6379");
            let user = said("redis.user", "");
            let password = said("redis.password", "");
            let who = match (user.is_empty(), password.is_empty()) {
                (true, true) => String::new(),
                _ => format!("{user}:${{REDIS_PASSWORD}}@"),
            };
            format!("type = \"redis\"\nurl = \"redis://{who}{address}\"\n")
        }
        "rabbitmq" => {
            let host = said("rabbitmq.connection.host", "127.0.0.1");
            let port = said("rabbitmq.connection.port", "5672");
            let user = said("rabbitmq.connection.username", "guest");
            said("rabbitmq.connection.password", "");
            let exchange = said("rabbitmq.exchange", "");
            let exchange = match exchange.is_empty() {
                true => String::new(),
                false => format!("exchange = {exchange:?}\n"),
            };
            let url = format!("amqp://{user}:${{RABBITMQ_PASSWORD}}@{host}:{port}");
            format!("type = \"rabbitmq\"\nurl = {url:?}\n{exchange}")
        }
        "http" => {
            let url = said("http.url", "https://example.com/events");
            format!("type = \"webhook\"\nurl = {url:?}\n")
        }
        other => {
            let what = format!("no sink that semel has: {other:?}");
            return Err(Failure::misconfigured("E-INIT-SINK", what).with_fix(
                "write the file with `semel init` alone, and the sink by hand: `semel relay --help`",
            ));
        }
    })
}

/// `key=value` lines, and which of them were used.
struct Properties {
    all: BTreeMap<String, String>,
    used: BTreeSet<String>,
}

impl Properties {
    fn read(text: &str) -> Self {
        let mut all = BTreeMap::new();
        let joined = text.replace("\\\r\n", "").replace("\\\n", "");
        for line in joined.lines().map(str::trim) {
            if line.starts_with(['#', '!']) {
                continue;
            }
            if let Some((key, value)) = line.split_once(['=', ':']) {
                all.insert(key.trim().to_owned(), value.trim().to_owned());
            }
        }
        Self { all, used: BTreeSet::new() }
    }

    fn take(&mut self, key: &str) -> Option<String> {
        self.used.insert(key.to_owned());
        self.all.get(key).filter(|value| !value.is_empty()).cloned()
    }

    fn ignore(&mut self, prefixes: &[&str]) {
        let is_meant = |key: &&String| prefixes.iter().any(|prefix| key.starts_with(prefix));
        let keys: Vec<_> = self.all.keys().filter(is_meant).cloned().collect();
        self.used.extend(keys);
    }

    /// What nobody asked for; values only where they are no secret.
    fn left(&self) -> Vec<String> {
        let is_secret = |key: &str| {
            ["password", "secret", "token", "jaas", "credential", "key"]
                .iter()
                .any(|word| key.to_lowercase().contains(word))
        };
        self.all
            .iter()
            .filter(|(key, _)| !self.used.contains(*key))
            .map(|(key, value)| match is_secret(key) {
                true => format!("{key} = ***"),
                false => format!("{key} = {value}"),
            })
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SERVER: &str = "\
# comment
debezium.source.connector.class=io.debezium.connector.postgresql.PostgresConnector
debezium.source.offset.storage.file.filename=data/offsets.dat
debezium.source.database.hostname=db1
debezium.source.database.user=shop
debezium.source.database.password=hunter2
debezium.source.database.dbname=shop
debezium.source.table.include.list=sales.outbox_events
debezium.source.snapshot.mode=never
debezium.transforms=outbox
debezium.transforms.outbox.type=io.debezium.transforms.outbox.EventRouter
debezium.transforms.outbox.table.field.event.key=order_id
debezium.transforms.outbox.route.topic.replacement=shop.${routedByValue}
debezium.sink.type=kafka
debezium.sink.kafka.producer.bootstrap.servers=k1:9092,k2:9092
debezium.sink.kafka.producer.sasl.jaas.config=hunter2
";

    #[test]
    fn an_outbox_of_debezium_becomes_a_pipeline() {
        let Converted { configuration, left } = convert(SERVER).ok().unwrap();
        let parsed: toml::Table = configuration.parse().unwrap();
        let (source, pipeline) = (&parsed["source"]["outbox"], &parsed["pipeline"]["outbox"]);
        let url = "postgres://shop:${DATABASE_PASSWORD}@db1:5432/shop";
        assert_eq!(source["url"].as_str(), Some(url));
        assert_eq!(
            (source["table"].as_str(), source["schema"].as_str()),
            (Some("outbox_events"), Some("sales"))
        );
        assert_eq!(source["columns"]["aggregate_id"].as_str(), Some("order_id"));
        assert_eq!(pipeline["topic"].as_str(), Some("shop.{aggregate_type}"));
        assert_eq!(parsed["sink"]["out"]["brokers"].as_str(), Some("k1:9092,k2:9092"));
        let expected = [
            "debezium.sink.kafka.producer.sasl.jaas.config = ***",
            "debezium.source.snapshot.mode = never",
        ];
        assert_eq!(left, expected);
        assert!(!configuration.contains("hunter2"));
    }

    #[test]
    fn what_cannot_be_replaced_is_refused() {
        let oracle = SERVER.replace("PostgresConnector", "OracleConnector");
        let pulsar = SERVER.replace("type=kafka", "type=pulsar");
        for (text, code) in [(oracle, "E-INIT-CONNECTOR"), (pulsar, "E-INIT-SINK")] {
            let failure = convert(&text).err().unwrap();
            assert_eq!(failure.code(), code);
            assert!(failure.fix().is_some());
        }
    }
}
