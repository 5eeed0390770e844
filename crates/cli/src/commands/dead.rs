//! `semel dead`: dead letters, and what an operator does about them.

use semel_core::admin::{Selection, State};
use semel_core::{AdminStore, Failure};
use serde_json::json;

use super::{Desk, events};
use crate::args::{ChangeOptions, DeadCommand};
use crate::exit::{Exit, Problem};
use crate::output::{Format, print, print_json};

pub(crate) async fn run(command: &DeadCommand) -> Result<Exit, Problem> {
    match command {
        DeadCommand::List(options) => {
            events::list(options, &options.filter.in_state(Some(State::Dead))).await
        }
        DeadCommand::Show(options) => events::show(options).await,
        DeadCommand::Retry(options) => change(options, Change::Retry).await,
        DeadCommand::Discard(options) => change(options, Change::Discard).await,
    }
}

#[derive(Clone, Copy)]
enum Change {
    Retry,
    Discard,
}

impl Change {
    const fn done(self) -> &'static str {
        match self {
            Self::Retry => "retried",
            Self::Discard => "discarded",
        }
    }

    async fn apply(self, store: &dyn AdminStore, chosen: &Selection) -> Result<usize, Failure> {
        match self {
            Self::Retry => store.retry(chosen).await,
            Self::Discard => store.discard(chosen).await,
        }
    }
}

async fn change(options: &ChangeOptions, change: Change) -> Result<Exit, Problem> {
    let desk = Desk::open(&options.pipeline).await?;
    let chosen = options.selection();
    let count = if options.dry_run {
        count(desk.store.as_ref(), &chosen).await
    } else {
        change.apply(desk.store.as_ref(), &chosen).await
    };
    let count = count.map_err(|failure| desk.problem(failure))?;
    let done = change.done();
    match options.output.format {
        Format::Json => print_json(&json!({ done: count, "dry_run": options.dry_run })),
        Format::Text if options.dry_run => print(&format!("{count} events would be {done}\n")),
        Format::Text => print(&format!("{count} events {done}\n")),
    }
    Ok(Exit::Done)
}

/// How many events a change would concern.
async fn count(store: &dyn AdminStore, chosen: &Selection) -> Result<usize, Failure> {
    const PAGE: usize = 1000;
    let mut count = 0;
    match chosen {
        Selection::Ids(ids) => {
            for id in ids {
                let view = store.get(*id).await?;
                count += usize::from(
                    view.is_some_and(|view| matches!(view.state, State::Dead | State::Failed)),
                );
            }
        }
        Selection::Matching(filter) => {
            let mut after = None;
            loop {
                let page = store.list(filter, after, PAGE).await?;
                count += page.events.len();
                after = page.next;
                if after.is_none() {
                    break;
                }
            }
        }
    }
    Ok(count)
}
