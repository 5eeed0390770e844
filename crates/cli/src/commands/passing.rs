//! Events as they come and change, by looking at the newest again and again. Nothing is changed, and
//! no relay notices.

use std::collections::BTreeMap;
use std::time::Duration;

use semel_core::admin::{Cursor, EventView, Filter, State};
use semel_core::{AdminStore, Clock, EventId, Failure, SystemClock, Timestamp};

/// What was made so long ago is not looked at any more. Commits may come late, and clocks differ.
const WINDOW: Duration = Duration::from_secs(15);
const PAGE: usize = 1000;

/// Follows the events of a pipeline.
pub(super) struct Passing {
    filter: Filter,
    began: Timestamp,
    known: BTreeMap<EventId, (State, u32)>,
    /// Those of the look before.
    before: BTreeMap<EventId, (State, u32)>,
}

impl Passing {
    pub(super) fn new(filter: Filter) -> Self {
        Self { filter, began: SystemClock.now(), known: BTreeMap::new(), before: BTreeMap::new() }
    }

    /// Takes note of what is there already, so that only later events are told.
    pub(super) async fn skip_present(&mut self, store: &dyn AdminStore) -> Result<(), Failure> {
        self.look(store).await.map(drop)
    }

    /// What is new, or not in the state it was in.
    pub(super) async fn look(&mut self, store: &dyn AdminStore) -> Result<Vec<EventView>, Failure> {
        let now = SystemClock.now();
        let oldest = now.checked_sub(WINDOW).unwrap_or(self.began);
        let filter = Filter {
            since: Some(self.filter.since.unwrap_or(oldest).max(oldest)),
            ..self.filter.clone()
        };
        let (mut changed, mut seen) = (Vec::new(), BTreeMap::new());
        let mut after: Option<Cursor> = None;
        loop {
            let page = store.list(&filter, after, PAGE).await?;
            for view in page.events {
                let (id, is) = (view.event.id, (view.state, view.attempts));
                if self.known.get(&id) != Some(&is) {
                    changed.push(view);
                }
                seen.insert(id, is);
            }
            after = page.next;
            if after.is_none() {
                break;
            }
        }
        self.before = std::mem::replace(&mut self.known, seen);
        Ok(changed)
    }

    /// Whether an event was there already, before the last look.
    pub(super) fn was_known(&self, id: EventId) -> bool {
        self.before.contains_key(&id)
    }
}
