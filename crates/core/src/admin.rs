//! What an operator may ask and change: the [`AdminStore`] contract.
//!
//! The command line and the page know nothing else, so neither can write SQL.

mod troubles;

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::event::{Event, EventId};
use crate::failure::Failure;

pub use troubles::{ErrorGroup, ParkedLane, Troubles};

/// Looks into an outbox and repairs it.
///
/// **Consistency.** Each call sees one state of the store. Counts may be estimates where the store
/// says so.
///
/// **Concurrency.** All calls are safe while relays run; what a relay has in flight is left alone.
///
/// **Repetition.** Retrying, discarding and replaying what was handled already changes nothing and
/// counts nothing.
///
/// ```
/// use semel_core::admin::{AdminStore, Filter, State};
/// use semel_core::memory::MemoryDatabase;
/// use semel_core::{Event, OutboxWriter};
///
/// # tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(async {
/// let database = MemoryDatabase::new();
/// let mut tx = database.begin().await;
/// database.append(&mut tx, &[Event::new("order", "42", "OrderPlaced")]).await?;
/// tx.commit();
///
/// assert_eq!(database.stats().await?.count(State::Pending), 1);
/// assert_eq!(database.list(&Filter::default(), None, 10).await?.events.len(), 1);
/// # Ok::<(), Box<dyn std::error::Error>>(()) }).unwrap();
/// ```
#[async_trait]
pub trait AdminStore: Send + Sync {
    /// How many events are in each state, and how old the oldest waiting one is.
    ///
    /// # Errors
    /// `Unavailable` when the store cannot be reached.
    async fn stats(&self) -> Result<Stats, Failure>;

    /// A page of events that match, oldest first, `after` the last one of the page before. Their
    /// payloads stay where they are, for a page of them may be more than there is memory:
    /// [`EventView::payload_bytes`] says how long each is, and [`get`](Self::get) brings it.
    ///
    /// # Errors
    /// `Unavailable` when the store cannot be reached.
    async fn list(
        &self,
        filter: &Filter,
        after: Option<Cursor>,
        limit: usize,
    ) -> Result<Page, Failure>;

    /// One event, with its payload, and what became of it.
    ///
    /// # Errors
    /// `Unavailable` when the store cannot be reached.
    async fn get(&self, id: EventId) -> Result<Option<EventView>, Failure>;

    /// Makes failed and dead events due now, with all attempts in front of them; their lanes go
    /// on behind them. Says how many.
    ///
    /// # Errors
    /// `Unavailable` when the store cannot be reached.
    async fn retry(&self, selection: &Selection) -> Result<usize, Failure>;

    /// Gives dead and failed events up for good; their lanes go on without them. Says how many.
    ///
    /// # Errors
    /// `Unavailable` when the store cannot be reached.
    async fn discard(&self, selection: &Selection) -> Result<usize, Failure>;

    /// Offers published events again, with the same id. Says how many.
    ///
    /// # Errors
    /// `Unavailable` when the store cannot be reached.
    async fn replay(&self, selection: &Selection) -> Result<usize, Failure>;

    /// Deletes at most `limit` events that were published or discarded longer ago than `age`, by
    /// the store's clock. Says how many.
    ///
    /// # Errors
    /// `Unavailable` when the store cannot be reached.
    async fn clean(&self, age: Duration, limit: usize) -> Result<usize, Failure>;

    /// What there is to do besides: a store that keeps events in partitions by time makes those
    /// that will be needed, and drops those whose events were all published or discarded longer ago
    /// than `age`. Says how many it dropped. The default has nothing to do.
    ///
    /// # Errors
    /// `Unavailable` when the store cannot be reached, `Transient` when somebody is in the way.
    async fn upkeep(&self, age: Duration) -> Result<usize, Failure> {
        let _ = age;
        Ok(0)
    }

    /// A page of events that match, newest first, `before` the last one of the page before, without
    /// their payloads as well. Looks at a bounded number of events: a page may be shorter than `limit`
    /// and still have a next one. The default lists the oldest first.
    ///
    /// # Errors
    /// `Unavailable` when the store cannot be reached.
    async fn latest(
        &self,
        filter: &Filter,
        before: Option<Cursor>,
        limit: usize,
    ) -> Result<Page, Failure> {
        self.list(filter, before, limit).await
    }

    /// Why events failed, the most frequent reason first, and the lanes that wait, the longest queue
    /// first; at most `limit` of each.
    ///
    /// # Errors
    /// `Unavailable` when the store cannot be reached.
    async fn troubles(&self, limit: usize) -> Result<Troubles, Failure> {
        Troubles::gather(self, limit).await
    }
}

/// Where an event is in its life.
///
/// ```
/// # use semel_core::admin::State;
/// assert_eq!(State::Dead.as_str(), "dead");
/// assert_eq!(State::ALL.len(), 6);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum State {
    /// Committed, not taken up yet; or waiting behind a failed event of its lane.
    Pending,
    /// A relay has it.
    Publishing,
    /// The sink confirmed it.
    Published,
    /// An attempt failed; another follows.
    Failed,
    /// Its attempts are spent, or it was refused for good.
    Dead,
    /// An operator gave it up.
    Discarded,
}

impl State {
    /// All states, in the order of an event's life.
    pub const ALL: [Self; 6] = [
        Self::Pending,
        Self::Publishing,
        Self::Published,
        Self::Failed,
        Self::Dead,
        Self::Discarded,
    ];

