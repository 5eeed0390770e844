//! Taking effect once: the [`InboxStore`] contract, and [`InboxStore::process`] on top of it.

use std::error::Error;
use std::future::Future;
use std::time::Duration;

use bytes::Bytes;
use futures_util::future::BoxFuture;
use jiff::Timestamp;

use crate::event::EventId;
use crate::failure::Failure;
use crate::marks::Step;

/// Remembers which messages a consumer has taken effect for, *in the transaction of the effect*.
///
/// **Order.** [`record`](Self::record) comes first: the id is the lock. Of two transactions that
/// record the same id, the second waits until the first ends, and then sees it.
///
/// **Durability.** The id is remembered if, and only if, the transaction commits, so effect and
/// memory of it cannot part.
///
/// **Scope.** Consumers are told apart by name: each has its own effect for the same message.
///
/// ```
/// use semel_core::memory::MemoryDatabase;
/// use semel_core::{EventId, InboxStore};
///
/// # tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(async {
/// let database = MemoryDatabase::new();
/// let id = EventId::now();
/// for _ in 0..2 {
///     let mut tx = database.begin().await;
///     database.process(&mut tx, "payments", id, |tx| Box::pin(async move {
///         tx.add("charged", 99);
///         Ok::<_, semel_core::Failure>("receipt".into())
///     })).await?;
///     tx.commit();
/// }
/// assert_eq!(database.get("charged"), 99);
/// # Ok::<(), semel_core::Failure>(()) }).unwrap();
/// ```
pub trait InboxStore: Send + Sync {
    /// The transaction type of the database client.
    type Tx<'c>: Send;

    /// Opens a transaction.
    ///
    /// # Errors
    /// `Unavailable` when the store cannot be reached.
    fn begin(&self) -> impl Future<Output = Result<Self::Tx<'static>, Failure>> + Send;

    /// Opens a transaction that begins with what the consumer would do first in it, if that saves a
    /// round trip; says whether it did, which means that all was as the [`Opening`] expects. If not,
    /// the transaction is empty and all of it is for the caller to do. By default it never does.
    ///
    /// # Errors
    /// As of [`begin`](Self::begin).
    fn begin_with(
        &self,
        consumer: &str,
        opening: Opening<'_>,
    ) -> impl Future<Output = Result<(Self::Tx<'static>, bool), Failure>> + Send {
        let _ = (consumer, opening);
        async { Ok((self.begin().await?, false)) }
    }

    /// Records `id` for `consumer` in the caller's transaction; says whether it was new.
    ///
    /// # Errors
    /// A failure leaves the transaction fit only for rolling back.
    fn record(
        &self,
        tx: &mut Self::Tx<'_>,
        consumer: &str,
        id: EventId,
    ) -> impl Future<Output = Result<Seen, Failure>> + Send;

    /// Records all `ids` for `consumer`; says of each whether it was new, a repeated one only the
    /// first time. By default one after the other; a store that can does it in one round trip.
    ///
    /// # Errors
    /// As of [`record`](Self::record).
    fn record_all(
        &self,
        tx: &mut Self::Tx<'_>,
        consumer: &str,
        ids: &[EventId],
    ) -> impl Future<Output = Result<Vec<bool>, Failure>> + Send {
        async move {
            let mut new = Vec::with_capacity(ids.len());
            for id in ids {
                new.push(self.record(tx, consumer, *id).await? == Seen::First);
            }
            Ok(new)
        }
    }

    /// What is done in the transaction from now on is the effect of `id`, which is recorded in it. For a
    /// store that cannot undo: it tells by that what was done for whom when something fails half-way.
    /// By default nobody needs to know.
    fn attend(&self, tx: &mut Self::Tx<'_>, consumer: &str, id: EventId) {
        let _ = (tx, consumer, id);
    }

    /// Stores what the effect returned, for duplicates to get. Only after `record` said
    /// [`Seen::First`] in the same transaction; a second call replaces the first.
    ///
    /// # Errors
    /// A failure leaves the transaction fit only for rolling back.
    fn store_result(
        &self,
        tx: &mut Self::Tx<'_>,
        consumer: &str,
        id: EventId,
        result: Bytes,
    ) -> impl Future<Output = Result<(), Failure>> + Send;

