//! What operators see of keys, and may do to them.

use std::cmp::Reverse;
use std::collections::HashMap;
use std::time::Duration;

use async_trait::async_trait;

use super::{Ending, Record, ScopedKey, Stored};
use crate::failure::Failure;

/// Looking after keys: who runs, what is done, and making a key free by hand. Results are never
/// shown.
///
/// ```
/// use semel_core::idempotency::{Fingerprint, IdempotencyStore, KeyAdmin, KeyState, ScopedKey};
/// use semel_core::memory::MemoryKeys;
/// use std::time::Duration;
///
/// # tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(async {
/// let (store, key) = (MemoryKeys::new(), ScopedKey::new(&["acme", "charge", "k1"]));
/// store.claim(&key, &Fingerprint::new(&[b"99"]), Duration::from_secs(30)).await?;
/// let page = store.list(None, 10).await?;
/// assert_eq!((page.keys[0].key, page.keys[0].state), (key, KeyState::Running));
/// assert!(store.free(&key).await?);
/// assert_eq!(store.look(&key).await?, None);
/// # Ok::<(), semel_core::Failure>(()) }).unwrap();
/// ```
#[async_trait]
pub trait KeyAdmin: Send + Sync {
    /// About `limit` keys that are not free, from where the page before ended. A key is listed at
    /// least once if it is there all the time.
    ///
    /// # Errors
    /// `Unavailable` when the store cannot be reached, `Refused` when `after` makes no sense.
    async fn list(&self, after: Option<&str>, limit: usize) -> Result<KeyPage, Failure>;

    /// One key; nothing if it is free.
    ///
    /// # Errors
    /// `Unavailable` when the store cannot be reached.
    async fn look(&self, key: &ScopedKey) -> Result<Option<KeyView>, Failure>;

    /// How the keys stand: how many are in which state, and those that nobody has finished. Of many
    /// keys about `most` are looked at, which are as good as any: keys are in the order of their
    /// hashes, which is none.
    ///
    /// # Errors
    /// `Unavailable` when the store cannot be reached.
    async fn survey(&self, most: usize) -> Result<KeySurvey, Failure> {
        const PAGE: usize = 1000;
        let (mut survey, mut after) = (KeySurvey::default(), None);
        while survey.keys < most as u64 {
            let page = self.list(after.as_deref(), PAGE.min(most)).await?;
            page.keys.iter().for_each(|view| survey.add(*view));
            after = page.next;
            if after.is_none() {
                break;
            }
        }
        survey.is_whole = after.is_none();
        Ok(survey.in_order())
    }

    /// Makes a key free, whatever its state: the next claim is fresh, and an owner that still runs
    /// is fenced off. Says whether it was not free before.
    ///
    /// # Errors
    /// `Unavailable`: it is unknown whether it was made free.
    async fn free(&self, key: &ScopedKey) -> Result<bool, Failure>;
}

/// Some keys, and where to go on.
///
/// ```
/// assert!(semel_core::idempotency::KeyPage::default().keys.is_empty());
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KeyPage {
    /// The keys.
    pub keys: Vec<KeyView>,
    /// What to give to the next call; nothing if there are no more.
    pub next: Option<String>,
}

/// How keys stand.
///
/// ```
/// use semel_core::idempotency::{Fingerprint, IdempotencyStore, KeyAdmin, KeyState, ScopedKey};
/// use semel_core::memory::MemoryKeys;
/// use std::time::Duration;
///
/// # tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(async {
/// let store = MemoryKeys::new();
/// for name in ["k1", "k2"] {
///     let (key, print) = (ScopedKey::new(&[name]), Fingerprint::new(&[b"99"]));
///     store.claim(&key, &print, Duration::from_secs(30)).await?;
/// }
/// let survey = store.survey(1000).await?;
/// assert_eq!((survey.count(KeyState::Running), survey.open.len()), (2, 2));
/// assert!(survey.is_whole);
/// # Ok::<(), semel_core::Failure>(()) }).unwrap();
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KeySurvey {
    /// How many were looked at.
    pub keys: u64,
    /// Whether these were all.
    pub is_whole: bool,
    /// Those that run or were abandoned, the abandoned ones first, then those whose lease ends
    /// soonest; at most a hundred.
    pub open: Vec<KeyView>,
    counts: HashMap<KeyState, u64>,
}

