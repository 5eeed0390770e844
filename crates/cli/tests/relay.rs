//! `semel migrate`, `relay`, `status`, `events` and `dead`, as their users run them.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::shop::{Shop, all, lines};

fn payloads(events: &[Value]) -> Vec<i64> {
    events.iter().map(|event| event["payload"].as_i64().unwrap()).collect()
}

#[test]
fn what_is_inserted_is_published_once_and_in_order() {
    let shop = Shop::new();
    for number in 0..5 {
        shop.insert("42", &number.to_string());
    }
    assert_eq!(shop.json(&["status"])[0]["pending"], 5);
    shop.expect(0, &["relay", "--drain"]);
    shop.expect(0, &["relay", "--config", "semel.toml", "--drain"]);

    let events = shop.published();
    assert_eq!(payloads(&events), [0, 1, 2, 3, 4]);
    let fields: BTreeSet<_> = events[0].as_object().unwrap().keys().map(String::as_str).collect();
    let promised = [
        "id",
        "topic",
        "key",
        "aggregate_type",
        "aggregate_id",
        "event_type",
        "payload",
        "headers",
        "created_at",
    ];
    assert_eq!(fields, BTreeSet::from(promised));
    assert_eq!((&events[0]["topic"], &events[0]["key"]), (&"order.events".into(), &"42".into()));

    let status = shop.json(&["status"]);
    assert_eq!((&status[0]["pending"], &status[0]["published"]), (&0.into(), &5.into()));
    assert!(shop.expect(0, &["status"]).contains("PUBLISHED"));
}

/// One event, and a relay that is to print it.
fn printing() -> (Shop, Command) {
    let shop = Shop::new();
    shop.insert("42", "7");
    shop.write_config(
        "[source.orders]\nurl = \"${URL}\"\n[sink.out]\ntype = \"stdout\"\n\
         [pipeline.orders]\nfrom = \"orders\"\nto = \"out\"\ntopic = \"{event_type}\"\n",
    );
    let mut relay = shop.command(&["relay", "--drain"]);
    relay.env("URL", "sqlite://shop.db");
    (shop, relay)
}

#[test]
fn standard_output_has_events_and_nothing_else() {
    let (_shop, mut relay) = printing();
    let output = relay.output().unwrap();
    assert!(output.status.success(), "{}", all(&output));
    let events = lines(&String::from_utf8(output.stdout).unwrap());
    assert_eq!((payloads(&events), &events[0]["topic"]), (vec![7], &"OrderPlaced".into()));
}

#[test]
fn standard_output_that_nobody_reads_ends_the_relay() {
    let (_shop, mut relay) = printing();
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    let unread = relay.stdout(writer).output().unwrap();
    assert_eq!(unread.status.code(), Some(78), "{}", all(&unread));
    assert!(all(&unread).contains("E-STDOUT-CLOSED"), "{}", all(&unread));
    let read = relay.stdout(Stdio::piped()).output().unwrap();
    assert_eq!(payloads(&lines(&String::from_utf8(read.stdout).unwrap())), [7], "it goes on");
}

/// It waits for room, and no attempt counts.
#[cfg(target_os = "linux")]
#[test]
fn standard_output_that_takes_nothing_is_an_outage() {
    let (shop, mut relay) = printing();
    let (log, full) = (shop.file("log"), fs::File::options().write(true).open("/dev/full"));
    let mut process =
        relay.stdout(full.unwrap()).stderr(fs::File::create(&log).unwrap()).spawn().unwrap();
    let deadline = Instant::now() + Duration::from_secs(60);
    while !fs::read_to_string(&log).unwrap().contains("cannot write to standard output") {
        assert!(Instant::now() < deadline, "{}", fs::read_to_string(&log).unwrap());
        std::thread::sleep(Duration::from_millis(20));
    }
    assert!(process.try_wait().unwrap().is_none(), "it waits");
    process.kill().unwrap();
    process.wait().unwrap();
    let read = relay.stdout(Stdio::piped()).stderr(Stdio::inherit()).output().unwrap();
    assert_eq!(payloads(&lines(&String::from_utf8(read.stdout).unwrap())), [7]);
    let mut status = shop.command(&["status", "--output", "json"]);
    let status = status.env("URL", "sqlite://shop.db").output().unwrap();
    let status: Value = serde_json::from_slice(&status.stdout).unwrap();
    assert_eq!((&status[0]["failed"], &status[0]["dead"]), (&0.into(), &0.into()));
}

