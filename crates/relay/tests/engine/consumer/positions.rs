//! By position: one mark for each log, and no id for what is in its log once.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use semel_core::delivery::{Log, Publication};
use semel_core::inbox::Seen;
use semel_core::letters::{DeadLetters, Letter, LetterBook, Numbered, Standing};
use semel_core::marks::Step;
use semel_core::memory::{MemoryDatabase, MemoryTx};
use semel_core::{
    AdminStore, Event, EventId, Failure, InboxStore, Marks, Message, Position, Published, Sink,
    Verdict,
};
use semel_relay::{Consumer, ConsumerBuilder, Handler, Stop, handler_fn};

use super::World;

/// A log whose end a test says.
#[derive(Debug)]
struct TestLog {
    name: &'static str,
    end: AtomicU64,
}

#[async_trait]
impl Log for TestLog {
    fn name(&self) -> &str {
        self.name
    }

    async fn end(&self) -> Result<u64, Failure> {
        Ok(self.end.load(Ordering::Relaxed))
    }
}

fn log(name: &'static str) -> Arc<TestLog> {
    Arc::new(TestLog { name, end: 1_000.into() })
}

/// The message of an event at an offset, which the relay says is there once.
fn at(log: &Arc<TestLog>, offset: u64, event: &Event) -> Message {
    let mut message = Message::first("orders", event.clone());
    message.publication = Publication::First;
    message.position = Some(Position { log: Arc::clone(log) as _, offset });
    message
}

impl World {
    /// Orders of 0, 1, 2, … cents, of three lanes, at every second offset: markers are between.
    fn logged(&self, log: &Arc<TestLog>, count: u64) -> Vec<Message> {
        let lanes = ["a", "b", "c"].into_iter().cycle();
        let cents = (100..).zip(lanes).take(usize::try_from(count).unwrap());
        let event = |(cents, lane)| self.event(lane, cents);
        (0..).zip(cents.map(event)).map(|(place, event)| at(log, place * 2, &event)).collect()
    }

    fn by_position(&self) -> ConsumerBuilder<MemoryDatabase> {
        let builder = self.builder().dead_letters(self.database.clone());
        builder.by_position(self.database.clone())
    }

    fn counting(&self) -> Consumer<MemoryDatabase, impl Handler<MemoryTx> + use<>> {
        self.by_position().build_with(handler_fn(|tx: &mut MemoryTx, message: &Message| {
            tx.add(format!("order {}", message.event.id), 1);
            tx.add("all", 1);
            Box::pin(async { Ok(Default::default()) })
        }))
    }

    async fn mark(&self, log: &TestLog) -> Option<u64> {
        let (mut tx, scope) = (self.database.begin().await, format!("log:{}", log.name));
        self.database.mark(&mut tx, "payments", &scope).await.unwrap()
    }

    async fn is_known(&self, id: EventId) -> bool {
        let mut tx = self.database.begin().await;
        self.database.record(&mut tx, "payments", id).await.unwrap() != Seen::First
    }
}

#[tokio::test(start_paused = true)]
async fn a_log_that_is_read_again_has_no_second_effect_and_leaves_no_ids() {
    let (world, log) = (World::new(), log("orders/0"));
    let messages = world.logged(&log, 30);
    for _ in 0..3 {
        // Whoever comes next knows nothing but the mark.
        world.broker.publish(&messages).await;
        world.drain(world.by_position()).await;
    }
    for message in &messages {
        let lane = &message.event.aggregate_id;
        let cents = message.event.payload.bytes();
        let cents: serde_json::Value = serde_json::from_slice(cents).unwrap();
        assert_eq!(world.database.get(&format!("{lane}:{}", cents["cents"])), 1);
        assert!(!world.is_known(message.event.id).await);
    }
    assert_eq!(world.mark(&log).await, Some(59));
}

