//! Which error of SQLite is which [`Fault`](semel_core::Fault).
//!
//! | SQLite or sqlx says | fault | code |
//! |---|---|---|
//! | `BUSY`, `LOCKED`; no free connection in time | unavailable | `E-SQLITE-BUSY` |
//! | `FULL`, `IOERR`, `NOMEM`, `PROTOCOL`; pool closed, worker gone | unavailable | `E-SQLITE-DOWN` |
//! | no such table, no such column | misconfigured | `E-SCHEMA-MISSING` |
//! | `CANTOPEN`, `PERM`, `READONLY`, `AUTH`; a wrong URL | misconfigured | `E-SQLITE-ACCESS` |
//! | `CORRUPT`, `NOTADB`, `FORMAT` | misconfigured | `E-SQLITE-CORRUPT` |
//! | `CONSTRAINT`, `TOOBIG`, `MISMATCH`; a value of the wrong type | refused | `E-SQLITE-VALUE` |
//! | anything else | transient | `E-SQLITE` |
//!
//! A lock that is held for long concerns the whole file and not one event, so it burns no attempt.

use semel_core::Failure;

/// Turns an error of sqlx into a failure. `what` says what was being done.
pub(super) fn failure(what: &str) -> impl FnOnce(sqlx::Error) -> Failure {
    move |error| classify(what, error)
}

/// Whether there is no transaction any more: SQLite ends one by itself, such as when its disk is full.
pub(super) fn is_of_an_ended_transaction(error: &sqlx::Error) -> bool {
    let error = error.as_database_error();
    error.is_some_and(|error| error.message().contains("no transaction is active"))
}

fn classify(what: &str, error: sqlx::Error) -> Failure {
    let what = format!("SQLite: cannot {what}");
    let failure = match &error {
        sqlx::Error::Database(database) => {
            let code = database.code().and_then(|code| code.parse::<i32>().ok()).unwrap_or(1);
            by_result_code(code & 0xff, database.message(), what)
        }
        sqlx::Error::PoolTimedOut => busy(what),
        sqlx::Error::PoolClosed | sqlx::Error::WorkerCrashed | sqlx::Error::Io(_) => down(what),
        sqlx::Error::Configuration(_) => access(what),
        sqlx::Error::ColumnDecode { .. } | sqlx::Error::Decode(_) => {
            Failure::refused("E-SQLITE-VALUE", what)
        }
        _ => Failure::transient("E-SQLITE", what),
    };
    failure.with_source(error)
}

/// By the primary result codes of <https://www.sqlite.org/rescode.html>.
fn by_result_code(code: i32, message: &str, what: String) -> Failure {
    match code {
        5 | 6 => busy(what),
        7 | 10 | 13 | 15 => down(what),
        3 | 8 | 14 | 23 => access(what),
        11 | 24 | 26 => Failure::misconfigured("E-SQLITE-CORRUPT", what)
            .with_fix("restore the file from a backup, or point the URL at the right file"),
        18..=20 => Failure::refused("E-SQLITE-VALUE", what),
        1 if message.contains("no such table") || message.contains("no such column") => {
            schema_missing(what)
        }
        _ => Failure::transient("E-SQLITE", what),
    }
}

/// The tables are not there. Nothing is lost: events cannot have been written without them.
pub(super) fn schema_missing(what: impl Into<String>) -> Failure {
    Failure::misconfigured("E-SCHEMA-MISSING", what)
        .with_fix("run `semel migrate up --database URL`")
}

fn busy(what: String) -> Failure {
    Failure::unavailable("E-SQLITE-BUSY", what).with_fix(
        "look for a program that keeps a write transaction open, or raise the busy timeout",
    )
}

fn down(what: String) -> Failure {
    Failure::unavailable("E-SQLITE-DOWN", what).with_fix("check the disk: space, quota, hardware")
}

fn access(what: String) -> Failure {
    Failure::misconfigured("E-SQLITE-ACCESS", what).with_fix(
        "check that the file and its folder exist and that this user may write to both; \
             `semel migrate up --database URL` makes the file",
    )
}

#[cfg(test)]
mod tests {
    use semel_core::Fault;

    use super::*;

    #[test]
    fn every_line_of_the_table_holds() {
        let cases = [
            (5, "database is locked", Fault::Unavailable, "E-SQLITE-BUSY"),
            (6, "database table is locked", Fault::Unavailable, "E-SQLITE-BUSY"),
            (13, "database or disk is full", Fault::Unavailable, "E-SQLITE-DOWN"),
            (10, "disk I/O error", Fault::Unavailable, "E-SQLITE-DOWN"),
            (1, "no such table: semel_outbox", Fault::Misconfigured, "E-SCHEMA-MISSING"),
            (1, "no such column: ahead", Fault::Misconfigured, "E-SCHEMA-MISSING"),
            (14, "unable to open database file", Fault::Misconfigured, "E-SQLITE-ACCESS"),
            (8, "attempt to write a readonly database", Fault::Misconfigured, "E-SQLITE-ACCESS"),
            (26, "file is not a database", Fault::Misconfigured, "E-SQLITE-CORRUPT"),
            (19, "NOT NULL constraint failed", Fault::Refused, "E-SQLITE-VALUE"),
            (1, "something else", Fault::Transient, "E-SQLITE"),
        ];
        for (code, message, fault, expected) in cases {
            let failure = by_result_code(code, message, "cannot".into());
            assert_eq!((failure.fault(), failure.code()), (fault, expected), "{code} {message}");
        }
        let timed_out = failure("read")(sqlx::Error::PoolTimedOut);
        assert_eq!(timed_out.code(), "E-SQLITE-BUSY");
    }
}