    /// The state in lower case, as it is stored and shown.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Pending => "pending",
            Self::Publishing => "publishing",
            Self::Published => "published",
            Self::Failed => "failed",
            Self::Dead => "dead",
            Self::Discarded => "discarded",
        }
    }
}

/// How an outbox is doing.
///
/// ```
/// # use semel_core::admin::{State, Stats};
/// let mut stats = Stats::default();
/// stats.counts[State::Dead as usize] = 2;
/// assert_eq!(stats.count(State::Dead), 2);
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Stats {
    /// Events in each state, in the order of [`State::ALL`].
    pub counts: [u64; 6],
    /// How long the oldest event waits that a relay could publish now: not one behind a failed or
    /// dead event, which waits for that one, nor one whose time has not come.
    pub oldest_pending: Option<Duration>,
    /// Lanes that wait behind a failed or dead event.
    pub parked_lanes: u64,
}

impl Stats {
    /// How many events are in a state.
    #[must_use]
    pub const fn count(&self, state: State) -> u64 {
        self.counts[state as usize]
    }
}

/// Which events to list. Empty fields match everything.
///
/// ```
/// # use semel_core::admin::{Filter, State};
/// let dead = Filter { state: Some(State::Dead), ..Filter::default() };
/// assert!(dead.event_type.is_none());
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Filter {
    /// In this state.
    pub state: Option<State>,
    /// Of this aggregate type.
    pub aggregate_type: Option<String>,
    /// Of this aggregate.
    pub aggregate_id: Option<String>,
    /// Of this event type.
    pub event_type: Option<String>,
    /// Made at this time or later.
    pub since: Option<Timestamp>,
    /// Made before this time.
    pub until: Option<Timestamp>,
}

impl Filter {
    /// Whether an event in `state` matches.
    #[must_use]
    pub fn matches(&self, event: &Event, state: State) -> bool {
        fn same(wanted: Option<&String>, actual: &str) -> bool {
            wanted.is_none_or(|wanted| wanted == actual)
        }
        self.state.is_none_or(|wanted| wanted == state)
            && same(self.aggregate_type.as_ref(), &event.aggregate_type)
            && same(self.aggregate_id.as_ref(), &event.aggregate_id)
            && same(self.event_type.as_ref(), &event.event_type)
            && self.since.is_none_or(|since| event.created_at >= since)
            && self.until.is_none_or(|until| event.created_at < until)
    }
}

/// Which events to change.
///
/// ```
/// # use semel_core::{EventId, admin::Selection};
/// let one = Selection::Ids(vec![EventId::now()]);
/// assert!(matches!(one, Selection::Ids(ids) if ids.len() == 1));
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Selection {
    /// These.
    Ids(Vec<EventId>),
    /// All that match.
    Matching(Filter),
}

/// The place after an event in a listing, opaque to the caller.
///
/// ```
/// # use semel_core::admin::Cursor;
/// assert_eq!(Cursor(7), Cursor(7));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Cursor(pub u64);

/// A page of a listing.
///
/// ```
/// # use semel_core::admin::Page;
/// assert!(Page::default().next.is_none());
/// ```
#[derive(Clone, Debug, Default)]
pub struct Page {
    /// The events.
    pub events: Vec<EventView>,
    /// Where the next page begins, if there is one.
    pub next: Option<Cursor>,
}

/// One event and what became of it.
///
/// ```
/// # use semel_core::{Event, admin::{EventView, State}};
/// let view = EventView::pending(Event::new("order", "42", "OrderPlaced"));
/// assert_eq!(view.state, State::Pending);
/// ```
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct EventView {
    /// The event; in a [listing](AdminStore::list) with an empty payload.
    pub event: Arc<Event>,
    /// How many bytes its payload has where it is stored; 0 for those who may not read it.
    pub payload_bytes: u64,
    /// Where it is in its life.
    pub state: State,
    /// Attempts that failed so far.
    pub attempts: u32,
    /// When the next attempt is made, if it waits for one.
    pub next_attempt: Option<Timestamp>,
    /// Why the last attempt failed.
    pub error: Option<String>,
    /// When the sink confirmed it.
    pub published_at: Option<Timestamp>,
}

impl EventView {
    /// An event that nothing has happened to yet.
    #[must_use]
    pub fn pending(event: impl Into<Arc<Event>>) -> Self {
        let event = event.into();
        Self {
            payload_bytes: event.payload.bytes().len() as u64,
            event,
            state: State::Pending,
            attempts: 0,
            next_attempt: None,
            error: None,
            published_at: None,
        }
    }

    /// The same as a [listing](AdminStore::list) has it: of the payload there is its type and its size.
    ///
    /// ```
    /// # use semel_core::{Event, admin::EventView};
    /// let event = Event::new("order", "42", "OrderPlaced").with_bytes("text/plain", "hello");
    /// let listed = EventView::pending(event).without_payload();
    /// assert_eq!((listed.payload_bytes, listed.event.payload.bytes().len()), (5, 0));
    /// assert_eq!(listed.event.payload.content_type(), "text/plain");
    /// ```
    #[must_use]
    pub fn without_payload(mut self) -> Self {
        Arc::make_mut(&mut self.event).payload.clear();
        self
    }
}
