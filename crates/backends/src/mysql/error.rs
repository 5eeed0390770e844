//! Which error of MySQL or MariaDB is which [`Fault`](semel_core::Fault).
//!
//! | error number, or what sqlx says | fault | code |
//! |---|---|---|
//! | 1040 1203 1226 too many connections, 1021 1041 disk or memory full, 1030 1036 1114 storage, 1053 1077 1079 1158–1161 1184 1927 shutdown or connection, 3024 1317 1969 query killed; SQLSTATE 08; no connection in time | unavailable | `E-MYSQL-DOWN` |
//! | 1290 1792 1836 3032 the server or transaction is read-only | unavailable | `E-MYSQL-READONLY` |
//! | 1205 lock not had in time, 1213 deadlock, 1020 row changed since; SQLSTATE 40 | transient | `E-MYSQL-CONFLICT` |
//! | 1146 no such table, 1054 no such column, 1305 no such function | misconfigured | `E-SCHEMA-MISSING` |
//! | 1142 1143 1227 1370 1419 not allowed | misconfigured | `E-MYSQL-PRIVILEGE` |
//! | 1044 1045 1130 1251 1698 user, password or host; SQLSTATE 28 | misconfigured | `E-MYSQL-LOGIN` |
//! | 1049 no such database; a wrong URL, TLS | misconfigured | `E-MYSQL-ACCESS` |
//! | 1665 the binary log has statements instead of rows | misconfigured | `E-MYSQL-BINLOG` |
//! | 1048 1062 1153 1264 1364 1366 1406 3140 3819 4025; SQLSTATE 22 and 23; a value of the wrong type | refused | `E-MYSQL-VALUE` |
//! | SQLSTATE 42 and 0A, the rest of them | misconfigured | `E-MYSQL-SQL` |
//! | anything else | transient | `E-MYSQL` |
//!
//! After 1213 the server has rolled the whole transaction back; after 1205 only the statement.
//! Whatever happens, nothing that was committed to the outbox is lost: it waits in the table.

use semel_core::{Failure, Fault};
use sqlx::error::DatabaseError;
use sqlx::mysql::MySqlDatabaseError;

/// Turns an error of sqlx into a failure. `what` says what was being done.
pub(super) fn failure(what: &str) -> impl FnOnce(sqlx::Error) -> Failure {
    move |error| classify(what, error)
}

/// What would be an outage, but is the doing of one statement or of whoever sends it: a limit of its
/// time, or somebody who kills it; more or fewer values than it has places for. Where the database is
/// away as well, the next transaction does not begin.
pub(super) fn is_of_statement(error: &sqlx::Error) -> bool {
    match error {
        sqlx::Error::Protocol(_) => true,
        sqlx::Error::Database(error) => matches!(number(error.as_ref()), 1317 | 1969 | 3024),
        _ => false,
    }
}

/// Whether a savepoint is not there any more.
pub(super) fn is_unmarked(error: &sqlx::Error) -> bool {
    error.as_database_error().is_some_and(|error| number(error) == 1305)
}

