//! Many events as one parameter: an array that the server takes apart, so that the statement is the
//! same for any number of them and stays prepared.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use semel_core::{Event, EventId, Timestamp};
use serde::Serialize;

use super::outbox::headers;

/// Rows are numbered in the order of the array. No text of a column is longer than its type, which
/// has 16 MiB; what cannot be read is an error of the statement, and nothing is cut or left out.
pub(super) const INSERT: &str = "\
INSERT INTO semel_outbox (id, aggregate_type, aggregate_id, event_type, payload, content_type,
    headers, idempotency_key, created_at, available_at)
SELECT e.id, e.aggregate_type, e.aggregate_id, e.event_type, FROM_BASE64(e.payload),
    e.content_type, e.headers, e.idempotency_key,
    timestamp'1970-01-01 00:00:00' + INTERVAL e.created_at MICROSECOND,
    timestamp'1970-01-01 00:00:00' + INTERVAL e.available_at MICROSECOND
FROM JSON_TABLE(cast(? AS CHAR), '$[*]' COLUMNS (
    n FOR ORDINALITY,
    id MEDIUMTEXT CHARACTER SET utf8mb4 PATH '$.id' ERROR ON EMPTY ERROR ON ERROR,
    aggregate_type MEDIUMTEXT CHARACTER SET utf8mb4 PATH '$.aggregate_type'
        ERROR ON EMPTY ERROR ON ERROR,
    aggregate_id MEDIUMTEXT CHARACTER SET utf8mb4 PATH '$.aggregate_id'
        ERROR ON EMPTY ERROR ON ERROR,
    event_type MEDIUMTEXT CHARACTER SET utf8mb4 PATH '$.event_type'
        ERROR ON EMPTY ERROR ON ERROR,
    content_type MEDIUMTEXT CHARACTER SET utf8mb4 PATH '$.content_type'
        ERROR ON EMPTY ERROR ON ERROR,
    headers MEDIUMTEXT CHARACTER SET utf8mb4 PATH '$.headers' NULL ON EMPTY ERROR ON ERROR,
    idempotency_key MEDIUMTEXT CHARACTER SET utf8mb4 PATH '$.idempotency_key'
        NULL ON EMPTY ERROR ON ERROR,
    created_at BIGINT PATH '$.created_at' ERROR ON EMPTY ERROR ON ERROR,
    available_at BIGINT PATH '$.available_at' NULL ON EMPTY ERROR ON ERROR,
    payload MEDIUMTEXT CHARACTER SET utf8mb4 PATH '$.payload' ERROR ON EMPTY ERROR ON ERROR
)) AS e
ORDER BY e.n";

/// As many of the events, from the first on, as fit into so many bytes: the parameter of [`INSERT`],
/// and how many they are.
pub(super) fn encode(events: &[Event], bytes: usize) -> Result<(String, usize), serde_json::Error> {
    let (mut json, mut count) = (String::from("["), 0);
    for event in events {
        let row = serde_json::to_string(&Row::of(event))?;
        let comma = if count > 0 { "," } else { "" };
        if json.len() + comma.len() + row.len() + 1 > bytes {
            break;
        }
        json += comma;
        json += &row;
        count += 1;
    }
    json.push(']');
    Ok((json, count))
}

/// What an event does not have is left out: servers differ about null. The payload is last, because
/// they read a row from its beginning for each of its columns.
#[derive(Serialize)]
struct Row<'e> {
    id: EventId,
    aggregate_type: &'e str,
    aggregate_id: &'e str,
    event_type: &'e str,
    content_type: &'e str,
    #[serde(skip_serializing_if = "Option::is_none")]
    headers: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    idempotency_key: Option<&'e str>,
    created_at: i64,
    #[serde(skip_serializing_if = "Option::is_none")]
    available_at: Option<i64>,
    payload: String,
}

impl<'e> Row<'e> {
    fn of(event: &'e Event) -> Self {
        Self {
            id: event.id,
            aggregate_type: &event.aggregate_type,
            aggregate_id: &event.aggregate_id,
            event_type: &event.event_type,
            content_type: event.payload.content_type(),
            headers: headers(&event.headers),
            idempotency_key: event.custom_key.as_deref(),
            created_at: event.created_at.as_microsecond(),
            available_at: event.available_at.map(Timestamp::as_microsecond),
            payload: STANDARD.encode(event.payload.bytes()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_sent_is_bounded_by_its_bytes() {
        let event =
            Event::new("order", "\u{1}\"\\", "T").with_bytes("text/plain", vec![b'"'; 3000]);
        let events = vec![event; 10];
        let (one, _) = encode(&events[..1], usize::MAX).unwrap();
        assert!(one.len() > 4000, "base64 counts");
        for (bytes, fit) in [(one.len() - 1, 0), (one.len(), 1), (one.len() * 4, 4)] {
            let (json, count) = encode(&events, bytes).unwrap();
            assert_eq!(count, fit);
            assert!(json.len() <= bytes);
            let rows: Vec<serde_json::Value> = serde_json::from_str(&json).unwrap();
            assert_eq!(rows.len(), fit);
        }
    }

    #[test]
    fn every_field_is_a_column_and_every_column_a_field() {
        let event = Event::new("order", "1", "T")
            .with_header("tenant", "acme")
            .with_idempotency_key("k")
            .available_at(Timestamp::UNIX_EPOCH);
        let row = serde_json::to_value(Row::of(&event)).unwrap();
        let fields: Vec<_> = row.as_object().unwrap().keys().collect();
        assert_eq!(fields.len(), INSERT.matches("PATH '$.").count());
        for field in fields {
            assert!(INSERT.contains(&format!("PATH '$.{field}'")), "{field}");
        }
    }
}
