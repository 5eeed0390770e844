//! Sequences (I7), and events that are older than what is remembered (I6).

use std::time::Duration;

use semel_core::admin::{AdminStore, State};
use semel_core::letters::LettersAdmin;
use semel_core::memory::MemoryDatabase;
use semel_core::{EventId, InboxStore, Timestamp};
use semel_relay::{ConsumerBuilder, OutOfOrder, Stop};
use semel_testkit::clock::VirtualClock;

use super::{LONG, World};

const PATIENCE: Duration = Duration::from_secs(60);

impl World {
    /// An event whose amount is its sequence.
    async fn place_numbered(&self, lane: &str, number: u64) -> EventId {
        let event = self.event(lane, i64::try_from(number).unwrap()).with_sequence(number);
        self.publish(event).await
    }

    fn in_sequence(&self, policy: OutOfOrder) -> ConsumerBuilder<MemoryDatabase> {
        let database = || self.database.clone();
        self.builder().dead_letters(database()).out_of_order(database(), policy)
    }
}

#[tokio::test(start_paused = true)]
async fn stale_events_are_dropped_or_accepted() {
    for (policy, effects) in [(OutOfOrder::DropStale, [1, 0, 1]), (OutOfOrder::Accept, [1, 1, 1])] {
        let world = World::new();
        for number in [1, 3, 2] {
            world.place_numbered("a", number).await;
        }
        world.place("a", 7).await; // without a number
        world.drain(world.in_sequence(policy)).await;
        assert_eq!(world.effects(["a:1", "a:2", "a:3"]), effects, "{policy:?}");
        assert_eq!(world.database.get("a:7"), 1);
    }
}

#[tokio::test(start_paused = true)]
async fn an_early_event_waits_for_what_is_missing() {
    let world = World::new();
    for number in [1, 4, 3, 2, 5] {
        world.place_numbered("a", number).await;
    }
    world.place_numbered("b", 1).await;
    world.drain(world.in_sequence(OutOfOrder::HoldBack(PATIENCE))).await;
    assert_eq!(world.effects(["a:1", "a:2", "a:3", "a:4", "a:5", "b:1"]), [1; 6]);
    assert_eq!(world.database.get("last of a"), 5);
    let letters = LettersAdmin::new(world.database.clone(), "payments");
    assert_eq!(letters.stats().await.unwrap().counts, [0; 6]);
}

/// What comes after it waits for it all the same.
#[tokio::test(start_paused = true)]
async fn an_event_without_a_handler_has_its_turn() {
    for numbers in [[1, 2, 3, 4], [1, 3, 2, 4], [1, 4, 3, 2], [2, 4, 3, 1]] {
        for ignored in 1..=4 {
            let world = World::new();
            for number in numbers {
                let mut event = world.event("a", i64::try_from(number).unwrap());
                if number == ignored {
                    event.event_type = "OrderSeen".into();
                }
                world.publish(event.with_sequence(number)).await;
            }
            world.drain(world.in_sequence(OutOfOrder::HoldBack(PATIENCE))).await;
            let expected = [1, 2, 3, 4].map(|number| i64::from(number != ignored));
            let effects = world.effects(["a:1", "a:2", "a:3", "a:4"]);
            assert_eq!(effects, expected, "{numbers:?} without {ignored}");
            let letters = LettersAdmin::new(world.database.clone(), "payments");
            assert_eq!(letters.stats().await.unwrap().counts, [0; 6]);
        }
    }
}

#[tokio::test(start_paused = true)]
async fn what_is_missing_is_waited_for_no_longer_than_was_said() {
    let world = World::new();
    world.place_numbered("a", 1).await;
    world.place_numbered("a", 4).await;
    world.place_numbered("a", 3).await;
    let subscription = world.broker.subscribe("payments", &["orders"]);
    let (stopper, stop) = Stop::new();
    let consumer = world.in_sequence(OutOfOrder::HoldBack(PATIENCE)).build();
    let running = tokio::spawn(consumer.run(subscription, stop));
    tokio::time::sleep(PATIENCE / 2).await;
    assert_eq!(world.effects(["a:1", "a:3", "a:4"]), [1, 0, 0]);
    let letters = LettersAdmin::new(world.database.clone(), "payments");
    assert_eq!(letters.stats().await.unwrap().count(State::Pending), 2);
    tokio::time::sleep(LONG).await;
    assert_eq!(world.effects(["a:3", "a:4", "last of a"]), [1, 1, 4]);
    world.place_numbered("a", 2).await;
    tokio::time::sleep(LONG).await;
    assert_eq!(world.database.get("a:2"), 0, "too late");
    stopper.stop();
    running.await.unwrap().unwrap();
}

