//! Addresses each message on the way to the sink.

use std::collections::HashSet;

use async_trait::async_trait;
use semel_core::{
    EventId, Failure, LaneKey, Message, Published, Route, Sink, TopicTemplate, Verdict,
};

use crate::publish::send;
use crate::verdict::stop_lanes_at_failures;

/// A sink behind a route. What is not meant for the sink is passed over; events the route cannot
/// place are refused, and their lane waits.
///
/// ```
/// use semel_core::memory::MemoryBroker;
/// use semel_core::{Event, Message, Sink};
/// use semel_relay::Routed;
///
/// # tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(async {
/// let broker = MemoryBroker::new();
/// let sink = Routed::new(broker.clone(), "{aggregate_type}.events".parse()?);
/// sink.publish(&[Message::first("outbox", Event::new("order", "42", "OrderPlaced"))]).await;
/// assert_eq!(broker.messages()[0].topic.as_str(), "order.events");
/// # Ok::<(), semel_core::Failure>(()) }).unwrap();
/// ```
#[derive(Debug)]
pub struct Routed<S, R = TopicTemplate> {
    sink: S,
    route: R,
}

impl<S: Sink> Routed<S> {
    /// Puts a topic template in front of `sink`.
    pub fn new(sink: S, template: TopicTemplate) -> Self {
        Self { sink, route: template }
    }
}

impl<S: Sink, R: Route> Routed<S, R> {
    /// Puts a route of your own in front of `sink`.
    pub fn by(sink: S, route: R) -> Self {
        Self { sink, route }
    }

    /// What goes to the sink; and, for the messages that do not, what becomes of them instead.
    /// A lane stops at its first message that cannot be placed.
    fn place(&self, batch: &[Message]) -> (Vec<Message>, Vec<Option<Verdict>>) {
        let mut stuck: HashSet<LaneKey> = HashSet::new();
        let mut placed = Vec::with_capacity(batch.len());
        let mut decided = Vec::with_capacity(batch.len());
        for message in batch {
            if !stuck.is_empty() && stuck.contains(&message.event.lane_key()) {
                decided.push(Some(Verdict::Behind));
                continue;
            }
            decided.push(match self.route.route(message) {
                Ok(Some(message)) => {
                    placed.push(message);
                    None
                }
                Ok(None) => Some(Verdict::Confirmed),
                Err(failure) => {
                    stuck.insert(message.event.lane_key());
                    Some(Verdict::Failed(failure))
                }
            });
        }
        (placed, decided)
    }
}

#[async_trait]
impl<S: Sink, R: Route> Sink for Routed<S, R> {
    async fn publish(&self, batch: &[Message]) -> Published {
        let (placed, decided) = self.place(batch);
        if placed.len() == batch.len() {
            return send(&self.sink, &placed).await;
        }
        let published =
            if placed.is_empty() { Published::All } else { send(&self.sink, &placed).await };
        let verdicts = match published {
            Published::All => vec![Verdict::Confirmed; placed.len()],
            Published::Each(verdicts) => verdicts,
            none @ Published::None(_) => return none,
        };
        let mut verdicts = verdicts.into_iter();
        let mut answer = || verdicts.next().unwrap_or(Verdict::Behind);
        let mut merged: Vec<_> =
            decided.into_iter().map(|verdict| verdict.unwrap_or_else(&mut answer)).collect();
        stop_lanes_at_failures(batch, &mut merged);
        Published::Each(merged)
    }

    async fn check(&self) -> Result<(), Failure> {
        self.sink.check().await
    }

    fn remembers(&self) -> bool {
        self.sink.remembers()
    }

    fn settled(&self, events: &[EventId]) {
        self.sink.settled(events);
    }

    fn caught_up(&self) {
        self.sink.caught_up();
    }

    /// The sink behind it sends.
    fn system(&self) -> Option<&'static str> {
        None
    }
}
