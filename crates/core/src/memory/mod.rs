//! Every contract in memory: the reference the test suites are written against, the edges of the
//! demo, and what users test their own services with.
//!
//! | contract | type |
//! |---|---|
//! | [`OutboxWriter`](crate::OutboxWriter), [`InboxStore`](crate::InboxStore), [`DeadLetters`](crate::DeadLetters), [`Marks`](crate::Marks), [`AdminStore`](crate::AdminStore), [`Insight`](crate::Insight) | [`MemoryDatabase`] with [`MemoryTx`] |
//! | [`Source`](crate::Source) | [`MemoryOutbox`] (from a database), [`MemorySubscription`] (from a broker) |
//! | [`Sink`](crate::Sink) | [`MemoryBroker`] |
//! | [`IdempotencyStore`](crate::IdempotencyStore) | [`MemoryKeys`] |
//! | [`Coordinator`](crate::coordination::Coordinator) | [`MemoryMember`] of a [`MemoryGroup`] |
//! | [`Clock`](crate::Clock) | [`ManualClock`] |
//!
//! "Durable" here means: it survives the engine, not the process.

mod admin;
mod broker;
mod changes;
mod clock;
mod database;
mod group;
mod inbox;
mod insight;
mod keys;
mod letters;
mod marks;
mod outbox;
mod poll;
mod scatter;
mod subscription;

pub use broker::MemoryBroker;
pub use clock::ManualClock;
pub use database::{MemoryDatabase, MemoryTx};
pub use group::{MemoryGroup, MemoryMember};
pub use keys::MemoryKeys;
pub use poll::MemoryOutbox;
pub use subscription::MemorySubscription;

use std::sync::{Mutex, MutexGuard, PoisonError};

/// Locks a mutex whose data is never left half-changed, so that a panic elsewhere does not matter.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
