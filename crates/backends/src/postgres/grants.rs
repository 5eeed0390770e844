//! Roles that may do what their part needs, and nothing else.

use semel_core::Failure;

/// SQL that makes the roles `PREFIX_writer`, `_poller`, `_tailer` and `_viewer`. Safe to repeat.
///
/// # Errors
/// `Misconfigured` when the prefix cannot be part of a name.
///
/// ```
/// # use semel_backends::postgres::grants_sql;
/// let sql = grants_sql("semel")?;
/// assert!(sql.contains("on semel.outbox to \"semel_writer\";"));
/// assert!(grants_sql("").is_err());
/// # Ok::<(), semel_core::Failure>(())
/// ```
pub fn grants_sql(prefix: &str) -> Result<String, Failure> {
    let fits = (1..=MOST_BYTES).contains(&prefix.len());
    if !fits || prefix.contains(|c: char| c.is_control() || "${}".contains(c)) {
        return Err(Failure::misconfigured(
            "E-ROLE-NAME",
            format!("PostgreSQL: {prefix:?} cannot begin the name of a role"),
        )
        .with_fix(format!(
            "give --role 1 to {MOST_BYTES} bytes without $, braces and control characters"
        )));
    }
    let mut sql = TEMPLATE.to_owned();
    for role in ["writer", "poller", "tailer", "viewer"] {
        let quoted = format!("\"{}_{role}\"", prefix.replace('"', "\"\""));
        sql = sql.replace(&format!("{{{role}}}"), &quoted);
    }
    Ok(sql)
}

/// What PostgreSQL takes for a name, without the longest ending.
const MOST_BYTES: usize = 56;

const TEMPLATE: &str = r#"-- Run this in the database of the outbox, as the owner of the schema semel or a superuser.
-- Nobody can log in by it yet. Grant a role to a user:  grant {writer} to shop;
-- or make it one:  alter role {writer} with login password '...';

-- Services that write events: they may add, and look at nothing.
do $$ begin create role {writer}; exception when duplicate_object then null; end $$;
grant usage on schema semel to {writer};
grant insert (id, key_id, aggregate_type, aggregate_id, event_type, payload, payload_bytes, content_type,
    headers, idempotency_key, created_at, available_at) on semel.outbox to {writer};

-- Relays that poll, and operators: read events, delete old ones, keep books; never write one.
do $$ begin create role {poller}; exception when duplicate_object then null; end $$;
grant usage on schema semel to {poller};
grant select on semel.migrations to {poller};
grant select, delete on semel.outbox, semel.deletable to {poller};
do $$ begin
    if to_regprocedure('semel.add_partitions()') is not null then
        grant execute on function semel.add_partitions(), semel.drop_partition(interval)
            to {poller};
    end if;
end $$;
-- Only after a restore from a dump, whose transaction ids mean nothing here.
grant update (txid) on semel.outbox to {poller};
grant select on sequence semel.outbox_seq_seq to {poller};
grant select, insert, update, delete on semel.cursor to {poller};
grant select, insert, delete on semel.passage to {poller};
grant select, insert, update, delete on semel.parked, semel.member, semel.share, semel.outages,
    semel.mapped, semel.mapped_parked to {poller};
grant select, insert, update (events) on semel.audit to {poller};
grant select on semel.readable, semel.events to {poller};

-- Relays that tail the log: the same, and a replication slot. Needs a superuser. Nobody inherits
-- REPLICATION from a role: let this one log in, or give the attribute to the user as well:
--   grant {tailer} to relay; alter role relay with replication;
do $$ begin create role {tailer}; exception when duplicate_object then null; end $$;
alter role {tailer} with replication;
grant {poller} to {tailer};
-- From PostgreSQL 16 on: beside a busy table it has the server move slots on.
do $$ begin
    if to_regprocedure('pg_log_standby_snapshot()') is not null then
        grant execute on function pg_log_standby_snapshot() to {tailer};
    end if;
exception when insufficient_privilege then null;
end $$;

-- Those who look: how many, which, and why they failed, without payloads.
do $$ begin create role {viewer}; exception when duplicate_object then null; end $$;
grant usage on schema semel to {viewer};
grant select on semel.migrations, semel.cursor, semel.passage, semel.parked, semel.member,
    semel.share, semel.outages, semel.mapped, semel.mapped_parked, semel.audit to {viewer};
grant select (txid, seq, created_at, available_at, id, aggregate_type, aggregate_id, event_type,
    content_type, headers, idempotency_key) on semel.outbox to {viewer};
grant select on semel.readable, semel.events to {viewer};
"#;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_quote_in_the_name_ends_no_name() {
        let sql = grants_sql("my \"own\"").unwrap();
        assert!(sql.contains("grant usage on schema semel to \"my \"\"own\"\"_writer\";"), "{sql}");
        assert!(!sql.contains('{'), "{sql}");
    }

    #[test]
    fn names_that_cannot_be_are_refused() {
        for wrong in ["", "a$$b", "{poller}", "a\nb", &"x".repeat(57)] {
            assert_eq!(grants_sql(wrong).unwrap_err().code(), "E-ROLE-NAME", "{wrong}");
        }
    }

    #[test]
    fn every_table_is_somebodys() {
        // Those of consumers and of services with idempotency keys are not the relay's.
        let others = ["semel.inbox", "semel.keys", "semel.letters", "semel.marks"];
        let (schema, sql) = (crate::postgres::schema_sql(), grants_sql("semel").unwrap());
        for line in schema.lines().filter(|line| line.starts_with("create table")) {
            let name = line.split([' ', '(']).find(|word| word.starts_with("semel.")).unwrap();
            assert!(sql.contains(name) || others.contains(&name), "{name} is granted to nobody");
        }
    }
}
