//! A sink that measures the time between a commit and its call.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

use async_trait::async_trait;
use semel_core::{EventId, Failure, Message, Published, Sink};

/// When events were committed, and when the sink got them.
#[derive(Debug, Default)]
pub(crate) struct StopWatch(Mutex<HashMap<EventId, Times>>);

/// When it was committed, and when it arrived.
type Times = (Option<Instant>, Option<Instant>);

impl StopWatch {
    /// The server has answered to the commit of this event.
    pub(crate) fn committed(&self, id: EventId) {
        self.note(id, |times| &mut times.0);
    }

    /// These events are where they should be.
    pub(crate) fn arrived(&self, batch: &[Message]) {
        batch.iter().for_each(|message| self.note(message.event.id, |times| &mut times.1));
    }

    fn note(&self, id: EventId, which: impl Fn(&mut Times) -> &mut Option<Instant>) {
        let now = Instant::now();
        let mut times = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        which(times.entry(id).or_default()).get_or_insert(now);
    }

    pub(crate) fn summary(&self) -> String {
        let times = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let committed = times.values().filter(|(committed, _)| committed.is_some()).count();
        let span = |&(committed, got): &Times| Some(got?.saturating_duration_since(committed?));
        let mut spans: Vec<_> = times.values().filter_map(span).collect();
        spans.sort_unstable();
        let at =
            |percent: usize| spans.get(spans.len() * percent / 100).copied().unwrap_or_default();
        format!("p50 {:?}, p99 {:?}, {} of {committed}", at(50), at(99), spans.len())
    }
}

#[async_trait]
impl Sink for StopWatch {
    async fn publish(&self, batch: &[Message]) -> Published {
        self.arrived(batch);
        Published::All
    }

    async fn check(&self) -> Result<(), Failure> {
        Ok(())
    }
}
