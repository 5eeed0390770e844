//! `semel events`: what is in the outbox, and what became of it.

use semel_core::admin::{Cursor, EventView, Filter};
use semel_core::{EventId, Timestamp};
use serde_json::{Value, json};

use super::life::{self, Life};
use super::touched::touched;
use super::{Desk, EFFECT, database_problem, open_inbox};
use crate::args::{EventsCommand, PageOptions, ShowOptions};
use crate::exit::{Exit, Problem};
use crate::output::{Align, Format, Table, plain, print, print_json};

pub(crate) async fn run(command: &EventsCommand) -> Result<Exit, Problem> {
    match command {
        EventsCommand::List(options) => {
            let filter = options.rest.filter.in_state(options.state);
            list(&options.rest, &filter).await
        }
        EventsCommand::Show(options) => show(options).await,
    }
}

/// A page of events that match.
pub(super) async fn list(options: &PageOptions, filter: &Filter) -> Result<Exit, Problem> {
    let desk = Desk::of_owner(&options.owner).await?;
    let after = options.after.map(Cursor);
    let page = desk.store.list(filter, after, options.limit).await;
    let page = page.map_err(|failure| desk.problem(failure))?;
    match options.output.format {
        Format::Text => {
            table(&page.events).print();
            if let Some(Cursor(place)) = page.next {
                print(&format!("there are more: --after {place}\n"));
            }
        }
        Format::Json => print_json(&json!({
            "events": page.events.iter().map(|view| json(view, false)).collect::<Vec<_>>(),
            "next": page.next,
        })),
    }
    Ok(Exit::Done)
}

/// One event.
pub(super) async fn show(options: &ShowOptions) -> Result<Exit, Problem> {
    let desk = Desk::of_owner(&options.owner).await?;
    let found = desk.store.get(options.id).await.map_err(|failure| desk.problem(failure))?;
    let Some(view) = found else {
        return Err(desk.problem(not_found(options.id)));
    };
    let touched = touched(&*desk.database.insight(), &desk.owner, &view).await;
    let touched = touched.map_err(|failure| desk.problem(failure))?;
    let life = Life { applied: applied(options).await?, touched, view };
    match options.output.format {
        Format::Text => {
            print(&text(&life.view, options.payload));
            print(&format!("\n{}", life::text(&life)));
        }
        Format::Json => {
            let mut value = json(&life.view, options.payload);
            value["life"] = life::json(&life);
            print_json(&value);
        }
    }
    Ok(Exit::Done)
}

/// Who has applied it, in all inboxes that were named.
async fn applied(options: &ShowOptions) -> Result<Vec<(String, Timestamp)>, Problem> {
    let mut all = Vec::new();
    for url in &options.inboxes {
        let (database, place) = open_inbox(url).await?;
        let problem = |failure| database_problem(&place, failure, EFFECT);
        let found = database.insight().effects(options.id).await.map_err(problem)?;
        all.extend(found.into_iter().map(|effect| (effect.consumer, effect.at)));
    }
    all.sort_by_key(|(_, at)| *at);
    Ok(all)
}

pub(super) fn not_found(id: EventId) -> semel_core::Failure {
    semel_core::Failure::refused("E-EVENT-UNKNOWN", format!("there is no event {id}"))
        .with_fix("look for it with `semel events list`; it may have been cleaned up")
}

fn table(events: &[EventView]) -> Table<7> {
    use Align::{Left, Right};
    let mut table = Table::new([
        ("ID", Left),
        ("STATE", Left),
        ("AGGREGATE", Left),
        ("TYPE", Left),
        ("CREATED", Left),
        ("ATTEMPTS", Right),
        ("ERROR", Left),
    ]);
    for view in events {
        let event = &view.event;
        table.row([
            event.id.to_string(),
            view.state.as_str().into(),
            event.lane().to_string(),
            event.event_type.clone(),
            event.created_at.to_string(),
            view.attempts.to_string(),
            view.error.clone().unwrap_or_default(),
        ]);
    }
    table
}

pub(super) fn text(view: &EventView, with_payload: bool) -> String {
    let (event, time) =
        (&view.event, |time: Option<semel_core::Timestamp>| time.map(|time| time.to_string()));
    let mut text = String::new();
    let mut line = |name: &str, value: Option<String>| {
        if let Some(value) = value {
            text += &format!("{name:<16}{}\n", plain(&value));
        }
    };
    line("id", Some(event.id.to_string()));
    line("state", Some(view.state.as_str().into()));
    line("aggregate type", Some(event.aggregate_type.clone()));
    line("aggregate id", Some(event.aggregate_id.clone()));
    line("event type", Some(event.event_type.clone()));
    line("idempotency key", event.custom_key.clone());
    line("created at", Some(event.created_at.to_string()));
    line("available at", time(event.available_at));
    line("published at", time(view.published_at));
    line("attempts", Some(view.attempts.to_string()));
    line("next attempt", time(view.next_attempt));
    line("error", view.error.clone());
    for (name, value) in event.headers.iter() {
        line("header", Some(format!("{name}: {value}")));
    }
    let (content_type, bytes) = (event.payload.content_type(), event.payload.bytes());
    line("payload", Some(format!("{} bytes of {content_type}", view.payload_bytes)));
    if with_payload {
        // Many have lines: those stay.
        let payload = String::from_utf8_lossy(bytes);
        payload.split('\n').for_each(|line| text += &format!("{}\n", plain(line)));
    }
    text
}

/// An event for programs.
pub(super) fn json(view: &EventView, with_payload: bool) -> Value {
    let event = &view.event;
    let mut value = json!({
        "id": event.id,
        "state": view.state,
        "aggregate_type": event.aggregate_type,
        "aggregate_id": event.aggregate_id,
        "event_type": event.event_type,
        "idempotency_key": event.idempotency_key(),
        "headers": event.headers,
        "created_at": event.created_at,
        "available_at": event.available_at,
        "published_at": view.published_at,
        "attempts": view.attempts,
        "next_attempt": view.next_attempt,
        "error": view.error,
        "content_type": event.payload.content_type(),
        "payload_bytes": view.payload_bytes,
    });
    if with_payload {
        let bytes = event.payload.bytes();
        let parsed = event.payload.is_json().then(|| serde_json::from_slice(bytes).ok()).flatten();
        value["payload"] =
            parsed.unwrap_or_else(|| String::from_utf8_lossy(bytes).into_owned().into());
    }
    value
}
