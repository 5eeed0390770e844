//! Each broker, by the same story.

use std::process::Command;
use std::time::Duration;

use semel_backends::aws::AwsConfig;
use semel_backends::kafka::KafkaConfig;
use semel_backends::nats::NatsConfig;
use semel_backends::rabbitmq::RabbitmqConfig;
use semel_backends::redis::RedisConfig;
use semel_core::{Secret, Source};
use semel_testkit::services::{Service, python, service};

use super::{Broker, Yard, letters_come_back};

fn own_name(what: &str) -> String {
    format!("semel-dead-{what}-{}", std::process::id())
}

/// A question that is asked again and again, each time with values of its own.
macro_rules! asks {
    ($($value:ident),+ => $answer:expr) => {{
        $(let $value = $value.clone();)+
        Box::new(move || {
            $(let $value = $value.clone();)+
            Box::pin(async move { $answer })
        })
    }};
}

#[test]
fn kafka() {
    let Some(brokers) = service(Service::Kafka) else { return };
    let (topic, queue) = (own_name("kafka"), format!("{}.dead", own_name("kafka")));
    let tool = concat!(env!("CARGO_MANIFEST_DIR"), "/../../scripts/kafka/kafka-topics.sh");
    for (name, partitions) in [(&topic, "3"), (&queue, "2")] {
        let create = ["--create", "--topic", name, "--partitions", partitions];
        let at = ["--bootstrap-server", &brokers];
        let made = Command::new(tool).args(at).args(create).output().unwrap();
        assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    }
    let config = KafkaConfig::new(&brokers).unwrap();
    letters_come_back(Broker {
        sink: format!("type = \"kafka\"\nbrokers = \"{brokers}\""),
        grave: queue.clone(),
        source: asks!(config, topic => {
            let group = config.subscription("billing", &[&topic]).unwrap().connect().await;
            Box::new(group.unwrap()) as Box<dyn Source>
        }),
        origin: asks!(config, topic => config.dead_letters(&topic).await.unwrap()),
        topic,
        queue,
    });
}

fn in_rabbitmq(url: &str, name: &str) -> Broker {
    let (topic, config) = (name.to_owned(), RabbitmqConfig::new(url).unwrap());
    Broker {
        sink: format!(
            "type = \"rabbitmq\"\nurl = \"{url}\"\ndeclare_queue = {{ name = \"{name}\" }}"
        ),
        grave: format!("{name}.dead"),
        queue: format!("{name}.dead"),
        source: asks!(config, topic => {
            let queue = config.subscription(&topic).unwrap().connect().await.unwrap();
            Box::new(queue) as Box<dyn Source>
        }),
        origin: asks!(config, topic => config.dead_letters(&topic).await.unwrap()),
        topic,
    }
}

#[test]
fn rabbitmq() {
    let Some(url) = service(Service::Rabbitmq) else { return };
    letters_come_back(in_rabbitmq(&url, &own_name("rabbitmq")));
}

/// A quorum queue of RabbitMQ 4 throws away what it has given out 20 times.
#[test]
fn looking_at_letters_in_rabbitmq_does_not_wear_them_out() {
    let Some(url) = service(Service::Rabbitmq) else { return };
    let yard = Yard::new(in_rabbitmq(&url, &own_name("worn")));
    for number in 0..5 {
        yard.shop.insert("42", &number.to_string());
    }
    yard.shop.expect(0, &["relay", "--drain"]);
    let buried = yard.consume(5, true);
    let ids: Vec<_> = buried.iter().map(|event| event.id.to_string()).collect();
    for _ in 0..13 {
        let listed = yard.list();
        let listed: Vec<_> = listed.iter().map(|letter| letter["id"].as_str().unwrap()).collect();
        assert_eq!(listed, ids, "in their order, however often they are looked at");
    }
    assert!(given_out(&url, &yard.broker.queue) < 10, "written anew in between");
}

/// How often a message of a queue was given out before.
fn given_out(url: &str, queue: &str) -> u64 {
    let Some(python) = python() else { return 0 };
    let look = "import pika, sys\n\
                channel = pika.BlockingConnection(pika.URLParameters(sys.argv[1])).channel()\n\
                _, properties, _ = channel.basic_get(sys.argv[2])\n\
                print((properties.headers or {}).get('x-delivery-count', 0))";
    let looked = Command::new(python).args(["-c", look, url, queue]).output().unwrap();
    assert!(looked.status.success(), "{}", String::from_utf8_lossy(&looked.stderr));
    String::from_utf8(looked.stdout).unwrap().trim().parse().unwrap()
}

#[test]
fn nats() {
    let Some(url) = service(Service::Nats) else { return };
    let (name, config) = (own_name("nats"), NatsConfig::new(&url).unwrap());
    letters_come_back(Broker {
        sink: format!(
            "type = \"nats\"\nurl = \"{url}\"\nformat = \"cloudevents-binary\"\n\
             create_stream = {{ name = \"{name}\", subjects = [\"{name}.>\"] }}"
        ),
        topic: format!("{name}.placed"),
        grave: format!("dead.{name}.found"),
        queue: format!("{name}-dead"),
        source: asks!(config, name => {
            let member = config.subscribe(name, "billing").open().await.unwrap();
            Box::new(member) as Box<dyn Source>
        }),
        origin: asks!(config, name => config.dead_letters(&name).await.unwrap()),
    });
}

#[test]
fn redis() {
    let Some(url) = service(Service::Redis) else { return };
    let (topic, prefix) = (own_name("redis"), "{shop}:");
    let config = RedisConfig::new(&url).unwrap().key_prefix(prefix);
    letters_come_back(Broker {
        sink: format!("type = \"redis\"\nurl = \"{url}\"\nkey_prefix = \"{prefix}\""),
        grave: format!("{topic}.dead"),
        queue: format!("{topic}.dead"),
        source: asks!(config, topic => {
            let member = config.subscribe("billing", [topic]).open().await.unwrap();
            Box::new(member) as Box<dyn Source>
        }),
        origin: asks!(config, topic => config.dead_letters(&topic).await.unwrap()),
        topic,
    });
}

#[test]
fn sqs() {
    let (Some(url), Some(python)) = (service(Service::Aws), python()) else { return };
    let name = own_name("sqs");
    let (topic, queue) = (format!("{name}.fifo"), format!("{name}-dead.fifo"));
    let make = "import boto3, sys\n\
                sqs = boto3.client('sqs', endpoint_url=sys.argv[1], region_name='us-east-1',\n\
                \x20                  aws_access_key_id='test', aws_secret_access_key='test')\n\
                for name in sys.argv[2:]:\n\
                \x20   sqs.create_queue(QueueName=name, Attributes={'FifoQueue': 'true'})";
    let made = Command::new(python).args(["-c", make, &url, &topic, &queue]).output().unwrap();
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    let config = AwsConfig::new().region("us-east-1").endpoint_url(&url).credentials(
        "test",
        Secret::new("test"),
        None,
    );
    letters_come_back(Broker {
        sink: format!(
            "type = \"sqs\"\nregion = \"us-east-1\"\nendpoint_url = \"{url}\"\n\
             access_key_id = \"test\"\nsecret_access_key = \"test\""
        ),
        grave: queue.clone(),
        source: asks!(config, topic => {
            let queue = config.subscribe_sqs(topic).wait(Duration::from_secs(1));
            Box::new(queue.open().await.unwrap()) as Box<dyn Source>
        }),
        origin: asks!(config, topic => config.dead_letters(&topic).await.unwrap()),
        topic,
        queue,
    });
}
