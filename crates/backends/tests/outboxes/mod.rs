//! What PostgreSQL and MySQL, and some of it SQLite, must do alike beyond the contracts: one scenario for
//! all, and what their tests need for it.

pub(crate) mod dividing;
pub(crate) mod order;
pub(crate) mod progress;
pub(crate) mod shares;
pub(crate) mod tailing;

use semel_core::coordination::{Coordinator, Share};
use semel_core::{
    AdminStore, Delivery, Event, Failure, Insight, Limit, Outcome, Settlement, Source, Timestamp,
};
use sqlx::Transaction;
use tokio::task::JoinHandle;

/// A database of the test's own, whose pipeline is `orders`.
pub(crate) trait Outbox: Sized {
    type Driver: sqlx::Database;
    type Source: Source;
    type Admin: AdminStore;

    /// With the tables of semel; none when there is no server.
    async fn fresh() -> Option<Self>;

    async fn begin(&self) -> Transaction<'static, Self::Driver>;

    async fn append(&self, tx: &mut Transaction<'static, Self::Driver>, events: &[Event]);

    /// Writes events in one transaction.
    async fn commit(&self, events: &[Event]);

    /// Opens the source of one share, in a task of its own.
    fn open(&self, share: Share) -> JoinHandle<Result<Self::Source, Failure>>;

    async fn relay(&self) -> Relay<Self::Source>;

    /// The owner of one share of the same pipeline.
    async fn share(&self, number: u32, of: u32) -> Relay<Self::Source>;

    /// The owners of all shares.
    async fn all_shares(&self, of: u32) -> Vec<Relay<Self::Source>>;

    fn admin(&self) -> Self::Admin;

    /// The share that a lane of orders belongs to.
    async fn share_of(&self, lane: &str, of: u32) -> u32;

    /// One number that a query gives.
    async fn number(&self, sql: &str) -> i64;
}

/// Makes the `Database` beside it an [`Outbox`]. Its own tests call the same without the trait.
macro_rules! outbox {
    ($driver:ty, $source:ty, $admin:ty) => {
        impl Database {
            pub(crate) async fn begin(&self) -> sqlx::Transaction<'static, $driver> {
                self.store.begin().await.unwrap()
            }

            /// Writes events in one transaction.
            pub(crate) async fn commit(&self, events: &[semel_core::Event]) {
                let mut tx = self.begin().await;
                self.append(&mut tx, events).await;
                tx.commit().await.unwrap();
            }

            pub(crate) async fn append(
                &self,
                tx: &mut sqlx::Transaction<'_, $driver>,
                events: &[semel_core::Event],
            ) {
                self.store.outbox().append_all(tx, events).await.unwrap();
            }

            pub(crate) async fn relay(&self) -> Relay {
                Relay { source: self.store.source("orders").await.unwrap() }
            }

            /// The owner of one share of the same pipeline.
            pub(crate) async fn share(&self, number: u32, of: u32) -> Relay {
                let share = semel_core::coordination::Share::new(number, of).unwrap();
                Relay { source: self.store.source_share("orders", share).await.unwrap() }
            }

            /// The owners of all shares.
            pub(crate) async fn all_shares(&self, of: u32) -> Vec<Relay> {
                let mut relays = Vec::new();
                for number in 0..of {
                    relays.push(self.share(number, of).await);
                }
                relays
            }

            pub(crate) async fn run(&self, sql: &str) {
                sqlx::raw_sql(sqlx::AssertSqlSafe(sql)).execute(self.pool()).await.unwrap();
            }

            /// One number that a query gives.
            pub(crate) async fn number(&self, sql: &str) -> i64 {
                sqlx::query_scalar(sqlx::AssertSqlSafe(sql)).fetch_one(self.pool()).await.unwrap()
            }
        }

        impl $crate::outboxes::Outbox for Database {
            type Driver = $driver;
            type Source = $source;
            type Admin = $admin;

            async fn fresh() -> Option<Self> {
                Database::new().await
            }

            async fn begin(&self) -> sqlx::Transaction<'static, $driver> {
                Database::begin(self).await
            }

            async fn append(
                &self,
                tx: &mut sqlx::Transaction<'static, $driver>,
                events: &[semel_core::Event],
            ) {
                Database::append(self, tx, events).await;
            }

            async fn commit(&self, events: &[semel_core::Event]) {
                Database::commit(self, events).await;
            }

            fn open(
                &self,
                share: semel_core::coordination::Share,
            ) -> tokio::task::JoinHandle<Result<$source, semel_core::Failure>> {
                let store = self.store.clone();
                tokio::spawn(async move { store.source_share("orders", share).await })
            }

            async fn relay(&self) -> Relay {
                Database::relay(self).await
            }

            async fn share(&self, number: u32, of: u32) -> Relay {
                Database::share(self, number, of).await
            }

            async fn all_shares(&self, of: u32) -> Vec<Relay> {
                Database::all_shares(self, of).await
            }

            fn admin(&self) -> $admin {
                self.store.admin("orders")
            }

            async fn share_of(&self, lane: &str, of: u32) -> u32 {
                let share = Database::number(self, &Database::share_of_lane(lane, of)).await;
                u32::try_from(share).unwrap()
            }

            async fn number(&self, sql: &str) -> i64 {
                Database::number(self, sql).await
            }
        }
    };
}
pub(crate) use outbox;

