//! Events: which there are, the life of one, and what stands in their way.

use std::collections::BTreeMap;

use axum::extract::rejection::QueryRejection;
use axum::extract::{Path, Query, State};
use axum::{Extension, Json};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use semel_core::admin::{Cursor, EventView, Page, State as EventState, Troubles};
use semel_core::insight::EffectView;
use semel_core::{Clock, EventId, Failure, Fault, SystemClock, Timestamp};
use serde::{Deserialize, Serialize};

use super::changes::Noted;
use crate::Dashboard;
use crate::access::{Caller, Role, require};
use crate::asked::{Trouble, patiently};
use crate::pipeline::Pipeline;
use crate::wanted::Wanted;

/// A page of events that match, newest first.
pub(crate) async fn list(
    State(dashboard): State<Dashboard>,
    Path(name): Path<String>,
    question: Result<Query<Question>, QueryRejection>,
) -> Result<Json<Events>, Trouble> {
    const USUAL: usize = 50;
    const MOST: usize = 500;
    let pipeline = dashboard.asked(&name)?;
    let Query(question) = question?;
    let wanted = Wanted::parse(&question.q, SystemClock.now()).map_err(Trouble::Question)?;
    if let Some(id) = wanted.id {
        let found = patiently(pipeline.admin.get(id)).await?;
        return Ok(Json(Events {
            events: found.into_iter().map(Entry::from).collect(),
            next: None,
        }));
    }
    let limit = question.limit.unwrap_or(USUAL).clamp(1, MOST);
    let before = question.before.map(Cursor);
    let page = patiently(pipeline.admin.latest(&wanted.filter, before, limit)).await?;
    Ok(Json(Events::from(page)))
}

/// One event, without payload and headers, and who took effect for it in the same database.
pub(crate) async fn show(
    State(dashboard): State<Dashboard>,
    Path((name, id)): Path<(String, String)>,
) -> Result<Json<Life>, Trouble> {
    let pipeline = dashboard.asked(&name)?;
    let view = find(pipeline, &id).await?;
    let effects = effects(pipeline, view.event.id).await?;
    Ok(Json(Life { event: Entry::from(view), effects }))
}

/// Nothing where inboxes cannot be looked into: they are not the relay's.
async fn effects(pipeline: &Pipeline, id: EventId) -> Result<Vec<EffectView>, Failure> {
    let Some(insight) = &pipeline.insight else { return Ok(Vec::new()) };
    match patiently(insight.effects(id)).await {
        Err(failure) if failure.fault() == Fault::Misconfigured => Ok(Vec::new()),
        found => found,
    }
}

/// Payload and headers of one event. Who looked is written down.
pub(crate) async fn reveal(
    State(dashboard): State<Dashboard>,
    Extension(caller): Extension<Caller>,
    Path((name, id)): Path<(String, String)>,
) -> Result<Json<Revealed>, Trouble> {
    require(&caller, Role::Operator)?;
    let pipeline = dashboard.asked(&name)?;
    let view = find(pipeline, &id).await?;
    let noted = Noted::begin(pipeline, &caller, "reveal", &format!("id:{id}")).await?;
    noted.end(1).await;
    Ok(Json(Revealed::from(view)))
}

/// Why events failed, and which lanes wait.
pub(crate) async fn troubles(
    State(dashboard): State<Dashboard>,
    Path(name): Path<String>,
) -> Result<Json<Troubles>, Trouble> {
    const MOST: usize = 100;
    let pipeline = dashboard.asked(&name)?;
    Ok(Json(patiently(pipeline.admin.troubles(MOST)).await?))
}

async fn find(pipeline: &Pipeline, id: &str) -> Result<EventView, Trouble> {
    let parsed: EventId =
        id.parse().map_err(|_| Trouble::Question(format!("{id:?} is no id of an event")))?;
    let found = patiently(pipeline.admin.get(parsed)).await?;
    found.ok_or_else(|| {
        Trouble::NotFound(format!("there is no event {id}; it may have been deleted"))
    })
}

/// Which events are asked for.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Question {
    #[serde(default)]
    q: String,
    before: Option<u64>,
    limit: Option<usize>,
}

/// A page of events.
#[derive(Serialize)]
pub(crate) struct Events {
    events: Vec<Entry>,
    /// What to ask for as `before` to get the next page.
    next: Option<u64>,
}

impl From<Page> for Events {
    fn from(page: Page) -> Self {
        Self {
            events: page.events.into_iter().map(Entry::from).collect(),
            next: page.next.map(|Cursor(place)| place),
        }
    }
}

/// An event without its payload and headers, which may be nobody's business.
#[derive(Serialize)]
pub(crate) struct Entry {
    id: EventId,
    aggregate_type: String,
    aggregate_id: String,
    event_type: String,
    content_type: String,
    payload_bytes: u64,
    headers: usize,
    created_at: Timestamp,
    available_at: Option<Timestamp>,
    state: EventState,
    attempts: u32,
    next_attempt: Option<Timestamp>,
    error: Option<String>,
    published_at: Option<Timestamp>,
}

impl From<EventView> for Entry {
    fn from(view: EventView) -> Self {
        let event = view.event;
        Self {
            id: event.id,
            aggregate_type: event.aggregate_type.clone(),
            aggregate_id: event.aggregate_id.clone(),
            event_type: event.event_type.clone(),
            content_type: event.payload.content_type().to_owned(),
            payload_bytes: view.payload_bytes,
            headers: event.headers.iter().count(),
            created_at: event.created_at,
            available_at: event.available_at,
            state: view.state,
            attempts: view.attempts,
            next_attempt: view.next_attempt,
            error: view.error,
            published_at: view.published_at,
        }
    }
}

/// An event, and what came of it.
#[derive(Serialize)]
pub(crate) struct Life {
    #[serde(flatten)]
    event: Entry,
    /// Consumers that took effect for it, the earliest first.
    effects: Vec<EffectView>,
}

/// What is in an event.
#[derive(Serialize)]
pub(crate) struct Revealed {
    content_type: String,
    /// The payload, if it is text.
    text: Option<String>,
    /// The payload, if it is not.
    base64: Option<String>,
    headers: BTreeMap<String, String>,
    idempotency_key: String,
}

impl From<EventView> for Revealed {
    fn from(view: EventView) -> Self {
        let bytes = view.event.payload.bytes();
        let text = std::str::from_utf8(bytes).ok().map(str::to_owned);
        let base64 = text.is_none().then(|| STANDARD.encode(bytes));
        let pair = |(name, value): (&str, &str)| (name.to_owned(), value.to_owned());
        Self {
            content_type: view.event.payload.content_type().to_owned(),
            text,
            base64,
            headers: view.event.headers.iter().map(pair).collect(),
            idempotency_key: view.event.idempotency_key().into_owned(),
        }
    }
}
