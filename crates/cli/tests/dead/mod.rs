//! Dead letters that consumers left with a broker: listed, sent back in order, given up.

#![cfg(all(
    feature = "aws",
    feature = "kafka",
    feature = "nats",
    feature = "rabbitmq",
    feature = "redis"
))]

mod brokers;
mod wrong;

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use futures_util::future::BoxFuture;
use semel_backends::DeadQueue;
use semel_core::{Delivery, Event, Failure, Limit, Outcome, Settlement, Source};
use serde_json::Value;

use crate::shop::Shop;

/// Of two aggregates.
const LETTERS: usize = 6;
const PATIENCE: Duration = Duration::from_secs(60);

/// What is particular to a broker.
struct Broker {
    /// The section of the sink, without its name.
    sink: String,
    /// Where events are published to.
    topic: String,
    /// Where messages that nobody has buried can be published to, so that they are among letters.
    grave: String,
    /// Where dead letters are.
    queue: String,
    /// What consumers read.
    source: Box<dyn Fn() -> BoxFuture<'static, Box<dyn Source>>>,
    /// The place that consumers read, looked at as if letters were there.
    origin: Box<dyn Fn() -> BoxFuture<'static, Box<dyn DeadQueue>>>,
}

/// A shop whose events go to a broker, and a consumer that gives them up.
struct Yard {
    shop: Shop,
    broker: Broker,
    runtime: tokio::runtime::Runtime,
}

impl Yard {
    fn new(broker: Broker) -> Self {
        let runtime = tokio::runtime::Runtime::new().unwrap();
        let yard = Self { shop: Shop::new(), broker, runtime };
        yard.publish_to(&yard.broker.topic);
        yard
    }

    fn publish_to(&self, topic: &str) {
        self.shop.write_config(&format!(
            "[source.orders]\nurl = \"sqlite://shop.db\"\n[sink.out]\n{}\n\
             [sink.file]\ntype = \"file\"\npath = \"events.ndjson\"\n\
             [pipeline.orders]\nfrom = \"orders\"\nto = \"out\"\ntopic = \"{topic}\"\n",
            self.broker.sink
        ));
    }

    fn place(&self) -> [&str; 4] {
        ["--sink", "out", "--queue", &self.broker.queue]
    }

    fn dead(&self, code: i32, words: &[&str]) -> Value {
        let words = [&["dead"], words, &self.place(), &["--output", "json"]].concat();
        serde_json::from_str(&self.shop.expect(code, &words)).unwrap()
    }

    fn list(&self) -> Vec<Value> {
        self.dead(0, &["list"])["events"].as_array().unwrap().clone()
    }

