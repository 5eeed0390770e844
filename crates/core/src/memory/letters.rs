//! [`DeadLetters`] in memory.

use std::collections::BTreeMap;

use async_trait::async_trait;

use super::{MemoryDatabase, MemoryTx};
use crate::delivery::Message;
use crate::event::{Event, EventId};
use crate::failure::Failure;
use crate::inbox::InboxStore;
use crate::lane::LaneKey;
use crate::letters::{DeadLetters, Letter, LetterBook, LetterState, Numbered, Standing};

/// The letters of all consumers.
#[derive(Clone, Debug, Default)]
pub(super) struct Letters {
    last: u64,
    rows: BTreeMap<u64, (String, Letter)>,
}

impl Letters {
    fn of<'a>(&'a self, consumer: &'a str) -> impl Iterator<Item = (u64, &'a Letter)> {
        self.rows
            .iter()
            .filter(move |(_, (owner, _))| owner == consumer)
            .map(|(number, (_, letter))| (*number, letter))
    }

    fn find(&self, consumer: &str, id: EventId) -> Option<u64> {
        self.of(consumer)
            .find(|(_, letter)| letter.message.event.id == id)
            .map(|(number, _)| number)
    }

    /// The first of a lane that is not held back.
    fn head(&self, consumer: &str, lane: LaneKey) -> Option<u64> {
        self.of(consumer)
            .filter(|(_, letter)| {
                letter.message.event.lane_key() == lane && letter.state.until().is_none()
            })
            .min_by_key(|(number, letter)| (letter.message.event.sequence(), *number))
            .map(|(number, _)| number)
    }

    fn set(&mut self, number: u64, state: LetterState) {
        if let Some((_, letter)) = self.rows.get_mut(&number) {
            letter.state = state;
        }
    }

    fn promote(&mut self, consumer: &str, lane: LaneKey) {
        if let Some(head) = self.head(consumer, lane)
            && self.rows.get(&head).is_some_and(|(_, head)| head.state == LetterState::Behind)
        {
            self.set(head, LetterState::Due);
        }
    }

    fn remove(&mut self, consumer: &str, id: EventId) -> bool {
        let Some((_, letter)) =
            self.find(consumer, id).and_then(|number| self.rows.remove(&number))
        else {
            return false;
        };
        self.promote(consumer, letter.message.event.lane_key());
        true
    }

    /// They wait for their turns.
    fn offer(&mut self, consumer: &str, numbers: &[u64]) {
        for number in numbers {
            self.set(*number, LetterState::Behind);
        }
        for number in numbers {
            let letter = self.rows.get(number).map(|(_, letter)| letter);
            if let Some(lane) = letter.map(|letter| letter.message.event.lane_key()) {
                self.promote(consumer, lane);
            }
        }
    }
}

impl MemoryTx {
    /// The letters as this transaction sees them.
    fn letters(&mut self) -> &mut Letters {
        let database = &self.database;
        self.letters.get_or_insert_with(|| database.committed().letters.clone())
    }
}

#[async_trait]
impl DeadLetters<MemoryTx> for MemoryDatabase {
    async fn any(&self, tx: &mut MemoryTx, consumer: &str) -> Result<bool, Failure> {
        Ok(tx.letters().of(consumer).next().is_some())
    }

    async fn standing(
        &self,
        tx: &mut MemoryTx,
        consumer: &str,
        event: &Event,
    ) -> Result<Standing, Failure> {
        let letters = tx.letters();
        Ok(match letters.find(consumer, event.id) {
            Some(_) => Standing::Own,
            None if letters.head(consumer, event.lane_key()).is_some() => Standing::Behind,
            None => Standing::Free,
        })
    }

    async fn concerned(
        &self,
        tx: &mut MemoryTx,
        consumer: &str,
        events: &[&Event],
    ) -> Result<Vec<bool>, Failure> {
        let letters = tx.letters();
        let is_concerned = |event: &&Event| {
            letters.find(consumer, event.id).is_some()
                || letters.head(consumer, event.lane_key()).is_some()
        };
        Ok(events.iter().map(is_concerned).collect())
    }

