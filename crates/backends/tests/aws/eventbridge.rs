//! EventBridge, read through a rule to a queue.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use semel_backends::aws::AwsSink;
use semel_core::wire::{Binding, Format, decode};
use semel_core::{Event, Fault, Message, Topic};
use semel_testkit::probe::{Probe, Skip};
use semel_testkit::proxy::Proxy;
use semel_testkit::suites::sink::SinkProbe;
use semel_testkit::workload::{event, events};
use serde_json::Value;

use super::impostor::{Answer, Impostor};
use super::{
    ACCOUNT, Lab, Queue, READ, REGION, boto3, config, failure_of, order_placed, publish,
    random_name, too_large,
};

semel_testkit::sink_suite!(Place);

/// A bus of the test's own, a queue that gets all of it, and a sink.
struct Place {
    lab: Lab,
    bus: String,
    queue: Queue,
    sink: AwsSink,
}

impl Place {
    async fn with(format: Option<Format>, source: Option<&str>) -> Option<Self> {
        const RULE: &str = "
events = client('events')
bus, queue = sys.argv[2:]
events.create_event_bus(Name=bus)
events.put_rule(Name=bus, EventBusName=bus, EventPattern=json.dumps({'account': ['123456789012']}))
events.put_targets(Rule=bus, EventBusName=bus, Targets=[{'Id': 'queue', 'Arn': queue}])
";
        let lab = Lab::open().await?;
        let bus = random_name("bus");
        let queue = lab.queue(&bus).await;
        boto3(&lab, RULE, &[&bus, &format!("arn:aws:sqs:{REGION}:{ACCOUNT}:{bus}")]);
        let mut config = lab.config();
        if let Some(format) = format {
            config = config.format(format).unwrap();
        }
        let sink = config.connect_eventbridge(source.map(str::to_owned)).await.unwrap();
        Some(Self { lab, bus, queue, sink })
    }

    /// The events as EventBridge hands them on.
    async fn got(&self) -> Vec<Value> {
        let parse = |message: &aws_sdk_sqs::types::Message| {
            serde_json::from_str(message.body.as_deref().unwrap()).unwrap()
        };
        self.queue.messages().await.iter().map(parse).collect()
    }
}

impl Probe for Place {
    const BACKEND: &'static str = "eventbridge";

    async fn fresh() -> Option<Self> {
        Self::with(None, None).await
    }
}

impl SinkProbe for Place {
    type Sink = AwsSink;
    const MANY: u64 = super::FEWER;
    /// EventBridge reads JSON and writes it anew.
    const KEEPS_JSON: bool = false;

    fn sink(&self) -> &AwsSink {
        &self.sink
    }

    fn topic(&self) -> Topic {
        Topic::from(self.bus.as_str())
    }

    async fn arrived(&self) -> Result<Vec<Event>, Skip> {
        let read = |event: &Value| {
            let body = event["detail"].to_string();
            decode(Binding::Http, Some("application/cloudevents+json"), [], body.into()).unwrap()
        };
        Ok(self.got().await.iter().map(read).collect())
    }

    fn refused(&self, event: Event) -> Result<Message, Skip> {
        Ok(Message::first(self.bus.as_str(), too_large(event)))
    }

    fn proxy(&self) -> Option<&Proxy> {
        Some(&self.lab.proxy)
    }
}

#[tokio::test]
async fn a_plain_detail_is_the_payload_and_must_be_an_object() {
    let Some(place) = Place::with(Some(Format::Plain), Some("shop")).await else { return };
    let sent = event("a", 1).with_bytes("application/json", "{\"total\":99}");
    assert!(publish(&place.sink, &place.bus, [sent.clone()]).await.all_confirmed());
    let got = place.got().await;
    assert_eq!(got[0]["detail"], serde_json::json!({ "total": 99 }));
    assert_eq!(
        (&got[0]["source"], &got[0]["detail-type"]),
        (&"shop".into(), &sent.event_type.clone().into())
    );
    let resources = [format!("semel:event:{}", sent.id), format!("semel:lane:{}", sent.lane())];
    assert_eq!(got[0]["resources"], serde_json::json!(resources));

    let wrong = [
        event("a", 2).with_bytes("application/json", "[1]"),
        event("a", 2).with_bytes("text/plain", "hello"),
        event("a", 2),
        Event::new("order", "a", "T".repeat(129)).with_bytes("application/json", "{}"),
    ];
    for event in wrong {
        let failure = failure_of(publish(&place.sink, &place.bus, [event]).await);
        assert_eq!((failure.fault(), failure.code()), (Fault::Refused, "E-AWS-DETAIL"));
    }
}

