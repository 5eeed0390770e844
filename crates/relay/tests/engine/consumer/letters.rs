//! Dead letters in the consumer's own database.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use semel_core::admin::{AdminStore, Filter, Selection, State};
use semel_core::letters::{DeadLetters, Letter, LetterBook, LettersAdmin, Numbered, Standing};
use semel_core::memory::{MemoryDatabase, MemoryTx};
use semel_core::{Event, EventId, Failure, Message};
use semel_relay::{ConsumerBuilder, OnDead, Settings, Stop};

use super::{LONG, World};

impl World {
    fn with_letters(&self) -> ConsumerBuilder<MemoryDatabase> {
        self.builder().dead_letters(self.database.clone())
    }

    fn letters(&self) -> LettersAdmin<MemoryDatabase> {
        LettersAdmin::new(self.database.clone(), "payments")
    }

    async fn states(&self) -> Vec<(EventId, State)> {
        let page = self.letters().list(&Filter::default(), None, 100).await.unwrap();
        page.events.iter().map(|view| (view.event.id, view.state)).collect()
    }
}

fn all_dead() -> Selection {
    Selection::Matching(Filter { state: Some(State::Dead), ..Filter::default() })
}

#[tokio::test(start_paused = true)]
async fn a_dead_letter_waits_with_its_error_and_its_lane_waits_behind_it() {
    let world = World::new();
    let poison = world.place("a", 13).await;
    let behind = world.place("a", 1).await;
    world.place("b", 1).await;
    let report = world.drain(world.with_letters()).await;
    assert_eq!((report.dead, report.failed), (1, 5));
    assert!(world.broker.dead_letters("payments").is_empty(), "not with the broker");
    assert_eq!(world.effects(["a:13", "a:1", "b:1"]), [0, 0, 1]);
    assert_eq!(world.states().await, [(poison, State::Dead), (behind, State::Pending)]);
    let view = world.letters().get(poison).await.unwrap().unwrap();
    assert_eq!((view.attempts, view.error.as_deref()), (5, Some("E-HANDLER: unlucky")));
    let stats = world.letters().stats().await.unwrap();
    assert_eq!((stats.count(State::Dead), stats.parked_lanes), (1, 1));
}

