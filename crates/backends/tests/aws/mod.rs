//! SQS, SNS and EventBridge against the shared suite on moto, a server that speaks like AWS; and each
//! line of their table of errors.

mod errors;
mod eventbridge;
mod impostor;
mod letters;
mod sns;
mod sqs;
mod subscription;

use std::collections::HashMap;
use std::process::Command;
use std::sync::Mutex;
use std::time::Duration;

use aws_sdk_sqs::Client;
use aws_sdk_sqs::config::{BehaviorVersion, Credentials, Region};
use aws_sdk_sqs::types::{DeleteMessageBatchRequestEntry, Message as Received, QueueAttributeName};
use aws_smithy_http_client::Builder;
use semel_backends::aws::{AwsConfig, AwsSink};
use semel_core::wire::{Binding, decode};
use semel_core::{Event, Message, Published, Secret, Sink};
use semel_testkit::proxy::Proxy;
use semel_testkit::services::{Service, python, service};
use tokio::time::timeout;

use crate::sinks::{failure_of, random_name};

/// Long enough for anything that must happen; a test that waits longer has failed.
const PATIENCE: Duration = Duration::from_secs(300);
/// How long a sink waits: moto takes its time when many tests ask it at once.
const SLOWLY: Duration = Duration::from_secs(240);
const REGION: &str = "us-east-1";
/// The account of everybody in moto.
const ACCOUNT: &str = "123456789012";

/// How many events of a lane the suite sends. moto is Python and does one thing at a time, and the time
/// that it takes for a message grows with what is in the queue: a thousand take it minutes. A hundred in
/// twenty lanes are still ten requests in five waves.
const FEWER: u64 = 5;

/// A server that speaks like AWS, behind a proxy for the sink alone.
struct Lab {
    url: String,
    proxy: Proxy,
    queues: Client,
}

impl Lab {
    async fn open() -> Option<Self> {
        let url = service(Service::Aws)?;
        let proxy = Proxy::start(url.trim_start_matches("http://")).await;
        let config = aws_sdk_sqs::Config::builder()
            .behavior_version(BehaviorVersion::latest())
            .region(Region::new(REGION))
            .endpoint_url(&url)
            .credentials_provider(Credentials::new("test", "test", None, None, "tests"))
            .http_client(Builder::new().build_http())
            .build();
        Some(Self { url, proxy, queues: Client::from_conf(config) })
    }

    /// For a sink that goes through the proxy.
    fn config(&self) -> AwsConfig {
        config(&format!("http://{}", self.proxy.address()))
    }

    /// Makes a queue, and gives a look into it.
    async fn queue(&self, name: &str) -> Queue {
        let mut making = self.queues.create_queue().queue_name(name);
        if name.ends_with(".fifo") {
            making = making.attributes(QueueAttributeName::FifoQueue, "true");
        }
        let made = timeout(PATIENCE, making.send()).await.unwrap().unwrap();
        let url = made.queue_url.unwrap();
        Queue { client: self.queues.clone(), url, got: Mutex::default() }
    }
}

fn config(url: &str) -> AwsConfig {
    AwsConfig::new()
        .region(REGION)
        .endpoint_url(url)
        .credentials("test", Secret::new("test"), None)
        .timeout(SLOWLY)
}

/// A queue and everything that was in it.
struct Queue {
    client: Client,
    url: String,
    got: Mutex<Vec<Received>>,
}

impl Queue {
    /// Takes out what is there, in its order, and remembers it.
    async fn messages(&self) -> Vec<Received> {
        loop {
            let receive = self
                .client
                .receive_message()
                .queue_url(&self.url)
                .max_number_of_messages(10)
                .message_attribute_names("All")
                .message_system_attribute_names("All".into());
            let received = timeout(PATIENCE, receive.send()).await.unwrap().unwrap();
            let messages = received.messages.unwrap_or_default();
            if messages.is_empty() {
                return self.got.lock().unwrap().clone();
            }
            self.delete(&messages).await;
            self.got.lock().unwrap().extend(messages);
        }
    }

    async fn delete(&self, messages: &[Received]) {
        let entry = |(place, message): (usize, &Received)| {
            let handle = message.receipt_handle.clone().unwrap();
            let entry = DeleteMessageBatchRequestEntry::builder().id(place.to_string());
            entry.receipt_handle(handle).build().unwrap()
        };
        let entries = messages.iter().enumerate().map(entry).collect();
        let delete = self.client.delete_message_batch().queue_url(&self.url);
        let deleted = timeout(PATIENCE, delete.set_entries(Some(entries)).send()).await.unwrap();
        assert!(deleted.unwrap().failed.is_empty());
    }

