//! Refusals in the middle of a batch: the right messages, and nothing behind them.

use std::collections::BTreeSet;

use lapin::types::{AMQPValue, FieldTable};
use semel_core::{Fault, Message, Published, Sink, Verdict};
use semel_testkit::workload::{event, events, numbers};
use tokio::time::timeout;

use super::{PATIENCE, Queue};

/// The client library hands a returned message out with another one's confirmation: who was
/// returned must not depend on that.
#[tokio::test]
async fn every_unroutable_message_is_told_from_its_neighbours() {
    let Some(queue) = Queue::with(FieldTable::default(), |config| config).await else { return };
    for round in 0..5 {
        let unroutable = |lane: u64| (lane * 7 + round).is_multiple_of(3);
        let message = |lane: u64| {
            let event = event(&format!("lane-{round}-{lane}"), round * 1000 + lane);
            if unroutable(lane) { Message::first("nowhere", event) } else { queue.message(event) }
        };
        let batch: Vec<_> = (0..300).map(message).collect();
        let published = timeout(PATIENCE, queue.sink.publish(&batch)).await.unwrap();
        let Published::Each(verdicts) = published else { panic!("{published:?}") };
        for (lane, verdict) in (0..).zip(verdicts) {
            match verdict {
                Verdict::Confirmed => assert!(!unroutable(lane), "{lane} was confirmed"),
                Verdict::Failed(failure) => {
                    assert!(unroutable(lane), "{lane}: {failure:?}");
                    assert_eq!(failure.code(), "E-RABBITMQ-UNROUTABLE");
                }
                other => panic!("{lane}: {other:?}"),
            }
        }
    }
    let arrived: BTreeSet<_> = numbers(&queue.arrived().await).into_iter().collect();
    let expected = (0..5_u64).flat_map(|round| {
        (0..300)
            .filter(move |lane| !(lane * 7 + round).is_multiple_of(3))
            .map(move |lane| round * 1000 + lane)
    });
    assert_eq!(arrived, expected.collect());
}

/// Two fit: the third is turned down, and the fourth must not slip in when there is room again.
#[tokio::test]
async fn a_full_queue_is_an_outage_and_holds_its_lane_back() {
    let mut arguments = FieldTable::default();
    arguments.insert("x-max-length".into(), AMQPValue::LongInt(2));
    arguments.insert("x-overflow".into(), AMQPValue::LongString("reject-publish".into()));
    let Some(queue) = Queue::with(arguments, |config| config).await else { return };
    // The limit is checked after the message that reaches it.
    let published = queue.publish(events("a", 0..8)).await;
    let Published::Each(verdicts) = published else { panic!("{published:?}") };
    let refused = verdicts.iter().position(|verdict| *verdict != Verdict::Confirmed).unwrap();
    assert!((2..4).contains(&refused), "{verdicts:?}");
    let Verdict::Failed(failure) = &verdicts[refused] else { panic!("{verdicts:?}") };
    assert_eq!((failure.fault(), failure.code()), (Fault::Unavailable, "E-RABBITMQ-NACK"));
    assert!(verdicts[refused + 1..].iter().all(|verdict| *verdict == Verdict::Behind));
    let refused = u64::try_from(refused).unwrap();
    assert_eq!(numbers(&queue.arrived().await), (0..refused).collect::<Vec<_>>());
    assert!(queue.publish(events("a", refused..refused + 2)).await.all_confirmed());
    assert_eq!(numbers(&queue.arrived().await), (0..refused + 2).collect::<Vec<_>>());
}
