//! `semel dead`: dead letters, and what an operator does about them.

use semel_core::admin::State;

use super::change::Change;
use super::events;
use crate::args::DeadCommand;
use crate::exit::{Exit, Problem};

pub(crate) async fn run(command: &DeadCommand) -> Result<Exit, Problem> {
    match command {
        DeadCommand::List(options) => {
            events::list(options, &options.filter.in_state(Some(State::Dead))).await
        }
        DeadCommand::Show(options) => events::show(options).await,
        DeadCommand::Retry(options) => Change::Retry.run(options).await,
        DeadCommand::Discard(options) => Change::Discard.run(options).await,
    }
}
