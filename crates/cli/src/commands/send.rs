//! `semel send`: one event, from the shell.

use std::fs;
use std::io::{self, Read};

use semel_core::admin::EventView;
use semel_core::event::EventLimits;
use semel_core::outbox::AppendError;
use semel_core::{Event, Failure, Payload};
use serde::de::IgnoredAny;
use serde_json::json;

use super::{connect, database_kind, database_problem, events};
use crate::args::{PayloadOrigin, SendOptions};
use crate::exit::{Exit, Problem};
use crate::output::{Format, print, print_json};
use crate::wiring::{Database, Missing, SendError};

const EFFECT: &str = "no event was written";

pub(crate) async fn run(options: &SendOptions) -> Result<Exit, Problem> {
    let event = event(options)?;
    let id = event.id;
    if options.dry_run {
        database_kind(&options.database, EFFECT)?;
        event
            .check(&EventLimits::default())
            .map_err(|failure| database_problem(&options.database, failure, EFFECT))?;
        print_json(&events::json(&EventView::pending(event), true));
        return Ok(Exit::Done);
    }
    let database = connect(&options.database, Missing::Refuse, EFFECT).await?;
    check_tables(database.as_ref())
        .await
        .map_err(|failure| database_problem(&options.database, failure, EFFECT))?;
    database.send(event).await.map_err(|error| not_sent(options, error))?;
    match options.output.format {
        Format::Text => print(&format!("{id}\n")),
        Format::Json => print_json(&json!({ "id": id })),
    }
    Ok(Exit::Done)
}

/// A writer with least privileges may not look: then the database says what is missing.
async fn check_tables(database: &dyn Database) -> Result<(), Failure> {
    match database.tables().await {
        Err(failure) if Exit::from(&failure) == Exit::Denied => Ok(()),
        tables => tables?.check(),
    }
}

fn event(options: &SendOptions) -> Result<Event, Problem> {
    let SendOptions { aggregate_type, aggregate_id, event_type, .. } = options;
    let mut event = Event::new(aggregate_type, aggregate_id, event_type);
    event.payload = payload(options)?;
    event.custom_key.clone_from(&options.key);
    event.available_at = options.at;
    for (name, value) in &options.headers {
        event.headers.set(name, value);
    }
    Ok(event)
}

fn payload(options: &SendOptions) -> Result<Payload, Problem> {
    let (place, bytes) = match &options.payload {
        PayloadOrigin::CommandLine(text) => ("--payload".into(), Ok(text.clone().into_bytes())),
        PayloadOrigin::File(path) => (path.display().to_string(), fs::read(path)),
        PayloadOrigin::StandardInput => ("standard input".into(), read_standard_input()),
    };
    let bytes = bytes.map_err(|error| {
        let failure = Failure::refused("E-PAYLOAD-READ", "cannot read the payload")
            .with_source(error)
            .with_fix("give --payload the content itself, @FILE, or - for standard input");
        Problem::new(failure, &place, EFFECT)
    })?;
    let payload = Payload::new(options.content_type.clone(), bytes);
    if payload.is_json() {
        serde_json::from_slice::<IgnoredAny>(payload.bytes()).map_err(|error| {
            let failure = Failure::refused("E-PAYLOAD-JSON", "the payload is not JSON")
                .with_source(error)
                .with_fix("quote it for the shell, or say what it is with --content-type");
            Problem::new(failure, &place, EFFECT)
        })?;
    }
    Ok(payload)
}

fn read_standard_input() -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    io::stdin().lock().read_to_end(&mut bytes)?;
    Ok(bytes)
}

fn not_sent(options: &SendOptions, error: SendError) -> Problem {
    let failure = match error {
        SendError::Append(AppendError::Duplicate { key, .. }) => {
            let key = key.or_else(|| options.key.clone()).unwrap_or_default();
            let what = format!("an event with idempotency key {key} exists already");
            Failure::refused("E-EVENT-DUPLICATE", what)
                .with_fix("nothing if it is the same event; give another one another --key")
        }
        SendError::Append(AppendError::Invalid(failure) | AppendError::Store(failure)) => failure,
        SendError::Append(error) => {
            Failure::refused("E-EVENT-REFUSED", "the outbox refused the event").with_source(error)
        }
        SendError::Commit(failure) => {
            let effect = "the event was written, or it was not: the database did not say";
            return database_problem(&options.database, failure, effect);
        }
    };
    database_problem(&options.database, failure, EFFECT)
}
