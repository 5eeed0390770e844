//! Where deliveries come from: the [`Source`] contract.
//!
//! An outbox table, a database log and a broker subscription are all sources; the engine cannot
//! tell them apart except by their [`Guarantees`].

use std::future;

use async_trait::async_trait;
use futures_util::future::BoxFuture;
use jiff::Timestamp;

use crate::delivery::{Delivery, Holding, Settlement};
use crate::failure::Failure;

/// Hands out deliveries and takes back their outcomes.
///
/// **Concurrency.** The engine drives a source from one place: `next_batch` and `settle` are never
/// called at the same time, and a `next_batch` that follows a `settle` must reflect it.
///
/// **Order.** Deliveries of one lane are handed out in the order they were committed, unless
/// [`Guarantees::lane_order`] is false. A later event of a lane may be handed out while an earlier
/// one is still unsettled (the engine keeps them in order), but never while an earlier one waits
/// for a retry, or is dead with its lane parked.
///
/// **Durability.** What `settle` accepted survives a crash of the caller. What was handed out and
/// not settled is handed out again, by this source after a restart or by its successor, with the
/// same event id. Nothing else is ever handed out twice.
///
/// **Cancellation.** A future that is dropped half-way may or may not have taken effect; the source
/// must stay usable.
///
/// ```
/// use semel_core::memory::MemoryDatabase;
/// use semel_core::{Event, Limit, Outcome, OutboxWriter, Settlement, Source};
///
/// # tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(async {
/// let database = MemoryDatabase::new();
/// let mut tx = database.begin().await;
/// database.append(&mut tx, &[Event::new("order", "42", "OrderPlaced")]).await?;
/// tx.commit();
///
/// let mut source = database.source();
/// let batch = source.next_batch(Limit::default()).await?;
/// let receipt = batch.deliveries[0].receipt;
/// let held = source.settle(&[Settlement { receipt, outcome: Outcome::Delivered }]).await?;
/// assert!(held.is_held());
/// # Ok::<(), Box<dyn std::error::Error>>(()) }).unwrap();
/// ```
#[async_trait]
pub trait Source: Send {
    /// What this source promises. Constant over its life.
    fn guarantees(&self) -> Guarantees;

    /// What is ready now, at most `limit`, perhaps nothing. It does not wait for events to come.
    ///
    /// At least one delivery is handed out if any is ready, even if it alone exceeds
    /// `limit.bytes`. A second call hands out what follows, never what is still unsettled.
    ///
    /// # Errors
    /// `Unavailable` when the store cannot be reached, `Misconfigured` when it is not set up.
    async fn next_batch(&mut self, limit: Limit) -> Result<Batch, Failure>;

    /// Resolves when asking again is worth it: a notification came, a transaction committed.
    ///
    /// The engine also asks again after its idle interval, so a missed wake-up is only a delay, and
    /// the default, never, is right for a source that cannot tell.
    fn wakeup(&mut self) -> BoxFuture<'static, ()> {
        Box::pin(future::pending())
    }

    /// Records what became of deliveries, all or none.
    ///
    /// A repeated call with the same outcomes (after an error, say) is harmless. A receipt that is
    /// not known any more is ignored. `Lost` means that somebody else took over: nothing was
    /// recorded, and every receipt this source gave out is void.
    ///
    /// # Errors
    /// `Unavailable` when the store cannot be reached: the caller keeps the outcomes and asks
    /// again.
    async fn settle(&mut self, settlements: &[Settlement]) -> Result<Holding, Failure>;

    /// Whether the last call found that somebody else took over. Such a source brings nothing, and
    /// one in its place would have to be opened. The default, no, is right for a source that finds
    /// that out when it settles, or that cannot be taken over.
    fn is_lost(&self) -> bool {
        false
    }

    /// Called once, when nothing more will be asked or settled: gives what is still unsettled back
    /// to whoever comes next, sooner than a lease would. The default does nothing, which is right
    /// for a source whose successor takes over at once.
    async fn close(&mut self) {}
}

#[async_trait]
impl<S: Source + ?Sized> Source for Box<S> {
    fn guarantees(&self) -> Guarantees {
        self.as_ref().guarantees()
    }

    async fn next_batch(&mut self, limit: Limit) -> Result<Batch, Failure> {
        self.as_mut().next_batch(limit).await
    }

    fn wakeup(&mut self) -> BoxFuture<'static, ()> {
        self.as_mut().wakeup()
    }

    async fn settle(&mut self, settlements: &[Settlement]) -> Result<Holding, Failure> {
        self.as_mut().settle(settlements).await
    }

    fn is_lost(&self) -> bool {
        self.as_ref().is_lost()
    }

    async fn close(&mut self) {
        self.as_mut().close().await;
    }
}

/// How much a caller has room for.
///
/// ```
/// # use semel_core::Limit;
/// assert_eq!(Limit::default().events, 100);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limit {
    /// How many events.
    pub events: usize,
    /// How many bytes, by [`Event::size`](crate::Event::size).
    pub bytes: usize,
}

impl Default for Limit {
    fn default() -> Self {
        Self { events: 100, bytes: 4 * 1024 * 1024 }
    }
}

/// What a source had ready.
///
/// ```
/// # use semel_core::Batch;
/// let nothing = Batch::default();
/// assert!(nothing.deliveries.is_empty() && !nothing.more && nothing.next_due.is_none());
/// ```
#[derive(Debug, Default)]
pub struct Batch {
    /// The deliveries, in order within each lane.
    pub deliveries: Vec<Delivery>,
    /// Whether more is ready already, so that asking again at once is worth it.
    pub more: bool,
    /// When the earliest event that waits for a *retry* falls due, if one waits.
    pub next_due: Option<Timestamp>,
}

/// What a source promises, so that the engine can do the rest.
///
/// ```
/// # use semel_core::Guarantees;
/// let broker = Guarantees { lane_order: true, parking: false };
/// assert!(!broker.parking);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Guarantees {
    /// Events of one lane come in the order they were committed.
    pub lane_order: bool,
    /// It takes `Retry` and a lane-parking `Dead`: it keeps the event and its lane until due. When
    /// false the engine keeps what waits in memory, and a dead letter never parks its lane.
    pub parking: bool,
}
