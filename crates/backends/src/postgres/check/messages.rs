//! The slot that keeps messages, where writers write them.

use semel_core::Failure;
use semel_core::diagnosis::Finding;
use sqlx::PgConnection;

use super::super::error::failure;
use super::super::messages::Slot;
use super::literal;

const CODE: &str = "messages";

pub(super) async fn look(
    connection: &mut PgConnection,
    findings: &mut Vec<Finding>,
) -> Result<(), Failure> {
    const INSERT: &str = "select has_any_column_privilege('semel.outbox', 'insert')";
    let slot = Slot::look(&mut *connection).await?;
    findings.push(state(&slot));
    if slot.keeps && slot.follows == Some(false) {
        let what = format!("the slot {} does not follow to standbys", slot.name);
        findings.push(Finding::advice(CODE, what).means(LOST).fixed_by(format!(
            "when all messages are carried and nobody writes: drop it with `select \
             pg_drop_replication_slot({})`, then `semel migrate up --messages`",
            literal(&slot.name)
        )));
    }
    let may_insert: bool = sqlx::query_scalar(INSERT)
        .fetch_one(connection)
        .await
        .map_err(failure("look at the privileges"))?;
    if !may_insert {
        let what = "this user may not add to semel.outbox";
        let fix = "grant it the role writer of `semel grants`, beside tailer";
        findings.push(Finding::problem(CODE, what).means(WAITS).fixed_by(fix));
    }
    Ok(())
}

const WAITS: &str = "messages wait in the log, which grows, and are not published";
const LOST: &str = "messages that were not carried into the outbox yet are lost with the slot";

fn state(slot: &Slot) -> Finding {
    let (name, megabytes) = (&slot.name, slot.held_bytes / (1024 * 1024));
    let create = slot.whole_sql();
    let refused = "writers are refused, and with them the business transactions";
    match slot {
        Slot { exists: false, .. } => {
            Finding::problem(CODE, format!("there is no slot {name} that would keep messages"))
                .means(refused)
                .fixed_by("if there was one before, messages may be lost: compare business tables")
                .with_sql(create)
        }
        Slot { wal_status, .. } if wal_status == "lost" => {
            let drop = format!("select pg_drop_replication_slot({});", literal(name));
            Finding::problem(CODE, format!("the server removed the log that the slot {name} kept"))
                .means(format!("the messages in it are lost; {refused}"))
                .fixed_by(
                    "find out from the business tables which events are missing; then run this",
                )
                .with_sql(format!("{drop}\n{create}"))
        }
        Slot { wal_status, .. } if wal_status == "unreserved" => {
            let what = format!("the log that the slot {name} keeps is about to be removed");
            Finding::problem(CODE, what)
                .means(LOST)
                .fixed_by("start a relay now, and raise max_slot_wal_keep_size")
        }
        Slot { keeps: false, .. } => {
            let what = format!("the slot {name} waits for transactions that are open");
            Finding::problem(CODE, what).means(refused).fixed_by("end them; see transactions")
        }
        Slot { has_publication: false, .. } => {
            let what = "there is no publication semel_messages";
            Finding::problem(CODE, what).means(WAITS).with_sql(create)
        }
        Slot { is_read: false, .. } => {
            let what = format!("no relay reads the slot {name}, which holds back {megabytes} MiB");
            Finding::advice(CODE, what)
                .means("the log grows until a relay runs, or the disk is full")
                .fixed_by("start a relay; never drop this slot, which would lose its messages")
        }
        _ => {
            let what = format!(
                "a relay reads the slot {name}, which holds back {megabytes} MiB; what is not \
                 carried yet is lost if it is dropped"
            );
            Finding::good(CODE, what)
        }
    }
}
