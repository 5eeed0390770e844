//! Options that choose events.

use clap::Args;
use clap::builder::{PossibleValuesParser, TypedValueParser};
#[cfg(feature = "page")]
use semel_core::Failure;
use semel_core::admin::{Filter, Selection, State};
use semel_core::{EventId, Timestamp};

#[cfg(feature = "page")]
use super::ApiOption;
use super::{OutputOption, OwnerOption};
#[cfg(feature = "page")]
use crate::exit::Problem;
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
    #[cfg(feature = "page")]
    #[command(flatten)]
    pub(crate) api: ApiOption,
    #[command(flatten)]
    pub(crate) output: OutputOption,
}

impl ChangeOptions {
    /// Whether the page has words for it.
    #[cfg(feature = "page")]
    pub(crate) fn check_askable(&self) -> Result<(), Problem> {
        if self.owner.consumer.is_none() { Ok(()) } else { Err(unknown_to_relays()) }
    }

    /// The same in the words of the page, one for each question: all that match, or each id.
    pub(crate) fn in_words(&self, state: State) -> Vec<String> {
        if self.all {
            vec![self.filter.in_words(state)]
        } else {
            self.ids.iter().map(|id| format!("id:{id}")).collect()
        }
    }

    /// The events that were named, or those in `state` that match.
    pub(crate) fn selection(&self, state: State) -> Selection {
        if self.all {
            Selection::Matching(self.filter.in_state(Some(state)))
        } else {
            Selection::Ids(self.ids.clone())
        }
    }
}

#[cfg(feature = "page")]
pub(super) fn unknown_to_relays() -> Problem {
    let what = "a relay does not know the dead letters of consumers";
    let failure = Failure::misconfigured("E-API-QUESTION", what)
        .with_fix("ask the database or the broker: leave --api out");
    Problem::new(failure, "--api", "nothing was changed; no event is lost").of_usage()
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
    /// Whether some events are chosen, and not all.
    pub(crate) fn is_some(&self) -> bool {
        self.in_state(None) != Filter::default()
    }

    fn in_words(&self, state: State) -> String {
        let time = |time: Option<Timestamp>| time.map(|time| time.to_string());
        let words = [
            ("state", Some(state.as_str().to_owned())),
            ("event", self.event_type.clone()),
            ("type", self.aggregate_type.clone()),
            ("aggregate", self.aggregate_id.clone()),
            ("since", time(self.since)),
            ("until", time(self.until)),
        ];
        let word = |(name, value): (&str, Option<String>)| {
            let value = value?;
            // A slash outside quotes would part a type from an id.
            let parts = |c: char| c.is_whitespace() || c == '"' || c == '/';
            if !value.is_empty() && !value.contains(parts) {
                return Some(format!("{name}:{value}"));
            }
            let escaped = value.replace('\\', "\\\\").replace('"', "\\\"");
            Some(format!("{name}:\"{escaped}\""))
        };
        words.into_iter().filter_map(word).collect::<Vec<_>>().join(" ")
    }

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
