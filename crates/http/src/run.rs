//! Running any operation once per key: [`Idempotent`].

use std::sync::Arc;

use semel_core::Failure;
use semel_core::idempotency::{
    Ending, Fingerprint, IdempotencyStore, Refusal, Rules, ScopedKey, Stored,
};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::attempt::Attempt;
use crate::engine::{Admission, Ended, Engine, Job};
use crate::settle::{Fate, Settlement};
use crate::tally::{Outcome, Tally};

/// Runs operations once per key, and answers with the stored result ever after.
///
/// **Concurrency.** Of any number of callers with one key, in any number of processes that share
/// the store, one runs the operation. The others wait for it as long as [`Rules::wait`] says, and
/// are then told that it is in progress.
///
/// **Cancellation.** The operation runs in a task of its own. A caller that goes away does not stop
/// it; its result is stored and the next caller gets it.
///
/// **Crashes.** The claim is a lease that is renewed while the operation runs. When its process
/// dies, the lease ends, and [`Rules::after_crash`] says what the next caller does.
///
/// **Results** are kept as JSON. One that cannot be read back as the type asked for is reported as
/// [`RunError::NotRetained`]; the operation is not run again.
///
/// It must be called within a tokio runtime with time enabled.
///
/// ```
/// use semel_core::idempotency::{Fingerprint, ScopedKey};
/// use semel_core::memory::MemoryKeys;
/// use semel_http::{Idempotent, RunError};
/// use std::sync::Arc;
///
/// # tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap().block_on(async {
/// let once = Idempotent::new(Arc::new(MemoryKeys::new()));
/// let key = ScopedKey::new(&["acme", "charge", "order-42"]);
/// let what = Fingerprint::new(&[b"99 EUR"]);
///
/// let first = once.run(key, what, |_| async { Ok::<_, String>(42) }).await?;
/// let again = once.run(key, what, |_| async { unreachable!() }).await?;
/// assert_eq!((first.value, first.replayed), (42, false));
/// assert_eq!((again.value, again.replayed), (42, true));
/// # Ok::<(), RunError<String>>(()) }).unwrap();
/// ```
#[derive(Clone, Debug)]
pub struct Idempotent {
    engine: Engine,
    rules: Rules,
}

impl Idempotent {
    /// Runs on this store, with the default [`Rules`].
    #[must_use]
    pub fn new(store: Arc<dyn IdempotencyStore>) -> Self {
        Self { engine: Engine::new(store), rules: Rules::default() }
    }

    /// The same store and leases, with other rules.
    #[must_use]
    pub fn with_rules(&self, rules: Rules) -> Self {
        Self { engine: self.engine.clone(), rules }
    }

    /// Runs the operation, unless it has succeeded before. A failure releases the key: the next
    /// caller runs the operation again.
    ///
    /// # Errors
    /// [`RunError::Operation`] with what the operation returned, or why it was not run.
    pub async fn run<T, E, F, Fut>(
        &self,
        key: ScopedKey,
        fingerprint: Fingerprint,
        operation: F,
    ) -> Result<Ran<T>, RunError<E>>
    where
        T: Serialize + DeserializeOwned + Send + 'static,
        E: Send + 'static,
        F: FnOnce(Attempt) -> Fut + Send + 'static,
        Fut: Future<Output = Result<T, E>> + Send + 'static,
    {
        let keep = self.rules.keep;
        let settle = move |result: &Result<T, E>| match result {
            Ok(value) => encoded(Ending::Succeeded, value, keep),
            Err(_) => Settlement::Release,
        };
        let read = |stored: Stored| match stored.ending {
            Ending::Succeeded => decoded(&stored).map(Ok),
            _ => None,
        };
        self.once(key, fingerprint, operation, settle, read).await
    }

    /// Runs the operation, unless it has ended before: a failure is kept like a success, and every
    /// later caller gets the same one.
    ///
    /// # Errors
    /// [`RunError::Operation`] with what the operation returned, now or before, or why it was not
    /// run.
    pub async fn run_keeping_failures<T, E, F, Fut>(
        &self,
        key: ScopedKey,
        fingerprint: Fingerprint,
        operation: F,
    ) -> Result<Ran<T>, RunError<E>>
    where
        T: Serialize + DeserializeOwned + Send + 'static,
        E: Serialize + DeserializeOwned + Send + 'static,
        F: FnOnce(Attempt) -> Fut + Send + 'static,
        Fut: Future<Output = Result<T, E>> + Send + 'static,
    {
        let keep = self.rules.keep;
        let settle = move |result: &Result<T, E>| match result {
            Ok(value) => encoded(Ending::Succeeded, value, keep),
            Err(error) => encoded(Ending::Failed, error, keep),
        };
        let read = |stored: Stored| match stored.ending {
            Ending::Succeeded => decoded(&stored).map(Ok),
            Ending::Failed => decoded(&stored).map(Err),
            Ending::NotRetained | Ending::Uncertain => None,
        };
        self.once(key, fingerprint, operation, settle, read).await
    }

