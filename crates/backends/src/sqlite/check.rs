//! What `semel check` looks at in SQLite: `schema`, `journal`, `durability`.

use async_trait::async_trait;
use semel_core::Failure;
use semel_core::diagnosis::{Diagnose, Finding, Needs};

use super::error::failure;
use super::schema::{self, SchemaStatus};
use super::store::SqliteStore;

#[async_trait]
impl Diagnose for SqliteStore {
    async fn diagnose(&self, _: &Needs) -> Result<Vec<Finding>, Failure> {
        let failed = || failure("look at the settings");
        let SchemaStatus { present, latest, .. } = self.status().await?;
        let journal: String = sqlx::query_scalar("PRAGMA journal_mode")
            .fetch_one(&self.writer)
            .await
            .map_err(failed())?;
        let synchronous: i64 = sqlx::query_scalar("PRAGMA synchronous")
            .fetch_one(&self.writer)
            .await
            .map_err(failed())?;
        Ok(vec![
            Finding::schema(present, latest, schema::schema_sql),
            journal_mode(&journal),
            durability(synchronous),
        ])
    }
}

fn journal_mode(mode: &str) -> Finding {
    const CODE: &str = "journal";
    if mode == "wal" {
        return Finding::good(CODE, "journal_mode is wal: readers and the writer do not wait");
    }
    Finding::advice(CODE, format!("journal_mode is {mode}"))
        .means("a relay and the services that write wait for each other, and may time out")
        .fixed_by("the file must be on a local disk for this")
        .with_sql("PRAGMA journal_mode = WAL;")
}

/// From FULL on, a commit survives a power cut.
fn durability(synchronous: i64) -> Finding {
    const FULL: i64 = 2;
    const CODE: &str = "durability";
    if synchronous >= FULL {
        return Finding::good(CODE, "what is committed is on the disk");
    }
    Finding::advice(CODE, "synchronous is less than FULL")
        .means("a power cut can undo commits whose events were published")
        .fixed_by("open the file with Durability::PowerLoss, or set PRAGMA synchronous = FULL in each connection")
}