impl KeySurvey {
    /// How many of these are in this state.
    #[must_use]
    pub fn count(&self, state: KeyState) -> u64 {
        self.counts.get(&state).copied().unwrap_or(0)
    }

    fn add(&mut self, view: KeyView) {
        self.keys += 1;
        *self.counts.entry(view.state).or_default() += 1;
        if !matches!(view.state, KeyState::Done(_)) {
            self.open.push(view);
        }
    }

    fn in_order(mut self) -> Self {
        const SHOWN: usize = 100;
        self.open.sort_by_key(|view| (view.remaining, Reverse(view.attempt), view.key));
        self.open.truncate(SHOWN);
        self
    }
}

/// One key.
///
/// ```
/// use semel_core::idempotency::{Ending, KeyState, KeyView, ScopedKey, Stored};
/// use std::time::Duration;
///
/// let record = Stored::record(Ending::Succeeded, b"paid".to_vec());
/// let last = record.body[record.body.len() - 1];
/// let key = ScopedKey::new(&["k1"]);
/// let view = KeyView::done(key, record.version, Some(last), 5, Duration::from_secs(60));
/// assert_eq!(view.state, KeyState::Done(Ending::Succeeded));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeyView {
    /// Its hash.
    pub key: ScopedKey,
    /// Whether it runs or is done.
    pub state: KeyState,
    /// Which attempt runs, or was abandoned; unknown of what is done.
    pub attempt: Option<u32>,
    /// How long the lease lasts or the result is kept; zero of what was abandoned.
    pub remaining: Duration,
    /// The size of the stored result.
    pub bytes: usize,
}

/// Whether a key runs or is done.
///
/// ```
/// # use semel_core::idempotency::{Ending, KeyState};
/// assert_eq!(KeyState::Done(Ending::Uncertain).as_str(), "UNCERTAIN");
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum KeyState {
    /// Somebody runs the operation.
    Running,
    /// Somebody ran it and let the lease run out.
    Abandoned,
    /// It is done, and ended like this.
    Done(Ending),
}

impl KeyState {
    /// All of them, as a page shows them.
    pub const ALL: [Self; 6] = [
        Self::Running,
        Self::Abandoned,
        Self::Done(Ending::Succeeded),
        Self::Done(Ending::Failed),
        Self::Done(Ending::NotRetained),
        Self::Done(Ending::Uncertain),
    ];

    /// As people read it.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Running => "RUNNING",
            Self::Abandoned => "ABANDONED",
            Self::Done(Ending::Succeeded) => "SUCCEEDED",
            Self::Done(Ending::Failed) => "FAILED",
            Self::Done(Ending::NotRetained) => "NOT RETAINED",
            Self::Done(Ending::Uncertain) => "UNCERTAIN",
        }
    }
}

impl KeyView {
    /// A claim; it was abandoned if its lease has ended.
    #[must_use]
    pub const fn claimed(key: ScopedKey, attempt: u32, remaining: Duration) -> Self {
        let state = if remaining.is_zero() { KeyState::Abandoned } else { KeyState::Running };
        Self { key, state, attempt: Some(attempt), remaining, bytes: 0 }
    }

    /// A result, of which version, last byte and size are known.
    #[must_use]
    pub fn done(
        key: ScopedKey,
        version: u8,
        last: Option<u8>,
        bytes: usize,
        remaining: Duration,
    ) -> Self {
        let end = Record { version, body: last.into_iter().collect() };
        let state = KeyState::Done(Stored::from(end).ending);
        Self { key, state, attempt: None, remaining, bytes }
    }
}
