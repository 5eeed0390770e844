//! How a question finds its pipeline, and what is answered when it cannot be.

use std::time::Duration;

use axum::Json;
use axum::extract::rejection::{JsonRejection, QueryRejection};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use semel_core::{Failure, Fault};
use serde::Serialize;
use tokio::time::timeout;

use crate::Dashboard;
use crate::pipeline::Pipeline;

/// Waits for a store, not for ever.
pub(crate) async fn patiently<T>(
    answer: impl Future<Output = Result<T, Failure>> + Send,
) -> Result<T, Failure> {
    const PATIENCE: Duration = Duration::from_secs(30);
    timeout(PATIENCE, answer).await.unwrap_or_else(|_| {
        Err(Failure::unavailable("E-HTTP-SLOW", "the database did not answer within 30 seconds")
            .with_fix("look at what keeps the database busy, and ask again"))
    })
}

impl Dashboard {
    /// The pipeline that a question is about.
    pub(crate) fn asked(&self, name: &str) -> Result<&Pipeline, Trouble> {
        self.pipeline(name)
            .ok_or_else(|| Trouble::NotFound(format!("there is no pipeline {name:?}")))
    }
}

/// Why a question was not answered.
pub(crate) enum Trouble {
    Question(String),
    NotFound(String),
    Store(Failure),
    /// A change that ended early, and how many events it had changed by then.
    Unfinished {
        failure: Failure,
        events: u64,
    },
}

impl From<QueryRejection> for Trouble {
    fn from(rejection: QueryRejection) -> Self {
        Self::Question(rejection.body_text())
    }
}

impl From<JsonRejection> for Trouble {
    fn from(rejection: JsonRejection) -> Self {
        Self::Question(rejection.body_text())
    }
}

impl From<Failure> for Trouble {
    fn from(failure: Failure) -> Self {
        Self::Store(failure)
    }
}

/// A failure as it is told.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Explanation {
    pub(crate) code: &'static str,
    pub(crate) error: String,
    pub(crate) fix: Option<String>,
}

impl From<&Failure> for Explanation {
    fn from(failure: &Failure) -> Self {
        let fix = failure.fix().map(str::to_owned);
        Self { code: failure.code(), error: failure.to_string(), fix }
    }
}

/// The same of a change, and what it had done: that holds.
#[derive(Serialize)]
struct Unfinished {
    #[serde(flatten)]
    why: Explanation,
    events: u64,
}

impl Unfinished {
    fn new(failure: &Failure, events: u64) -> Self {
        let mut why = Explanation::from(failure);
        if events > 0 {
            why.error += &format!("; {events} events were changed before, and that holds");
        }
        Self { why, events }
    }
}

impl IntoResponse for Trouble {
    fn into_response(self) -> Response {
        let (status, explanation) = match self {
            Self::Question(error) => {
                let fix = "try state:dead type:order aggregate:42 event:OrderPlaced since:1h";
                let code = "E-QUERY-INVALID";
                (StatusCode::BAD_REQUEST, Explanation { code, error, fix: Some(fix.into()) })
            }
            Self::NotFound(error) => {
                (StatusCode::NOT_FOUND, Explanation { code: "E-NOT-FOUND", error, fix: None })
            }
            Self::Store(failure) => (status_of(&failure), Explanation::from(&failure)),
            Self::Unfinished { failure, events } => {
                let explanation = Unfinished::new(&failure, events);
                return (status_of(&failure), Json(explanation)).into_response();
            }
        };
        (status, Json(explanation)).into_response()
    }
}

fn status_of(failure: &Failure) -> StatusCode {
    match failure.fault() {
        _ if failure.code() == "E-HTTP-ROLE" => StatusCode::FORBIDDEN,
        Fault::Unavailable | Fault::Transient => StatusCode::SERVICE_UNAVAILABLE,
        Fault::Refused | Fault::Misconfigured => StatusCode::INTERNAL_SERVER_ERROR,
    }
}
