//! What a configuration says, and what is said about one that is wrong.

#[cfg(feature = "full")]
mod defaults;
mod derived;
#[cfg(feature = "full")]
mod sinks;

use std::fs;
use std::time::Duration;

use semel_core::Schedule;
use semel_relay::OnDead;

use super::*;

const SMALLEST: &str = "[source.orders]
url = \"sqlite://${FILE}\"
[sink.out]
type = \"file\"
path = \"events.ndjson\"
[pipeline.orders]
from = \"orders\"
to = \"out\"
";

fn parse_with(text: &str, overrides: &[(&str, &str)]) -> Result<Config, Mistakes> {
    let variable = |name: &str| (name == "FILE").then(|| "shop.db".into());
    let owned = |(name, value): &(&str, &str)| ((*name).to_owned(), (*value).to_owned());
    let all = overrides.iter().map(owned).collect();
    parse_files(&[("f", text)], &Environment { variable: &variable, all })
}

fn parse_files(files: &[(&str, &str)], environment: &Environment<'_>) -> Result<Config, Mistakes> {
    let file = |(name, text): &(&str, &str)| File { name: (*name).into(), text: (*text).into() };
    let files = files.iter().map(file).collect();
    super::parse(files, environment, Config::read)
        .map(|(config, record, _)| config.with_fingerprints(&record))
}

fn parse(text: &str) -> Result<Config, Mistakes> {
    parse_with(text, &[])
}

fn mistakes(text: &str) -> Vec<String> {
    parse(text).unwrap_err().lines()
}

/// The only pipeline of the smallest file with more lines behind it.
fn pipeline(more: &str) -> Pipeline {
    parse(&format!("{SMALLEST}{more}")).unwrap().pipelines.remove(0)
}

#[test]
fn the_smallest_file_is_enough() {
    let config = parse(SMALLEST).unwrap();
    let [pipeline] = &config.pipelines[..] else { panic!("one pipeline") };
    assert_eq!((&*pipeline.name, &*pipeline.sinks[0].name), ("orders", "out"));
    assert_eq!(pipeline.source.url.reveal(), "sqlite://shop.db");
    let settings = &pipeline.settings;
    assert_eq!((settings.batch_events, settings.in_flight_events), (500, 1000));
    assert_eq!(settings.calls_at_once(), 4);
    assert_eq!(settings.poll_interval, Duration::from_millis(100));
    assert_eq!((&settings.schedule, settings.on_dead), (&Schedule::broker(), OnDead::ParkLane));
    assert_eq!(config.retention, None);
    assert!(config.pipeline(None).is_ok() && config.pipeline(Some("orders")).is_ok());
    assert!(config.pipeline(Some("order")).is_err());
}

#[test]
fn every_key_reaches_the_relay() {
    let text = SMALLEST.replace("[sink.out]", "poll_interval = \"2s\"\nbatch = 5_000\n[sink.out]");
    let text = text
        + "retry = { schedule = [\"0s\", \"3s\"], attempts = 4, on_dead = \"skip\" }
[limits]
in_flight_events = 6000
in_flight_bytes = \"1MiB\"
payload = \"512KiB\"
[retention]
keep = \"3d\"
every = \"5s\"
chunk = 10
";
    let config = parse(&text).unwrap();
    let pipeline = &config.pipelines[0];
    let settings = &pipeline.settings;
    assert_eq!((settings.batch_events, settings.in_flight_events), (5000, 6000));
    assert_eq!(settings.in_flight_bytes, 1 << 20);
    assert_eq!(settings.poll_interval, Duration::from_secs(2));
    let waits = [0, 3, 3, 3].map(Duration::from_secs).to_vec();
    assert_eq!((&settings.schedule, settings.on_dead), (&Schedule::new(waits), OnDead::SkipEvent));
    let (keep, when) = (Duration::from_secs(3 * 86_400), Deletion::Every(Duration::from_secs(5)));
    assert_eq!(config.retention, Some(Retention { keep, when, chunk: 10 }));
}

