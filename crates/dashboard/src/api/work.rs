//! Who works on a pipeline, who took effect, which keys are held, and who changed what.

use axum::extract::rejection::QueryRejection;
use axum::extract::{Path, Query, State};
use axum::{Extension, Json};
use semel_core::idempotency::{KeyState, KeySurvey, KeyView, ScopedKey};
use semel_core::insight::{AuditEntry, ConsumerView, Workings};
use serde::{Deserialize, Serialize};

use super::changes::Noted;
use crate::Dashboard;
use crate::access::{Caller, Role, require};
use crate::asked::{Trouble, patiently};

/// How far a pipeline is, and who works on it.
pub(crate) async fn workings(
    State(dashboard): State<Dashboard>,
    Path(name): Path<String>,
) -> Result<Json<Workings>, Trouble> {
    let pipeline = dashboard.asked(&name)?;
    Ok(Json(match &pipeline.insight {
        Some(insight) => patiently(insight.workings(&name)).await?,
        None => Workings::default(),
    }))
}

/// Which consumers took effect in the same database.
pub(crate) async fn consumers(
    State(dashboard): State<Dashboard>,
    Path(name): Path<String>,
) -> Result<Json<Vec<ConsumerView>>, Trouble> {
    let pipeline = dashboard.asked(&name)?;
    Ok(Json(match &pipeline.insight {
        Some(insight) => patiently(insight.consumers()).await?,
        None => Vec::new(),
    }))
}

/// Some of the idempotency keys in the same database; with the first of them, how all stand.
pub(crate) async fn keys(
    State(dashboard): State<Dashboard>,
    Path(name): Path<String>,
    question: Result<Query<After>, QueryRejection>,
) -> Result<Json<Keys>, Trouble> {
    const PAGE: usize = 200;
    /// Enough to tell how they stand, and no more than a page can wait for.
    const SURVEYED: usize = 5000;
    let pipeline = dashboard.asked(&name)?;
    let Query(After { after }) = question?;
    let Some(keys) = &pipeline.keys else { return Ok(Json(Keys::default())) };
    let page = patiently(keys.list(after.as_deref(), PAGE)).await?;
    let survey = match after {
        None => Some(Survey::from(patiently(keys.survey(SURVEYED)).await?)),
        Some(_) => None,
    };
    let keys = page.keys.iter().map(Key::from).collect();
    Ok(Json(Keys { keys, next: page.next, survey }))
}

/// Makes a key free, for an operation that will never end.
pub(crate) async fn free(
    State(dashboard): State<Dashboard>,
    Extension(caller): Extension<Caller>,
    Path((name, key)): Path<(String, String)>,
) -> Result<Json<Freed>, Trouble> {
    require(&caller, Role::Admin)?;
    let pipeline = dashboard.asked(&name)?;
    let parsed: ScopedKey =
        key.parse().map_err(|_| Trouble::Question(format!("{key:?} is no hash of a key")))?;
    let Some(keys) = &pipeline.keys else {
        return Err(Trouble::NotFound("there are no keys here".into()));
    };
    let noted = Noted::begin(pipeline, &caller, "free key", &format!("key:{key}")).await?;
    let freed = patiently(keys.free(&parsed)).await?;
    noted.end(u64::from(freed)).await;
    Ok(Json(Freed { freed }))
}

/// Who changed what, newest first.
pub(crate) async fn activity(
    State(dashboard): State<Dashboard>,
    Path(name): Path<String>,
    question: Result<Query<Before>, QueryRejection>,
) -> Result<Json<Vec<AuditEntry>>, Trouble> {
    const PAGE: usize = 100;
    let pipeline = dashboard.asked(&name)?;
    let Query(Before { before }) = question?;
    Ok(Json(match &pipeline.insight {
        Some(insight) => patiently(insight.activity(before, PAGE)).await?,
        None => Vec::new(),
    }))
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct After {
    after: Option<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Before {
    before: Option<u64>,
}

/// A page of keys.
#[derive(Default, Serialize)]
pub(crate) struct Keys {
    keys: Vec<Key>,
    next: Option<String>,
    survey: Option<Survey>,
}

/// How keys stand.
#[derive(Serialize)]
struct Survey {
    /// How many were looked at, and whether these are all.
    keys: u64,
    whole: bool,
    /// How many of these are in which state.
    states: Vec<(&'static str, u64)>,
    /// Those that nobody has finished, the slow ones first.
    open: Vec<Key>,
}

impl From<KeySurvey> for Survey {
    fn from(survey: KeySurvey) -> Self {
        let count = |state: KeyState| (state.as_str(), survey.count(state));
        Self {
            keys: survey.keys,
            whole: survey.is_whole,
            states: KeyState::ALL.map(count).into_iter().filter(|(_, count)| *count > 0).collect(),
            open: survey.open.iter().map(Key::from).collect(),
        }
    }
}

#[derive(Serialize)]
struct Key {
    key: String,
    state: &'static str,
    attempt: Option<u32>,
    remaining_seconds: f64,
    bytes: usize,
}

impl From<&KeyView> for Key {
    fn from(view: &KeyView) -> Self {
        Self {
            key: view.key.to_string(),
            state: view.state.as_str(),
            attempt: view.attempt,
            remaining_seconds: view.remaining.as_secs_f64(),
            bytes: view.bytes,
        }
    }
}

#[derive(Serialize)]
pub(crate) struct Freed {
    freed: bool,
}
