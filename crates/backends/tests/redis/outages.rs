//! Servers that hang, crash, and come back; and those that are up and take no writes.

use std::time::{Duration, Instant};

use redis::cmd;
use semel_backends::redis::RedisSink;
use semel_core::{Event, Failure, Fault, Sink};
use semel_testkit::services::{Private, Service};
use semel_testkit::workload::{event, events, numbers};
use tokio::time::{sleep, timeout};

use super::server::OwnServer;
use super::{BRIEFLY, PATIENCE, Reader, Stream, connect, failure_of, publish};

fn assert_outage(failure: &Failure, code: &str) {
    assert_eq!((failure.fault(), failure.code()), (Fault::Unavailable, code), "{failure:?}");
}

async fn check(sink: &RedisSink) -> Result<(), Failure> {
    timeout(PATIENCE, sink.check()).await.expect("an answer")
}

/// The outcome is unknown: the events come again, with the same ids and in their order.
#[tokio::test]
async fn a_cut_between_sending_and_confirming_repeats_and_loses_nothing() {
    let Some(stream) = Stream::fresh().await else { return };
    stream.proxy.swallow_replies(true);
    let batch = [event("a", 0), event("a", 1), event("b", 2)];
    let began = Instant::now();
    let (published, ()) = tokio::join!(stream.publish(batch.clone()), async {
        let arrive = async {
            while stream.arrived().await.len() < 3 {
                sleep(Duration::from_millis(10)).await;
            }
        };
        timeout(PATIENCE, arrive).await.expect("they arrive");
        stream.proxy.cut();
    });
    assert_outage(&failure_of(published), "E-REDIS-DOWN");
    assert!(began.elapsed() < BRIEFLY, "a lost connection is not waited for");
    stream.proxy.swallow_replies(false);
    until_confirmed(&stream.sink, &stream.name, batch.to_vec()).await;
    assert_eq!(numbers(&stream.arrived().await), [0, 1, 2, 0, 1, 2]);
}

#[tokio::test]
async fn no_answer_in_time_is_an_outage() {
    let Some(stream) = Stream::fresh().await else { return };
    stream.proxy.swallow_replies(true);
    assert_outage(&failure_of(stream.publish([event("a", 0)]).await), "E-REDIS-TIMEOUT");
    let began = Instant::now();
    assert_outage(&check(&stream.sink).await.unwrap_err(), "E-REDIS-TIMEOUT");
    assert!(began.elapsed() < Duration::from_secs(7), "a probe is bounded");
    stream.proxy.swallow_replies(false);
    until_confirmed(&stream.sink, &stream.name, events("a", 0..3)).await;
}

#[tokio::test]
async fn a_killed_or_frozen_server_is_an_outage_and_passes() {
    let Some(server) = Private::start(Service::Redis) else { return };
    let config = semel_backends::redis::RedisConfig::new(server.address()).unwrap();
    let sink = connect(config.timeout(BRIEFLY)).await.unwrap();
    assert!(publish(&sink, "orders", events("a", 0..10)).await.all_confirmed());

    server.kill();
    assert_outage(&failure_of(publish(&sink, "orders", [event("a", 10)]).await), "E-REDIS-DOWN");
    assert_outage(&check(&sink).await.unwrap_err(), "E-REDIS-DOWN");
    server.restart();
    let began = Instant::now();
    until_confirmed(&sink, "orders", events("a", 10..20)).await;
    assert!(began.elapsed() < Duration::from_secs(2), "{:?}", began.elapsed());

    server.freeze();
    assert_outage(&failure_of(publish(&sink, "orders", [event("a", 20)]).await), "E-REDIS-TIMEOUT");
    assert_outage(&check(&sink).await.unwrap_err(), "E-REDIS-TIMEOUT");
    server.thaw();
    until_confirmed(&sink, "orders", events("a", 20..30)).await;

    let arrived = Reader::open(server.address()).await.arrived("orders").await;
    let mut seen = std::collections::BTreeSet::new();
    let first: Vec<_> =
        numbers(&arrived).into_iter().filter(|number| seen.insert(*number)).collect();
    assert_eq!(first, (0..30).collect::<Vec<_>>(), "what was confirmed survived the crash");
}

