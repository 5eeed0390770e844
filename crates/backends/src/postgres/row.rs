//! Reading an event back from its row.

use std::borrow::Cow;

use bytes::Bytes;
use semel_core::{Event, EventId, Failure, Headers, Payload, Publication, Timestamp};
use sqlx::postgres::PgRow;
use sqlx::{Decode, Postgres, Row, Type, ValueRef};
use uuid::Uuid;

use super::error::failure;
use super::types::Stamp;

/// The columns of an event, of a table called `o`, in the order [`event`] reads them. What has its
/// usual value is null, which costs nothing on the way.
macro_rules! event_columns {
    () => {
        event_columns!("o.payload", "o.payload_bytes")
    };
    ($payload:literal, $payload_bytes:literal) => {
        concat!(
            "o.seq, o.id, o.aggregate_type, o.aggregate_id, o.event_type, ",
            $payload,
            ", ",
            $payload_bytes,
            ", nullif(o.content_type, 'application/json'), o.headers::text, o.idempotency_key, \
             o.created_at, o.available_at"
        )
    };
}
pub(super) use event_columns;

/// The first column after those of the event.
pub(super) const AFTER_EVENT: usize = 12;

/// The number of a row.
pub(super) fn seq(row: &PgRow) -> Result<i64, Failure> {
    column(row, 0)
}

/// The event of a row that begins with [`event_columns`], and whether its payload came with it.
pub(super) fn event(row: &PgRow) -> Result<(Event, bool), Failure> {
    let id: Uuid = column(row, 1)?;
    let mut event =
        Event::with_id(EventId::from_uuid(id), text(row, 2)?, text(row, 3)?, text(row, 4)?);
    let bytes = match bytes(row, 5)? {
        Some(text) => Some(text),
        None => bytes(row, 6)?,
    };
    let content_type = optional_text(row, 7)?;
    event.payload = Payload::new(
        content_type.map_or(Cow::Borrowed(Payload::JSON), |kind| Cow::Owned(kind.to_owned())),
        Bytes::copy_from_slice(bytes.unwrap_or_default()),
    );
    if let Some(headers) = optional_text(row, 8)? {
        event.headers = parse_headers(headers);
    }
    event.custom_key = optional_text(row, 9)?.map(str::to_owned);
    event.created_at = column::<Stamp>(row, 10)?.0;
    event.available_at = available_at(row)?;
    Ok((event, bytes.is_some()))
}

/// When a row may be published, if it says.
pub(super) fn available_at(row: &PgRow) -> Result<Option<Timestamp>, Failure> {
    Ok(column::<Option<Stamp>>(row, 11)?.map(|Stamp(time)| time))
}

fn text(row: &PgRow, index: usize) -> Result<&str, Failure> {
    Ok(optional_text(row, index)?.unwrap_or_default())
}

fn optional_text(row: &PgRow, index: usize) -> Result<Option<&str>, Failure> {
    let Some(bytes) = bytes(row, index)? else { return Ok(None) };
    let wrong = |error: std::str::Utf8Error| failure("read a row")(sqlx::Error::decode(error));
    std::str::from_utf8(bytes).map(Some).map_err(wrong)
}

/// Whether a parked event is replayed, from the column that says so.
pub(super) fn publication(row: &PgRow, index: usize) -> Result<Publication, Failure> {
    let is_replayed = column::<bool>(row, index)?;
    Ok(if is_replayed { Publication::Again } else { Publication::First })
}

/// A column by its number, without a second check of its type: the statements are ours.
pub(super) fn column<'r, T>(row: &'r PgRow, index: usize) -> Result<T, Failure>
where
    T: Decode<'r, Postgres> + Type<Postgres>,
{
    row.try_get_unchecked(index).map_err(failure("read a row"))
}

/// The bytes of a column, whether text or not.
fn bytes(row: &PgRow, index: usize) -> Result<Option<&[u8]>, Failure> {
    let value = row.try_get_raw(index).map_err(failure("read a row"))?;
    if value.is_null() {
        return Ok(None);
    }
    value.as_bytes().map(Some).map_err(|error| failure("read a row")(sqlx::Error::Decode(error)))
}

/// Headers are nearly always strings, which need no detour.
fn parse_headers(json: &str) -> Headers {
    serde_json::from_str(json).unwrap_or_else(|_| crate::row::parse_headers(json))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_that_are_not_strings_are_kept_as_json() {
        let headers = parse_headers(r#"{"Tenant":"acme","retries":3,"tags":["a"],"none":null}"#);
        let all: Vec<_> = headers.iter().collect();
        assert_eq!(
            all,
            [("tenant", "acme"), ("none", "null"), ("retries", "3"), ("tags", "[\"a\"]")]
        );
    }
}
