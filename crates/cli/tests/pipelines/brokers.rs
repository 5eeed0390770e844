//! From an outbox to each broker, by configuration alone.

#[cfg(feature = "redis")]
use std::process::Command;

use semel_testkit::services::{Private, Service, service};

use crate::shop::Shop;
#[cfg(feature = "rabbitmq")]
use crate::shop::all;

const EVENTS: usize = 50;

/// A shop with events on their way to this sink, under a name that nobody else has.
fn relay_to(sink: &str, topic: &str) -> Shop {
    let shop = Shop::new();
    shop.write_config(&format!(
        "[source.orders]\nurl = \"sqlite://shop.db\"\n[sink.out]\n{sink}\n\
         [pipeline.orders]\nfrom = \"orders\"\nto = \"out\"\ntopic = \"{topic}\"\n"
    ));
    for number in 0..EVENTS {
        let payload = number.to_string();
        let event = ["--aggregate-type", "order", "--aggregate-id", "42", "--type", "Placed"];
        let send = ["send", "--database", "sqlite://shop.db", "--payload", &payload];
        shop.expect(0, &[&send[..], &event].concat());
    }
    shop.expect(0, &["relay", "--drain"]);
    assert_eq!(shop.json(&["status"])[0]["published"], EVENTS);
    shop
}

/// What arrived is read from the broker, and stays there; what did not arrive is missed; what an
/// operator replays is there twice, though the broker may know it.
#[cfg(any(feature = "kafka", feature = "nats", feature = "redis"))]
fn verify(shop: &Shop, kind: &str) {
    let verdict = |code| -> serde_json::Value {
        serde_json::from_str(&shop.expect(code, &["verify", "--output", "json"])).unwrap()
    };
    let counts = |verdict: &serde_json::Value| {
        ["lost", "doubled", "out_of_order"].map(|what| verdict[what].as_array().unwrap().len())
    };
    for _ in 0..2 {
        let good = verdict(0);
        assert_eq!(good["compared_with"], format!("sink.out ({kind})"));
        assert_eq!((&good["published"], counts(&good)), (&EVENTS.into(), [0, 0, 0]), "{good}");
    }
    shop.expect(0, &["replay", "--all", "--yes"]);
    shop.expect(0, &["relay", "--drain"]);
    let again = verdict(1);
    assert_eq!(counts(&again), [0, EVENTS, 0], "{again}");

    let right = std::fs::read_to_string(shop.file("semel.toml")).unwrap();
    let (begin, rest) = right.split_once("[sink.out]").unwrap();
    let (_, end) = rest.split_once("[pipeline.orders]").unwrap();
    let elsewhere = "[sink.out]\ntype = \"file\"\npath = \"elsewhere\"\n[pipeline.orders]";
    shop.write_config(&format!("{begin}{elsewhere}{end}"));
    let event = ["--aggregate-type", "order", "--aggregate-id", "7", "--type", "Strayed"];
    shop.expect(0, &[&["send", "--database", "sqlite://shop.db"][..], &event].concat());
    shop.expect(0, &["relay", "--drain"]);
    shop.write_config(&right);
    let missed = verdict(1);
    assert_eq!(counts(&missed)[0], 1, "{missed}");
    assert!(missed["lost"][0].as_str().unwrap().contains("order/7  Strayed"), "{missed}");
}

fn own_name(what: &str) -> String {
    format!("semel-{what}-{}", std::process::id())
}

