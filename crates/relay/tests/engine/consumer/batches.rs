//! How many transactions a batch takes when some of its messages fail, and what becomes of each.

use std::collections::{BTreeMap, HashSet};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use semel_core::inbox::{Opening, Seen};
use semel_core::memory::{MemoryDatabase, MemoryTx};
use semel_core::{EventId, Failure, HandlerError, InboxStore, Message, Published, Sink, Verdict};
use semel_relay::{Consumer, ConsumerBuilder, Handler, handler_fn};

use super::World;

/// An inbox that counts its transactions.
#[derive(Clone)]
struct Counted {
    inner: MemoryDatabase,
    begun: Arc<AtomicUsize>,
}

impl Counted {
    fn builder(world: &World) -> (ConsumerBuilder<Self>, Arc<AtomicUsize>) {
        let begun = Arc::<AtomicUsize>::default();
        let store = Self { inner: world.database.clone(), begun: Arc::clone(&begun) };
        (Consumer::builder("payments", store).clock(Arc::clone(&world.clock) as _), begun)
    }
}

impl InboxStore for Counted {
    type Tx<'c> = MemoryTx;

    async fn begin(&self) -> Result<MemoryTx, Failure> {
        self.begun.fetch_add(1, Ordering::Relaxed);
        InboxStore::begin(&self.inner).await
    }

    async fn begin_with(
        &self,
        consumer: &str,
        opening: Opening<'_>,
    ) -> Result<(MemoryTx, bool), Failure> {
        self.begun.fetch_add(1, Ordering::Relaxed);
        self.inner.begin_with(consumer, opening).await
    }

    async fn record(
        &self,
        tx: &mut Self::Tx<'_>,
        name: &str,
        id: EventId,
    ) -> Result<Seen, Failure> {
        self.inner.record(tx, name, id).await
    }

    async fn store_result(
        &self,
        tx: &mut Self::Tx<'_>,
        consumer: &str,
        id: EventId,
        result: Bytes,
    ) -> Result<(), Failure> {
        self.inner.store_result(tx, consumer, id, result).await
    }

    /// What a handler has spoilt is only found now.
    async fn commit(&self, tx: MemoryTx) -> Result<(), Failure> {
        if tx.get("spoilt") > 0 {
            return Err(Failure::transient("E-TEST", "a constraint that is checked at the end"));
        }
        tx.commit();
        Ok(())
    }

    async fn rollback(&self, tx: MemoryTx) {
        drop(tx);
    }

    async fn forget(&self, age: Duration, limit: usize) -> Result<usize, Failure> {
        self.inner.forget(age, limit).await
    }
}

/// What a handler does with a message: its type says it.
fn handler(calls: &Arc<AtomicUsize>) -> impl Handler<MemoryTx> + use<> {
    let (calls, met) = (Arc::clone(calls), Mutex::new(HashSet::new()));
    handler_fn(move |tx: &mut MemoryTx, message: &Message| {
        calls.fetch_add(1, Ordering::Relaxed);
        let (event, lane) = (&message.event, &message.event.aggregate_id);
        let place = tx.get(lane);
        tx.add(lane.clone(), 1);
        tx.add(format!("place of {}", event.id), place);
        tx.add(format!("effect of {}", event.id), 1);
        let is_first_call = met.lock().unwrap().insert(event.id);
        let result = match event.event_type.as_str() {
            "Fails" => Err(HandlerError::retry("as the test wants")),
            "Stumbles" if is_first_call => Err(HandlerError::retry("once")),
            "WasApplied" => Err(HandlerError::AlreadyApplied),
            "Rejects" => Err(HandlerError::reject("as the test wants")),
            "Panics" => panic!("as the test wants"),
            "Spoils" => {
                tx.add("spoilt", 1);
                Ok(Bytes::new())
            }
            _ => Ok(Bytes::new()),
        };
        Box::pin(async { result })
    })
}

impl World {
    fn message(&self, lane: usize, event_type: &str) -> Message {
        let mut event = self.event(&lane.to_string(), 1);
        event_type.clone_into(&mut event.event_type);
        Message::first("orders", event)
    }

