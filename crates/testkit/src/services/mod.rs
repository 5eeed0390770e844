//! Where the servers are that tests need: one environment variable each, set by `./dev services`.

mod private;

pub use private::Private;

use std::env;
use std::fs::OpenOptions;
use std::io::{self, Write as _};
use std::path::PathBuf;
use std::thread;

/// A server that tests need.
///
/// ```
/// # use semel_testkit::services::Service;
/// assert_eq!(Service::Kafka.variable(), "SEMEL_TEST_KAFKA_BROKERS");
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Service {
    /// PostgreSQL.
    Postgres,
    /// `PgBouncer` in transaction mode, in front of that PostgreSQL.
    Pgbouncer,
    /// MySQL or MariaDB.
    Mysql,
    /// Redis.
    Redis,
    /// RabbitMQ.
    Rabbitmq,
    /// NATS with JetStream.
    Nats,
    /// An MQTT broker.
    Mqtt,
    /// Apache Kafka.
    Kafka,
    /// A server that speaks like AWS.
    Aws,
}

impl Service {
    /// All of them.
    pub const ALL: [Self; 9] = [
        Self::Postgres,
        Self::Pgbouncer,
        Self::Mysql,
        Self::Redis,
        Self::Rabbitmq,
        Self::Nats,
        Self::Mqtt,
        Self::Kafka,
        Self::Aws,
    ];

    /// The environment variable that holds its address.
    #[must_use]
    pub const fn variable(self) -> &'static str {
        match self {
            Self::Postgres => "SEMEL_TEST_POSTGRES_URL",
            Self::Pgbouncer => "SEMEL_TEST_PGBOUNCER_URL",
            Self::Mysql => "SEMEL_TEST_MYSQL_URL",
            Self::Redis => "SEMEL_TEST_REDIS_URL",
            Self::Rabbitmq => "SEMEL_TEST_RABBITMQ_URL",
            Self::Nats => "SEMEL_TEST_NATS_URL",
            Self::Mqtt => "SEMEL_TEST_MQTT_URL",
            Self::Kafka => "SEMEL_TEST_KAFKA_BROKERS",
            Self::Aws => "SEMEL_TEST_AWS_URL",
        }
    }

    /// The name as people write it.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Postgres => "postgres",
            Self::Pgbouncer => "pgbouncer",
            Self::Mysql => "mysql",
            Self::Redis => "redis",
            Self::Rabbitmq => "rabbitmq",
            Self::Nats => "nats",
            Self::Mqtt => "mqtt",
            Self::Kafka => "kafka",
            Self::Aws => "aws",
        }
    }
}

/// The address of a server, or nothing: then the calling test must return at once.
///
/// A missing server is never silent: it is printed, and counted in the file that
/// `SEMEL_TEST_SKIP_LOG` names, one line `test<TAB>service<TAB>reason` each.
///
/// ```no_run
/// # use semel_testkit::services::{Service, service};
/// let Some(url) = service(Service::Postgres) else { return };
/// println!("connecting to {url}");
/// ```
///
/// # Panics
/// When `CI` is `true`: there, a test that cannot run has failed.
#[must_use]
pub fn service(service: Service) -> Option<String> {
    let address = env::var(service.variable()).ok().filter(|address| !address.trim().is_empty());
    if address.is_none() {
        report_missing(service.as_str(), &format!("{} is not set", service.variable()));
    }
    address
}

/// A Python that has clients of the brokers, to read back with code that is not ours; nothing when
/// there is none, which is reported as by [`service()`].
///
/// ```no_run
/// # use semel_testkit::services::python;
/// let Some(python) = python() else { return };
/// std::process::Command::new(python).args(["-c", "import pika"]).status().unwrap();
/// ```
///
/// # Panics
/// When `CI` is `true` and there is none.
#[must_use]
pub fn python() -> Option<String> {
    const VARIABLE: &str = "SEMEL_TEST_PYTHON";
    let path = env::var(VARIABLE).ok().filter(|path| !path.trim().is_empty());
    if path.is_none() {
        report_missing("python clients", &format!("{VARIABLE} is not set"));
    }
    path
}

/// Whether a skipped test is a failed one.
pub(crate) fn in_ci() -> bool {
    env::var("CI").is_ok_and(|value| value == "true")
}

/// Prints past the test harness, which hides what passing tests print.
pub(crate) fn announce(line: &str) {
    // In one piece, so that lines of parallel tests do not mix; a closed stderr fails no test.
    let _ = io::stderr().write_all(format!("{line}\n").as_bytes());
}

/// The driver of a real browser, by the W3C protocol; nothing when there is none, which is reported as
/// by [`service()`].
///
/// ```no_run
/// # use semel_testkit::services::browser_driver;
/// let Some(driver) = browser_driver() else { return };
/// std::process::Command::new(driver).arg("--port=0").spawn().unwrap();
/// ```
///
/// # Panics
/// When `CI` is `true` and there is none.
#[must_use]
pub fn browser_driver() -> Option<PathBuf> {
    program("chromium", "chromedriver")
}

/// A program that runs another at a time of day of one's own; nothing when there is none, which is
/// reported as by [`service()`].
///
/// ```no_run
/// # use semel_testkit::services::faketime;
/// let Some(faketime) = faketime() else { return };
/// std::process::Command::new(faketime).args(["-f", "+10m", "date"]).status().unwrap();
/// ```
///
/// # Panics
/// When `CI` is `true` and there is none.
#[must_use]
pub fn faketime() -> Option<PathBuf> {
    program("faketime", "faketime")
}

fn program(package: &str, name: &str) -> Option<PathBuf> {
    let path = env::var_os("PATH").unwrap_or_default();
    let mut files = env::split_paths(&path).map(|folder| folder.join(name));
    let found = files.find(|file| file.exists());
    if found.is_none() {
        report_missing(package, &format!("there is no {name}"));
    }
    found
}

fn report_missing(what: &str, reason: &str) {
    let here = thread::current();
    let test = here.name().unwrap_or("(unnamed)");
    announce(&format!("SKIPPED {test}: {what} ({reason})"));
    if let Some(path) = env::var_os("SEMEL_TEST_SKIP_LOG") {
        let line = format!("{test}\t{what}\t{reason}\n");
        OpenOptions::new()
            .create(true)
            .append(true)
            .open(path)
            .and_then(|mut log| log.write_all(line.as_bytes()))
            .expect("SEMEL_TEST_SKIP_LOG names a file that can be written");
    }
    assert!(!in_ci(), "{test} needs {what}: {reason}");
}
