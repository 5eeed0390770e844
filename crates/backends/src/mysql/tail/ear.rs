//! Which events of the binary log mean that something was added to the outbox.

use std::io;

use mysql_async::binlog::EventType;
use mysql_async::binlog::events::{Event, QueryEvent, TableMapEvent};

/// What was heard of the transaction that the log is in.
///
/// Of other tables nothing is read but their names.
pub(super) struct Ear {
    database: Vec<u8>,
    /// Whether the last event named a table; those of one statement come one after the other.
    named_a_table: bool,
    /// Whether the statement changes the outbox.
    concerns_us: bool,
    /// Whether the transaction added to it.
    added: bool,
}

/// MariaDB's own kinds, with `log_bin_compress`.
const WRITE_ROWS_COMPRESSED_V1: u8 = 166;
const WRITE_ROWS_COMPRESSED: u8 = 169;

impl Ear {
    pub(super) fn new(database: &str) -> Self {
        let database = database.as_bytes().to_owned();
        Self { database, named_a_table: false, concerns_us: false, added: false }
    }

    /// Says whether a transaction ended with this event that added to the outbox.
    ///
    /// # Errors
    /// When the event is none that makes sense.
    pub(super) fn hear(&mut self, event: &Event) -> io::Result<bool> {
        let kind = event.header().event_type_raw();
        let names_a_table = kind == EventType::TABLE_MAP_EVENT as u8;
        if names_a_table {
            self.concerns_us &= self.named_a_table;
            self.concerns_us |= self.is_outbox(&event.read_event()?);
        }
        self.named_a_table = names_a_table;
        if adds(kind) {
            self.added |= self.concerns_us;
        }
        if kind == EventType::XID_EVENT as u8 {
            return Ok(self.end());
        }
        if kind == EventType::QUERY_EVENT as u8 {
            let query: QueryEvent<'_> = event.read_event()?;
            return Ok(self.hear_statement(query.query_raw()));
        }
        Ok(false)
    }

    /// Names may be written in any case, depending on the server; one of another table with such a
    /// name only costs a look.
    fn is_outbox(&self, table: &TableMapEvent<'_>) -> bool {
        table.table_name_raw().eq_ignore_ascii_case(b"semel_outbox")
            && table.database_name_raw().eq_ignore_ascii_case(&self.database)
    }

    /// BEGIN, COMMIT, or a statement that stands for itself.
    fn hear_statement(&mut self, statement: &[u8]) -> bool {
        let begins = |with: &[u8]| {
            statement.get(..with.len()).is_some_and(|begin| begin.eq_ignore_ascii_case(with))
        };
        let ended = self.end();
        // A transaction in two phases is committed by a statement far from its rows, which may be
        // of any table; it is not committed where they are.
        begins(b"XA COMMIT") || (ended && !begins(b"XA "))
    }

    fn end(&mut self) -> bool {
        self.concerns_us = false;
        std::mem::take(&mut self.added)
    }
}

fn adds(kind: u8) -> bool {
    kind == EventType::WRITE_ROWS_EVENT as u8
        || kind == EventType::WRITE_ROWS_EVENT_V1 as u8
        || kind == WRITE_ROWS_COMPRESSED_V1
        || kind == WRITE_ROWS_COMPRESSED
}
