//! `semel dead`: dead letters, and what an operator does about them.

use semel_core::admin::State;

use super::change::Change;
use super::{buried, events};
use crate::args::DeadCommand;
use crate::exit::{Exit, Problem};

pub(crate) async fn run(command: &DeadCommand) -> Result<Exit, Problem> {
    match command {
        DeadCommand::List(options) if options.buried.place().is_some() => {
            buried::list(options).await
        }
        DeadCommand::List(options) => {
            let filter = options.page.filter.in_state(Some(State::Dead));
            events::list(&options.page, &filter).await
        }
        DeadCommand::Show(options) if options.buried.place().is_some() => {
            buried::show(options).await
        }
        DeadCommand::Show(options) => events::show(&options.show).await,
        DeadCommand::Retry(options) if options.rest.buried.place().is_some() => {
            buried::retry(options).await
        }
        DeadCommand::Retry(options) => Change::Retry.run(&options.rest.change).await,
        DeadCommand::Discard(options) if options.buried.place().is_some() => {
            buried::discard(options).await
        }
        DeadCommand::Discard(options) => Change::Discard.run(&options.change).await,
    }
}
