//! [`Coordinator`] in memory: the members are tasks of one process.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use async_trait::async_trait;
use jiff::Timestamp;

use super::lock;
use crate::clock::{Clock, SystemClock};
use crate::coordination::{Coordinator, Holder, Standing, divided_differently};
use crate::failure::Failure;

/// Relays in one process that share their pipelines. Clones are the same group.
///
/// ```
/// use semel_core::coordination::{Coordinator, Holder};
/// use semel_core::memory::MemoryGroup;
/// use std::time::Duration;
///
/// # tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(async {
/// let (group, lease) = (MemoryGroup::new(), Duration::from_secs(10));
/// let (mut first, mut second) = (group.join("orders", 2, lease), group.join("orders", 2, lease));
/// assert_eq!(first.claim(&[0]).await?, [0]);
/// assert_eq!(second.claim(&[0, 1]).await?, [1]);
/// assert_eq!(first.beat(true).await?.shares, [Holder::Me, Holder::Other]);
/// # Ok::<(), semel_core::Failure>(()) }).unwrap();
/// ```
#[derive(Clone, Debug)]
pub struct MemoryGroup {
    state: Arc<Mutex<State>>,
    clock: Arc<dyn Clock>,
}

#[derive(Debug, Default)]
struct State {
    last: u64,
    pipelines: HashMap<String, Pipeline>,
}

#[derive(Debug, Default)]
struct Pipeline {
    /// Into how many shares each member divides it, and until when the member lives.
    members: BTreeMap<u64, (u32, Timestamp)>,
    /// Who holds a share, and until when.
    shares: BTreeMap<u32, (u64, Timestamp)>,
}

impl MemoryGroup {
    /// A group without members.
    #[must_use]
    pub fn new() -> Self {
        Self { state: Arc::default(), clock: Arc::new(SystemClock) }
    }

    /// Replaces the clock.
    #[must_use]
    pub fn with_clock(mut self, clock: Arc<dyn Clock>) -> Self {
        self.clock = clock;
        self
    }

    /// A new member, for a pipeline that is divided into so many shares.
    #[must_use]
    pub fn join(&self, pipeline: &str, shares: u32, lease: Duration) -> MemoryMember {
        let mut state = lock(&self.state);
        state.last += 1;
        let pipeline = pipeline.to_owned();
        MemoryMember { group: self.clone(), pipeline, shares, lease, me: state.last }
    }
}

impl Default for MemoryGroup {
    fn default() -> Self {
        Self::new()
    }
}

/// A member of a [`MemoryGroup`].
#[derive(Debug)]
pub struct MemoryMember {
    group: MemoryGroup,
    pipeline: String,
    shares: u32,
    lease: Duration,
    me: u64,
}

impl MemoryMember {
    fn until(&self) -> Timestamp {
        self.group.clock.now() + self.lease
    }

    fn state(&self) -> MutexGuard<'_, State> {
        lock(&self.group.state)
    }

    fn give_back(&self, given: impl Fn(u32) -> bool) {
        let mut state = self.state();
        let pipeline = state.pipelines.entry(self.pipeline.clone()).or_default();
        pipeline.shares.retain(|share, (owner, _)| *owner != self.me || !given(*share));
    }
}

#[async_trait]
impl Coordinator for MemoryMember {
    fn lease(&self) -> Duration {
        self.lease
    }

    async fn beat(&mut self, renews: bool) -> Result<Standing, Failure> {
        let (now, until, me) = (self.group.clock.now(), self.until(), self.me);
        let mut state = self.state();
        let pipeline = state.pipelines.entry(self.pipeline.clone()).or_default();
        pipeline.members.retain(|_, (_, until)| *until > now);
        if pipeline.members.values().any(|(shares, _)| *shares != self.shares) {
            return Err(divided_differently(&self.pipeline, self.shares));
        }
        let others = pipeline.members.keys().filter(|member| **member != me).count();
        let rank = pipeline.members.range(..me).count();
        let held = pipeline.shares.values_mut().filter(|(owner, _)| *owner == me);
        if renews {
            held.for_each(|(_, lease)| *lease = until);
            pipeline.members.insert(me, (self.shares, until));
        }
        let holder = |share| match pipeline.shares.get(&share) {
            Some((owner, _)) if *owner == me => Holder::Me,
            Some((_, lease)) if *lease > now => Holder::Other,
            _ => Holder::Nobody,
        };
        let count = |number: usize| u32::try_from(number).unwrap_or(u32::MAX);
        let shares = (0..self.shares).map(holder).collect();
        Ok(Standing { members: count(others + 1), rank: count(rank), shares })
    }

    async fn claim(&mut self, shares: &[u32]) -> Result<Vec<u32>, Failure> {
        let (now, until, me) = (self.group.clock.now(), self.until(), self.me);
        let mut state = self.state();
        let pipeline = state.pipelines.entry(self.pipeline.clone()).or_default();
        let mut claimed = Vec::new();
        for share in shares {
            let held = pipeline.shares.get(share);
            if held.is_none_or(|(owner, until)| *owner == me || *until <= now) {
                pipeline.shares.insert(*share, (me, until));
                claimed.push(*share);
            }
        }
        Ok(claimed)
    }

    async fn release(&mut self, shares: &[u32]) -> Result<(), Failure> {
        self.give_back(|share| shares.contains(&share));
        Ok(())
    }

    async fn leave(&mut self) -> Result<(), Failure> {
        self.give_back(|_| true);
        let mut state = self.state();
        let pipeline = state.pipelines.entry(self.pipeline.clone()).or_default();
        pipeline.members.remove(&self.me);
        Ok(())
    }
}
