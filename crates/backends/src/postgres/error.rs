//! Which error of PostgreSQL is which [`Fault`](semel_core::Fault).
//!
//! | SQLSTATE, or what sqlx says | fault | code |
//! |---|---|---|
//! | 08 connection, 53 resources, 57 operator, 58 system, XX internal; no connection in time | unavailable | `E-POSTGRES-DOWN` |
//! | 25006 the server is a standby or read-only | unavailable | `E-POSTGRES-READONLY` |
//! | 40 rollback (serialisation, deadlock), 55P03 lock not had in time | transient | `E-POSTGRES-CONFLICT` |
//! | 42P01, 3F000, 42703, 42883: a table, schema, column or function is missing | misconfigured | `E-SCHEMA-MISSING` |
//! | 42501 not allowed | misconfigured | `E-POSTGRES-PRIVILEGE` |
//! | 28 who you are: user, password, host | misconfigured | `E-POSTGRES-LOGIN` |
//! | 3D000 no such database; a wrong URL, TLS | misconfigured | `E-POSTGRES-ACCESS` |
//! | 22 data, 23 constraint, 54 too large; a value of the wrong type | refused | `E-POSTGRES-VALUE` |
//! | 42 and 0A, the rest of them | misconfigured | `E-POSTGRES-SQL` |
//! | anything else | transient | `E-POSTGRES` |
//!
//! Whatever happens, nothing that was committed to the outbox is lost: it waits in the table.

use semel_core::{Failure, Fault};

/// Turns an error of sqlx into a failure. `what` says what was being done.
pub(super) fn failure(what: &str) -> impl FnOnce(sqlx::Error) -> Failure {
    move |error| classify(what, error)
}

fn classify(what: &str, error: sqlx::Error) -> Failure {
    let what = format!("PostgreSQL: cannot {what}");
    let verdict = match &error {
        sqlx::Error::Database(database) => by_sqlstate(&database.code().unwrap_or_default()),
        sqlx::Error::Io(_)
        | sqlx::Error::Protocol(_)
        | sqlx::Error::PoolTimedOut
        | sqlx::Error::PoolClosed
        | sqlx::Error::WorkerCrashed => DOWN,
        sqlx::Error::Configuration(_) | sqlx::Error::Tls(_) => ACCESS,
        sqlx::Error::ColumnDecode { .. } | sqlx::Error::Decode(_) | sqlx::Error::Encode(_) => VALUE,
        _ => OTHER,
    };
    let (fault, code, fix) = verdict;
    let failure = Failure::new(fault, code, what).with_source(error);
    if fix.is_empty() { failure } else { failure.with_fix(fix) }
}

/// What would be an outage, but is the doing of one statement or of whoever sends it: `statement_timeout`,
/// somebody who cancels it, `temp_file_limit`, a defect of what it calls; too long a pause before it
/// (`idle_in_transaction_session_timeout`); more or fewer values than it has places for. Where the
/// database is away as well, the next transaction does not begin.
pub(super) fn is_of_statement(error: &sqlx::Error) -> bool {
    const STATES: [&str; 4] = ["57014", "53400", "25P03", "08P01"];
    match error {
        sqlx::Error::Protocol(_) => true,
        sqlx::Error::Database(error) => {
            error.code().is_some_and(|code| STATES.contains(&&*code) || code.starts_with("XX"))
        }
        _ => false,
    }
}

/// Whether there is no transaction any more, or one that has failed.
pub(super) fn is_of_an_ended_transaction(error: &sqlx::Error) -> bool {
    let code = error.as_database_error().and_then(sqlx::error::DatabaseError::code);
    code.is_some_and(|code| ["25P01", "25P02"].contains(&&*code))
}

/// The tables are not there. Nothing is lost: events cannot have been written without them.
pub(super) fn schema_missing(what: impl Into<String>) -> Failure {
    let (fault, code, fix) = MISSING;
    Failure::new(fault, code, what).with_fix(fix)
}

type Verdict = (Fault, &'static str, &'static str);

const DOWN: Verdict = (
    Fault::Unavailable,
    "E-POSTGRES-DOWN",
    "check that the server runs, can be reached and has connections and disk space left",
);
const READONLY: Verdict = (
    Fault::Unavailable,
    "E-POSTGRES-READONLY",
    "point the URL at the primary, such as with target_session_attrs=read-write",
);
const CONFLICT: Verdict = (Fault::Transient, "E-POSTGRES-CONFLICT", "try the transaction again");
const MISSING: Verdict =
    (Fault::Misconfigured, "E-SCHEMA-MISSING", "run `semel migrate up --database URL`");
