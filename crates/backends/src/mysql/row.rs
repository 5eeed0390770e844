//! Reading an event back from its row.

use std::borrow::Cow;
use std::sync::Arc;

use bytes::Bytes;
use semel_core::{Event, EventId, Failure, Payload, Publication, Timestamp};
use sqlx::mysql::MySqlRow;
use sqlx::{Decode, MySql, Row, Type};
use uuid::Uuid;

use super::error::failure;
use super::store::timestamp;
use crate::row::parse_headers;

/// A time as microseconds since 1970, which is how times travel.
macro_rules! as_micros {
    ($time:literal) => {
        concat!("timestampdiff(MICROSECOND, '1970-01-01', ", $time, ")")
    };
}
pub(super) use as_micros;

/// Numbers, given as a JSON array in one parameter, as the table `j` with the column `position`.
macro_rules! listed {
    () => {
        "JSON_TABLE(cast(? AS CHAR), '$[*]' COLUMNS (position BIGINT UNSIGNED PATH '$')) j"
    };
}
pub(super) use listed;

/// The share that a row `o` belongs to, out of so many.
macro_rules! share_of {
    ($shares:literal) => {
        concat!("mod(crc32(concat(o.aggregate_type, '/', o.aggregate_id)), ", $shares, ")")
    };
}
pub(super) use share_of;

/// The columns of an event, of a table called `o`, in the order [`event`] reads them. What has its
/// usual value is null, which costs nothing on the way.
macro_rules! event_columns {
    () => {
        event_columns!("o.payload")
    };
    ($payload:literal) => {
        concat!(
            "o.position, o.id, o.aggregate_type, o.aggregate_id, o.event_type, ",
            $payload,
            ", nullif(o.content_type, 'application/json'), o.headers, o.idempotency_key, ",
            crate::mysql::row::as_micros!("o.created_at"),
            ", ",
            crate::mysql::row::as_micros!("o.available_at")
        )
    };
}
pub(super) use event_columns;

/// The first column after those of the event.
pub(super) const AFTER_EVENT: usize = 11;

/// The position of a row.
pub(super) fn position(row: &MySqlRow) -> Result<u64, Failure> {
    column(row, 0)
}

/// The event of a row that begins with [`event_columns`], and what is wrong with it if a writer
/// got past the checks of the table.
pub(super) fn event(row: &MySqlRow) -> Result<(Arc<Event>, Option<Failure>), Failure> {
    let text = |index| column::<&str>(row, index);
    let (id, fault) = match text(1)?.parse::<EventId>() {
        Ok(id) => (id, None),
        Err(failure) => (EventId::from_uuid(Uuid::nil()), Some(failure)),
    };
    let mut event = Event::with_id(id, text(2)?, text(3)?, text(4)?);
    let content_type: Option<String> = column(row, 6)?;
    let content_type = content_type.map_or(Cow::Borrowed(Payload::JSON), Cow::Owned);
    event.payload = Payload::new(content_type, Bytes::copy_from_slice(column(row, 5)?));
    if let Some(headers) = column::<Option<&str>>(row, 7)? {
        event.headers = parse_headers(headers);
    }
    event.custom_key = column(row, 8)?;
    event.created_at = time(row, 9)?.unwrap_or(Timestamp::UNIX_EPOCH);
    event.available_at = time(row, 10)?;
    Ok((Arc::new(event), fault))
}

/// A time that was read by [`as_micros`].
pub(super) fn time(row: &MySqlRow, index: usize) -> Result<Option<Timestamp>, Failure> {
    Ok(column::<Option<i64>>(row, index)?.map(timestamp))
}

/// Whether a parked event is replayed, from the column that says so.
pub(super) fn publication(row: &MySqlRow, index: usize) -> Result<Publication, Failure> {
    let is_replayed = column::<i64>(row, index)? != 0;
    Ok(if is_replayed { Publication::Again } else { Publication::First })
}

/// A column by its number, without a second check of its type: the statements are ours.
pub(super) fn column<'r, T>(row: &'r MySqlRow, index: usize) -> Result<T, Failure>
where
    T: Decode<'r, MySql> + Type<MySql>,
{
    row.try_get_unchecked(index).map_err(failure("read a row"))
}

/// Numbers as [`listed`] takes them.
pub(super) fn json(positions: &[u64]) -> String {
    // Numbers always make JSON.
    serde_json::to_string(positions).unwrap_or_else(|_| "[]".into())
}