#[tokio::test(start_paused = true)]
async fn what_is_retried_goes_in_order_before_what_came_later() {
    let world = World::new();
    world.place("a", 13).await;
    world.place("a", 1).await;
    world.drain(world.with_letters()).await;
    world.repair().await;
    assert_eq!(world.letters().retry(&all_dead()).await.unwrap(), 1);
    world.place("a", 2).await;
    world.drain(world.with_letters()).await;
    assert_eq!(world.effects(["a:13", "a:1", "a:2", "last of a"]), [1, 1, 1, 2]);
    assert!(world.states().await.is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_running_consumer_takes_up_what_is_retried() {
    let world = World::new();
    world.place("a", 13).await;
    world.place("a", 1).await;
    let subscription = world.broker.subscribe("payments", &["orders"]);
    let (stopper, stop) = Stop::new();
    let running = tokio::spawn(world.with_letters().build().run(subscription, stop));
    tokio::time::sleep(LONG).await;
    assert_eq!(world.states().await.len(), 2);
    world.repair().await;
    world.letters().retry(&all_dead()).await.unwrap();
    tokio::time::sleep(LONG).await;
    assert_eq!(world.effects(["a:13", "a:1", "last of a"]), [1, 1, 1]);
    stopper.stop();
    running.await.unwrap().unwrap();
}

/// Whatever comes would be asked for twice, one message after the other, as long as a letter is there.
#[tokio::test(start_paused = true)]
async fn only_what_a_letter_concerns_is_asked_where_it_stands() {
    let world = World::new();
    world.place("a", 13).await;
    world.drain(world.with_letters()).await;
    for lane in 0..500 {
        world.place(&format!("lane {lane}"), 1).await;
        if lane % 100 == 0 {
            world.place("a", lane).await;
        }
    }
    let letters = Asked { inner: world.database.clone(), calls: Arc::default() };
    let calls = Arc::clone(&letters.calls);
    world.drain(world.builder().dead_letters(letters)).await;
    assert_eq!(world.states().await.len(), 1 + 5);
    for lane in 0..500 {
        assert_eq!(world.database.get(&format!("lane {lane}:1")), 1);
    }
    let [concerned, standing] = [&calls[0], &calls[1]].map(|calls| calls.load(Ordering::Relaxed));
    assert!(standing == 5 && concerned < 20, "{standing} and {concerned} questions");
}

/// Letters that count how often they are asked: for many messages, and for one.
struct Asked {
    inner: MemoryDatabase,
    calls: Arc<[AtomicUsize; 2]>,
}

#[async_trait]
impl LetterBook for Asked {
    async fn due(&self, consumer: &str, limit: usize) -> Result<Vec<Message>, Failure> {
        self.inner.due(consumer, limit).await
    }

    async fn page(
        &self,
        consumer: &str,
        after: u64,
        limit: usize,
    ) -> Result<Vec<Numbered>, Failure> {
        self.inner.page(consumer, after, limit).await
    }

    async fn find(&self, consumer: &str, id: EventId) -> Result<Option<Letter>, Failure> {
        LetterBook::find(&self.inner, consumer, id).await
    }

    async fn retry(&self, consumer: &str, ids: &[EventId]) -> Result<usize, Failure> {
        LetterBook::retry(&self.inner, consumer, ids).await
    }

    async fn discard(&self, consumer: &str, ids: &[EventId]) -> Result<usize, Failure> {
        LetterBook::discard(&self.inner, consumer, ids).await
    }
}

#[async_trait]
impl DeadLetters<MemoryTx> for Asked {
    async fn any(&self, tx: &mut MemoryTx, consumer: &str) -> Result<bool, Failure> {
        self.inner.any(tx, consumer).await
    }

    async fn standing(
        &self,
        tx: &mut MemoryTx,
        consumer: &str,
        event: &Event,
    ) -> Result<Standing, Failure> {
        self.calls[1].fetch_add(1, Ordering::Relaxed);
        self.inner.standing(tx, consumer, event).await
    }

    async fn concerned(
        &self,
        tx: &mut MemoryTx,
        consumer: &str,
        events: &[&Event],
    ) -> Result<Vec<bool>, Failure> {
        self.calls[0].fetch_add(1, Ordering::Relaxed);
        self.inner.concerned(tx, consumer, events).await
    }

    async fn put(&self, tx: &mut MemoryTx, consumer: &str, letter: &Letter) -> Result<(), Failure> {
        self.inner.put(tx, consumer, letter).await
    }

    async fn remove(
        &self,
        tx: &mut MemoryTx,
        consumer: &str,
        event: &Event,
    ) -> Result<(), Failure> {
        self.inner.remove(tx, consumer, event).await
    }

    async fn release(
        &self,
        tx: &mut MemoryTx,
        consumer: &str,
        event: &Event,
    ) -> Result<(), Failure> {
        self.inner.release(tx, consumer, event).await
    }
}

/// Though the consumer looks for what is retried only once a second.
#[tokio::test(start_paused = true)]
async fn what_waits_behind_a_letter_that_is_retried_follows_at_once() {
    const BEHIND: i64 = 320;
    let world = World::new();
    world.place("a", 1_000).await;
    world.place("a", 13).await;
    for cents in 14..14 + BEHIND {
        world.place("a", cents).await;
    }
    let subscription = world.broker.subscribe("payments", &["orders"]);
    let (stopper, stop) = Stop::new();
    let running = tokio::spawn(world.with_letters().build().run(subscription, stop));
    tokio::time::sleep(LONG).await;
    assert_eq!(world.database.get("last of a"), 1_000);
    world.repair().await;
    assert_eq!(world.letters().retry(&all_dead()).await.unwrap(), 1);
    tokio::time::sleep(Duration::from_secs(2)).await;
    assert_eq!(world.database.get("last of a"), 13 + BEHIND, "all of them, in order");
    assert!(world.states().await.is_empty());
    stopper.stop();
    running.await.unwrap().unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_retry_that_fails_again_is_dead_again_in_its_place() {
    let world = World::new();
    let poison = world.place("a", 13).await;
    let behind = world.place("a", 1).await;
    world.drain(world.with_letters()).await;
    world.letters().retry(&all_dead()).await.unwrap();
    assert_eq!(world.drain(world.with_letters()).await.dead, 1);
    assert_eq!(world.states().await, [(poison, State::Dead), (behind, State::Pending)]);
    assert_eq!(world.effects(["a:13", "a:1"]), [0, 0]);
}

#[tokio::test(start_paused = true)]
async fn what_is_discarded_never_takes_effect_and_its_lane_goes_on() {
    let world = World::new();
    let poison = world.event("a", 13);
    world.publish(poison.clone()).await;
    world.place("a", 1).await;
    world.drain(world.with_letters()).await;
    let chosen = Selection::Ids(vec![poison.id]);
    assert_eq!(world.letters().discard(&chosen).await.unwrap(), 1);
    world.repair().await;
    world.publish(poison).await; // once more by the broker
    world.drain(world.with_letters()).await;
    assert_eq!(world.effects(["a:13", "a:1"]), [0, 1]);
    assert!(world.states().await.is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_letter_that_the_broker_delivers_again_stays_one_letter() {
    let world = World::new();
    let poison: Event = world.event("a", 13);
    world.publish(poison.clone()).await;
    world.drain(world.with_letters()).await;
    world.publish(poison.clone()).await;
    let report = world.drain(world.with_letters()).await;
    assert_eq!((report.failed, report.published), (0, 1));
    assert_eq!(world.states().await, [(poison.id, State::Dead)]);
}

#[tokio::test(start_paused = true)]
async fn a_lane_that_does_not_wait_goes_on_and_the_letter_can_be_retried_later() {
    let world = World::new();
    let settings = Settings { on_dead: OnDead::SkipEvent, ..Settings::default() };
    world.place("a", 13).await;
    world.place("a", 1).await;
    world.drain(world.with_letters().settings(settings.clone())).await;
    assert_eq!(world.effects(["a:13", "a:1"]), [0, 1]);
    world.repair().await;
    world.letters().retry(&all_dead()).await.unwrap();
    world.drain(world.with_letters().settings(settings)).await;
    assert_eq!(world.effects(["a:13", "a:1"]), [1, 1]);
}

#[tokio::test(start_paused = true)]
async fn letters_of_one_lane_go_in_order_whoever_is_retried_first() {
    let world = World::new();
    let settings = Settings { on_dead: OnDead::SkipEvent, ..Settings::default() };
    let first = world.place("a", 13).await;
    let second = world.place("a", 13).await;
    world.drain(world.with_letters().settings(settings)).await;
    world.repair().await;
    world.letters().retry(&Selection::Ids(vec![second])).await.unwrap();
    world.drain(world.with_letters()).await;
    assert_eq!(world.states().await, [(first, State::Dead), (second, State::Pending)]);
    world.letters().retry(&Selection::Ids(vec![first])).await.unwrap();
    world.drain(world.with_letters()).await;
    assert_eq!(world.database.get("a:13"), 2);
}
