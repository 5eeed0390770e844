//! Brokers that hang, crash, are full, and come back.

use std::process::Command;
use std::time::{Duration, Instant};

use lapin::types::FieldTable;
use semel_backends::rabbitmq::{QueueKind, RabbitmqConfig, RabbitmqQueue, RabbitmqSink};
use semel_core::{Event, Fault, Message, Published, Secret, Sink, Verdict};
use semel_testkit::services::{Private, Service};
use semel_testkit::workload::{event, events, numbers};
use tokio::time::{sleep, timeout};

use super::{PATIENCE, Queue, Reader, failure_of, publish};

/// How soon events flow when the broker is there again, on a machine with much else to do.
const SOON: Duration = Duration::from_secs(10);

/// The outcome is unknown: the event comes again, with the same id, and order holds.
#[tokio::test]
async fn a_cut_between_sending_and_confirming_repeats_and_loses_nothing() {
    let Some(queue) = Queue::with(FieldTable::default(), |config| config).await else { return };
    assert!(queue.publish([event("c", 9)]).await.all_confirmed());
    queue.proxy.swallow_replies(true);
    let batch = [event("a", 0), event("a", 1), event("b", 2)];
    let (published, ()) = tokio::join!(queue.publish(batch.clone()), async {
        until_arrived(&queue, 3).await;
        queue.proxy.cut();
    });
    let failure = failure_of(published);
    assert_eq!(failure.fault(), Fault::Unavailable, "{failure:?}");
    queue.proxy.swallow_replies(false);
    assert!(queue.publish(batch).await.all_confirmed());
    let arrived = numbers(&queue.arrived().await);
    assert_eq!(arrived, [9, 0, 2, 0, 2, 1], "1 was behind 0, which was not confirmed");
}

#[tokio::test]
async fn no_confirmation_in_time_is_an_outage() {
    let Some(queue) = Queue::with(FieldTable::default(), |config| config).await else { return };
    queue.proxy.swallow_replies(true);
    let failure = failure_of(queue.publish([event("a", 0)]).await);
    assert_eq!((failure.fault(), failure.code()), (Fault::Unavailable, "E-RABBITMQ-TIMEOUT"));
    let began = Instant::now();
    let failure = timeout(PATIENCE, queue.sink.check()).await.unwrap().unwrap_err();
    assert_eq!(failure.fault(), Fault::Unavailable);
    assert!(began.elapsed() < Duration::from_secs(7), "a probe is bounded");
    queue.proxy.swallow_replies(false);
    queue.proxy.cut();
    until_ready(&queue.sink).await;
    assert!(queue.publish(events("a", 0..3)).await.all_confirmed());
}

#[tokio::test]
async fn a_killed_or_frozen_broker_is_an_outage_and_passes() {
    let Some(server) = Private::start(Service::Rabbitmq) else { return };
    let sink = private_sink(&server).await;
    assert!(publish(&sink, "orders", events("a", 0..10)).await.all_confirmed());

    server.kill();
    let failure = failure_of(publish(&sink, "orders", [event("a", 10)]).await);
    assert_eq!((failure.fault(), failure.code()), (Fault::Unavailable, "E-RABBITMQ-DOWN"));
    server.restart();
    let back = Instant::now();
    until_ready(&sink).await;
    until_confirmed(&sink, "orders", events("a", 10..20)).await;
    assert!(back.elapsed() < SOON, "{:?}", back.elapsed());

    server.freeze();
    let failure = failure_of(publish(&sink, "orders", [event("a", 20)]).await);
    assert_eq!((failure.fault(), failure.code()), (Fault::Unavailable, "E-RABBITMQ-TIMEOUT"));
    let failure = timeout(PATIENCE, sink.check()).await.unwrap().unwrap_err();
    assert_eq!(failure.fault(), Fault::Unavailable);
    server.thaw();
    let back = Instant::now();
    until_ready(&sink).await;
    until_confirmed(&sink, "orders", events("a", 20..30)).await;
    assert!(back.elapsed() < SOON, "{:?}", back.elapsed());

    let mut arrived = numbers(&Reader::open(server.address()).await.arrived("orders").await);
    arrived.dedup();
    let log = std::fs::read_to_string(server.folder().join("log")).unwrap();
    let all: Vec<_> = (0..30).collect();
    assert_eq!(arrived, all, "what was confirmed survived the crash; the broker says:\n{log}");
}

