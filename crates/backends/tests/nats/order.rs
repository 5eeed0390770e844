//! Lanes are sent in one piece, and the stream itself keeps what is behind a gap out.

use std::collections::BTreeMap;
use std::time::Duration;

use semel_backends::nats::{NatsConfig, NatsSink};
use semel_core::{Event, Fault, Message, Published, Sink, Verdict};
use semel_testkit::workload::{event, events, number, numbers};
use tokio::time::{sleep, timeout};

use super::{PATIENCE, Stream, publish};

/// The numbers of each lane, in the order of their arrival.
fn by_lane(events: &[Event]) -> BTreeMap<String, Vec<u64>> {
    let mut lanes: BTreeMap<String, Vec<u64>> = BTreeMap::new();
    for event in events {
        lanes.entry(event.aggregate_id.clone()).or_default().push(number(event));
    }
    lanes
}

async fn publish_all(sink: &NatsSink, topic: &str, events: Vec<Event>) {
    let published = publish(sink, topic, events).await;
    assert!(published.all_confirmed(), "{published:?}");
}

#[tokio::test]
async fn a_lane_longer_than_a_round_arrives_in_order() {
    let Some(stream) = Stream::fresh().await else { return };
    publish_all(&stream.sink, &stream.name, events("a", 0..2_500)).await;
    let mut made = stream.reader.context.get_stream(&stream.name).await.unwrap();
    assert_eq!(made.info().await.unwrap().state.messages, 2_500);
    assert_eq!(numbers(&stream.arrived().await), (0..2_500).collect::<Vec<_>>());
}

/// The first event tells which stream it is, and that it has no replicas.
#[tokio::test]
async fn a_lane_goes_to_a_stream_without_replicas_in_one_piece() {
    let Some(stream) = Stream::fresh().await else { return };
    publish_all(&stream.sink, &stream.name, events("a", 0..10)).await;
    assert_eq!(stream.reader.in_runs(&stream.name).await, 8, "all but the first two");
    publish_all(&stream.sink, &stream.name, events("a", 10..20)).await;
    assert_eq!(stream.reader.in_runs(&stream.name).await, 17);
}

/// Whoever writes to the same stream breaks runs: what broke is sent again, in order and once.
#[tokio::test(flavor = "multi_thread")]
async fn two_relays_on_one_stream_keep_their_lanes_in_order() {
    let Some(stream) = Stream::fresh().await else { return };
    let second = NatsConfig::new(&stream.proxy.address()).unwrap().connect();
    let second = timeout(PATIENCE, second).await.unwrap().unwrap();
    let relay = async |sink: &NatsSink, name: &str| {
        for start in (0..200).step_by(50) {
            let lanes =
                ["x", "y", "z"].map(|lane| events(&format!("{name}-{lane}"), start..start + 50));
            publish_all(sink, &stream.name, lanes.into_iter().flatten().collect()).await;
        }
    };
    tokio::join!(relay(&stream.sink, "first"), relay(&second, "second"));
    let lanes = by_lane(&stream.arrived().await);
    assert_eq!(lanes.len(), 6);
    for (lane, numbers) in lanes {
        assert_eq!(numbers, (0..200).collect::<Vec<_>>(), "{lane}");
    }
}

/// An event that the stream knows is acknowledged, but is not its last one.
#[tokio::test]
async fn what_comes_again_at_the_head_of_a_run_arrives_once() {
    let Some(stream) = Stream::fresh().await else { return };
    let lane = events("a", 0..10);
    publish_all(&stream.sink, &stream.name, lane[..4].to_vec()).await;
    publish_all(&stream.sink, &stream.name, vec![event("b", 100)]).await;
    publish_all(&stream.sink, &stream.name, lane).await;
    assert_eq!(by_lane(&stream.arrived().await)["a"], (0..10).collect::<Vec<_>>());
}

/// The condition is one of each stream: a lane that changes between two waits for each.
#[tokio::test]
async fn a_lane_over_two_streams_stops_at_a_refusal() {
    let Some(here) = Stream::fresh().await else { return };
    let Some(there) = Stream::fresh().await else { return };
    let message = |number: u64| {
        let name = if number.is_multiple_of(2) { &here.name } else { &there.name };
        Message::first(name.as_str(), event("a", number))
    };
    let batch: Vec<_> = (0..6).map(message).collect();
    let published = timeout(PATIENCE, here.sink.publish(&batch)).await.unwrap();
    assert!(published.all_confirmed(), "{published:?}");
    assert_eq!(numbers(&here.arrived().await), [0, 2, 4]);
    assert_eq!(numbers(&there.arrived().await), [1, 3, 5]);

    let large = event("a", 7).with_bytes("application/octet-stream", vec![0; 300_000]);
    let batch = [message(6), Message::first(there.name.as_str(), large), message(8), message(9)];
    let published = timeout(PATIENCE, here.sink.publish(&batch)).await.unwrap();
    let Published::Each(verdicts) = published else { panic!("{published:?}") };
    assert_eq!(verdicts[0], Verdict::Confirmed);
    assert!(matches!(&verdicts[1], Verdict::Failed(failure) if failure.fault() == Fault::Refused));
    assert_eq!(verdicts[2..], [Verdict::Behind, Verdict::Behind]);
    assert_eq!(numbers(&here.arrived().await), [0, 2, 4, 6]);
    assert_eq!(numbers(&there.arrived().await), [1, 3, 5]);
}

/// The client sends what it still has when it is connected again, though what was before it is lost:
/// the stream must not take that.
#[tokio::test(flavor = "multi_thread")]
async fn a_connection_cut_in_the_middle_leaves_no_gap() {
    let Some(stream) = Stream::fresh().await else { return };
    for round in 0..15_u64 {
        let lanes = [format!("a-{round}"), format!("b-{round}"), format!("c-{round}")];
        let made = |number: u64| {
            let text = format!("{number:02000}");
            lanes.clone().map(|lane| event(&lane, 0).with_bytes("application/json", text.clone()))
        };
        let batch: Vec<_> = (0..300).flat_map(made).collect();
        let (_, ()) = tokio::join!(stream.publish(batch.clone()), async {
            sleep(Duration::from_micros(round * 700)).await;
            stream.proxy.cut();
        });
        assert_no_gap(&stream).await;
        let confirm = async {
            while !stream.publish(batch.clone()).await.all_confirmed() {
                sleep(Duration::from_millis(10)).await;
            }
        };
        timeout(PATIENCE, confirm).await.expect("it goes on");
        assert_no_gap(&stream).await;
        let arrived = by_lane(&stream.arrived().await);
        assert!(lanes.iter().all(|lane| arrived[lane].len() == 300), "all of it, once");
    }
}

async fn assert_no_gap(stream: &Stream) {
    for (lane, numbers) in by_lane(&stream.arrived().await) {
        let expected: Vec<_> = (0..numbers.len() as u64).collect();
        assert_eq!(numbers, expected, "{lane}");
    }
}
