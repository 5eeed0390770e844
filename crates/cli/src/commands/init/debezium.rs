//! From the `application.properties` of Debezium Server with its outbox router.

use semel_core::Failure;

use super::properties::Properties;

/// What could be converted, and what could not.
pub(super) struct Converted {
    pub(super) configuration: String,
    /// Of the database, as the configuration has it.
    pub(super) url: String,
    /// The names of settings without a counterpart.
    pub(super) left: Vec<String>,
    /// Variables that stand for what was not copied, each with the setting that has it.
    pub(super) withheld: Vec<(String, String)>,
}

/// The same outbox, the same topics, the same broker.
pub(super) fn convert(text: &str) -> Result<Converted, Failure> {
    let mut properties = Properties::read(text);
    let router = router(&mut properties);
    let (url, source) = source(&mut properties, &router)?;
    let sink = sink(&mut properties)?;
    let topic = topic(&mut properties, &router);
    properties.ignore(&["quarkus.", "debezium.format.", "debezium.source.offset."]);
    for key in SETTLED {
        properties.take(key);
    }
    for key in SETTLED_OF_ROUTER {
        properties.take(&format!("{router}{key}"));
    }
    let left = properties.left();
    let withheld = properties.withheld();
    let mut configuration = format!(
        "# Made from the application.properties of Debezium Server. The rows of a mapped table are\n\
         # deleted once they are published; semel migrate up makes the two tables beside it.\n{}\n\
         [source.outbox]\nurl = {url:?}\n{source}\n[sink.out]\n{sink}\n[pipeline.outbox]\nfrom = \"outbox\"\n\
         to = \"out\"\nrouting = \"debezium\"\n{topic}",
        to_be_set(&withheld)
    );
    if !left.is_empty() {
        configuration += "\n# Without a counterpart here:\n";
        left.iter().for_each(|name| configuration += &format!("#   {name}\n"));
    }
    Ok(Converted { configuration, url, left, withheld })
}

/// Says where the secrets went.
fn to_be_set(withheld: &[(String, String)]) -> String {
    if withheld.is_empty() {
        return String::new();
    }
    let line =
        |(variable, key): &(String, String)| format!("#   {variable} = the value of {key}\n");
    let lines: String = withheld.iter().map(line).collect();
    format!(
        "#\n# What may be a secret was not copied. Set these variables, or write url_file = \"PATH\" instead\n\
         # of a url (in a part of a URL, @ is %40, : is %3A, / is %2F and % is %25):\n{lines}"
    )
}

