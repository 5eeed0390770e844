//! Reading an event back from its row.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;
use semel_core::{Event, EventId, Failure, Headers, Payload};
use sqlx::Row;
use sqlx::sqlite::SqliteRow;
use uuid::Uuid;

use super::error::failure;
use super::store::timestamp;

/// The columns of an event, of a table called `o`, in the order [`event`] reads them. What has its
/// usual value is left out, because every value costs an allocation or two on its way.
macro_rules! event_columns {
    () => {
        "o.seq, o.id, o.aggregate_type, o.aggregate_id, o.event_type, o.payload, \
         nullif(o.content_type, 'application/json'), nullif(o.headers, '{}'), \
         o.idempotency_key, o.created_at, o.available_at"
    };
}
pub(super) use event_columns;

/// The first column after those of the event.
pub(super) const AFTER_EVENT: usize = 11;

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
    let content_type: Option<String> = column(row, 6)?;
    event.payload = Payload::new(
        content_type.map_or(Cow::Borrowed(Payload::JSON), Cow::Owned),
        Bytes::copy_from_slice(column(row, 5)?),
    );
    if let Some(headers) = column::<Option<&str>>(row, 7)? {
        event.headers = parse_headers(headers);
    }
    event.custom_key = column(row, 8)?;
    event.created_at = timestamp(column(row, 9)?);
    event.available_at = column::<Option<i64>>(row, 10)?.map(timestamp);
    Ok((Arc::new(event), fault))
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
            let what = format!("SQLite: {:?} is not UTF-8", String::from_utf8_lossy(bytes));
            *fault = Some(Failure::refused("E-EVENT-INVALID", what).with_source(error));
            String::from_utf8_lossy(bytes).into_owned()
        }
    })
}

/// Headers as a writer of any language may have put them: what is not a string is kept as JSON.
fn parse_headers(json: &str) -> Headers {
    if let Ok(headers) = serde_json::from_str(json) {
        return headers;
    }
    let values: BTreeMap<String, serde_json::Value> =
        serde_json::from_str(json).unwrap_or_default();
    let mut headers = Headers::default();
    for (name, value) in values {
        headers.set(name, value.as_str().map_or_else(|| value.to_string(), str::to_owned));
    }
    headers
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
