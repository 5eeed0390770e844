//! Why the log cannot be tailed, and what to do about it. In any case events are polled for.
//!
//! | what the server says | fault | code |
//! |---|---|---|
//! | `wal_level` is not `logical` | misconfigured | `E-TAIL-WAL-LEVEL` |
//! | PostgreSQL 13 | misconfigured | `E-TAIL-VERSION` |
//! | 42501 the user has not REPLICATION | misconfigured | `E-TAIL-PRIVILEGE` |
//! | 28 the connection is not let in | misconfigured | `E-TAIL-LOGIN` |
//! | the publication is missing and may not be made, or is of another table | misconfigured | `E-TAIL-PUBLICATION` |
//! | 08P01, or no answer that makes sense: a pooler in between | misconfigured | `E-TAIL-POOLER` |
//! | TLS that this program was built without, or cannot do, or a certificate that is not trusted | misconfigured | `E-TAIL-TLS` |
//! | 53300, 53400 no slot or sender is free | unavailable | `E-TAIL-SLOTS` |
//! | 55P03 a transaction has been open for long | unavailable | `E-TAIL-WAITS` |
//! | anything else: the connection, the slot or the publication was lost | unavailable | `E-TAIL-LOST` |
//! | the log is slower than polling | unavailable | `E-TAIL-BEHIND` |
//! | more log is held back than may be | unavailable | `E-TAIL-BUDGET` |

use pgwire_replication::PgWireError;
use semel_core::Failure;

use super::publication::publication_sql;

pub(in super::super) fn too_old() -> Failure {
    Failure::misconfigured("E-TAIL-VERSION", "PostgreSQL: the log is tailed from version 14 on")
        .with_fix("write mode = \"poll\" in the source, or upgrade the server")
}

pub(in super::super) fn wal_level(level: &str) -> Failure {
    let what = format!("PostgreSQL: wal_level is {level}, which tells nothing of rows");
    Failure::misconfigured("E-TAIL-WAL-LEVEL", what)
        .with_fix("run `alter system set wal_level = logical` and restart the server")
}

pub(super) fn wrong_publication() -> Failure {
    let what =
        "PostgreSQL: the publication semel_outbox does not tell of inserts into semel.outbox";
    let fix = format!("run `drop publication semel_outbox`, then `{}`", publication_sql());
    Failure::misconfigured("E-TAIL-PUBLICATION", what).with_fix(fix)
}

pub(super) fn no_publication() -> Failure {
    let what = "PostgreSQL: there is no publication semel_outbox, and this user may not create it";
    let fix = format!("run `{}` as the owner of the table", publication_sql());
    Failure::misconfigured("E-TAIL-PUBLICATION", what).with_fix(fix)
}

pub(super) fn no_tls() -> Failure {
    let what = "PostgreSQL: the URL asks for TLS, which this program was built without";
    Failure::misconfigured("E-TAIL-TLS", what).with_fix("build it with the feature \"tls\"")
}

pub(super) fn too_slow() -> Failure {
    waits("PostgreSQL: no replication slot within 90 seconds")
}

/// Somebody has a transaction open, and the slot holds back what was written since.
pub(super) fn over_budget(bytes: u64) -> Failure {
    let what =
        format!("PostgreSQL: tailing holds back more than {} MiB of log", bytes / (1024 * 1024));
    Failure::unavailable("E-TAIL-BUDGET", what).with_fix(
        "every slot holds back the log of transactions that are open: look for long ones with \
         `semel check`",
    )
}

/// The session ended without a reason.
pub(in super::super) fn refused(what: impl Into<String>) -> Failure {
    Failure::unavailable("E-TAIL-LOST", format!("PostgreSQL: cannot tail the log: {}", what.into()))
}

/// The session could not be opened, or ended.
pub(in super::super) fn of_session(error: &PgWireError) -> Failure {
    match error {
        PgWireError::Server(message) => of_server(sqlstate(message), message),
        PgWireError::Auth(message) => login(message),
        PgWireError::Tls(message) if is_broken_off(message) => refused(message),
        PgWireError::Tls(message) => {
            Failure::misconfigured("E-TAIL-TLS", format!("PostgreSQL: cannot tail: {message}"))
                .with_fix("check sslmode and sslrootcert of the URL")
        }
        other => refused(other.to_string()),
    }
}

/// Whether the server went away in the middle of the handshake, which says nothing of the set-up.
fn is_broken_off(message: &str) -> bool {
    const HANDSHAKE: &str = "TLS handshake failed: ";
    /// The end of the stream, and whatever the operating system says of a connection.
    const LOST: [&str; 3] = ["handshake eof", "closed connection", "(os error "];
    let why = message.strip_prefix(HANDSHAKE).unwrap_or_default();
    !why.contains("certificate") && LOST.iter().any(|lost| why.contains(lost))
}