#[tokio::test(start_paused = true)]
async fn an_owner_that_is_late_takes_no_effect() {
    let (world, log) = (World::new(), log("orders/0"));
    let messages = world.logged(&log, 20);
    let (old, new) = (world.counting(), world.counting());
    for (consumer, part) in [
        (&old, 0..5),
        (&new, 0..12), // took over, and begins where the old one had acknowledged
        (&old, 5..10), // has still some in hand
        (&old, 10..14),
        (&new, 12..16),
        (&old, 14..20),
        (&new, 0..20),
    ] {
        assert_eq!(consumer.publish(&messages[part]).await, Published::All);
    }
    assert_eq!(world.database.get("all"), 20);
}

#[tokio::test(start_paused = true)]
async fn what_comes_twice_in_one_transaction_takes_effect_once() {
    let (world, (one, other)) = (World::new(), (log("orders/0"), log("orders/1")));
    let (messages, others) = (world.logged(&one, 8), world.logged(&other, 3));
    let mut batch = messages[5..7].to_vec();
    world.counting().publish(&messages[..5]).await;
    batch.extend_from_slice(&others);
    batch.extend_from_slice(&messages[3..8]);
    batch.extend_from_slice(&others[1..]);
    assert_eq!(world.counting().publish(&batch).await, Published::All);
    assert_eq!(world.database.get("all"), 11);
    assert_eq!((world.mark(&one).await, world.mark(&other).await), (Some(15), Some(5)));
}

#[tokio::test(start_paused = true)]
async fn a_slow_batch_moves_the_mark_no_further_than_it_got() {
    let (world, log) = (World::new(), log("orders/0"));
    let messages = world.logged(&log, 20);
    let slow = handler_fn(|tx: &mut MemoryTx, _: &Message| {
        tx.add("done", 1);
        Box::pin(async {
            tokio::time::sleep(Duration::from_millis(300)).await;
            Ok(Default::default())
        })
    });
    let consumer = world.by_position().build_with(slow);
    let (sink, batch) = (consumer.clone(), messages.clone());
    let taking = tokio::spawn(async move { sink.publish(&batch).await });
    tokio::time::sleep(Duration::from_secs(2)).await;
    taking.abort(); // a crash: what was not committed comes again
    let _ = taking.await;
    assert_eq!((world.database.get("done"), world.mark(&log).await), (4, Some(7)));
    assert_eq!(consumer.publish(&messages).await, Published::All);
    assert_eq!(world.database.get("done"), 20);
}

/// Whoever had the partition before holds its mark until the database finds that he is dead.
#[tokio::test(start_paused = true)]
async fn however_long_a_mark_is_waited_for_nothing_is_confirmed_without_its_effect() {
    for count in [1, 2, 20] {
        let (world, log) = (World::new(), log("orders/0"));
        let messages = world.logged(&log, count);
        let locked = Locked(world.database.clone(), Duration::from_secs(5));
        let consumer = world.by_position().by_position(locked).build_with(handler_fn(
            |tx: &mut MemoryTx, _: &Message| {
                tx.add("all", 1);
                Box::pin(async { Ok(Default::default()) })
            },
        ));
        let taken = tokio::time::timeout(super::LONG, consumer.publish(&messages)).await;
        assert!(taken.expect("it ends").all_confirmed());
        let effects = world.database.get("all");
        assert_eq!(effects, i64::try_from(count).unwrap(), "of {count} confirmed messages");
        assert_eq!(world.mark(&log).await, Some(count * 2 - 1));
    }
}

