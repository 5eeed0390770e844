//! A small transactional database in memory: an outbox, an inbox and a table of named numbers.

use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard};

use bytes::Bytes;
use jiff::Timestamp;
use tokio::sync::{Mutex as AsyncMutex, OwnedMutexGuard};

use super::changes::Changes;
use super::letters::Letters;
use super::{MemoryOutbox, lock};
use crate::clock::{Clock, SystemClock};
use crate::event::{Event, EventId};
use crate::insight::{AuditEntry, OutageView};

/// A database in memory. Clones share the same data.
///
/// Transactions run one after another, as in SQLite; readers see what is committed.
///
/// ```
/// use semel_core::memory::MemoryDatabase;
///
/// # tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(async {
/// let database = MemoryDatabase::new();
/// let mut tx = database.begin().await;
/// tx.add("balance", 100);
/// assert_eq!(database.get("balance"), 0);
/// tx.commit();
/// assert_eq!(database.get("balance"), 100);
/// # });
/// ```
#[derive(Clone)]
pub struct MemoryDatabase {
    shared: Arc<Shared>,
}

struct Shared {
    clock: Arc<dyn Clock>,
    writer: Arc<AsyncMutex<()>>,
    committed: Mutex<Committed>,
    changes: Arc<Changes>,
}

/// All that is committed.
#[derive(Default)]
pub(super) struct Committed {
    pub(super) log: Log,
    pub(super) parked: BTreeMap<OwnedLane, BTreeMap<Place, Parked>>,
    pub(super) idempotency_keys: HashSet<String>,
    /// Who owns the outbox: the source opened last. Older ones are fenced off.
    pub(super) epoch: u64,
    pub(super) inbox: HashMap<(String, EventId), Seen>,
    /// What operators changed.
    pub(super) audit: Vec<AuditEntry>,
    /// By pipeline and relay, and when each was told of last.
    pub(super) outages: BTreeMap<(String, String), (OutageView, Timestamp)>,
    pub(super) marks: HashMap<(String, String), u64>,
    pub(super) letters: Letters,
    numbers: BTreeMap<String, i64>,
}

pub(super) type OwnedLane = (String, String);

/// An inbox entry.
pub(super) struct Seen {
    pub(super) at: Timestamp,
    pub(super) result: Option<Bytes>,
}

/// An event that left the straight path: it waits for a retry, behind another, or for an operator.
#[derive(Clone, Debug)]
pub(super) struct Parked {
    pub(super) due: Timestamp,
    pub(super) attempts: u32,
    pub(super) error: Option<String>,
    pub(super) dead: bool,
}

/// Where a row stands in its lane: behind every row with a lower number than `behind`. For a row
/// that was due when it was written both are its own number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Place {
    behind: u64,
    pub(super) number: u64,
}

/// One row of the outbox.
pub(super) struct Row {
    pub(super) event: Arc<Event>,
    pub(super) fate: Fate,
    /// Written before its time.
    pub(super) scheduled: bool,
    pub(super) behind: u64,
    /// The epoch whose source has it in flight.
    pub(super) out: Option<u64>,
}

#[derive(Clone, Debug)]
pub(super) enum Fate {
    Open,
    Parked,
    Published(Timestamp),
    Discarded(Timestamp),
    /// A dead letter that does not hold its lane.
    Dead {
        attempts: u32,
        error: String,
    },
}

/// The outbox rows, by their number; cleaned rows leave holes that are trimmed from the front.
#[derive(Default)]
pub(super) struct Log {
    rows: VecDeque<Option<Row>>,
    first: u64,
    /// No row before this one is [`Fate::Open`].
    pub(super) first_open: u64,
}

impl MemoryDatabase {
    /// An empty database on the system clock.
    #[must_use]
    pub fn new() -> Self {
        Self::with_clock(Arc::new(SystemClock))
    }

    /// An empty database on a clock of your own.
    #[must_use]
    pub fn with_clock(clock: Arc<dyn Clock>) -> Self {
        let shared = Shared {
            clock,
            writer: Arc::default(),
            committed: Mutex::default(),
            changes: Arc::default(),
        };
        Self { shared: Arc::new(shared) }
    }

    /// Opens a transaction; waits for the one before it to end.
    pub async fn begin(&self) -> MemoryTx {
        let writer = Arc::clone(&self.shared.writer).lock_owned().await;
        MemoryTx {
            database: self.clone(),
            _writer: writer,
            events: Vec::new(),
            idempotency_keys: HashSet::new(),
            numbers: BTreeMap::new(),
            inbox: HashMap::new(),
            marks: HashMap::new(),
            letters: None,
        }
    }

    /// The outbox as a source. The source opened last is the owner; older ones are fenced off.
    #[must_use]
    pub fn source(&self) -> MemoryOutbox {
        MemoryOutbox::open(self.clone(), Arc::clone(&self.shared.changes))
    }

    /// A committed number; 0 if it was never set.
    #[must_use]
    pub fn get(&self, name: &str) -> i64 {
        self.committed().numbers.get(name).copied().unwrap_or(0)
    }

    /// All committed numbers, by name.
    #[must_use]
    pub fn numbers(&self) -> BTreeMap<String, i64> {
        self.committed().numbers.clone()
    }

    /// All committed events that were not cleaned away, in commit order.
    #[must_use]
    pub fn events(&self) -> Vec<Arc<Event>> {
        self.committed().log.iter().map(|(_, row)| Arc::clone(&row.event)).collect()
    }

    pub(super) fn committed(&self) -> MutexGuard<'_, Committed> {
        lock(&self.shared.committed)
    }

    pub(super) fn now(&self) -> Timestamp {
        self.shared.clock.now()
    }

    pub(super) fn announce_change(&self) {
        self.shared.changes.announce();
    }
}