#[tokio::test]
async fn a_server_that_takes_no_writes_is_an_outage_and_passes() {
    let Some(server) = OwnServer::start(&["--repl-diskless-load", "disabled"]).await else {
        return;
    };
    let reader = server.reader().await;
    let sink = connect(server.config()).await.unwrap();
    let nobody = ["REPLICAOF", "127.0.0.1", "1"];
    // Each: how it is brought about, what the server says, and its code.
    let cases: [(&[[&str; 3]], &str, &str); 4] = [
        (&[["CONFIG", "maxmemory", "1"]], "OOM", "E-REDIS-MEMORY"),
        (&[["CONFIG", "min-replicas-to-write", "1"]], "NOREPLICAS", "E-REDIS-DOWN"),
        (&[nobody], "READONLY", "E-REDIS-DOWN"),
        (
            &[
                ["CONFIG", "replica-read-only", "no"],
                ["CONFIG", "replica-serve-stale-data", "no"],
                nobody,
            ],
            "MASTERDOWN",
            "E-REDIS-DOWN",
        ),
    ];
    for (number, (steps, word, code)) in cases.into_iter().enumerate() {
        for step in steps {
            match step {
                ["CONFIG", setting, value] => reader.set(setting, value).await,
                [command, host, port] => {
                    reader.ask::<()>(cmd(command).arg(host).arg(port)).await;
                }
            }
        }
        for count in [1, 2] {
            let failure = failure_of(publish(&sink, "orders", events("a", 0..count)).await);
            assert_outage(&failure, code);
            assert!(failure.to_string().contains(word), "{failure}");
        }
        let failure = check(&sink).await.unwrap_err();
        assert_outage(&failure, code);
        assert!(failure.to_string().contains(word), "{failure}");
        let usual = [("maxmemory", "0"), ("min-replicas-to-write", "0")];
        for (setting, value) in usual {
            reader.set(setting, value).await;
        }
        reader.ask::<()>(cmd("REPLICAOF").arg("NO").arg("ONE")).await;
        check(&sink).await.unwrap();
        assert!(publish(&sink, "orders", [event("a", 0)]).await.all_confirmed());
        assert_eq!(reader.count("orders").await, number + 1, "{word}");
    }
}

#[tokio::test]
async fn a_server_that_cannot_save_is_an_outage() {
    let Some(server) = OwnServer::start(&["--dbfilename", "dump.rdb"]).await else { return };
    let reader = server.reader().await;
    let sink = connect(server.config()).await.unwrap();
    reader.set("save", "3600 1").await;
    // The folder of the snapshot is taken by a folder of its name.
    server.spoil("dump.rdb");
    reader.ask::<redis::Value>(&cmd("BGSAVE")).await;
    let failure = timeout(PATIENCE, async {
        loop {
            if let Err(failure) = check(&sink).await {
                return failure;
            }
            sleep(Duration::from_millis(20)).await;
        }
    });
    let failure = failure.await.expect("it notices");
    assert_outage(&failure, "E-REDIS-DOWN");
    assert!(failure.to_string().contains("MISCONF"), "{failure}");
    let failure = failure_of(publish(&sink, "orders", events("a", 0..2)).await);
    assert_outage(&failure, "E-REDIS-DOWN");
}

#[tokio::test]
async fn a_server_that_loads_its_data_is_an_outage_and_passes() {
    let slow = ["--key-load-delay", "1000", "--loading-process-events-interval-bytes", "1024"];
    let Some(mut server) = OwnServer::start(&slow).await else { return };
    let sink = connect(server.config()).await.unwrap();
    let mut fill = redis::pipe();
    for number in 0..3_000 {
        fill.cmd("SET").arg(number).arg("x".repeat(20)).ignore();
    }
    let reader = server.reader().await;
    timeout(PATIENCE, fill.exec_async(&mut reader.0.clone())).await.unwrap().unwrap();
    reader.ask::<()>(&cmd("SAVE")).await;
    server.restart().await;
    let failure = timeout(PATIENCE, async {
        loop {
            let failure = failure_of(publish(&sink, "orders", events("a", 0..2)).await);
            assert_outage(&failure, "E-REDIS-DOWN");
            if failure.to_string().contains("LOADING") {
                return;
            }
        }
    });
    failure.await.expect("it is seen loading");
    let failure = check(&sink).await.unwrap_err();
    assert!(failure.to_string().contains("LOADING"), "{failure}");
    until_confirmed(&sink, "orders", events("a", 0..2)).await;
}

