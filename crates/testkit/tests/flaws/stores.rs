//! An inbox and an operator's view that are wrong on purpose.

use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use semel_core::admin::{Cursor, EventView, Filter, Page, Selection, State, Stats};
use semel_core::inbox::Seen;
use semel_core::memory::{MemoryDatabase, MemoryOutbox, MemoryTx};
use semel_core::outbox::AppendError;
use semel_core::{AdminStore, Event, EventId, Failure, InboxStore, Timestamp};
use semel_testkit::probe::{Probe, WriteProbe};
use semel_testkit::suites::admin::AdminProbe;
use semel_testkit::suites::inbox::InboxProbe;
use semel_testkit::suites::source::SourceProbe;

use super::caught;
use crate::Database;

const ONE_CONSUMER_FOR_ALL: u8 = 1;
const REMEMBERS_WHAT_IS_ROLLED_BACK: u8 = 2;
const LOSES_RESULTS: u8 = 3;
const FORGETS_THE_YOUNG: u8 = 4;
const FORGETS_WITHOUT_LIMIT: u8 = 5;
const NEVER_SAYS_DUPLICATE: u8 = 6;
const PAGES_OVERLAP: u8 = 7;
const FILTERS_NOTHING: u8 = 8;
const COUNTS_WHAT_IS_IN_FLIGHT_AS_PENDING: u8 = 9;
const DISCARD_RETRIES: u8 = 10;
const COUNTS_REPETITIONS: u8 = 11;
const CLEANS_THE_YOUNG: u8 = 12;
const LISTS_PAYLOADS: u8 = 13;

#[test]
fn an_inbox_that_forgets_the_consumer() {
    caught!(
        Flawed<ONE_CONSUMER_FOR_ALL>,
        inbox::each_consumer_has_its_own_effect,
        "has not seen it"
    );
}

#[test]
fn an_inbox_beside_the_transaction() {
    caught!(
        Flawed<REMEMBERS_WHAT_IS_ROLLED_BACK>,
        inbox::a_rolled_back_record_is_forgotten,
        "left == right"
    );
}

#[test]
fn an_inbox_that_loses_results() {
    caught!(Flawed<LOSES_RESULTS>, inbox::a_duplicate_gets_the_stored_result, "Duplicate(None)");
}

#[test]
fn an_inbox_that_forgets_too_much() {
    caught!(
        Flawed<FORGETS_THE_YOUNG>,
        inbox::old_ids_are_forgotten_and_young_ones_kept,
        "nothing is that old"
    );
    caught!(Flawed<FORGETS_WITHOUT_LIMIT>, inbox::at_most_the_limit_is_forgotten, "right: 3");
}

#[test]
fn an_inbox_that_lets_duplicates_through() {
    caught!(
        Flawed<NEVER_SAYS_DUPLICATE>,
        inbox::of_concurrent_duplicates_one_takes_effect,
        "one takes effect, not 64"
    );
}

#[test]
fn pages_that_overlap() {
    caught!(Flawed<PAGES_OVERLAP>, admin::pages_are_complete_and_stable, "left == right");
}

#[test]
fn pages_full_of_payloads() {
    caught!(
        Flawed<LISTS_PAYLOADS>,
        admin::a_listing_has_the_sizes_of_payloads_alone,
        "bytes are listed"
    );
}

#[test]
fn a_filter_that_is_ignored() {
    caught!(Flawed<FILTERS_NOTHING>, admin::a_listing_is_oldest_first_and_filtered, "Filter {");
}

#[test]
fn counts_that_are_wrong() {
    caught!(
        Flawed<COUNTS_WHAT_IS_IN_FLIGHT_AS_PENDING>,
        admin::each_state_is_counted_and_shown,
        "in the order of"
    );
}

#[test]
fn a_discarded_event_that_comes_again() {
    caught!(
        Flawed<DISCARD_RETRIES>,
        admin::a_discarded_event_lets_its_lane_go_on,
        "nothing should be handed out"
    );
}

#[test]
fn repetitions_that_count() {
    caught!(Flawed<COUNTS_REPETITIONS>, admin::repetition_changes_and_counts_nothing, "right: 0");
}

#[test]
fn cleaning_too_early() {
    caught!(
        Flawed<CLEANS_THE_YOUNG>,
        admin::cleaning_deletes_what_is_old_enough,
        "nothing is that old"
    );
}

struct Flawed<const FLAW: u8> {
    database: Database,
    store: FlawedStore<FLAW>,
}

impl<const FLAW: u8> Probe for Flawed<FLAW> {
    const BACKEND: &'static str = "flawed store";
    const PATIENCE: Duration = Duration::ZERO;

    async fn fresh() -> Option<Self> {
        let database = Database::fresh().await?;
        let store = FlawedStore(database.database.clone());
        Some(Self { database, store })
    }

    fn now(&self) -> Timestamp {
        self.database.now()
    }

    async fn pass(&self, time: Duration) {
        self.database.pass(time).await;
    }
}

impl<const FLAW: u8> WriteProbe for Flawed<FLAW> {
    type Tx = MemoryTx;

    async fn begin(&self) -> MemoryTx {
        self.database.begin().await
    }

