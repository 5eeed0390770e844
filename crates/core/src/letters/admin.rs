//! The letters of one consumer for operators: the same commands as for an outbox.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;

use super::{Letter, LetterBook, LetterState, Numbered};
use crate::admin::{AdminStore, Cursor, EventView, Filter, Page, Selection, State, Stats};
use crate::event::EventId;
use crate::failure::Failure;

/// The dead letters of one consumer as an [`AdminStore`]: dead, or pending while they wait for
/// their turn.
///
/// ```
/// use semel_core::admin::{AdminStore, State};
/// use semel_core::letters::LettersAdmin;
/// use semel_core::memory::MemoryDatabase;
///
/// # tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(async {
/// let letters = LettersAdmin::new(MemoryDatabase::new(), "payments");
/// assert_eq!(letters.stats().await?.count(State::Dead), 0);
/// # Ok::<(), semel_core::Failure>(()) }).unwrap();
/// ```
#[derive(Clone, Debug)]
pub struct LettersAdmin<L> {
    letters: L,
    consumer: String,
}

/// How many letters are read at once.
const CHUNK: usize = 500;

impl<L: LetterBook> LettersAdmin<L> {
    /// The letters of this consumer.
    pub fn new(letters: L, consumer: impl Into<String>) -> Self {
        Self { letters, consumer: consumer.into() }
    }

    /// Goes through all letters until `each` has had enough.
    async fn walk(
        &self,
        mut after: u64,
        mut each: impl FnMut(Numbered) -> bool + Send,
    ) -> Result<(), Failure> {
        loop {
            let page = self.letters.page(&self.consumer, after, CHUNK).await?;
            let is_last = page.len() < CHUNK;
            for letter in page {
                after = letter.0;
                if !each(letter) {
                    return Ok(());
                }
            }
            if is_last {
                return Ok(());
            }
        }
    }

    /// The letters that are meant.
    async fn chosen(&self, selection: &Selection) -> Result<Vec<EventId>, Failure> {
        let filter = match selection {
            Selection::Ids(ids) => return Ok(ids.clone()),
            Selection::Matching(filter) => filter,
        };
        let mut ids = Vec::new();
        let mut choose = |(_, letter): Numbered| {
            if filter.matches(&letter.message.event, state(&letter)) {
                ids.push(letter.message.event.id);
            }
            true
        };
        self.walk(0, &mut choose).await?;
        Ok(ids)
    }
}

#[async_trait]
impl<L: LetterBook> AdminStore for LettersAdmin<L> {
    async fn stats(&self) -> Result<Stats, Failure> {
        let mut stats = Stats::default();
        let mut lanes = std::collections::BTreeSet::new();
        let mut count = |(_, letter): Numbered| {
            stats.counts[state(&letter) as usize] += 1;
            if letter.state == LetterState::Dead {
                lanes.insert(letter.message.event.lane_key());
            }
            true
        };
        self.walk(0, &mut count).await?;
        stats.parked_lanes = lanes.len() as u64;
        Ok(stats)
    }

    async fn list(
        &self,
        filter: &Filter,
        after: Option<Cursor>,
        limit: usize,
    ) -> Result<Page, Failure> {
        let (mut events, mut last, mut next) = (Vec::new(), 0, None);
        let mut add = |(number, letter): Numbered| {
            if !filter.matches(&letter.message.event, state(&letter)) {
                return true;
            }
            if events.len() == limit {
                next = Some(Cursor(last));
                return false;
            }
            last = number;
            events.push(view(letter).without_payload());
            true
        };
        self.walk(after.map_or(0, |Cursor(last)| last), &mut add).await?;
        Ok(Page { events, next })
    }

    async fn get(&self, id: EventId) -> Result<Option<EventView>, Failure> {
        Ok(self.letters.find(&self.consumer, id).await?.map(view))
    }

    async fn retry(&self, selection: &Selection) -> Result<usize, Failure> {
        let chosen = self.chosen(selection).await?;
        self.letters.retry(&self.consumer, &chosen).await
    }

    async fn discard(&self, selection: &Selection) -> Result<usize, Failure> {
        let chosen = self.chosen(selection).await?;
        self.letters.discard(&self.consumer, &chosen).await
    }

    /// What has taken effect is no letter any more.
    async fn replay(&self, _: &Selection) -> Result<usize, Failure> {
        Ok(0)
    }

    async fn clean(&self, _: Duration, _: usize) -> Result<usize, Failure> {
        Ok(0)
    }
}

fn state(letter: &Letter) -> State {
    match letter.state {
        LetterState::Dead => State::Dead,
        LetterState::Behind | LetterState::Due | LetterState::Held { .. } => State::Pending,
    }
}

fn view(letter: Letter) -> EventView {
    let mut view = EventView::pending(Arc::clone(&letter.message.event));
    view.state = state(&letter);
    view.attempts = letter.attempts;
    view.next_attempt = letter.state.until();
    view.error = letter.error;
    view
}
