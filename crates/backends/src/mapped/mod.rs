//! Tables of somebody else's shape: read by a column mapping, in any of the databases.
//!
//! semel's own outbox is an append-only log. Many teams have another table already: one with a
//! `published_at`, a flag or a status, or the one that Debezium reads. A [`Mapping`] says which of
//! its columns mean what, and the table is read as it is:
//!
//! - A row waits until it is marked, or deleted. Rows are found by their mark and not by a cursor, so
//!   that a transaction which commits late is never passed by.
//! - What is in flight is remembered by the relay, and what failed in two tables of semel's own:
//!   attempts, the next one, the error, dead letters. A lane waits behind its failed event, others
//!   go on.
//! - Marking a batch is one statement, in one transaction with the check that this relay is still
//!   the owner.
//!
#![cfg_attr(feature = "sqlite", doc = "```")]
#![cfg_attr(not(feature = "sqlite"), doc = "```ignore")]
//! use semel_backends::mapped::Mapping;
//! use semel_backends::sqlite::SqliteConfig;
//! use semel_core::{Limit, Outcome, Settlement, Source};
//!
//! # tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(async {
//! # let folder = tempfile::tempdir()?;
//! # let url = format!("sqlite://{}/shop.db", folder.path().display());
//! let store = SqliteConfig::new(&url)?.connect().await?;
//! store.migrate().await?;
//! let mut tx = store.begin().await?;
//! sqlx::raw_sql(
//!     "CREATE TABLE outbox (id INTEGER PRIMARY KEY, order_id TEXT, kind TEXT, body TEXT, sent_at TEXT);
//!      INSERT INTO outbox (order_id, kind, body) VALUES ('42', 'OrderPlaced', '{\"total\": 99}')",
//! )
//! .execute(&mut *tx)
//! .await?;
//! tx.commit().await?;
//!
//! let mapping = Mapping::new("outbox")
//!     .aggregate_type_is("order")
//!     .aggregate_id("order_id")
//!     .event_type("kind")
//!     .payload("body")
//!     .mark_time("sent_at");
//! let mut source = store.mapped_source("orders", &mapping).await?;
//! let batch = source.next_batch(Limit::default()).await?;
//! assert_eq!(batch.deliveries[0].message.event.lane().to_string(), "order/42");
//!
//! let receipt = batch.deliveries[0].receipt;
//! source.settle(&[Settlement { receipt, outcome: Outcome::Delivered }]).await?;
//! let waiting: i64 = sqlx::query_scalar("SELECT count(*) FROM outbox WHERE sent_at IS NULL")
//!     .fetch_one(store.pool())
//!     .await?;
//! assert_eq!(waiting, 0);
//! # Ok::<(), Box<dyn std::error::Error>>(()) }).unwrap();
//! ```

mod admin;
mod catalog;
mod check;
mod database;
mod dialect;
mod identity;
mod index;
mod mapping;
mod order;
mod pipeline;
mod round;
mod settle;
mod source;
mod statement;
mod table;
#[cfg(test)]
#[cfg(feature = "sqlite")]
mod tests;
mod unknown;
mod view;

pub use admin::MappedAdmin;
pub use mapping::Mapping;
pub use order::LaneOrder;
pub use source::MappedSource;

pub(crate) use check::check;
pub(crate) use database::{Airspace, Database, implement_mapped};
pub(crate) use dialect::Dialect;
pub(crate) use statement::{Answer, Kind, Param, Row, Statement, Value};
