//! Slots that hold back log, whoever made them: a full disk stops everybody who writes.

use semel_core::Failure;
use semel_core::diagnosis::{Finding, Needs};
use sqlx::PgConnection;

use super::super::error::failure;
use super::super::store::DEFAULT_LOG_BUDGET;
use super::literal;

const FILLS_THE_DISK: &str =
    "the log grows until the disk is full, and then no event can be written";

pub(super) async fn look(
    connection: &mut PgConnection,
    needs: &Needs,
    findings: &mut Vec<Finding>,
) -> Result<(), Failure> {
    left(&mut *connection, needs, findings).await?;
    behind(connection, findings).await
}

/// Slots that nobody reads, with the bytes they hold back. That of a standby belongs to no database,
/// and may have no log before it is read for the first time. Of that of messages, where they are
/// written here, there is a finding of its own.
const LEFT: &str = "\
select slot_name::text, wal_status,
    coalesce(pg_wal_lsn_diff(pg_current_wal_lsn(), restart_lsn), 0)::bigint,
    (database = current_database() and slot_name like 'semel\\_%') is true,
    case when slot_name ~ '^semel_messages_[0-9]+$' then database::text end
from pg_replication_slots where not active and not ($1 and slot_name = 'semel_messages_'
    || (select oid from pg_database where datname = current_database()))
order by 3 desc, 1";

async fn left(
    connection: &mut PgConnection,
    needs: &Needs,
    findings: &mut Vec<Finding>,
) -> Result<(), Failure> {
    const CODE: &str = "slot-left";
    /// Name, state of the log, bytes, whether it is ours, and whose messages it keeps.
    type Left = (String, Option<String>, i64, bool, Option<String>);
    let left: Vec<Left> = sqlx::query_as(LEFT)
        .bind(needs.messages)
        .fetch_all(connection)
        .await
        .map_err(failure("look at the replication slots"))?;
    if left.is_empty() {
        findings.push(Finding::good(CODE, "every replication slot has a reader"));
    }
    for (name, status, bytes, is_ours, of_messages) in left {
        let megabytes = bytes / (1024 * 1024);
        let (holds, effect) = match status {
            Some(status) => {
                (format!("(log: {status}), which holds back {megabytes} MiB"), FILLS_THE_DISK)
            }
            None => (
                "(log: none reserved yet)".to_owned(),
                "it takes the place of another slot; once it was read, it holds back log",
            ),
        };
        let what = format!("nobody reads the slot {name} {holds}");
        let drop = format!("select pg_drop_replication_slot({});", literal(&name));
        findings.push(if let Some(database) = of_messages {
            // No SQL: what it keeps may be nowhere else.
            Finding::advice(CODE, what).means(effect).fixed_by(format!(
                "start a relay with outbox = \"messages\" for the database {database}; drop the slot only \
                 if nobody writes messages there any more, and all were carried"
            ))
        } else if is_ours {
            // The slots of semel are temporary: this one is no relay's.
            Finding::problem(CODE, what).means(effect).with_sql(drop)
        } else {
            let fix = format!("let its reader come back; or, if there is none any more: {drop}");
            Finding::advice(CODE, what).means(effect).fixed_by(fix)
        });
    }
    Ok(())
}

/// Slots whose readers are far behind, with the bytes they hold back. Of those of relays that tail there
/// is a finding of its own.
const BEHIND: &str = "\
select slot_name::text, active_pid, wal_status,
    coalesce(pg_wal_lsn_diff(pg_current_wal_lsn(), restart_lsn), 0)::bigint,
    slot_name ~ '^semel_messages_[0-9]+$'
from pg_replication_slots
where active and not (temporary and slot_name like 'semel\\_%')
    and (wal_status in ('extended', 'unreserved')
        or pg_wal_lsn_diff(pg_current_wal_lsn(), restart_lsn) > $1)
order by 4 desc, 1";

async fn behind(connection: &mut PgConnection, findings: &mut Vec<Finding>) -> Result<(), Failure> {
    const CODE: &str = "slot-behind";
    /// Name, process, state of the log, bytes, and whether it keeps messages.
    type Behind = (String, Option<i32>, Option<String>, i64, bool);
    let behind: Vec<Behind> = sqlx::query_as(BEHIND)
        .bind(DEFAULT_LOG_BUDGET.cast_signed())
        .fetch_all(connection)
        .await
        .map_err(failure("look at the replication slots"))?;
    if behind.is_empty() {
        findings.push(Finding::good(CODE, "whoever reads a replication slot keeps up"));
    }
    for (name, process, status, bytes, of_messages) in behind {
        let status = status.unwrap_or_default();
        let effect = match status.as_str() {
            "unreserved" => {
                "the next checkpoint may remove that log: its reader loses what it has not read"
            }
            _ => FILLS_THE_DISK,
        };
        let megabytes = bytes / (1024 * 1024);
        let reader = process.map_or_else(String::new, |process| format!(" where pid = {process}"));
        let drop = format!("select pg_drop_replication_slot({});", literal(&name));
        let look = format!(
            "see how far it is: select * from pg_stat_replication{reader}; and end transactions that \
             are open for long"
        );
        let what = format!(
            "who reads the slot {name} (log: {status}) is behind: {megabytes} MiB are held back"
        );
        let fix = if of_messages {
            look // What it keeps may be nowhere else.
        } else {
            format!("{look}; or, if nobody needs it, stop it and run: {drop}")
        };
        findings.push(Finding::advice(CODE, what).means(effect).fixed_by(fix));
    }
    Ok(())
}
