//! What the documentation says that holds, where nothing is said, is what does hold. Of the proxy this
//! is shown beside its settings.

use semel_backends::postgres::PostgresConfig;

use super::super::documented;
use super::*;

#[test]
fn a_documented_default_said_aloud_changes_nothing() {
    let mut count = 0;
    for (path, variant, key, value) in documented() {
        // No key is the aggregate id: shown by the tests of routing.
        let is_key = (path.as_str(), key.as_str()) == ("pipeline.NAME", "key");
        if path.starts_with("test") || path.starts_with("proxy") || is_key {
            continue;
        }
        let line = format!("{key} = {value}\n");
        let [silent, aloud] = ["", &line].map(|line| told(&text(&path, variant, &key, line)));
        assert_eq!(silent, aloud, "[{path}] {variant:?} {line}");
        count += 1;
    }
    assert!(count > 50, "only {count} defaults are values");
}

/// A configuration with this line where it belongs.
fn text(path: &str, variant: Option<&str>, key: &str, line: &str) -> String {
    let mut source = "url = \"postgres://localhost/shop\"\n".to_owned();
    let mut sink = sink(variant.unwrap_or("stdout"));
    // AWS takes no topic that is like the usual one.
    let topic = match variant {
        Some("sqs") => "topic = \"orders\"\n",
        Some("sns") => "topic = \"arn:aws:sns:eu-central-1:123456789012:orders\"\n",
        _ => "",
    };
    let (mut pipeline, mut end) = (topic.to_owned(), String::new());
    match path {
        "source.NAME" => source += line,
        "source.NAME.columns" => {
            let table = "table = \"o\"\n[source.orders.columns]\npreset = \"polling-publisher\"\n";
            source += &format!("{table}{line}");
        }
        "sink.NAME" => sink += line,
        // A leader has no shares.
        "pipeline.NAME" if key == "shares" => {
            pipeline = format!("coordination = \"partitioned\"\n{line}");
        }
        "pipeline.NAME" => pipeline += line,
        "pipeline.NAME.retry" => pipeline = format!("[pipeline.orders.retry]\n{line}"),
        section if !section.contains('.') => end = format!("[{section}]\n{line}"),
        _ => panic!("where does {key} of [{path}] belong?"),
    }
    format!(
        "[source.orders]\n{source}[sink.out]\n{sink}[pipeline.orders]\nfrom = \"orders\"\n\
         to = \"out\"\n{pipeline}{end}"
    )
}

/// What a sink of this type cannot do without.
fn sink(kind: &str) -> String {
    let needed = match kind {
        "file" => "path = \"events.ndjson\"\n",
        "kafka" => "brokers = \"localhost:9092\"\n",
        "rabbitmq" => "url = \"amqp://localhost\"\n",
        "nats" => "url = \"nats://localhost\"\n",
        // Its default is another one every time.
        "mqtt" => "url = \"mqtt://localhost\"\nclient_id = \"relay\"\n",
        "redis" => "url = \"redis://localhost\"\n",
        "webhook" => "url = \"https://example.com/\"\n",
        _ => "",
    };
    format!("type = {kind:?}\n{needed}")
}

/// Everything that follows from a configuration.
fn told(text: &str) -> String {
    let config = parse(text).unwrap_or_else(|mistakes| panic!("{text}\n{:?}", mistakes.lines()));
    let Pipeline { source, sinks, routing, settings, team, .. } = &config.pipelines[0];
    let server = PostgresConfig::new("postgres://localhost/shop").unwrap();
    let budget = source.following.log_budget;
    let server = budget.into_iter().fold(server, PostgresConfig::log_budget);
    let source =
        (server, source.notify, source.following.mode, source.messages.is_some(), &source.mapping);
    format!(
        "{source:#?} {sinks:#?} {routing:#?} {settings:#?} {team:#?} {:#?} {:#?}",
        config.retention, config.http
    )
}