#[test]
fn defaults_follow_from_what_is_said() {
    let text = SMALLEST.replace("[sink.out]", "batch = 5000\n[sink.out]");
    assert_eq!(parse(&text).unwrap().pipelines[0].settings.in_flight_events, 5000);
    let text = SMALLEST.replace("[sink.out]", "batch = 1000\n[sink.out]");
    let wide = parse(&format!("{text}[limits]\nin_flight_events = 8000\n")).unwrap();
    assert_eq!(wide.pipelines[0].settings.calls_at_once(), 8, "all of them can be under way");
    assert_eq!(pipeline("retry = \"webhook\"").settings.schedule, Schedule::webhook());
    let skipping = pipeline("[pipeline.orders.retry]\nschedule = \"webhook\"\non_dead = \"skip\"");
    assert_eq!(skipping.settings.schedule, Schedule::webhook());
    assert_eq!(pipeline("retry.attempts = 1").settings.schedule.attempts(), 1);
    let config = parse(&format!("{SMALLEST}[retention]\n")).unwrap();
    assert_eq!(config.retention, Some(Retention::default()));
    let config = parse(&format!("{SMALLEST}[retention]\ndelete = \"on_publish\"\n")).unwrap();
    let (keep, when) = (Duration::ZERO, Deletion::OnPublish);
    assert_eq!(config.retention, Some(Retention { keep, when, chunk: 1000 }));
}

#[test]
fn the_environment_goes_before_the_file() {
    let text = SMALLEST.replace("[sink.out]", "[sink.Out-1]").replace("\"out\"", "\"Out-1\"");
    let config = parse_with(
        &text,
        &[
            ("SEMEL_SOURCE__ORDERS__URL", "sqlite://other ${FILE}.db"),
            ("SEMEL_SOURCE__ORDERS__BATCH", "7"),
            ("SEMEL_SINK__OUT_1__PATH", "elsewhere"),
            ("SEMEL_PIPELINE__ORDERS__RETRY__SCHEDULE", "0s, 9s"),
            ("SEMEL_RETENTION__KEEP", "1h"),
            ("SEMEL_LOG", "debug"),
            ("OTHER__X", "no"),
        ],
    );
    let config = config.unwrap();
    let pipeline = &config.pipelines[0];
    assert_eq!(pipeline.source.url.reveal(), "sqlite://other ${FILE}.db", "taken as it is");
    assert_eq!(pipeline.settings.batch_events, 7);
    let waits = [0, 9].map(Duration::from_secs).to_vec();
    assert_eq!(pipeline.settings.schedule, Schedule::new(waits));
    assert_eq!(config.retention.map(|each| each.keep), Some(Duration::from_secs(3600)));

    let whole = parse_with(
        "",
        &[
            ("SEMEL_SOURCE__A__URL", "sqlite://shop.db"),
            ("SEMEL_SINK__B__TYPE", "stdout"),
            ("SEMEL_PIPELINE__C__FROM", "a"),
            ("SEMEL_PIPELINE__C__TO", "b"),
        ],
    );
    assert_eq!(whole.unwrap().pipelines[0].name, "c");
}

#[test]
fn mistakes_of_the_environment_name_the_variable() {
    let cases = [
        (
            ("SEMEL_SOURCE__ORDERS__BATCH", "many"),
            "SEMEL_SOURCE__ORDERS__BATCH  [source.orders] batch: must be a whole number",
        ),
        (
            ("SEMEL_SINK__OUT__PAHT", "x"),
            "SEMEL_SINK__OUT__PAHT  [sink.out] has no key \"paht\"; did you mean \"path\"?",
        ),
        (("SEMEL_SINC__OUT__PATH", "x"), "SEMEL_SINC__OUT__PATH  there is no section \"sinc\""),
        (("SEMEL_SINK__OUT", "x"), "SEMEL_SINK__OUT  sink.out: must be a table"),
        (("SEMEL_SINK____PATH", "x"), "SEMEL_SINK____PATH  must be named SEMEL_SECTION__NAME__KEY"),
        (
            ("SEMEL_SINK__NEW__PATH", "x"),
            "SEMEL_SINK__NEW__PATH  [sink.new] needs the key \"type\"",
        ),
    ];
    for (variable, expected) in cases {
        let found = parse_with(SMALLEST, &[variable]).unwrap_err().lines();
        assert!(found.iter().any(|found| found.starts_with(expected)), "{expected}: {found:#?}");
    }
}

#[test]
fn a_secret_comes_from_a_file() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("url");
    fs::write(&file, "sqlite://secret.db\n").unwrap();
    let line = format!("url_file = {:?}", file.display().to_string());
    let text = SMALLEST.replace("url = \"sqlite://${FILE}\"", &line);
    assert_eq!(parse(&text).unwrap().pipelines[0].source.url.reveal(), "sqlite://secret.db");

    let both = SMALLEST.replace("[sink.out]", &format!("{line}\n[sink.out]"));
    assert_eq!(mistakes(&both), ["f:3  [source.orders] url_file: give it or \"url\", not both"]);
    fs::remove_file(&file).unwrap();
    let [missing] = &mistakes(&text)[..] else { panic!("one mistake") };
    assert!(missing.contains("f:2  [source.orders] url_file: ") && missing.contains("cannot read"));
}