    /// Resolves when no operation runs and every result is stored. Wait for it before the process
    /// ends, for as long as you can afford.
    pub async fn drained(&self) {
        self.engine.leases.emptied().await;
    }

    async fn once<T, E, F, Fut>(
        &self,
        key: ScopedKey,
        fingerprint: Fingerprint,
        operation: F,
        settle: impl FnOnce(&Result<T, E>) -> Settlement + Send + 'static,
        read: impl FnOnce(Stored) -> Option<Result<T, E>>,
    ) -> Result<Ran<T>, RunError<E>>
    where
        T: Send + 'static,
        E: Send + 'static,
        F: FnOnce(Attempt) -> Fut + Send + 'static,
        Fut: Future<Output = Result<T, E>> + Send + 'static,
    {
        let tally = Tally::new();
        let job = Job { key, fingerprint, rules: self.rules };
        let (result, replayed) = match self.engine.admit(&job).await {
            Admission::Owner(claimed) => {
                let started = claimed.start(tally, |attempt| async move {
                    let result = operation(attempt).await;
                    let settlement = settle(&result);
                    (result, settlement)
                });
                match started.end().await {
                    Ended::Returned(_, Fate::Superseded(stored)) => (read(stored), true),
                    Ended::Returned(result, _) => (Some(result), false),
                    Ended::Panicked => return Err(RunError::Panicked),
                    Ended::Interrupted => return Err(RunError::Store(interrupted())),
                }
            }
            Admission::Replay(stored) => {
                tally.is(Outcome::Replayed);
                (read(stored), true)
            }
            Admission::Refused(refusal) => {
                tally.is(refused(&refusal));
                return Err(refusal.into());
            }
            Admission::Unavailable(failure) => {
                tally.is(Outcome::StoreError);
                return Err(RunError::Store(failure));
            }
        };
        match result {
            Some(Ok(value)) => Ok(Ran { value, replayed }),
            Some(Err(error)) => Err(RunError::Operation(error)),
            None => Err(RunError::NotRetained),
        }
    }
}

/// A value that cannot be written is a result that is not retained: the operation did run.
fn encoded(ending: Ending, value: &impl Serialize, keep: std::time::Duration) -> Settlement {
    match serde_json::to_vec(value) {
        Ok(json) => Settlement::keep(ending, json, keep),
        Err(error) => {
            tracing::warn!(%error, "a result cannot be written as JSON and is not retained");
            Settlement::keep(Ending::NotRetained, Vec::new(), keep)
        }
    }
}

fn decoded<T: DeserializeOwned>(stored: &Stored) -> Option<T> {
    serde_json::from_slice(&stored.payload).ok()
}

pub(crate) fn refused(refusal: &Refusal) -> Outcome {
    match refusal {
        Refusal::InProgress => Outcome::InProgress,
        Refusal::Mismatch => Outcome::Mismatch,
        Refusal::NotRetained(_) => Outcome::Gone,
        Refusal::Uncertain => Outcome::Uncertain,
    }
}

pub(crate) fn interrupted() -> Failure {
    Failure::unavailable("E-KEY-INTERRUPTED", "the runtime was shut down while an operation ran")
}

/// The result of an operation.
///
/// ```
/// # use semel_http::Ran;
/// let ran = Ran { value: "receipt", replayed: true };
/// assert!(ran.replayed);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ran<T> {
    /// What it returned, now or before.
    pub value: T,
    /// Whether that was before.
    pub replayed: bool,
}

/// Why there is no result.
///
/// ```
/// # use semel_http::RunError;
/// let error: RunError<String> = RunError::InProgress;
/// assert_eq!(error.to_string(), "the operation is still running");
/// ```
#[derive(Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum RunError<E = Failure> {
    /// The operation failed.
    #[error("{0}")]
    Operation(E),
    /// Somebody else is running it.
    #[error("the operation is still running")]
    InProgress,
    /// The key belongs to another request.
    #[error("the key was used for another request")]
    Mismatch,
    /// It ran, but its result was not retained, or is of another type.
    #[error("the operation ran, but its result was not retained")]
    NotRetained,
    /// Whether it took effect is unknown.
    #[error("whether the operation took effect is unknown")]
    Uncertain,
    /// It panicked.
    #[error("the operation panicked")]
    Panicked,
    /// The store failed before the operation started, or the runtime went away.
    #[error(transparent)]
    Store(Failure),
}

impl<E> From<Refusal> for RunError<E> {
    fn from(refusal: Refusal) -> Self {
        match refusal {
            Refusal::InProgress => Self::InProgress,
            Refusal::Mismatch => Self::Mismatch,
            Refusal::NotRetained(_) => Self::NotRetained,
            Refusal::Uncertain => Self::Uncertain,
        }
    }
}
