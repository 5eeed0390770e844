//! MySQL and MariaDB: outbox, relay source, inbox, idempotency keys and administration in one
//! database.
//!
//! InnoDB gives out auto-increment numbers before the commit and has no function that tells which
//! transactions are still open, so a cursor over those numbers loses whatever commits late. Here a
//! relay first *numbers* the rows that it finds committed: under one lock, in the order of their
//! auto-increment numbers, each row gets its position once and for all. Positions become visible
//! in their order, so that each pipeline reads them with a plain cursor and moves one row per
//! batch. Only what failed, waits behind something that failed, or is scheduled gets a row of its
//! own, in `semel_parked`. MariaDB 10.11 or MySQL 8.0.17, or later.
//!
//! ```no_run
//! use semel_backends::mysql::MysqlConfig;
//! use semel_core::{Event, Limit, Source};
//!
//! # async fn run() -> Result<(), Box<dyn std::error::Error>> {
//! let store = MysqlConfig::new("mysql://shop:secret@localhost/shop")?.connect().await?;
//! store.migrate().await?;
//!
//! let mut tx = store.begin().await?;
//! sqlx::query("INSERT INTO orders (id) VALUES (42)").execute(&mut *tx).await?;
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
mod error;
mod grants;
mod inbox;
mod insight;
mod key_admin;
mod keys;
mod letters;
mod many;
mod mapped;
mod marks;
mod outages;
mod outbox;
mod parking;
mod poll;
mod position;
mod round;
mod row;
mod schema;
mod settle;
mod shares;
mod statement;
mod store;
mod tail;
mod view;

pub use admin::MysqlAdmin;
pub use config::MysqlConfig;
pub use coordination::MysqlMember;
pub use grants::grants_sql;
pub use inbox::MysqlInbox;
pub use keys::MysqlKeys;
pub use letters::MysqlLetters;
pub use marks::MysqlMarks;
pub use outbox::MysqlOutbox;
pub use poll::MysqlSource;
pub use schema::{SchemaStatus, drop_sql, migrate, schema_sql, status};
pub use statement::append_statement;
pub use store::MysqlStore;
pub use tail::Tailing;

pub use sqlx::{MySql, MySqlPool, Transaction};
