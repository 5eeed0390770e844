//! What a backend's test implements, so that the suites can drive the backend.
//!
//! [`Probe`] is for all of them; each suite adds one small trait of its own. Abilities that not
//! every backend has answer with a [`Skip`] and its reason, and the scenario is skipped.

use std::fmt;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::LocalBoxFuture;
use semel_core::outbox::AppendError;
use semel_core::{Event, Timestamp};
use tokio::runtime::Builder;

use crate::services::{announce, in_ci};

/// An isolated instance of a backend, for one test.
pub trait Probe: Send + Sync + Sized + 'static {
    /// What the backend is called in printed lines.
    const BACKEND: &'static str;

    /// How long to wait for something that must happen. A backend that does everything at once
    /// says zero, so that its failures are quick.
    const PATIENCE: Duration = Duration::from_secs(60);

    /// How long to wait before "nothing comes" is believed. A backend that answers from a buffer
    /// filled behind its back needs some time.
    const QUIET: Duration = Duration::ZERO;

    /// The unit of the suite's waits. What the suite does at once must be done well within it, and
    /// where the clock cannot be moved the suite really waits for it, up to four times in a test.
    const TICK: Duration = Duration::from_secs(2);

    /// A new, empty instance under a name of its own; nothing when its server is not there (see
    /// [`service`](crate::services::service)).
    fn fresh() -> impl Future<Output = Option<Self>> + Send;

    /// The time by the backend's clock.
    fn now(&self) -> Timestamp {
        Timestamp::now()
    }

    /// Lets time pass on the backend's clock: by moving it, or by really waiting.
    fn pass(&self, time: Duration) -> impl Future<Output = ()> + Send {
        tokio::time::sleep(time)
    }
}

/// How events get into the backend: the caller's side of a transaction.
///
/// A broker has none: there, a transaction is a list, and committing it is publishing it.
pub trait WriteProbe: Probe {
    /// An open transaction of the caller. Dropping it rolls it back, at once or soon.
    type Tx: Send;

    /// Opens a transaction, as a user's service would.
    fn begin(&self) -> impl Future<Output = Self::Tx> + Send;

    /// Writes events in it, through the [`OutboxWriter`](semel_core::OutboxWriter) if there is one.
    fn append(
        &self,
        tx: &mut Self::Tx,
        events: &[Event],
    ) -> impl Future<Output = Result<(), AppendError>> + Send;

    /// Commits it.
    fn commit(&self, tx: Self::Tx) -> impl Future<Output = ()> + Send;

    /// Rolls it back.
    fn roll_back(&self, tx: Self::Tx) -> impl Future<Output = ()> + Send {
        drop(tx);
        std::future::ready(())
    }

    /// Whether several transactions can be open at once.
    ///
    /// # Errors
    /// Why not.
    fn interleaves(&self) -> Ran {
        Ok(())
    }

    /// Writes events in one transaction and commits it.
    fn commit_all(&self, events: &[Event]) -> impl Future<Output = ()> + Send {
        async move {
            let mut tx = self.begin().await;
            self.append(&mut tx, events).await.expect("append");
            self.commit(tx).await;
        }
    }
}

/// Why a scenario does not apply to a backend.
///
/// ```
/// # use semel_testkit::probe::Skip;
/// assert_eq!(Skip::because("it has one writer").to_string(), "it has one writer");
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Skip(String);

impl Skip {
    /// The reason, as it is printed.
    pub fn because(reason: impl Into<String>) -> Self {
        Self(reason.into())
    }

    /// Goes on only if the backend can do it.
    ///
    /// # Errors
    /// The reason to skip, if it cannot.
    pub fn unless(able: bool, reason: &str) -> Ran {
        if able { Ok(()) } else { Err(Self::because(reason)) }
    }
}

impl fmt::Display for Skip {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// What a scenario returns: it ran and held, or it was skipped. What does not hold panics.
pub type Ran = Result<(), Skip>;

/// Runs one scenario on a fresh instance, on a runtime of its own. The suite macros call it.
///
/// # Panics
/// When the scenario does; and when `CI` is `true` and the backend's server is missing.
pub fn run<P: Probe>(suite: &str, scenario: &str, body: impl AsyncFnOnce(&Arc<P>) -> Ran) {
    let ran = block_on(Box::pin(async {
        match P::fresh().await {
            Some(probe) => body(&Arc::new(probe)).await,
            None => {
                assert!(!in_ci(), "{} gave no instance to test", P::BACKEND);
                Err(Skip::because("its server is not there"))
            }
        }
    }));
    if let Err(reason) = ran {
        announce(&format!("SKIPPED {suite}::{scenario} for {}: {reason}", P::BACKEND));
    }
}

/// Without type parameters, so that the runtime is not compiled once per scenario.
fn block_on(scenario: LocalBoxFuture<'_, Ran>) -> Ran {
    let runtime = Builder::new_multi_thread().worker_threads(2).enable_all().build();
    runtime.expect("a tokio runtime").block_on(scenario)
}
