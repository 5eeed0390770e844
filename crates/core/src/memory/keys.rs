//! [`IdempotencyStore`] in memory.

use std::collections::HashMap;
use std::collections::hash_map::Entry as Place;
use std::fmt;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use async_trait::async_trait;
use jiff::Timestamp;

use super::lock;
use super::scatter::Scatter;
use crate::clock::{Clock, SystemClock};
use crate::delivery::Holding;
use crate::failure::Failure;
use crate::idempotency::{
    Claim, Fingerprint, IdempotencyStore, KeyAdmin, KeyPage, KeyView, Record, ScopedKey, Token,
};
use crate::retry::later;

/// Idempotency keys of one process. They do not survive it.
///
/// What they take is bounded: see [`MemoryKeys::max_bytes`].
///
/// ```
/// # use semel_core::memory::MemoryKeys;
/// let store = MemoryKeys::new().max_bytes(64 * 1024 * 1024);
/// assert!(store.is_empty());
/// ```
pub struct MemoryKeys {
    clock: Arc<dyn Clock>,
    /// A key always falls to the same one, by its first byte.
    shards: [Mutex<Shard>; SHARDS],
    last_token: AtomicU64,
    bytes: AtomicUsize,
    max_bytes: usize,
}

/// So that threads seldom wait for each other.
const SHARDS: usize = 64;

/// What a key takes beside its result, roughly.
const ENTRY_BYTES: usize = 256;

/// How long it is remembered that an operation was tried and abandoned.
const ABANDONED_FOR: Duration = Duration::from_secs(24 * 60 * 60);

type Shard = HashMap<ScopedKey, Entry, Scatter>;

struct Entry {
    fingerprint: Fingerprint,
    state: State,
}

enum State {
    Running { token: Token, attempt: u32, until: Timestamp },
    Done { record: Record, until: Timestamp },
}

impl MemoryKeys {
    /// An empty store on the system clock.
    #[must_use]
    pub fn new() -> Self {
        Self::with_clock(Arc::new(SystemClock))
    }

    /// An empty store on a clock of your own.
    #[must_use]
    pub fn with_clock(clock: Arc<dyn Clock>) -> Self {
        Self {
            clock,
            shards: std::array::from_fn(|_| Mutex::default()),
            last_token: AtomicU64::new(0),
            bytes: AtomicUsize::new(0),
            max_bytes: 256 * 1024 * 1024,
        }
    }

    /// What keys and results may take in all, roughly; 256 MiB unless set. When it is used up and
    /// nothing is expired, new keys are refused as unavailable: forgetting one that is promised
    /// would let its operation run twice.
    #[must_use]
    pub fn max_bytes(mut self, bytes: usize) -> Self {
        self.max_bytes = bytes;
        self
    }

    /// How many keys there are, expired ones included until they are purged.
    #[must_use]
    pub fn len(&self) -> usize {
        self.shards.iter().map(|shard| lock(shard).len()).sum()
    }

    /// Whether there is none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    fn shard(&self, key: &ScopedKey) -> MutexGuard<'_, Shard> {
        lock(&self.shards[usize::from(key.as_bytes()[0]) % SHARDS])
    }

    fn remove(&self, shard: &mut Shard, key: &ScopedKey) {
        let removed = shard.remove(key).map_or(0, |entry| entry.bytes());
        self.account(removed, 0);
    }

    fn claim_now(
        &self,
        key: &ScopedKey,
        fingerprint: &Fingerprint,
        lease: Duration,
    ) -> Result<Claim, Failure> {
        let now = self.clock.now();
        if self.is_full() && !self.shard(key).contains_key(key) && !self.makes_room(now) {
            return Err(full(self.max_bytes));
        }
        let mut shard = self.shard(key);
        let place = shard.entry(*key);
        let present = match &place {
            Place::Occupied(present) => Some(present.get()),
            Place::Vacant(_) => None,
        };
        let attempt = match attempt(present, fingerprint, now) {
            Ok(attempt) => attempt,
            Err(claim) => return Ok(claim),
        };
        let before = present.map_or(0, Entry::bytes);
        let token = Token(self.last_token.fetch_add(1, Ordering::Relaxed) + 1);
        let state = State::Running { token, attempt, until: later(now, lease) };
        let entry = Entry { fingerprint: *fingerprint, state };
        self.account(before, entry.bytes());
        place.insert_entry(entry);
        Ok(Claim::Fresh { token, attempt })
    }

    /// Lets the owner of a live claim change its state.
    fn change(
        &self,
        key: &ScopedKey,
        shown: Token,
        change: impl FnOnce(&mut State, Timestamp),
    ) -> Holding {
        let now = self.clock.now();
        let mut shard = self.shard(key);
        let Some(entry) = shard.get_mut(key).filter(|entry| entry.is_held(shown, now)) else {
            return Holding::Lost;
        };
        let before = entry.bytes();
        change(&mut entry.state, now);
        self.account(before, entry.bytes());
        Holding::Held
    }

    /// What took `before` bytes takes `after` now.
    fn account(&self, before: usize, after: usize) {
        // Wraps around, and back: the sum is never less than nothing.
        self.bytes.fetch_add(after.wrapping_sub(before), Ordering::Relaxed);
    }

    /// Whether a new key has no room.
    fn is_full(&self) -> bool {
        self.bytes.load(Ordering::Relaxed) + ENTRY_BYTES > self.max_bytes
    }

    /// Whether a new key has room once expired ones are forgotten.
    fn makes_room(&self, now: Timestamp) -> bool {
        self.forget(now, usize::MAX);
        !self.is_full()
    }

    fn forget(&self, now: Timestamp, limit: usize) -> usize {
        let mut forgotten = 0;
        for shard in &self.shards {
            let mut shard = lock(shard);
            let expired = shard.iter().filter(|(_, entry)| entry.is_forgotten(now));
            let expired: Vec<_> = expired.map(|(key, _)| *key).take(limit - forgotten).collect();
            for key in &expired {
                self.remove(&mut shard, key);
            }
            forgotten += expired.len();
        }
        forgotten
    }
}

