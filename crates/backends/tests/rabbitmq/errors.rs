//! Set-ups that are wrong and messages that cannot be carried, each provoked on a real broker.

use lapin::options::{ExchangeDeclareOptions, ExchangeDeleteOptions};
use lapin::types::FieldTable;
use semel_backends::rabbitmq::{ExchangeKind, QueueKind, RabbitmqConfig, RabbitmqQueue};
use semel_core::{Failure, Fault, Secret, Sink};
use semel_testkit::services::{Service, service};
use semel_testkit::workload::{event, events, numbers};
use tokio::time::timeout;

use super::{PATIENCE, Queue, Reader, failure_of, publish, random_name};

async fn connect_failure(config: RabbitmqConfig) -> Failure {
    timeout(PATIENCE, config.connect()).await.unwrap().expect_err("it must not connect")
}

fn assert_misconfigured(failure: &Failure, code: &str) {
    assert_eq!((failure.fault(), failure.code()), (Fault::Misconfigured, code), "{failure:?}");
    assert!(failure.fix().is_some(), "{failure:?}");
}

#[test]
fn a_wrong_url_is_misconfigured_and_not_repeated() {
    for url in ["http://u:secret@host", "amqp//u:secret@host", "amqp://u:secret@host:port"] {
        let failure = RabbitmqConfig::new(url).unwrap_err();
        assert_misconfigured(&failure, "E-RABBITMQ-URL");
        assert!(!failure.to_string().contains("secret"), "{failure}");
    }
}

#[tokio::test]
async fn nobody_listening_is_an_outage() {
    let unused = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let failure = connect_failure(RabbitmqConfig::new(&format!("amqp://{unused}")).unwrap()).await;
    assert_eq!((failure.fault(), failure.code()), (Fault::Unavailable, "E-RABBITMQ-DOWN"));
}

#[tokio::test]
async fn a_wrong_password_or_vhost_is_misconfigured() {
    let Some(url) = service(Service::Rabbitmq) else { return };
    let config = RabbitmqConfig::new(&url).unwrap().credentials("guest", &Secret::new("wrong"));
    assert_misconfigured(&connect_failure(config).await, "E-RABBITMQ-ACCESS");
    let elsewhere = url.replace("/%2f", "/no-such-vhost");
    let config = RabbitmqConfig::new(&elsewhere).unwrap();
    assert_misconfigured(&connect_failure(config).await, "E-RABBITMQ-ACCESS");
}

#[tokio::test]
async fn a_missing_exchange_is_misconfigured_at_once() {
    let Some(url) = service(Service::Rabbitmq) else { return };
    let config = RabbitmqConfig::new(&url).unwrap().exchange("no-such-exchange").unwrap();
    let failure = connect_failure(config).await;
    assert_misconfigured(&failure, "E-RABBITMQ-MISSING");
    assert!(failure.to_string().contains("no-such-exchange"), "{failure}");
}

#[tokio::test]
async fn an_exchange_that_goes_away_is_misconfigured_and_may_come_back() {
    let Some(url) = service(Service::Rabbitmq) else { return };
    let (exchange, queue) = (random_name("exchange"), random_name("queue"));
    let sink = RabbitmqConfig::new(&url)
        .unwrap()
        .exchange(&exchange)
        .unwrap()
        .declare_exchange(ExchangeKind::Topic)
        .declare_queue(RabbitmqQueue::new(&queue).unwrap().bound_by("order.#").unwrap())
        .connect()
        .await
        .unwrap();
    assert!(publish(&sink, "order.placed", events("a", 0..3)).await.all_confirmed());
    let nowhere = failure_of(publish(&sink, "payment.made", [event("a", 9)]).await);
    assert_eq!((nowhere.fault(), nowhere.code()), (Fault::Refused, "E-RABBITMQ-UNROUTABLE"));

    let reader = Reader::open(&url).await;
    let delete = reader.channel.exchange_delete(exchange.as_str().into(), Default::default());
    timeout(PATIENCE, delete).await.unwrap().unwrap();
    let gone = failure_of(publish(&sink, "order.placed", [event("a", 3)]).await);
    assert_misconfigured(&gone, "E-RABBITMQ-MISSING");
    // It declares what it was told to.
    timeout(PATIENCE, sink.check()).await.unwrap().unwrap();
    let unbound = failure_of(publish(&sink, "order.placed", [event("a", 3)]).await);
    assert_eq!(unbound.code(), "E-RABBITMQ-UNROUTABLE");
    assert_eq!(numbers(&reader.arrived(&queue).await), [0, 1, 2]);
    reader.channel.queue_delete(queue.into(), Default::default()).await.unwrap();
    let options = ExchangeDeleteOptions::default();
    reader.channel.exchange_delete(exchange.into(), options).await.unwrap();
}

#[tokio::test]
async fn a_declaration_that_does_not_match_is_misconfigured() {
    let Some(url) = service(Service::Rabbitmq) else { return };
    let (exchange, queue) = (random_name("exchange"), random_name("queue"));
    let reader = Reader::open(&url).await;
    let options = ExchangeDeclareOptions { auto_delete: true, ..Default::default() };
    let (kind, none) = (lapin::ExchangeKind::Direct, FieldTable::default());
    let declare = reader.channel.exchange_declare(exchange.as_str().into(), kind, options, none);
    timeout(PATIENCE, declare).await.unwrap().unwrap();
    let config = RabbitmqConfig::new(&url).unwrap().exchange(&exchange).unwrap();
    let failure = connect_failure(config.declare_exchange(ExchangeKind::Topic)).await;
    assert_misconfigured(&failure, "E-RABBITMQ-MISMATCH");
    reader.channel.exchange_delete(exchange.into(), Default::default()).await.unwrap();

    let declared = |kind| {
        let queue = RabbitmqQueue::new(&queue).unwrap().kind(kind);
        RabbitmqConfig::new(&url).unwrap().declare_queue(queue)
    };
    declared(QueueKind::Classic).connect().await.unwrap();
    let failure = connect_failure(declared(QueueKind::Quorum)).await;
    assert_misconfigured(&failure, "E-RABBITMQ-MISMATCH");
    reader.channel.queue_delete(queue.into(), Default::default()).await.unwrap();
}

#[tokio::test]
async fn what_amqp_cannot_carry_is_refused_and_the_connection_stays() {
    let with = |config: RabbitmqConfig| config.max_message_bytes(1000);
    let Some(queue) = Queue::with(FieldTable::default(), with).await else { return };
    let cases = [
        event("body", 0).with_bytes("text/plain", "x".repeat(1001)),
        // More than a frame: the broker would end the connection.
        event("headers", 0).with_header("h", "x".repeat(200_000)),
        event("content type", 0).with_bytes("x".repeat(256), ""),
    ];
    for case in cases {
        let failure = failure_of(queue.publish([case]).await);
        assert_eq!((failure.fault(), failure.code()), (Fault::Refused, "E-RABBITMQ-TOO-LARGE"));
    }
    let largest = event("body", 1).with_header("h", "x".repeat(100_000));
    assert!(queue.publish([largest]).await.all_confirmed(), "the connection is as it was");
}

#[tokio::test]
async fn a_missing_ca_file_is_misconfigured() {
    let config = RabbitmqConfig::new("amqp://localhost").unwrap().ca_file("/no/such/file.pem");
    assert_misconfigured(&connect_failure(config).await, "E-RABBITMQ-TLS");
}