impl Default for MemoryDatabase {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Debug for MemoryDatabase {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MemoryDatabase").finish_non_exhaustive()
    }
}

impl Committed {
    /// Forgets that a row waits, and says what was known of its waiting.
    pub(super) fn unpark(&mut self, number: u64) -> Option<Parked> {
        let row = self.log.get(number)?;
        let (lane, place) = (owned_lane(&row.event), row.place(number));
        let queue = self.parked.get_mut(&lane)?;
        let parked = queue.remove(&place);
        if queue.is_empty() {
            self.parked.remove(&lane);
        }
        parked
    }

    /// Puts a row aside, in its place behind earlier rows of its lane.
    pub(super) fn park(&mut self, number: u64, parked: Parked) {
        if let Some(row) = self.log.get_mut(number) {
            row.fate = Fate::Parked;
            row.out = None;
            let (lane, place) = (owned_lane(&row.event), row.place(number));
            self.parked.entry(lane).or_default().insert(place, parked);
        }
    }

    /// What is known of a row's waiting.
    pub(super) fn waiting(&self, number: u64, row: &Row) -> Option<&Parked> {
        self.parked.get(&owned_lane(&row.event))?.get(&row.place(number))
    }
}

impl Row {
    fn place(&self, number: u64) -> Place {
        Place { behind: self.behind, number }
    }

    /// Whether the owner may hand it out.
    pub(super) fn is_free(&self, epoch: u64) -> bool {
        matches!(self.fate, Fate::Open) && self.out != Some(epoch)
    }
}

pub(super) fn owned_lane(event: &Event) -> OwnedLane {
    (event.aggregate_type.clone(), event.aggregate_id.clone())
}

impl Log {
    /// How many events were ever written, and how many of those left the log.
    pub(super) fn progress(&self) -> (u64, u64) {
        let written = self.first + self.rows.len() as u64;
        (written, self.first_open.min(written))
    }

    fn push(&mut self, event: Event, now: Timestamp) {
        let scheduled = event.available_at.is_some_and(|due| due > now);
        let (event, behind) = (Arc::new(event), self.end());
        self.rows.push_back(Some(Row { event, fate: Fate::Open, scheduled, behind, out: None }));
    }

    pub(super) fn end(&self) -> u64 {
        self.first + self.rows.len() as u64
    }

    pub(super) fn get(&self, number: u64) -> Option<&Row> {
        self.rows.get(self.index(number)?)?.as_ref()
    }

    pub(super) fn get_mut(&mut self, number: u64) -> Option<&mut Row> {
        let index = self.index(number)?;
        self.rows.get_mut(index)?.as_mut()
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (u64, &Row)> {
        (self.first..).zip(&self.rows).filter_map(|(number, row)| Some((number, row.as_ref()?)))
    }

    pub(super) fn remove(&mut self, number: u64) {
        if let Some(slot) = self.index(number).and_then(|index| self.rows.get_mut(index)) {
            *slot = None;
        }
        while let Some(None) = self.rows.front() {
            self.rows.pop_front();
            self.first += 1;
        }
    }

    pub(super) fn advance_first_open(&mut self) {
        self.first_open = self.first_open.max(self.first);
        while self.first_open < self.end()
            && self.get(self.first_open).is_none_or(|row| !matches!(row.fate, Fate::Open))
        {
            self.first_open += 1;
        }
    }

    fn index(&self, number: u64) -> Option<usize> {
        usize::try_from(number.checked_sub(self.first)?).ok()
    }
}

/// An open transaction of a [`MemoryDatabase`]. Dropping it rolls it back.
///
/// ```
/// # use semel_core::memory::MemoryDatabase;
/// # tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(async {
/// let database = MemoryDatabase::new();
/// let mut tx = database.begin().await;
/// tx.add("stock", -1);
/// assert_eq!(tx.get("stock"), -1);
/// drop(tx);
/// assert_eq!(database.get("stock"), 0);
/// # });
/// ```
pub struct MemoryTx {
    pub(super) database: MemoryDatabase,
    _writer: OwnedMutexGuard<()>,
    pub(super) events: Vec<Event>,
    pub(super) idempotency_keys: HashSet<String>,
    numbers: BTreeMap<String, i64>,
    pub(super) inbox: HashMap<(String, EventId), Option<Bytes>>,
    pub(super) marks: HashMap<(String, String), u64>,
    /// All letters, once they were looked at.
    pub(super) letters: Option<Letters>,
}

impl MemoryTx {
    /// Adds to a number. Not idempotent on purpose: done twice, it shows.
    pub fn add(&mut self, name: impl Into<String>, amount: i64) {
        *self.numbers.entry(name.into()).or_default() += amount;
    }

    /// A number as this transaction sees it.
    #[must_use]
    pub fn get(&self, name: &str) -> i64 {
        self.database.get(name) + self.numbers.get(name).copied().unwrap_or(0)
    }

    /// Makes everything visible at once.
    pub fn commit(self) {
        let now = self.database.now();
        {
            let mut committed = self.database.committed();
            committed.idempotency_keys.extend(self.idempotency_keys);
            for event in self.events {
                committed.log.push(event, now);
            }
            for (name, amount) in self.numbers {
                *committed.numbers.entry(name).or_default() += amount;
            }
            for (key, result) in self.inbox {
                committed.inbox.insert(key, Seen { at: now, result });
            }
            committed.marks.extend(self.marks);
            if let Some(letters) = self.letters {
                committed.letters = letters;
            }
        }
        self.database.announce_change();
    }
}

impl fmt::Debug for MemoryTx {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MemoryTx").field("events", &self.events.len()).finish_non_exhaustive()
    }
}
