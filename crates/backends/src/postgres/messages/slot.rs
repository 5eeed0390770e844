//! The slot that keeps messages until they are carried: the only place where they are.

use std::borrow::Cow;

use semel_core::Failure;
use sqlx::error::DatabaseError;
use sqlx::{AssertSqlSafe, PgConnection, PgExecutor, PgPool};

use super::super::error::failure;
use super::super::row::column;
use super::super::tail::{too_old, wal_level};

/// The publication of no table: messages need none, the protocol asks for one.
pub(super) const PUBLICATION: &str = "semel_messages";

/// Slots are named in the whole cluster, and a database keeps its number when it is renamed.
macro_rules! slot_name {
    () => {
        "('semel_messages_' || (select oid from pg_database where datname = current_database()))"
    };
}

/// Whether a message that is written now is kept: the slot has begun and is not lost.
macro_rules! kept {
    () => {
        concat!(
            "exists (select from pg_replication_slots where slot_name = ",
            slot_name!(),
            " and confirmed_flush_lsn is not null and wal_status <> 'lost')"
        )
    };
}

/// Writes messages, or nothing where nobody would keep them.
pub(super) const EMIT: &str = concat!(
    "select pg_logical_emit_message(true, 'semel', content)
    from unnest($1::text[]) with ordinality as message (content, place) where ",
    kept!(),
    " order by place"
);

/// What can be written down of what messages need: the slot is named after the database, and is
/// not made in a transaction that has written.
///
/// ```
/// # use semel_backends::postgres::messages_sql;
/// assert!(messages_sql().contains("create publication semel_messages"));
/// ```
#[must_use]
pub fn messages_sql() -> String {
    format!(
        "{CREATE_PUBLICATION};\n-- Then make the slot: semel migrate up --messages, or what semel \
         check --fix-sql prints.\n"
    )
}

const CREATE_PUBLICATION: &str = "\
do $$ begin create publication semel_messages; exception when duplicate_object then null; end $$";

/// Makes them, the slot last: it begins with what is written from then on.
pub(super) async fn create(pool: &PgPool) -> Result<(), Failure> {
    let failed = || failure("make the slot of messages");
    let slot = Slot::look(pool).await?;
    if slot.version < 140_000 {
        return Err(too_old());
    }
    if slot.wal_level != "logical" {
        return Err(wal_level(&slot.wal_level));
    }
    sqlx::raw_sql(CREATE_PUBLICATION).execute(pool).await.map_err(failed())?;
    if slot.exists {
        return Ok(());
    }
    let made = sqlx::raw_sql(AssertSqlSafe(slot.create_sql())).execute(pool).await;
    match made {
        // Somebody else was faster.
        Err(error) if code_of(&error) == "42710" => Ok(()),
        made => made.map(drop).map_err(failed()),
    }
}

fn code_of(error: &sqlx::Error) -> Cow<'_, str> {
    error.as_database_error().and_then(DatabaseError::code).unwrap_or_default()
}

/// The slot as it is.
#[derive(Clone, Debug)]
pub(in super::super) struct Slot {
    pub(in super::super) name: String,
    /// Whether there is one.
    pub(in super::super) exists: bool,
    /// Whether it begun and keeps all that was written since.
    pub(in super::super) keeps: bool,
    pub(in super::super) is_read: bool,
    pub(in super::super) held_bytes: i64,
    /// How many it may be until the server removes them; none where there is no limit.
    pub(in super::super) limit_bytes: Option<i64>,
    pub(in super::super) wal_status: String,
    /// Whether it follows to standbys; none where the server cannot do so.
    pub(in super::super) follows: Option<bool>,
    pub(in super::super) has_publication: bool,
    /// Whether the log has text in UTF-8, or in whatever its writers took for text.
    pub(super) is_unicode: bool,
    /// Where the log ends, as a number.
    pub(super) log_end: i64,
    version: i32,
    wal_level: String,
}

