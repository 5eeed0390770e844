//! SQS, standard and FIFO.

use semel_backends::aws::AwsSink;
use semel_core::wire::Format;
use semel_core::{Event, Message, Publication, Sink, Topic};
use semel_testkit::probe::{Probe, Skip};
use semel_testkit::proxy::Proxy;
use semel_testkit::suites::sink::SinkProbe;
use semel_testkit::workload::{event, numbers};
use tokio::time::sleep;

use super::{Lab, PATIENCE, Queue, READ, boto3, order_placed, publish, random_name, too_large};

mod standard {
    use super::Place;
    semel_testkit::sink_suite!(Place<false>);
}
mod fifo {
    use super::Place;
    semel_testkit::sink_suite!(Place<true>);
}

/// A queue of the test's own and a sink to it.
struct Place<const FIFO: bool> {
    lab: Lab,
    name: String,
    queue: Queue,
    sink: AwsSink,
}

impl<const FIFO: bool> Place<FIFO> {
    async fn with(format: Format) -> Option<Self> {
        let lab = Lab::open().await?;
        let ending = if FIFO { ".fifo" } else { "" };
        let name = format!("{}{ending}", random_name("queue"));
        let queue = lab.queue(&name).await;
        let sink = lab.config().format(format).unwrap().connect_sqs().await.unwrap();
        Some(Self { lab, name, queue, sink })
    }
}

impl<const FIFO: bool> Probe for Place<FIFO> {
    const BACKEND: &'static str = "sqs";

    async fn fresh() -> Option<Self> {
        Self::with(Format::Plain).await
    }
}

impl<const FIFO: bool> SinkProbe for Place<FIFO> {
    type Sink = AwsSink;
    const MANY: u64 = super::FEWER;

    fn sink(&self) -> &AwsSink {
        &self.sink
    }

    fn topic(&self) -> Topic {
        Topic::from(self.name.as_str())
    }

    async fn arrived(&self) -> Result<Vec<Event>, Skip> {
        Ok(self.queue.events().await)
    }

    fn refused(&self, event: Event) -> Result<Message, Skip> {
        Ok(Message::first(self.name.as_str(), too_large(event)))
    }

    fn proxy(&self) -> Option<&Proxy> {
        Some(&self.lab.proxy)
    }
}

#[tokio::test]
async fn cloud_events_arrive_structured() {
    let Some(place) = Place::<false>::with(Format::CloudEventsStructured).await else { return };
    let sent = event("a", 1).with_bytes("application/avro", vec![0, 0xff]);
    assert!(publish(&place.sink, &place.name, [sent.clone()]).await.all_confirmed());
    let messages = place.queue.messages().await;
    let attributes = messages[0].message_attributes.as_ref().unwrap();
    let content_type = attributes["content-type"].string_value().unwrap();
    assert!(content_type.starts_with("application/cloudevents+json"), "{content_type}");
    let arrived = place.queue.events().await;
    assert_eq!((arrived[0].id, &arrived[0].payload), (sent.id, &sent.payload));
}

/// The topic may be the URL of the queue: then nobody is asked for it.
#[tokio::test]
async fn a_topic_may_be_a_url() {
    let Some(place) = Place::<false>::fresh().await else { return };
    assert!(publish(&place.sink, &place.queue.url, [event("a", 1)]).await.all_confirmed());
    assert_eq!(numbers(&place.queue.events().await), [1]);
}

/// The outcome is unknown: the event comes again, and a FIFO queue knows its id.
#[tokio::test]
async fn a_cut_between_sending_and_confirming_arrives_once_in_a_fifo_queue() {
    let Some(place) = Place::<true>::fresh().await else { return };
    assert!(publish(&place.sink, &place.name, [event("a", 0)]).await.all_confirmed());
    let batch = [event("a", 1), event("a", 2)];
    place.lab.proxy.swallow_replies(true);
    let (published, ()) = tokio::join!(publish(&place.sink, &place.name, batch.clone()), async {
        let arrive = async {
            while place.queue.waiting().await < 2 {
                sleep(std::time::Duration::from_millis(20)).await;
            }
        };
        tokio::time::timeout(PATIENCE, arrive).await.expect("it arrives");
        place.lab.proxy.cut();
    });
    let failure = super::failure_of(published);
    assert_eq!(failure.code(), "E-AWS-DOWN", "{failure:?}");
    place.lab.proxy.swallow_replies(false);
    assert!(publish(&place.sink, &place.name, batch).await.all_confirmed());
    assert_eq!(numbers(&place.queue.events().await), [0, 1, 2]);
}

/// What an operator replays is no repetition, however often.
#[tokio::test]
async fn what_is_replayed_arrives_again_in_a_fifo_queue() {
    let Some(place) = Place::<true>::fresh().await else { return };
    let mut message = Message::first(place.name.as_str(), event("a", 7));
    for publication in
        [Publication::First, Publication::First, Publication::Again, Publication::Again]
    {
        message.publication = publication;
        let batch = [message.clone()];
        let published = tokio::time::timeout(PATIENCE, place.sink.publish(&batch)).await.unwrap();
        assert!(published.all_confirmed(), "{published:?}");
    }
    assert_eq!(numbers(&place.queue.events().await), [7, 7, 7]);
}

/// A client that is not ours reads what a user would look for.
#[tokio::test]
async fn boto3_reads_it() {
    let Some(place) = Place::<true>::fresh().await else { return };
    let sent = order_placed();
    assert!(publish(&place.sink, &place.name, [sent.clone()]).await.all_confirmed());
    let said = boto3(&place.lab, READ, &[&place.name]);
    let expected = [
        "{\"total\":99}".to_owned(),
        "content-type application/json".to_owned(),
        "semel-event-type OrderPlaced".to_owned(),
        format!("semel-event-id {}", sent.id),
        format!("MessageDeduplicationId {}", sent.id),
        "MessageGroupId order/42".to_owned(),
    ];
    for line in expected {
        assert!(said.lines().any(|got| got == line), "{line}: {said}");
    }
    assert!(said.contains("\"tenant\":\"acme\""), "{said}");
}