#[test]
fn all_mistakes_are_named_at_once_with_their_lines() {
    let text = "[source.orders]
ulr = \"sqlite://shop.db\"
[sink.out]
type = \"fiel\"
path = 7
[pipeline.orders]
from = \"order\"
to = \"out\"
topic = \"{aggregate}\"
[pipelin.other]
";
    let expected = [
        "f:1  [source.orders] needs the key \"url\"",
        "f:2  [source.orders] has no key \"ulr\"; did you mean \"url\"?",
        "f:4  [sink.out] type: there is no sink of type \"fiel\"; did you mean \"file\"?",
        "f:7  [pipeline.orders] from: there is no [source.order]; did you mean \"orders\"?",
        "f:9  [pipeline.orders] topic: template \"{aggregate}\": unknown field \
         \"aggregate\"; write text with",
        "f:10  there is no section \"pipelin\"; did you mean \"pipeline\"?",
    ];
    let found = mistakes(text);
    assert_eq!(found.len(), expected.len(), "{found:#?}");
    for (found, expected) in found.iter().zip(expected) {
        assert!(found.starts_with(expected), "{found}\nis not\n{expected}");
    }
}

#[test]
fn single_mistakes_say_what_to_write() {
    let source = |line: &str| SMALLEST.replace("[sink.out]", &format!("{line}\n[sink.out]"));
    let cases = [
        (
            SMALLEST.replace("${FILE}", "${FIEL}"),
            "f:2  [source.orders] url: the environment variable FIEL is not set",
        ),
        (SMALLEST.replace("${FILE}", "${FILE"), "f:2  [source.orders] url: a ${ without its }"),
        (
            SMALLEST.replace("sqlite://", "oracle://"),
            "f:2  [source.orders] url: the URL must begin with sqlite://",
        ),
        (
            SMALLEST.replace("\"events.ndjson\"", "7"),
            "f:5  [sink.out] path: must be a string, not an integer",
        ),
        (
            SMALLEST.replace("[sink.out]", "[sink]"),
            "f:4  sink.type: must be a table, such as [sink.NAME]",
        ),
        (SMALLEST.replace("to = \"out\"", "to = \"out"), "f:8  "),
        (String::new(), "f:1  there is no [pipeline.NAME]"),
        (
            source("poll_interval = \"5ms\""),
            "f:3  [source.orders] poll_interval: must be from 10ms to 1m",
        ),
        (
            source("poll_interval = 100"),
            "f:3  [source.orders] poll_interval: must be a string, not an integer",
        ),
        (
            source("poll_interval = \"fast\""),
            "f:3  [source.orders] poll_interval: \"fast\" is no span of time; write \"100ms\"",
        ),
        (
            source("notify = true"),
            "f:3  [source.orders] notify: sqlite has no notifications, only PostgreSQL does",
        ),
        (source("batch = 0"), "f:3  [source.orders] batch: must be from 1 to 10000, not 0"),
        (source("batch = \"100\""), "f:3  [source.orders] batch: must be a whole number"),
        (
            source("mode = \"auot\""),
            "f:3  [source.orders] mode: \"auot\" is not known; did you mean \"auto\"?",
        ),
        (
            source("mode = \"tail\""),
            "f:3  [source.orders] mode: only the outbox of PostgreSQL and of MySQL can be tailed",
        ),
        (
            source("outbox = \"messages\""),
            "f:3  [source.orders] outbox: only the outbox of PostgreSQL takes \"messages\"",
        ),
        (
            source("log_budget = \"1GiB\""),
            "f:3  [source.orders] log_budget: only PostgreSQL keeps log for those who tail it",
        ),
        (source("bacth = 1"), "f:3  [source.orders] has no key \"bacth\"; did you mean \"batch\"?"),
    ];
    check(&cases);
}

