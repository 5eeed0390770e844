//! What `semel check` looks at in MySQL and MariaDB.
//!
//! | what is looked at | file |
//! |---|---|
//! | `server`, `durability`, `schema` | here |
//! | `binlog`, `binlog-format`, `row-image`, `binlog-compression`, `binlog-expiry`, `server-id`, `replication` | `binlog.rs` |
//! | `privileges`, `excess` | `privileges.rs` |

mod binlog;
mod privileges;

use std::collections::HashMap;

use async_trait::async_trait;
use semel_core::Failure;
use semel_core::diagnosis::{Diagnose, Finding, Log, Needs};
use sqlx::MySqlPool;

use super::error::failure;
use super::schema::{self, SchemaStatus};
use super::store::MysqlStore;

#[async_trait]
impl Diagnose for MysqlStore {
    async fn diagnose(&self, needs: &Needs) -> Result<Vec<Finding>, Failure> {
        let settings = Settings::read(self.pool()).await?;
        let grants = privileges::grants(self.pool()).await?;
        let mut findings = vec![server(&settings), durability(&settings)];
        match self.status().await {
            Ok(SchemaStatus { present, latest, .. }) => {
                findings.push(Finding::schema(present, latest, schema::schema_sql));
                if present > 0 {
                    findings.push(privileges::missing(self.pool()).await?);
                }
            }
            // There are tables, which this user may not look at.
            Err(failure) if failure.code() == "E-MYSQL-PRIVILEGE" => {
                findings.push(privileges::missing(self.pool()).await?);
            }
            Err(failure) => return Err(failure),
        }
        findings.push(privileges::excess(&grants));
        if needs.log != Log::Unread {
            binlog::look(self.pool(), &settings, &grants, needs, &mut findings).await;
        }
        Ok(findings)
    }
}

/// The settings of the server, by their names.
struct Settings(HashMap<String, String>);

impl Settings {
    async fn read(pool: &MySqlPool) -> Result<Self, Failure> {
        const READ: &str = "SHOW GLOBAL VARIABLES WHERE variable_name IN ('version', 'read_only', \
            'innodb_flush_log_at_trx_commit', 'log_bin', 'binlog_format', 'binlog_row_image', \
            'binlog_transaction_compression', 'expire_logs_days', 'binlog_expire_logs_seconds', \
            'server_id')";
        let all: Vec<(String, String)> =
            sqlx::query_as(READ).fetch_all(pool).await.map_err(failure("look at the settings"))?;
        Ok(Self(all.into_iter().collect()))
    }

    /// As it is written; empty when the server has no such setting.
    fn text(&self, name: &str) -> &str {
        self.0.get(name).map_or("", String::as_str)
    }

    fn number(&self, name: &str) -> f64 {
        self.text(name).parse().unwrap_or(0.0)
    }
}

fn server(settings: &Settings) -> Finding {
    const CODE: &str = "server";
    let version = settings.text("version");
    if settings.text("read_only") == "OFF" {
        return Finding::good(CODE, format!("version {version}, takes writes"));
    }
    Finding::problem(CODE, "it is read-only, as a replica is")
        .means("events wait in the primary; nothing is published from here")
        .fixed_by("point the URL at the primary")
}

fn durability(settings: &Settings) -> Finding {
    const CODE: &str = "durability";
    let setting = settings.text("innodb_flush_log_at_trx_commit");
    if setting == "1" {
        return Finding::good(CODE, "what is committed is on the disk");
    }
    Finding::advice(CODE, format!("innodb_flush_log_at_trx_commit is {setting}"))
        .means("a crash of the server can undo commits whose events were published")
        .fixed_by("write it into the option file of the server as well")
        .with_sql("SET GLOBAL innodb_flush_log_at_trx_commit = 1;")
}