    fn effect(&self, message: &Message) -> i64 {
        self.database.get(&format!("effect of {}", message.event.id))
    }

    fn place_of(&self, message: &Message) -> i64 {
        self.database.get(&format!("place of {}", message.event.id))
    }
}

fn each(published: Published, count: usize) -> Vec<Verdict> {
    match published {
        Published::All => vec![Verdict::Confirmed; count],
        Published::Each(verdicts) => verdicts,
        Published::None(failure) => panic!("{failure}"),
    }
}

#[tokio::test(start_paused = true)]
async fn one_bad_message_among_many_costs_few_transactions() {
    const COUNT: usize = 500;
    const LANES: usize = 50;
    for bad in [0, 1, 250, COUNT - 2, COUNT - 1] {
        for what in ["Fails", "Panics", "Stumbles", "WasApplied"] {
            let (world, calls) = (World::new(), Arc::<AtomicUsize>::default());
            let (builder, begun) = Counted::builder(&world);
            let consumer = builder.build_with(handler(&calls));
            let of_type = |place| if place == bad { what } else { "OrderPlaced" };
            let batch: Vec<_> =
                (0..COUNT).map(|place| world.message(place % LANES, of_type(place))).collect();
            let verdicts = each(consumer.publish(&batch).await, COUNT);
            let stops = matches!(&verdicts[bad], Verdict::Failed(_));
            assert!(stops || ["Stumbles", "WasApplied"].contains(&what), "{what} at {bad}");
            for (place, (message, verdict)) in batch.iter().zip(&verdicts).enumerate() {
                let is_behind = stops && place > bad && place % LANES == bad % LANES;
                if is_behind {
                    assert_eq!((verdict, world.effect(message)), (&Verdict::Behind, 0));
                } else if place != bad {
                    assert_eq!((verdict, world.effect(message)), (&Verdict::Confirmed, 1));
                    let before = place / LANES;
                    let skipped =
                        what == "WasApplied" && place % LANES == bad % LANES && place > bad;
                    let before = i64::try_from(before - usize::from(skipped)).unwrap();
                    assert_eq!(world.place_of(message), before, "{what} at {bad}: {place}");
                }
            }
            let (begun, calls) = (begun.load(Ordering::Relaxed), calls.load(Ordering::Relaxed));
            assert!(begun <= 8, "{what} at {bad}: {begun} transactions");
            assert!(calls <= 2 * COUNT, "{what} at {bad}: {calls} calls");
        }
    }
}

/// As when something fails that all handlers need.
#[tokio::test(start_paused = true)]
async fn when_all_messages_fail_each_is_tried_once() {
    const COUNT: usize = 200;
    let (world, calls) = (World::new(), Arc::<AtomicUsize>::default());
    let (builder, begun) = Counted::builder(&world);
    let consumer = builder.build_with(handler(&calls));
    let batch: Vec<_> = (0..COUNT).map(|lane| world.message(lane, "Fails")).collect();
    let verdicts = each(consumer.publish(&batch).await, COUNT);
    assert!(verdicts.iter().all(|verdict| matches!(verdict, Verdict::Failed(_))), "{verdicts:?}");
    assert_eq!((begun.load(Ordering::Relaxed), calls.load(Ordering::Relaxed)), (COUNT, COUNT));
}

/// Nobody knows which message it was.
#[tokio::test(start_paused = true)]
async fn a_commit_that_fails_costs_the_others_nothing() {
    const COUNT: usize = 20;
    for bad in [0, 7, COUNT - 1] {
        let (world, calls) = (World::new(), Arc::<AtomicUsize>::default());
        let consumer = Counted::builder(&world).0.build_with(handler(&calls));
        let of_type = |lane| if lane == bad { "Spoils" } else { "OrderPlaced" };
        let batch: Vec<_> = (0..COUNT).map(|lane| world.message(lane, of_type(lane))).collect();
        let verdicts = each(consumer.publish(&batch).await, COUNT);
        for (lane, (message, verdict)) in batch.iter().zip(&verdicts).enumerate() {
            if lane == bad {
                assert!(matches!(verdict, Verdict::Failed(_)), "{verdict:?}");
            }
            let is_done = *verdict == Verdict::Confirmed;
            assert_eq!((is_done, world.effect(message)), (lane != bad, i64::from(lane != bad)));
        }
    }
}

