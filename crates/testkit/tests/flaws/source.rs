//! Sources that are wrong on purpose.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use semel_core::memory::{MemoryOutbox, MemoryTx};
use semel_core::outbox::AppendError;
use semel_core::{
    Batch, Delivery, Event, Failure, Guarantees, Holding, Limit, Outcome, Settlement, Source,
    Timestamp,
};
use semel_testkit::probe::{Probe, WriteProbe};
use semel_testkit::suites::source::SourceProbe;

use super::caught;
use crate::Database;

const RETRY_LETS_THE_LANE_GO_ON: u8 = 1;
const MARKS_BEFORE_DELIVERY: u8 = 2;
const FORGETS_SETTLEMENTS: u8 = 3;
const RETRIES_AT_ONCE: u8 = 4;
const FORGETS_ATTEMPTS: u8 = 5;
const LOSES_WHAT_IS_RELEASED: u8 = 6;
const NEVER_PARKS: u8 = 7;
const OLD_OWNER_IS_TOLD_HELD: u8 = 8;
const IGNORES_BYTES: u8 = 9;
const NEVER_SAYS_MORE: u8 = 10;
const ALWAYS_SAYS_MORE: u8 = 11;
const HIDES_NEXT_DUE: u8 = 12;
const REVERSES_BATCHES: u8 = 13;
const READS_PAYLOADS_AS_TEXT: u8 = 14;
const HANDS_OUT_AGAIN: u8 = 15;
const IGNORES_THE_SCHEDULE: u8 = 16;
const WRITES_WHAT_IS_ROLLED_BACK: u8 = 17;

#[test]
fn a_retry_that_lets_its_lane_go_on() {
    caught!(
        Flawed<RETRY_LETS_THE_LANE_GO_ON>,
        source::a_lane_waits_behind_a_retry_and_others_go_on,
        "nothing should be handed out"
    );
}

#[test]
fn marking_before_delivery() {
    caught!(
        Flawed<MARKS_BEFORE_DELIVERY>,
        source::what_was_unsettled_at_a_crash_comes_again,
        "something is handed out"
    );
    caught!(
        Flawed<MARKS_BEFORE_DELIVERY>,
        source::a_storm_of_crashes_and_retries_loses_and_reorders_nothing,
        "is handed out before"
    );
}

#[test]
fn settlements_that_do_not_last() {
    caught!(
        Flawed<FORGETS_SETTLEMENTS>,
        source::delivered_survives_a_crash,
        "nothing should be handed out"
    );
}

#[test]
fn a_retry_before_its_time() {
    caught!(Flawed<RETRIES_AT_ONCE>, source::a_retry_waits_for_its_time, "handed out before");
}

#[test]
fn attempts_that_are_not_counted() {
    caught!(Flawed<FORGETS_ATTEMPTS>, source::a_retry_waits_for_its_time, "left == right");
    caught!(
        Flawed<FORGETS_ATTEMPTS>,
        source::a_storm_of_crashes_and_retries_loses_and_reorders_nothing,
        "attempt of"
    );
}

#[test]
fn losing_what_is_released() {
    caught!(
        Flawed<LOSES_WHAT_IS_RELEASED>,
        source::released_comes_again_in_its_place,
        "something is handed out"
    );
}

#[test]
fn a_dead_letter_that_parks_nothing() {
    caught!(Flawed<NEVER_PARKS>, source::a_dead_event_parks_its_lane, "nothing should be");
}

#[test]
fn an_old_owner_that_is_not_told() {
    caught!(Flawed<OLD_OWNER_IS_TOLD_HELD>, source::an_old_owner_is_fenced_off, "right: Lost");
}

#[test]
fn batches_beyond_the_limit_of_bytes() {
    caught!(
        Flawed<IGNORES_BYTES>,
        source::at_most_the_limit_of_bytes_is_handed_out,
        "the limit is"
    );
}

#[test]
fn an_untrue_word_about_more() {
    caught!(
        Flawed<NEVER_SAYS_MORE>,
        source::more_says_whether_asking_again_is_worth_it,
        "and no more is ready"
    );
    caught!(
        Flawed<ALWAYS_SAYS_MORE>,
        source::more_says_whether_asking_again_is_worth_it,
        "an empty batch says that more is ready"
    );
}

#[test]
fn an_untrue_word_about_the_next_retry() {
    caught!(Flawed<HIDES_NEXT_DUE>, source::next_due_is_the_earliest_retry, "left: None");
}

#[test]
fn lanes_out_of_order() {
    caught!(
        Flawed<REVERSES_BATCHES>,
        source::a_lane_keeps_its_order_over_transactions_and_batches,
        "lane order/a"
    );
    caught!(
        Flawed<REVERSES_BATCHES>,
        source::a_storm_of_crashes_and_retries_loses_and_reorders_nothing,
        "is handed out before"
    );
}

#[test]
fn damaged_payloads() {
    caught!(
        Flawed<READS_PAYLOADS_AS_TEXT>,
        source::content_survives_unchanged,
        "payload bytes of binary"
    );
}

#[test]
fn handing_out_what_is_in_flight() {
    caught!(
        Flawed<HANDS_OUT_AGAIN>,
        source::what_is_unsettled_is_not_handed_out_again,
        "nothing should be handed out"
    );
}

#[test]
fn a_scheduled_event_before_its_time() {
    caught!(
        Flawed<IGNORES_THE_SCHEDULE>,
        source::a_scheduled_event_waits_for_its_time,
        "right: [1, 3]"
    );
}

