//! The append as a statement that any driver can run.

use semel_core::event::EventLimits;
use semel_core::{Event, Failure};

use super::outbox::{bytes, headers, text};
use crate::statement::{Parameter, Statement, time};

/// The INSERT that appends an event, for a driver other than sqlx: run it in the transaction that
/// the event belongs to. `$6` is bytes, all others are texts. It needs no right but to insert.
///
/// **One row** written: the event exists if the transaction commits. **No row** written: an event
/// with this idempotency key, or this id, exists already. Nothing was changed, and the transaction
/// can go on. The error 23505 says the same of an event with a key of its own in a partitioned
/// outbox, and there the transaction cannot.
///
/// After the commit, [`PostgresOutbox::committed`](super::PostgresOutbox::committed) wakes the relays
/// of the same process; those of others look at their poll interval.
///
/// ```
/// use semel_backends::postgres::append_statement;
/// use semel_core::Event;
///
/// let append = append_statement(&Event::new("order", "42", "OrderPlaced"), &Default::default())?;
/// assert!(append.sql.ends_with("on conflict do nothing"));
/// assert_eq!(append.parameters.len(), 11);
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
        Parameter::Text(text(&event.payload).map(Into::into)),
        Parameter::Bytes(bytes(&event.payload).map(Into::into)),
        Parameter::text(event.payload.content_type()),
        Parameter::Text(headers(&event.headers)),
        Parameter::Text(event.custom_key.clone()),
        Parameter::text(time(event.created_at)),
        Parameter::Text(event.available_at.map(time)),
    ];
    Ok(Statement { sql: INSERT, parameters })
}

const INSERT: &str = "\
insert into semel.outbox (id, key_id, aggregate_type, aggregate_id, event_type, payload,
    payload_bytes, content_type, headers, idempotency_key, created_at, available_at)
values ($1::text::uuid, case when $9::text is null then $1::text::uuid end, $2::text, $3::text,
    $4::text, $5::text, $6::bytea, $7::text, $8::text::json, $9::text, $10::text::timestamptz,
    $11::text::timestamptz)
on conflict do nothing";
