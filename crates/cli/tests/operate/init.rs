//! `semel init`.

use std::fs;

use super::secrets::{MARKER, is_silent};
use crate::shop::{Shop, all};

#[test]
fn a_first_configuration_is_right_and_never_overwrites() {
    let shop = Shop::new();
    fs::remove_file(shop.file("semel.toml")).unwrap();
    let mut command = shop.command(&["init"]);
    let output = command.env("DATABASE_URL", "sqlite://shop.db").output().unwrap();
    assert!(output.status.success(), "{}", all(&output));
    let told = String::from_utf8(output.stdout).unwrap();
    assert!(told.contains("SQLite (from $DATABASE_URL)"), "{told}");
    assert!(told.contains("semel migrate up --database \"${DATABASE_URL}\"\n"), "{told}");

    // What goes on here beside it decides about the sink, so let it be a file.
    let text = shop.read("semel.toml");
    let begin = text.find("type = ").unwrap();
    let end = text.find("[pipeline.orders]").unwrap();
    let sink = "type = \"file\"\npath = \"events.ndjson\"\n\n";
    fs::write(shop.file("semel.toml"), format!("{}{sink}{}", &text[..begin], &text[end..]))
        .unwrap();
    shop.insert_of_type("42", "OrderPlaced");
    for arguments in [&["config", "check"][..], &["config", "test"], &["relay", "--drain"]] {
        let output =
            shop.command(arguments).env("DATABASE_URL", "sqlite://shop.db").output().unwrap();
        assert!(output.status.success(), "{}", all(&output));
    }
    assert_eq!(shop.published().len(), 1);

    let before = shop.read("semel.toml");
    let message = shop.refused(78, &["init"]);
    assert!(message.contains("E-INIT-EXISTS") && message.contains("--config"), "{message}");
    assert_eq!(shop.read("semel.toml"), before);
}

#[test]
fn a_configuration_of_debezium_server_is_converted() {
    let shop = Shop::new();
    let properties = "\
debezium.source.connector.class=io.debezium.connector.postgresql.PostgresConnector
debezium.source.database.hostname=db1
debezium.source.database.password=hunter2
debezium.source.snapshot.mode=never
debezium.transforms=outbox
debezium.transforms.outbox.type=io.debezium.transforms.outbox.EventRouter
debezium.sink.type=http
debezium.sink.http.url=https://example.com/events
";
    fs::write(shop.file("application.properties"), properties).unwrap();
    let from = ["init", "--from", "application.properties", "--config", "new.toml"];
    let told = shop.expect(0, &from);
    assert!(told.contains("  debezium.source.snapshot.mode\n"), "{told}");
    let url = "postgres://semel:${DATABASE_PASSWORD}@db1:5432/shop";
    assert!(told.contains(&format!("semel migrate up --database \"{url}\"\n")), "{told}");
    for variable in ["DATABASE_PASSWORD = the value of ", "WEBHOOK_URL = the value of "] {
        assert!(told.contains(variable) && shop.read("new.toml").contains(variable), "{told}");
    }
    assert!(!shop.read("new.toml").contains("hunter2"));
    let check = ["config", "check", "--config", "new.toml"];
    let mut command = shop.command(&check);
    let command = command.env("DATABASE_PASSWORD", "x").env("WEBHOOK_URL", "https://example.com/e");
    let output = command.output().unwrap();
    assert!(output.status.success(), "{}", all(&output));
}

/// What a file of Debezium may say of its source, with the marker wherever a secret may be.
const SOURCE: &str = "\
debezium.source.connector.class=io.debezium.connector.postgresql.PostgresConnector
debezium.source.database.hostname=me:MARKER@db1
debezium.source.database.user=me:MARKER
debezium.source.database.password=MARKER
debezium.source.database.dbname=shop?password=MARKER
debezium.source.schema.history.internal.kafka.bootstrap.servers=MARKER
debezium.source.notes=MARKER
debezium.source.driver.url jdbc:postgresql://MARKER
debezium.transforms.outbox.notes = MARKER
debezium.api.endpoint : https://me:MARKER@h
some.other=MARKER
MARKER
MARKER==
quarkus.http.auth=MARKER
";

/// The same of each sink.
const SINKS: &[(&str, &str)] = &[
    ("kafka", "kafka.producer.bootstrap.servers=me:MARKER@k1:9092\nkafka.producer.ssl=MARKER"),
    ("nats-jetstream", "nats-jetstream.url=nats://me:MARKER@n1:4222,nats://MARKER@n2:4222"),
    ("nats-jetstream", "nats-jetstream.url=nats://n1:4222/?token=MARKER\nnats-jetstream.x=MARKER"),
    ("redis", "redis.address=me:MARKER@r1:6379\nredis.user=me:MARKER\nredis.password=MARKER"),
    (
        "rabbitmq",
        "rabbitmq.connection.host=me:MARKER@q1\nrabbitmq.connection.username=me:MARKER\n\
         rabbitmq.connection.password=${RABBIT:MARKER}\nrabbitmq.connection.uri=amqp://me:MARKER@q",
    ),
    ("http", "http.url=https://me:MARKER@h/events\nhttp.headers.Authorization=MARKER"),
    ("http", "http.url=https://h/events?key=MARKER\nhttp.authentication.jwt.refresh=MARKER"),
    ("http", "http.url=https://h/MARKER"),
    ("http", "http.url=https://h#MARKER"),
];

#[test]
fn no_secret_of_debezium_server_is_copied_or_said() {
    let shop = Shop::new();
    for (number, (kind, lines)) in SINKS.iter().enumerate() {
        let lines: String = lines.lines().map(|line| format!("debezium.sink.{line}\n")).collect();
        let text = format!("{SOURCE}debezium.sink.type={kind}\n{lines}").replace("MARKER", MARKER);
        fs::write(shop.file("application.properties"), &text).unwrap();
        let file = format!("{number}.toml");
        let from = ["init", "--from", "application.properties", "--config", &file];
        is_silent(kind, &shop.command(&[&from[..], &["--dry-run"]].concat()).output().unwrap());
        let output = shop.command(&from).output().unwrap();
        assert!(output.status.success(), "{}", all(&output));
        is_silent(kind, &output);
        let written = shop.read(&file);
        assert!(!written.contains(MARKER), "{kind}: {written}");
        assert!(written.contains("#   debezium.source.notes\n"), "it is listed: {written}");
        // All that is missing is named, and nothing else is wrong.
        let mut check = shop.command(&["config", "check", "--config", &file]);
        for variable in named_variables(&written) {
            check.env(&variable, example(&variable));
        }
        let output = check.output().unwrap();
        assert!(output.status.success(), "{kind}: {}\n{written}", all(&output));
    }
}

fn named_variables(text: &str) -> Vec<String> {
    let named = text.lines().filter_map(|line| line.split_once(" = the value of debezium."));
    named.map(|(variable, _)| variable.trim_start_matches("# ").trim().to_owned()).collect()
}

fn example(variable: &str) -> &'static str {
    match variable {
        "NATS_URL" => "nats://n1:4222",
        "WEBHOOK_URL" => "https://example.com/events",
        "KAFKA_BROKERS" | "REDIS_ADDRESS" => "h1:9092",
        _ => "x",
    }
}