    /// How many are there that nobody has taken.
    async fn waiting(&self) -> usize {
        let name = QueueAttributeName::ApproximateNumberOfMessages;
        let asked = self.client.get_queue_attributes().queue_url(&self.url);
        let told = timeout(PATIENCE, asked.attribute_names(name.clone()).send()).await.unwrap();
        told.unwrap().attributes.unwrap()[&name].parse().unwrap()
    }

    async fn events(&self) -> Vec<Event> {
        self.messages().await.iter().map(event_of).collect()
    }
}

/// The event of a message, by the page of the documentation.
fn event_of(message: &Received) -> Event {
    let body = message.body.clone().unwrap();
    let attributes: HashMap<String, String> = message
        .message_attributes
        .iter()
        .flatten()
        .map(|(name, value)| (name.clone(), value.string_value.clone().unwrap()))
        .collect();
    assert!(attributes.len() <= 10, "{attributes:?}");
    let headers = attributes.get("semel-headers").map_or("{}", String::as_str);
    let headers: HashMap<String, String> = serde_json::from_str(headers).unwrap();
    let payload = match attributes.get("semel-encoding").map(String::as_str) {
        Some("base64") => from_base64(&body),
        Some("empty") => Vec::new(),
        encoding => {
            assert_eq!(encoding, None);
            body.into_bytes()
        }
    };
    let pairs = attributes
        .iter()
        .filter(|(name, _)| !["semel-headers", "semel-encoding"].contains(&name.as_str()))
        .chain(&headers)
        .map(|(name, value)| (name.as_str(), value.as_str()));
    decode(Binding::Kafka, None, pairs, payload.into()).unwrap()
}

/// By a program that is not ours.
fn from_base64(text: &str) -> Vec<u8> {
    const SCRIPT: &str =
        "import base64, sys; sys.stdout.buffer.write(base64.b64decode(sys.stdin.read()))";
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("text");
    std::fs::write(&file, text).unwrap();
    let input = std::fs::File::open(file).unwrap();
    let decoded = Command::new("python3").args(["-c", SCRIPT]).stdin(input).output();
    decoded.expect("python3 runs").stdout
}

async fn publish(
    sink: &AwsSink,
    topic: &str,
    events: impl IntoIterator<Item = Event>,
) -> Published {
    let batch: Vec<_> = events.into_iter().map(|event| Message::first(topic, event)).collect();
    timeout(PATIENCE, sink.publish(&batch)).await.expect("an answer")
}

/// More than any of the three services takes.
fn too_large(event: Event) -> Event {
    event.with_bytes("text/plain", "x".repeat(1024 * 1024 + 1))
}

/// What boto3 says.
fn boto3(lab: &Lab, script: &str, arguments: &[&str]) -> String {
    const BEGIN: &str = "
import json, sys, boto3
def client(service):
    return boto3.client(service, endpoint_url=sys.argv[1], region_name='us-east-1',
                        aws_access_key_id='test', aws_secret_access_key='test')
";
    let said = Command::new(python().expect("who has the server has its Python"))
        .args(["-c", &format!("{BEGIN}{script}"), &lab.url])
        .args(arguments)
        .output()
        .expect("python runs");
    assert!(said.status.success(), "{said:?}");
    String::from_utf8_lossy(&said.stdout).into_owned()
}

/// Prints a message of a queue: its body, its attributes, and what makes it one of a FIFO queue.
const READ: &str = "
sqs = client('sqs')
url = sqs.get_queue_url(QueueName=sys.argv[2])['QueueUrl']
message = sqs.receive_message(QueueUrl=url, MessageAttributeNames=['All'],
                              MessageSystemAttributeNames=['All'])['Messages'][0]
print(message['Body'])
for name, value in sorted(message.get('MessageAttributes', {}).items()):
    print(name, value['StringValue'])
for name in ['MessageDeduplicationId', 'MessageGroupId']:
    print(name, message['Attributes'].get(name))
";

/// What such a message is looked at for.
fn order_placed() -> Event {
    Event::new("order", "42", "OrderPlaced")
        .with_bytes("application/json", "{\"total\":99}")
        .with_header("tenant", "acme")
}
