//! PostgreSQL: outbox, relay source, inbox, idempotency keys and administration in one schema.
//!
//! The outbox is an append-only log: publishing moves one cursor row per batch and changes nothing
//! else. Which rows are new is the difference of two snapshots, never a comparison of numbers or
//! times, so that nothing is lost when transactions commit in another order than they began.
//! Only what failed, waits behind something that failed, or is scheduled gets a row of its own, in
//! `semel.parked`. PostgreSQL 13 or later.
//!
//! ```no_run
//! use semel_backends::postgres::PostgresConfig;
//! use semel_core::{Event, Limit, Source};
//!
//! # async fn run() -> Result<(), Box<dyn std::error::Error>> {
//! let store = PostgresConfig::new("postgres://localhost/shop")?.connect().await?;
//! store.migrate().await?;
//!
//! let mut tx = store.begin().await?;
//! sqlx::query("insert into orders (id) values (42)").execute(&mut *tx).await?;
//! store.outbox().append(&mut tx, Event::new("order", "42", "OrderPlaced")).await?;
//! tx.commit().await?;
//!
//! let mut source = store.source("orders").await?;
//! assert_eq!(source.next_batch(Limit::default()).await?.deliveries.len(), 1);
//! # Ok(()) }
//! ```

mod admin;
mod applied;
mod check;
mod clean;
mod config;
mod coordination;
mod cursor;
mod error;
mod grants;
mod inbox;
mod inbox_partitions;
mod insight;
mod key_admin;
mod keys;
mod latest;
mod letters;
mod log;
mod mapped;
mod marks;
mod messages;
mod notify;
mod outages;
mod outbox;
mod parking;
mod partitions;
mod poll;
mod pooler;
mod rebase;
mod recording;
mod round;
mod row;
mod schema;
mod shares;
mod statement;
mod store;
mod tail;
mod types;
mod window;

pub use admin::PostgresAdmin;
pub use config::PostgresConfig;
pub use coordination::PostgresMember;
pub use grants::grants_sql;
pub use inbox::PostgresInbox;
pub use inbox_partitions::inbox_partition_sql;
pub use keys::PostgresKeys;
pub use letters::PostgresLetters;
pub use marks::PostgresMarks;
pub use messages::{Carrying, messages_sql};
pub use notify::Listening;
pub use outbox::PostgresOutbox;
pub use partitions::partition_sql;
pub use poll::PostgresSource;
pub use schema::{SchemaStatus, drop_sql, migrate, schema_sql, status};
pub use statement::append_statement;
pub use store::PostgresStore;
pub use tail::{Tailing, publication_sql};

pub use sqlx::{PgPool, Postgres, Transaction};
