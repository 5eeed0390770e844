//! Subscriptions that are wrong on purpose.

use std::collections::{BTreeSet, VecDeque};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use futures_util::future::BoxFuture;
use semel_core::memory::MemorySubscription;
use semel_core::outbox::AppendError;
use semel_core::{
    Batch, Delivery, Event, Failure, Guarantees, Holding, Limit, Message, Outcome, Receipt,
    Settlement, Source,
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
const OVERTAKES: u8 = 5;
const GIVES_TWICE: u8 = 6;

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

#[test]
fn members_that_lose_the_order_of_a_lane() {
    caught!(
        Shared<OVERTAKES>,
        subscription::members_share_the_work_and_nothing_comes_twice,
        "out of order, order/lane-"
    );
}

#[test]
fn members_that_both_get_a_message() {
    caught!(
        Shared<GIVES_TWICE>,
        subscription::members_share_the_work_and_nothing_comes_twice,
        "something came twice"
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

/// A group whose members take from one pile, whoever asks. Each settles what it has before another
/// asks: so lanes keep their order.
#[derive(Default)]
struct Shared<const FLAW: u8>(Arc<Pile>);

#[derive(Default)]
struct Pile {
    waiting: Mutex<VecDeque<Event>>,
    members: AtomicUsize,
}

impl<const FLAW: u8> Probe for Shared<FLAW> {
    const BACKEND: &'static str = "a shared pile with flaws";

    async fn fresh() -> Option<Self> {
        Some(Self::default())
    }
}

impl<const FLAW: u8> WriteProbe for Shared<FLAW> {
    type Tx = Vec<Event>;

    async fn begin(&self) -> Vec<Event> {
        Vec::new()
    }

    async fn append(&self, tx: &mut Vec<Event>, events: &[Event]) -> Result<(), AppendError> {
        tx.extend_from_slice(events);
        Ok(())
    }

    async fn commit(&self, tx: Vec<Event>) {
        let mut waiting = self.0.waiting.lock().unwrap();
        waiting.extend(tx.first().filter(|_| FLAW == GIVES_TWICE).cloned());
        waiting.extend(tx);
    }
}

impl<const FLAW: u8> SourceProbe for Shared<FLAW> {
    type Source = Member<FLAW>;

    async fn open(&self) -> Member<FLAW> {
        let number = self.0.members.fetch_add(1, Ordering::Relaxed);
        let lags = FLAW == OVERTAKES && number == 1;
        Member { pile: Arc::clone(&self.0), lags, kept: VecDeque::new(), receipts: 0 }
    }
}

impl<const FLAW: u8> SubscriptionProbe for Shared<FLAW> {
    async fn dead_letters(&self) -> Result<Vec<DeadLetter>, Skip> {
        Err(Skip::because("it has none"))
    }

    async fn publish_foreign(&self, _: &[(&str, &str)], _: &'static [u8]) -> Ran {
        Err(Skip::because("it takes nothing but events"))
    }

    fn most_unsettled(&self) -> Result<usize, Skip> {
        Err(Skip::because("all of it is in memory anyway"))
    }
}

struct Member<const FLAW: u8> {
    pile: Arc<Pile>,
    /// Whether it keeps what it takes until there is no more.
    lags: bool,
    kept: VecDeque<Event>,
    receipts: u64,
}

#[async_trait]
impl<const FLAW: u8> Source for Member<FLAW> {
    fn guarantees(&self) -> Guarantees {
        Guarantees { lane_order: true, parking: false }
    }

    async fn next_batch(&mut self, limit: Limit) -> Result<Batch, Failure> {
        let mut waiting = self.pile.waiting.lock().unwrap();
        let count = limit.events.min(waiting.len());
        self.kept.extend(waiting.drain(..count));
        let mut batch = Batch::default();
        if self.lags && !waiting.is_empty() {
            return Ok(batch);
        }
        for event in self.kept.drain(..limit.events.min(self.kept.len())) {
            self.receipts += 1;
            let (message, receipt) = (Message::first("orders", event), Receipt(self.receipts));
            batch.deliveries.push(Delivery { message, receipt });
        }
        Ok(batch)
    }

    async fn settle(&mut self, _: &[Settlement]) -> Result<Holding, Failure> {
        Ok(Holding::Held)
    }
}