/// Which attempt a claim of this entry would be, or why it cannot be claimed.
fn attempt(entry: Option<&Entry>, print: &Fingerprint, now: Timestamp) -> Result<u32, Claim> {
    match entry {
        Some(entry) if entry.is_forgotten(now) => Ok(1),
        Some(entry) if entry.fingerprint != *print => Err(Claim::Mismatch),
        Some(Entry { state: State::Done { record, .. }, .. }) => Err(Claim::Done(record.clone())),
        Some(Entry { state: State::Running { until, .. }, .. }) if now < *until => {
            Err(Claim::InFlight { remaining: until.duration_since(now).unsigned_abs() })
        }
        Some(Entry { state: State::Running { attempt, .. }, .. }) => Ok(attempt + 1),
        None => Ok(1),
    }
}

impl Entry {
    /// Whether the key counts as never used. An abandoned claim does not for a while: whoever
    /// takes it over must know that it was tried, and with what.
    fn is_forgotten(&self, now: Timestamp) -> bool {
        match self.state {
            State::Running { until, .. } => later(until, ABANDONED_FOR) <= now,
            State::Done { until, .. } => until <= now,
        }
    }

    /// Whether this token holds a lease that has not run out.
    fn is_held(&self, shown: Token, now: Timestamp) -> bool {
        matches!(self.state, State::Running { token, until, .. } if token == shown && now < until)
    }

    fn bytes(&self) -> usize {
        match &self.state {
            State::Running { .. } => ENTRY_BYTES,
            State::Done { record, .. } => ENTRY_BYTES + record.body.len(),
        }
    }

    fn view(&self, key: ScopedKey, now: Timestamp) -> Option<KeyView> {
        let remaining =
            |until: Timestamp| until.duration_since(now).try_into().unwrap_or(Duration::ZERO);
        if self.is_forgotten(now) {
            return None;
        }
        match &self.state {
            State::Running { attempt, until, .. } => {
                Some(KeyView::claimed(key, *attempt, remaining(*until)))
            }
            State::Done { record: Record { version, body }, until } => {
                let (last, bytes) = (body.last().copied(), body.len());
                Some(KeyView::done(key, *version, last, bytes, remaining(*until)))
            }
        }
    }
}

#[async_trait]
impl IdempotencyStore for MemoryKeys {
    async fn claim(
        &self,
        key: &ScopedKey,
        fingerprint: &Fingerprint,
        lease: Duration,
    ) -> Result<Claim, Failure> {
        self.claim_now(key, fingerprint, lease)
    }

    fn claim_at_once(
        &self,
        key: &ScopedKey,
        fingerprint: &Fingerprint,
        lease: Duration,
    ) -> Option<Result<Claim, Failure>> {
        Some(self.claim_now(key, fingerprint, lease))
    }

    async fn complete(
        &self,
        key: &ScopedKey,
        token: Token,
        record: Record,
        keep: Duration,
    ) -> Result<Holding, Failure> {
        Ok(self.change(key, token, |state, now| {
            *state = State::Done { record, until: later(now, keep) };
        }))
    }

    fn complete_at_once(
        &self,
        key: &ScopedKey,
        token: Token,
        record: &Record,
        keep: Duration,
    ) -> Option<Result<Holding, Failure>> {
        Some(Ok(self.change(key, token, |state, now| {
            *state = State::Done { record: record.clone(), until: later(now, keep) };
        })))
    }

    async fn renew(
        &self,
        key: &ScopedKey,
        token: Token,
        lease: Duration,
    ) -> Result<Holding, Failure> {
        Ok(self.change(key, token, |state, now| {
            if let State::Running { until, .. } = state {
                *until = later(now, lease);
            }
        }))
    }

    async fn release(&self, key: &ScopedKey, token: Token) -> Result<Holding, Failure> {
        let now = self.clock.now();
        let mut shard = self.shard(key);
        if !shard.get(key).is_some_and(|entry| entry.is_held(token, now)) {
            return Ok(Holding::Lost);
        }
        self.remove(&mut shard, key);
        Ok(Holding::Held)
    }

