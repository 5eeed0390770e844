//! Known-wrong variants: each must be caught by some seed.

use std::collections::HashSet;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use futures_util::future::BoxFuture;
use semel_core::inbox::{Opening, Seen};
use semel_core::memory::{MemoryDatabase, MemoryTx};
use semel_core::{
    Batch, EventId, Failure, Guarantees, Holding, InboxStore, Limit, Message, Outcome, Published,
    Receipt, Settlement, Sink, Source,
};
use semel_relay::Mutation;

/// One way to be wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mutant {
    /// In the engine.
    Engine(Mutation),
    /// The relay's sink confirms before it has published.
    ConfirmsTooEarly,
    /// The consumer acknowledges before its effect is committed.
    AcksBeforeEffect,
    /// A time-out is taken for a success.
    TimeoutIsSuccess,
    /// Everything is sent twice to be sure.
    PublishesTwice,
    /// A refused event is settled as delivered.
    DropsRefused,
    /// The cursor moves to the last settled event, over unsettled ones.
    CursorByHighest,
    /// A settle that failed is taken for recorded.
    IgnoresSettleFailure,
    /// The handler runs without asking the inbox.
    SkipsInbox,
    /// The inbox remembers the id although the effect was rolled back.
    RemembersTooEarly,
}

impl Mutant {
    pub(crate) const ALL: [Self; 14] = [
        Self::Engine(Mutation::MarkBeforeConfirm),
        Self::Engine(Mutation::ForgetLaneOnRetry),
        Self::Engine(Mutation::OutageBurnsAttempt),
        Self::Engine(Mutation::RequeueAtEnd),
        Self::Engine(Mutation::NoLaneExclusion),
        Self::ConfirmsTooEarly,
        Self::AcksBeforeEffect,
        Self::TimeoutIsSuccess,
        Self::PublishesTwice,
        Self::DropsRefused,
        Self::CursorByHighest,
        Self::IgnoresSettleFailure,
        Self::SkipsInbox,
        Self::RemembersTooEarly,
    ];

    pub(crate) fn in_engine(self) -> Option<Mutation> {
        match self {
            Self::Engine(mutation) => Some(mutation),
            _ => None,
        }
    }

    pub(crate) fn wrong_source(
        mutant: Option<Self>,
        source: impl Source + 'static,
    ) -> Box<dyn Source> {
        match mutant {
            Some(mutant) => Box::new(WrongSource { inner: source, mutant, out: Vec::new() }),
            None => Box::new(source),
        }
    }

    pub(crate) fn wrong_sink(
        mutant: Option<Self>,
        relay: &str,
        sink: impl Sink + 'static,
    ) -> Arc<dyn Sink> {
        let inner = Arc::new(sink);
        match (mutant, relay) {
            (Some(Self::ConfirmsTooEarly), "relay")
            | (Some(Self::AcksBeforeEffect), "consumer") => Arc::new(EagerSink { inner }),
            (Some(Self::TimeoutIsSuccess), _) => Arc::new(HopefulSink { inner }),
            (Some(Self::PublishesTwice), _) => Arc::new(AnxiousSink { inner }),
            _ => inner,
        }
    }
}

struct WrongSource<S> {
    inner: S,
    mutant: Mutant,
    out: Vec<Receipt>,
}

#[async_trait]
impl<S: Source> Source for WrongSource<S> {
    fn guarantees(&self) -> Guarantees {
        self.inner.guarantees()
    }

    async fn next_batch(&mut self, limit: Limit) -> Result<Batch, Failure> {
        let batch = self.inner.next_batch(limit).await?;
        self.out.extend(batch.deliveries.iter().map(|delivery| delivery.receipt));
        Ok(batch)
    }

