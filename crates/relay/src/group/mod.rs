//! Several relays for one pipeline: this one's part in the group.
//!
//! Every half second or so a member takes a turn: it gives back what it has finished with, renews
//! its leases, and claims what the plan gives it. Between turns it runs one relay per share it
//! holds. A member that cannot reach the store for as long as its lease stops working at once:
//! somebody else may have begun.

mod member;

use std::fmt;
use std::sync::Arc;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use semel_core::Failure;
use semel_core::coordination::{Coordination, Coordinator, Share};

use self::member::Member;
use crate::pulse::Pulse;
use crate::relay::{Relay, Report};
use crate::stop::Stop;

/// Runs a relay for each share of a pipeline that falls to this process.
///
/// ```
/// use semel_core::coordination::Coordination;
/// use semel_core::memory::{MemoryBroker, MemoryDatabase, MemoryGroup};
/// use semel_relay::{Group, Relay, Stop};
/// use std::time::Duration;
///
/// # tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap().block_on(async {
/// let (database, broker) = (MemoryDatabase::new(), MemoryBroker::new());
/// let member = MemoryGroup::new().join("orders", 1, Duration::from_secs(10));
/// let group = Group::new("orders", member, Coordination::Leader, move |_share| {
///     let (source, sink) = (database.source(), broker.clone());
///     async move { Ok(Relay::new("orders", source, sink)) }
/// });
/// assert_eq!(group.drain(Stop::never()).await?.published, 0);
/// # Ok::<(), semel_core::Failure>(()) }).unwrap();
/// ```
pub struct Group {
    name: String,
    coordinator: Box<dyn Coordinator>,
    coordination: Coordination,
    open: OpenShare,
    pulse: Option<Pulse>,
}

type OpenShare = Arc<dyn Fn(Share) -> BoxFuture<'static, Result<Relay, Failure>> + Send + Sync>;

impl Group {
    /// A member of a group; `open` makes the relay of a share, taking it over from whoever had it.
    pub fn new<F>(
        name: impl Into<String>,
        coordinator: impl Coordinator + 'static,
        coordination: Coordination,
        open: impl Fn(Share) -> F + Send + Sync + 'static,
    ) -> Self
    where
        F: Future<Output = Result<Relay, Failure>> + Send + 'static,
    {
        Self {
            name: name.into(),
            coordinator: Box::new(coordinator),
            coordination,
            open: Arc::new(move |share| open(share).boxed()),
            pulse: None,
        }
    }

    /// Lets this feel whether its own loop and those of its relays still turn.
    #[must_use]
    pub fn with_pulse(mut self, pulse: Pulse) -> Self {
        self.pulse = Some(pulse);
        self
    }

    /// Runs until it is stopped; then what is in flight is finished and everything given back.
    ///
    /// # Errors
    /// `Misconfigured` when a source or sink cannot work as it is set up, or when others split the
    /// pipeline in another way. Outages are not errors.
    pub async fn run(self, stop: Stop) -> Result<Report, Failure> {
        Member::new(self, stop, false).run().await
    }

    /// Runs until nothing is ready or waiting for a retry in any share, or until it is stopped.
    ///
    /// # Errors
    /// As for [`Group::run`]; `Transient` when another relay holds a share and keeps it.
    pub async fn drain(self, stop: Stop) -> Result<Report, Failure> {
        Member::new(self, stop, true).run().await
    }
}

impl fmt::Debug for Group {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Group").field("name", &self.name).finish_non_exhaustive()
    }
}