/// What semel does anyway, or decides itself.
const SETTLED: &[&str] = &[
    "debezium.transforms",
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

/// The same of the router.
const SETTLED_OF_ROUTER: &[&str] = &["type", "table.expand.json.payload"];

/// How the settings of the outbox router begin: its name is the user's own.
fn router(properties: &mut Properties) -> String {
    const USUAL: &str = "outbox";
    let names = properties.take("debezium.transforms").unwrap_or_default();
    let mut prefixes = names.split(',').map(|name| format!("debezium.transforms.{}.", name.trim()));
    let is_router = |prefix: &String| {
        let class = properties.get(&format!("{prefix}type")).unwrap_or_default();
        class.rsplit('.').next() == Some("EventRouter")
    };
    prefixes.find(is_router).unwrap_or_else(|| format!("debezium.transforms.{USUAL}."))
}

/// Schema and name of the one table; several, or a pattern for them, name no outbox.
fn table(properties: &mut Properties) -> Result<(String, String), Failure> {
    const KEY: &str = "debezium.source.table.include.list";
    let Some(included) = properties.take(KEY) else {
        return Ok(("public".to_owned(), "outbox".to_owned()));
    };
    // A dot that stands for itself is often escaped, in the file once more.
    let plain = included.replace("\\\\.", ".").replace("\\.", ".");
    let is_name = |part: &str| {
        !part.is_empty() && part.chars().all(|c| c.is_alphanumeric() || "_-$".contains(c))
    };
    let (schema, table) = plain.split_once('.').unwrap_or(("", &plain));
    if is_name(table) && (schema.is_empty() || is_name(schema)) {
        return Ok((schema.to_owned(), table.to_owned()));
    }
    let what = format!("{KEY} does not name one table: it is a list or a pattern");
    Err(Failure::misconfigured("E-INIT-TABLE", what).with_fix(
        "leave only the outbox in it, as SCHEMA.TABLE, and run this again; another outbox is another \
         [source.NAME] and [pipeline.NAME]",
    ))
}

/// The URL, and what else there is to say.
fn source(properties: &mut Properties, router: &str) -> Result<(String, String), Failure> {
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
    let key = "debezium.source.database.hostname";
    let host = properties.hosts(key, "127.0.0.1", "DATABASE_HOST");
    let mut said = |key: &str, default: &str, variable: &str| {
        properties.name(&format!("debezium.source.{key}"), default, variable)
    };
    let port = said("database.port", port, "DATABASE_PORT");
    let user = said("database.user", "semel", "DATABASE_USER");
    let included = said("database.include.list", "shop", "DATABASE_NAME");
    let database = said("database.dbname", &included, "DATABASE_NAME");
    let password = properties.secret("debezium.source.database.password", "DATABASE_PASSWORD");
    let (schema, table) = table(properties)?;
    let url = format!("{scheme}://{user}:{password}@{host}:{port}/{database}");
    let mut text = format!("table = {table:?}\n");
    if !schema.is_empty() && scheme == "postgres" {
        text += &format!("schema = {schema:?}\n");
    }
    let columns = columns(properties, router);
    text += &match columns.is_empty() {
        true => "columns = \"debezium\"\n".to_owned(),
        false => format!("columns = {{ preset = \"debezium\"{columns} }}\n"),
    };
    Ok((url, text))
}

/// Columns with names of their own.
fn columns(properties: &mut Properties, router: &str) -> String {
    const COLUMNS: &[(&str, &str, &str)] = &[
        ("table.field.event.id", "id", "id"),
        ("table.field.event.key", "aggregate_id", "aggregateid"),
        ("table.field.event.type", "event_type", "type"),
        ("table.field.event.payload", "payload", "payload"),
        ("table.field.event.timestamp", "created_at", ""),
        ("route.by.field", "aggregate_type", "aggregatetype"),
    ];
    let (mut text, mut mapped) = (String::new(), Vec::new());
    for (property, key, usual) in COLUMNS {
        let column = properties.take(&format!("{router}{property}"));
        let column = column.unwrap_or_else(|| (*usual).to_owned());
        if column != *usual {
            text += &format!(", {key} = {column:?}");
        }
        mapped.push(column);
    }
    let placement = format!("{router}table.fields.additional.placement");
    if properties.get(&placement).is_some_and(|value| are_headers_anyway(value, &mapped)) {
        properties.take(&placement);
    }
    text
}

/// Whatever is not mapped is a header with the name of its column; another name, or a place in the
/// payload, is not to be had.
fn are_headers_anyway(placement: &str, mapped: &[String]) -> bool {
    placement.split(',').all(|one| {
        let column = one.trim().strip_suffix(":header");
        column.is_some_and(|column| !column.contains(':') && mapped.iter().all(|it| it != column))
    })
}

fn topic(properties: &mut Properties, router: &str) -> String {
    let replacement = properties.take(&format!("{router}route.topic.replacement"));
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
    Ok(match kind.as_str() {
        "kafka" => {
            let key = "debezium.sink.kafka.producer.bootstrap.servers";
            let brokers = properties.hosts(key, "127.0.0.1:9092", "KAFKA_BROKERS");
            format!("type = \"kafka\"\nbrokers = {brokers:?}\n")
        }
        "nats-jetstream" => nats(properties),
        "redis" => redis(properties),
        "rabbitmq" => rabbitmq(properties),
        "http" => {
            let example = "https://example.com/events";
            let url = properties.urls("debezium.sink.http.url", example, "WEBHOOK_URL");
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

fn nats(properties: &mut Properties) -> String {
    let key = "debezium.sink.nats-jetstream.url";
    let url = properties.urls(key, "nats://127.0.0.1:4222", "NATS_URL");
    let subjects = properties.take("debezium.sink.nats-jetstream.subjects");
    let subjects = subjects.unwrap_or_else(|| "outbox.event.*".to_owned());
    let stream = match properties.take("debezium.sink.nats-jetstream.create-stream").as_deref() {
        Some("true") => {
            format!("create_stream = {{ name = \"events\", subjects = [{subjects:?}] }}\n")
        }
        _ => String::new(),
    };
    format!("type = \"nats\"\nurl = {url:?}\n{stream}")
}

fn redis(properties: &mut Properties) -> String {
    let key = "debezium.sink.redis.address";
    let address = properties.hosts(key, "127.0.0.1:6379", "REDIS_ADDRESS");
    let user = properties.name("debezium.sink.redis.user", "", "REDIS_USER");
    let key = "debezium.sink.redis.password";
    let who = match properties.has(key) || !user.is_empty() {
        true => format!("{user}:{}@", properties.secret(key, "REDIS_PASSWORD")),
        false => String::new(),
    };
    format!("type = \"redis\"\nurl = \"redis://{who}{address}\"\n")
}

fn rabbitmq(properties: &mut Properties) -> String {
    let key = "debezium.sink.rabbitmq.connection.host";
    let host = properties.hosts(key, "127.0.0.1", "RABBITMQ_HOST");
    let mut said = |key: &str, default: &str, variable: &str| {
        properties.name(&format!("debezium.sink.rabbitmq.connection.{key}"), default, variable)
    };
    let port = said("port", "5672", "RABBITMQ_PORT");
    let user = said("username", "guest", "RABBITMQ_USER");
    let password =
        properties.secret("debezium.sink.rabbitmq.connection.password", "RABBITMQ_PASSWORD");
    let exchange = match properties.take("debezium.sink.rabbitmq.exchange") {
        Some(exchange) => format!("exchange = {exchange:?}\n"),
        None => String::new(),
    };
    let url = format!("amqp://{user}:{password}@{host}:{port}");
    format!("type = \"rabbitmq\"\nurl = {url:?}\n{exchange}")
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
        let Converted { configuration, url: shown, left, withheld } = convert(SERVER).ok().unwrap();
        let parsed: toml::Table = configuration.parse().unwrap();
        let (source, pipeline) = (&parsed["source"]["outbox"], &parsed["pipeline"]["outbox"]);
        let url = "postgres://shop:${DATABASE_PASSWORD}@db1:5432/shop";
        assert_eq!((source["url"].as_str(), &*shown), (Some(url), url));
        assert_eq!(
            (source["table"].as_str(), source["schema"].as_str()),
            (Some("outbox_events"), Some("sales"))
        );
        assert_eq!(source["columns"]["aggregate_id"].as_str(), Some("order_id"));
        assert_eq!(pipeline["topic"].as_str(), Some("shop.{aggregate_type}"));
        assert_eq!(parsed["sink"]["out"]["brokers"].as_str(), Some("k1:9092,k2:9092"));
        let expected =
            ["debezium.sink.kafka.producer.sasl.jaas.config", "debezium.source.snapshot.mode"];
        assert_eq!(left, expected);
        let password = ("DATABASE_PASSWORD", "debezium.source.database.password");
        assert_eq!(withheld, [(password.0.to_owned(), password.1.to_owned())]);
        assert!(!configuration.contains("hunter2"));
    }

    #[test]
    fn what_cannot_be_replaced_is_refused() {
        let oracle = SERVER.replace("PostgresConnector", "OracleConnector");
        let pulsar = SERVER.replace("type=kafka", "type=pulsar");
        let mut cases = vec![(oracle, "E-INIT-CONNECTOR"), (pulsar, "E-INIT-SINK")];
        for tables in
            ["sales.outbox,sales.orders", "sales\\.(.*)", "sales.out.*", "a.b.c", "sales."]
        {
            cases.push((SERVER.replace("sales.outbox_events", tables), "E-INIT-TABLE"));
        }
        for (text, code) in cases {
            let failure = convert(&text).err().unwrap();
            assert_eq!(failure.code(), code, "{text}");
            assert!(failure.fix().is_some());
        }
    }

    #[test]
    fn columns_that_are_headers_anyway_are_not_listed() {
        let key = "debezium.transforms.outbox.table.fields.additional.placement";
        let cases = [
            ("region:header", false),
            ("region:header, tenant:header", false),
            ("region:header:place", true),
            ("region:envelope", true),
            ("type:header", true),
            ("order_id:header", true),
        ];
        for (placement, is_listed) in cases {
            let converted = convert(&format!("{SERVER}{key}={placement}\n")).ok().unwrap();
            assert_eq!(converted.left.contains(&key.to_owned()), is_listed, "{placement}");
        }
    }

    #[test]
    fn a_dot_that_is_escaped_is_a_dot() {
        for tables in ["sales\\.outbox_events", "sales\\\\.outbox_events"] {
            let text = SERVER.replace("sales.outbox_events", tables);
            let converted = convert(&text).ok().unwrap().configuration;
            assert_eq!(converted, convert(SERVER).ok().unwrap().configuration);
        }
    }

    #[test]
    fn the_router_has_a_name_of_its_users_own() {
        let named = SERVER.replace("transforms=outbox", "transforms=unwrap, events");
        let named = named.replace("transforms.outbox.", "transforms.events.")
            + "debezium.transforms.unwrap.type=io.debezium.transforms.ExtractNewRecordState\n";
        let Converted { configuration, left, .. } = convert(&named).ok().unwrap();
        let parsed: toml::Table = configuration.parse().unwrap();
        let columns = &parsed["source"]["outbox"]["columns"];
        assert_eq!(columns["aggregate_id"].as_str(), Some("order_id"));
        let topic = parsed["pipeline"]["outbox"]["topic"].as_str();
        assert_eq!(topic, Some("shop.{aggregate_type}"));
        let expected = [
            "debezium.sink.kafka.producer.sasl.jaas.config",
            "debezium.source.snapshot.mode",
            "debezium.transforms.unwrap.type",
        ];
        assert_eq!(left, expected);
    }
}