#[tokio::test(start_paused = true)]
async fn poison_waits_in_its_place_and_leaves_it_as_a_letter() {
    let (world, log) = (World::new(), log("orders/0"));
    let events = [("a", 1), ("b", 13), ("a", 2), ("b", 3)];
    let events: Vec<_> = events.iter().map(|(lane, cents)| world.event(lane, *cents)).collect();
    let messages: Vec<_> =
        (0..).zip(&events).map(|(place, event)| at(&log, place, event)).collect();
    world.broker.publish(&messages).await;
    let subscription = world.broker.subscribe("payments", &["orders"]);
    let (stopper, stop) = Stop::new();
    let running = tokio::spawn(world.by_position().build().run(subscription, stop));
    tokio::time::sleep(Duration::from_secs(5)).await;
    assert_eq!(world.effects(["a:1", "b:13", "a:2", "b:3"]), [1, 0, 0, 0], "all wait behind it");
    tokio::time::sleep(super::LONG).await;
    assert_eq!(world.effects(["a:1", "b:13", "a:2", "b:3"]), [1, 0, 1, 0]);
    assert_eq!(world.mark(&log).await, Some(4));
    stopper.stop();
    assert_eq!(running.await.unwrap().unwrap().dead, 1);

    world.broker.publish(&messages).await; // the log is read again
    world.drain(world.by_position()).await;
    let letters = semel_core::letters::LettersAdmin::new(world.database.clone(), "payments");
    assert_eq!(letters.stats().await.unwrap().counts.iter().sum::<u64>(), 2);
    world.repair().await;
    let dead = semel_core::admin::Selection::Ids(vec![events[1].id]);
    assert_eq!(letters.retry(&dead).await.unwrap(), 1);
    world.broker.publish(&messages).await;
    world.drain(world.by_position()).await;
    assert_eq!(world.effects(["a:1", "b:13", "a:2", "b:3"]), [1; 4]);
}

/// In one call: the log of the one that fails goes as far as that, the other one all the way.
#[tokio::test(start_paused = true)]
async fn a_mark_passes_no_message_that_failed_and_holds_no_other_log() {
    let (world, (one, other)) = (World::new(), (log("orders/0"), log("orders/1")));
    let orders = |cents: std::ops::Range<i64>| cents.map(|cents| world.event("a", cents));
    let bad: Vec<_> = orders(10..20).collect(); // 13 is the fourth
    let good: Vec<_> = orders(30..40).collect();
    let batch: Vec<_> = (0..)
        .zip(bad.iter().zip(&good))
        .flat_map(|(place, (bad, good))| [at(&one, place, bad), at(&other, place, good)])
        .collect();
    let consumer = world.by_position().build();
    let Published::Each(verdicts) = consumer.publish(&batch).await else { panic!("one fails") };
    let (of_one, of_other): (Vec<_>, Vec<_>) =
        verdicts.chunks(2).map(|both| (both[0].clone(), both[1].clone())).unzip();
    assert_eq!(of_other, vec![Verdict::Confirmed; 10]);
    assert_eq!(of_one[..3], vec![Verdict::Confirmed; 3]);
    assert!(matches!(of_one[3], Verdict::Failed(_)), "{of_one:?}");
    assert_eq!(of_one[4..], vec![Verdict::Behind; 6]);
    assert_eq!((world.mark(&one).await, world.mark(&other).await), (Some(3), Some(10)));

    world.repair().await;
    let left: Vec<_> = batch.iter().step_by(2).skip(3).cloned().collect();
    for again in [&left, &batch] {
        assert_eq!(consumer.publish(again).await, Published::All);
    }
    let effects =
        |cents: std::ops::Range<i64>| cents.map(|cents| world.database.get(&format!("a:{cents}")));
    assert!(effects(10..20).chain(effects(30..40)).all(|effects| effects == 1));
    assert_eq!((world.mark(&one).await, world.mark(&other).await), (Some(10), Some(10)));
}

