//! SNS, standard and FIFO, read through a queue that subscribes.

use aws_sdk_sqs::types::QueueAttributeName;
use semel_backends::aws::AwsSink;
use semel_core::{Event, Message, Topic};
use semel_testkit::probe::{Probe, Skip};
use semel_testkit::proxy::Proxy;
use semel_testkit::suites::sink::SinkProbe;
use semel_testkit::workload::{event, numbers};
use tokio::time::timeout;

use super::{
    ACCOUNT, Lab, PATIENCE, Queue, READ, REGION, boto3, order_placed, publish, random_name,
    too_large,
};

mod standard {
    use super::Place;
    semel_testkit::sink_suite!(Place<false>);
}
mod fifo {
    use super::Place;
    semel_testkit::sink_suite!(Place<true>);
}

/// A topic of the test's own, a queue that subscribes to it, and a sink.
struct Place<const FIFO: bool> {
    lab: Lab,
    name: String,
    queue: Queue,
    sink: AwsSink,
}

fn prefix() -> String {
    format!("arn:aws:sns:{REGION}:{ACCOUNT}:")
}

impl<const FIFO: bool> Probe for Place<FIFO> {
    const BACKEND: &'static str = "sns";

    async fn fresh() -> Option<Self> {
        const SUBSCRIBE: &str = "
sns = client('sns')
name, queue = sys.argv[2:]
fifo = {'FifoTopic': 'true'} if name.endswith('.fifo') else {}
arn = sns.create_topic(Name=name, Attributes=fifo)['TopicArn']
sns.subscribe(TopicArn=arn, Protocol='sqs', Endpoint=queue, Attributes={'RawMessageDelivery': 'true'})
print(arn)
";
        let lab = Lab::open().await?;
        let ending = if FIFO { ".fifo" } else { "" };
        let name = format!("{}{ending}", random_name("topic"));
        let queue = lab.queue(&name).await;
        let arn = QueueAttributeName::QueueArn;
        let asked = queue.client.get_queue_attributes().queue_url(&queue.url);
        let told = asked.attribute_names(arn.clone()).send();
        let told = timeout(PATIENCE, told).await.unwrap().unwrap();
        let said = boto3(&lab, SUBSCRIBE, &[&name, &told.attributes.unwrap()[&arn]]);
        assert_eq!(said.trim(), format!("{}{name}", prefix()));
        let sink = lab.config().connect_sns(Some(prefix())).await.unwrap();
        Some(Self { lab, name, queue, sink })
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
async fn a_topic_may_be_an_arn_and_must_be_one_without_a_prefix() {
    let Some(place) = Place::<false>::fresh().await else { return };
    let sink = place.lab.config().connect_sns(None).await.unwrap();
    let arn = format!("{}{}", prefix(), place.name);
    assert!(publish(&sink, &arn, [event("a", 1)]).await.all_confirmed());
    assert_eq!(numbers(&place.queue.events().await), [1]);
    let failure = super::failure_of(publish(&sink, &place.name, [event("a", 2)]).await);
    assert_eq!(failure.code(), "E-AWS-MISSING");
    assert!(failure.fix().unwrap().contains("arn_prefix"), "{failure:?}");
}

/// A client that is not ours reads what a subscriber gets.
#[tokio::test]
async fn boto3_reads_what_a_subscriber_gets() {
    let Some(place) = Place::<true>::fresh().await else { return };
    let sent = order_placed();
    assert!(publish(&place.sink, &place.name, [sent.clone()]).await.all_confirmed());
    let said = boto3(&place.lab, READ, &[&place.name]);
    let expected = [
        "{\"total\":99}".to_owned(),
        "content-type application/json".to_owned(),
        "semel-event-type OrderPlaced".to_owned(),
        format!("semel-event-id {}", sent.id),
        "MessageGroupId order/42".to_owned(),
    ];
    for line in expected {
        assert!(said.lines().any(|got| got == line), "{line}: {said}");
    }
    assert!(said.contains("\"tenant\":\"acme\""), "{said}");
}
