//! [`AdminStore`] in memory.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use jiff::Timestamp;

use super::MemoryDatabase;
use super::database::{Committed, Fate, Parked, Row, owned_lane};
use crate::admin::{AdminStore, Cursor, EventView, Filter, Page, Selection, State, Stats};
use crate::event::EventId;
use crate::failure::Failure;
use crate::retry::later;

#[async_trait]
impl AdminStore for MemoryDatabase {
    async fn stats(&self) -> Result<Stats, Failure> {
        let now = self.now();
        let committed = self.committed();
        let waits = |parked: &Parked| parked.dead || parked.attempts > 0;
        let waiting = committed.parked.values().filter(|queue| queue.values().any(waits));
        let mut stats = Stats { parked_lanes: waiting.count() as u64, ..Stats::default() };
        for (number, row) in committed.log.iter() {
            let state = view(&committed, number, row).state;
            stats.counts[state as usize] += 1;
            let (made, due) = (row.event.created_at, row.event.available_at);
            let since = due.map_or(made, |due| due.max(made));
            let lane = committed.parked.get(&owned_lane(&row.event));
            let is_held = lane.is_some_and(|queue| queue.values().any(waits));
            if state == State::Pending && !is_held && due.is_none_or(|due| due <= now) {
                let age = Duration::try_from(now.duration_since(since)).unwrap_or_default();
                stats.oldest_pending = stats.oldest_pending.max(Some(age));
            }
        }
        Ok(stats)
    }

    async fn list(
        &self,
        filter: &Filter,
        after: Option<Cursor>,
        limit: usize,
    ) -> Result<Page, Failure> {
        let committed = self.committed();
        let mut matching = committed
            .log
            .iter()
            .filter(|(number, _)| after.is_none_or(|Cursor(last)| *number > last))
            .map(|(number, row)| (number, view(&committed, number, row)))
            .filter(|(_, view)| filter.matches(&view.event, view.state));
        let mut page = Page::default();
        let mut last = None;
        for (number, view) in matching.by_ref().take(limit) {
            page.events.push(view.without_payload());
            last = Some(Cursor(number));
        }
        page.next = last.filter(|_| matching.next().is_some());
        Ok(page)
    }

    async fn get(&self, id: EventId) -> Result<Option<EventView>, Failure> {
        let committed = self.committed();
        let found = committed.log.iter().find(|(_, row)| row.event.id == id);
        Ok(found.map(|(number, row)| view(&committed, number, row)))
    }

    async fn retry(&self, selection: &Selection) -> Result<usize, Failure> {
        let now = self.now();
        Ok(self.change(selection, &[State::Failed, State::Dead], |committed, number| {
            committed.park(number, Parked::untried(now));
        }))
    }

    async fn discard(&self, selection: &Selection) -> Result<usize, Failure> {
        let now = self.now();
        Ok(self.change(selection, &[State::Failed, State::Dead], |committed, number| {
            committed.unpark(number);
            if let Some(row) = committed.log.get_mut(number) {
                row.fate = Fate::Discarded(now);
            }
        }))
    }

    async fn replay(&self, selection: &Selection) -> Result<usize, Failure> {
        let now = self.now();
        Ok(self.change(selection, &[State::Published], |committed, number| {
            committed.park(number, Parked::untried(now));
        }))
    }

    async fn clean(&self, age: Duration, limit: usize) -> Result<usize, Failure> {
        let now = self.now();
        let mut committed = self.committed();
        let old: Vec<_> = committed
            .log
            .iter()
            .filter(|(_, row)| row.finished_at().is_some_and(|at| later(at, age) < now))
            .map(|(number, _)| number)
            .take(limit)
            .collect();
        for &number in &old {
            if let Some(row) = committed.log.get(number) {
                let key = row.event.idempotency_key().into_owned();
                committed.idempotency_keys.remove(&key);
            }
            committed.log.remove(number);
        }
        Ok(old.len())
    }

    async fn latest(
        &self,
        filter: &Filter,
        before: Option<Cursor>,
        limit: usize,
    ) -> Result<Page, Failure> {
        let committed = self.committed();
        let earlier = |number: u64| before.is_none_or(|Cursor(last)| number < last);
        let mut found: Vec<_> = committed
            .log
            .iter()
            .filter(|(number, _)| earlier(*number))
            .map(|(number, row)| (number, view(&committed, number, row)))
            .filter(|(_, view)| filter.matches(&view.event, view.state))
            .collect();
        let more = found.len() > limit;
        let shown = found.split_off(found.len().saturating_sub(limit));
        let next = shown.first().filter(|_| more).map(|(number, _)| Cursor(*number));
        let events = shown.into_iter().rev().map(|(_, view)| view.without_payload()).collect();
        Ok(Page { events, next })
    }
}

impl MemoryDatabase {
    /// Applies `change` to the selected rows that are in one of `states`.
    fn change(
        &self,
        selection: &Selection,
        states: &[State],
        change: impl Fn(&mut Committed, u64),
    ) -> usize {
        let mut committed = self.committed();
        let chosen: Vec<u64> = committed
            .log
            .iter()
            .filter(|(number, row)| {
                let view = view(&committed, *number, row);
                states.contains(&view.state)
                    && match selection {
                        Selection::Ids(ids) => ids.contains(&view.event.id),
                        Selection::Matching(filter) => filter.matches(&view.event, view.state),
                    }
            })
            .map(|(number, _)| number)
            .collect();
        for &number in &chosen {
            change(&mut committed, number);
        }
        drop(committed);
        self.announce_change();
        chosen.len()
    }
}

impl Row {
    fn finished_at(&self) -> Option<Timestamp> {
        match self.fate {
            Fate::Published(at) | Fate::Discarded(at) => Some(at),
            Fate::Open | Fate::Parked | Fate::Dead { .. } => None,
        }
    }
}

fn view(committed: &Committed, number: u64, row: &Row) -> EventView {
    let mut view = EventView::pending(Arc::clone(&row.event));
    match &row.fate {
        Fate::Open => {}
        Fate::Published(at) => {
            view.state = State::Published;
            view.published_at = Some(*at);
        }
        Fate::Discarded(_) => view.state = State::Discarded,
        Fate::Dead { attempts, error } => {
            view.state = State::Dead;
            view.attempts = *attempts;
            view.error = Some(error.clone());
        }
        Fate::Parked => {
            if let Some(parked) = committed.waiting(number, row) {
                view.attempts = parked.attempts;
                view.error.clone_from(&parked.error);
                view.next_attempt = (!parked.dead).then_some(parked.due);
                view.state = match parked {
                    Parked { dead: true, .. } => State::Dead,
                    Parked { attempts: 0, .. } => State::Pending,
                    Parked { .. } => State::Failed,
                };
            }
        }
    }
    if row.out == Some(committed.epoch) {
        view.state = State::Publishing;
    }
    view
}