impl Slot {
    pub(in super::super) async fn look(executor: impl PgExecutor<'_>) -> Result<Self, Failure> {
        const LOOK: &str = concat!(
            "select n.name, s.slot_name is not null, ",
            kept!(),
            ", coalesce(s.active, false),
            coalesce(pg_wal_lsn_diff(pg_current_wal_lsn(), s.restart_lsn), 0)::bigint,
            coalesce(s.wal_status, 'lost'), (to_jsonb(s) ->> 'failover')::boolean,
            exists (select from pg_publication where pubname = 'semel_messages'),
            current_setting('server_version_num')::integer, current_setting('wal_level'),
            current_setting('server_encoding') in ('UTF8', 'SQL_ASCII'),
            (select nullif(setting::bigint, -1) * 1024 * 1024
                from pg_settings where name = 'max_slot_wal_keep_size'),
            pg_wal_lsn_diff(pg_current_wal_lsn(), '0/0')::bigint
            from (select ",
            slot_name!(),
            " as name) n left join pg_replication_slots s on s.slot_name = n.name"
        );
        let failed = failure("look at the slot of messages");
        let row = sqlx::query(LOOK).fetch_one(executor).await.map_err(failed)?;
        Ok(Self {
            name: column(&row, 0)?,
            exists: column(&row, 1)?,
            keeps: column(&row, 2)?,
            is_read: column(&row, 3)?,
            held_bytes: column(&row, 4)?,
            wal_status: column(&row, 5)?,
            follows: column(&row, 6)?,
            has_publication: column(&row, 7)?,
            version: column(&row, 8)?,
            wal_level: column(&row, 9)?,
            is_unicode: column(&row, 10)?,
            limit_bytes: column(&row, 11)?,
            log_end: column(&row, 12)?,
        })
    }

    /// How many messages it keeps that were not carried. They stay there.
    pub(super) async fn count(&self, connection: &mut PgConnection) -> Result<u64, Failure> {
        // As the protocol has them: the letter M, flags and a place, then the prefix and its end.
        const COUNT: &str = "select count(*) from pg_logical_slot_peek_binary_changes($1, null, null, \
            'proto_version', '1', 'publication_names', 'semel_messages', 'messages', 'true') \
            where substring(data from 1 for 1) = 'M'::bytea \
            and substring(data from 11 for 6) = 'semel'::bytea || '\\x00'::bytea";
        let counted = sqlx::query_scalar(COUNT).bind(&self.name).fetch_one(connection).await;
        let count: i64 = counted.map_err(failure("count the messages that wait in the log"))?;
        Ok(count.unsigned_abs())
    }

    /// What makes it, as one statement without any other: PostgreSQL cannot make a slot while
    /// anything else is being read. From 17 on it follows to standbys that synchronise slots.
    fn create_sql(&self) -> String {
        let more = if self.version < 170_000 { "" } else { ", failover => true" };
        format!("select pg_create_logical_replication_slot('{}', 'pgoutput'{more})", self.name)
    }

    /// What makes all that messages need, statement by statement.
    pub(in super::super) fn whole_sql(&self) -> String {
        format!("{CREATE_PUBLICATION};\n{};\n", self.create_sql())
    }

    /// Refuses to go on where messages are not kept.
    pub(super) fn check(&self) -> Result<(), Failure> {
        if self.keeps {
            return Ok(());
        }
        let name = &self.name;
        Err(match self.exists {
            false => not_kept(format!("there is no replication slot {name}")),
            true if self.wal_status == "lost" => Failure::misconfigured(
                "E-MESSAGES-LOST",
                format!(
                    "PostgreSQL: the log that the slot {name} kept was removed: the messages in it \
                     that no relay had carried into the outbox are lost"
                ),
            )
            .with_fix(format!(
                "find out from the business tables which events are missing; then run `select \
                 pg_drop_replication_slot('{name}')` and `semel migrate up --messages`"
            )),
            true => not_kept(format!("the slot {name} is still being made")),
        })
    }
}

/// A message that was written now would be gone.
pub(super) fn not_kept(why: impl std::fmt::Display) -> Failure {
    let what = format!("PostgreSQL: events cannot be written as messages: {why}");
    Failure::misconfigured("E-MESSAGES-SLOT", what)
        .with_fix("run `semel migrate up --messages --database URL`, then look with `semel check`")
}