#[test]
fn mistakes_of_what_is_seldom_said_say_what_to_write() {
    let more = |line: &str| format!("{SMALLEST}{line}\n");
    let cases = [
        (
            more("coordination = \"partitioned\""),
            "f:9  [pipeline.orders] coordination: sqlite takes one writer at a time: write \"leader\"",
        ),
        (
            more("retry = \"webhok\""),
            "f:9  [pipeline.orders] retry: \"webhok\" is not known; did you mean \"webhook\"?",
        ),
        (more("retry = 5"), "f:9  [pipeline.orders] retry: must be a string, not an integer"),
        (
            more("retry = { schedule = [] }"),
            "f:9  [pipeline.orders.retry] schedule: needs one wait for each attempt",
        ),
        (
            more("retry = { schedule = [\"1s\"] }"),
            "f:9  [pipeline.orders.retry] schedule: the first attempt is made at once",
        ),
        (
            more("retry = { schedule = [\"0s\", 5] }"),
            "f:9  [pipeline.orders.retry] schedule: must be a string, not an integer",
        ),
        (
            more("retry = { attempts = 0 }"),
            "f:9  [pipeline.orders.retry] attempts: must be from 1 to 1000, not 0",
        ),
        (
            more("retry = { on_dead = \"drop\" }"),
            "f:9  [pipeline.orders.retry] on_dead: \"drop\" is not known; there is park, skip",
        ),
        (
            more("retry = { attemps = 3 }"),
            "f:9  [pipeline.orders.retry] has no key \"attemps\"; did you mean \"attempts\"?",
        ),
        (more("limits = 3"), "f:9  [pipeline.orders] has no key \"limits\""),
        (
            SMALLEST.replace("[sink.out]", "batch = 100\n[sink.out]")
                + "[limits]\nin_flight_events = 50",
            "f:8  [pipeline.orders] from: its batch of 100 is more than in_flight_events = 50",
        ),
        (
            more("[limits]\npayload = 1024"),
            "f:10  [limits] payload: must be a string, not an integer",
        ),
        (more("[limits]\npayload = \"1M\""), "f:10  [limits] payload: \"1M\" is no size; write"),
        (more("[limits]\npayload = \"2GiB\""), "f:10  [limits] payload: must be from 1KiB to 1GiB"),
        (format!("limits = 3\n{SMALLEST}"), "f:1  limits: must be a section"),
    ];
    check(&cases);
}

#[test]
fn mistakes_about_what_is_kept_say_what_to_write() {
    let more = |line: &str| format!("{SMALLEST}{line}\n");
    let cases = [
        (more("[retention]\nkeep = \"a week\""), "f:10  [retention] keep: \"a week\" is no span"),
        (more("[retention]\nkeep_for = \"1d\""), "f:10  [retention] has no key \"keep_for\""),
        (
            more("[retention]\ndelete = \"on_publish\"\nkeep = \"1d\""),
            "f:11  [retention] keep: means nothing where delete = \"on_publish\"",
        ),
        (
            more("[retention]\ndelete = \"on_publish\"\nevery = \"1m\""),
            "f:11  [retention] every: means nothing where delete = \"on_publish\"",
        ),
        (
            more("[retention]\ndelete = \"at once\""),
            "f:10  [retention] delete: \"at once\" is not known",
        ),
        (
            more("[retention]\nchunk = 0"),
            "f:10  [retention] chunk: must be from 1 to 100000, not 0",
        ),
    ];
    check(&cases);
}

#[test]
fn mistakes_of_routing_are_found_before_the_first_event() {
    let more = |line: &str| format!("{SMALLEST}{line}\n");
    let to = |value: &str| SMALLEST.replace("to = \"out\"", &format!("to = {value}"));
    let cases = [
        (
            more("topic = \"{event_type|shout}\""),
            "f:9  [pipeline.orders] topic: template \"{event_type|shout}\": unknown filter",
        ),
        (more("key = \"{aggregate\""), "f:9  [pipeline.orders] key: template \"{aggregate\": a {"),
        (
            more("headers = { tenant = \"{tenant}\" }"),
            "f:9  [pipeline.orders.headers] tenant: template \"{tenant}\": unknown field",
        ),
        (
            more("headers = { tenant = 7 }"),
            "f:9  [pipeline.orders.headers] tenant: must be a string, not an integer",
        ),
        (
            more("event_types = [\"*Placed\"]"),
            "f:9  [pipeline.orders] event_types: pattern \"*Placed\": a * may only stand at the end",
        ),
        (
            more("aggregate_types = []"),
            "f:9  [pipeline.orders] aggregate_types: an empty list would pass over every event",
        ),
        (
            more("routing = \"debezum\""),
            "f:9  [pipeline.orders] routing: \"debezum\" is not known; did you mean \"debezium\"?",
        ),
        (to("[]"), "f:8  [pipeline.orders] to: needs a sink"),
        (to("[\"out\", \"out\"]"), "f:8  [pipeline.orders] to: \"out\" is there twice"),
        (to("[\"out\", \"oat\"]"), "f:8  [pipeline.orders] to: there is no [sink.oat]; did you"),
        #[cfg(feature = "kafka")]
        (
            more("topic = \"shop events\"").replace(
                "type = \"file\"\npath = \"events.ndjson\"",
                "type = \"kafka\"\nbrokers = \"b:9092\"",
            ),
            "f:9  [pipeline.orders] topic: a topic of kafka cannot hold ' '",
        ),
    ];
    check(&cases);
}

