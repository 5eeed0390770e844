//! Subscriptions that are wrong on purpose.

use std::collections::BTreeSet;
use std::time::Duration;

use async_trait::async_trait;
use futures_util::future::BoxFuture;
use semel_core::memory::MemorySubscription;
use semel_core::outbox::AppendError;
use semel_core::{
    Batch, Event, Failure, Guarantees, Holding, Limit, Outcome, Receipt, Settlement, Source,
};
use semel_testkit::probe::{Probe, Ran, Skip, WriteProbe};
use semel_testkit::suites::source::SourceProbe;
use semel_testkit::suites::subscription::{DeadLetter, SubscriptionProbe};

use super::caught;
use crate::Broker;

const FORGETS_DEAD_LETTERS: u8 = 1;
const ACKNOWLEDGES_WHAT_IS_BEFORE: u8 = 2;
const KEEPS_THE_DEAD: u8 = 3;
const ONE_GROUP_FOR_ALL: u8 = 4;

#[test]
fn dead_letters_that_are_lost() {
    caught!(
        Flawed<FORGETS_DEAD_LETTERS>,
        subscription::a_dead_letter_keeps_the_event_and_says_why,
        "1 dead letters"
    );
}

#[test]
fn positions_that_pass_what_is_not_settled() {
    caught!(
        Flawed<ACKNOWLEDGES_WHAT_IS_BEFORE>,
        subscription::what_is_settled_out_of_order_loses_nothing,
        "something is handed out"
    );
}

#[test]
fn dead_letters_that_come_again() {
    caught!(
        Flawed<KEEPS_THE_DEAD>,
        subscription::a_dead_letter_keeps_the_event_and_says_why,
        "nothing should be handed out"
    );
}

#[test]
fn groups_that_take_from_each_other() {
    caught!(
        Flawed<ONE_GROUP_FOR_ALL>,
        subscription::every_group_gets_every_message,
        "something is handed out"
    );
}

struct Flawed<const FLAW: u8>(Broker);

impl<const FLAW: u8> Probe for Flawed<FLAW> {
    const BACKEND: &'static str = "memory broker with flaws";
    const PATIENCE: Duration = Duration::ZERO;

    async fn fresh() -> Option<Self> {
        Broker::fresh().await.map(Self)
    }
}

impl<const FLAW: u8> WriteProbe for Flawed<FLAW> {
    type Tx = Vec<Event>;

    async fn begin(&self) -> Vec<Event> {
        self.0.begin().await
    }

    async fn append(&self, tx: &mut Vec<Event>, events: &[Event]) -> Result<(), AppendError> {
        self.0.append(tx, events).await
    }

    async fn commit(&self, tx: Vec<Event>) {
        self.0.commit(tx).await;
    }
}

impl<const FLAW: u8> SourceProbe for Flawed<FLAW> {
    type Source = FlawedSource<FLAW>;

    async fn open(&self) -> FlawedSource<FLAW> {
        FlawedSource { source: self.0.open().await, out: BTreeSet::new() }
    }
}

impl<const FLAW: u8> SubscriptionProbe for Flawed<FLAW> {
    async fn dead_letters(&self) -> Result<Vec<DeadLetter>, Skip> {
        if FLAW == FORGETS_DEAD_LETTERS { Ok(Vec::new()) } else { self.0.dead_letters().await }
    }

    async fn publish_foreign(&self, headers: &[(&str, &str)], body: &'static [u8]) -> Ran {
        self.0.publish_foreign(headers, body).await
    }

    async fn open_other_group(&self) -> Result<FlawedSource<FLAW>, Skip> {
        if FLAW == ONE_GROUP_FOR_ALL {
            return Ok(self.open().await);
        }
        Ok(FlawedSource { source: self.0.open_other_group().await?, out: BTreeSet::new() })
    }

    fn most_unsettled(&self) -> Result<usize, Skip> {
        self.0.most_unsettled()
    }
}

struct FlawedSource<const FLAW: u8> {
    source: MemorySubscription,
    out: BTreeSet<Receipt>,
}

#[async_trait]
impl<const FLAW: u8> Source for FlawedSource<FLAW> {
    fn guarantees(&self) -> Guarantees {
        self.source.guarantees()
    }

    async fn next_batch(&mut self, limit: Limit) -> Result<Batch, Failure> {
        let batch = self.source.next_batch(limit).await?;
        self.out.extend(batch.deliveries.iter().map(|got| got.receipt));
        Ok(batch)
    }

    fn wakeup(&mut self) -> BoxFuture<'static, ()> {
        self.source.wakeup()
    }

    async fn settle(&mut self, settlements: &[Settlement]) -> Result<Holding, Failure> {
        let mut settlements = settlements.to_vec();
        match FLAW {
            ACKNOWLEDGES_WHAT_IS_BEFORE => {
                let last = settlements.iter().map(|each| each.receipt).max();
                let before = self.out.iter().filter(|receipt| Some(**receipt) < last);
                let delivered = before
                    .map(|receipt| Settlement { receipt: *receipt, outcome: Outcome::Delivered });
                settlements.extend(delivered);
            }
            KEEPS_THE_DEAD => {
                for each in &mut settlements {
                    if matches!(each.outcome, Outcome::Dead { .. }) {
                        each.outcome = Outcome::Released;
                    }
                }
            }
            _ => {}
        }
        self.source.settle(&settlements).await
    }
}
