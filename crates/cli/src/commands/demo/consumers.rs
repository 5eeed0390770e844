//! Payments, inventory and notifications: what each does for an event, in its own database.
//!
//! No effect is idempotent by itself: a second payment is a second payment. Only the inbox keeps a
//! message that is delivered twice from taking effect twice.

use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use semel_backends::sqlite::{Sqlite, SqliteInbox, Transaction};
use semel_core::inbox::{Seen, Tally};
use semel_core::{EventId, Failure, HandlerError, InboxStore, Message};
use semel_relay::Handler;

use super::databases::sql_failure;
use super::service::{CANCELLED, Order, PLACED};

/// A service that acts on orders.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Department {
    Payments,
    Inventory,
    Notifications,
}

/// Every delivery that was handled is written down in the transaction that handled it, so that
/// repeated ones can be counted.
macro_rules! schema {
    ($effects:literal) => {
        concat!(
            "CREATE TABLE deliveries (
                 id       INTEGER PRIMARY KEY,
                 event_id TEXT NOT NULL,
                 repeated INTEGER NOT NULL,
                 at       INTEGER NOT NULL DEFAULT (CAST(unixepoch('subsec') * 1000 AS INTEGER))
             ) STRICT;",
            $effects
        )
    };
}

impl Department {
    pub(super) const ALL: [Self; 3] = [Self::Payments, Self::Inventory, Self::Notifications];

    /// Its name as a consumer, and that of its database.
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Payments => "payments",
            Self::Inventory => "inventory",
            Self::Notifications => "notifications",
        }
    }

    /// The table that has one row per effect.
    pub(super) const fn effects(self) -> &'static str {
        match self {
            Self::Payments => "payments",
            Self::Inventory => "movements",
            Self::Notifications => "notifications",
        }
    }

    /// Its tables. None of them has a constraint that would refuse a second effect.
    pub(super) const fn schema(self) -> &'static str {
        match self {
            Self::Payments => schema!(
                "CREATE TABLE payments (
                     id         INTEGER PRIMARY KEY,
                     order_id   INTEGER NOT NULL,
                     event_type TEXT NOT NULL,
                     cents      INTEGER NOT NULL
                 ) STRICT"
            ),
            Self::Inventory => schema!(
                "CREATE TABLE stock (
                     product   TEXT PRIMARY KEY,
                     delivered INTEGER NOT NULL,
                     units     INTEGER NOT NULL
                 ) STRICT;
                 INSERT INTO stock VALUES
                     ('book', 90000, 90000), ('lamp', 90000, 90000),
                     ('chair', 90000, 90000), ('table', 90000, 90000);
                 CREATE TABLE movements (
                     id         INTEGER PRIMARY KEY,
                     order_id   INTEGER NOT NULL,
                     event_type TEXT NOT NULL
                 ) STRICT"
            ),
            Self::Notifications => schema!(
                "CREATE TABLE notifications (
                     id         INTEGER PRIMARY KEY,
                     order_id   INTEGER NOT NULL,
                     event_type TEXT NOT NULL,
                     text       TEXT NOT NULL
                 ) STRICT"
            ),
        }
    }

    async fn take_effect(
        self,
        tx: &mut Transaction<'static, Sqlite>,
        event_type: &str,
        order: &Order,
    ) -> Result<(), sqlx::Error> {
        match self {
            Self::Payments => pay(tx, event_type, order).await,
            Self::Inventory => move_stock(tx, event_type, order).await,
            Self::Notifications => notify(tx, event_type, order).await,
        }
    }
}

/// A payment, or a refund.
async fn pay(
    tx: &mut Transaction<'static, Sqlite>,
    event_type: &str,
    order: &Order,
) -> Result<(), sqlx::Error> {
    sqlx::query("INSERT INTO payments (order_id, event_type, cents) VALUES (?, ?, ?)")
        .bind(order.id)
        .bind(event_type)
        .bind(direction(event_type) * order.cents)
        .execute(&mut **tx)
        .await
        .map(drop)
}

/// Units leave the stock, or come back.
async fn move_stock(
    tx: &mut Transaction<'static, Sqlite>,
    event_type: &str,
    order: &Order,
) -> Result<(), sqlx::Error> {
    sqlx::query("UPDATE stock SET units = units - ? WHERE product = ?")
        .bind(direction(event_type) * order.units)
        .bind(&order.product)
        .execute(&mut **tx)
        .await?;
    sqlx::query("INSERT INTO movements (order_id, event_type) VALUES (?, ?)")
        .bind(order.id)
        .bind(event_type)
        .execute(&mut **tx)
        .await
        .map(drop)
}

/// A message to the customer.
async fn notify(
    tx: &mut Transaction<'static, Sqlite>,
    event_type: &str,
    order: &Order,
) -> Result<(), sqlx::Error> {
    let news = if event_type == PLACED { "is confirmed" } else { "is cancelled" };
    sqlx::query("INSERT INTO notifications (order_id, event_type, text) VALUES (?, ?, ?)")
        .bind(order.id)
        .bind(event_type)
        .bind(format!("Your order {} ({} x {}) {news}.", order.id, order.units, order.product))
        .execute(&mut **tx)
        .await
        .map(drop)
}

fn direction(event_type: &str) -> i64 {
    if event_type == CANCELLED { -1 } else { 1 }
}

#[async_trait]
impl Handler<Transaction<'static, Sqlite>> for Department {
    async fn handle(
        &self,
        tx: &mut Transaction<'static, Sqlite>,
        message: &Message,
    ) -> Result<Bytes, HandlerError> {
        let event = &message.event;
        let order: Order = serde_json::from_slice(event.payload.bytes()).map_err(|error| {
            Failure::refused("E-DEMO-JSON", "the event is not an order").with_source(error)
        })?;
        self.take_effect(tx, &event.event_type, &order).await.map_err(sql_failure)?;
        Ok(Bytes::new())
    }
}

/// An inbox that also writes down every delivery, first or repeated, in the same transaction.
#[derive(Clone, Debug)]
pub(super) struct WitnessedInbox(pub(super) SqliteInbox);

impl InboxStore for WitnessedInbox {
    type Tx<'c> = Transaction<'c, Sqlite>;

    async fn begin(&self) -> Result<Self::Tx<'static>, Failure> {
        self.0.begin().await
    }

    async fn record(
        &self,
        tx: &mut Self::Tx<'_>,
        consumer: &str,
        id: EventId,
    ) -> Result<Seen, Failure> {
        let seen = self.0.record(tx, consumer, id).await?;
        sqlx::query("INSERT INTO deliveries (event_id, repeated) VALUES (?, ?)")
            .bind(id.to_string())
            .bind(seen != Seen::First)
            .execute(&mut **tx)
            .await
            .map_err(sql_failure)?;
        Ok(seen)
    }

    async fn store_result(
        &self,
        tx: &mut Self::Tx<'_>,
        consumer: &str,
        id: EventId,
        result: Bytes,
    ) -> Result<(), Failure> {
        self.0.store_result(tx, consumer, id, result).await
    }

    async fn commit(&self, tx: Self::Tx<'static>) -> Result<(), Failure> {
        self.0.commit(tx).await
    }

    async fn rollback(&self, tx: Self::Tx<'static>) {
        self.0.rollback(tx).await;
    }

    async fn forget(&self, age: Duration, limit: usize) -> Result<usize, Failure> {
        self.0.forget(age, limit).await
    }

    async fn count(&self, consumer: &str, tally: Tally) -> Result<(), Failure> {
        self.0.count(consumer, tally).await
    }
}