#[tokio::test(start_paused = true)]
async fn what_nobody_wants_moves_no_mark_and_is_passed_by() {
    let (world, log) = (World::new(), log("orders/0"));
    let mut events: Vec<_> = (1..=6).map(|cents| world.event("a", cents)).collect();
    for event in &mut events[..4] {
        event.event_type = "Other".into();
    }
    let messages: Vec<_> =
        (0..).zip(&events).map(|(place, event)| at(&log, place, event)).collect();
    let consumer = world.by_position().build();
    assert_eq!(consumer.publish(&messages[..3]).await, Published::All);
    assert_eq!(world.mark(&log).await, None);
    for _ in 0..2 {
        assert_eq!(consumer.publish(&messages[3..]).await, Published::All);
        assert_eq!(world.mark(&log).await, Some(6));
    }
    assert_eq!(consumer.publish(&messages).await, Published::All);
    assert_eq!(world.effects(["a:4", "a:5", "a:6"]), [0, 1, 1]);
}

#[tokio::test(start_paused = true)]
async fn what_says_nothing_of_itself_goes_by_its_id() {
    let (world, log) = (World::new(), log("orders/0"));
    let mut messages = world.logged(&log, 6);
    for message in messages.iter_mut().skip(1).step_by(2) {
        message.publication = Publication::Unknown;
    }
    let foreign = messages[3].event.id;
    // A producer that repeats itself: the same event at another offset.
    let mut copy = messages[3].clone();
    copy.position = Some(Position { log: log.clone() as _, offset: 40 });
    messages.push(copy);
    assert_eq!(world.counting().publish(&messages).await, Published::All);
    assert_eq!(world.counting().publish(&messages).await, Published::All);
    assert_eq!(world.database.get("all"), 6);
    assert!(world.is_known(foreign).await);
    assert_eq!(world.mark(&log).await, Some(9), "what goes by its id does not move it");
}

#[tokio::test(start_paused = true)]
async fn a_replayed_event_is_refused_unless_it_is_asked_for() {
    let (world, log) = (World::new(), log("orders/0"));
    let mut replayed = world.logged(&log, 1);
    let placed = replayed[0].event.clone();
    assert!(world.counting().publish(&replayed).await.all_confirmed());
    replayed[0].publication = Publication::Again;
    replayed[0].position = Some(Position { log: log.clone() as _, offset: 2 });
    world.broker.publish(&replayed).await;
    assert_eq!(world.drain(world.by_position()).await.dead, 1);
    let letter = world.database.find("payments", placed.id).await.unwrap().unwrap();
    assert!(letter.error.unwrap().starts_with("E-EVENT-REPLAYED"));
    assert_eq!(world.mark(&log).await, Some(3));

    replayed[0].position = Some(Position { log: log.clone() as _, offset: 4 });
    LetterBook::discard(&world.database, "payments", &[placed.id]).await.unwrap();
    for _ in 0..2 {
        world.broker.publish(&replayed).await;
        world.drain(world.by_position().take_old_events()).await;
    }
    assert_eq!(world.database.get("a:100"), 1, "by the handler of the second consumer, once");
}

#[tokio::test(start_paused = true)]
async fn a_log_that_was_made_anew_is_noticed() {
    let (world, log) = (World::new(), log("orders/0"));
    let messages = world.logged(&log, 6);
    world.counting().publish(&messages).await;
    log.end.store(4, Ordering::Relaxed);
    world.broker.publish(&messages[..2]).await;
    let subscription = world.broker.subscribe("payments", &["orders"]);
    let failure = world.by_position().build().run(subscription, Stop::never()).await.unwrap_err();
    assert_eq!(failure.code(), "E-CONSUMER-LOG", "{failure}");
    assert_eq!(world.database.get("all"), 6);
}

#[tokio::test(start_paused = true)]
async fn without_letters_it_does_not_begin() {
    let world = World::new();
    let consumer = world.builder().by_position(world.database.clone()).build();
    let subscription = world.broker.subscribe("payments", &["orders"]);
    let failure = consumer.run(subscription, Stop::never()).await.unwrap_err();
    assert_eq!(failure.code(), "E-CONSUMER");
}