#[tokio::test]
async fn alarms_are_outages_and_missing_rights_are_misconfigured() {
    let Some(server) = Private::start(Service::Rabbitmq) else { return };
    let sink = private_sink(&server).await;
    assert!(publish(&sink, "orders", [event("a", 0)]).await.all_confirmed());

    let alarms = [
        (1, "set_vm_memory_high_watermark", ["0.000001", "0.6"]),
        (4, "set_disk_free_limit", ["1000000GB", "50MB"]),
    ];
    for (first, setting, [alarming, usual]) in alarms {
        control(&server, &[setting, alarming]);
        // Only a connection that publishes is told; the first call finds out by waiting.
        let failure = failure_of(publish(&sink, "orders", [event("a", first)]).await);
        assert_eq!(failure.fault(), Fault::Unavailable, "{failure:?}");
        let failure = timeout(PATIENCE, sink.check()).await.unwrap().unwrap_err();
        assert_eq!((failure.fault(), failure.code()), (Fault::Unavailable, "E-RABBITMQ-BLOCKED"));
        let failure = failure_of(publish(&sink, "orders", [event("a", first)]).await);
        assert_eq!(failure.code(), "E-RABBITMQ-BLOCKED", "{setting}: at once");
        control(&server, &[setting, usual]);
        until_ready(&sink).await;
        assert!(publish(&sink, "orders", events("a", first..first + 3)).await.all_confirmed());
    }

    // To configure, to write, to read.
    for (user, rights) in [("reader", ["", "", ".*"]), ("writer", [".*", ".*", ""])] {
        control(&server, &["add_user", user, "secret"]);
        control(&server, &[&["set_permissions", user], &rights[..]].concat());
    }
    let url = server.address();
    let known_as =
        |user| RabbitmqConfig::new(url).unwrap().credentials(user, &Secret::new("secret"));
    let sink = timeout(PATIENCE, known_as("reader").connect()).await.unwrap().unwrap();
    let failure = failure_of(publish(&sink, "orders", [event("a", 9)]).await);
    assert_eq!((failure.fault(), failure.code()), (Fault::Misconfigured, "E-RABBITMQ-ACCESS"));
    // One may not make the queue of dead letters, the other may not read.
    for user in ["reader", "writer"] {
        let config = known_as(user).subscription("orders").unwrap();
        let failure = timeout(PATIENCE, config.connect()).await.unwrap().expect_err(user);
        let said = (failure.fault(), failure.code());
        assert_eq!(said, (Fault::Misconfigured, "E-RABBITMQ-ACCESS"), "{user}: {failure:?}");
        assert!(failure.fix().is_some(), "{user}: {failure:?}");
    }
    let mut arrived = numbers(&Reader::open(url).await.arrived("orders").await);
    arrived.dedup();
    assert_eq!(arrived, (0..7).collect::<Vec<_>>());
}

