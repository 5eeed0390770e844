//! A connection on which the server sends its binary log, and the task that listens to it.

use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::future::{BoxFuture, FutureExt};
use mysql_async::binlog::EventType;
use mysql_async::prelude::Queryable;
use mysql_async::{BinlogStream, BinlogStreamRequest, Conn, Row};
use semel_core::Failure;
use sqlx::mysql::MySqlConnectOptions;
use tokio::task::AbortHandle;
use tokio::time::timeout;
use uuid::Uuid;

use super::address;
use super::bell::Bell;
use super::ear::Ear;
use super::refusal::{self, lost, of_session};

/// What the log tells, as long as this value lives.
pub(in super::super) struct Session {
    pub(in super::super) bell: Arc<Bell>,
    listening: AbortHandle,
}

impl Session {
    /// Connects, and asks for the log from its present end on.
    pub(super) async fn open(
        options: &MySqlConnectOptions,
        pipeline: &str,
    ) -> Result<Self, Failure> {
        let database = options.get_database().unwrap_or_default();
        let mut connection = address::connect(options).await?;
        let refused = |error| of_session(&error);
        check(&mut connection).await.map_err(refused)??;
        claim(&mut connection, &lock_name(database, pipeline)).await.map_err(refused)?;
        connection.query_drop(PULSE).await.map_err(refused)?;
        let (file, position) = end_of_log(&mut connection).await.map_err(refused)??;
        let request = BinlogStreamRequest::new(server_id())
            .with_hostname(b"semel")
            .with_filename(file.as_bytes())
            .with_pos(position);
        let mut log = connection.get_binlog_stream(request).await.map_err(refused)?;
        await_beginning(&mut log).await?;
        let bell = Arc::new(Bell::default());
        let listening = listen(log, Ear::new(database), Ringing(Arc::clone(&bell)));
        Ok(Self { bell, listening: tokio::spawn(listening).abort_handle() })
    }
}

impl crate::tailing::Session for Session {
    fn ended(&self) -> Option<Failure> {
        self.bell.ended()
    }

    fn news(&self) -> BoxFuture<'static, ()> {
        Arc::clone(&self.bell).news().boxed()
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        self.listening.abort();
    }
}

/// The lock that a session holds while it lives, by which others know of it.
pub(super) fn lock_name(database: &str, pipeline: &str) -> String {
    let mut hash = blake3::Hasher::new();
    hash.update(database.as_bytes()).update(&[0]).update(pipeline.as_bytes());
    format!("semel_tail_{}", &hash.finalize().to_hex()[..32])
}

/// An idle server says every second that it is still there, and so learns who is not. The names are
/// those of MariaDB and of newer versions of MySQL. MariaDB sends its own kinds of events only to
/// those who know them.
const PULSE: &str = "SET @master_heartbeat_period = 1000000000, \
    @source_heartbeat_period = 1000000000, @mariadb_slave_capability = 4";
const SILENCE: Duration = Duration::from_secs(5);

/// Whether the log tells of rows.
async fn check(connection: &mut Conn) -> mysql_async::Result<Result<(), Failure>> {
    const SETTINGS: &str = "SHOW GLOBAL VARIABLES WHERE Variable_name IN \
        ('log_bin', 'binlog_format', 'binlog_transaction_compression')";
    let settings: Vec<(String, String)> = connection.query(SETTINGS).await?;
    for (name, value) in settings {
        match (name.as_str(), value.as_str()) {
            ("log_bin", "OFF") => return Ok(Err(refusal::no_log())),
            ("binlog_format", format) if format != "ROW" => {
                return Ok(Err(refusal::format(format)));
            }
            ("binlog_transaction_compression", "ON") => return Ok(Err(refusal::compressed())),
            _ => {}
        }
    }
    Ok(Ok(()))
}

/// Whoever was killed holds the lock until the server notices, and that is no reason not to tail.
async fn claim(connection: &mut Conn, lock: &str) -> mysql_async::Result<()> {
    match connection.query_drop(format!("DO get_lock('{lock}', 3)")).await {
        // A cluster may have no such locks.
        Err(mysql_async::Error::Server(_)) | Ok(()) => Ok(()),
        Err(error) => Err(error),
    }
}

async fn end_of_log(connection: &mut Conn) -> mysql_async::Result<Result<(String, u64), Failure>> {
    const UNKNOWN_STATEMENT: u16 = 1064;
    let mut status: mysql_async::Result<Option<Row>> =
        connection.query_first("SHOW MASTER STATUS").await;
    if let Err(mysql_async::Error::Server(error)) = &status
        && error.code == UNKNOWN_STATEMENT
    {
        status = connection.query_first("SHOW BINARY LOG STATUS").await;
    }
    let end = status?.and_then(|row| Some((row.get_opt(0)?.ok()?, row.get_opt(1)?.ok()?)));
    Ok(end.ok_or_else(refusal::no_log))
}

/// Unlike that of any replica: the server cuts off who comes with the number of another.
fn server_id() -> u32 {
    const UPPER_HALF: u32 = 1 << 31;
    let (_, random) = Uuid::now_v7().as_u64_pair();
    u32::try_from(random & u64::from(u32::MAX)).unwrap_or_default() | UPPER_HALF
}

/// The first events say how the others are to be read; what is refused is refused before them.
async fn await_beginning(log: &mut BinlogStream) -> Result<(), Failure> {
    while let Some(event) = log.next().await {
        let event = event.map_err(|error| of_session(&error))?;
        if event.header().event_type_raw() == EventType::FORMAT_DESCRIPTION_EVENT as u8 {
            return Ok(());
        }
    }
    Err(lost("the server ended the connection"))
}

/// A bell that says so when nobody rings it any more, whatever the reason.
struct Ringing(Arc<Bell>);

impl Drop for Ringing {
    fn drop(&mut self) {
        self.0.end(lost("what came was not understood"));
    }
}

async fn listen(mut log: BinlogStream, mut ear: Ear, bell: Ringing) {
    let why = loop {
        let event = match timeout(SILENCE, log.next()).await {
            Ok(Some(Ok(event))) => event,
            Ok(Some(Err(error))) => break of_session(&error),
            Ok(None) => break lost("the server ended the connection"),
            Err(_) => break lost("the server has been silent for 5 seconds"),
        };
        match ear.hear(&event) {
            Ok(true) => bell.0.ring(),
            Ok(false) => {}
            Err(error) => break lost(&error.to_string()),
        }
    };
    bell.0.end(why);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn locks_have_names_that_the_server_takes() {
        let name = lock_name("shop", &"x".repeat(100));
        assert!(name.len() < 64, "{name}");
        assert_ne!(lock_name("shop", "orders"), lock_name("shop2", "orders"));
        assert_ne!(lock_name("a", "bc"), lock_name("ab", "c"));
    }

    /// The client library panics on some of what a broken server may send.
    #[tokio::test]
    async fn a_session_that_panics_has_ended() {
        let bell = Arc::new(Bell::default());
        let ringing = Ringing(Arc::clone(&bell));
        let listening = tokio::spawn(async move {
            let _ringing = ringing;
            panic!("shorter than it says");
        });
        assert!(listening.await.is_err());
        assert_eq!(bell.ended().unwrap().code(), "E-TAIL-LOST");
    }

    #[test]
    fn server_ids_are_large_and_differ() {
        let (one, two) = (server_id(), server_id());
        assert!(one >= 1 << 31 && two >= 1 << 31);
        assert_ne!(one, two);
    }
}
