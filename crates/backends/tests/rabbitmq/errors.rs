//! Set-ups that are wrong and messages that cannot be carried, each provoked on a real broker.

use lapin::options::{ExchangeDeclareOptions, ExchangeDeleteOptions, QueueBindOptions};
use lapin::types::FieldTable;
use semel_backends::rabbitmq::{ExchangeKind, QueueKind, RabbitmqConfig, RabbitmqQueue};
use semel_core::{Event, Failure, Fault, Secret, Sink};
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

/// One exchange per kind of aggregate, made by somebody else.
#[tokio::test]
async fn every_event_finds_its_exchange() {
    let Some(url) = service(Service::Rabbitmq) else { return };
    let reader = Reader::open(&url).await;
    let base = random_name("exchange");
    for kind in ["order", "payment"] {
        let (exchange, queue) = (format!("{base}.{kind}"), format!("{base}-{kind}"));
        let options = ExchangeDeclareOptions { auto_delete: true, ..Default::default() };
        let (topic, none) = (lapin::ExchangeKind::Topic, FieldTable::default);
        let declare =
            reader.channel.exchange_declare(exchange.clone().into(), topic, options, none());
        timeout(PATIENCE, declare).await.unwrap().unwrap();
        reader.declare(&queue, none()).await;
        let (options, key) = (QueueBindOptions::default(), "placed".into());
        let bind = reader.channel.queue_bind(queue.into(), exchange.into(), key, options, none());
        timeout(PATIENCE, bind).await.unwrap().unwrap();
    }
    let template = format!("{base}.{{aggregate_type}}");
    let config = RabbitmqConfig::new(&url).unwrap().exchange(&template).unwrap();
    let sink = timeout(PATIENCE, config.connect()).await.unwrap().unwrap();
    timeout(PATIENCE, sink.check()).await.unwrap().unwrap();
    let of = |kind: &str, number: u64| {
        Event::new(kind, "1", "Numbered").with_bytes("application/json", number.to_string())
    };
    let batch = (0..6).map(|number| of(if number < 4 { "order" } else { "payment" }, number));
    assert!(publish(&sink, "placed", batch).await.all_confirmed());
    let failure = failure_of(publish(&sink, "cancelled", [of("order", 7)]).await);
    assert_eq!(failure.code(), "E-RABBITMQ-UNROUTABLE");
    assert!(failure.to_string().contains(&format!("{base}.order")), "{failure}");
    let failure = failure_of(publish(&sink, "placed", [of("refund", 8)]).await);
    assert_misconfigured(&failure, "E-RABBITMQ-MISSING");
    assert!(failure.to_string().contains(&format!("{base}.refund")), "{failure}");
    assert!(publish(&sink, "placed", [of("order", 9)]).await.all_confirmed(), "others go on");
    assert_eq!(numbers(&reader.arrived(&format!("{base}-order")).await), [0, 1, 2, 3, 9]);
    let all = reader.arrived(&format!("{base}-payment")).await;
    assert_eq!(numbers(&all[5..]), [4, 5]);
}

#[test]
fn only_what_is_the_same_for_all_can_be_declared() {
    let config = || RabbitmqConfig::new("amqp://localhost").unwrap();
    let failure = config().exchange("{aggregate}").unwrap_err();
    assert_misconfigured(&failure, "E-TEMPLATE");
    assert_misconfigured(&config().exchange(&"x".repeat(256)).unwrap_err(), "E-RABBITMQ-NAME");
    let constant = config().exchange("events").unwrap().declare_exchange(ExchangeKind::Topic);
    constant.check().unwrap();
    let template = || config().exchange("{aggregate_type}").unwrap();
    template().check().unwrap();
    let declared = template().declare_exchange(ExchangeKind::Topic);
    assert_misconfigured(&declared.check().unwrap_err(), "E-RABBITMQ-NAME");
    let bound = template().declare_queue(RabbitmqQueue::new("billing").unwrap());
    assert_misconfigured(&bound.check().unwrap_err(), "E-RABBITMQ-NAME");
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
