//! The order service: every order and its event are committed in one transaction.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use semel_backends::sqlite::{Sqlite, SqliteOutbox, SqliteStore, Transaction};
use semel_core::{Event, Failure};
use serde::{Deserialize, Serialize};
use tokio::sync::watch;
use tokio::time::interval;

use super::databases::{Databases, sql_failure};
use super::faults::{Mishap, Mishaps};

/// The name of its database.
pub(super) const NAME: &str = "orders";

/// Its tables. Order numbers come from the customers, so an order that was rolled back leaves a gap.
pub(super) const SCHEMA: &str = "CREATE TABLE orders (
    id        INTEGER PRIMARY KEY,
    product   TEXT NOT NULL,
    units     INTEGER NOT NULL,
    cents     INTEGER NOT NULL,
    cancelled INTEGER NOT NULL DEFAULT 0
) STRICT";

/// The aggregate type of its events.
pub(super) const AGGREGATE: &str = "order";
/// An order was placed: charge, reserve, confirm.
pub(super) const PLACED: &str = "OrderPlaced";
/// It was cancelled later: refund, put back, tell.
pub(super) const CANCELLED: &str = "OrderCancelled";

/// What there is to buy, and for how many cents.
const PRODUCTS: [(&str, i64); 4] =
    [("book", 1_990), ("lamp", 4_500), ("chair", 12_900), ("table", 39_900)];

/// What a customer orders, and what the events tell.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub(super) struct Order {
    pub(super) id: i64,
    pub(super) product: String,
    pub(super) units: i64,
    pub(super) cents: i64,
}

/// The customers: they outlive every crash of the service.
#[derive(Debug)]
pub(super) struct Customers {
    seed: u64,
    next: AtomicU64,
    /// How many orders they place quickly, and whether they go on after that.
    orders: u64,
    endless: bool,
    closing: watch::Receiver<bool>,
}

impl Customers {
    pub(super) fn new(
        seed: u64,
        orders: u64,
        endless: bool,
        closing: watch::Receiver<bool>,
    ) -> Self {
        Self { seed, next: AtomicU64::new(1), orders, endless, closing }
    }

    /// The next order, and how many orders back one is regretted, if any.
    fn next(&self) -> (Order, Option<i64>) {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        let mut random = StdRng::seed_from_u64(self.seed ^ number.rotate_left(32));
        let (product, price) = PRODUCTS[random.random_range(0..PRODUCTS.len())];
        let units = random.random_range(1..=3);
        let id = i64::try_from(number).unwrap_or(i64::MAX);
        let order = Order { id, product: product.into(), units, cents: units * price };
        let regretted = random.random_bool(0.2).then(|| random.random_range(0..20));
        (order, regretted)
    }

    /// Whether another order will come after so many.
    fn want_more(&self, placed: u64) -> bool {
        !*self.closing.borrow() && (placed < self.orders || self.endless)
    }

    /// The time between two orders: slow enough to watch.
    fn pace(&self, placed: u64) -> Duration {
        const ALL: Duration = Duration::from_secs(4);
        const LONGEST: Duration = Duration::from_millis(5);
        const AFTERWARDS: Duration = Duration::from_millis(50);
        let orders = u32::try_from(self.orders).unwrap_or(u32::MAX);
        if placed < self.orders { (ALL / orders.max(1)).min(LONGEST) } else { AFTERWARDS }
    }
}

/// One life of the service: it goes on where its database says the last one stopped.
pub(super) async fn live(
    databases: &Databases,
    customers: &Customers,
    mishaps: &Arc<Mishaps>,
) -> Result<(), Failure> {
    let store = databases.open(NAME).await?;
    let service = Service { outbox: store.outbox(), store, mishaps: Arc::clone(mishaps) };
    let mut placed = service.count().await?;
    while customers.want_more(placed) {
        let pace = customers.pace(placed);
        let mut clock = interval(pace.max(Duration::from_micros(1)));
        while customers.want_more(placed) && customers.pace(placed) == pace {
            clock.tick().await;
            let (order, regretted) = customers.next();
            service.place(&order).await?;
            placed += 1;
            if let Some(back) = regretted {
                service.cancel(order.id - back).await?;
            }
        }
    }
    Ok(())
}

/// The service while it lives.
struct Service {
    store: SqliteStore,
    outbox: SqliteOutbox,
    mishaps: Arc<Mishaps>,
}

impl Service {
    async fn count(&self) -> Result<u64, Failure> {
        let count: i64 = sqlx::query_scalar("SELECT count(*) FROM orders")
            .fetch_one(self.store.pool())
            .await
            .map_err(sql_failure)?;
        Ok(u64::try_from(count).unwrap_or(0))
    }

    /// The order and its event in one transaction: both or neither.
    async fn place(&self, order: &Order) -> Result<(), Failure> {
        let mishap = self.mishaps.strike(1);
        let mut tx = self.store.begin().await?;
        sqlx::query("INSERT INTO orders (id, product, units, cents) VALUES (?, ?, ?, ?)")
            .bind(order.id)
            .bind(&order.product)
            .bind(order.units)
            .bind(order.cents)
            .execute(&mut *tx)
            .await
            .map_err(sql_failure)?;
        if let Some(Mishap::KilledDuring(_)) = mishap {
            self.mishaps.kill("between an order and its event").await;
        }
        self.append(&mut tx, order, PLACED).await?;
        if let Some(Mishap::KilledBefore) = mishap {
            self.mishaps.kill("before its commit").await;
        }
        tx.commit().await.map_err(sql_failure)?;
        if let Some(Mishap::KilledAfter) = mishap {
            self.mishaps.kill("right after its commit").await;
        }
        Ok(())
    }

    /// A second event of the same order: it must never overtake the first.
    async fn cancel(&self, id: i64) -> Result<(), Failure> {
        let mut tx = self.store.begin().await?;
        let row: Option<(String, i64, i64)> = sqlx::query_as(
            "UPDATE orders SET cancelled = 1 WHERE id = ? AND cancelled = 0 \
             RETURNING product, units, cents",
        )
        .bind(id)
        .fetch_optional(&mut *tx)
        .await
        .map_err(sql_failure)?;
        if let Some((product, units, cents)) = row {
            self.append(&mut tx, &Order { id, product, units, cents }, CANCELLED).await?;
        }
        tx.commit().await.map_err(sql_failure)
    }

    async fn append(
        &self,
        tx: &mut Transaction<'_, Sqlite>,
        order: &Order,
        event_type: &str,
    ) -> Result<(), Failure> {
        let event = Event::new(AGGREGATE, order.id.to_string(), event_type)
            .with_json(order)
            .map_err(|error| Failure::refused("E-DEMO-JSON", "an order").with_source(error))?;
        self.outbox.append(tx, event).await.map_err(|error| {
            Failure::transient("E-DEMO-APPEND", "cannot append to the outbox").with_source(error)
        })
    }
}
