//! A sink that fails.

use std::collections::HashSet;
use std::sync::Arc;

use async_trait::async_trait;
use semel_core::{EventId, Failure, LaneKey, Message, Published, Sink, Verdict};

use super::Chaos;
use super::chaos::Mishap;

/// A sink that is out, refuses, stumbles, publishes twice, publishes and denies it, publishes half
/// and goes silent.
#[derive(Debug)]
pub struct FaultySink<S> {
    inner: S,
    chaos: Arc<Chaos>,
}

impl<S: Sink> FaultySink<S> {
    /// Wraps a sink.
    pub fn new(inner: S, chaos: Arc<Chaos>) -> Self {
        Self { inner, chaos }
    }

    /// Publishes what does not stumble; a lane stops at its first event that does.
    async fn publish_some(&self, batch: &[Message]) -> Published {
        let mut stopped: HashSet<LaneKey> = HashSet::new();
        let (mut sent, mut verdicts) = (Vec::new(), Vec::new());
        for message in batch {
            let lane = message.event.lane_key();
            verdicts.push(if stopped.contains(&lane) {
                Verdict::Behind
            } else if self.chaos.stumbles(message.event.id) {
                stopped.insert(lane);
                Verdict::Failed(Failure::transient("E-CHAOS", "the event stumbled"))
            } else {
                sent.push(message.clone());
                Verdict::Confirmed
            });
        }
        let mut answers = match self.inner.publish(&sent).await {
            Published::All if stopped.is_empty() => return Published::All,
            Published::All => return Published::Each(verdicts),
            Published::Each(answers) => answers.into_iter(),
            none @ Published::None(_) => return none,
        };
        for verdict in &mut verdicts {
            if *verdict == Verdict::Confirmed {
                *verdict = answers.next().expect("one verdict per message");
            }
        }
        Published::Each(verdicts)
    }
}

#[async_trait]
impl<S: Sink> Sink for FaultySink<S> {
    async fn publish(&self, batch: &[Message]) -> Published {
        self.chaos.dawdle().await;
        if self.chaos.is_out() {
            return Published::None(out());
        }
        match self.chaos.mishap() {
            Mishap::None => {}
            Mishap::Fail => return Published::None(out()),
            Mishap::Lie => {
                self.chaos.may_repeat(batch.len());
                self.publish_some(batch).await;
                return Published::None(out());
            }
            Mishap::Hang => {
                self.chaos.may_repeat(batch.len());
                let some = usize::try_from(self.chaos.below(batch.len() as u64 + 1)).unwrap_or(0);
                self.publish_some(&batch[..some]).await;
                return std::future::pending().await;
            }
            Mishap::Double => {
                self.chaos.may_repeat(batch.len());
                self.publish_some(batch).await;
            }
        }
        let published = self.publish_some(batch).await;
        self.chaos.dawdle().await;
        published
    }

    async fn check(&self) -> Result<(), Failure> {
        self.chaos.dawdle().await;
        if self.chaos.is_out() {
            return Err(out());
        }
        self.inner.check().await
    }

    fn remembers(&self) -> bool {
        self.inner.remembers()
    }

    fn settled(&self, events: &[EventId]) {
        self.inner.settled(events);
    }

    fn caught_up(&self) {
        self.inner.caught_up();
    }

    fn system(&self) -> Option<&'static str> {
        self.inner.system()
    }
}

fn out() -> Failure {
    Failure::unavailable("E-CHAOS", "the sink is out of reach")
}
