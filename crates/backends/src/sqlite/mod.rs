//! SQLite: outbox, relay source, inbox, idempotency keys and administration in one file.
//!
//! SQLite lets one transaction write at a time, so the order of the rows is the order of the
//! commits, and a plain cursor never passes a row that commits late. The outbox is insert-only:
//! publishing moves one cursor row per batch and changes nothing else. Only what failed, waits
//! behind something that failed, or is scheduled gets a row of its own, in `semel_parked`.
//!
//! SQLite has no server and so no clock of its own: the "store's clock" of the contracts is the
//! clock of the machine, which all processes that share the file share as well.
//!
//! ```
//! use semel_backends::sqlite::SqliteConfig;
//! use semel_core::{Event, Limit, Source};
//!
//! # tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(async {
//! # let folder = tempfile::tempdir()?;
//! # let url = format!("sqlite://{}/shop.db", folder.path().display());
//! let store = SqliteConfig::new(&url)?.connect().await?;
//! store.migrate().await?;
//!
//! let outbox = store.outbox();
//! let mut tx = store.begin().await?;
//! sqlx::query("CREATE TABLE orders (id TEXT)").execute(&mut *tx).await?;
//! sqlx::query("INSERT INTO orders VALUES ('42')").execute(&mut *tx).await?;
//! outbox.append(&mut tx, Event::new("order", "42", "OrderPlaced")).await?;
//! tx.commit().await?;
//!
//! let mut source = store.source("orders").await?;
//! assert_eq!(source.next_batch(Limit::default()).await?.deliveries.len(), 1);
//! # Ok::<(), Box<dyn std::error::Error>>(()) }).unwrap();
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
mod mapped;
mod marks;
mod outages;
mod outbox;
mod parking;
mod poll;
mod round;
mod row;
mod schema;
mod settle;
mod statement;
mod store;
mod view;

pub use admin::SqliteAdmin;
pub use config::{Durability, SqliteConfig};
pub use coordination::SqliteMember;
pub use grants::grants_sql;
pub use inbox::SqliteInbox;
pub use keys::SqliteKeys;
pub use letters::SqliteLetters;
pub use marks::SqliteMarks;
pub use outbox::SqliteOutbox;
pub use poll::SqliteSource;
pub use schema::{SchemaStatus, drop_sql, migrate, schema_sql, status};
pub use statement::append_statement;
pub use store::SqliteStore;

pub use sqlx::{Sqlite, SqlitePool, Transaction};