const PRIVILEGE: Verdict = (
    Fault::Misconfigured,
    "E-POSTGRES-PRIVILEGE",
    "run what `semel grants --database URL` prints as the owner of the schema semel",
);
const LOGIN: Verdict = (
    Fault::Misconfigured,
    "E-POSTGRES-LOGIN",
    "check user and password of the URL, and what pg_hba.conf lets in from here",
);
const ACCESS: Verdict =
    (Fault::Misconfigured, "E-POSTGRES-ACCESS", "check host, database and TLS settings of the URL");
const VALUE: Verdict = (Fault::Refused, "E-POSTGRES-VALUE", "");
const SQL: Verdict = (
    Fault::Misconfigured,
    "E-POSTGRES-SQL",
    "check that the server is PostgreSQL 13 or later and that the schema semel is semel's own",
);
const OTHER: Verdict = (Fault::Transient, "E-POSTGRES", "");

fn by_sqlstate(code: &str) -> Verdict {
    match code {
        "25006" => return READONLY,
        // A transaction was left idle for too long.
        "25P03" => return DOWN,
        "55P03" => return CONFLICT,
        "42P01" | "3F000" | "42703" | "42883" => return MISSING,
        "42501" => return PRIVILEGE,
        "3D000" => return ACCESS,
        _ => {}
    }
    match code.get(..2).unwrap_or_default() {
        "08" | "53" | "57" | "58" | "XX" => DOWN,
        "40" => CONFLICT,
        "28" => LOGIN,
        "22" | "23" | "54" => VALUE,
        "42" | "0A" => SQL,
        _ => OTHER,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_line_of_the_table_holds() {
        let cases = [
            ("08006", Fault::Unavailable, "E-POSTGRES-DOWN"),
            ("53300", Fault::Unavailable, "E-POSTGRES-DOWN"),
            ("57P01", Fault::Unavailable, "E-POSTGRES-DOWN"),
            ("58030", Fault::Unavailable, "E-POSTGRES-DOWN"),
            ("XX000", Fault::Unavailable, "E-POSTGRES-DOWN"),
            ("25006", Fault::Unavailable, "E-POSTGRES-READONLY"),
            ("40001", Fault::Transient, "E-POSTGRES-CONFLICT"),
            ("40P01", Fault::Transient, "E-POSTGRES-CONFLICT"),
            ("55P03", Fault::Transient, "E-POSTGRES-CONFLICT"),
            ("42P01", Fault::Misconfigured, "E-SCHEMA-MISSING"),
            ("3F000", Fault::Misconfigured, "E-SCHEMA-MISSING"),
            ("42703", Fault::Misconfigured, "E-SCHEMA-MISSING"),
            ("42883", Fault::Misconfigured, "E-SCHEMA-MISSING"),
            ("42501", Fault::Misconfigured, "E-POSTGRES-PRIVILEGE"),
            ("28P01", Fault::Misconfigured, "E-POSTGRES-LOGIN"),
            ("28000", Fault::Misconfigured, "E-POSTGRES-LOGIN"),
            ("3D000", Fault::Misconfigured, "E-POSTGRES-ACCESS"),
            ("22021", Fault::Refused, "E-POSTGRES-VALUE"),
            ("23514", Fault::Refused, "E-POSTGRES-VALUE"),
            ("54000", Fault::Refused, "E-POSTGRES-VALUE"),
            ("42601", Fault::Misconfigured, "E-POSTGRES-SQL"),
            ("0A000", Fault::Misconfigured, "E-POSTGRES-SQL"),
            ("P0001", Fault::Transient, "E-POSTGRES"),
            ("", Fault::Transient, "E-POSTGRES"),
        ];
        for (state, fault, code) in cases {
            let verdict = by_sqlstate(state);
            assert_eq!((verdict.0, verdict.1), (fault, code), "{state}");
        }
    }

    #[test]
    fn what_sqlx_says_itself_has_a_verdict() {
        let refused = std::io::Error::from(std::io::ErrorKind::ConnectionRefused);
        let failure = classify("connect", sqlx::Error::Io(refused));
        assert_eq!(failure.fault(), Fault::Unavailable);
        assert!(failure.fix().is_some());
        let failure = classify("connect", sqlx::Error::Configuration("no host".into()));
        assert_eq!(failure.fault(), Fault::Misconfigured);
    }
}
