//! Changes: retry, discard and replay, of one event, of those that match, or of those with one error;
//! counted first if so asked, written down always. Many are changed a page at a time, so that relays
//! go on meanwhile.

use axum::extract::rejection::JsonRejection;
use axum::extract::{Path, State};
use axum::{Extension, Json};
use semel_core::admin::{AdminStore, EventView, Filter, Selection, State as EventState};
use semel_core::{Clock, EventId, Failure, SystemClock};
use serde::{Deserialize, Serialize};
use tokio::task::JoinError;

use crate::Dashboard;
use crate::access::{Caller, Role, require};
use crate::asked::{Trouble, patiently};
use crate::pipeline::Pipeline;
use crate::wanted::Wanted;

/// Makes a change, or counts what it would change.
pub(crate) async fn change(
    State(dashboard): State<Dashboard>,
    Extension(caller): Extension<Caller>,
    Path(name): Path<String>,
    order: Result<Json<Order>, JsonRejection>,
) -> Result<Json<Done>, Trouble> {
    let pipeline = dashboard.asked(&name)?;
    let Json(order) = order?;
    require(&caller, order.action.needs())?;
    let choice = Choice::of(&order)?;
    if order.dry_run {
        let events = choice.count(pipeline.admin.as_ref(), order.action).await?;
        return Ok(Json(Done { events, dry_run: true }));
    }
    let (pipeline, action) = (pipeline.clone(), order.action);
    // Whoever asked may leave: what is begun is ended, and how it ended is written down.
    let making = tokio::spawn(async move { make(&pipeline, &caller, action, &choice).await });
    let events = making.await.unwrap_or_else(|error| Err(cut_short(error).into()))?;
    Ok(Json(Done { events, dry_run: false }))
}

async fn make(
    pipeline: &Pipeline,
    caller: &Caller,
    action: Action,
    choice: &Choice,
) -> Result<u64, Trouble> {
    let noted = Noted::begin(pipeline, caller, action.as_str(), &choice.words).await?;
    let changed = choice.apply(pipeline.admin.as_ref(), action).await;
    let (Ok(events) | Err((_, events))) = &changed;
    noted.end(*events).await;
    changed.map_err(|(failure, events)| Trouble::Unfinished { failure, events })
}

fn cut_short(error: JoinError) -> Failure {
    let what = "the change was cut short, and nobody knows after how many events";
    Failure::unavailable("E-HTTP-CUT", what)
        .with_source(error)
        .with_fix("look how many are left; what was changed holds, and repeating it is safe")
}

/// What is to be done.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Order {
    action: Action,
    /// Which events, in words; all that can be changed, if nothing is said.
    #[serde(default)]
    q: String,
    /// Only those that failed with this error.
    error: Option<String>,
    #[serde(default)]
    dry_run: bool,
}

#[derive(Clone, Copy, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "lowercase")]
enum Action {
    Retry,
    Discard,
    Replay,
}

impl Action {
    const fn as_str(self) -> &'static str {
        match self {
            Self::Retry => "retry",
            Self::Discard => "discard",
            Self::Replay => "replay",
        }
    }

    const fn needs(self) -> Role {
        match self {
            Self::Retry | Self::Discard => Role::Operator,
            Self::Replay => Role::Admin,
        }
    }

    /// Which events it changes.
    const fn states(self) -> &'static [EventState] {
        match self {
            Self::Retry | Self::Discard => &[EventState::Failed, EventState::Dead],
            Self::Replay => &[EventState::Published],
        }
    }

    async fn apply(self, store: &dyn AdminStore, selection: &Selection) -> Result<usize, Failure> {
        match self {
            Self::Retry => store.retry(selection).await,
            Self::Discard => store.discard(selection).await,
            Self::Replay => store.replay(selection).await,
        }
    }
}

/// How many events it was, or would be.
#[derive(Serialize)]
pub(crate) struct Done {
    events: u64,
    dry_run: bool,
}

/// Which events are meant.
struct Choice {
    wanted: Wanted,
    error: Option<String>,
    /// As the log of changes has it.
    words: String,
}

