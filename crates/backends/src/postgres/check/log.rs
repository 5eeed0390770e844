//! The log, for relays that tail it.

use semel_core::Failure;
use semel_core::diagnosis::{Finding, Log, Needs};
use sqlx::PgConnection;

use super::super::error::failure;
use super::super::messages::Slot;
use super::super::store::DEFAULT_LOG_BUDGET;
use super::super::tail::{behind_a_pooler, publication_sql_for, slot_prefix};
use super::quoted;

/// What it means when the log cannot be tailed.
fn effect(needs: &Needs) -> &'static str {
    match needs.log {
        Log::Required => "the relay does not start: mode = \"tail\" and messages insist on the log",
        _ => "events are published all the same, found at the poll interval instead of at once",
    }
}

/// Version, level, replication, slots, all slots, senders, all senders, how many of our pipelines have
/// one of each, and how many MiB of log a slot may hold back.
type Look = (i32, String, bool, i32, i64, i32, i64, i64, i64);

const LOOK: &str = "\
select current_setting('server_version_num')::integer, current_setting('wal_level'),
    coalesce((select r.rolsuper or r.rolreplication from pg_roles r where r.rolname = current_user),
        false)
        or exists (select from pg_roles r where r.rolname = 'rds_replication'
            and pg_has_role(current_user, r.oid, 'usage')),
    current_setting('max_replication_slots')::integer,
    (select count(*) from pg_replication_slots),
    current_setting('max_wal_senders')::integer,
    (select count(*) from pg_stat_replication),
    (select count(*) from unnest($1::text[]) as pipeline (prefix) where exists (
        select from pg_replication_slots
        where temporary and database = current_database()
            and starts_with(slot_name::text, pipeline.prefix))),
    (select setting::bigint from pg_settings where name = 'max_slot_wal_keep_size')";

pub(super) async fn look(
    connection: &mut PgConnection,
    is_pooled: bool,
    needs: &Needs,
    findings: &mut Vec<Finding>,
) -> Result<(), Failure> {
    findings.extend(pooler(is_pooled, needs));
    let failed = || failure("look at the log");
    let look = sqlx::query_as(LOOK).bind(prefixes(needs));
    let look: Look = look.fetch_one(&mut *connection).await.map_err(failed())?;
    let messages = Slot::look(&mut *connection).await?;
    let user: String = sqlx::query_scalar("select current_user::text")
        .fetch_one(&mut *connection)
        .await
        .map_err(failed())?;
    if needs.log != Log::Unread {
        findings.push(level(look.0, &look.1, needs));
        findings.push(replication(look.2, &user, needs));
        findings.push(slots(&look, &messages, needs));
        findings.push(keep(look.8, needs.messages || messages.exists));
        findings.push(budget(&mut *connection, needs).await?);
    }
    super::slots::look(connection, needs, findings).await
}

/// How the names of the slots of the pipelines begin; of one that is not known, as all of ours do.
fn prefixes(needs: &Needs) -> Vec<String> {
    match needs.pipelines.is_empty() {
        true if needs.messages => Vec::new(),
        true => vec!["semel_".to_owned()],
        false => needs.pipelines.iter().map(|pipeline| slot_prefix(pipeline)).collect(),
    }
}

fn pooler(is_pooled: bool, needs: &Needs) -> Option<Finding> {
    const CODE: &str = "pooler";
    match (is_pooled, needs.log) {
        (false, _) => Some(Finding::good(CODE, "the connection leads to the server itself")),
        (true, Log::Unread) => {
            Some(Finding::good(CODE, "there is one in between, and polling works with it"))
        }
        (true, log) => {
            Some(Finding::of_failure(log.lack(), CODE, &behind_a_pooler()).means(effect(needs)))
        }
    }
}

fn level(version: i32, level: &str, needs: &Needs) -> Finding {
    const CODE: &str = "wal-level";
    let lack = needs.log.lack();
    if version < 140_000 {
        return Finding::new(lack, CODE, "the log is tailed from PostgreSQL 14 on")
            .means(effect(needs))
            .fixed_by("upgrade the server, or write mode = \"poll\" in the source");
    }
    if level == "logical" {
        return Finding::good(CODE, "wal_level is logical");
    }
    Finding::new(lack, CODE, format!("wal_level is {level}, which tells nothing of rows"))
        .means(effect(needs))
        .fixed_by("restart the server after this; or write mode = \"poll\" in the source")
        .with_sql("alter system set wal_level = logical;")
}

fn replication(may: bool, user: &str, needs: &Needs) -> Finding {
    const CODE: &str = "replication";
    if may {
        return Finding::good(CODE, format!("{user} may tail the log"));
    }
    Finding::new(needs.log.lack(), CODE, format!("{user} has not the attribute REPLICATION"))
        .means(effect(needs))
        .fixed_by("a superuser runs this; or write mode = \"poll\" in the source")
        .with_sql(format!("alter role {} with replication;", quoted(user)))
}