    async fn forget_expired(&self, limit: usize) -> Result<usize, Failure> {
        Ok(self.forget(self.clock.now(), limit))
    }
}

#[async_trait]
impl KeyAdmin for MemoryKeys {
    async fn list(&self, after: Option<&str>, limit: usize) -> Result<KeyPage, Failure> {
        let after: Option<ScopedKey> = after.map(str::parse).transpose()?;
        let now = self.clock.now();
        let mut keys: Vec<KeyView> = Vec::new();
        for shard in &self.shards {
            let shard = lock(shard);
            let wanted = shard.iter().filter(|(key, _)| after.is_none_or(|after| **key > after));
            keys.extend(wanted.filter_map(|(key, entry)| entry.view(*key, now)));
        }
        keys.sort_unstable_by_key(|view| view.key);
        let more = keys.len() > limit;
        keys.truncate(limit);
        let next = keys.last().filter(|_| more).map(|view| view.key.to_string());
        Ok(KeyPage { keys, next })
    }

    async fn look(&self, key: &ScopedKey) -> Result<Option<KeyView>, Failure> {
        let now = self.clock.now();
        Ok(self.shard(key).get(key).and_then(|entry| entry.view(*key, now)))
    }

    async fn free(&self, key: &ScopedKey) -> Result<bool, Failure> {
        let now = self.clock.now();
        let mut shard = self.shard(key);
        let was_used = shard.get(key).is_some_and(|entry| !entry.is_forgotten(now));
        self.remove(&mut shard, key);
        Ok(was_used)
    }
}

fn full(limit: usize) -> Failure {
    Failure::unavailable("E-KEYS-FULL", format!("keys in memory take {limit} bytes already"))
        .with_fix("keep results for a shorter time, raise max_bytes, or use another store")
}

impl Default for MemoryKeys {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Debug for MemoryKeys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MemoryKeys").field("keys", &self.len()).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::ManualClock;

    const HOUR: Duration = Duration::from_secs(3600);

    async fn store_one(store: &MemoryKeys, name: &str, bytes: usize) -> Result<(), Failure> {
        let (key, print) = (ScopedKey::new(&[name]), Fingerprint::new(&[b"1"]));
        let Claim::Fresh { token, .. } = store.claim(&key, &print, HOUR).await? else {
            unreachable!("{name} is new")
        };
        let record = Record { version: 1, body: vec![0; bytes].into() };
        assert!(store.complete(&key, token, record, HOUR).await?.is_held());
        Ok(())
    }

    #[tokio::test]
    async fn what_it_holds_is_bounded_and_nothing_promised_is_forgotten() {
        let clock = Arc::new(ManualClock::default());
        let shared: Arc<dyn Clock> = Arc::<ManualClock>::clone(&clock);
        let store = MemoryKeys::with_clock(shared).max_bytes(100_000);
        let mut stored = 0;
        let refused = loop {
            match store_one(&store, &stored.to_string(), 9_000).await {
                Ok(()) => stored += 1,
                Err(failure) => break failure,
            }
        };
        assert_eq!((stored, refused.code()), (11, "E-KEYS-FULL"));
        let (known, print) = (ScopedKey::new(&["0"]), Fingerprint::new(&[b"1"]));
        assert!(matches!(store.claim(&known, &print, HOUR).await, Ok(Claim::Done(_))));
        clock.advance(HOUR);
        store_one(&store, "new", 9_000).await.unwrap();
        assert_eq!(store.len(), 1, "what was expired made room");
        assert!(store.free(&ScopedKey::new(&["new"])).await.unwrap());
        assert_eq!(store.bytes.load(Ordering::Relaxed), 0);
    }
    /// What is asked for a span of time has it, and not a nanosecond more.
    #[tokio::test]
    async fn at_the_very_end_a_lease_and_a_result_are_over() {
        const INSTANT: Duration = Duration::from_nanos(1);
        let clock = Arc::new(ManualClock::default());
        let store = MemoryKeys::with_clock(Arc::<ManualClock>::clone(&clock));
        let (key, print) = (ScopedKey::new(&["edge"]), Fingerprint::new(&[b"1"]));
        for attempt in 1..=2 {
            let claim = store.claim(&key, &print, HOUR).await.unwrap();
            assert!(
                matches!(claim, Claim::Fresh { attempt: it, .. } if it == attempt),
                "{claim:?}"
            );
            clock.advance(HOUR - INSTANT);
            let claim = store.claim(&key, &print, HOUR).await.unwrap();
            assert_eq!(claim, Claim::InFlight { remaining: INSTANT });
            clock.advance(INSTANT);
        }
        store_one(&store, "done", 1).await.unwrap();
        clock.advance(HOUR - INSTANT);
        let claim = |key: &'static str| {
            let (store, print) = (&store, &print);
            async move { store.claim(&ScopedKey::new(&[key]), print, HOUR).await.unwrap() }
        };
        assert!(matches!(claim("done").await, Claim::Done(_)));
        clock.advance(INSTANT);
        assert!(matches!(claim("done").await, Claim::Fresh { attempt: 1, .. }));
    }
}
