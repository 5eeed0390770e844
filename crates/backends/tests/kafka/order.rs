//! What arrives, and in which order, when something in the middle fails.

use std::process::Command;
use std::time::Duration;

use semel_backends::kafka::Compression;
use semel_core::wire::Format;
use semel_core::{Event, Fault, Message, Verdict};
use semel_testkit::services::{Service, service};
use semel_testkit::workload::{assert_intact, awkward_events, event, events};

use super::{config, expect, failure, messages, publish, sink, topics};

/// The third of five is refused by the broker, after it was sent; the other lane flows.
#[tokio::test]
async fn a_refusal_by_the_broker_leaves_no_gap() {
    let Some(brokers) = service(Service::Kafka) else { return };
    // In one request with the others, and in requests of their own, several under way at once.
    for batch_bytes in [256 * 1024, 1] {
        let topic = topics::random_topic();
        topics::create(&brokers, &topic, &[]).await;
        let sink = config(&brokers).batch_bytes(batch_bytes).connect().await.unwrap();
        publish(&sink, &messages(&topic, [event("a", 0), event("b", 0)])).await;
        // From now on the broker knows more than the sink.
        topics::alter(&brokers, &topic, &[("max.message.bytes", "3000")]).await;

        let large = |event: Event| event.with_bytes("application/octet-stream", vec![7; 5000]);
        let batch: Vec<_> = (1..6)
            .flat_map(|number| {
                let bad = event("a", number);
                [if number == 3 { large(bad) } else { bad }, event("b", number)]
            })
            .collect();
        let verdicts = publish(&sink, &messages(&topic, batch)).await;
        let (a, b): (Vec<_>, Vec<_>) =
            verdicts.chunks(2).map(|pair| (pair[0].clone(), pair[1].clone())).unzip();
        assert_eq!(a[..2], [Verdict::Confirmed, Verdict::Confirmed]);
        expect(failure(&a[2]), Fault::Refused, "E-KAFKA-TOO-LARGE");
        assert_eq!(a[3..], [Verdict::Behind, Verdict::Behind]);
        assert_eq!(b, vec![Verdict::Confirmed; 5]);
        assert_eq!(topics::first_arrivals(&brokers, &topic, "a").await, [0, 1, 2]);
        assert_eq!(topics::first_arrivals(&brokers, &topic, "b").await, [0, 1, 2, 3, 4, 5]);

        let rest = publish(&sink, &messages(&topic, events("a", 4..6))).await;
        assert_eq!(rest, [Verdict::Confirmed, Verdict::Confirmed]);
        assert_eq!(topics::first_arrivals(&brokers, &topic, "a").await, [0, 1, 2, 4, 5]);
    }
}

/// A broker that has nothing of a producer yet takes any of its messages for the first.
#[tokio::test]
async fn a_refusal_of_the_first_message_of_a_producer_leaves_no_gap() {
    let Some(brokers) = service(Service::Kafka) else { return };
    for batch_bytes in [256 * 1024, 1, 1, 1] {
        let topic = topics::random_topic();
        topics::create(&brokers, &topic, &[("max.message.bytes", "3000")]).await;
        let sink = config(&brokers).batch_bytes(batch_bytes).connect().await.unwrap();
        let large = event("a", 0).with_bytes("application/octet-stream", vec![7; 5000]);
        let mut batch = messages(&topic, [large].into_iter().chain(events("a", 1..5)));
        batch.extend(messages(&topic, events("b", 0..5)));
        let verdicts = publish(&sink, &batch).await;
        expect(failure(&verdicts[0]), Fault::Refused, "E-KAFKA-TOO-LARGE");
        assert_eq!(verdicts[1..5], vec![Verdict::Behind; 4]);
        assert_eq!(verdicts[5..], vec![Verdict::Confirmed; 5]);
        assert!(topics::first_arrivals(&brokers, &topic, "a").await.is_empty());
        assert_eq!(topics::first_arrivals(&brokers, &topic, "b").await, [0, 1, 2, 3, 4]);
    }
}

/// Other keys have other partitions, where nothing stops what is behind a refusal but the sink.
#[tokio::test]
async fn a_refusal_leaves_no_gap_where_a_lane_has_many_keys() {
    let Some(brokers) = service(Service::Kafka) else { return };
    for batch_bytes in [256 * 1024, 1] {
        let topic = topics::random_topic();
        topics::create(&brokers, &topic, &[]).await;
        let sink = config(&brokers).batch_bytes(batch_bytes).connect().await.unwrap();
        publish(&sink, &messages(&topic, [event("b", 0)])).await;
        topics::alter(&brokers, &topic, &[("max.message.bytes", "3000")]).await;

        let keyed = |number: u64| {
            let key = format!("key-{number}");
            let event = event("a", number).with_header(topics::OWN_KEY, &*key);
            let event = if number == 3 {
                event.with_bytes("application/octet-stream", vec![7; 5000])
            } else {
                event
            };
            Message { key: Some(key.into()), ..Message::first(topic.as_str(), event) }
        };
        let verdicts = publish(&sink, &(1..10).map(keyed).collect::<Vec<_>>()).await;
        assert_eq!(verdicts[..2], [Verdict::Confirmed, Verdict::Confirmed]);
        expect(failure(&verdicts[2]), Fault::Refused, "E-KAFKA-TOO-LARGE");
        assert_eq!(verdicts[3..], vec![Verdict::Behind; 6]);
        let mut arrived = topics::first_arrivals(&brokers, &topic, "a").await;
        arrived.sort_unstable();
        assert_eq!(arrived, [1, 2]);
    }
}

