//! Numbered events in lanes, and [`Drive`]: a source driven the way the engine does it.
//!
//! The number of an event is its payload, so that it survives every way through a backend.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use futures_util::future::BoxFuture;
use semel_core::retry::later;
use semel_core::{
    Batch, Delivery, Event, EventId, Failure, Guarantees, Holding, Limit, Message, Outcome,
    Payload, Receipt, Settlement, Source, Timestamp,
};

use crate::probe::Probe;
use crate::suites::source::SourceProbe;

/// Event `number` of `lane`.
///
/// ```
/// # use semel_testkit::workload::{event, number};
/// assert_eq!(number(&event("a", 7)), 7);
/// ```
#[must_use]
pub fn event(lane: &str, number: u64) -> Event {
    Event::new("order", lane, "Numbered").with_bytes(Payload::JSON, number.to_string())
}

/// Events of one lane with these numbers.
#[must_use]
pub fn events(lane: &str, numbers: impl IntoIterator<Item = u64>) -> Vec<Event> {
    numbers.into_iter().map(|number| event(lane, number)).collect()
}

/// One event for each of `count` lanes, numbered from 0; the lanes are named by the numbers.
#[must_use]
pub fn lanes(count: u64) -> Vec<Event> {
    (0..count).map(|number| event(&format!("lane-{number}"), number)).collect()
}

/// The number of an event.
///
/// # Panics
/// When the payload is not the number it was made with.
#[must_use]
pub fn number(event: &Event) -> u64 {
    let text = std::str::from_utf8(event.payload.bytes()).expect("the payload is text");
    text.parse().unwrap_or_else(|_| panic!("the payload {text:?} is not a number"))
}

/// The numbers of events, in their order.
pub fn numbers<'a>(events: impl IntoIterator<Item = &'a Event>) -> Vec<u64> {
    events.into_iter().map(number).collect()
}

/// The numbers of deliveries, in their order.
#[must_use]
pub fn delivered_numbers(deliveries: &[Delivery]) -> Vec<u64> {
    numbers(deliveries.iter().map(|delivery| &*delivery.message.event))
}

/// The numbers of deliveries, lane by lane.
#[must_use]
pub fn by_lane(deliveries: &[Delivery]) -> BTreeMap<String, Vec<u64>> {
    let mut lanes: BTreeMap<String, Vec<u64>> = BTreeMap::new();
    for Delivery { message, .. } in deliveries {
        lanes.entry(message.event.lane().to_string()).or_default().push(number(&message.event));
    }
    lanes
}

/// The ids of deliveries, sorted.
#[must_use]
pub fn ids(deliveries: &[Delivery]) -> Vec<EventId> {
    let mut ids: Vec<_> = deliveries.iter().map(|delivery| delivery.message.event.id).collect();
    ids.sort_unstable();
    ids
}

/// Events whose content is easily damaged on the way: one lane, in this order.
#[must_use]
pub fn awkward_events() -> Vec<Event> {
    let made = |kind: &str| Event::new("Bestellung-ß", "日本/42 'quoted' \"too\" \\ %s 🚀", kind);
    let json = r#"{"z":1,"a":"ü 🚀","n":1.50,"nested":[null,true,{}]}"#;
    vec![
        made("json").with_bytes(Payload::JSON, json),
        made("binary").with_bytes("application/octet-stream", (0..=255).collect::<Vec<u8>>()),
        made("not utf-8").with_bytes("application/avro", vec![0xff, 0xfe, 0, 0, 0xc3, 0x28]),
        made("text").with_bytes("text/plain; charset=utf-8", "Grüße, 世界 🚀\r\n\t\0end"),
        made("empty").with_bytes("application/octet-stream", Vec::new()),
        made("null"),
        made("large").with_bytes("application/octet-stream", vec![0xa5; 100_000]),
        made("headers")
            .with_header("traceparent", "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01")
            .with_header("Tenant-Id", "ACME & Söhne 🚀")
            .with_header("x.dotted_name-1", "a=b; c=\"d\", e:f")
            .with_header("empty", "")
            .with_header("long", "x".repeat(4000)),
        made("key").with_idempotency_key("order-42/placed ü '\"\\"),
        made(&"T".repeat(255)),
    ]
}

