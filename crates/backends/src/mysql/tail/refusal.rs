//! Why the log cannot be tailed, and what to do about it. In any case events are polled for.
//!
//! | what the server says | fault | code |
//! |---|---|---|
//! | `log_bin` is off | misconfigured | `E-TAIL-LOG` |
//! | `binlog_format` is not `ROW` | misconfigured | `E-TAIL-FORMAT` |
//! | `binlog_transaction_compression` is on | misconfigured | `E-TAIL-COMPRESSED` |
//! | 1227, 1045 the user has not REPLICATION SLAVE and REPLICATION CLIENT | misconfigured | `E-TAIL-PRIVILEGE` |
//! | 1044 1045 1130 1251 1698 the connection is not let in | misconfigured | `E-TAIL-LOGIN` |
//! | 1047 no such command: a proxy in between | misconfigured | `E-TAIL-POOLER` |
//! | TLS that this program was built without, or cannot do | misconfigured | `E-TAIL-TLS` |
//! | anything else: the log was purged, another has the same server id, the connection was lost | unavailable | `E-TAIL-LOST` |
//! | the log is slower than polling | unavailable | `E-TAIL-BEHIND` |

use mysql_async::{DriverError, Error, IoError};
use semel_core::Failure;

pub(super) fn no_log() -> Failure {
    Failure::misconfigured("E-TAIL-LOG", "MySQL: the server keeps no binary log (log_bin is off)")
        .with_fix("start the server with --log-bin --binlog-format=ROW --server-id=1")
}

pub(super) fn format(format: &str) -> Failure {
    let what = format!("MySQL: binlog_format is {format}: the log does not tell of rows");
    Failure::misconfigured("E-TAIL-FORMAT", what)
        .with_fix("run `SET GLOBAL binlog_format = ROW`, and set it in the server's configuration")
}

pub(super) fn compressed() -> Failure {
    let what = "MySQL: the log has compressed transactions, which are unpacked in memory";
    Failure::misconfigured("E-TAIL-COMPRESSED", what)
        .with_fix("run `SET GLOBAL binlog_transaction_compression = OFF`, or poll")
}

#[cfg(any(test, not(feature = "tls")))]
pub(super) fn no_tls() -> Failure {
    let what = "MySQL: the URL asks for TLS, which this program was built without";
    Failure::misconfigured("E-TAIL-TLS", what).with_fix("build it with the feature \"tls\"")
}

/// The session ended, or could not be opened now.
pub(super) fn lost(what: &str) -> Failure {
    Failure::unavailable("E-TAIL-LOST", format!("MySQL: cannot tail the log: {what}"))
}

/// There is no connection.
pub(super) fn of_login(error: &Error) -> Failure {
    match error {
        Error::Server(server) if matches!(server.code, 1044 | 1045 | 1130 | 1251 | 1698) => {
            let what = format!("MySQL: the connection for the log is not let in: {server}");
            Failure::misconfigured("E-TAIL-LOGIN", what)
                .with_fix("check user and password of the URL")
        }
        other => of_session(other),
    }
}

/// The session could not be opened, or ended.
pub(super) fn of_session(error: &Error) -> Failure {
    let what = format!("MySQL: cannot tail the log: {error}");
    match error {
        Error::Server(server) => match server.code {
            1045 | 1227 => Failure::misconfigured("E-TAIL-PRIVILEGE", what).with_fix(
                "run `GRANT REPLICATION SLAVE, REPLICATION CLIENT ON *.* TO NAME`, with the user of \
                 the URL",
            ),
            1047 => Failure::misconfigured("E-TAIL-POOLER", what)
                .with_fix("give the address of the server itself, not of a proxy"),
            _ => lost(&server.to_string()),
        },
        Error::Driver(DriverError::NoClientSslFlagFromServer) => tls(what),
        Error::Io(io) if is_tls(io) => tls(what),
        other => lost(&other.to_string()),
    }
}

pub(super) fn tls(what: String) -> Failure {
    Failure::misconfigured("E-TAIL-TLS", what).with_fix("check ssl-mode and ssl-ca of the URL")
}

fn is_tls(error: &IoError) -> bool {
    !matches!(error, IoError::Io(_))
}

#[cfg(test)]
mod tests {
    use mysql_async::ServerError;
    use semel_core::Fault;

    use super::*;

    fn server(code: u16) -> Error {
        Error::Server(ServerError { code, message: "it says so".into(), state: "HY000".into() })
    }

    #[test]
    fn every_line_of_the_table_holds() {
        let cases = [
            (of_session(&server(1227)), Fault::Misconfigured, "E-TAIL-PRIVILEGE"),
            (of_session(&server(1045)), Fault::Misconfigured, "E-TAIL-PRIVILEGE"),
            (of_login(&server(1045)), Fault::Misconfigured, "E-TAIL-LOGIN"),
            (of_login(&server(1130)), Fault::Misconfigured, "E-TAIL-LOGIN"),
            (of_login(&server(1040)), Fault::Unavailable, "E-TAIL-LOST"),
            (of_session(&server(1047)), Fault::Misconfigured, "E-TAIL-POOLER"),
            (of_session(&server(1236)), Fault::Unavailable, "E-TAIL-LOST"),
            (of_session(&server(1927)), Fault::Unavailable, "E-TAIL-LOST"),
            (
                of_session(&Error::Driver(DriverError::ConnectionClosed)),
                Fault::Unavailable,
                "E-TAIL-LOST",
            ),
            (
                of_session(&Error::Driver(DriverError::NoClientSslFlagFromServer)),
                Fault::Misconfigured,
                "E-TAIL-TLS",
            ),
        ];
        for (failure, fault, code) in cases {
            assert_eq!((failure.fault(), failure.code()), (fault, code), "{failure}");
        }
    }

    #[test]
    fn what_is_wrong_in_the_set_up_says_what_to_run() {
        for failure in [no_log(), format("MIXED"), compressed(), no_tls()] {
            assert_eq!(failure.fault(), Fault::Misconfigured);
            assert!(failure.fix().is_some(), "{failure:?}");
        }
    }
}
