//! How far a consumer got: the [`Marks`] contract.
//!
//! Where messages carry numbers that only rise, one number says as much as a list of ids.

use async_trait::async_trait;
use bytes::Bytes;
use futures_util::future::BoxFuture;

use crate::failure::Failure;
use crate::inbox::Processed;

/// Remembers one number for each consumer and scope, *in the transaction of the effect*. A scope is
/// whatever numbers rise in: an aggregate, say.
///
/// **Order.** Of two transactions that touch the same mark, the second waits until the first ends,
/// and then sees it.
///
/// **Durability.** A mark is moved if, and only if, the transaction commits.
///
/// ```
/// use semel_core::Marks;
/// use semel_core::marks::Step;
/// use semel_core::memory::MemoryDatabase;
///
/// # tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(async {
/// let database = MemoryDatabase::new();
/// let mut tx = database.begin().await;
/// assert!(database.advance(&mut tx, "payments", "order/42", 3).await?);
/// assert!(!database.advance(&mut tx, "payments", "order/42", 3).await?, "not above it");
/// assert_eq!(database.mark(&mut tx, "payments", "order/42").await?, Some(3));
/// let step = Step { scope: "order/42", from: 3, to: 9 };
/// assert_eq!(database.step_all(&mut tx, "payments", &[step]).await?, [true]);
/// assert_eq!(database.step_all(&mut tx, "payments", &[step]).await?, [false], "it is at 9");
/// # Ok::<(), semel_core::Failure>(()) }).unwrap();
/// ```
#[async_trait]
pub trait Marks<Tx>: Send + Sync {
    /// The mark, if there is one.
    ///
    /// # Errors
    /// A failure leaves the transaction fit only for rolling back.
    async fn mark(&self, tx: &mut Tx, consumer: &str, scope: &str) -> Result<Option<u64>, Failure>;

    /// Raises the mark to `to`; says whether it was below.
    ///
    /// # Errors
    /// As of [`mark`](Self::mark).
    async fn advance(
        &self,
        tx: &mut Tx,
        consumer: &str,
        scope: &str,
        to: u64,
    ) -> Result<bool, Failure>;

    /// Moves each mark to `to` that is at `from`; says of each step whether it was. No scope comes
    /// twice.
    ///
    /// # Errors
    /// As of [`mark`](Self::mark).
    async fn step_all(
        &self,
        tx: &mut Tx,
        consumer: &str,
        steps: &[Step<'_>],
    ) -> Result<Vec<bool>, Failure>;

    /// Whether these are the marks that the inbox of the same transactions knows of, so that
    /// [`begin_with`](crate::InboxStore::begin_with) may move them. By default they are not.
    fn is_beside_inbox(&self) -> bool {
        false
    }
}

/// A mark that moves, if it is where it is thought to be.
///
/// ```
/// # use semel_core::marks::Step;
/// let step = Step { scope: "orders/0", from: 7, to: 107 };
/// assert!(step.to > step.from);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Step<'a> {
    /// What the mark is of.
    pub scope: &'a str,
    /// Where it is.
    pub from: u64,
    /// Where it goes.
    pub to: u64,
}

/// Runs `effect` in the caller's transaction if `version` is newer than what `consumer` applied last
/// in `scope`. The caller commits; when this returns an error the caller must roll back.
///
/// It remembers one number per scope and nothing per message. A version that comes late, behind a
/// newer one, is taken for applied: right for states ("the price is now 7"), wrong for changes
/// ("add 7"), unless their order is kept.
///
/// # Errors
/// What the store or the effect returned.
///
/// ```
/// use semel_core::Failure;
/// use semel_core::marks::apply_if_version;
/// use semel_core::memory::MemoryDatabase;
///
/// # tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(async {
/// let database = MemoryDatabase::new();
/// for (version, applies) in [(1, true), (3, true), (3, false), (2, false)] {
///     let mut tx = database.begin().await;
///     let done = apply_if_version(&database, &mut tx, "prices", "book", version, |tx| {
///         Box::pin(async move {
///             tx.add("changes", 1);
///             Ok::<_, Failure>(Default::default())
///         })
///     });
///     assert_eq!(done.await?.is_duplicate(), !applies);
///     tx.commit();
/// }
/// assert_eq!(database.get("changes"), 2);
/// # Ok::<(), Failure>(()) }).unwrap();
/// ```
pub async fn apply_if_version<Tx, M, E>(
    marks: &M,
    tx: &mut Tx,
    consumer: &str,
    scope: &str,
    version: u64,
    effect: impl for<'t> FnOnce(&'t mut Tx) -> BoxFuture<'t, Result<Bytes, E>> + Send,
) -> Result<Processed, E>
where
    Tx: Send,
    M: Marks<Tx> + ?Sized,
    E: From<Failure>,
{
    if !marks.advance(tx, consumer, scope, version).await? {
        return Ok(Processed::Duplicate(None));
    }
    Ok(Processed::Applied(effect(tx).await?))
}