#[tokio::test(start_paused = true)]
async fn what_nobody_wants_opens_no_transaction() {
    let (world, calls) = (World::new(), Arc::<AtomicUsize>::default());
    let (builder, begun) = Counted::builder(&world);
    let builder = builder.on_raw("OrderPlaced", handler(&calls));
    let consumer = builder.dead_letters(world.database.clone()).build();
    let mut batch: Vec<_> = (0..20).map(|lane| world.message(lane, "Other")).collect();
    assert_eq!(consumer.publish(&batch).await, Published::All);
    assert_eq!(begun.load(Ordering::Relaxed), 0);
    batch.push(world.message(20, "OrderPlaced"));
    assert_eq!(consumer.publish(&batch).await, Published::All);
    assert_eq!((begun.load(Ordering::Relaxed), calls.load(Ordering::Relaxed)), (1, 1));
}

/// Many batches with many bad messages: what is confirmed took effect once and in its order, what is
/// not did not, and no lane goes on behind a failure.
#[tokio::test(start_paused = true)]
async fn whatever_fails_together_each_lane_is_as_if_taken_alone() {
    const TYPES: [&str; 12] = [
        "OrderPlaced",
        "OrderPlaced",
        "OrderPlaced",
        "OrderPlaced",
        "OrderPlaced",
        "OrderPlaced",
        "Fails",
        "Stumbles",
        "WasApplied",
        "Rejects",
        "Panics",
        "Spoils",
    ];
    let mut random = 88_172_645_463_325_252_u64;
    let mut below = |limit: usize| {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        usize::try_from(random % limit as u64).unwrap()
    };
    for round in 0..300 {
        let (world, calls) = (World::new(), Arc::<AtomicUsize>::default());
        let (builder, _) = Counted::builder(&world);
        let builder = builder.dead_letters(world.database.clone());
        let consumer = builder.build_with(handler(&calls));
        let (count, lanes, types) = (1 + below(60), 1 + below(20), 1 + below(TYPES.len()));
        let batch: Vec<_> =
            (0..count).map(|_| world.message(below(lanes), TYPES[below(types)])).collect();
        let verdicts = each(consumer.publish(&batch).await, count);
        let mut in_lane: BTreeMap<&str, (i64, bool)> = BTreeMap::new();
        for (message, verdict) in batch.iter().zip(&verdicts) {
            let (lane, event_type) = (&*message.event.aggregate_id, &*message.event.event_type);
            let (done, stopped) = in_lane.entry(lane).or_default();
            let took_effect = *verdict == Verdict::Confirmed
                && event_type != "WasApplied"
                && !world.is_letter(message).await;
            assert_eq!(*stopped, *verdict == Verdict::Behind, "round {round}: {message:?}");
            assert_eq!(world.effect(message), i64::from(took_effect), "round {round}: {message:?}");
            match verdict {
                Verdict::Confirmed if took_effect => {
                    assert_eq!(world.place_of(message), *done, "round {round}: {message:?}");
                    *done += 1;
                }
                Verdict::Confirmed | Verdict::Behind => {}
                Verdict::Buried(_) => assert_eq!(event_type, "Rejects"),
                Verdict::Failed(_) => {
                    assert!(["Fails", "Stumbles", "Panics", "Spoils"].contains(&event_type));
                    *stopped = true;
                }
            }
        }
        assert!(calls.load(Ordering::Relaxed) <= 3 * count, "round {round}");
    }
}

impl World {
    async fn is_letter(&self, message: &Message) -> bool {
        use semel_core::letters::LetterBook;
        let found = LetterBook::find(&self.database, "payments", message.event.id).await;
        found.unwrap().is_some()
    }
}