/// What a pooler lends is no session of ours.
pub(in super::super) fn behind_a_pooler() -> Failure {
    pooler("PostgreSQL: cannot tail the log: there is a pooler in between".into())
}

fn pooler(what: String) -> Failure {
    Failure::misconfigured("E-TAIL-POOLER", what)
        .with_fix("give the address of the server itself, not of a pooler")
}

fn of_server(code: &str, message: &str) -> Failure {
    let what = format!("PostgreSQL: cannot tail the log: {message}");
    match code {
        "42501" => Failure::misconfigured("E-TAIL-PRIVILEGE", what).with_fix(
            "run `alter role NAME with replication` as a superuser, with the user of the URL",
        ),
        "08P01" => pooler(what),
        "53300" | "53400" => Failure::unavailable("E-TAIL-SLOTS", what)
            .with_fix("raise max_replication_slots and max_wal_senders: one for each pipeline"),
        "55P03" => waits(&what),
        _ if code.starts_with("28") => login(message),
        _ => refused(message),
    }
}

fn login(message: &str) -> Failure {
    let what = format!("PostgreSQL: a replication connection is not let in: {message}");
    Failure::misconfigured("E-TAIL-LOGIN", what)
        .with_fix("check user and password of the URL, and pg_hba.conf")
}

fn waits(what: &str) -> Failure {
    Failure::unavailable("E-TAIL-WAITS", what).with_fix(
        "a slot is made when the transactions that were open have ended: look for long ones in \
         pg_stat_activity",
    )
}

fn sqlstate(message: &str) -> &str {
    const LABEL: &str = "SQLSTATE ";
    let code = message.find(LABEL).and_then(|at| message.get(at + LABEL.len()..));
    code.and_then(|code| code.get(..5)).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use semel_core::Fault;

    use super::*;

    #[test]
    fn every_line_of_the_table_holds() {
        let cases = [
            ("42501", Fault::Misconfigured, "E-TAIL-PRIVILEGE"),
            ("28000", Fault::Misconfigured, "E-TAIL-LOGIN"),
            ("28P01", Fault::Misconfigured, "E-TAIL-LOGIN"),
            ("08P01", Fault::Misconfigured, "E-TAIL-POOLER"),
            ("53300", Fault::Unavailable, "E-TAIL-SLOTS"),
            ("53400", Fault::Unavailable, "E-TAIL-SLOTS"),
            ("55P03", Fault::Unavailable, "E-TAIL-WAITS"),
            ("55006", Fault::Unavailable, "E-TAIL-LOST"),
            ("42704", Fault::Unavailable, "E-TAIL-LOST"),
            ("57P01", Fault::Unavailable, "E-TAIL-LOST"),
        ];
        for (state, fault, code) in cases {
            let error = PgWireError::Server(format!("it says so (SQLSTATE {state})"));
            let failure = of_session(&error);
            assert_eq!((failure.fault(), failure.code()), (fault, code), "{state}");
        }
    }

    /// What is taken for a fault of the set-up ends a relay with `mode = "tail"` for good.
    #[test]
    fn a_server_that_dies_in_the_handshake_is_an_outage() {
        let cases = [
            ("tls handshake eof", Fault::Unavailable),
            ("Connection reset by peer (os error 104)", Fault::Unavailable),
            ("Broken pipe (os error 32)", Fault::Unavailable),
            ("peer closed connection without sending TLS close_notify", Fault::Unavailable),
            ("invalid peer certificate: UnknownIssuer", Fault::Misconfigured),
            ("invalid peer certificate: certificate expired", Fault::Misconfigured),
            ("received fatal alert: HandshakeFailure", Fault::Misconfigured),
        ];
        for (why, fault) in cases {
            let failure = of_session(&PgWireError::Tls(format!("TLS handshake failed: {why}")));
            assert_eq!(failure.fault(), fault, "{why}");
        }
        let refused = PgWireError::Tls("server does not support TLS (SSLRequest rejected)".into());
        assert_eq!(of_session(&refused).code(), "E-TAIL-TLS");
    }

    #[test]
    fn what_is_wrong_in_the_set_up_says_what_to_run() {
        let all =
            [too_old(), wal_level("replica"), wrong_publication(), no_publication(), no_tls()];
        for failure in all {
            assert_eq!(failure.fault(), Fault::Misconfigured);
            assert!(failure.fix().is_some(), "{failure:?}");
        }
    }
}