/// Checks that an event arrived as it was written. Headers may come in another order.
///
/// # Panics
/// When a field differs.
pub fn assert_intact(written: &Event, arrived: &Event) {
    let kind = &written.event_type;
    assert_eq!(arrived.id, written.id, "id of {kind}");
    assert_eq!(arrived.event_type, *kind, "event type");
    assert_eq!(arrived.lane(), written.lane(), "lane of {kind}");
    let content_type = arrived.payload.content_type();
    assert_eq!(content_type, written.payload.content_type(), "content type of {kind}");
    assert_eq!(arrived.payload.bytes(), written.payload.bytes(), "payload bytes of {kind}");
    let sorted = |event: &Event| BTreeMap::from(event.headers.clone());
    assert_eq!(sorted(arrived), sorted(written), "headers of {kind}");
    assert_eq!(arrived.idempotency_key(), written.idempotency_key(), "key of {kind}");
    assert_eq!(arrived.created_at, written.created_at, "time of {kind}");
}

/// A retry that falls due at `at`, after `attempts` attempts.
#[must_use]
pub fn retry(at: Timestamp, attempts: u32) -> Outcome {
    Outcome::Retry { at, attempts, failure: Failure::transient("E-TEST", "try again") }
}

/// A dead letter after one attempt.
#[must_use]
pub fn dead(parks_lane: bool) -> Outcome {
    Outcome::Dead { attempts: 1, failure: Failure::refused("E-TEST", "never"), parks_lane }
}

/// The time so far from now, in whole milliseconds: every backend can store it.
pub fn time_in<P: Probe>(probe: &P, wait: Duration) -> Timestamp {
    let time = later(probe.now(), wait).as_millisecond();
    Timestamp::from_millisecond(time).expect("a time that can be written")
}

/// Asks until `answer` gives something, or the probe's patience ends.
pub async fn eventually<P: Probe, T>(mut answer: impl AsyncFnMut() -> Option<T>) -> Option<T> {
    let began = Instant::now();
    loop {
        let found = answer().await;
        if found.is_some() || began.elapsed() >= P::PATIENCE {
            return found;
        }
        tokio::time::sleep(PAUSE).await;
    }
}

const PAUSE: Duration = Duration::from_millis(20);

/// An open source and the probe that it came from.
#[derive(Debug)]
pub struct Drive<'p, P: SourceProbe> {
    /// The probe.
    pub probe: &'p P,
    /// The source.
    pub source: P::Source,
}

impl<'p, P: SourceProbe> Drive<'p, P> {
    /// Opens the source.
    pub async fn open(probe: &'p P) -> Self {
        Self { probe, source: probe.open().await }
    }

    /// Crashes the owner and opens the source again.
    pub async fn reopen(self) -> Self {
        let source = self.probe.reopen(self.source).await;
        Self { probe: self.probe, source }
    }

    /// What the source promises.
    pub fn guarantees(&self) -> Guarantees {
        self.source.guarantees()
    }

    /// Asks once.
    ///
    /// # Panics
    /// When the source fails or hands out more than was asked for.
    pub async fn ask(&mut self, limit: Limit) -> Batch {
        let batch = self.source.next_batch(limit).await.expect("next_batch");
        let got = &batch.deliveries;
        let bytes: usize = got.iter().map(|delivery| delivery.message.event.size()).sum();
        assert!(got.len() <= limit.events, "{} events, the limit is {}", got.len(), limit.events);
        assert!(
            got.len() <= 1 || bytes <= limit.bytes,
            "{bytes} bytes in {} events, the limit is {}",
            got.len(),
            limit.bytes
        );
        batch
    }

    /// Asks until something comes.
    ///
    /// # Panics
    /// When nothing comes within the probe's patience.
    pub async fn batch(&mut self) -> Vec<Delivery> {
        self.batch_of(Limit::default()).await.deliveries
    }