#[test]
fn events_are_routed_by_templates_and_chosen_by_type() {
    let shop = Shop::new();
    shop.configure(
        "topic = \"shop.{aggregate_type|upper}.{event_type|kebab}\"\n\
         key = \"{header.tenant|default:none}/{aggregate_id}\"\nevent_types = [\"Order*\"]\n\
         headers = { source = \"shop\", tenant = \"{header.tenant|default:none|upper}\" }",
    );
    shop.insert("42", "1");
    let paid = ["--aggregate-type", "order", "--aggregate-id", "42", "--type", "Paid"];
    shop.expect(0, &[&["send", "--database", "sqlite://shop.db"][..], &paid].concat());
    shop.expect(0, &["relay", "--drain"]);
    let [event] = &shop.published()[..] else { panic!("one event is wanted") };
    assert_eq!(event["topic"], "shop.ORDER.order-placed");
    assert_eq!(event["key"], "none/42");
    assert_eq!(event["headers"], serde_json::json!({ "source": "shop", "tenant": "NONE" }));
    let status = shop.json(&["status"]);
    assert_eq!((&status[0]["pending"], &status[0]["published"]), (&0.into(), &2.into()));
}

#[test]
fn coming_from_debezium_topics_keep_their_names() {
    let shop = Shop::new();
    shop.configure("routing = \"debezium\"");
    shop.insert("42", "1");
    shop.expect(0, &["relay", "--drain"]);
    let [event] = &shop.published()[..] else { panic!("one event") };
    assert_eq!((&event["topic"], &event["key"]), (&"outbox.event.order".into(), &"42".into()));
    assert_eq!(event["headers"]["id"], event["id"]);
}

#[test]
fn one_pipeline_feeds_several_sinks() {
    let shop = Shop::new();
    shop.write_config(
        "[source.orders]\nurl = \"sqlite://shop.db\"\n\
         [sink.one]\ntype = \"file\"\npath = \"one.ndjson\"\n\
         [sink.two]\ntype = \"file\"\npath = \"two.ndjson\"\n\
         [pipeline.orders]\nfrom = \"orders\"\nto = [\"one\", \"two\"]\n",
    );
    for number in 0..250 {
        shop.insert(&(number % 3).to_string(), &number.to_string());
    }
    shop.expect(0, &["relay", "--drain"]);
    let read = |name: &str| lines(&fs::read_to_string(shop.file(name)).unwrap());
    let of_lane = |events: &[Value], lane: &str| {
        let lane = events.iter().filter(|event| event["key"] == lane).cloned();
        payloads(&lane.collect::<Vec<_>>())
    };
    let (one, two) = (read("one.ndjson"), read("two.ndjson"));
    assert_eq!((one.len(), two.len()), (250, 250));
    for (rest, lane) in ["0", "1", "2"].iter().enumerate() {
        let expected: Vec<i64> = (0..250).filter(|number| number % 3 == rest as i64).collect();
        assert_eq!((of_lane(&one, lane), of_lane(&two, lane)), (expected.clone(), expected));
    }
}

#[test]
fn a_dead_letter_holds_its_aggregate_until_it_is_retried_or_discarded() {
    let shop = Shop::new();
    shop.configure("topic = \"{header.tenant}\"");
    for (aggregate, number) in [("a", "1"), ("a", "2"), ("b", "3"), ("b", "4")] {
        shop.insert(aggregate, number);
    }
    shop.expect(1, &["relay", "--drain"]);
    assert!(shop.published().is_empty());

    let dead = shop.json(&["dead", "list"]);
    assert_eq!(dead["events"].as_array().unwrap().len(), 2, "one per aggregate: {dead}");
    let status = shop.json(&["status"]);
    assert_eq!((&status[0]["dead"], &status[0]["parked_aggregates"]), (&2.into(), &2.into()));
    let id = dead["events"][0]["id"].as_str().unwrap();
    let shown = shop.expect(0, &["dead", "show", id, "--payload"]);
    assert!(shown.contains("tenant") && shown.contains("\n1\n"), "{shown}");
    assert!(!shop.expect(0, &["dead", "show", id]).contains("\n1\n"), "payloads only on demand");

    shop.configure("");
    assert_eq!(shop.json(&["dead", "discard", id, "--dry-run"])["discarded"], 1);
    assert_eq!(shop.json(&["status"])[0]["dead"], 2, "a dry run changes nothing");
    assert_eq!(shop.json(&["dead", "discard", id])["discarded"], 1);
    assert_eq!(shop.json(&["dead", "discard", id])["discarded"], 0);
    let all = ["dead", "retry", "--all", "--yes", "--aggregate", "b"];
    assert_eq!(shop.json(&[&all[..], &["--dry-run"]].concat())["retried"], 1);
    assert_eq!(shop.json(&all)["retried"], 1);
    shop.expect(0, &["relay", "--drain"]);

    let mut published = payloads(&shop.published());
    published.sort_unstable();
    assert_eq!(published, [2, 3, 4]);
    let b = shop.published().into_iter().filter(|event| event["key"] == "b").collect::<Vec<_>>();
    assert_eq!(payloads(&b), [3, 4], "order within the aggregate");
}

