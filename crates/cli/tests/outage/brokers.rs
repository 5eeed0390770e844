//! The brokers: how each is reached, prepared, and read with a client that is not ours.

use std::process::Command;

use semel_testkit::services::{Private, Service, python};
use serde_json::{Value, json};

/// A broker.
pub(crate) struct Broker {
    pub(crate) name: &'static str,
    pub(crate) service: Service,
    /// As many as it does not take in the time of a restart.
    pub(crate) events: u32,
    /// Its section of the configuration.
    pub(crate) sink: fn(&Private) -> String,
    /// Makes what the sink does not; nothing if that is not possible here.
    pub(crate) prepare: fn(&Private) -> Option<()>,
    /// Everything that is there, in its order.
    pub(crate) read: fn(&Private) -> Vec<Value>,
}

pub(crate) const BROKERS: [Broker; 4] = [
    Broker {
        name: "kafka",
        service: Service::Kafka,
        events: 100_000,
        sink: |server| format!("type = \"kafka\"\nbrokers = \"{}\"", server.address()),
        prepare: |server| run_python(CREATE_TOPIC, server).map(drop),
        read: |server| {
            let arguments = "-C -e -q -o beginning -t semel-outage -f %k\\t%s\\n -b".split(' ');
            from_lines(&output(Command::new("kcat").args(arguments).arg(server.address())))
        },
    },
    Broker {
        name: "rabbitmq",
        service: Service::Rabbitmq,
        events: 20_000,
        sink: |server| {
            format!(
                "type = \"rabbitmq\"\nurl = \"{}\"\n\
                 declare_queue = {{ name = \"semel-outage\", type = \"classic\" }}",
                server.address()
            )
        },
        prepare: |_| Some(()),
        read: |server| from_lines(&run_python(READ_QUEUE, server).unwrap()),
    },
    Broker {
        name: "nats",
        service: Service::Nats,
        events: 50_000,
        sink: |server| {
            format!(
                "type = \"nats\"\nurl = \"{}\"\n\
                 create_stream = {{ name = \"outage\", subjects = [\"semel-outage\"] }}",
                server.address()
            )
        },
        prepare: |_| Some(()),
        read: |server| from_lines(&run_python(READ_STREAM, server).unwrap()),
    },
    Broker {
        name: "redis",
        service: Service::Redis,
        events: 100_000,
        sink: |server| format!("type = \"redis\"\nurl = \"{}\"", server.address()),
        prepare: |_| Some(()),
        read: |server| {
            let range = ["-u", server.address(), "--json", "xrange", "semel-outage", "-", "+"];
            from_entries(&output(Command::new("redis-cli").args(range)))
        },
    },
];

const CREATE_TOPIC: &str = "
import sys
from confluent_kafka.admin import AdminClient, NewTopic
admin = AdminClient({'bootstrap.servers': sys.argv[1]})
made = admin.create_topics([NewTopic('semel-outage', 6, 1)])
made['semel-outage'].result(30)
";

const READ_QUEUE: &str = "
import sys, pika
channel = pika.BlockingConnection(pika.URLParameters(sys.argv[1])).channel()
channel.basic_qos(prefetch_count=1000)
count = 0
for method, properties, body in channel.consume('semel-outage', inactivity_timeout=10):
    if method is None: # what a queue says of its length may be too little
        break
    print(properties.headers['semel-aggregate-id'], body.decode(), sep='\\t')
    count += 1
    if count % 500 == 0:
        channel.basic_ack(method.delivery_tag, multiple=True)
";

const READ_STREAM: &str = "
import asyncio, sys, nats
async def main():
    client = await nats.connect(sys.argv[1])
    stream = client.jetstream()
    left = (await stream.stream_info('outage')).state.messages
    reader = await stream.pull_subscribe('semel-outage', durable='reader')
    while left > 0:
        batch = await reader.fetch(min(left, 500), timeout=10)
        left -= len(batch)
        for message in batch:
            print(message.headers['semel-aggregate-id'], message.data.decode(), sep='\\t')
            await message.ack()
    await client.close()
asyncio.run(main())
";

/// Runs a script against a server; nothing if there is no Python for it.
fn run_python(script: &str, server: &Private) -> Option<String> {
    Some(output(Command::new(python()?).args(["-c", script, server.address()])))
}

fn output(command: &mut Command) -> String {
    let output = command.output().unwrap();
    assert!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

/// Lane and payload, with a tab between them.
fn from_lines(text: &str) -> Vec<Value> {
    let event = |line: &str| {
        let (lane, payload) = line.split_once('\t').unwrap();
        json!({ "aggregate_id": lane, "payload": payload.parse::<u64>().unwrap() })
    };
    text.lines().map(event).collect()
}

/// What `redis-cli --json xrange` prints.
fn from_entries(text: &str) -> Vec<Value> {
    let entries: Vec<(String, Vec<String>)> = serde_json::from_str(text).unwrap();
    let event = |(_, fields): &(String, Vec<String>)| {
        let field = |name: &str| {
            let place = fields.iter().position(|field| field == name).unwrap();
            fields[place + 1].clone()
        };
        let payload: u64 = field("payload").parse().unwrap();
        json!({ "aggregate_id": field("semel-aggregate-id"), "payload": payload })
    };
    entries.iter().map(event).collect()
}
