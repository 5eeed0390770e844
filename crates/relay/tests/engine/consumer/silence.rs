//! A database that stops answering, without a word.

use std::future::pending;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use bytes::Bytes;
use semel_core::inbox::{Opening, Seen};
use semel_core::letters::LetterBook;
use semel_core::memory::{MemoryDatabase, MemoryTx};
use semel_core::{EventId, Failure, HandlerError, InboxStore, Message};
use semel_relay::{Consumer, Settings, Stop};
use tokio::time::Instant;

use super::{Order, World};

/// How long the database may take: `publish_timeout` unless set.
const LIMIT: Duration = Duration::from_secs(30);

#[tokio::test(start_paused = true)]
async fn a_silent_database_is_an_outage_and_soon_over() {
    for at in [At::Begin, At::Record, At::Result, At::Commit, At::AfterCommit] {
        let world = World::new();
        for lane in 0..20 {
            world.place(&format!("lane {lane}"), 5).await;
        }
        let took = drain(&world, at, 1).await;
        for lane in 0..20 {
            assert_eq!(world.database.get(&format!("lane {lane}:5")), 1, "{at:?}");
        }
        assert!(took < 2 * LIMIT, "{at:?}: {took:?}");
    }
}

/// A call that hangs, the messages one by one, and the probes after that.
#[tokio::test(start_paused = true)]
async fn a_database_that_stays_silent_is_asked_again_in_time() {
    for at in [At::Begin, At::Record, At::Commit, At::AfterCommit] {
        let world = World::new();
        for lane in 0..20 {
            world.place(&format!("lane {lane}"), 5).await;
        }
        let took = drain(&world, at, 4).await;
        for lane in 0..20 {
            assert_eq!(world.database.get(&format!("lane {lane}:5")), 1, "{at:?}");
        }
        assert!(took < 6 * LIMIT, "{at:?}: {took:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_message_that_cannot_be_buried_now_is_buried_later() {
    let world = World::new();
    world.place("a", 13).await;
    // The handler fails before anything else than the burial is committed.
    let took = drain(&world, At::Commit, 1).await;
    assert!(took > LIMIT && took < 2 * LIMIT, "{took:?}");
    let letters = LetterBook::page(&world.database, "payments", 0, 10).await.unwrap();
    assert_eq!(letters.len(), 1);
    assert!(world.broker.dead_letters("payments").is_empty(), "not with the broker");
}

/// How long it takes until all is done, with a database that is silent so many times.
async fn drain(world: &World, at: At, times: u32) -> Duration {
    async fn charge(
        tx: &mut MemoryTx,
        order: Order,
        message: &Message,
    ) -> Result<i64, HandlerError> {
        if order.cents == 13 {
            return Err(HandlerError::reject("unlucky"));
        }
        tx.add(format!("{}:{}", message.event.aggregate_id, order.cents), 1);
        Ok(order.cents)
    }
    let silent = Silent { inner: world.database.clone(), at, left: Arc::new(times.into()) };
    let consumer = Consumer::builder("payments", silent)
        .on("OrderPlaced", charge)
        .dead_letters(world.database.clone())
        .settings(Settings { concurrency: Some(1), ..Settings::default() })
        .clock(Arc::clone(&world.clock) as _)
        .build();
    let start = Instant::now();
    let subscription = world.broker.subscribe("payments", &["orders"]);
    consumer.drain(subscription, Stop::never()).await.unwrap();
    start.elapsed()
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum At {
    Begin,
    Record,
    Result,
    Commit,
    /// The commit is done, and nobody hears of it.
    AfterCommit,
}

struct Silent {
    inner: MemoryDatabase,
    at: At,
    left: Arc<AtomicU32>,
}

impl Silent {
    async fn may_hang(&self, at: At) {
        let one_less = |left: u32| left.checked_sub(1);
        if self.at == at
            && self.left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, one_less).is_ok()
        {
            pending::<()>().await;
        }
    }
}

impl InboxStore for Silent {
    type Tx<'c> = MemoryTx;

    async fn begin(&self) -> Result<MemoryTx, Failure> {
        self.may_hang(At::Begin).await;
        InboxStore::begin(&self.inner).await
    }

    async fn begin_with(&self, _: &str, _: Opening<'_>) -> Result<(MemoryTx, bool), Failure> {
        Ok((InboxStore::begin(self).await?, false))
    }

    async fn record(
        &self,
        tx: &mut Self::Tx<'_>,
        name: &str,
        id: EventId,
    ) -> Result<Seen, Failure> {
        self.may_hang(At::Record).await;
        self.inner.record(tx, name, id).await
    }

    async fn store_result(
        &self,
        tx: &mut Self::Tx<'_>,
        consumer: &str,
        id: EventId,
        result: Bytes,
    ) -> Result<(), Failure> {
        self.may_hang(At::Result).await;
        self.inner.store_result(tx, consumer, id, result).await
    }

    async fn commit(&self, tx: MemoryTx) -> Result<(), Failure> {
        self.may_hang(At::Commit).await;
        tx.commit();
        self.may_hang(At::AfterCommit).await;
        Ok(())
    }

    async fn rollback(&self, tx: MemoryTx) {
        drop(tx);
    }

    async fn forget(&self, age: Duration, limit: usize) -> Result<usize, Failure> {
        self.inner.forget(age, limit).await
    }
}
