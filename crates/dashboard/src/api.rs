//! The JSON behind the page.

use std::collections::BTreeMap;

use axum::Json;
use axum::extract::rejection::QueryRejection;
use axum::extract::{Query, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use semel_core::admin::{Cursor, EventView, Filter, Page, State as EventState, Stats};
use semel_core::{EventId, Failure, Fault, Timestamp};
use serde::{Deserialize, Serialize};

use crate::Dashboard;

const DEFAULT_LIMIT: usize = 50;
const MAX_LIMIT: usize = 500;

pub(crate) async fn status(State(dashboard): State<Dashboard>) -> Result<Json<Status>, Trouble> {
    let stats = dashboard.admin.stats().await?;
    Ok(Json(Status::from(&stats)))
}

pub(crate) async fn events(
    State(dashboard): State<Dashboard>,
    question: Result<Query<Question>, QueryRejection>,
) -> Result<Json<Events>, Trouble> {
    let Query(question) = question?;
    let limit = question.limit.unwrap_or(DEFAULT_LIMIT).clamp(1, MAX_LIMIT);
    let after = question.after.map(Cursor);
    let page = dashboard.admin.list(&question.filter(), after, limit).await?;
    Ok(Json(Events::from(page)))
}

/// How the outbox is doing.
#[derive(Serialize)]
pub(crate) struct Status {
    states: BTreeMap<&'static str, u64>,
    oldest_pending_seconds: Option<f64>,
    parked_lanes: u64,
}

impl From<&Stats> for Status {
    fn from(stats: &Stats) -> Self {
        Self {
            states: EventState::ALL.map(|state| (state.as_str(), stats.count(state))).into(),
            oldest_pending_seconds: stats.oldest_pending.map(|age| age.as_secs_f64()),
            parked_lanes: stats.parked_lanes,
        }
    }
}

/// Which events are asked for.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Question {
    state: Option<EventState>,
    aggregate_type: Option<String>,
    aggregate_id: Option<String>,
    event_type: Option<String>,
    since: Option<Timestamp>,
    until: Option<Timestamp>,
    after: Option<u64>,
    limit: Option<usize>,
}

impl Question {
    fn filter(self) -> Filter {
        Filter {
            state: self.state,
            aggregate_type: self.aggregate_type,
            aggregate_id: self.aggregate_id,
            event_type: self.event_type,
            since: self.since,
            until: self.until,
        }
    }
}

/// A page of events.
#[derive(Serialize)]
pub(crate) struct Events {
    events: Vec<Entry>,
    /// What to ask for as `after` to get the next page.
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
struct Entry {
    id: EventId,
    aggregate_type: String,
    aggregate_id: String,
    event_type: String,
    payload_bytes: usize,
    created_at: Timestamp,
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
            payload_bytes: event.payload.bytes().len(),
            created_at: event.created_at,
            state: view.state,
            attempts: view.attempts,
            next_attempt: view.next_attempt,
            error: view.error,
            published_at: view.published_at,
        }
    }
}

/// Why a question was not answered.
pub(crate) enum Trouble {
    Question(QueryRejection),
    Store(Failure),
}

impl From<QueryRejection> for Trouble {
    fn from(rejection: QueryRejection) -> Self {
        Self::Question(rejection)
    }
}

impl From<Failure> for Trouble {
    fn from(failure: Failure) -> Self {
        Self::Store(failure)
    }
}

#[derive(Serialize)]
struct Explanation {
    code: &'static str,
    error: String,
    fix: Option<String>,
}

impl IntoResponse for Trouble {
    fn into_response(self) -> Response {
        let (status, explanation) = match self {
            Self::Question(rejection) => {
                let (code, error) = ("E-QUERY-INVALID", rejection.body_text());
                (StatusCode::BAD_REQUEST, Explanation { code, error, fix: None })
            }
            Self::Store(failure) => {
                let status = match failure.fault() {
                    Fault::Unavailable | Fault::Transient => StatusCode::SERVICE_UNAVAILABLE,
                    Fault::Refused | Fault::Misconfigured => StatusCode::INTERNAL_SERVER_ERROR,
                };
                let fix = failure.fix().map(str::to_owned);
                let error = failure.to_string();
                (status, Explanation { code: failure.code(), error, fix })
            }
        };
        (status, Json(explanation)).into_response()
    }
}
