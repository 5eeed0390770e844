//! Which error of Redis is which [`Fault`](semel_core::Fault).
//!
//! | what the server or the client says | fault | code |
//! |---|---|---|
//! | no connection, connection lost, too many clients | unavailable | `E-REDIS-DOWN` |
//! | `LOADING`, `READONLY`, `MASTERDOWN`, `CLUSTERDOWN`, `TRYAGAIN`, `ASK`, `BUSY`, `MISCONF`, `NOREPLICAS` | unavailable | `E-REDIS-DOWN` |
//! | `OOM` | unavailable | `E-REDIS-MEMORY` |
//! | no answer in time | unavailable | `E-REDIS-TIMEOUT` |
//! | a field is larger than `proto-max-bulk-len` | refused | `E-REDIS-TOO-LARGE` |
//! | any other error of the server to a message | transient | `E-REDIS-REJECTED` |
//! | `WRONGTYPE` | misconfigured | `E-REDIS-TYPE` |
//! | `NOAUTH`, `WRONGPASS`, `NOPERM` | misconfigured | `E-REDIS-ACCESS` |
//! | `MOVED`, `CROSSSLOT` | misconfigured | `E-REDIS-CLUSTER` |
//! | `MOVED`, for a stream that the node had a moment ago | unavailable | `E-REDIS-DOWN` |
//! | a command of a handler fails, and nothing took effect | transient | `E-REDIS-EFFECT` |
//! | a command of a handler fails after others took effect | refused | `E-REDIS-EFFECT-HALF` |
//! | another consumer takes long with the same message | transient | `E-REDIS-INBOX-BUSY` |
//! | the handler took longer than the lease | transient | `E-REDIS-INBOX-LATE` |
//! | the server lacks a command or the database | misconfigured | `E-REDIS-SERVER` |
//! | the certificate is not trusted, or a file cannot be read | misconfigured | `E-REDIS-TLS` |

use std::fmt;
use std::time::Duration;

use redis::{RedisError, ServerError};
use semel_core::{Failure, Fault};

/// Why `doing` did not succeed.
pub(super) fn failure(doing: impl fmt::Display, error: RedisError) -> Failure {
    if let Some((_, first)) =
        error.clone().into_server_errors().and_then(|all| all.first().cloned())
    {
        return said(doing, &first);
    }
    let text = error.to_string();
    let verdict =
        if text.contains("certificate") || text.contains("corrupt message") { TLS } else { DOWN };
    made(verdict, &format!("{doing}: {text}")).with_source(error)
}

/// What the server said when `doing` did not succeed.
pub(super) fn said(doing: impl fmt::Display, error: &ServerError) -> Failure {
    let details = error.details().unwrap_or_default();
    // `EXEC` puts its own word before that of the cause.
    let cause = details.split_once("because of: ").filter(|_| error.code() == "EXECABORT");
    let (code, details) = match cause {
        Some((_, cause)) => cause.split_once(' ').unwrap_or((cause, "")),
        None => (error.code(), details),
    };
    made(by_word(code, details), &format!("{doing}: {code} {details}"))
}

pub(super) fn too_large(bytes: usize, limit: usize) -> Failure {
    made(TOO_LARGE, &format!("a field has {bytes} bytes, the limit is {limit}"))
}

pub(super) fn timed_out(limit: Duration) -> Failure {
    let what = format!("Redis: no answer within {limit:?}");
    Failure::unavailable("E-REDIS-TIMEOUT", what).with_fix("check whether the server hangs")
}

/// A node does not have any more what was just written there.
pub(super) fn gave_away(failure: Failure) -> Failure {
    made(DOWN, "the node has given the stream to another one").with_source(failure)
}

pub(super) fn strange_answer(doing: impl fmt::Display) -> Failure {
    made(REJECTED, &format!("{doing}: the answer makes no sense"))
}

/// A command of a handler failed before any other took effect; `said` is the server's answer.
pub(super) fn no_effect(said: &str) -> Failure {
    let (code, details) = said.split_once(' ').unwrap_or((said, ""));
    let told = by_word(code, details);
    let verdict = if told.0 == Fault::Unavailable { told } else { EFFECT };
    made(verdict, &format!("a command of the handler failed: {said}"))
}

/// A command of a handler failed after others had taken effect; `said` is the server's answer.
pub(super) fn half_an_effect(said: &str) -> Failure {
    let what = "a command of the handler failed after others had taken effect, and none is undone";
    made(EFFECT_HALF, &format!("{what}: {said}"))
}

pub(super) fn busy(waited: Duration) -> Failure {
    made(BUSY, &format!("another consumer has had the same message in hand for {waited:?}"))
}

pub(super) fn too_late(lease: Duration) -> Failure {
    let what = format!("the handler took longer than {lease:?}, so nothing took effect");
    made(LATE, &what)
}

#[cfg(feature = "tls")]
pub(super) fn unreadable(
    file: &str,
    error: impl std::error::Error + Send + Sync + 'static,
) -> Failure {
    made(TLS, &format!("cannot use {file}: {error}")).with_source(error)
}

type Verdict = (Fault, &'static str, &'static str);

/// Another node of the cluster has the name.
pub(super) const CLUSTER_CODE: &str = "E-REDIS-CLUSTER";

/// The server cannot be reached or takes no writes.
pub(super) const DOWN_CODE: &str = "E-REDIS-DOWN";

