//! What `semel check` looks at in PostgreSQL.
//!
//! | what is looked at | file |
//! |---|---|
//! | `server`, `durability`, `autovacuum` | `server.rs` |
//! | `schema`, `sequence`, `replica-identity`, `partitions` | `tables.rs` |
//! | `wal-level`, `replication`, `slots`, `wal-keep`, `log-budget`, `publication`, `pooler` | `log.rs` |
//! | `slot-left`, `slot-behind` | `slots.rs` |
//! | `messages` | `messages.rs` |
//! | `privileges`, `excess` | `privileges.rs` |
//! | `transactions`, `prepared` | `transactions.rs` |

mod log;
mod messages;
mod privileges;
mod server;
mod slots;
mod tables;
mod transactions;

use async_trait::async_trait;
use semel_core::Failure;
use semel_core::diagnosis::{Diagnose, Finding, Needs};

use super::store::PostgresStore;

#[async_trait]
impl Diagnose for PostgresStore {
    async fn diagnose(&self, needs: &Needs) -> Result<Vec<Finding>, Failure> {
        let mut findings = Vec::new();
        let mut step = self.step().await?;
        let is_standby = server::look(&mut step, &mut findings).await?;
        step.end().await?;
        if is_standby {
            // Nothing else can be put right here.
            return Ok(findings);
        }
        // Each in a step of its own: what fails for want of a privilege may end a transaction.
        let mut step = self.step().await?;
        let has_tables = tables::version(&mut step, &mut findings).await?;
        drop(step);
        let mut step = self.step().await?;
        if has_tables {
            let may_look = privileges::look(&mut step, needs, &mut findings).await?;
            if may_look {
                tables::look(&mut step, &mut findings).await?;
            }
            log::publication(&mut step, needs, &mut findings).await?;
            if needs.messages {
                messages::look(&mut step, &mut findings).await?;
            }
        }
        log::look(&mut step, self.is_pooled(), needs, &mut findings).await?;
        transactions::look(&mut step, needs, &mut findings).await?;
        step.end().await?;
        Ok(findings)
    }
}

/// A name as it is written in SQL.
fn quoted(name: &str) -> String {
    format!("\"{}\"", name.replace('"', "\"\""))
}

/// A text as it is written in SQL.
fn literal(text: &str) -> String {
    format!("'{}'", text.replace('\'', "''"))
}