/// Each pipeline takes one slot and one sender; those that tail already have them. So does the
/// carrier of messages. One more slot is there for a moment where others write much, so that slots
/// move on.
fn slots(look: &Look, messages: &Slot, needs: &Needs) -> Finding {
    const CODE: &str = "slots";
    let (_, _, _, most_slots, slots, most_senders, senders, ours, _) = *look;
    let needed = i64::try_from(prefixes(needs).len()).unwrap_or(i64::MAX);
    let lacks = |has: bool| i64::from(needs.messages && !has);
    let moving = i64::from(needed > 0 || needs.messages);
    let mut sql = Vec::new();
    for (setting, most, used, more) in [
        ("max_replication_slots", most_slots, slots, lacks(messages.exists) + moving),
        ("max_wal_senders", most_senders, senders, lacks(messages.is_read)),
    ] {
        let wanted = used - ours.min(used) + needed + more;
        if wanted > most.into() {
            sql.push(format!("alter system set {setting} = {wanted};"));
        }
    }
    if sql.is_empty() {
        return Finding::good(
            CODE,
            format!(
                "{slots} of {most_slots} replication slots and {senders} of {most_senders} senders are in use"
            ),
        );
    }
    let (carrier, effect) = if needs.messages {
        (", and messages one of each", "messages wait in the log until there is one for them")
    } else {
        ("", "events are published all the same, found at the poll interval instead of at once")
    };
    let what = format!(
        "{needed} pipelines need a slot and a sender each{carrier}, and all together a slot more, with which slots \
         are moved on; {slots} of {most_slots} slots and {senders} of {most_senders} senders are in use"
    );
    // Never a problem: somebody may give one back, and until then nothing is lost.
    Finding::advice(CODE, what)
        .means(effect)
        .fixed_by("drop slots that nobody needs, or run this and restart the server")
        .with_sql(sql.join("\n"))
}

fn keep(megabytes: i64, has_messages: bool) -> Finding {
    const CODE: &str = "wal-keep";
    const UNLIMITED: &str = "max_slot_wal_keep_size is unlimited";
    if megabytes >= 0 && has_messages {
        return Finding::advice(CODE, format!("a slot holds back {megabytes} MiB of log at most"))
            .means("while no relay runs, messages beyond that are lost")
            .fixed_by("let it be more than is written in the longest time without a relay");
    }
    if megabytes >= 0 {
        return Finding::good(CODE, format!("a slot holds back {megabytes} MiB of log at most"));
    }
    if has_messages {
        // No SQL: a limit that nobody has thought about loses events.
        return Finding::advice(CODE, UNLIMITED)
            .means(
                "no message is lost, but while no relay runs the log grows until the disk is full",
            )
            .fixed_by("watch the disk; with a limit, messages beyond it would be lost instead");
    }
    Finding::advice(CODE, UNLIMITED)
        .means(
            "semel's own slots hold back no log; that of anybody else who went away can fill the \
             disk, and then nothing can be written, events neither",
        )
        .fixed_by("choose what the disk has room for")
        .with_sql("alter system set max_slot_wal_keep_size = '10GB';\nselect pg_reload_conf();")
}

/// How much may be held back for a relay that tails, and how much is.
async fn budget(connection: &mut PgConnection, needs: &Needs) -> Result<Finding, Failure> {
    const CODE: &str = "log-budget";
    const HELD: &str = "\
select coalesce(max(pg_wal_lsn_diff(pg_current_wal_lsn(), restart_lsn)), 0)::bigint
from pg_replication_slots
where temporary and database = current_database() and slot_name like 'semel\\_%'";
    const MIB: u64 = 1024 * 1024;
    let held: i64 = sqlx::query_scalar(HELD)
        .fetch_one(connection)
        .await
        .map_err(failure("look at the replication slots"))?;
    let (held, budget) = (held.unsigned_abs(), needs.log_budget.unwrap_or(DEFAULT_LOG_BUDGET));
    let what = format!("{} of {} MiB of log are held back by relays", held / MIB, budget / MIB);
    if held <= budget {
        return Ok(Finding::good(CODE, what));
    }
    Ok(Finding::advice(CODE, what)
        .means("the slot is given back, and events are found at the poll interval")
        .fixed_by("end transactions that are open for long, or raise log_budget of the source"))
}

/// The version; then whether there is a publication, tells of inserts into the outbox, tells of more
/// than inserts, and leaves rows out.
const PUBLICATION: &str = "\
select current_setting('server_version_num')::integer, p.oid is not null,
    coalesce(p.pubinsert and t.tablename is not null, false),
    coalesce(p.pubupdate or p.pubdelete or p.pubtruncate, false),
    to_jsonb(t) ->> 'rowfilter' is not null
from (select) as always
left join pg_publication p on p.pubname = 'semel_outbox'
left join pg_publication_tables t
    on t.pubname = p.pubname and t.schemaname = 'semel' and t.tablename = 'outbox'";

/// Whether the log tells of the outbox, of all of it, and of nothing else.
pub(super) async fn publication(
    connection: &mut PgConnection,
    needs: &Needs,
    findings: &mut Vec<Finding>,
) -> Result<(), Failure> {
    const CODE: &str = "publication";
    if needs.log == Log::Unread || needs.messages && needs.pipelines.is_empty() {
        return Ok(());
    }
    let (version, exists, tells, tells_more, is_filtered): (i32, bool, bool, bool, bool) =
        sqlx::query_as(PUBLICATION)
            .fetch_one(connection)
            .await
            .map_err(failure("look at the publication"))?;
    let create = format!("{};", publication_sql_for(version));
    let anew = format!("drop publication semel_outbox;\n{create}");
    let lack = |what: &str| Finding::new(needs.log.lack(), CODE, what).means(effect(needs));
    findings.push(match (exists, tells, tells_more, is_filtered) {
        (false, ..) => lack("there is no publication semel_outbox").with_sql(create),
        (_, false, ..) => {
            lack("the publication semel_outbox does not tell of inserts into semel.outbox")
                .with_sql(anew)
        }
        (.., true) => Finding::advice(CODE, "the publication semel_outbox leaves rows out")
            .means("events of these rows are found at the poll interval instead of at once")
            .with_sql(anew),
        (_, _, true, _) => {
            Finding::advice(CODE, "the publication semel_outbox tells of more than inserts")
                .means("the server decodes and sends what nobody reads")
                .with_sql("alter publication semel_outbox set (publish = 'insert');")
        }
        _ => Finding::good(CODE, "semel_outbox tells of inserts into semel.outbox"),
    });
    Ok(())
}