const DOWN: Verdict = (
    Fault::Unavailable,
    DOWN_CODE,
    "check that the server runs and takes writes, and that host and port of the URL are right",
);
const MEMORY: Verdict = (
    Fault::Unavailable,
    "E-REDIS-MEMORY",
    "raise maxmemory; trim streams with XTRIM or max_len, keep keys for a shorter time",
);
const TOO_LARGE: Verdict = (
    Fault::Refused,
    "E-REDIS-TOO-LARGE",
    "send less, or raise proto-max-bulk-len of the server (and max_field_bytes)",
);
const REJECTED: Verdict =
    (Fault::Transient, "E-REDIS-REJECTED", "look at the server's log, and at the event");
const EFFECT: Verdict =
    (Fault::Transient, "E-REDIS-EFFECT", "correct the command that the handler queues");
const EFFECT_HALF: Verdict = (
    Fault::Refused,
    "E-REDIS-EFFECT-HALF",
    "set the data right by hand, and correct the command that the handler queues",
);
const BUSY: Verdict = (
    Fault::Transient,
    "E-REDIS-INBOX-BUSY",
    "nothing, it is tried again; see whether a handler hangs",
);
const LATE: Verdict = (
    Fault::Transient,
    "E-REDIS-INBOX-LATE",
    "make the handler faster, its batch smaller, or the lease of the inbox longer",
);
const TYPE: Verdict = (
    Fault::Misconfigured,
    "E-REDIS-TYPE",
    "the name is taken by something else: set key_prefix, or route to another topic",
);
const ACCESS: Verdict = (
    Fault::Misconfigured,
    "E-REDIS-ACCESS",
    "check user and password, and the rights that docs/backends/redis.md lists",
);
const CLUSTER: Verdict = (
    Fault::Misconfigured,
    CLUSTER_CODE,
    "use the URL of the node that has the slot, with a hash tag as key_prefix: {shop}:",
);
const SERVER: Verdict = (
    Fault::Misconfigured,
    "E-REDIS-SERVER",
    "use Redis 6.2 or later with XADD, MULTI and EXEC, and a database that it has",
);
const TLS: Verdict = (
    Fault::Misconfigured,
    "E-REDIS-TLS",
    "check that the port speaks TLS and that ca_file signs its certificate",
);

fn by_word(code: &str, details: &str) -> Verdict {
    match code {
        "LOADING" | "READONLY" | "MASTERDOWN" | "CLUSTERDOWN" | "TRYAGAIN" | "ASK" | "BUSY"
        | "MISCONF" | "NOREPLICAS" => DOWN,
        "OOM" => MEMORY,
        "WRONGTYPE" => TYPE,
        "NOAUTH" | "WRONGPASS" | "NOPERM" => ACCESS,
        "MOVED" | "CROSSSLOT" => CLUSTER,
        "ERR" if details.contains("max number of clients") => DOWN,
        "ERR" if details.contains("invalid bulk length") => TOO_LARGE,
        "ERR" if details.contains("AUTH") => ACCESS,
        "ERR"
            if ["unknown command", "DB index", "SELECT is not allowed"]
                .iter()
                .any(|start| details.starts_with(start)) =>
        {
            SERVER
        }
        _ => REJECTED,
    }
}

fn made((fault, code, fix): Verdict, what: &str) -> Failure {
    Failure::new(fault, code, format!("Redis: {what}")).with_fix(fix)
}

#[cfg(test)]
mod tests {
    use redis::{Value, parse_redis_value};

    use super::*;

    fn heard(line: &str) -> Failure {
        let answer = parse_redis_value(format!("-{line}\r\n").as_bytes()).unwrap();
        let error = if let Value::ServerError(error) = answer { Some(error) } else { None };
        said("add", &error.unwrap())
    }

    #[test]
    fn every_word_of_the_server_has_its_line() {
        let cases = [
            ("LOADING Redis is loading the dataset in memory", DOWN),
            ("READONLY You can't write against a read only replica.", DOWN),
            ("MASTERDOWN Link with MASTER is down", DOWN),
            ("CLUSTERDOWN The cluster is down", DOWN),
            ("TRYAGAIN Multiple keys request during rehashing of slot", DOWN),
            ("ASK 3999 127.0.0.1:6381", DOWN),
            ("BUSY Redis is busy running a script", DOWN),
            ("MISCONF Redis is configured to save RDB snapshots", DOWN),
            ("NOREPLICAS Not enough good replicas to write.", DOWN),
            ("ERR max number of clients reached", DOWN),
            ("OOM command not allowed when used memory > 'maxmemory'.", MEMORY),
            ("ERR Protocol error: invalid bulk length", TOO_LARGE),
            ("WRONGTYPE Operation against a key", TYPE),
            ("NOAUTH Authentication required.", ACCESS),
            ("WRONGPASS invalid username-password pair", ACCESS),
            ("NOPERM No permissions to access a key", ACCESS),
            ("ERR AUTH <password> called without any password configured", ACCESS),
            ("MOVED 3999 127.0.0.1:6381", CLUSTER),
            ("CROSSSLOT Keys in request don't hash to the same slot", CLUSTER),
            ("ERR unknown command 'XADD'", SERVER),
            ("ERR DB index is out of range", SERVER),
            ("ERR SELECT is not allowed in cluster mode", SERVER),
            ("ERR The stream has exhausted the last possible ID", REJECTED),
        ];
        for (line, expected) in cases {
            let failure = heard(line);
            let got = (failure.fault(), failure.code(), failure.fix().unwrap());
            assert_eq!(got, expected, "{line}");
            assert!(failure.to_string().contains(line), "{failure}");
        }
    }

    #[test]
    fn exec_names_the_cause() {
        let failure = heard("EXECABORT Transaction discarded because of: OOM command not allowed");
        assert_eq!(failure.code(), "E-REDIS-MEMORY");
        assert!(failure.to_string().contains("OOM command not allowed"), "{failure}");
    }
}
