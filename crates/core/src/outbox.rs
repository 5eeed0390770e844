//! Writing events inside the business transaction: the [`OutboxWriter`] contract.

use std::future::Future;

use crate::event::Event;
use crate::failure::Failure;

/// Appends events to the outbox *in the caller's open transaction*.
///
/// It never begins or commits a transaction and never talks to a broker: the events exist if, and
/// only if, the caller's transaction commits. It cannot be called without one.
///
/// **Order.** Events of one lane are published in the order their transactions committed, and in
/// the order of the slice inside one transaction.
///
/// **Repetition.** A second event with the same idempotency key is refused with
/// [`AppendError::Duplicate`].
///
/// ```
/// use semel_core::memory::MemoryDatabase;
/// use semel_core::{Event, OutboxWriter};
///
/// # tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(async {
/// let database = MemoryDatabase::new();
/// let mut tx = database.begin().await;
/// tx.add("orders", 1);
/// database.append(&mut tx, &[Event::new("order", "42", "OrderPlaced")]).await?;
/// drop(tx); // rolled back: neither the order nor the event exists
/// assert_eq!((database.get("orders"), database.events().len()), (0, 0));
/// # Ok::<(), semel_core::outbox::AppendError>(()) }).unwrap();
/// ```
pub trait OutboxWriter: Send + Sync {
    /// The transaction type of the database client.
    type Tx<'c>: Send;

    /// Inserts all events, in one round trip where the database can do that: a writer says when it
    /// takes more.
    ///
    /// # Errors
    /// [`AppendError`]; nothing of this call is written then.
    fn append(
        &self,
        tx: &mut Self::Tx<'_>,
        events: &[Event],
    ) -> impl Future<Output = Result<(), AppendError>> + Send;
}

/// Why events were not appended.
///
/// ```
/// # use semel_core::outbox::AppendError;
/// let error = AppendError::Duplicate { key: Some("order-42".into()), transaction_usable: true };
/// assert!(error.to_string().contains("order-42"));
/// ```
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AppendError {
    /// An event with this idempotency key exists already.
    #[error(
        "an event with idempotency key {} exists already; {}",
        key.as_deref().unwrap_or("(unknown)"),
        if *transaction_usable { "the transaction can go on" } else { "roll the transaction back" }
    )]
    Duplicate {
        /// The key, where the database says which one.
        key: Option<String>,
        /// Whether the caller's transaction can still be used, or must be rolled back.
        transaction_usable: bool,
    },
    /// An event is malformed or too large; it was not sent to the database.
    #[error("event refused: {0}")]
    Invalid(Failure),
    /// The database failed.
    #[error(transparent)]
    Store(Failure),
}
