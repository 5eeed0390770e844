//! What an operator does to events: try them again, give them up, publish them once more.

use std::collections::BTreeSet;

use semel_core::admin::{Selection, State};
use semel_core::{AdminStore, Failure};
use serde_json::json;

use super::{Desk, count_matching};
use crate::args::ChangeOptions;
use crate::exit::{Exit, Problem};
use crate::output::{Format, print, print_json};

#[derive(Clone, Copy)]
pub(crate) enum Change {
    Retry,
    Discard,
    Replay,
}

impl Change {
    pub(crate) async fn run(self, options: &ChangeOptions) -> Result<Exit, Problem> {
        let desk = Desk::of_owner(&options.owner).await?;
        let chosen = options.selection(self.usual_state());
        let count = if options.dry_run {
            self.count(desk.store.as_ref(), &chosen).await
        } else {
            self.apply(desk.store.as_ref(), &chosen).await
        };
        let count = count.map_err(|failure| desk.problem(failure))?;
        let done = self.done();
        match options.output.format {
            Format::Json => print_json(&json!({ done: count, "dry_run": options.dry_run })),
            Format::Text if options.dry_run => print(&format!("{count} events would be {done}\n")),
            Format::Text => print(&format!("{count} events {done}\n")),
        }
        Ok(Exit::Done)
    }

    const fn done(self) -> &'static str {
        match self {
            Self::Retry => "retried",
            Self::Discard => "discarded",
            Self::Replay => "replayed",
        }
    }

    /// The state of the events that `--all` means.
    const fn usual_state(self) -> State {
        match self {
            Self::Retry | Self::Discard => State::Dead,
            Self::Replay => State::Published,
        }
    }

    /// Whether an event that was named by its id can be changed.
    fn concerns(self, state: State) -> bool {
        match self {
            Self::Retry | Self::Discard => matches!(state, State::Dead | State::Failed),
            Self::Replay => state == State::Published,
        }
    }

    async fn apply(self, store: &dyn AdminStore, chosen: &Selection) -> Result<usize, Failure> {
        match self {
            Self::Retry => store.retry(chosen).await,
            Self::Discard => store.discard(chosen).await,
            Self::Replay => store.replay(chosen).await,
        }
    }

    /// How many events it would concern.
    async fn count(self, store: &dyn AdminStore, chosen: &Selection) -> Result<usize, Failure> {
        match chosen {
            Selection::Ids(ids) => {
                let mut count = 0;
                for id in ids.iter().collect::<BTreeSet<_>>() {
                    let view = store.get(*id).await?;
                    count += usize::from(view.is_some_and(|view| self.concerns(view.state)));
                }
                Ok(count)
            }
            Selection::Matching(filter) => count_matching(store, filter, |_| true).await,
        }
    }
}
