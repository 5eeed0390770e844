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
    /// The names of transactions that added to it and are neither committed nor rolled back.
    prepared: Vec<Vec<u8>>,
}

/// MariaDB's own kinds, with `log_bin_compress`.
const WRITE_ROWS_COMPRESSED_V1: u8 = 166;
const WRITE_ROWS_COMPRESSED: u8 = 169;

impl Ear {
    /// Others are found by the next look.
    const MOST_PREPARED: usize = 256;

    pub(super) fn new(database: &str) -> Self {
        let database = database.as_bytes().to_owned();
        let prepared = Vec::new();
        Self { database, named_a_table: false, concerns_us: false, added: false, prepared }
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

    /// BEGIN, COMMIT, or a statement that stands for itself. Of a transaction in two phases the rows
    /// come first, up to XA END, and whether it was committed may come much later.
    fn hear_statement(&mut self, statement: &[u8]) -> bool {
        let added = self.end();
        if let Some(name) = after(b"XA END ", statement) {
            if added && self.prepared.len() < Self::MOST_PREPARED {
                self.prepared.push(name.to_owned());
            }
            return false;
        }
        if let Some(name) = after(b"XA COMMIT ", statement) {
            return self.forget(name);
        }
        if let Some(name) = after(b"XA ROLLBACK ", statement) {
            self.forget(name);
            return false;
        }
        added
    }

    /// Says whether a transaction was prepared that has this name.
    fn forget(&mut self, name: &[u8]) -> bool {
        let known = self.prepared.len();
        self.prepared.retain(|prepared| !name.starts_with(prepared));
        self.prepared.len() < known
    }

    fn end(&mut self) -> bool {
        self.concerns_us = false;
        std::mem::take(&mut self.added)
    }
}

/// The rest of a statement that begins like this.
fn after<'s>(begin: &[u8], statement: &'s [u8]) -> Option<&'s [u8]> {
    let (found, rest) = statement.split_at_checked(begin.len())?;
    found.eq_ignore_ascii_case(begin).then_some(rest)
}

fn adds(kind: u8) -> bool {
    kind == EventType::WRITE_ROWS_EVENT as u8
        || kind == EventType::WRITE_ROWS_EVENT_V1 as u8
        || kind == WRITE_ROWS_COMPRESSED_V1
        || kind == WRITE_ROWS_COMPRESSED
}

#[cfg(test)]
mod tests {
    use mysql_async::binlog::BinlogVersion;
    use mysql_async::binlog::events::FormatDescriptionEvent;
    use semel_testkit::fuzz::fuzz;

    use super::*;

    /// An event of this kind, as the server would send it.
    fn event(kind: u8, data: &[u8]) -> Event {
        const HEADER: usize = 19;
        let size = u32::try_from(HEADER + data.len()).unwrap().to_le_bytes();
        let mut bytes = [&[0; 4], [kind].as_slice(), &[0; 4], &size, &[0; 6]].concat();
        bytes.extend_from_slice(data);
        Event::read(&FormatDescriptionEvent::new(BinlogVersion::Version4), &*bytes).unwrap()
    }

    fn table(database: &str, table: &str) -> Vec<u8> {
        let name = |name: &str| [&[name.len() as u8], name.as_bytes(), &[0]].concat();
        let columns = [1, 8, 0, 0];
        [[0; 8].as_slice(), &name(database), &name(table), &columns].concat()
    }

    fn statement(text: &str) -> Vec<u8> {
        [[0; 13].as_slice(), &[0], text.as_bytes()].concat()
    }

    const TABLE: u8 = EventType::TABLE_MAP_EVENT as u8;
    const WRITE: u8 = EventType::WRITE_ROWS_EVENT_V1 as u8;
    const UPDATE: u8 = EventType::UPDATE_ROWS_EVENT_V1 as u8;
    const COMMIT: u8 = EventType::XID_EVENT as u8;
    const STATEMENT: u8 = EventType::QUERY_EVENT as u8;

    /// Whether the last of these events rings, and none before it.
    fn rings(events: &[(u8, Vec<u8>)]) -> bool {
        let mut ear = Ear::new("Shop");
        let heard: Vec<_> =
            events.iter().map(|(kind, data)| ear.hear(&event(*kind, data)).unwrap()).collect();
        let (last, before) = heard.split_last().unwrap();
        assert!(!before.contains(&true));
        *last
    }

    #[test]
    fn a_transaction_that_added_to_the_outbox_rings_when_it_is_committed() {
        let ours = || (TABLE, table("shop", "semel_outbox"));
        let other = || (TABLE, table("shop", "orders"));
        let (write, update) = ((WRITE, vec![0; 16]), (UPDATE, vec![0; 16]));
        let commit = (COMMIT, vec![0; 8]);
        let says = |text| (STATEMENT, statement(text));
        assert!(rings(&[ours(), write.clone(), commit.clone()]));
        assert!(rings(&[other(), ours(), write.clone(), commit.clone()]), "a trigger");
        assert!(rings(&[ours(), write.clone(), says("COMMIT")]));
        assert!(rings(&[ours(), (WRITE_ROWS_COMPRESSED_V1, vec![0; 16]), commit.clone()]));
        assert!(!rings(&[ours(), update, commit.clone()]), "numbering");
        assert!(!rings(&[ours(), other(), commit.clone()]), "nothing was written");
        let later = [ours(), write.clone(), other(), write.clone(), says("XA END 'x'")];
        let then = |text| [&later[..], &[says(text)]].concat();
        assert!(!rings(&later), "nothing is committed");
        assert!(rings(&then("XA COMMIT 'x'")));
        assert!(!rings(&then("XA COMMIT 'y'")) && !rings(&then("XA ROLLBACK 'x'")));
        let foreign = (TABLE, table("shop2", "semel_outbox"));
        assert!(!rings(&[foreign, write.clone(), commit.clone()]));
        let after = [ours(), (UPDATE, vec![0; 16]), other(), write, commit];
        assert!(!rings(&after), "another statement wrote, to another table");
    }

    /// Whatever a server sends: it is understood, or the session ends with an error.
    #[test]
    fn fuzzed_any_event_is_heard_or_an_error() {
        let mut examples = vec![vec![WRITE, 0], vec![COMMIT, 0]];
        for data in [table("shop", "semel_outbox"), table("shop", "orders")] {
            examples.push([&[TABLE], &*data].concat());
        }
        examples.push([&[STATEMENT], &*statement("XA COMMIT 'x'")].concat());
        fuzz(&examples, |input| {
            if let Some((kind, data)) = input.split_first() {
                let mut ear = Ear::new("shop");
                ear.hear(&event(*kind, data)).ok();
                ear.hear(&event(COMMIT, &[])).ok();
            }
        });
    }
}