/// Or else it would be sent again for ever, with whatever is beside it.
#[tokio::test]
async fn what_is_confirmed_stays_so_beside_a_queue_that_hangs() {
    let Some(server) = Private::start(Service::Rabbitmq) else { return };
    let queue = |name| RabbitmqQueue::new(name).unwrap().kind(QueueKind::Classic);
    let config = RabbitmqConfig::new(server.address()).unwrap();
    let making = config.clone().declare_queue(queue("orders")).declare_queue(queue("hanging"));
    drop(timeout(PATIENCE, making.connect()).await.unwrap().unwrap());
    let connecting = config.timeout(Duration::from_secs(3)).connect();
    let sink = timeout(PATIENCE, connecting).await.unwrap().unwrap();
    let suspend = "{ok, Queue} = rabbit_amqqueue:lookup(
        rabbit_misc:r(<<\"/\">>, queue, <<\"hanging\">>)), sys:suspend(amqqueue:get_pid(Queue)).";
    control(&server, &["eval", suspend]);

    let to = |queue: &str, lane, number| Message::first(queue, event(lane, number));
    let batch =
        [to("orders", "a", 0), to("hanging", "b", 1), to("orders", "a", 2), to("orders", "b", 3)];
    let published = timeout(PATIENCE, sink.publish(&batch)).await.unwrap();
    let Published::Each(verdicts) = published else { panic!("{published:?}") };
    assert_eq!(verdicts[0], Verdict::Confirmed, "{verdicts:?}");
    for place in [1, 2] {
        let Verdict::Failed(failure) = &verdicts[place] else { panic!("{verdicts:?}") };
        assert_eq!((failure.fault(), failure.code()), (Fault::Unavailable, "E-RABBITMQ-TIMEOUT"));
    }
    assert_eq!(verdicts[3], Verdict::Behind);
    assert!(publish(&sink, "orders", [event("a", 2)]).await.all_confirmed());
    let arrived = numbers(&Reader::open(server.address()).await.arrived("orders").await);
    assert_eq!(arrived, [0, 2], "nothing comes twice");
}

async fn private_sink(server: &Private) -> RabbitmqSink {
    let config = RabbitmqConfig::new(server.address())
        .unwrap()
        .declare_queue(RabbitmqQueue::new("orders").unwrap().kind(QueueKind::Classic))
        .timeout(Duration::from_secs(3));
    timeout(PATIENCE, config.connect()).await.unwrap().unwrap()
}

async fn until_arrived(queue: &Queue, count: usize) {
    let arrive = async {
        while queue.arrived().await.len() < count {
            sleep(Duration::from_millis(10)).await;
        }
    };
    timeout(PATIENCE, arrive).await.expect("they arrive");
}

async fn until_ready(sink: &RabbitmqSink) {
    let ready = async {
        while sink.check().await.is_err() {
            sleep(Duration::from_millis(50)).await;
        }
    };
    timeout(PATIENCE, ready).await.expect("it is ready again");
}

/// A queue may need a moment longer than its broker; until then it is an outage.
pub(super) async fn until_confirmed(sink: &RabbitmqSink, topic: &str, events: Vec<Event>) {
    let confirm = async {
        loop {
            let published = publish(sink, topic, events.clone()).await;
            if published.all_confirmed() {
                return;
            }
            assert_eq!(failure_of(published).fault(), Fault::Unavailable);
        }
    };
    timeout(PATIENCE, confirm).await.expect("they are confirmed");
}

/// What the broker's own administration tool says. Where its node is, only its process knows.
pub(super) fn control(server: &Private, arguments: &[&str]) -> String {
    let node = std::fs::read_to_string(server.folder().join("node_name")).unwrap();
    let node = format!("RABBITMQ_NODENAME={}", node.trim());
    let environment = std::fs::read_dir("/proc").unwrap().find_map(|process| {
        let environment = std::fs::read(process.unwrap().path().join("environ")).ok()?;
        let environment = String::from_utf8_lossy(&environment).into_owned();
        environment.split('\0').any(|variable| variable == node).then_some(environment)
    });
    let environment = environment.expect("the broker runs");
    let wanted = ["HOME", "ERL_EPMD_PORT", "ERL_EPMD_ADDRESS", "RABBITMQ_NODENAME"];
    let variables = environment.split('\0').filter_map(|variable| variable.split_once('='));
    let done = Command::new("/usr/lib/rabbitmq/bin/rabbitmqctl")
        .args(arguments)
        .env("RABBITMQ_CONF_ENV_FILE", "/dev/null")
        .envs(variables.filter(|(name, _)| wanted.contains(name)))
        .output()
        .expect("rabbitmqctl runs");
    assert!(done.status.success(), "{arguments:?}: {done:?}");
    String::from_utf8(done.stdout).unwrap()
}