/// They share the producer that the refusal ends.
#[tokio::test]
async fn a_refusal_disturbs_no_other_call() {
    let Some(brokers) = service(Service::Kafka) else { return };
    let topic = topics::random_topic();
    topics::create(&brokers, &topic, &[("max.message.bytes", "3000")]).await;
    let sink = config(&brokers).batch_bytes(2000).connect().await.unwrap();
    let others = ["b", "c", "d"].map(|lane| {
        let (sink, topic) = (&sink, &topic);
        async move {
            for start in (0..300).step_by(10) {
                let batch = messages(topic, events(lane, start..start + 10));
                assert_eq!(publish(sink, &batch).await, vec![Verdict::Confirmed; 10]);
            }
        }
    });
    let refusals = async {
        let large = event("a", 0).with_bytes("application/octet-stream", vec![7; 5000]);
        for _ in 0..3 {
            let verdicts = publish(&sink, &messages(&topic, [large.clone()])).await;
            expect(failure(&verdicts[0]), Fault::Refused, "E-KAFKA-TOO-LARGE");
        }
    };
    tokio::join!(futures_util::future::join_all(others), refusals);
    for lane in ["b", "c", "d"] {
        let arrived = topics::first_arrivals(&brokers, &topic, lane).await;
        assert_eq!(arrived, (0..300).collect::<Vec<_>>(), "{lane}");
    }
    assert!(topics::first_arrivals(&brokers, &topic, "a").await.is_empty());
}

#[tokio::test]
async fn a_lane_over_several_topics_stops_at_the_first_that_fails() {
    let Some(brokers) = service(Service::Kafka) else { return };
    let (one, two, missing) =
        (topics::random_topic(), topics::random_topic(), topics::random_topic());
    topics::create(&brokers, &one, &[]).await;
    topics::create(&brokers, &two, &[]).await;
    let sink = sink(&brokers).await;
    let route = [&one, &two, &one, &missing, &two];
    let batch: Vec<_> = route
        .iter()
        .zip(0..)
        .map(|(topic, number)| Message::first(topic.as_str(), event("a", number)))
        .collect();
    let verdicts = publish(&sink, &batch).await;
    assert_eq!(verdicts[..3], vec![Verdict::Confirmed; 3]);
    expect(failure(&verdicts[3]), Fault::Misconfigured, "E-KAFKA-TOPIC-MISSING");
    assert_eq!(verdicts[4], Verdict::Behind);
    assert_eq!(topics::first_arrivals(&brokers, &one, "a").await, [0, 2]);
    assert_eq!(topics::first_arrivals(&brokers, &two, "a").await, [1], "4 waits for 3");
}

#[tokio::test]
async fn a_full_buffer_makes_the_sender_wait() {
    let Some(brokers) = service(Service::Kafka) else { return };
    let topic = topics::random_topic();
    topics::create(&brokers, &topic, &[]).await;
    let sink =
        config(&brokers).buffer_bytes(64 * 1024).linger(Duration::ZERO).connect().await.unwrap();
    let batch = |part: u64| {
        let large = |number| {
            event(&format!("{part}-{}", number % 7), number)
                .with_bytes("application/octet-stream", vec![7; 10_000])
        };
        messages(&topic, (0..100).map(large))
    };
    let batches = [0, 1, 2, 3].map(batch);
    let sent = batches.iter().map(|batch| publish(&sink, batch));
    for verdicts in futures_util::future::join_all(sent).await {
        assert!(verdicts.iter().all(|verdict| *verdict == Verdict::Confirmed));
    }
    assert_eq!(topics::read(&brokers, &[&topic]).await.len(), 400);
}

#[tokio::test]
async fn every_format_and_compression_arrives_intact() {
    let Some(brokers) = service(Service::Kafka) else { return };
    let compressions = [
        Compression::None,
        Compression::Gzip,
        Compression::Snappy,
        Compression::Lz4,
        Compression::Zstd,
    ];
    let formats = Format::NAMES.iter().map(|(_, format)| *format).cycle();
    for (compression, format) in compressions.into_iter().zip(formats) {
        let topic = topics::random_topic();
        topics::create(&brokers, &topic, &[]).await;
        let config = config(&brokers).compression(compression).format(format);
        let sink = config.connect().await.unwrap();
        let sent = awkward_events();
        let verdicts = publish(&sink, &messages(&topic, sent.iter().cloned())).await;
        assert!(verdicts.iter().all(|verdict| *verdict == Verdict::Confirmed), "{verdicts:?}");
        let arrived = topics::read(&brokers, &[&topic]).await;
        assert_eq!(arrived.len(), sent.len());
        for (sent, arrived) in sent.iter().zip(&arrived) {
            assert_intact(sent, arrived);
        }
    }
}

/// Read with a tool that somebody else wrote.
#[tokio::test]
async fn kcat_reads_key_headers_and_value() {
    let Some(brokers) = service(Service::Kafka) else { return };
    let topic = topics::random_topic();
    topics::create(&brokers, &topic, &[]).await;
    let event = Event::new("order", "42", "OrderPlaced")
        .with_bytes("application/json", r#"{"total":99}"#)
        .with_header("tenant", "acme");
    let id = event.id;
    publish(&sink(&brokers).await, &messages(&topic, [event])).await;
    let read = Command::new("kcat")
        .args([
            "-C",
            "-q",
            "-e",
            "-o",
            "beginning",
            "-f",
            "%k|%s|%h\n",
            "-b",
            &brokers,
            "-t",
            &topic,
        ])
        .output()
        .expect("kcat runs");
    let line = String::from_utf8(read.stdout).unwrap();
    assert!(line.starts_with(r#"42|{"total":99}|content-type=application/json,"#), "{line}");
    assert!(line.contains(&format!("semel-event-id={id}")), "{line}");
    assert!(line.contains("semel-event-type=OrderPlaced"), "{line}");
    assert!(line.contains("tenant=acme"), "{line}");
}