#[test]
fn events_are_listed_in_pages_by_what_they_are() {
    let shop = Shop::new();
    for number in 0..5 {
        shop.insert(&number.to_string(), "0");
    }
    let first = shop.json(&["events", "list", "--limit", "3", "--state", "pending"]);
    assert_eq!(first["events"].as_array().unwrap().len(), 3);
    let next = first["next"].to_string();
    let second = shop.json(&["events", "list", "--limit", "3", "--after", &next]);
    assert_eq!(second["events"].as_array().unwrap().len(), 2);
    assert!(second["next"].is_null());
    let one = shop.json(&["events", "list", "--aggregate", "3", "--type", "OrderPlaced"]);
    assert_eq!(one["events"][0]["aggregate_id"], "3");
    let text = shop.expect(0, &["events", "list", "--limit", "1"]);
    assert!(text.contains("order/0") && text.contains("--after"), "{text}");
    let unknown = "00000000-0000-7000-8000-000000000000";
    assert!(shop.refused(1, &["events", "show", unknown]).contains("E-EVENT-UNKNOWN"));
}

#[cfg(unix)]
#[test]
fn sigterm_ends_it_well_and_kill_loses_nothing() {
    const EVENTS: usize = 60;
    let shop = Shop::new();
    let mut relay = start(&shop);
    for number in 0..EVENTS {
        shop.insert(&(number % 3).to_string(), &number.to_string());
        if number % 10 == 5 {
            wait_for(&shop, number / 2);
            relay.kill().unwrap(); // SIGKILL
            relay.wait().unwrap();
            relay = start(&shop);
        }
    }
    wait_for(&shop, EVENTS);
    terminate(&relay);
    assert_eq!(relay.wait().unwrap().code(), Some(0));
    for numbers in distinct(&shop.published()).values() {
        assert!(numbers.is_sorted(), "order within an aggregate: {numbers:?}");
    }
}

#[test]
fn the_log_may_be_json() {
    let shop = Shop::new();
    let mut relay = shop.command(&["relay", "--drain"]);
    let output = relay.env("SEMEL_LOG_FORMAT", "json").output().unwrap();
    assert_eq!(output.status.code(), Some(0));
    let logged = lines(&String::from_utf8(output.stderr).unwrap());
    assert!(logged.iter().any(|line| line["pipeline"] == "orders" && line["level"] == "INFO"));
}

/// What a collector of logs goes by.
#[test]
fn a_line_of_the_json_log_has_the_names_that_are_promised() {
    let shop = Shop::new();
    shop.configure("topic = \"{header.tenant}\"");
    let trace = "0af7651916cd43dd8448eb211c80319c";
    let header = format!("traceparent=00-{trace}-b7ad6b7169203331-01");
    let event = ["--aggregate-type", "order", "--aggregate-id", "42", "--type", "Placed"];
    let send = ["send", "--database", "sqlite://shop.db", "--header", &header];
    shop.expect(0, &[&send[..], &event].concat());
    let relay =
        shop.command(&["relay", "--drain"]).env("SEMEL_LOG_FORMAT", "json").output().unwrap();
    assert_eq!(relay.status.code(), Some(1), "{}", all(&relay));
    let logged = lines(&String::from_utf8(relay.stderr).unwrap());
    for line in &logged {
        let has = |name: &str| line[name].as_str().is_some_and(|text| !text.is_empty());
        assert!(["ts", "level", "msg"].into_iter().all(has), "{line}");
    }
    let dead = logged.iter().find(|line| line["msg"] == "dead letter").expect("a dead letter");
    let id = shop.json(&["dead", "list"])["events"][0]["id"].clone();
    let named = ["level", "code", "pipeline", "trace_id", "lane"].map(|name| &dead[name]);
    assert_eq!(named, ["ERROR", "E-ROUTE-HEADER", "orders", trace, "order/42"], "{dead}");
    assert_eq!((&dead["event_id"], &dead["attempts"]), (&id, &1.into()), "{dead}");
}

fn terminate(process: &Child) {
    let terminated = Command::new("kill").args(["-TERM", &process.id().to_string()]).status();
    assert!(terminated.unwrap().success());
}

fn start(shop: &Shop) -> Child {
    shop.command(&["relay"]).stderr(Stdio::null()).spawn().unwrap()
}

