//! The append as a statement that any driver can run.

use semel_core::event::EventLimits;
use semel_core::{Event, Failure, Timestamp};

use super::outbox::headers;
use crate::statement::{Parameter, Statement, time};

/// The INSERT that appends an event, for a driver other than sqlx: run it in the transaction that
/// the event belongs to, on a connection of the character set `utf8mb4`. The fifth parameter is
/// bytes, all others are texts. It needs no right but to insert.
///
/// **One row** written: the event exists if the transaction commits. **No row** written is what the
/// other databases say when an event with this idempotency key, or this id, exists already; MySQL
/// cannot say it to those who may only insert. The driver reports the error 1062 (SQLSTATE 23000)
/// instead. InnoDB undoes a refused statement and nothing else, so the transaction can go on.
///
/// After the commit, [`MysqlOutbox::committed`](super::MysqlOutbox::committed) wakes the relays of
/// the same process; those of others look at their poll interval.
///
/// ```
/// use semel_backends::mysql::append_statement;
/// use semel_core::Event;
///
/// let append = append_statement(&Event::new("order", "42", "OrderPlaced"), &Default::default())?;
/// assert!(append.sql.starts_with("INSERT INTO semel_outbox"));
/// assert_eq!(append.parameters.len(), 10);
/// # Ok::<(), semel_core::Failure>(())
/// ```
///
/// # Errors
/// `Refused` when the event is malformed or too large.
pub fn append_statement(event: &Event, limits: &EventLimits) -> Result<Statement, Failure> {
    event.check(limits)?;
    let parameters = vec![
        Parameter::text(event.id.to_string()),
        Parameter::text(&event.aggregate_type),
        Parameter::text(&event.aggregate_id),
        Parameter::text(&event.event_type),
        Parameter::Bytes(Some(event.payload.bytes().to_vec())),
        Parameter::text(event.payload.content_type()),
        Parameter::Text(headers(&event.headers)),
        Parameter::Text(event.custom_key.clone()),
        Parameter::text(date_time(event.created_at)),
        Parameter::Text(event.available_at.map(date_time)),
    ];
    Ok(Statement { sql: INSERT, parameters })
}

const INSERT: &str = "\
INSERT INTO semel_outbox (id, aggregate_type, aggregate_id, event_type, payload,
    content_type, headers, idempotency_key, created_at, available_at)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)";

/// Without the zone: the tables are in UTC, and a zone would be converted to that of the session.
fn date_time(moment: Timestamp) -> String {
    time(moment).trim_end_matches('Z').replace('T', " ")
}
