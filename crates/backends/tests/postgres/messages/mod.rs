//! Events that are written as messages into the log.

mod carrying;
mod frozen;
mod keeping;
mod standby;
mod suites;
mod telling;

use semel_backends::postgres::{Carrying, Postgres, PostgresOutbox, Transaction};
use semel_core::Event;

use super::Database;

impl Database {
    /// With the slot that keeps messages; none when there is no server.
    async fn with_messages() -> Option<Self> {
        let database = Self::new().await?;
        database.store.prepare_messages().await.unwrap();
        Some(database)
    }

    fn messages(&self) -> PostgresOutbox {
        self.store.outbox().as_messages()
    }

    /// Writes messages in one transaction.
    async fn emit(&self, events: &[Event]) {
        let mut tx = self.begin().await;
        self.emit_in(&mut tx, events).await;
        tx.commit().await.unwrap();
    }

    async fn emit_in(&self, tx: &mut Transaction<'_, Postgres>, events: &[Event]) {
        self.messages().append_all(tx, events).await.unwrap();
    }

    async fn carrying(&self) -> Carrying {
        self.store.carry_messages("orders").await.unwrap()
    }

    /// Carries all there is, and stops.
    async fn carry_all(&self) {
        self.carrying().await.caught_up().await.unwrap();
    }
}

/// Returns from the test when there is no server.
macro_rules! messages {
    () => {
        match $crate::postgres::Database::with_messages().await {
            Some(database) => database,
            None => return,
        }
    };
}
use messages;