#[cfg(feature = "redis")]
fn output(program: &str, arguments: &[&str]) -> String {
    let output = Command::new(program).args(arguments).output().unwrap();
    assert!(output.status.success(), "{program}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

#[cfg(feature = "redis")]
fn in_order() -> Vec<String> {
    (0..EVENTS).map(|number| number.to_string()).collect()
}

#[test]
#[cfg(feature = "kafka")]
fn kafka() {
    let Some(brokers) = service(Service::Kafka) else { return };
    let topic = own_name("cli");
    // Asking for it would not make it: the relay must say that it is missing.
    let shop = Shop::new();
    shop.write_config(&format!(
        "[source.orders]\nurl = \"sqlite://shop.db\"\n[sink.out]\ntype = \"kafka\"\n\
         brokers = \"{brokers}\"\n[pipeline.orders]\nfrom = \"orders\"\nto = \"out\"\n\
         topic = \"{topic}\"\n"
    ));
    let event = ["--aggregate-type", "order", "--aggregate-id", "42", "--type", "Placed"];
    shop.expect(0, &[&["send", "--database", "sqlite://shop.db"][..], &event].concat());
    let message = shop.refused(78, &["relay", "--drain"]);
    assert!(message.contains(&topic) && message.contains("no event is lost"), "{message}");
    // Nothing was published, so a topic that is not there loses nothing.
    assert_eq!(shop.json(&["verify"])["waiting"], 1);

    let tool = concat!(env!("CARGO_MANIFEST_DIR"), "/../../scripts/kafka/kafka-topics.sh");
    let made = std::process::Command::new(tool)
        .args(["--bootstrap-server", &brokers, "--create", "--topic", &topic, "--partitions", "3"])
        .output()
        .unwrap();
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    let shop = relay_to(&format!("type = \"kafka\"\nbrokers = \"{brokers}\""), &topic);
    verify(&shop, "kafka");
}

#[test]
#[cfg(feature = "rabbitmq")]
fn rabbitmq() {
    let Some(url) = service(Service::Rabbitmq) else { return };
    let queue = own_name("cli");
    let shop = relay_to(
        &format!(
            "type = \"rabbitmq\"\nurl = \"{url}\"\n\
             declare_queue = {{ name = \"{queue}\", type = \"classic\" }}"
        ),
        &queue,
    );
    let message = shop.refused(64, &["verify"]);
    assert!(message.contains("E-VERIFY-UNREADABLE") && message.contains("--inbox"), "{message}");
}

/// The client library would print what the broker gives back.
#[test]
#[cfg(feature = "rabbitmq")]
fn what_rabbitmq_gives_back_is_not_logged() {
    const MARKER: &str = "c4n4ry";
    let Some(url) = service(Service::Rabbitmq) else { return };
    let shop = Shop::new();
    shop.write_config(&format!(
        "[source.orders]\nurl = \"sqlite://shop.db\"\n[sink.out]\ntype = \"rabbitmq\"\n\
         url = \"{url}\"\n[pipeline.orders]\nfrom = \"orders\"\nto = \"out\"\ntopic = \"{}\"\n",
        own_name("nobody")
    ));
    let (header, payload) = (format!("tenant={MARKER}"), format!("\"{MARKER}\""));
    let event = ["--aggregate-type", "order", "--aggregate-id", "42", "--type", "Placed"];
    let send = ["send", "--database", "sqlite://shop.db", "--payload", &payload];
    shop.expect(0, &[&send[..], &event, &["--header", &header]].concat());
    let output = shop.command(&["relay", "--drain"]).env("SEMEL_LOG", "debug").output().unwrap();
    let said = all(&output);
    assert!(said.contains("E-RABBITMQ-UNROUTABLE"), "{said}");
    let as_numbers = format!("{:?}", MARKER.as_bytes());
    let bytes = as_numbers.trim_matches(['[', ']']);
    assert!(!said.contains(MARKER) && !said.contains(bytes), "{said}");
}

#[test]
#[cfg(feature = "nats")]
fn nats() {
    let Some(url) = service(Service::Nats) else { return };
    let name = own_name("cli");
    let shop = relay_to(
        &format!(
            "type = \"nats\"\nurl = \"{url}\"\nformat = \"cloudevents-binary\"\n\
             create_stream = {{ name = \"{name}\", subjects = [\"{name}.>\"] }}"
        ),
        &format!("{name}.placed"),
    );
    verify(&shop, "nats");
}

#[test]
#[cfg(feature = "redis")]
fn redis() {
    let Some(url) = service(Service::Redis) else { return };
    let stream = own_name("cli");
    let shop = relay_to(&format!("type = \"redis\"\nurl = \"{url}\""), &stream);
    let entries = output("redis-cli", &["-u", &url, "--json", "xrange", &stream, "-", "+"]);
    let entries: serde_json::Value = serde_json::from_str(&entries).unwrap();
    let payload = |entry: &serde_json::Value| {
        let fields: Vec<_> = entry[1].as_array().unwrap().iter().collect();
        let at = fields.iter().position(|field| *field == "payload").unwrap();
        fields[at + 1].as_str().unwrap().to_owned()
    };
    let payloads: Vec<_> = entries.as_array().unwrap().iter().map(payload).collect();
    assert_eq!(payloads, in_order());
    verify(&shop, "redis");
}

/// A broker that is away when the relay starts keeps nobody else waiting, and is used when it comes.
#[cfg(all(feature = "nats", feature = "redis"))]
#[test]
fn a_broker_that_is_away_at_the_start_is_waited_for() {
    let stream = "create_stream = { name = \"shop\", subjects = [\"shop\"] }";
    for (server, kind, more) in [(Service::Redis, "redis", ""), (Service::Nats, "nats", stream)] {
        let Some(broker) = Private::start(server) else { continue };
        broker.kill();
        let shop = Shop::new();
        shop.write_config(&format!(
            "[source.orders]\nurl = \"sqlite://shop.db\"\n\
             [sink.out]\ntype = \"{kind}\"\nurl = \"{}\"\n{more}\n\
             [sink.file]\ntype = \"file\"\npath = \"events.ndjson\"\n\
             [pipeline.orders]\nfrom = \"orders\"\nto = \"out\"\ntopic = \"shop\"\nlease = \"1s\"\n\
             [pipeline.other]\nfrom = \"orders\"\nto = \"file\"\n",
            broker.address()
        ));
        shop.insert("42", "1");
        shop.refused(69, &["relay", "--drain"]);
        let published =
            |place: usize| shop.json(&["status"])[place]["published"].as_u64() == Some(1);
        let _relay = shop.relay();
        shop.wait_until("the other pipeline publishes", || published(1));
        shop.wait_until("the broker is waited for", || shop.log().contains("share 1 waits"));
        assert!(!published(0));
        broker.restart();
        shop.wait_until("the broker is used", || published(0));
    }
}

/// The same of a sink for alerts, which nothing waits for.
#[cfg(feature = "redis")]
#[test]
fn a_broker_of_alerts_that_is_away_at_the_start_is_told_when_it_comes() {
    let Some(broker) = Private::start(Service::Redis) else { return };
    broker.kill();
    let shop = Shop::new();
    let url = broker.address();
    shop.configure(&format!(
        "alert = \"ops\"\n[sink.ops]\ntype = \"redis\"\nurl = \"{url}\"\n\
         [limits]\npayload = \"1KiB\""
    ));
    shop.insert("1", &format!("\"{}\"", "x".repeat(2000)));
    shop.insert("2", "{}");
    let _relay = shop.relay();
    shop.wait_until("the rest is published", || shop.published().len() == 1);
    shop.wait_until("it is waited for", || {
        shop.log().contains("an alert about dead letters waits")
    });
    broker.restart();
    let told = || output("redis-cli", &["-u", url, "xlen", "semel.dead_letter"]);
    shop.wait_until("it is told", || told().trim() == "1");
}