    fn wakeup(&mut self) -> BoxFuture<'static, ()> {
        self.inner.wakeup()
    }

    async fn settle(&mut self, settlements: &[Settlement]) -> Result<Holding, Failure> {
        let mut settlements = settlements.to_vec();
        match self.mutant {
            Mutant::DropsRefused => {
                for settlement in &mut settlements {
                    if matches!(settlement.outcome, Outcome::Dead { .. }) {
                        settlement.outcome = Outcome::Delivered;
                    }
                }
            }
            Mutant::CursorByHighest => {
                let highest = settlements.iter().map(|settlement| settlement.receipt).max();
                let settled: HashSet<Receipt> =
                    settlements.iter().map(|settlement| settlement.receipt).collect();
                let passed = self.out.iter().filter(|receipt| Some(**receipt) < highest);
                let passed = passed.filter(|receipt| !settled.contains(receipt));
                let passed =
                    passed.map(|&receipt| Settlement { receipt, outcome: Outcome::Delivered });
                settlements.extend(passed);
            }
            _ => {}
        }
        match self.inner.settle(&settlements).await {
            Err(_) if self.mutant == Mutant::IgnoresSettleFailure => Ok(Holding::Held),
            answer => answer,
        }
    }
}

/// Says yes, then does it.
struct EagerSink<S> {
    inner: Arc<S>,
}

#[async_trait]
impl<S: Sink + 'static> Sink for EagerSink<S> {
    async fn publish(&self, batch: &[Message]) -> Published {
        let (inner, batch) = (Arc::clone(&self.inner), batch.to_vec());
        tokio::spawn(async move { inner.publish(&batch).await });
        Published::All
    }

    async fn check(&self) -> Result<(), Failure> {
        self.inner.check().await
    }
}

/// Takes no answer for a good answer.
struct HopefulSink<S> {
    inner: Arc<S>,
}

#[async_trait]
impl<S: Sink> Sink for HopefulSink<S> {
    async fn publish(&self, batch: &[Message]) -> Published {
        let answer = tokio::time::timeout(Duration::from_secs(1), self.inner.publish(batch)).await;
        answer.unwrap_or(Published::All)
    }

    async fn check(&self) -> Result<(), Failure> {
        self.inner.check().await
    }
}

/// Does it twice.
struct AnxiousSink<S> {
    inner: Arc<S>,
}

#[async_trait]
impl<S: Sink> Sink for AnxiousSink<S> {
    async fn publish(&self, batch: &[Message]) -> Published {
        self.inner.publish(batch).await;
        self.inner.publish(batch).await
    }

    async fn check(&self) -> Result<(), Failure> {
        self.inner.check().await
    }
}

/// The inbox, right or wrong.
pub(crate) struct WrongInbox {
    inner: MemoryDatabase,
    mutant: Option<Mutant>,
    remembered: Mutex<HashSet<EventId>>,
}

impl WrongInbox {
    pub(crate) fn new(inner: MemoryDatabase, mutant: Option<Mutant>) -> Self {
        Self { inner, mutant, remembered: Mutex::default() }
    }
}

impl InboxStore for WrongInbox {
    type Tx<'c> = MemoryTx;

    async fn begin(&self) -> Result<MemoryTx, Failure> {
        Ok(self.inner.begin().await)
    }

    async fn begin_with(
        &self,
        consumer: &str,
        opening: Opening<'_>,
    ) -> Result<(MemoryTx, bool), Failure> {
        match self.mutant {
            Some(Mutant::SkipsInbox | Mutant::RemembersTooEarly) => {
                Ok((self.inner.begin().await, false))
            }
            _ => self.inner.begin_with(consumer, opening).await,
        }
    }

    async fn record(
        &self,
        tx: &mut Self::Tx<'_>,
        consumer: &str,
        id: EventId,
    ) -> Result<Seen, Failure> {
        match self.mutant {
            Some(Mutant::SkipsInbox) => Ok(Seen::First),
            Some(Mutant::RemembersTooEarly) => {
                let first = self.remembered.lock().expect("not poisoned").insert(id);
                Ok(if first { Seen::First } else { Seen::Duplicate { result: None } })
            }
            _ => self.inner.record(tx, consumer, id).await,
        }
    }

    async fn store_result(
        &self,
        tx: &mut Self::Tx<'_>,
        consumer: &str,
        id: EventId,
        result: Bytes,
    ) -> Result<(), Failure> {
        self.inner.store_result(tx, consumer, id, result).await
    }

    async fn commit(&self, tx: MemoryTx) -> Result<(), Failure> {
        self.inner.commit(tx).await
    }

    async fn rollback(&self, tx: MemoryTx) {
        self.inner.rollback(tx).await;
    }

    async fn forget(&self, age: Duration, limit: usize) -> Result<usize, Failure> {
        self.inner.forget(age, limit).await
    }
}
