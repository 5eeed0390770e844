//! [`IdempotencyStore`] in memory.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use jiff::Timestamp;

use super::lock;
use crate::clock::{Clock, SystemClock};
use crate::delivery::Holding;
use crate::failure::Failure;
use crate::idempotency::{Claim, Fingerprint, IdempotencyStore, Record, ScopedKey, Token};
use crate::retry::later;

/// Idempotency keys of one process. They do not survive it.
///
/// ```
/// # use semel_core::memory::MemoryKeys;
/// let store = MemoryKeys::new();
/// assert!(store.is_empty());
/// ```
pub struct MemoryKeys {
    clock: Arc<dyn Clock>,
    keys: Mutex<Keys>,
}

#[derive(Default)]
struct Keys {
    entries: HashMap<ScopedKey, Entry>,
    last_token: u64,
}

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
        Self { clock, keys: Mutex::default() }
    }

    /// How many keys there are, expired ones included until they are purged.
    #[must_use]
    pub fn len(&self) -> usize {
        lock(&self.keys).entries.len()
    }

    /// Whether there is none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Lets the owner of a live claim change it.
    fn change(
        &self,
        key: &ScopedKey,
        shown: Token,
        change: impl FnOnce(&mut HashMap<ScopedKey, Entry>, Timestamp),
    ) -> Holding {
        let now = self.clock.now();
        let mut keys = lock(&self.keys);
        let owns = keys.entries.get(key).is_some_and(|entry| {
            matches!(entry.state, State::Running { token, until, .. } if token == shown && now < until)
        });
        if !owns {
            return Holding::Lost;
        }
        change(&mut keys.entries, now);
        Holding::Held
    }
}

impl Keys {
    fn claim(
        &mut self,
        key: &ScopedKey,
        print: &Fingerprint,
        lease: Duration,
        now: Timestamp,
    ) -> Claim {
        let attempt = match self.entries.get(key) {
            Some(entry) if !entry.is_forgotten(now) && entry.fingerprint != *print => {
                return Claim::Mismatch;
            }
            Some(Entry { state: State::Done { record, until }, .. }) if now < *until => {
                return Claim::Done(record.clone());
            }
            Some(Entry { state: State::Running { until, .. }, .. }) if now < *until => {
                let remaining = until.duration_since(now).unsigned_abs();
                return Claim::InFlight { remaining };
            }
            Some(Entry { state: State::Running { attempt, .. }, .. }) => attempt + 1,
            Some(Entry { state: State::Done { .. }, .. }) | None => 1,
        };
        self.last_token += 1;
        let token = Token(self.last_token);
        let state = State::Running { token, attempt, until: later(now, lease) };
        self.entries.insert(*key, Entry { fingerprint: *print, state });
        Claim::Fresh { token, attempt }
    }
}

impl Entry {
    /// Whether the key counts as never used. An abandoned claim does not: whoever takes it over
    /// must know that it was tried, and with what.
    fn is_forgotten(&self, now: Timestamp) -> bool {
        matches!(self.state, State::Done { until, .. } if until <= now)
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
        let now = self.clock.now();
        Ok(lock(&self.keys).claim(key, fingerprint, lease, now))
    }

    async fn complete(
        &self,
        key: &ScopedKey,
        token: Token,
        record: Record,
        keep: Duration,
    ) -> Result<Holding, Failure> {
        Ok(self.change(key, token, |entries, now| {
            if let Some(entry) = entries.get_mut(key) {
                entry.state = State::Done { record, until: later(now, keep) };
            }
        }))
    }

    async fn renew(
        &self,
        key: &ScopedKey,
        token: Token,
        lease: Duration,
    ) -> Result<Holding, Failure> {
        Ok(self.change(key, token, |entries, now| {
            if let Some(Entry { state: State::Running { until, .. }, .. }) = entries.get_mut(key) {
                *until = later(now, lease);
            }
        }))
    }

    async fn release(&self, key: &ScopedKey, token: Token) -> Result<Holding, Failure> {
        Ok(self.change(key, token, |entries, _| {
            entries.remove(key);
        }))
    }

    async fn forget_expired(&self, limit: usize) -> Result<usize, Failure> {
        let now = self.clock.now();
        let mut keys = lock(&self.keys);
        let expired: Vec<_> = keys
            .entries
            .iter()
            .filter(|(_, entry)| entry.is_forgotten(now))
            .map(|(key, _)| *key)
            .take(limit)
            .collect();
        for key in &expired {
            keys.entries.remove(key);
        }
        Ok(expired.len())
    }
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