    /// Asks with this limit until something comes.
    ///
    /// # Panics
    /// When nothing comes within the probe's patience.
    pub async fn batch_of(&mut self, limit: Limit) -> Batch {
        eventually::<P, _>(async || {
            let batch = self.ask(limit).await;
            (!batch.deliveries.is_empty()).then_some(batch)
        })
        .await
        .expect("something is handed out")
    }

    /// The next deliveries; none when nothing comes for as long as "nothing comes" takes to believe.
    pub async fn next_unless_quiet(&mut self, limit: Limit) -> Vec<Delivery> {
        let began = Instant::now();
        loop {
            let batch = self.ask(limit).await.deliveries;
            if !batch.is_empty() || began.elapsed() >= P::QUIET {
                return batch;
            }
            tokio::time::sleep(PAUSE).await;
        }
    }

    /// Takes exactly `count` deliveries and settles none. They must be of different lanes: a source
    /// may keep a lane back while one of its events is in flight.
    pub async fn take(&mut self, count: usize) -> Vec<Delivery> {
        let mut taken = Vec::new();
        while taken.len() < count {
            let limit = Limit { events: count - taken.len(), ..Limit::default() };
            taken.extend(self.batch_of(limit).await.deliveries);
        }
        taken
    }

    /// Delivers exactly `count` events, settling each batch before the next, and checks that
    /// nothing else comes.
    pub async fn drain(&mut self, count: usize) -> Vec<Delivery> {
        let drained = self.deliver_next(count).await;
        self.expect_nothing().await;
        drained
    }

    /// Delivers the next `count` events, settling each batch before the next.
    pub async fn deliver_next(&mut self, count: usize) -> Vec<Delivery> {
        let mut drained = Vec::new();
        while drained.len() < count {
            let limit = Limit { events: count - drained.len(), ..Limit::default() };
            let batch = self.batch_of(limit).await.deliveries;
            self.deliver(&batch).await;
            drained.extend(batch);
        }
        drained
    }

    /// Checks that nothing is handed out.
    ///
    /// # Panics
    /// When something is.
    pub async fn expect_nothing(&mut self) {
        let began = Instant::now();
        loop {
            let batch = self.ask(Limit::default()).await;
            let got: Vec<Message> = batch.deliveries.into_iter().map(|got| got.message).collect();
            assert!(got.is_empty(), "nothing should be handed out, but {got:?}");
            assert!(!batch.more, "an empty batch says that more is ready");
            if began.elapsed() >= P::QUIET {
                return;
            }
            tokio::time::sleep(PAUSE).await;
        }
    }

    /// Settles deliveries as delivered.
    pub async fn deliver(&mut self, deliveries: &[Delivery]) {
        let receipts = deliveries.iter().map(|delivery| (delivery.receipt, Outcome::Delivered));
        self.settle(receipts).await;
    }

    /// Settles, and checks that it was recorded.
    ///
    /// # Panics
    /// When it was not.
    pub async fn settle(&mut self, outcomes: impl IntoIterator<Item = (Receipt, Outcome)>) {
        assert_eq!(self.try_settle(outcomes).await, Holding::Held, "settled by the owner");
    }

    /// Settles.
    ///
    /// # Panics
    /// When the source fails.
    pub async fn try_settle(
        &mut self,
        outcomes: impl IntoIterator<Item = (Receipt, Outcome)>,
    ) -> Holding {
        self.source.settle(&settlements(outcomes)).await.expect("settle")
    }
}

/// Outcomes as the source takes them.
pub fn settlements(outcomes: impl IntoIterator<Item = (Receipt, Outcome)>) -> Vec<Settlement> {
    outcomes.into_iter().map(|(receipt, outcome)| Settlement { receipt, outcome }).collect()
}

/// Runs tasks at the same time, on all threads of the runtime.
///
/// # Panics
/// When one of them does.
pub async fn at_once<T: Send + 'static>(
    tasks: impl IntoIterator<Item = BoxFuture<'static, T>>,
) -> Vec<T> {
    let tasks: Vec<_> = tasks.into_iter().map(tokio::spawn).collect();
    let mut done = Vec::new();
    for task in tasks {
        done.push(task.await.expect("no panic"));
    }
    done
}
