//! Options that choose events.

use clap::Args;
use clap::builder::{PossibleValuesParser, TypedValueParser};
use semel_core::admin::{Filter, Selection, State};
use semel_core::{EventId, Timestamp};

use super::{OutputOption, OwnerOption};
use crate::wiring::{DATABASES, DatabaseKind};

/// `semel dead retry`, `semel dead discard` and `semel replay`
#[derive(Args, Debug)]
pub(crate) struct ChangeOptions {
    /// Which events
    #[arg(required_unless_present = "all")]
    #[arg(conflicts_with_all = ["all", "event_type", "aggregate_type", "aggregate_id", "since", "until"])]
    pub(crate) ids: Vec<EventId>,

    /// All there are, or those that the options below choose
    #[arg(long)]
    pub(crate) all: bool,

    /// Only say how many it would be
    #[arg(long)]
    pub(crate) dry_run: bool,

    /// Do not ask, with --all
    #[arg(long)]
    pub(crate) yes: bool,
    #[command(flatten)]
    pub(crate) filter: FilterOptions,
    #[command(flatten)]
    pub(crate) owner: OwnerOption,
    #[command(flatten)]
    pub(crate) output: OutputOption,
}

impl ChangeOptions {
    /// The events that were named, or those in `state` that match.
    pub(crate) fn selection(&self, state: State) -> Selection {
        if self.all {
            Selection::Matching(self.filter.in_state(Some(state)))
        } else {
            Selection::Ids(self.ids.clone())
        }
    }
}

/// Which events.
#[derive(Args, Debug)]
pub(crate) struct FilterOptions {
    /// Only of this event type
    #[arg(long = "type", value_name = "TYPE")]
    event_type: Option<String>,

    /// Only of this aggregate type
    #[arg(long, value_name = "TYPE")]
    aggregate_type: Option<String>,

    /// Only of the aggregate with this id
    #[arg(long = "aggregate", value_name = "ID")]
    aggregate_id: Option<String>,

    /// Only made at this time or later, such as 2026-01-31T12:00:00Z
    #[arg(long, value_name = "TIME")]
    since: Option<Timestamp>,

    /// Only made before this time
    #[arg(long, value_name = "TIME")]
    until: Option<Timestamp>,
}

impl FilterOptions {
    pub(crate) fn in_state(&self, state: Option<State>) -> Filter {
        Filter {
            state,
            aggregate_type: self.aggregate_type.clone(),
            aggregate_id: self.aggregate_id.clone(),
            event_type: self.event_type.clone(),
            since: self.since,
            until: self.until,
        }
    }
}

/// One of the states of an event.
pub(super) fn states() -> impl TypedValueParser<Value = State> {
    PossibleValuesParser::new(State::ALL.map(State::as_str)).try_map(|name| {
        let state = State::ALL.into_iter().find(|state| state.as_str() == name);
        state.ok_or("no such state")
    })
}

/// One of the kinds of databases.
pub(super) fn database_kinds() -> impl TypedValueParser<Value = &'static DatabaseKind> {
    PossibleValuesParser::new(DATABASES.iter().map(|kind| kind.name)).try_map(|name| {
        let kind = DATABASES.iter().find(|kind| kind.name == name);
        kind.ok_or("no such database")
    })
}