/// A bus that does not exist takes everything and keeps nothing, so it is looked for.
#[tokio::test]
async fn a_missing_bus_is_misconfigured() {
    let Some(place) = Place::with(None, None).await else { return };
    let failure = failure_of(publish(&place.sink, "no-such-bus", [event("a", 1)]).await);
    assert_eq!((failure.fault(), failure.code()), (Fault::Misconfigured, "E-AWS-MISSING"));
}

/// Nothing says so when it happens: a bus is looked for again after a minute.
#[tokio::test]
async fn a_bus_that_is_deleted_while_it_is_used_is_misconfigured() {
    let is_there = Arc::new(AtomicBool::new(true));
    let bus = Arc::clone(&is_there);
    let impostor = Impostor::start(move |request| match request {
        put if put.contains("Entries") => taken(),
        _ if bus.load(Ordering::Relaxed) => found(),
        _ => Impostor::error(400, "ResourceNotFoundException"),
    })
    .await;
    let sink = config(&impostor.url).connect_eventbridge(None).await.unwrap();
    assert!(publish(&sink, "orders", events("a", 0..2)).await.all_confirmed());
    assert_eq!(impostor.requests().len(), 3, "it is looked for once");

    is_there.store(false, Ordering::Relaxed);
    tokio::time::pause();
    tokio::time::advance(Duration::from_secs(60)).await;
    tokio::time::resume();
    let failure = failure_of(publish(&sink, "orders", [event("a", 2)]).await);
    assert_eq!((failure.fault(), failure.code()), (Fault::Misconfigured, "E-AWS-MISSING"));
    assert_eq!(impostor.requests().len(), 4, "nothing was put");
}

/// Whoever may put events need not be allowed to look; whoever is nobody may do neither.
#[tokio::test]
async fn only_a_missing_right_to_look_is_passed_over() {
    for (word, is_passed_over) in [("AccessDeniedException", true), ("InvalidClientTokenId", false)]
    {
        let impostor = Impostor::start(move |request| match request {
            put if put.contains("Entries") => taken(),
            _ => Impostor::error(403, word),
        })
        .await;
        let sink = config(&impostor.url).connect_eventbridge(None).await.unwrap();
        let published = publish(&sink, "orders", [event("a", 0)]).await;
        assert_eq!(published.all_confirmed(), is_passed_over, "{published:?}");
    }
}

fn found() -> Answer {
    Some((200, "content-type: application/x-amz-json-1.1\r\n", "{\"Name\":\"orders\"}".into()))
}

fn taken() -> Answer {
    let body = "{\"Entries\":[{\"EventId\":\"1\"}],\"FailedEntryCount\":0}";
    Some((200, "content-type: application/x-amz-json-1.1\r\n", body.into()))
}

/// A client that is not ours reads what the target of a rule gets.
#[tokio::test]
async fn boto3_reads_what_a_target_gets() {
    let Some(place) = Place::fresh().await else { return };
    let sent = order_placed();
    assert!(publish(&place.sink, &place.bus, [sent.clone()]).await.all_confirmed());
    let said = boto3(&place.lab, READ, &[&place.bus]);
    let got: Value = serde_json::from_str(said.lines().next().unwrap()).unwrap();
    assert_eq!(got["detail-type"], "OrderPlaced", "{said}");
    let detail = &got["detail"];
    assert_eq!(detail["id"], sent.id.to_string(), "{said}");
    assert_eq!(
        (&detail["type"], &detail["subject"]),
        (&"OrderPlaced".into(), &"42".into()),
        "{said}"
    );
    assert_eq!(detail["data"], serde_json::json!({ "total": 99 }), "{said}");
}