    /// Commits: effect and id together.
    ///
    /// # Errors
    /// After an error it is unknown whether the commit happened, or for which ids, where the store
    /// cannot undo. Redelivery finds out.
    fn commit(&self, tx: Self::Tx<'static>) -> impl Future<Output = Result<(), Failure>> + Send;

    /// Undoes everything since `begin`. Dropping the transaction has the same effect, later.
    fn rollback(&self, tx: Self::Tx<'static>) -> impl Future<Output = ()> + Send;

    /// Forgets at most `limit` ids that were recorded longer ago than `age`, by the store's clock;
    /// says how many. A message that comes again after that takes effect again.
    ///
    /// # Errors
    /// `Unavailable` when the store cannot be reached.
    fn forget(
        &self,
        age: Duration,
        limit: usize,
    ) -> impl Future<Output = Result<usize, Failure>> + Send;

    /// How long an id is remembered, if the store forgets it by itself: whoever takes up a message
    /// that is older may repeat its effect. By default it never does.
    fn retention(&self) -> Option<Duration> {
        None
    }

    /// Adds to what a consumer has counted, for those who look into the store: in a transaction of
    /// its own, now and then, never for each message. By default nothing is kept.
    ///
    /// # Errors
    /// `Unavailable` when the store cannot be reached: it is unknown whether it was added.
    fn count(
        &self,
        consumer: &str,
        tally: Tally,
    ) -> impl Future<Output = Result<(), Failure>> + Send {
        let _ = (consumer, tally);
        async { Ok(()) }
    }

    /// Runs `effect` in the caller's transaction unless `consumer` has seen `id`. Needs no runtime:
    /// for web frameworks, and for subscriptions of your own. It does not know how old the message
    /// is: one that was made before what is [remembered](Self::retention) is for the caller to refuse.
    ///
    /// The caller commits. When this returns an error the caller must roll back.
    ///
    /// # Errors
    /// What the store or the effect returned.
    fn process<'c, E>(
        &self,
        tx: &mut Self::Tx<'c>,
        consumer: &str,
        id: EventId,
        effect: impl for<'t> FnOnce(&'t mut Self::Tx<'c>) -> BoxFuture<'t, Result<Bytes, E>> + Send,
    ) -> impl Future<Output = Result<Processed, E>> + Send
    where
        E: From<Failure> + Send,
        Self: Sized,
    {
        async move {
            match self.record(tx, consumer, id).await? {
                Seen::Duplicate { result } => Ok(Processed::Duplicate(result)),
                Seen::First => {
                    self.attend(tx, consumer, id);
                    let result = effect(tx).await?;
                    if !result.is_empty() {
                        self.store_result(tx, consumer, id, result.clone()).await?;
                    }
                    Ok(Processed::Applied(result))
                }
            }
        }
    }

    /// What an error means that an effect had from the client of this database. By default it is
    /// transient.
    fn classify(&self, error: Box<dyn Error + Send + Sync>) -> Failure {
        unclassified(error.as_ref())
    }
}

/// An error of an effect that nobody knows more about: it is tried again.
#[must_use]
pub fn unclassified(error: &dyn Error) -> Failure {
    Failure::transient("E-HANDLER", error.to_string())
}

/// What a transaction of a consumer begins with, and what is expected to be so.
///
/// ```
/// # use semel_core::EventId;
/// # use semel_core::inbox::Opening;
/// assert!(Opening::default().is_empty());
/// assert!(!Opening { ids: &[EventId::now()], ..Opening::default() }.is_empty());
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Opening<'a> {
    /// Marks that move, each from where it is expected to be. Only of [marks that are beside the
    /// inbox](crate::Marks::is_beside_inbox).
    pub steps: &'a [Step<'a>],
    /// Ids that are recorded, all of them expected to be new.
    pub ids: &'a [EventId],
    /// Whether the consumer is expected to have no letters. Only of [letters that are beside the
    /// inbox](crate::DeadLetters::is_beside_inbox).
    pub no_letters: bool,
}

impl Opening<'_> {
    /// Whether it changes nothing.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.steps.is_empty() && self.ids.is_empty()
    }
}

/// Whether a message was seen before by a consumer.
///
/// ```
/// # use semel_core::inbox::Seen;
/// assert_ne!(Seen::First, Seen::Duplicate { result: None });
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Seen {
    /// No: the effect may take place in this transaction.
    First,
    /// Yes: it must not; this is what the first one returned, if it stored anything.
    Duplicate {
        /// The stored result.
        result: Option<Bytes>,
    },
}

/// How many messages a consumer took, and what became of them.
///
/// ```
/// # use semel_core::inbox::Tally;
/// let tally = Tally { applied: 2, duplicates: 1 };
/// assert!(!tally.is_empty() && Tally::default().is_empty());
/// assert_eq!(tally.named(), [("tally:applied", 2), ("tally:duplicates", 1)]);
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// They took effect.
    pub applied: u64,
    /// They had taken effect before, and were dropped.
    pub duplicates: u64,
}

impl Tally {
    /// Under which name `applied` is kept among the [marks](crate::Marks): as if a consumer of this
    /// name had come so far in the scope of each consumer that counts.
    pub const APPLIED: &'static str = "tally:applied";
    /// The same of `duplicates`.
    pub const DUPLICATES: &'static str = "tally:duplicates";

    /// Whether there is nothing to add.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.applied == 0 && self.duplicates == 0
    }

    /// Each number with its name.
    #[must_use]
    pub const fn named(&self) -> [(&'static str, u64); 2] {
        [(Self::APPLIED, self.applied), (Self::DUPLICATES, self.duplicates)]
    }
}

/// What [`InboxStore::process`] did.
///
/// ```
/// # use semel_core::inbox::Processed;
/// assert!(Processed::Duplicate(None).is_duplicate());
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Processed {
    /// The effect ran and returned this.
    Applied(Bytes),
    /// It had run before and returned this, if it stored anything.
    Duplicate(Option<Bytes>),
}

impl Processed {
    /// Whether the effect had run before.
    #[must_use]
    pub const fn is_duplicate(&self) -> bool {
        matches!(self, Self::Duplicate(_))
    }
}

/// A message that took effect, for those who look into an inbox.
///
/// ```
/// # use semel_core::inbox::Applied;
/// # use semel_core::{EventId, Timestamp};
/// let applied = Applied { id: EventId::now(), at: Timestamp::UNIX_EPOCH };
/// assert_eq!(applied.at.as_second(), 0);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Applied {
    /// The message.
    pub id: EventId,
    /// When it was recorded, by the clock of the store.
    pub at: Timestamp,
}
