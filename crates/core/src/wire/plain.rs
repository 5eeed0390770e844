//! The payload as it is, and everything else in headers of our own.

use std::fmt::Write;

use bytes::Bytes;

use super::{Binding, Found, parsed};
use crate::event::{Event, Headers, Payload};
use crate::failure::Failure;

/// Every message in this format has it.
pub(super) const ID: &str = "semel-event-id";
const EVENT_TYPE: &str = "semel-event-type";
const AGGREGATE_TYPE: &str = "semel-aggregate-type";
const AGGREGATE_ID: &str = "semel-aggregate-id";
const KEY: &str = "semel-idempotency-key";
const CREATED_AT: &str = "semel-created-at";
/// What names of semel begin with; an event's own header cannot pretend to be one of them.
const OURS: &str = "semel-";
/// An event's own headers where their names could mean something to the protocol.
const GUARDED: &str = "semel-header-";
/// Names that mean the same everywhere.
const TRACE: [&str; 3] = [Headers::TRACEPARENT, "tracestate", "baggage"];

pub(super) fn headers(event: &Event, binding: Binding, each: &mut dyn FnMut(&str, &str)) {
    let mut text = String::with_capacity(64);
    let mut written = |value: &dyn std::fmt::Display, name, each: &mut dyn FnMut(&str, &str)| {
        text.clear();
        // Writing to a string cannot fail.
        let _ = write!(text, "{value}");
        each(name, &text);
    };
    written(&event.id, ID, each);
    written(&event.created_at, CREATED_AT, each);
    match &event.custom_key {
        Some(key) => each(KEY, &binding.escape_value(key)),
        None => written(&event.id, KEY, each),
    }
    each(EVENT_TYPE, &binding.escape_value(&event.event_type));
    each(AGGREGATE_TYPE, &binding.escape_value(&event.aggregate_type));
    each(AGGREGATE_ID, &binding.escape_value(&event.aggregate_id));
    for (name, value) in event.headers.iter() {
        let value = binding.escape_value(value);
        if is_free(name, binding) {
            each(&binding.escape_name(name), &value);
        } else {
            each(&format!("{GUARDED}{}", binding.escape_name(name)), &value);
        }
    }
}

/// Whether a header of the event may travel under its own name.
fn is_free(name: &str, binding: Binding) -> bool {
    TRACE.contains(&name)
        || (binding != Binding::Http && !name.starts_with(OURS) && name != super::CONTENT_TYPE)
}

pub(super) fn from_headers(
    found: &Found<'_>,
    binding: Binding,
    body: Bytes,
) -> Result<Event, Failure> {
    let id = parsed(ID, found.required(ID)?)?;
    let name = |name| found.required(name).map(str::to_owned);
    let mut event =
        Event::with_id(id, name(AGGREGATE_TYPE)?, name(AGGREGATE_ID)?, name(EVENT_TYPE)?);
    let content_type = found.content_type.clone().unwrap_or_else(|| Payload::JSON.to_owned());
    event.payload = Payload::new(content_type, body);
    // Others need not say it, as in a CloudEvent.
    if let Some(time) = found.get(CREATED_AT) {
        event.created_at = parsed(CREATED_AT, time)?;
    }
    let key = found.get(KEY).filter(|key| *key != id.to_string());
    event.custom_key = key.map(str::to_owned);
    for (name, value) in &found.pairs {
        if let Some(name) = name.strip_prefix(GUARDED) {
            event.headers.set(name, value.as_ref());
        } else if is_free(name, binding) {
            event.headers.set(name.as_ref(), value.as_ref());
        }
    }
    Ok(event)
}
