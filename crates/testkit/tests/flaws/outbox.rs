//! Writers that are wrong on purpose.

use std::time::Duration;

use semel_core::event::EventLimits;
use semel_core::memory::{MemoryDatabase, MemoryTx};
use semel_core::outbox::AppendError;
use semel_core::{Event, Timestamp};
use semel_testkit::probe::{Probe, WriteProbe};
use semel_testkit::suites::outbox::OutboxProbe;

use super::caught;
use crate::Database;

const WRITES_A_PART: u8 = 1;
const COMMITS_BY_ITSELF: u8 = 2;
const LIES_ABOUT_THE_TRANSACTION: u8 = 3;
const KEYS_ARE_NOT_UNIQUE: u8 = 4;
const CHECKS_NOTHING: u8 = 5;
const KEYS_IGNORE_CASE: u8 = 6;

#[test]
fn a_refused_append_that_writes_a_part() {
    caught!(Flawed<WRITES_A_PART>, outbox::nothing_of_a_refused_append_is_written, "right: [0]");
}

#[test]
fn an_append_that_commits_by_itself() {
    caught!(
        Flawed<COMMITS_BY_ITSELF>,
        outbox::events_and_business_change_roll_back_together,
        "left == right"
    );
}

#[test]
fn a_transaction_that_is_not_usable() {
    caught!(
        Flawed<LIES_ABOUT_THE_TRANSACTION>,
        outbox::a_usable_transaction_can_go_on,
        "right: [0, 1, 3]"
    );
}

#[test]
fn duplicates_that_are_written() {
    caught!(
        Flawed<KEYS_ARE_NOT_UNIQUE>,
        outbox::a_duplicate_of_a_committed_event_is_refused,
        "expected AppendError::Duplicate"
    );
    caught!(
        Flawed<KEYS_ARE_NOT_UNIQUE>,
        outbox::of_concurrent_duplicates_one_is_written,
        "left == right"
    );
}

#[test]
fn invalid_events_that_are_written() {
    caught!(Flawed<CHECKS_NOTHING>, outbox::an_invalid_event_is_refused, "AppendError::Invalid");
}

#[test]
fn keys_that_ignore_case() {
    caught!(
        Flawed<KEYS_IGNORE_CASE>,
        outbox::a_duplicate_of_a_committed_event_is_refused,
        "append: Duplicate"
    );
}

struct Flawed<const FLAW: u8>(Database);

/// A transaction that nobody sees anything of.
async fn elsewhere() -> MemoryTx {
    MemoryDatabase::new().begin().await
}

impl<const FLAW: u8> Probe for Flawed<FLAW> {
    const BACKEND: &'static str = "flawed outbox";
    const PATIENCE: Duration = Duration::ZERO;

    async fn fresh() -> Option<Self> {
        Database::fresh().await.map(Self)
    }

    fn now(&self) -> Timestamp {
        self.0.now()
    }
}

impl<const FLAW: u8> WriteProbe for Flawed<FLAW> {
    type Tx = MemoryTx;

    async fn begin(&self) -> MemoryTx {
        self.0.begin().await
    }

    async fn append(&self, tx: &mut MemoryTx, events: &[Event]) -> Result<(), AppendError> {
        let mut events = events.to_vec();
        match FLAW {
            WRITES_A_PART => {
                for event in &events {
                    self.0.append(tx, std::slice::from_ref(event)).await?;
                }
                return Ok(());
            }
            KEYS_ARE_NOT_UNIQUE => events.iter_mut().for_each(|event| event.custom_key = None),
            KEYS_IGNORE_CASE => {
                for key in events.iter_mut().filter_map(|event| event.custom_key.as_mut()) {
                    key.make_ascii_lowercase();
                }
            }
            CHECKS_NOTHING => {
                events.retain(|event| event.check(&EventLimits::default()).is_ok());
            }
            _ => {}
        }
        let appended = self.0.append(tx, &events).await;
        if FLAW == LIES_ABOUT_THE_TRANSACTION && appended.is_err() {
            drop(std::mem::replace(tx, elsewhere().await));
        }
        if FLAW == COMMITS_BY_ITSELF {
            std::mem::replace(tx, elsewhere().await).commit();
        }
        appended
    }

    async fn commit(&self, tx: MemoryTx) {
        self.0.commit(tx).await;
    }
}

impl<const FLAW: u8> OutboxProbe for Flawed<FLAW> {
    async fn change_business(&self, tx: &mut MemoryTx) {
        self.0.change_business(tx).await;
    }

    async fn business_changes(&self) -> u64 {
        self.0.business_changes().await
    }

    async fn committed(&self) -> Vec<Event> {
        self.0.committed().await
    }
}
