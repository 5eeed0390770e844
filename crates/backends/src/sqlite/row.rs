//! Reading an event back from its row.

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;
use semel_core::{Event, EventId, Failure, Payload, Publication};
use serde_json::Value;
use sqlx::Row;
use sqlx::sqlite::SqliteRow;
use uuid::Uuid;

use super::error::failure;
use super::store::timestamp;
use crate::row::as_headers;

/// The columns of an event, of a table called `o`, in the order [`event`] reads them. What most
/// events do not have is one column, because every value costs some allocations and locks of
/// SQLite on its way here.
macro_rules! event_columns {
    () => {
        event_columns!("o.payload")
    };
    ($payload:literal) => {
        concat!(
            "o.seq, o.id, o.aggregate_type, o.aggregate_id, o.event_type, ",
            $payload,
            ", o.created_at, \
             CASE WHEN o.content_type <> 'application/json' OR o.headers <> '{}' \
                      OR o.idempotency_key IS NOT NULL OR o.available_at IS NOT NULL \
                  THEN json_array(o.content_type, json(o.headers), o.idempotency_key, \
                      o.available_at) END"
        )
    };
}
pub(super) use event_columns;

/// The first column after those of the event.
pub(super) const AFTER_EVENT: usize = 8;

/// The column that most events do not have: content type, headers, key, time.
type Extra = (String, BTreeMap<String, Value>, Option<String>, Option<i64>);

/// The number of a row.
pub(super) fn seq(row: &SqliteRow) -> Result<u64, Failure> {
    let seq: i64 = column(row, 0)?;
    Ok(position(seq))
}

/// The event of a row that begins with [`event_columns`], and what is wrong with it if a writer
/// got past the checks of the table.
pub(super) fn event(row: &SqliteRow) -> Result<(Arc<Event>, Option<Failure>), Failure> {
    let mut fault = None;
    let id = text(row, 1, &mut fault)?.parse::<EventId>().unwrap_or_else(|failure| {
        fault = Some(failure);
        EventId::from_uuid(Uuid::nil())
    });
    let mut text = |index| text(row, index, &mut fault);
    let mut event = Event::with_id(id, text(2)?, text(3)?, text(4)?);
    let payload = Bytes::copy_from_slice(column(row, 5)?);
    event.created_at = timestamp(column(row, 6)?);
    match column::<Option<&[u8]>>(row, 7)?.map(serde_json::from_slice::<Extra>) {
        None => event.payload = Payload::new(Payload::JSON, payload),
        Some(Ok((content_type, headers, key, available_at))) => {
            event.payload = Payload::new(content_type, payload);
            event.headers = as_headers(headers);
            event.custom_key = key;
            event.available_at = available_at.map(timestamp);
        }
        Some(Err(error)) => fault = Some(invalid("the row is not UTF-8").with_source(error)),
    }
    Ok((Arc::new(event), fault))
}

/// Whether a parked event is replayed, from the column that says so.
pub(super) fn publication(row: &SqliteRow, index: usize) -> Result<Publication, Failure> {
    let is_replayed = column::<bool>(row, index)?;
    Ok(if is_replayed { Publication::Again } else { Publication::First })
}

/// A column by its number, without a second check of its type: the tables are strict.
pub(super) fn column<'r, T>(row: &'r SqliteRow, index: usize) -> Result<T, Failure>
where
    T: sqlx::Decode<'r, sqlx::Sqlite> + sqlx::Type<sqlx::Sqlite>,
{
    row.try_get_unchecked(index).map_err(failure("read a row"))
}

/// A number of the tables, which are never negative.
pub(super) fn position(stored: i64) -> u64 {
    u64::try_from(stored).unwrap_or(0)
}

/// A number for the tables.
pub(super) fn stored(position: u64) -> i64 {
    i64::try_from(position).unwrap_or(i64::MAX)
}

/// A text as it should be; SQLite does not check that texts are UTF-8.
fn text(row: &SqliteRow, index: usize, fault: &mut Option<Failure>) -> Result<String, Failure> {
    let bytes: &[u8] = column(row, index)?;
    Ok(match std::str::from_utf8(bytes) {
        Ok(text) => text.to_owned(),
        Err(error) => {
            let lossy = String::from_utf8_lossy(bytes).into_owned();
            *fault = Some(invalid(&format!("{lossy:?} is not UTF-8")).with_source(error));
            lossy
        }
    })
}

fn invalid(what: &str) -> Failure {
    Failure::refused("E-EVENT-INVALID", format!("SQLite: {what}"))
}
