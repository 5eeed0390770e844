//! Events as they come and change, by looking at the newest again and again, at those that failed, and
//! at what was seen before and is not at its end. Nothing is changed, and no relay notices.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use semel_core::admin::{Cursor, EventView, Filter, State};
use semel_core::{AdminStore, Clock, EventId, Failure, SystemClock, Timestamp};

/// What was made so long ago is not new any more. Commits may come late, and clocks differ.
const WINDOW: Duration = Duration::from_secs(15);
const PAGE: usize = 1000;
/// How many events that are neither new nor failed are followed: those with the latest ids.
const FOLLOWED: usize = 1000;
/// How many of them are asked for at each look, in turn.
const ASKED: usize = 20;

type Seen = BTreeMap<EventId, (State, u32)>;

/// Follows the events of a pipeline.
pub(super) struct Passing {
    filter: Filter,
    began: Timestamp,
    known: Seen,
    /// Those that were new at the last look.
    new: BTreeSet<EventId>,
    /// The one that was asked for last.
    asked: Option<EventId>,
}

impl Passing {
    pub(super) fn new(filter: Filter) -> Self {
        let (began, new) = (SystemClock.now(), BTreeSet::new());
        Self { filter, began, known: Seen::new(), new, asked: None }
    }

    /// Takes note of what is there already, so that only what happens later is told.
    pub(super) async fn skip_present(&mut self, store: &dyn AdminStore) -> Result<(), Failure> {
        self.look(store).await.map(drop)
    }

    /// What is new, or not in the state it was in.
    pub(super) async fn look(&mut self, store: &dyn AdminStore) -> Result<Vec<EventView>, Failure> {
        let mut look = Look { before: &self.known, seen: Seen::new(), changed: Vec::new() };
        look.at_new(store, &self.window()).await?;
        let is_new = |id: &&EventId| !self.known.contains_key(id);
        let new = look.seen.keys().filter(is_new).copied().collect();
        look.at_failed(store, &self.filter).await?;
        let asked = look.at_others(store, self.asked).await?;
        let Look { seen, changed, .. } = look;
        (self.known, self.new, self.asked) = (seen, new, asked);
        Ok(changed)
    }

    /// Whether an event was written between the last two looks.
    pub(super) fn is_new(&self, id: EventId) -> bool {
        self.new.contains(&id)
    }

    fn window(&self) -> Filter {
        let oldest = SystemClock.now().checked_sub(WINDOW).unwrap_or(self.began);
        let since = Some(self.filter.since.unwrap_or(oldest).max(oldest));
        Filter { since, ..self.filter.clone() }
    }
}

/// One look.
struct Look<'a> {
    before: &'a Seen,
    seen: Seen,
    changed: Vec<EventView>,
}

impl Look<'_> {
    async fn at_new(&mut self, store: &dyn AdminStore, filter: &Filter) -> Result<(), Failure> {
        let mut after: Option<Cursor> = None;
        loop {
            let page = store.list(filter, after, PAGE).await?;
            page.events.into_iter().for_each(|view| self.take(view));
            after = page.next;
            if after.is_none() {
                return Ok(());
            }
        }
    }

    /// However old they are: they are few, and easily found.
    async fn at_failed(&mut self, store: &dyn AdminStore, filter: &Filter) -> Result<(), Failure> {
        for state in [State::Failed, State::Dead] {
            let filter = Filter { state: Some(state), ..filter.clone() };
            let page = store.list(&filter, None, PAGE).await?;
            page.events.into_iter().for_each(|view| self.take(view));
        }
        Ok(())
    }

    /// Those that were seen before and are not at their end, from the one on that was asked for last;
    /// gives the one that is now.
    async fn at_others(
        &mut self,
        store: &dyn AdminStore,
        last: Option<EventId>,
    ) -> Result<Option<EventId>, Failure> {
        let is_open = |state: State| !matches!(state, State::Published | State::Discarded);
        let others = self.before.iter().rev().filter(|(_, (state, _))| is_open(*state));
        let mut others: Vec<_> =
            others.filter(|(id, _)| !self.seen.contains_key(id)).take(FOLLOWED).collect();
        let turn = others.iter().position(|(id, _)| last.is_some_and(|last| **id < last));
        others.rotate_left(turn.unwrap_or(0));
        let (now, later) = others.split_at(others.len().min(ASKED));
        self.seen.extend(later.iter().map(|(id, is)| (**id, **is)));
        for (id, _) in now {
            // One that is gone was cleaned up, or deleted when it was published.
            if let Some(view) = store.get(**id).await? {
                self.take(view);
            }
        }
        Ok(now.last().map(|(id, _)| **id))
    }

    fn take(&mut self, view: EventView) {
        let (id, is) = (view.event.id, (view.state, view.attempts));
        let was = self.seen.insert(id, is).or_else(|| self.before.get(&id).copied());
        if was != Some(is) {
            self.changed.push(view);
        }
    }
}

#[cfg(test)]
mod tests {
    use semel_core::memory::MemoryDatabase;
    use semel_core::{Event, OutboxWriter};

    use super::*;

    /// Events that were new a while ago are asked for in turn, and the latest of too many.
    #[tokio::test]
    async fn what_waits_is_followed_in_turn_and_not_without_bounds() {
        let database = MemoryDatabase::new();
        let old = SystemClock.now().checked_sub(WINDOW * 2).unwrap();
        let events: Vec<_> = (0..FOLLOWED + 5)
            .map(|number| {
                let mut event = Event::new("order", number.to_string(), "OrderPlaced");
                event.created_at = old;
                event
            })
            .collect();
        let mut tx = database.begin().await;
        database.append(&mut tx, &events).await.unwrap();
        tx.commit();
        let mut passing = Passing::new(Filter::default());
        let mut ids: Vec<_> = events.iter().map(|event| event.id).collect();
        ids.sort();
        // As if each had been seen in another state.
        passing.known = ids.iter().map(|id| (*id, (State::Publishing, 0))).collect();
        let mut told = BTreeSet::new();
        for look in 1..=FOLLOWED / ASKED {
            let changed = passing.look(&database).await.unwrap();
            told.extend(changed.iter().map(|view| view.event.id));
            assert_eq!(told.len(), look * ASKED, "others each time");
            assert!(changed.iter().all(|view| !passing.is_new(view.event.id)));
        }
        assert_eq!(told.into_iter().collect::<Vec<_>>(), ids[5..]);
        assert!(passing.look(&database).await.unwrap().is_empty(), "each change once");
    }
}
