//! SQLite: the shared suites, and what is particular to it.

mod check;
mod parked;
mod pipelines;
mod plain_sql;
mod set_up;
mod suites;
mod unreadable;

use std::path::PathBuf;
use std::sync::Arc;

use semel_backends::sqlite::{Durability, SqliteConfig, SqliteStore};
use semel_core::memory::ManualClock;
use tempfile::TempDir;

/// A database file of its own, on a clock that stands still.
pub(crate) struct Database {
    pub(crate) store: SqliteStore,
    pub(crate) clock: Arc<ManualClock>,
    folder: TempDir,
}

impl Database {
    pub(crate) async fn new() -> Self {
        let database = Self::unmigrated().await;
        database.store.migrate().await.unwrap();
        database
    }

    pub(crate) async fn unmigrated() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let clock = Arc::new(ManualClock::default());
        let config = config(&folder).clock(Arc::clone(&clock) as _);
        Self { store: config.connect().await.unwrap(), clock, folder }
    }

    /// The same file again, as another process would open it.
    pub(crate) async fn again(&self) -> SqliteStore {
        let config = config(&self.folder).clock(Arc::clone(&self.clock) as _);
        config.connect().await.unwrap()
    }

    pub(crate) fn file(&self) -> PathBuf {
        self.folder.path().join("shop.db")
    }
}

fn config(folder: &TempDir) -> SqliteConfig {
    let url = format!("sqlite://{}", folder.path().join("shop.db").display());
    SqliteConfig::new(&url).unwrap().durability(Durability::ProcessCrash)
}
