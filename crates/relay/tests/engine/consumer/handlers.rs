//! Typed handlers, and what follows from what they return.

use std::time::Duration;

use semel_core::inbox::Seen;
use semel_core::memory::{MemoryDatabase, MemoryTx};
use semel_core::{Event, Failure, HandlerError, Headers, InboxStore, Message, OutboxWriter, Sink};
use semel_relay::{Consumer, Settings, Stop, Unknown, handler_fn};

use super::{Order, World, charge};

#[tokio::test(start_paused = true)]
async fn each_type_has_its_handler_and_its_payload() {
    async fn cancel(
        tx: &mut MemoryTx,
        order: serde_json::Value,
        _: &Message,
    ) -> Result<serde_json::Value, HandlerError> {
        tx.add("cancelled", 1);
        Ok(order)
    }
    let world = World::new();
    world.place("a", 5).await;
    let mut cancelled = world.event("a", 5);
    cancelled.event_type = "OrderCancelled".into();
    let id = world.publish(cancelled).await;
    world.drain(world.builder().on("OrderCancelled", cancel)).await;
    assert_eq!(world.effects(["a:5", "cancelled"]), [1, 1]);
    let mut tx = world.database.begin().await;
    let seen = world.database.record(&mut tx, "payments", id).await.unwrap();
    assert_eq!(seen, Seen::Duplicate { result: Some(r#"{"cents":5}"#.into()) });
}

#[tokio::test(start_paused = true)]
async fn a_handler_can_have_something_of_the_applications_own() {
    async fn tax(
        percent: &i64,
        tx: &mut MemoryTx,
        order: Order,
        _: &Message,
    ) -> Result<(), HandlerError> {
        tx.add("tax", order.cents * percent / 100);
        Ok(())
    }
    let world = World::new();
    world.place("a", 200).await;
    world.drain(world.builder().on_with("OrderPlaced", 19_i64, tax)).await;
    assert_eq!(world.database.get("tax"), 38);
}

#[tokio::test(start_paused = true)]
async fn unknown_types_are_ignored_or_become_dead_letters() {
    for (policy, dead, seen) in
        [(Unknown::Ignore, 0, Seen::First), (Unknown::Reject, 1, Seen::First)]
    {
        let world = World::new();
        let mut event = world.event("a", 5);
        event.event_type = "OrderLost".into();
        let id = world.publish(event).await;
        world.place("a", 6).await;
        let report = world.drain(world.builder().unknown(policy)).await;
        assert_eq!((report.dead, world.database.get("a:6")), (dead, 1));
        let mut tx = world.database.begin().await;
        assert_eq!(world.database.record(&mut tx, "payments", id).await.unwrap(), seen);
        let letters = world.broker.dead_letters("payments");
        assert_eq!(letters.len() as u64, dead);
        assert!(letters.iter().all(|(_, failure)| failure.code() == "E-HANDLER-UNKNOWN"));
    }
}

#[tokio::test(start_paused = true)]
async fn a_payload_that_cannot_be_read_is_a_dead_letter_at_once() {
    let world = World::new();
    let event = world.event("a", 5).with_bytes("application/json", "{}");
    world.publish(event).await;
    let report = world.drain(world.builder()).await;
    assert_eq!((report.failed, report.dead), (1, 1));
    let failure = &world.broker.dead_letters("payments")[0].1;
    assert_eq!(failure.code(), "E-HANDLER-PAYLOAD");
    assert!(failure.to_string().contains("missing field `cents`"), "{failure}");
}

#[tokio::test(start_paused = true)]
async fn already_applied_undoes_the_attempt_and_is_remembered() {
    async fn known(tx: &mut MemoryTx, _: Order, _: &Message) -> Result<(), HandlerError> {
        tx.add("half an effect", 1);
        HandlerError::unless_changed(0)
    }
    let world = World::new();
    let id = world.place("a", 5).await;
    world.place("b", 5).await;
    let report = world.drain(world.builder().on("OrderPlaced", known)).await;
    assert_eq!((report.published, report.failed), (2, 0));
    assert_eq!(world.database.get("half an effect"), 0);
    let mut tx = world.database.begin().await;
    let seen = world.database.record(&mut tx, "payments", id).await.unwrap();
    assert_eq!(seen, Seen::Duplicate { result: None });
}

#[tokio::test(start_paused = true)]
async fn any_error_is_tried_again_and_a_rejection_is_not() {
    async fn parse(tx: &mut MemoryTx, order: Order, _: &Message) -> Result<(), HandlerError> {
        tx.add("parsed", "x".parse::<i64>()?);
        charge_nothing(order)
    }
    fn charge_nothing(_: Order) -> Result<(), HandlerError> {
        Ok(())
    }
    async fn reject(_: &mut MemoryTx, _: Order, _: &Message) -> Result<(), HandlerError> {
        Err(HandlerError::reject("never"))
    }
    for (builder, attempts) in [
        (World::builder as fn(&World) -> _, 5),
        (|world: &World| world.builder().on("OrderPlaced", reject), 1),
    ] {
        let world = World::new();
        world.place("a", 5).await;
        let mut builder = builder(&world);
        if attempts == 5 {
            builder = builder.on("OrderPlaced", parse);
        }
        let report = world.drain(builder).await;
        assert_eq!((report.failed, report.dead), (attempts, 1));
    }
}

#[tokio::test(start_paused = true)]
async fn what_a_handler_produces_commits_with_its_effect_and_says_why() {
    async fn pay(
        database: &MemoryDatabase,
        tx: &mut MemoryTx,
        order: Order,
        message: &Message,
    ) -> Result<(), HandlerError> {
        let paid = Event::new("payment", &message.event.aggregate_id, "PaymentTaken");
        OutboxWriter::append(database, tx, &[paid]).await?;
        charge(tx, order, message).await
    }
    let world = World::new();
    let trace = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
    let placed = world.event("a", 5).with_header("traceparent", trace);
    let id = world.publish(placed.with_header("correlation_id", "visit 7")).await;
    world.place("b", 13).await;
    let builder = world.builder().on_with("OrderPlaced", world.database.clone(), pay);
    world.drain(builder).await;
    let events = world.database.events();
    assert_eq!(events.len(), 1, "not that of the order that failed");
    let header = |name| events[0].headers.get(name).unwrap_or_default().to_owned();
    assert_eq!(header(Headers::CAUSATION_ID), id.to_string());
    assert_eq!(header(Headers::CORRELATION_ID), "visit 7");
    assert_eq!(header(Headers::TRACEPARENT), trace);
}

#[tokio::test(start_paused = true)]
async fn poison_waits_for_its_retries_and_other_lanes_do_not() {
    let world = World::new();
    for (lane, cents) in [("a", 13), ("a", 1), ("b", 1), ("c", 1)] {
        world.place(lane, cents).await;
    }
    let consumer = world.builder().build();
    let subscription = world.broker.subscribe("payments", &["orders"]);
    let (stopper, stop) = Stop::new();
    let running = tokio::spawn(consumer.run(subscription, stop));
    // Within the first wait of the schedule.
    tokio::time::sleep(Duration::from_millis(500)).await;
    assert_eq!(world.effects(["a:13", "a:1", "b:1", "c:1"]), [0, 0, 1, 1]);
    world.repair().await;
    tokio::time::sleep(Duration::from_secs(2)).await;
    assert_eq!(world.effects(["a:13", "a:1", "last of a"]), [1, 1, 1]);
    stopper.stop();
    assert_eq!(running.await.unwrap().unwrap().abandoned, 0);
}

#[tokio::test(start_paused = true)]
async fn a_stop_lets_handlers_finish_and_acknowledges_what_they_did() {
    let world = World::new();
    for number in 0..10 {
        world.place("a", number).await;
    }
    let slow = handler_fn(|tx: &mut MemoryTx, _: &Message| {
        tx.add("done", 1);
        Box::pin(async {
            tokio::time::sleep(Duration::from_millis(300)).await;
            Ok(Default::default())
        })
    });
    let settings = Settings { batch_events: 4, ..Settings::default() };
    let consumer = world.builder().settings(settings.clone()).build_with(slow);
    let subscription = world.broker.subscribe("payments", &["orders"]);
    let (stopper, stop) = Stop::new();
    let running = tokio::spawn(consumer.run(subscription, stop));
    tokio::time::sleep(Duration::from_millis(100)).await;
    stopper.stop();
    let report = running.await.unwrap().unwrap();
    assert_eq!((report.published, world.database.get("done")), (4, 4));
    world.drain(world.builder().settings(settings)).await;
    assert_eq!(world.database.get("last of a"), 9, "the rest comes again");
    assert_eq!(world.database.get("a:3"), 0, "what was acknowledged does not");
}

#[tokio::test(start_paused = true)]
async fn a_slow_batch_is_several_transactions_and_no_failure() {
    let world = World::new();
    for number in 0..100 {
        world.place("a", number).await;
    }
    let slow = handler_fn(|tx: &mut MemoryTx, _: &Message| {
        tx.add("done", 1);
        Box::pin(async {
            tokio::time::sleep(Duration::from_millis(600)).await;
            Ok(Default::default())
        })
    });
    let consumer = world.builder().build_with(slow);
    let subscription = world.broker.subscribe("payments", &["orders"]);
    let draining = tokio::spawn(consumer.drain(subscription, Stop::never()));
    tokio::time::sleep(Duration::from_secs(3)).await;
    assert_eq!(world.database.get("done"), 4, "four in a transaction");
    let report = draining.await.unwrap().unwrap();
    assert_eq!((report.published, report.failed, world.database.get("done")), (100, 0, 100));
}

#[tokio::test(start_paused = true)]
async fn of_sixty_four_copies_in_sixty_four_consumers_one_takes_effect() {
    let world = World::new();
    let message = Message::first("orders", world.event("a", 5));
    let copies = (0..64).map(|_| {
        let consumer: Consumer<_, _> = world.builder().build();
        let message = message.clone();
        tokio::spawn(async move { consumer.publish(&[message]).await })
    });
    for copy in copies.collect::<Vec<_>>() {
        assert!(copy.await.unwrap().all_confirmed());
    }
    assert_eq!(world.database.get("a:5"), 1);
}

#[tokio::test(start_paused = true)]
async fn a_failure_of_the_handlers_own_keeps_its_fault() {
    async fn down(_: &mut MemoryTx, _: Order, _: &Message) -> Result<(), HandlerError> {
        Err(Failure::unavailable("E-BANK-DOWN", "the bank does not answer"))?
    }
    let world = World::new();
    world.place("a", 5).await;
    let consumer = world.builder().on("OrderPlaced", down).build();
    let subscription = world.broker.subscribe("payments", &["orders"]);
    let (stopper, stop) = Stop::new();
    let running = tokio::spawn(consumer.run(subscription, stop));
    tokio::time::sleep(super::LONG).await;
    stopper.stop();
    let report = running.await.unwrap().unwrap();
    assert_eq!((report.published, report.dead), (0, 0), "an outage spends no attempt");
}