impl Choice {
    fn of(order: &Order) -> Result<Self, Trouble> {
        let wanted = Wanted::parse(&order.q, SystemClock.now()).map_err(Trouble::Question)?;
        let mut words = if order.q.trim().is_empty() { "all".to_owned() } else { order.q.clone() };
        if let Some(error) = &order.error {
            words += &format!(" error:{error:?}");
        }
        Ok(Self { wanted, error: order.error.clone(), words })
    }

    async fn count(&self, store: &dyn AdminStore, action: Action) -> Result<u64, Failure> {
        if let Some(id) = self.wanted.id {
            let view = patiently(store.get(id)).await?;
            let is_meant = |view: &EventView| action.states().contains(&view.state);
            return Ok(u64::from(view.is_some_and(|view| is_meant(&view))));
        }
        let filter = &self.wanted.filter;
        let only_state = Filter { state: filter.state, ..Filter::default() } == *filter;
        if only_state && self.error.is_none() {
            let stats = patiently(store.stats()).await?;
            let meant = |state: &&EventState| filter.state.is_none_or(|wanted| wanted == **state);
            return Ok(action.states().iter().filter(meant).map(|state| stats.count(*state)).sum());
        }
        Ok(self.ids(store, action).await?.len() as u64)
    }

    /// Changes those that are meant now, and not those that come meanwhile. Says how many; if it ends
    /// early, why, and how many by then.
    async fn apply(&self, store: &dyn AdminStore, action: Action) -> Result<u64, (Failure, u64)> {
        const AT_ONCE: usize = 500;
        let ids = match self.wanted.id {
            Some(id) => vec![id],
            None => self.ids(store, action).await.map_err(|failure| (failure, 0))?,
        };
        let mut changed = 0;
        for ids in ids.chunks(AT_ONCE) {
            let chosen = Selection::Ids(ids.to_vec());
            let applied = patiently(action.apply(store, &chosen)).await;
            changed += applied.map_err(|failure| (failure, changed))? as u64;
        }
        Ok(changed)
    }

    /// The events that are meant, one by one.
    async fn ids(&self, store: &dyn AdminStore, action: Action) -> Result<Vec<EventId>, Failure> {
        const PAGE: usize = 1000;
        let mut ids = Vec::new();
        let filter = &self.wanted.filter;
        for state in action.states() {
            if filter.state.is_some_and(|wanted| wanted != *state) {
                continue;
            }
            let (in_state, mut after) = (Filter { state: Some(*state), ..filter.clone() }, None);
            loop {
                let page = patiently(store.list(&in_state, after, PAGE)).await?;
                let meant = page.events.iter().filter(|view| self.is_meant(view));
                ids.extend(meant.map(|view| view.event.id));
                after = page.next;
                if after.is_none() {
                    break;
                }
            }
        }
        Ok(ids)
    }

    fn is_meant(&self, view: &EventView) -> bool {
        let error = view.error.as_deref().unwrap_or_default();
        self.error.as_ref().is_none_or(|wanted| wanted == error)
    }
}

/// An entry in the log of changes, while the change is made.
pub(crate) struct Noted<'a> {
    pipeline: &'a Pipeline,
    entry: Option<u64>,
}

impl<'a> Noted<'a> {
    /// Writes down what is going to be done. When that fails it must not be done.
    pub(crate) async fn begin(
        pipeline: &'a Pipeline,
        caller: &Caller,
        what: &'static str,
        filter: &str,
    ) -> Result<Self, Failure> {
        let (who, name) = (&caller.name, &pipeline.name);
        tracing::info!(who, what, pipeline = name, filter, "an operator changes something");
        let entry = match &pipeline.insight {
            Some(insight) => Some(patiently(insight.note(who, what, name, filter)).await?),
            None => None,
        };
        Ok(Self { pipeline, entry })
    }

    /// Writes down how many events it was. The change is made: nothing takes it back.
    pub(crate) async fn end(self, events: u64) {
        if let (Some(insight), Some(entry)) = (&self.pipeline.insight, self.entry)
            && let Err(failure) = patiently(insight.conclude(entry, events)).await
        {
            tracing::warn!(entry, events, code = failure.code(), %failure, "cannot write down how a change ended");
        }
    }
}