/// Waits until so many events arrived.
#[cfg(unix)]
fn wait_for(shop: &Shop, events: usize) {
    let deadline = Instant::now() + Duration::from_secs(20);
    while distinct(&shop.published()).values().map(Vec::len).sum::<usize>() < events {
        assert!(Instant::now() < deadline, "{} lines", shop.published().len());
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// What arrived first of each event, by aggregate.
#[cfg(unix)]
fn distinct(events: &[Value]) -> BTreeMap<String, Vec<i64>> {
    let mut seen = BTreeSet::new();
    let mut lanes: BTreeMap<String, Vec<i64>> = BTreeMap::new();
    for event in events {
        if seen.insert(event["id"].to_string()) {
            let lane = lanes.entry(event["key"].to_string()).or_default();
            lane.push(event["payload"].as_i64().unwrap());
        }
    }
    lanes
}

#[test]
fn mistakes_are_named_with_what_they_mean_and_what_to_run() {
    let shop = Shop::new();
    shop.configure("topc = \"orders\"\nform = \"x\"");
    let message = shop.refused(78, &["relay"]);
    let parts = [
        "error[E-CONFIG]  2 mistakes in semel.toml",
        "semel.toml:9  [pipeline.orders] has no key \"topc\"; did you mean \"topic\"?",
        "semel.toml:10  [pipeline.orders] has no key \"form\"; did you mean \"from\"?",
        "effect  nothing was started",
        "run     correct the lines",
    ];
    for part in parts {
        assert!(message.contains(part), "{part} is not in\n{message}");
    }

    let message = shop.refused(78, &["relay", "--config", "missing.toml"]);
    assert!(message.contains("E-CONFIG-READ") && message.contains("--config FILE"), "{message}");
}

#[test]
fn a_database_that_is_not_ready_says_how_to_make_it_ready() {
    let shop = Shop { folder: tempfile::tempdir().unwrap() };
    shop.configure("");
    for command in ["relay", "status"] {
        let message = shop.refused(78, &[command]);
        assert!(message.contains("E-SQLITE-ACCESS"), "{message}");
    }
    assert!(!shop.file("shop.db").exists(), "a mistyped name must not make a file");

    fs::write(shop.file("shop.db"), "").unwrap();
    for command in ["relay", "status"] {
        let message = shop.refused(78, &[command]);
        assert!(message.contains("semel migrate up"), "{message}");
        assert!(message.contains("no event is lost"), "{message}");
    }
    let database = ["--database", "sqlite://shop.db"];
    let status = shop.expect(1, &[&["migrate", "status"], &database[..]].concat());
    assert!(status.contains("missing 0001_tables"), "{status}");
    let up = shop.expect(0, &[&["migrate", "up"], &database[..]].concat());
    assert!(up.contains("applied 0001_tables"), "{up}");
    shop.expect(0, &[&["migrate", "up"], &database[..]].concat());
    shop.expect(0, &[&["migrate", "status"], &database[..]].concat());
    let sql = shop.expect(0, &[&["migrate", "sql"], &database[..]].concat());
    assert!(sql.contains("CREATE TABLE semel_outbox"), "{sql}");

    let message = shop.refused(78, &["migrate", "up", "--database", "oracle://me:secret@db"]);
    assert!(message.contains("sqlite://") && !message.contains("secret"), "{message}");
    fs::write(shop.file("noise.db"), "this is not a database at all, not even a small one")
        .unwrap();
    shop.refused(78, &["migrate", "status", "--database", "sqlite://noise.db"]);
}

#[test]
fn several_pipelines_have_to_be_told_apart() {
    let shop = Shop::new();
    let pipeline = |name| format!("[pipeline.{name}]\nfrom = \"orders\"\nto = \"{name}\"\n");
    let sink = |name| format!("[sink.{name}]\ntype = \"file\"\npath = \"{name}.ndjson\"\n");
    let source = "[source.orders]\nurl = \"sqlite://shop.db\"\n".to_owned();
    let both = [sink("a"), sink("b"), pipeline("a"), pipeline("b")].concat();
    shop.write_config(&(source + &both));
    shop.insert("42", "1");
    shop.expect(0, &["relay", "--drain"]);
    for name in ["a.ndjson", "b.ndjson"] {
        assert_eq!(line_count(&shop.file(name)), 1, "each pipeline has every event");
    }
    let message = shop.refused(78, &["events", "list"]);
    assert!(message.contains("--pipeline: a, b"), "{message}");
    let listed = shop.json(&["events", "list", "--pipeline", "b"]);
    assert_eq!(listed["events"][0]["state"], "published");
    assert_eq!(shop.json(&["status"]).as_array().unwrap().len(), 2);
}

fn line_count(path: &Path) -> usize {
    fs::read_to_string(path).expect("a file of events").lines().count()
}