    async fn put(&self, tx: &mut MemoryTx, consumer: &str, letter: &Letter) -> Result<(), Failure> {
        let letters = tx.letters();
        let number = letters.find(consumer, letter.message.event.id).unwrap_or_else(|| {
            letters.last += 1;
            letters.last
        });
        letters.rows.insert(number, (consumer.to_owned(), letter.clone()));
        Ok(())
    }

    async fn remove(
        &self,
        tx: &mut MemoryTx,
        consumer: &str,
        event: &Event,
    ) -> Result<(), Failure> {
        tx.letters().remove(consumer, event.id);
        Ok(())
    }

    async fn release(
        &self,
        tx: &mut MemoryTx,
        consumer: &str,
        event: &Event,
    ) -> Result<(), Failure> {
        let next = event.sequence().map(|sequence| sequence + 1);
        let letters = tx.letters();
        let held = letters.of(consumer).find(|(_, letter)| {
            let other = &letter.message.event;
            letter.state.until().is_some()
                && other.lane_key() == event.lane_key()
                && other.sequence() == next
        });
        if let Some(number) = held.map(|(number, _)| number) {
            letters.offer(consumer, &[number]);
        }
        Ok(())
    }

    fn is_beside_inbox(&self) -> bool {
        true
    }
}

#[async_trait]
impl LetterBook for MemoryDatabase {
    async fn due(&self, consumer: &str, limit: usize) -> Result<Vec<Message>, Failure> {
        let now = self.now();
        let mut tx = Self::begin(self).await;
        let letters = tx.letters();
        let overdue: Vec<_> = letters
            .of(consumer)
            .filter(|(_, letter)| letter.state.until().is_some_and(|until| until <= now))
            .map(|(number, _)| number)
            .collect();
        letters.offer(consumer, &overdue);
        let due = letters.of(consumer).filter(|(_, letter)| letter.state == LetterState::Due);
        let due = due.take(limit).map(|(_, letter)| first(letter)).collect();
        if !overdue.is_empty() {
            tx.commit();
        }
        Ok(due)
    }

    async fn page(
        &self,
        consumer: &str,
        after: u64,
        limit: usize,
    ) -> Result<Vec<Numbered>, Failure> {
        let committed = self.committed();
        let later = committed.letters.of(consumer).filter(|(number, _)| *number > after);
        Ok(later.take(limit).map(|(number, letter)| (number, letter.clone())).collect())
    }

    async fn find(&self, consumer: &str, id: EventId) -> Result<Option<Letter>, Failure> {
        let letters = &self.committed().letters;
        let number = letters.find(consumer, id);
        Ok(number.and_then(|number| letters.rows.get(&number)).map(|(_, letter)| letter.clone()))
    }

    async fn retry(&self, consumer: &str, ids: &[EventId]) -> Result<usize, Failure> {
        let mut tx = Self::begin(self).await;
        let letters = tx.letters();
        let dead: Vec<_> = letters
            .of(consumer)
            .filter(|(_, letter)| letter.state == LetterState::Dead)
            .filter(|(_, letter)| ids.contains(&letter.message.event.id))
            .map(|(number, _)| number)
            .collect();
        letters.offer(consumer, &dead);
        tx.commit();
        Ok(dead.len())
    }

    async fn discard(&self, consumer: &str, ids: &[EventId]) -> Result<usize, Failure> {
        let mut tx = Self::begin(self).await;
        let mut discarded = 0;
        for id in ids {
            if tx.letters().remove(consumer, *id) {
                self.record(&mut tx, consumer, *id).await?;
                discarded += 1;
            }
        }
        tx.commit();
        Ok(discarded)
    }
}

fn first(letter: &Letter) -> Message {
    Message { attempt: 1, ..letter.message.clone() }
}