    async fn append(&self, tx: &mut MemoryTx, events: &[Event]) -> Result<(), AppendError> {
        self.database.append(tx, events).await
    }

    async fn commit(&self, tx: MemoryTx) {
        WriteProbe::commit(&self.database, tx).await;
    }
}

impl<const FLAW: u8> SourceProbe for Flawed<FLAW> {
    type Source = MemoryOutbox;

    async fn open(&self) -> MemoryOutbox {
        self.database.open().await
    }
}

impl<const FLAW: u8> AdminProbe for Flawed<FLAW> {
    type Admin = FlawedStore<FLAW>;

    fn admin(&self) -> &FlawedStore<FLAW> {
        &self.store
    }
}

impl<const FLAW: u8> InboxProbe for Flawed<FLAW> {
    type Store = FlawedStore<FLAW>;

    fn store(&self) -> &FlawedStore<FLAW> {
        &self.store
    }

    async fn take_effect(&self, tx: &mut <FlawedStore<FLAW> as InboxStore>::Tx<'_>) {
        self.database.take_effect(tx).await;
    }

    async fn effects(&self) -> u64 {
        self.database.effects().await
    }
}

struct FlawedStore<const FLAW: u8>(MemoryDatabase);

impl<const FLAW: u8> FlawedStore<FLAW> {
    fn consumer<'c>(&self, consumer: &'c str) -> &'c str {
        if FLAW == ONE_CONSUMER_FOR_ALL { "everybody" } else { consumer }
    }
}

impl<const FLAW: u8> InboxStore for FlawedStore<FLAW> {
    type Tx<'c> = MemoryTx;

    async fn begin(&self) -> Result<MemoryTx, Failure> {
        Ok(self.0.begin().await)
    }

    async fn record(
        &self,
        tx: &mut Self::Tx<'_>,
        consumer: &str,
        id: EventId,
    ) -> Result<Seen, Failure> {
        let seen = self.0.record(tx, self.consumer(consumer), id).await?;
        Ok(if FLAW == NEVER_SAYS_DUPLICATE { Seen::First } else { seen })
    }

    async fn store_result(
        &self,
        tx: &mut Self::Tx<'_>,
        consumer: &str,
        id: EventId,
        result: Bytes,
    ) -> Result<(), Failure> {
        if FLAW == LOSES_RESULTS {
            return Ok(());
        }
        self.0.store_result(tx, self.consumer(consumer), id, result).await
    }

    async fn commit(&self, tx: MemoryTx) -> Result<(), Failure> {
        InboxStore::commit(&self.0, tx).await
    }

    async fn rollback(&self, tx: MemoryTx) {
        if FLAW == REMEMBERS_WHAT_IS_ROLLED_BACK {
            tx.commit();
        }
    }

    async fn forget(&self, age: Duration, limit: usize) -> Result<usize, Failure> {
        let age = if FLAW == FORGETS_THE_YOUNG { Duration::ZERO } else { age };
        let limit = if FLAW == FORGETS_WITHOUT_LIMIT { usize::MAX } else { limit };
        self.0.forget(age, limit).await
    }
}

#[async_trait]
impl<const FLAW: u8> AdminStore for FlawedStore<FLAW> {
    async fn stats(&self) -> Result<Stats, Failure> {
        let mut stats = self.0.stats().await?;
        if FLAW == COUNTS_WHAT_IS_IN_FLIGHT_AS_PENDING {
            stats.counts[State::Pending as usize] += stats.count(State::Publishing);
            stats.counts[State::Publishing as usize] = 0;
        }
        Ok(stats)
    }

    async fn list(
        &self,
        filter: &Filter,
        after: Option<Cursor>,
        limit: usize,
    ) -> Result<Page, Failure> {
        let all = Filter::default();
        let filter = if FLAW == FILTERS_NOTHING { &all } else { filter };
        let mut page = self.0.list(filter, after, limit).await?;
        if FLAW == PAGES_OVERLAP {
            page.next = page.next.map(|Cursor(last)| Cursor(last - 1));
        }
        if FLAW == LISTS_PAYLOADS {
            for view in &mut page.events {
                let whole = AdminStore::get(&self.0, view.event.id).await?;
                view.event = whole.map_or_else(|| view.event.clone(), |whole| whole.event);
            }
        }
        Ok(page)
    }

    async fn get(&self, id: EventId) -> Result<Option<EventView>, Failure> {
        AdminStore::get(&self.0, id).await
    }

    async fn retry(&self, selection: &Selection) -> Result<usize, Failure> {
        let retried = self.0.retry(selection).await?;
        Ok(match selection {
            Selection::Ids(ids) if FLAW == COUNTS_REPETITIONS => ids.len(),
            _ => retried,
        })
    }

    async fn discard(&self, selection: &Selection) -> Result<usize, Failure> {
        match FLAW {
            DISCARD_RETRIES => self.0.retry(selection).await,
            _ => self.0.discard(selection).await,
        }
    }

    async fn replay(&self, selection: &Selection) -> Result<usize, Failure> {
        self.0.replay(selection).await
    }

    async fn clean(&self, age: Duration, limit: usize) -> Result<usize, Failure> {
        let age = if FLAW == CLEANS_THE_YOUNG { Duration::ZERO } else { age };
        self.0.clean(age, limit).await
    }
}