#[test]
fn phantoms() {
    caught!(
        Flawed<WRITES_WHAT_IS_ROLLED_BACK>,
        source::rolled_back_events_never_appear,
        "nothing should be handed out"
    );
}

struct Flawed<const FLAW: u8>(Database);

impl<const FLAW: u8> Probe for Flawed<FLAW> {
    const BACKEND: &'static str = "flawed source";
    const PATIENCE: Duration = Duration::ZERO;

    async fn fresh() -> Option<Self> {
        Database::fresh().await.map(Self)
    }

    fn now(&self) -> Timestamp {
        self.0.now()
    }

    async fn pass(&self, time: Duration) {
        self.0.pass(time).await;
    }
}

impl<const FLAW: u8> WriteProbe for Flawed<FLAW> {
    type Tx = MemoryTx;

    async fn begin(&self) -> MemoryTx {
        self.0.begin().await
    }

    async fn append(&self, tx: &mut MemoryTx, events: &[Event]) -> Result<(), AppendError> {
        if FLAW == IGNORES_THE_SCHEDULE {
            let mut events = events.to_vec();
            events.iter_mut().for_each(|event| event.available_at = None);
            return self.0.append(tx, &events).await;
        }
        self.0.append(tx, events).await
    }

    async fn commit(&self, tx: MemoryTx) {
        self.0.commit(tx).await;
    }

    async fn roll_back(&self, tx: MemoryTx) {
        if FLAW == WRITES_WHAT_IS_ROLLED_BACK {
            tx.commit();
        }
    }
}

impl<const FLAW: u8> SourceProbe for Flawed<FLAW> {
    type Source = FlawedSource<FLAW>;

    async fn open(&self) -> FlawedSource<FLAW> {
        FlawedSource { inner: self.0.open().await, out: Vec::new() }
    }
}

struct FlawedSource<const FLAW: u8> {
    inner: MemoryOutbox,
    /// What it handed out and nobody settled.
    out: Vec<Delivery>,
}

impl<const FLAW: u8> FlawedSource<FLAW> {
    /// What it tells the source below instead.
    fn change(settlement: &Settlement) -> Settlement {
        let outcome = match (FLAW, settlement.outcome.clone()) {
            (RETRY_LETS_THE_LANE_GO_ON, Outcome::Retry { attempts, failure, .. }) => {
                Outcome::Dead { attempts, failure, parks_lane: false }
            }
            (RETRIES_AT_ONCE, Outcome::Retry { attempts, failure, .. }) => {
                Outcome::Retry { at: Timestamp::UNIX_EPOCH, attempts, failure }
            }
            (FORGETS_ATTEMPTS, Outcome::Retry { at, failure, .. }) => {
                Outcome::Retry { at, attempts: 0, failure }
            }
            (LOSES_WHAT_IS_RELEASED, Outcome::Released) => Outcome::Delivered,
            (NEVER_PARKS, Outcome::Dead { attempts, failure, .. }) => {
                Outcome::Dead { attempts, failure, parks_lane: false }
            }
            (_, outcome) => outcome,
        };
        Settlement { receipt: settlement.receipt, outcome }
    }
}

fn read_as_text(got: &mut Delivery) {
    let event = &got.message.event;
    let text = String::from_utf8_lossy(event.payload.bytes()).into_owned();
    let content_type = event.payload.content_type().to_owned();
    got.message.event = Arc::new(Event::clone(event).with_bytes(content_type, text));
}

#[async_trait]
impl<const FLAW: u8> Source for FlawedSource<FLAW> {
    fn guarantees(&self) -> Guarantees {
        self.inner.guarantees()
    }

    async fn next_batch(&mut self, mut limit: Limit) -> Result<Batch, Failure> {
        if FLAW == IGNORES_BYTES {
            limit.bytes = usize::MAX;
        }
        let mut batch = self.inner.next_batch(limit).await?;
        match FLAW {
            MARKS_BEFORE_DELIVERY => {
                let receipts = batch.deliveries.iter().map(|got| got.receipt);
                let delivered = |receipt| Settlement { receipt, outcome: Outcome::Delivered };
                let marks: Vec<_> = receipts.map(delivered).collect();
                assert!(self.inner.settle(&marks).await?.is_held());
            }
            NEVER_SAYS_MORE => batch.more = false,
            ALWAYS_SAYS_MORE => batch.more = true,
            HIDES_NEXT_DUE => batch.next_due = None,
            REVERSES_BATCHES => batch.deliveries.reverse(),
            READS_PAYLOADS_AS_TEXT => batch.deliveries.iter_mut().for_each(read_as_text),
            HANDS_OUT_AGAIN if batch.deliveries.is_empty() => {
                batch.deliveries = self.out.clone();
            }
            _ => {}
        }
        self.out.extend(batch.deliveries.iter().cloned());
        Ok(batch)
    }

    async fn settle(&mut self, settlements: &[Settlement]) -> Result<Holding, Failure> {
        if FLAW == FORGETS_SETTLEMENTS {
            return Ok(Holding::Held);
        }
        let changed: Vec<_> = settlements.iter().map(Self::change).collect();
        let held = self.inner.settle(&changed).await?;
        self.out.retain(|got| changed.iter().all(|settled| settled.receipt != got.receipt));
        Ok(if FLAW == OLD_OWNER_IS_TOLD_HELD { Holding::Held } else { held })
    }
}