/// One test for each scenario of a module, on the `Database` that the caller knows by this name.
macro_rules! stamp {
    ($module:ident: $($scenario:ident)*) => {
        $(
            #[tokio::test]
            async fn $scenario() {
                let Some(database) = Database::new().await else { return };
                $crate::outboxes::$module::$scenario(&database).await;
            }
        )*
    };
}
pub(crate) use stamp;

/// A source whose sink confirms everything.
pub(crate) struct Relay<S> {
    pub(crate) source: S,
}

impl<S: Source> Relay<S> {
    /// Delivers all there is, in batches of `events`.
    pub(crate) async fn deliver_all(&mut self, events: usize) -> Vec<Delivery> {
        let mut delivered = Vec::new();
        loop {
            let batch = self.take(events).await;
            if batch.is_empty() {
                return delivered;
            }
            self.settle(&batch, |_| Outcome::Delivered).await;
            delivered.extend(batch);
        }
    }

    /// The same, as the aggregate ids.
    pub(crate) async fn lanes(&mut self) -> Vec<String> {
        let delivered = self.deliver_all(100).await;
        delivered.iter().map(|got| got.message.event.aggregate_id.clone()).collect()
    }

    pub(crate) async fn take(&mut self, events: usize) -> Vec<Delivery> {
        let limit = Limit { events, ..Limit::default() };
        self.source.next_batch(limit).await.unwrap().deliveries
    }

    pub(crate) async fn settle(&mut self, batch: &[Delivery], outcome: impl Fn(&Event) -> Outcome) {
        let settle = |got: &Delivery| Settlement {
            receipt: got.receipt,
            outcome: outcome(&got.message.event),
        };
        let settlements: Vec<_> = batch.iter().map(settle).collect();
        assert!(self.source.settle(&settlements).await.unwrap().is_held());
    }
}

pub(crate) async fn deliver_all<S: Source>(relays: &mut [Relay<S>]) -> Vec<Delivery> {
    let mut delivered = Vec::new();
    for relay in relays {
        delivered.extend(relay.deliver_all(50).await);
    }
    delivered
}

fn settlement(delivery: &Delivery, outcome: Outcome) -> [Settlement; 1] {
    [Settlement { receipt: delivery.receipt, outcome }]
}

/// How far a pipeline of three published events is, and who works on it.
pub(crate) async fn what_is_known_of_the_work_is_told(
    store: &dyn Insight,
    mut member: impl Coordinator,
) {
    let workings = store.workings("orders").await.unwrap();
    assert_eq!((workings.written, workings.settled), (Some(3), Some(3)));
    assert!(workings.moved_at.is_some());
    member.beat(true).await.unwrap();
    member.claim(&[1]).await.unwrap();
    let relays = store.workings("orders").await.unwrap().relays;
    assert_eq!((relays.len(), &relays[0].shares[..], relays[0].of), (1, &[1][..], 2));
}

/// Of two members, `killed` has been silent for two hours and `late` for two minutes; there is a third one
/// of another pipeline.
pub(crate) async fn members_that_have_been_silent_for_long_are_forgotten(
    mut member: impl Coordinator,
    count: impl AsyncFn(&str) -> i64,
) {
    member.beat(false).await.unwrap();
    assert_eq!(count("1 = 1").await, 3, "whoever only looks forgets nobody");
    member.beat(true).await.unwrap();
    assert_eq!(count("pipeline = 'orders' and member = 'killed'").await, 0);
    assert_eq!(count("1 = 1").await, 3, "the others are there, and this one");
}

/// What becomes of `'order', '42', 'OrderPlaced', '{"total": 99}'`.
pub(crate) fn four_columns_are_enough(event: &Event, before: Timestamp) {
    assert_eq!(event.lane().to_string(), "order/42");
    assert_eq!(event.event_type, "OrderPlaced");
    assert_eq!(event.payload.bytes().as_ref(), br#"{"total": 99}"#);
    assert!(event.payload.is_json() && event.headers.is_empty());
    assert_eq!(event.idempotency_key(), event.id.to_string());
    let made = event.id.timestamp().expect("a UUID of version 7");
    for time in [made, event.created_at] {
        let age = time.duration_since(before).as_secs_f64();
        assert!((-1.0..60.0).contains(&age), "{time} is now");
    }
}

/// The URL of another database of the same server.
pub(crate) fn url_of(server: &str, database: &str) -> String {
    let (address, query) = server.split_once('?').map_or((server, None), |(a, q)| (a, Some(q)));
    let base = address.rfind('/').filter(|slash| !address[..*slash].ends_with('/'));
    let base = base.map_or(address, |slash| &address[..slash]);
    match query {
        Some(query) => format!("{base}/{database}?{query}"),
        None => format!("{base}/{database}"),
    }
}