fn classify(what: &str, error: sqlx::Error) -> Failure {
    let what = format!("MySQL: cannot {what}");
    let verdict = match &error {
        sqlx::Error::Database(database) => {
            by_number(number(database.as_ref()), &database.code().unwrap_or_default())
        }
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

fn number(error: &(dyn DatabaseError + 'static)) -> u16 {
    error.try_downcast_ref::<MySqlDatabaseError>().map_or(0, MySqlDatabaseError::number)
}

/// The tables are not there. Nothing is lost: events cannot have been written without them.
pub(super) fn schema_missing(what: impl Into<String>) -> Failure {
    let (fault, code, fix) = MISSING;
    Failure::new(fault, code, what).with_fix(fix)
}

/// What the tables of consumers have room for, in characters. A server that is not strict, and
/// `INSERT IGNORE` on any, would cut what is longer, and then two names are one.
const NAME_CHARS: usize = 255;

pub(super) fn check_consumer(consumer: &str) -> Result<(), Failure> {
    if fits(consumer) {
        return Ok(());
    }
    let what = format!("MySQL: the consumer {consumer:?} has too long a name");
    Err(Failure::misconfigured("E-PIPELINE-NAME", what)
        .with_fix(format!("use at most {NAME_CHARS} characters")))
}

pub(super) fn check_scope(scope: &str) -> Result<(), Failure> {
    if fits(scope) {
        return Ok(());
    }
    let (_, code, _) = VALUE;
    let what = format!("MySQL: the scope {scope:?} of a mark is too long");
    Err(Failure::refused(code, what)
        .with_fix(format!("use at most {NAME_CHARS} characters, such as a hash of it")))
}

fn fits(name: &str) -> bool {
    name.len() <= NAME_CHARS || name.chars().count() <= NAME_CHARS
}

type Verdict = (Fault, &'static str, &'static str);

const DOWN: Verdict = (
    Fault::Unavailable,
    "E-MYSQL-DOWN",
    "check that the server runs, can be reached and has connections and disk space left",
);
const READONLY: Verdict = (
    Fault::Unavailable,
    "E-MYSQL-READONLY",
    "point the URL at the primary, or end its read-only mode",
);
const CONFLICT: Verdict = (Fault::Transient, "E-MYSQL-CONFLICT", "try the transaction again");
const MISSING: Verdict =
    (Fault::Misconfigured, "E-SCHEMA-MISSING", "run `semel migrate up --database URL`");
const PRIVILEGE: Verdict = (
    Fault::Misconfigured,
    "E-MYSQL-PRIVILEGE",
    "run what `semel grants --database URL` prints as an administrator",
);
const LOGIN: Verdict = (
    Fault::Misconfigured,
    "E-MYSQL-LOGIN",
    "check user and password of the URL, and what the user may do from this host",
);
const ACCESS: Verdict =
    (Fault::Misconfigured, "E-MYSQL-ACCESS", "check host, database and TLS settings of the URL");
const BINLOG: Verdict =
    (Fault::Misconfigured, "E-MYSQL-BINLOG", "set binlog_format = ROW or MIXED on the server");
const VALUE: Verdict = (Fault::Refused, "E-MYSQL-VALUE", "");
const SQL: Verdict = (
    Fault::Misconfigured,
    "E-MYSQL-SQL",
    "check that the server is MariaDB 10.11 or MySQL 8.0.17, or later, and that the tables named \
     semel_… are semel's own",
);
const OTHER: Verdict = (Fault::Transient, "E-MYSQL", "");

fn by_number(number: u16, state: &str) -> Verdict {
    match number {
        1021
        | 1030
        | 1036
        | 1040
        | 1041
        | 1053
        | 1077
        | 1079
        | 1114
        | 1158..=1161
        | 1184
        | 1203
        | 1226
        | 1317
        | 1927
        | 1969
        | 3024 => DOWN,
        1290 | 1792 | 1836 | 3032 => READONLY,
        1020 | 1205 | 1213 => CONFLICT,
        1054 | 1146 | 1305 => MISSING,
        1142 | 1143 | 1227 | 1370 | 1419 => PRIVILEGE,
        1044 | 1045 | 1130 | 1251 | 1698 => LOGIN,
        1049 => ACCESS,
        1665 => BINLOG,
        1048 | 1062 | 1153 | 1264 | 1364 | 1366 | 1406 | 3140 | 3819 | 4025 => VALUE,
        _ => by_sqlstate(state),
    }
}

fn by_sqlstate(state: &str) -> Verdict {
    match state.get(..2).unwrap_or_default() {
        "08" => DOWN,
        "40" => CONFLICT,
        "28" => LOGIN,
        "22" | "23" => VALUE,
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
            (1040, "08004", Fault::Unavailable, "E-MYSQL-DOWN"),
            (1053, "08S01", Fault::Unavailable, "E-MYSQL-DOWN"),
            (1114, "HY000", Fault::Unavailable, "E-MYSQL-DOWN"),
            (1160, "08S01", Fault::Unavailable, "E-MYSQL-DOWN"),
            (1317, "70100", Fault::Unavailable, "E-MYSQL-DOWN"),
            (9999, "08000", Fault::Unavailable, "E-MYSQL-DOWN"),
            (1290, "HY000", Fault::Unavailable, "E-MYSQL-READONLY"),
            (1792, "25006", Fault::Unavailable, "E-MYSQL-READONLY"),
            (1205, "HY000", Fault::Transient, "E-MYSQL-CONFLICT"),
            (1213, "40001", Fault::Transient, "E-MYSQL-CONFLICT"),
            (1146, "42S02", Fault::Misconfigured, "E-SCHEMA-MISSING"),
            (1054, "42S22", Fault::Misconfigured, "E-SCHEMA-MISSING"),
            (1142, "42000", Fault::Misconfigured, "E-MYSQL-PRIVILEGE"),
            (1045, "28000", Fault::Misconfigured, "E-MYSQL-LOGIN"),
            (1049, "42000", Fault::Misconfigured, "E-MYSQL-ACCESS"),
            (1665, "HY000", Fault::Misconfigured, "E-MYSQL-BINLOG"),
            (1153, "08S01", Fault::Refused, "E-MYSQL-VALUE"),
            (1406, "22001", Fault::Refused, "E-MYSQL-VALUE"),
            (3819, "HY000", Fault::Refused, "E-MYSQL-VALUE"),
            (4025, "23000", Fault::Refused, "E-MYSQL-VALUE"),
            (1064, "42000", Fault::Misconfigured, "E-MYSQL-SQL"),
            (1235, "42000", Fault::Misconfigured, "E-MYSQL-SQL"),
            (1815, "HY000", Fault::Transient, "E-MYSQL"),
        ];
        for (number, state, fault, code) in cases {
            let verdict = by_number(number, state);
            assert_eq!((verdict.0, verdict.1), (fault, code), "{number} {state}");
        }
    }

    #[test]
    fn names_are_as_long_as_the_tables_are_wide() {
        let (most, more) = ("ü".repeat(255), "ü".repeat(256));
        check_consumer(&most).unwrap();
        check_scope(&most).unwrap();
        let failure = check_consumer(&more).unwrap_err();
        assert_eq!((failure.fault(), failure.code()), (Fault::Misconfigured, "E-PIPELINE-NAME"));
        let failure = check_scope(&more).unwrap_err();
        assert_eq!((failure.fault(), failure.code()), (Fault::Refused, "E-MYSQL-VALUE"));
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
