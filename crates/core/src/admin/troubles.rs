//! What stands in the way of events, summed up.

use std::collections::BTreeMap;

use jiff::Timestamp;
use serde::Serialize;

use super::{AdminStore, EventView, Filter, State};
use crate::event::EventId;
use crate::failure::Failure;

/// Why events failed, and which lanes wait.
///
/// ```
/// # use semel_core::admin::Troubles;
/// assert!(Troubles::default().groups.is_empty());
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Troubles {
    /// Failed and dead events by their error, the most frequent first.
    pub groups: Vec<ErrorGroup>,
    /// Lanes that wait behind a failed or dead event, the longest queue first.
    pub lanes: Vec<ParkedLane>,
}

/// Failed or dead events with the same error and type.
///
/// ```
/// # use semel_core::{EventId, Timestamp, admin::{ErrorGroup, State}};
/// let now = Timestamp::UNIX_EPOCH;
/// let group = ErrorGroup {
///     state: State::Dead,
///     error: "too large".into(),
///     event_type: "OrderPlaced".into(),
///     events: 3,
///     oldest: now,
///     newest: now,
///     sample: EventId::now(),
/// };
/// assert_eq!(group.events, 3);
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ErrorGroup {
    /// Failed or dead.
    pub state: State,
    /// Why their last attempts failed.
    pub error: String,
    /// Their type.
    pub event_type: String,
    /// How many there are.
    pub events: u64,
    /// When the oldest was made.
    pub oldest: Timestamp,
    /// When the newest was made.
    pub newest: Timestamp,
    /// One of them.
    pub sample: EventId,
}

/// A lane that waits behind a failed or dead event.
///
/// ```
/// # use semel_core::admin::{ParkedLane, State};
/// let lane = ParkedLane {
///     aggregate_type: "order".into(),
///     aggregate_id: "42".into(),
///     state: State::Dead,
///     error: "too large".into(),
///     waiting: 7,
/// };
/// assert_eq!(lane.waiting, 7);
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ParkedLane {
    /// The type of its aggregate.
    pub aggregate_type: String,
    /// Its aggregate.
    pub aggregate_id: String,
    /// Dead, when it waits for an operator.
    pub state: State,
    /// Why it waits.
    pub error: String,
    /// How many events are known to wait behind the failed one.
    pub waiting: u64,
}

impl Troubles {
    /// As a listing tells it; the queues behind are not known then.
    pub(super) async fn gather<S>(store: &S, limit: usize) -> Result<Self, Failure>
    where
        S: AdminStore + ?Sized,
    {
        const MOST: usize = 10_000;
        let mut groups = BTreeMap::new();
        let mut lanes = BTreeMap::new();
        for state in [State::Dead, State::Failed] {
            let filter = Filter { state: Some(state), ..Filter::default() };
            for view in store.list(&filter, None, MOST).await?.events {
                add(&mut groups, &view);
                let event = &view.event;
                let lane = (event.aggregate_type.clone(), event.aggregate_id.clone());
                lanes.entry(lane).or_insert_with(|| parked(&view));
            }
        }
        let mut groups: Vec<ErrorGroup> = groups.into_values().collect();
        groups.sort_by_key(|group| std::cmp::Reverse(group.events));
        groups.truncate(limit);
        Ok(Self { groups, lanes: lanes.into_values().take(limit).collect() })
    }
}

type Kind = (State, String, String);

fn add(groups: &mut BTreeMap<Kind, ErrorGroup>, view: &EventView) {
    let (event, error) = (&view.event, view.error.clone().unwrap_or_default());
    let kind = (view.state, error.clone(), event.event_type.clone());
    let group = groups.entry(kind).or_insert_with(|| ErrorGroup {
        state: view.state,
        error,
        event_type: event.event_type.clone(),
        events: 0,
        oldest: event.created_at,
        newest: event.created_at,
        sample: event.id,
    });
    group.events += 1;
    group.oldest = group.oldest.min(event.created_at);
    group.newest = group.newest.max(event.created_at);
}

fn parked(view: &EventView) -> ParkedLane {
    ParkedLane {
        aggregate_type: view.event.aggregate_type.clone(),
        aggregate_id: view.event.aggregate_id.clone(),
        state: view.state,
        error: view.error.clone().unwrap_or_default(),
        waiting: 0,
    }
}