#[test]
#[cfg(feature = "rabbitmq")]
fn mistakes_of_an_exchange_are_found_before_the_first_event() {
    let to = |lines: &str| {
        let sink = format!("type = \"rabbitmq\"\nurl = \"amqp://localhost\"\n{lines}");
        SMALLEST.replace("type = \"file\"\npath = \"events.ndjson\"", &sink)
    };
    parse(&to("exchange = \"shop.{aggregate_type|snake}\"")).unwrap();
    parse(&to("exchange = \"shop\"\ndeclare_exchange = \"topic\"")).unwrap();
    check(&[
        (
            to("exchange = \"{aggregate}\""),
            "f:6  [sink.out] exchange: template \"{aggregate}\": unknown field",
        ),
        (
            to("exchange = \"{aggregate_type}\"\ndeclare_exchange = \"topic\""),
            "f:6  [sink.out] exchange: RabbitMQ: the exchange \"{aggregate_type}\" differs",
        ),
    ]);
}

/// The first mistake of each text begins like this.
fn check(cases: &[(String, &str)]) {
    for (text, expected) in cases {
        let found = mistakes(text);
        assert!(found[0].starts_with(expected), "{expected}: {found:#?}");
    }
}

#[test]
fn a_password_is_in_no_message() {
    let found = mistakes(&SMALLEST.replace("sqlite://${FILE}", "oracle://me:hunter2@db/shop"));
    assert!(!found.concat().contains("hunter2"), "{found:?}");
    let variable = [("SEMEL_SOURCE__ORDERS__URL", "oracle://me:hunter2@db/shop")];
    let found = parse_with(SMALLEST, &variable).unwrap_err().lines().concat();
    assert!(found.starts_with("SEMEL_SOURCE__ORDERS__URL") && !found.contains("hunter2"));
}

#[test]
fn every_example_of_the_documentation_is_right() {
    let page = include_str!("../../../../../docs/configuration.md");
    assert!(check_examples(page) >= 3);
}

/// Of each sink that is built in, its page.
#[test]
fn every_example_of_a_sink_is_right() {
    let aws = include_str!("../../../../../docs/backends/aws.md");
    let pages = [
        ("eventbridge", aws),
        ("kafka", include_str!("../../../../../docs/backends/kafka.md")),
        ("mqtt", include_str!("../../../../../docs/backends/mqtt.md")),
        ("nats", include_str!("../../../../../docs/backends/nats.md")),
        ("rabbitmq", include_str!("../../../../../docs/backends/rabbitmq.md")),
        ("redis", include_str!("../../../../../docs/backends/redis.md")),
        ("webhook", include_str!("../../../../../docs/backends/webhook.md")),
    ];
    for (name, page) in pages {
        if crate::wiring::SINKS.iter().any(|kind| kind.name == name) {
            assert!(check_examples(page) >= 1, "{name}");
        }
    }
}

/// How many examples a page has, all of them right.
fn check_examples(page: &str) -> usize {
    let schema = jsonschema::validator_for(&json_schema()).unwrap();
    let examples: Vec<_> = page.split("```toml\n").skip(1).collect();
    for example in &examples {
        let (text, _) = example.split_once("```").unwrap();
        let text = text
            .replace("postgres://shop@db/shop", "sqlite://shop.db")
            .replace("${DATABASE_URL}", "sqlite://shop.db")
            .replace("${PARTNER_SECRET}", "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw")
            .replace("${KAFKA_PASSWORD}", "secret")
            .replace("${MQTT_PASSWORD}", "secret");
        if let Err(mistakes) = parse(&text) {
            panic!("{text}\n{:#?}", mistakes.lines());
        }
        let json = toml::from_str(&text).unwrap();
        let wrong: Vec<_> = schema.iter_errors(&json).map(|error| error.to_string()).collect();
        assert!(wrong.is_empty(), "{text}\nis not by the schema: {wrong:#?}");
    }
    examples.len()
}