#[tokio::test]
async fn a_cluster_that_is_down_is_an_outage() {
    let Some(server) = OwnServer::start(&["--cluster-enabled", "yes"]).await else { return };
    let sink = connect(server.config()).await.unwrap();
    for count in [1, 2] {
        let failure = failure_of(publish(&sink, "orders", events("a", 0..count)).await);
        assert_outage(&failure, "E-REDIS-DOWN");
        assert!(failure.to_string().contains("CLUSTERDOWN"), "{failure}");
    }
    assert_outage(&check(&sink).await.unwrap_err(), "E-REDIS-DOWN");
    let reader = server.reader().await;
    reader.ask::<()>(cmd("CLUSTER").arg("ADDSLOTSRANGE").arg(0).arg(16383)).await;
    until_confirmed(&sink, "orders", events("a", 0..2)).await;
    // Streams in different slots go in one call: each has a transaction of its own.
    let batch = ["orders", "refunds", "returns"].map(|topic| {
        events(topic, 0..2).into_iter().map(move |event| semel_core::Message::first(topic, event))
    });
    let batch: Vec<_> = batch.into_iter().flatten().collect();
    assert!(super::send(&sink, &batch).await.all_confirmed());
}

/// As after a failover: the node is there, and sends everybody to its successor.
#[tokio::test]
async fn a_node_that_gave_a_stream_away_is_an_outage_and_passes() {
    let Some(nodes) = super::keys::cluster().await else { return };
    let (here, there) = (nodes[2].reader().await, nodes[0].reader().await);
    let config = || nodes[2].config().key_prefix("{a}:");
    let sink = connect(config()).await.unwrap();
    assert!(publish(&sink, "orders", events("a", 0..2)).await.all_confirmed());
    give_a_away(&here, &there).await;
    for count in [1, 2] {
        let failure = failure_of(publish(&sink, "orders", events("a", 0..count)).await);
        assert_outage(&failure, "E-REDIS-DOWN");
        assert!(failure.to_string().contains("MOVED"), "{failure}");
    }
    let fresh = connect(config()).await.unwrap();
    let failure = failure_of(publish(&fresh, "orders", events("a", 0..2)).await);
    assert_eq!((failure.fault(), failure.code()), (Fault::Misconfigured, "E-REDIS-CLUSTER"));
    give_a_away(&there, &here).await;
    until_confirmed(&sink, "orders", events("a", 0..2)).await;
}

/// The slot of {a}, which is on the last node of three at first; what is in it is lost.
async fn give_a_away(from: &Reader, to: &Reader) {
    const SLOT: u16 = 15495;
    let giver: String = from.ask(cmd("CLUSTER").arg("MYID")).await;
    let taker: String = to.ask(cmd("CLUSTER").arg("MYID")).await;
    let set = |state: &str, node: &str| {
        let mut command = cmd("CLUSTER");
        command.arg("SETSLOT").arg(SLOT).arg(state).arg(node);
        command
    };
    from.ask::<()>(cmd("DEL").arg("{a}:orders")).await;
    to.ask::<()>(&set("IMPORTING", &giver)).await;
    to.ask::<()>(&set("NODE", &taker)).await;
    from.ask::<()>(&set("NODE", &taker)).await;
}

#[tokio::test]
async fn a_server_with_too_many_clients_is_an_outage() {
    let Some(server) = OwnServer::start(&[]).await else { return };
    let only = server.reader().await;
    only.set("maxclients", "1").await;
    let failure = connect(server.config()).await.err().unwrap();
    assert_outage(&failure, "E-REDIS-DOWN");
    let login = server.config().credentials("default", semel_core::Secret::new("x"));
    assert_outage(&connect(login).await.err().unwrap(), "E-REDIS-DOWN");
}

/// Until then it is an outage.
async fn until_confirmed(sink: &RedisSink, topic: &str, events: Vec<Event>) {
    let confirm = async {
        loop {
            let published = publish(sink, topic, events.clone()).await;
            if published.all_confirmed() {
                return;
            }
            assert_eq!(failure_of(published).fault(), Fault::Unavailable);
            sleep(Duration::from_millis(20)).await;
        }
    };
    timeout(PATIENCE, confirm).await.expect("they are confirmed");
}
