//! Roles that may do what their part needs, and nothing else.

use semel_core::Failure;

/// SQL that makes the roles `PREFIX_writer`, `_poller`, `_tailer` and `_viewer`. Safe to repeat.
///
/// # Errors
/// `Misconfigured` when the prefix cannot be part of a name.
///
/// ```
/// # use semel_backends::mysql::grants_sql;
/// let sql = grants_sql("semel")?;
/// assert!(sql.contains("ON semel_outbox TO `semel_writer`;"));
/// assert!(grants_sql("").is_err());
/// # Ok::<(), semel_core::Failure>(())
/// ```
pub fn grants_sql(prefix: &str) -> Result<String, Failure> {
    let fits = (1..=MOST_CHARACTERS).contains(&prefix.chars().count());
    if !fits || prefix.contains(|c: char| c.is_control() || "{}".contains(c)) {
        return Err(Failure::misconfigured(
            "E-ROLE-NAME",
            format!("MySQL: {prefix:?} cannot begin the name of a role"),
        )
        .with_fix(format!(
            "give --role 1 to {MOST_CHARACTERS} characters without braces and controls"
        )));
    }
    let mut sql = TEMPLATE.to_owned();
    for role in ["writer", "poller", "tailer", "viewer"] {
        let quoted = format!("`{}_{role}`", prefix.replace('`', "``"));
        sql = sql.replace(&format!("{{{role}}}"), &quoted);
    }
    Ok(sql)
}

/// What MySQL takes for a name, without the longest ending.
const MOST_CHARACTERS: usize = 25;

const TEMPLATE: &str = "-- Run this in the database of the outbox, as a user who may create roles.
-- Nobody can log in by it yet. Grant a role to a user, and let it have effect:
--   GRANT {writer} TO shop@'%';
--   SET DEFAULT ROLE {writer} FOR shop@'%';      (MariaDB)
--   SET DEFAULT ROLE {writer} TO shop@'%';       (MySQL)

-- Services that write events: they may add, and look at nothing.
CREATE ROLE IF NOT EXISTS {writer};
GRANT INSERT (id, aggregate_type, aggregate_id, event_type, payload, content_type, headers,
    idempotency_key, created_at, available_at) ON semel_outbox TO {writer};

-- Relays that poll, and operators: read events, number and delete them, keep books; never write one.
CREATE ROLE IF NOT EXISTS {poller};
GRANT SELECT ON semel_migrations TO {poller};
GRANT SELECT, UPDATE (position), DELETE ON semel_outbox TO {poller};
GRANT SELECT, UPDATE ON semel_counter TO {poller};
GRANT SELECT, INSERT, UPDATE, DELETE ON semel_cursor TO {poller};
GRANT SELECT, INSERT, UPDATE, DELETE ON semel_progress TO {poller};
GRANT SELECT, INSERT, UPDATE, DELETE ON semel_parked TO {poller};
GRANT SELECT, INSERT, UPDATE, DELETE ON semel_member TO {poller};
GRANT SELECT, INSERT, UPDATE, DELETE ON semel_share TO {poller};
GRANT SELECT, INSERT, UPDATE, DELETE ON semel_outages TO {poller};
GRANT SELECT, INSERT, UPDATE, DELETE ON semel_mapped TO {poller};
GRANT SELECT, INSERT, UPDATE, DELETE ON semel_mapped_parked TO {poller};
GRANT SELECT, INSERT, UPDATE (events) ON semel_audit TO {poller};

-- Relays that tail the binary log: the same, and the log itself.
CREATE ROLE IF NOT EXISTS {tailer};
GRANT {poller} TO {tailer};
GRANT REPLICATION SLAVE, REPLICATION CLIENT ON *.* TO {tailer};

-- Those who look: how many, which, and why they failed, without payloads.
CREATE ROLE IF NOT EXISTS {viewer};
GRANT SELECT (seq, position, id, aggregate_type, aggregate_id, event_type, content_type, headers,
    idempotency_key, created_at, available_at, event_key) ON semel_outbox TO {viewer};
GRANT SELECT ON semel_migrations TO {viewer};
GRANT SELECT ON semel_cursor TO {viewer};
GRANT SELECT ON semel_progress TO {viewer};
GRANT SELECT ON semel_parked TO {viewer};
GRANT SELECT ON semel_member TO {viewer};
GRANT SELECT ON semel_share TO {viewer};
GRANT SELECT ON semel_outages TO {viewer};
GRANT SELECT ON semel_mapped TO {viewer};
GRANT SELECT ON semel_mapped_parked TO {viewer};
GRANT SELECT ON semel_audit TO {viewer};
";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_quote_in_the_name_ends_no_name() {
        let sql = grants_sql("my `own`").unwrap();
        assert!(sql.contains("GRANT SELECT ON semel_cursor TO `my ``own``_viewer`;"), "{sql}");
        assert!(!sql.contains('{'), "{sql}");
    }

    #[test]
    fn names_that_cannot_be_are_refused() {
        for wrong in ["", "{poller}", "a\nb", &"x".repeat(26)] {
            assert_eq!(grants_sql(wrong).unwrap_err().code(), "E-ROLE-NAME", "{wrong}");
        }
    }

    #[test]
    fn every_table_is_somebodys() {
        // Those of consumers and of services with idempotency keys are not the relay's.
        let others = ["semel_inbox", "semel_keys", "semel_letters", "semel_marks"];
        let (schema, sql) = (crate::mysql::schema_sql(), grants_sql("semel").unwrap());
        for line in schema.lines().filter(|line| line.starts_with("CREATE TABLE")) {
            let name = line.split([' ', '(']).find(|word| word.starts_with("semel_")).unwrap();
            assert!(
                sql.contains(&format!("ON {name} TO")) || others.contains(&name),
                "{name} is granted to nobody"
            );
        }
    }
}