/// Whatever is written there: it is a configuration, or it is said what is wrong and where.
#[test]
fn fuzzed_no_text_is_too_strange() {
    let full = format!(
        "{SMALLEST}topic = \"{{aggregate_type|kebab}}.events\"
retry = {{ schedule = [\"0s\", \"3s\"], attempts = 4, on_dead = \"skip\" }}
event_types = [\"Order*\"]
[limits]
in_flight_events = 1000
[retention]
keep = \"7d\"
[source.classic]
url = \"postgres://me:secret@db/shop?sslmode=require\"
mode = \"auto\"
table = \"outbox\"
columns = {{ preset = \"debezium\", payload = \"body\" }}
[sink.\"a b\"]
type = \"webhook\"
url = \"https://example.com/${{PATH:-x}}\"
"
    );
    parse(&full).unwrap();
    semel_testkit::fuzz::fuzz_text(&[SMALLEST, &full], |text| {
        if let Err(mistakes) = parse(text) {
            let lines = mistakes.lines();
            assert!(!lines.is_empty());
        }
    });
}

#[cfg(feature = "page")]
#[test]
fn the_page_is_for_this_machine_unless_it_asks_who_one_is() {
    let http = |more: &str| parse(&format!("{SMALLEST}[http]\n{more}"));
    let usual = http("").unwrap().http.unwrap();
    assert_eq!(usual.listen.to_string(), "127.0.0.1:9464");
    assert!(usual.access.is_open());
    let olga = "[http.access.olga]\nrole = \"operator\"\n";
    let token = "token = \"a token that is long enough\"\n";
    let hash = "a".repeat(64);
    for proof in [token.to_owned(), format!("token_sha256 = \"{hash}\"\n")] {
        let config = http(&format!("listen = \"0.0.0.0:80\"\n{olga}{proof}")).unwrap();
        let access = config.http.unwrap().access;
        let shown = format!("{access:?}");
        assert!(shown.contains("olga") && shown.contains("Operator"), "{shown}");
        assert!(!shown.contains("long enough") && !access.is_open());
    }
    let cases = [
        (
            "listen = \"0.0.0.0:80\"\n".to_owned(),
            "f:10  [http] listen: other machines could reach it",
        ),
        (
            "listen = \"0.0.0.0:80\"\naccess = {}\n".into(),
            "f:10  [http] listen: other machines could reach it",
        ),
        (
            "listen = \"[::]:80\"\n[http.access]\n".into(),
            "f:10  [http] listen: other machines could reach it",
        ),
        (format!("listen = \"0.0.0.0:80\"\n{olga}"), "token: is needed"),
        ("listen = \"0.0.0.0:80\"\naccess = true\n".into(), "access: must be a table"),
        ("listen = \"nowhere\"\n".into(), "such as 127.0.0.1:9464"),
        ("[http.access.olga]\n".into(), "role: is needed"),
        (olga.into(), "token: is needed"),
        (format!("{olga}token = \"short\"\n"), "openssl rand -hex 32"),
        (format!("{olga}token_sha256 = \"12\"\n"), "sha256sum"),
        (format!("{olga}{token}token_sha256 = \"{hash}\"\n"), "not both"),
        (format!("[http.access.olga]\nrole = \"root\"\n{token}"), "is not known"),
        ("host = \"x\"\n".into(), "hosts"),
    ];
    for (more, expected) in cases {
        let found = mistakes(&format!("{SMALLEST}[http]\n{more}"));
        assert!(found.iter().any(|one| one.contains(expected)), "{more}: {found:?}");
        assert!(!format!("{found:?}").contains("long enough"), "{found:?}");
        let is_blamed = found.iter().any(|one| one.contains("other machines"));
        assert_eq!(is_blamed, expected.contains("other machines"), "once is enough: {found:?}");
    }
}

/// Where messages are all there is, the log cannot be given up.
#[cfg(feature = "postgres")]
#[test]
fn messages_need_the_log() {
    let source = |line: &str| {
        let url = "url = \"postgres://db/shop\"\noutbox = \"messages\"";
        SMALLEST.replacen("url = \"sqlite://${FILE}\"", &format!("{url}\n{line}"), 1)
    };
    check(&[
        (
            source("mode = \"poll\""),
            "f:4  [source.orders] mode: messages are in the log and nowhere else; leave it out",
        ),
        (
            source("log_budget = \"1GiB\""),
            "f:4  [source.orders] log_budget: the slot of messages is never given back",
        ),
    ]);
}
