//! Gives each message its topic on the way to the sink.

use std::collections::HashSet;

use async_trait::async_trait;
use semel_core::{
    EventId, Failure, LaneKey, Message, Published, Route, Sink, TopicTemplate, Verdict,
};

/// A sink behind a route: events the route cannot place are refused, and their lane waits.
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

    fn place(&self, message: &Message) -> Result<Message, Failure> {
        let topic = self.route.topic(&message.event)?;
        Ok(Message { topic, ..message.clone() })
    }

    /// Publishes what can be placed; a lane stops at its first message that cannot.
    async fn publish_placeable(&self, batch: &[Message]) -> Published {
        let mut stuck: HashSet<LaneKey> = HashSet::new();
        let mut placed = Vec::with_capacity(batch.len());
        let mut refusals = Vec::with_capacity(batch.len());
        for message in batch {
            let lane = message.event.lane_key();
            refusals.push(if stuck.contains(&lane) {
                Some(Verdict::Behind)
            } else {
                self.place(message).map(|message| placed.push(message)).err().map(|failure| {
                    stuck.insert(lane);
                    Verdict::Failed(failure)
                })
            });
        }
        let mut verdicts = match self.sink.publish(&placed).await {
            Published::All => vec![Verdict::Confirmed; placed.len()].into_iter(),
            Published::Each(verdicts) => verdicts.into_iter(),
            none @ Published::None(_) => return none,
        };
        let merged = refusals.into_iter().filter_map(|refusal| refusal.or_else(|| verdicts.next()));
        Published::Each(merged.collect())
    }
}

#[async_trait]
impl<S: Sink, R: Route> Sink for Routed<S, R> {
    async fn publish(&self, batch: &[Message]) -> Published {
        let placed: Result<Vec<Message>, Failure> =
            batch.iter().map(|message| self.place(message)).collect();
        match placed {
            Ok(placed) => self.sink.publish(&placed).await,
            Err(_) => self.publish_placeable(batch).await,
        }
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
}
