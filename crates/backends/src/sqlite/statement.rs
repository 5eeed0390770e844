//! The append as a statement that any driver can run.

use semel_core::event::EventLimits;
use semel_core::{Event, Failure};

use super::outbox::{headers, readable};
use crate::statement::{Parameter, Statement};

/// The INSERT that appends an event, for a driver other than sqlx: run it in the transaction that
/// the event belongs to. The fifth parameter is a text for JSON and bytes for everything else; all
/// others are texts.
///
/// **One row** written: the event exists if the transaction commits. **No row** written: an event
/// with this idempotency key, or this id, exists already. Nothing was changed, and the transaction
/// can go on.
///
/// A transaction that begins with `BEGIN IMMEDIATE` never fails for want of the lock in the middle.
/// After the commit, [`SqliteOutbox::committed`](super::SqliteOutbox::committed) wakes the relays of
/// the same process; those of others look at their poll interval.
///
/// ```
/// use semel_backends::sqlite::append_statement;
/// use semel_core::Event;
///
/// let append = append_statement(&Event::new("order", "42", "OrderPlaced"), &Default::default())?;
/// assert!(append.sql.ends_with("ON CONFLICT DO NOTHING"));
/// assert_eq!(append.parameters.len(), 10);
/// # Ok::<(), semel_core::Failure>(())
/// ```
///
/// # Errors
/// `Refused` when the event is malformed or too large.
pub fn append_statement(event: &Event, limits: &EventLimits) -> Result<Statement, Failure> {
    event.check(limits)?;
    let payload = match readable(&event.payload) {
        Some(text) => Parameter::text(text),
        None => Parameter::Bytes(Some(event.payload.bytes().to_vec())),
    };
    let micros = event.available_at.map(|time| time.as_microsecond().to_string());
    let parameters = vec![
        Parameter::text(event.id.to_string()),
        Parameter::text(&event.aggregate_type),
        Parameter::text(&event.aggregate_id),
        Parameter::text(&event.event_type),
        payload,
        Parameter::text(event.payload.content_type()),
        Parameter::text(headers(event)),
        Parameter::Text(event.custom_key.clone()),
        Parameter::text(event.created_at.as_microsecond().to_string()),
        Parameter::Text(micros),
    ];
    Ok(Statement { sql: INSERT, parameters })
}

const INSERT: &str = "\
INSERT INTO semel_outbox (id, aggregate_type, aggregate_id, event_type, payload,
    content_type, headers, idempotency_key, created_at, available_at)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, CAST(? AS INTEGER), CAST(? AS INTEGER))
ON CONFLICT DO NOTHING";