#[tokio::test(start_paused = true)]
async fn what_cannot_be_put_among_the_letters_holds_the_log() {
    let (world, log) = (World::new(), log("orders/0"));
    let events = [world.event("b", 13), world.event("a", 1)];
    let messages: Vec<_> =
        (0..).zip(&events).map(|(place, event)| at(&log, place, event)).collect();
    world.broker.publish(&messages).await;
    let jammed = Jammed(world.database.clone(), 3.into());
    let report = world.drain(world.by_position().dead_letters(jammed)).await;
    assert_eq!(report.dead, 1);
    assert!(world.broker.dead_letters("payments").is_empty(), "never with the broker");
    assert_eq!(world.effects(["b:13", "a:1"]), [0, 1]);
    assert!(world.database.find("payments", events[0].id).await.unwrap().is_some());
}

/// Marks that somebody else has locked for so long, whenever they are looked at.
struct Locked(MemoryDatabase, Duration);

#[async_trait]
impl Marks<MemoryTx> for Locked {
    async fn mark(
        &self,
        tx: &mut MemoryTx,
        consumer: &str,
        scope: &str,
    ) -> Result<Option<u64>, Failure> {
        tokio::time::sleep(self.1).await;
        self.0.mark(tx, consumer, scope).await
    }

    async fn advance(
        &self,
        tx: &mut MemoryTx,
        consumer: &str,
        scope: &str,
        to: u64,
    ) -> Result<bool, Failure> {
        self.0.advance(tx, consumer, scope, to).await
    }

    async fn step_all(
        &self,
        tx: &mut MemoryTx,
        consumer: &str,
        steps: &[Step<'_>],
    ) -> Result<Vec<bool>, Failure> {
        self.0.step_all(tx, consumer, steps).await
    }
}

/// Letters of which the first few cannot be put.
struct Jammed(MemoryDatabase, AtomicU32);

#[async_trait]
impl LetterBook for Jammed {
    async fn due(&self, consumer: &str, limit: usize) -> Result<Vec<Message>, Failure> {
        self.0.due(consumer, limit).await
    }

    async fn page(
        &self,
        consumer: &str,
        after: u64,
        limit: usize,
    ) -> Result<Vec<Numbered>, Failure> {
        self.0.page(consumer, after, limit).await
    }

    async fn find(&self, consumer: &str, id: EventId) -> Result<Option<Letter>, Failure> {
        LetterBook::find(&self.0, consumer, id).await
    }

    async fn retry(&self, consumer: &str, ids: &[EventId]) -> Result<usize, Failure> {
        LetterBook::retry(&self.0, consumer, ids).await
    }

    async fn discard(&self, consumer: &str, ids: &[EventId]) -> Result<usize, Failure> {
        LetterBook::discard(&self.0, consumer, ids).await
    }
}

#[async_trait]
impl DeadLetters<MemoryTx> for Jammed {
    async fn any(&self, tx: &mut MemoryTx, consumer: &str) -> Result<bool, Failure> {
        self.0.any(tx, consumer).await
    }

    async fn standing(
        &self,
        tx: &mut MemoryTx,
        consumer: &str,
        event: &Event,
    ) -> Result<Standing, Failure> {
        self.0.standing(tx, consumer, event).await
    }

    async fn put(&self, tx: &mut MemoryTx, consumer: &str, letter: &Letter) -> Result<(), Failure> {
        let left = self.1.load(Ordering::Relaxed);
        self.1.store(left.saturating_sub(1), Ordering::Relaxed);
        if left > 0 {
            return Err(Failure::transient("E-TEST", "a deadlock"));
        }
        self.0.put(tx, consumer, letter).await
    }

    async fn remove(
        &self,
        tx: &mut MemoryTx,
        consumer: &str,
        event: &Event,
    ) -> Result<(), Failure> {
        self.0.remove(tx, consumer, event).await
    }

    async fn release(
        &self,
        tx: &mut MemoryTx,
        consumer: &str,
        event: &Event,
    ) -> Result<(), Failure> {
        self.0.release(tx, consumer, event).await
    }
}
