//! Which database and which broker are there: those that the environment names, or those that
//! answer on their usual ports of this machine.

use std::time::Duration;

use tokio::net::TcpStream;
use tokio::time::timeout;

use crate::wiring::{DATABASES, SINKS};

/// What was found.
pub(super) struct Surroundings {
    database: Found<Database>,
    sink: Found<Broker>,
}

/// One of those we know, and how it was found; the first of them if none was.
struct Found<T: 'static> {
    what: &'static T,
    how: How,
}

enum How {
    Variable(&'static str),
    Port(u16),
    Assumed,
}

pub(super) struct Database {
    kind: &'static str,
    name: &'static str,
    schemes: &'static [&'static str],
    port: u16,
    url: &'static str,
}

pub(super) struct Broker {
    kind: &'static str,
    name: &'static str,
    variables: &'static [&'static str],
    port: u16,
    /// The lines of its section, with `{}` where its address goes.
    lines: &'static str,
    address: &'static str,
}

/// SQLite comes last: it is there for everyone.
const KNOWN_DATABASES: &[Database] = &[
    Database {
        kind: "postgres",
        name: "PostgreSQL",
        schemes: &["postgres://", "postgresql://"],
        port: 5432,
        url: "postgres://semel:${DATABASE_PASSWORD}@127.0.0.1:5432/shop",
    },
    Database {
        kind: "mysql",
        name: "MySQL or MariaDB",
        schemes: &["mysql://", "mariadb://"],
        port: 3306,
        url: "mysql://semel:${DATABASE_PASSWORD}@127.0.0.1:3306/shop",
    },
    Database {
        kind: "sqlite",
        name: "SQLite",
        schemes: &["sqlite://"],
        port: 0,
        url: "sqlite://shop.db",
    },
];

const KNOWN_BROKERS: &[Broker] = &[
    Broker {
        kind: "kafka",
        name: "Kafka",
        variables: &["KAFKA_BROKERS", "KAFKA_BOOTSTRAP_SERVERS"],
        port: 9092,
        lines: "brokers = \"{}\"\n# compression = \"zstd\"\n# delivery = \"exactly_once\"      \
                # each event once in the topic, for consumers that read committed\n",
        address: "127.0.0.1:9092",
    },
    Broker {
        kind: "rabbitmq",
        name: "RabbitMQ",
        variables: &["RABBITMQ_URL", "AMQP_URL", "CLOUDAMQP_URL"],
        port: 5672,
        lines: "url = \"{}\"\n# exchange = \"events\"              # without it, the topic is the \
                name of a queue\n",
        address: "amqp://guest:${RABBITMQ_PASSWORD:-guest}@127.0.0.1:5672",
    },
    Broker {
        kind: "nats",
        name: "NATS",
        variables: &["NATS_URL"],
        port: 4222,
        lines: "url = \"{}\"\n# The stream is made if there is none of its name.\n\
                create_stream = { name = \"events\", subjects = [\"*.events\"] }\n",
        address: "nats://127.0.0.1:4222",
    },
    Broker {
        kind: "redis",
        name: "Redis",
        variables: &["REDIS_URL"],
        port: 6379,
        lines: "url = \"{}\"\n# max_len = 1000000                # about so many entries are kept\n",
        address: "redis://127.0.0.1:6379",
    },
    Broker {
        kind: "mqtt",
        name: "MQTT",
        variables: &["MQTT_URL"],
        port: 1883,
        lines: "url = \"{}\"\n",
        address: "mqtt://127.0.0.1:1883",
    },
    Broker {
        kind: "file",
        name: "a file",
        variables: &[],
        port: 0,
        lines: "path = \"events.ndjson\"\n",
        address: "",
    },
];

impl Surroundings {
    pub(super) async fn look() -> Self {
        Self { database: find_database().await, sink: find_broker().await }
    }

    /// For who started it.
    pub(super) fn in_words(&self) -> String {
        let told = |what: &str, how: &How| match how {
            How::Variable(name) => format!("{what} (from ${name})"),
            How::Port(port) => format!("{what} (something answers on port {port})"),
            How::Assumed => format!("{what} (nothing else was found)"),
        };
        let database = told(self.database.what.name, &self.database.how);
        format!("database: {database}\nsink:     {}", told(self.sink.what.name, &self.sink.how))
    }

    /// Of the database, as the configuration has it, and as a shell understands it.
    pub(super) fn url(&self) -> String {
        let Found { what: database, how } = &self.database;
        match how {
            How::Variable(name) => format!("${{{name}}}"),
            _ => database.url.to_owned(),
        }
    }

    pub(super) fn configuration(&self) -> String {
        let database = self.database.what;
        let Found { what: sink, how } = &self.sink;
        let address = match how {
            How::Variable(name) => format!("${{{name}}}"),
            _ => sink.address.to_owned(),
        };
        let tailing = match database.kind {
            "sqlite" => "",
            _ => {
                "# mode = \"auto\"                      # the server's log where it may be read, \
                  polling otherwise\n"
            }
        };
        TEMPLATE
            .replace("{url}", &self.url())
            .replace("{tailing}", tailing)
            .replace("{type}", sink.kind)
            .replace("{lines}", &sink.lines.replace("{}", &address))
    }
}

const TEMPLATE: &str = "\
# semel.toml: what is written to the outbox is published.
# `semel config check` finds mistakes, `semel config show` says what holds, and
# `semel config schema` prints a JSON Schema for your editor.

