//! A sink behind a route: what is placed, passed over and refused (R8).

use semel_core::memory::MemoryBroker;
use semel_core::{Event, Message, Published, Routing, Sink, Verdict};
use semel_relay::Routed;

fn message(lane: &str, kind: &str) -> Message {
    Message::first("outbox", Event::new("order", lane, kind))
}

fn verdicts(published: Published) -> Vec<&'static str> {
    let Published::Each(verdicts) = published else { panic!("one verdict each: {published:?}") };
    let word = |verdict: &Verdict| match verdict {
        Verdict::Confirmed => "confirmed",
        Verdict::Failed(_) => "failed",
        Verdict::Behind => "behind",
        Verdict::Buried(_) => "buried",
    };
    verdicts.iter().map(word).collect()
}

#[tokio::test]
async fn events_of_other_types_are_passed_over() {
    let broker = MemoryBroker::new();
    let routing =
        Routing::new("orders".parse().unwrap()).only_event_types(["Placed".parse().unwrap()]);
    let sink = Routed::by(broker.clone(), routing);
    let batch = [message("a", "Seen"), message("a", "Placed"), message("b", "Seen")];
    assert_eq!(verdicts(sink.publish(&batch).await), ["confirmed"; 3]);
    let sent: Vec<_> = broker.messages().iter().map(|m| m.event.event_type.clone()).collect();
    assert_eq!(sent, ["Placed"]);
    assert!(sink.publish(&batch[..1]).await.all_confirmed());
    assert_eq!(broker.messages().len(), 1);
}

#[tokio::test]
async fn a_lane_stops_at_the_event_that_cannot_be_placed() {
    let broker = MemoryBroker::new();
    let sink = Routed::new(broker.clone(), "{header.tenant}".parse().unwrap());
    let placeable = |lane: &str| {
        Message::first("outbox", Event::new("order", lane, "Placed").with_header("tenant", "acme"))
    };
    let batch = [placeable("a"), message("a", "Placed"), placeable("a"), placeable("b")];
    let published = sink.publish(&batch).await;
    assert_eq!(verdicts(published), ["confirmed", "failed", "behind", "confirmed"]);
    assert_eq!(broker.messages().len(), 2);
}
