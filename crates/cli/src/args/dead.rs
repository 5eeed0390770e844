//! `semel dead`: letters of pipelines, of consumers, and those that are with a broker.

use clap::{Args, Subcommand};
use semel_core::Failure;

use super::{ChangeOptions, PageOptions, ShowOptions};
use crate::exit::Problem;

#[derive(Debug, Subcommand)]
pub(crate) enum DeadCommand {
    /// A page of dead letters, oldest first
    List(DeadListOptions),
    /// One dead letter and why it died
    Show(DeadShowOptions),
    /// Make them due now, with all attempts in front of them; their aggregates go on behind them.
    /// Letters with a broker go back to where they came from
    Retry(DeadRetryOptions),
    /// Give them up for good; their aggregates go on without them
    Discard(DeadChangeOptions),
}

/// `semel dead list`
#[derive(Args, Debug)]
pub(crate) struct DeadListOptions {
    #[command(flatten)]
    pub(crate) page: PageOptions,
    #[command(flatten)]
    pub(crate) buried: BuriedOption,
}

/// `semel dead show`
#[derive(Args, Debug)]
pub(crate) struct DeadShowOptions {
    #[command(flatten)]
    pub(crate) show: ShowOptions,
    #[command(flatten)]
    pub(crate) buried: BuriedOption,
}

/// `semel dead discard`
#[derive(Args, Debug)]
pub(crate) struct DeadChangeOptions {
    #[command(flatten)]
    pub(crate) change: ChangeOptions,
    #[command(flatten)]
    pub(crate) buried: BuriedOption,
}

/// `semel dead retry`
#[derive(Args, Debug)]
pub(crate) struct DeadRetryOptions {
    #[command(flatten)]
    pub(crate) rest: DeadChangeOptions,

    /// Where letters with a broker go that do not say where they came from; otherwise they stay
    #[arg(long, value_name = "TOPIC", requires = "queue")]
    pub(crate) to: Option<String>,
}

/// Dead letters that consumers left with a broker.
#[derive(Args, Debug)]
pub(crate) struct BuriedOption {
    /// Letters that consumers left with the broker of this sink, instead of those of a pipeline
    #[arg(long, value_name = "NAME", requires = "queue", conflicts_with_all = ["name", "consumer"])]
    pub(crate) sink: Option<String>,

    /// The topic, queue or stream that they are in, such as order.events.dead
    #[arg(long, value_name = "QUEUE", requires = "sink")]
    pub(crate) queue: Option<String>,
}

impl BuriedOption {
    /// The sink and the queue, if letters with a broker are meant.
    pub(crate) fn place(&self) -> Option<(&str, &str)> {
        self.sink.as_deref().zip(self.queue.as_deref())
    }
}

impl DeadListOptions {
    /// Whether nothing is asked for that a broker cannot do.
    pub(crate) fn check_buried(&self) -> Result<(), Problem> {
        let PageOptions { filter, after, .. } = &self.page;
        let chosen = filter.is_some() || after.is_some();
        if chosen { Err(no_choice("give --limit instead")) } else { Ok(()) }
    }
}

impl DeadShowOptions {
    /// Whether nothing is asked for that a broker cannot do.
    pub(crate) fn check_buried(&self) -> Result<(), Problem> {
        let fix = "leave --inbox out; semel events show has it";
        if self.show.inboxes.is_empty() { Ok(()) } else { Err(no_choice(fix)) }
    }
}

impl DeadChangeOptions {
    /// Whether nothing is asked for that a broker cannot do.
    pub(crate) fn check_buried(&self) -> Result<(), Problem> {
        #[cfg(feature = "page")]
        if self.change.api.api.is_some() {
            return Err(super::choice::unknown_to_relays());
        }
        let all = self.change.all && !self.change.filter.is_some();
        if all { Ok(()) } else { Err(no_choice("give --all alone, and --limit to look first")) }
    }
}

fn no_choice(fix: &str) -> Problem {
    let what = "a broker gives letters out in their order, and does not choose among them";
    let failure = Failure::misconfigured("E-DEAD-CHOICE", what).with_fix(fix);
    Problem::new(failure, "--queue", "nothing was changed; no event is lost").of_usage()
}