    /// What the consumer is given; it gives all of it up, or lets it be.
    fn consume(&self, count: usize, dies: bool) -> Vec<Event> {
        self.runtime.block_on(async {
            let mut source = (self.broker.source)().await;
            let (mut got, deadline) = (Vec::<Delivery>::new(), Instant::now() + PATIENCE);
            while got.len() < count {
                assert!(Instant::now() < deadline, "{} of {count} came", got.len());
                let batch = source.next_batch(Limit::default()).await.unwrap();
                for Delivery { receipt, .. } in &batch.deliveries {
                    let failure = Failure::refused("E-SHOP-GONE", "there is no such order");
                    let outcome = match dies {
                        true => Outcome::Dead { attempts: 3, failure, parks_lane: false },
                        false => Outcome::Delivered,
                    };
                    let settlement = Settlement { receipt: *receipt, outcome };
                    assert!(source.settle(&[settlement]).await.unwrap().is_held());
                }
                got.extend(batch.deliveries);
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
            source.close().await;
            got.iter().map(|delivery| Event::clone(&delivery.message.event)).collect()
        })
    }

    /// How many messages are where consumers read, and how many of them say that they have died.
    fn origin(&self) -> (usize, usize) {
        self.runtime.block_on(async {
            let mut origin = (self.broker.origin)().await;
            let (mut all, mut dead) = (0, 0);
            loop {
                let some = origin.next(100).await.unwrap();
                if some.is_empty() {
                    break;
                }
                all += some.len();
                dead += some.iter().filter(|letter| letter.said.is_some()).count();
            }
            origin.close().await;
            (all, dead)
        })
    }
}

/// The whole life of letters with a broker.
fn letters_come_back(broker: Broker) {
    let yard = Yard::new(broker);
    for number in 0..LETTERS {
        yard.shop.insert(["42", "7"][number % 2], &number.to_string());
    }
    yard.shop.expect(0, &["relay", "--drain"]);
    let buried = yard.consume(LETTERS, true);
    looking_takes_nothing(&yard, &buried);
    they_go_back_in_order(&yard, &buried);
    they_are_given_up(&yard);
    who_did_it_is_written_down(&yard);
    what_is_no_letter_stays(&yard);
}

fn looking_takes_nothing(yard: &Yard, buried: &[Event]) {
    let mut ids: Vec<_> = buried.iter().map(|event| event.id.to_string()).collect();
    ids.sort();
    for limit in ["50", "2", "50", "3", "50"] {
        let listed = yard.dead(0, &["list", "--limit", limit])["events"].clone();
        let listed = listed.as_array().unwrap();
        let shown = LETTERS.min(limit.parse().unwrap());
        assert_eq!(listed.len(), shown, "{listed:?}");
        let id = |letter: &Value| letter["id"].as_str().unwrap().to_owned();
        let mut seen: Vec<_> = listed.iter().map(id).collect();
        seen.sort();
        assert!(shown < LETTERS || seen == ids, "{seen:?} {ids:?}");
        for letter in listed {
            assert_eq!((&letter["state"], &letter["attempts"]), (&"dead".into(), &3.into()));
            assert_eq!(letter["error"], "there is no such order");
            assert_eq!(letter["error_code"], "E-SHOP-GONE");
            assert!(!letter["origin"].as_str().unwrap().is_empty(), "{letter}");
        }
    }
    let shown = yard.dead(0, &["show", &ids[0], "--payload"]);
    assert_eq!((&shown["id"], &shown["aggregate_type"]), (&Value::from(&*ids[0]), &"order".into()));
    assert!(shown["payload"].is_number(), "{shown}");
    let text = yard.shop.expect(0, &[&["dead", "list"][..], &yard.place()].concat());
    assert!(text.contains("there is no such order") && text.contains("order/42"), "{text}");
}

fn they_go_back_in_order(yard: &Yard, buried: &[Event]) {
    let dry = yard.dead(0, &["retry", "--all", "--dry-run"]);
    assert_eq!((&dry["retried"], &dry["dry_run"]), (&LETTERS.into(), &true.into()));
    let unsure = [&["dead", "retry", "--all"][..], &yard.place()].concat();
    assert!(yard.shop.refused(64, &unsure).contains("E-NOT-CONFIRMED"));
    assert_eq!(yard.list().len(), LETTERS);

    let before = yard.origin().0;
    let done = yard.dead(0, &["retry", "--all", "--yes"]);
    assert_eq!((&done["retried"], &done["left"]), (&LETTERS.into(), &0.into()), "{done}");
    assert_eq!(yard.origin(), (before + LETTERS, 0), "as they were before they died");
    assert_eq!(yard.list(), Vec::<Value>::new());
    assert_eq!(yard.dead(0, &["retry", "--all", "--yes"])["retried"], 0);

    let back = yard.consume(LETTERS, true);
    assert_eq!(by_lane(&back), by_lane(buried), "the same, in the order of each aggregate");
}

fn by_lane(events: &[Event]) -> BTreeMap<String, Vec<&Event>> {
    let mut lanes: BTreeMap<_, Vec<_>> = BTreeMap::new();
    for event in events {
        lanes.entry(event.lane().to_string()).or_default().push(event);
    }
    lanes
}

fn they_are_given_up(yard: &Yard) {
    let before = yard.origin();
    let dry = yard.dead(0, &["discard", "--all", "--dry-run"]);
    assert_eq!((&dry["discarded"], yard.list().len()), (&LETTERS.into(), LETTERS));
    let done = yard.dead(0, &["discard", "--all", "--yes"]);
    assert_eq!((&done["discarded"], &done["left"]), (&LETTERS.into(), &0.into()));
    assert_eq!((yard.list().len(), yard.origin()), (0, before));
}

/// In the database of the pipeline that publishes to that broker; not what was only counted, or refused.
fn who_did_it_is_written_down(yard: &Yard) {
    let entry = "what || ' of ' || pipeline || ', ' || filter || ': ' || events";
    let told = yard.shop.text(&format!(
        "SELECT group_concat({entry}, x'0a') FROM (SELECT * FROM semel_audit ORDER BY id)"
    ));
    let queue = &yard.broker.queue;
    let expected = [("retry", LETTERS), ("retry", 0), ("discard", LETTERS)].map(|(what, count)| {
        format!("{what} of orders, dead letters of sink:out queue:{queue}: {count}")
    });
    assert_eq!(told.lines().collect::<Vec<_>>(), expected);
}

/// Somebody else's message is neither given up nor sent anywhere, unless it is said where to.
fn what_is_no_letter_stays(yard: &Yard) {
    yard.publish_to(&yard.broker.grave);
    yard.shop.insert("13", "13");
    yard.shop.expect(0, &["relay", "--drain"]);
    for change in ["retry", "discard"] {
        let left = yard.dead(1, &[change, "--all", "--yes"]);
        assert_eq!(left["left"], 1, "{left}");
        assert!(left["reasons"][0].as_str().unwrap().starts_with("E-DEAD-ORIGIN"), "{left}");
    }
    assert_eq!(yard.list().len(), 1);
    let sent = yard.dead(0, &["retry", "--all", "--yes", "--to", &yard.broker.topic]);
    assert_eq!((&sent["retried"], yard.list().len()), (&1.into(), 0));
    assert_eq!(yard.consume(1, false)[0].aggregate_id, "13");
}