[source.orders]                      # a database with an outbox: semel migrate up --database URL
url = \"{url}\"
# url_file = \"/run/secrets/url\"      # instead of url: the file that holds it
# poll_interval = \"100ms\"
{tailing}
[sink.out]                           # where events go: semel relay --help lists the types
type = \"{type}\"
{lines}
[pipeline.orders]                    # the way from one to the other
from = \"orders\"
to = \"out\"
topic = \"{aggregate_type}.events\"    # {aggregate_id}, {event_type}, {header.NAME|default:x} …
# retry = \"broker\"                   # at once, 1s, 5s, 30s, 2m; then a dead letter

[retention]                          # published events are deleted after
keep = \"7d\"

[http]                               # a page, its API, health and metrics, for this machine
listen = \"127.0.0.1:9464\"

[[test]]                             # semel config test
name = \"events of orders go to the topic of orders\"
given = { aggregate_type = \"order\", aggregate_id = \"7\", event_type = \"OrderPlaced\" }
expect = { topic = \"order.events\", key = \"7\", to = \"out\" }
";

async fn find_database() -> Found<Database> {
    let built: Vec<&'static Database> = KNOWN_DATABASES
        .iter()
        .filter(|known| DATABASES.iter().any(|kind| kind.name == known.kind))
        .collect();
    if let Some(url) = variable("DATABASE_URL") {
        let begins =
            |known: &&&Database| known.schemes.iter().any(|scheme| url.starts_with(scheme));
        if let Some(what) = built.iter().find(begins) {
            return Found { what, how: How::Variable("DATABASE_URL") };
        }
    }
    for what in built.iter().filter(|known| known.port > 0) {
        if answers(what.port).await {
            return Found { what, how: How::Port(what.port) };
        }
    }
    Found { what: &KNOWN_DATABASES[KNOWN_DATABASES.len() - 1], how: How::Assumed }
}

async fn find_broker() -> Found<Broker> {
    let built: Vec<&'static Broker> = KNOWN_BROKERS
        .iter()
        .filter(|known| SINKS.iter().any(|kind| kind.name == known.kind))
        .collect();
    for what in &built {
        if let Some(name) = what.variables.iter().find(|name| variable(name).is_some()) {
            return Found { what, how: How::Variable(name) };
        }
    }
    for what in built.iter().filter(|known| known.port > 0) {
        if answers(what.port).await {
            return Found { what, how: How::Port(what.port) };
        }
    }
    Found { what: &KNOWN_BROKERS[KNOWN_BROKERS.len() - 1], how: How::Assumed }
}

fn variable(name: &str) -> Option<String> {
    std::env::var(name).ok().filter(|value| !value.is_empty())
}

async fn answers(port: u16) -> bool {
    const PATIENCE: Duration = Duration::from_millis(300);
    matches!(timeout(PATIENCE, TcpStream::connect(("127.0.0.1", port))).await, Ok(Ok(_)))
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::Path;

    use super::*;
    use crate::config::Config;

    /// All that can be found makes a file that says what it means, and so does what stands in it as a comment.
    #[test]
    fn every_configuration_is_whole() {
        let folder = tempfile::tempdir().unwrap();
        for database in KNOWN_DATABASES {
            for sink in KNOWN_BROKERS {
                let found = Surroundings {
                    database: Found { what: database, how: How::Assumed },
                    sink: Found { what: sink, how: How::Port(sink.port) },
                };
                let text = found.configuration();
                let parsed: toml::Table = text.parse().unwrap();
                assert_eq!(parsed["sink"]["out"]["type"].as_str(), Some(sink.kind));
                assert_eq!(parsed["source"]["orders"]["url"].as_str(), Some(&*found.url()));
                assert_eq!(parsed["http"]["listen"].as_str(), Some("127.0.0.1:9464"));
                assert!(!text.contains("{}") && !text.contains("{url}"), "{text}");
                assert!(found.in_words().contains(sink.name));
                let is_built = DATABASES.iter().any(|kind| kind.name == database.kind)
                    && SINKS.iter().any(|kind| kind.name == sink.kind);
                if is_built {
                    holds(&text, folder.path());
                    holds(&uncommented(&text, folder.path()), folder.path());
                }
            }
        }
    }

    fn holds(text: &str, folder: &Path) {
        let text = text.replace("${DATABASE_PASSWORD}", "x");
        let path = folder.join("semel.toml");
        fs::write(&path, &text).unwrap();
        let config = Config::load(&path).unwrap_or_else(|why| panic!("{why:?}\n{text}"));
        assert_eq!((config.pipelines.len(), config.trials.len()), (1, 1), "{text}");
    }

    /// With every option that is a comment; that of a file takes the place of the line above it.
    fn uncommented(text: &str, folder: &Path) -> String {
        let file = folder.join("url");
        let mut lines: Vec<String> = Vec::new();
        for line in text.lines() {
            let option = line.strip_prefix("# ").filter(|rest| {
                rest.split_once(" = ").is_some_and(|(key, _)| !key.contains([' ', '`']))
            });
            match option {
                Some(option) if option.starts_with("url_file = ") => {
                    let url = lines.pop().unwrap();
                    let url = url.trim_start_matches("url = ").trim_matches('"');
                    fs::write(&file, url.replace("${DATABASE_PASSWORD}", "x")).unwrap();
                    lines.push(format!("url_file = {:?}", file.display().to_string()));
                }
                Some(option) => lines.push(option.to_owned()),
                None => lines.push(line.to_owned()),
            }
        }
        let left: Vec<_> = lines.iter().filter(|line| line.starts_with("# ")).collect();
        // What is left says what the file is, and of NATS where the stream comes from.
        assert!(left.len() <= 4, "{left:#?}");
        lines.join("\n")
    }
}