#[tokio::test(start_paused = true)]
async fn holding_back_needs_a_place_for_it() {
    let world = World::new();
    world.place_numbered("a", 3).await;
    let policy = OutOfOrder::HoldBack(PATIENCE);
    let consumer = world.builder().out_of_order(world.database.clone(), policy).build();
    let subscription = world.broker.subscribe("payments", &["orders"]);
    let failure = consumer.drain(subscription, Stop::never()).await.unwrap_err();
    assert_eq!(failure.code(), "E-CONSUMER");
}

#[tokio::test(start_paused = true)]
async fn an_event_older_than_what_is_remembered_is_refused_unless_it_is_forced() {
    let day = Duration::from_secs(24 * 60 * 60);
    let old = Timestamp::from_second(VirtualClock::START.as_second() - 8 * 86_400).unwrap();
    let world = World::new();
    let mut event = world.event("a", 5);
    event.created_at = old;
    world.publish(event.clone()).await;
    let mut younger = world.event("a", 6);
    younger.created_at = old + 2 * day;
    world.publish(younger).await;
    let report = world.drain(world.builder()).await;
    assert_eq!((report.dead, report.published), (1, 1));
    assert_eq!(world.broker.dead_letters("payments")[0].1.code(), "E-EVENT-OLD");
    assert_eq!(world.effects(["a:5", "a:6"]), [0, 1]);

    for builder in [world.builder().take_old_events(), world.builder().remember_for(None)] {
        world.publish(event.clone()).await;
        assert_eq!(world.drain(builder).await.dead, 0);
    }
    assert_eq!(world.database.get("a:5"), 1, "once, as long as it is remembered");
}

/// What counts is when it can have come for the first time.
#[tokio::test(start_paused = true)]
async fn an_event_that_was_scheduled_or_has_no_date_is_not_old() {
    let now = VirtualClock::START;
    let world = World::new();
    let mut scheduled = world.event("a", 5);
    scheduled.created_at = Timestamp::from_second(now.as_second() - 30 * 86_400).unwrap();
    scheduled.available_at = Some(now);
    let mut undated = world.event("a", 6);
    undated.created_at = Timestamp::UNIX_EPOCH;
    for event in [scheduled, undated] {
        world.publish(event).await;
    }
    assert_eq!(world.drain(world.builder()).await.dead, 0);
    assert_eq!(world.effects(["a:5", "a:6"]), [1, 1]);
}

#[tokio::test(start_paused = true)]
async fn a_letter_is_known_not_to_have_taken_effect_however_old_it_is() {
    let world = World::new();
    let poison = world.place("a", 13).await;
    let database = || world.database.clone();
    world.drain(world.builder().dead_letters(database())).await;
    tokio::time::sleep(Duration::from_secs(30 * 86_400)).await;
    world.repair().await;
    semel_core::letters::LetterBook::retry(&database(), "payments", &[poison]).await.unwrap();
    world.drain(world.builder().dead_letters(database())).await;
    assert_eq!(world.database.get("a:13"), 1);
}

#[tokio::test(start_paused = true)]
async fn a_running_consumer_forgets_what_is_old() {
    let world = World::new();
    let id = world.place("a", 1).await;
    let subscription = world.broker.subscribe("payments", &["orders"]);
    let (stopper, stop) = Stop::new();
    let builder = world.builder().remember_for(Some(Duration::from_secs(3600)));
    let running = tokio::spawn(builder.build().run(subscription, stop));
    let known = async || {
        let mut tx = world.database.begin().await;
        let seen = world.database.record(&mut tx, "payments", id).await.unwrap();
        seen != semel_core::inbox::Seen::First
    };
    tokio::time::sleep(Duration::from_secs(3500)).await;
    assert!(known().await);
    tokio::time::sleep(Duration::from_secs(300)).await;
    assert!(!known().await);
    stopper.stop();
    running.await.unwrap().unwrap();
}
