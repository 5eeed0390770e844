//! Options of what looks on: `status --watch`, `top`, `tap`, `verify`.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use semel_core::Timestamp;

use super::{ConfigOption, FilterOptions, OutputOption, PipelineOption};

/// Looking again and again.
#[derive(Args, Debug)]
pub(crate) struct WatchOption {
    /// Look again and again, until ctrl-C; every 2s, or as often as is said
    #[arg(long, value_name = "SPAN", value_parser = interval)]
    #[arg(num_args = 0..=1, default_missing_value = "2s")]
    pub(crate) watch: Option<Duration>,
}

/// `semel top`
#[derive(Args, Debug)]
pub(crate) struct TopOptions {
    #[command(flatten)]
    pub(crate) config: ConfigOption,

    /// How often it looks
    #[arg(long, value_name = "SPAN", value_parser = interval, default_value = "2s")]
    pub(crate) every: Duration,

    /// End after so many looks
    #[arg(long, value_name = "N")]
    pub(crate) count: Option<u64>,
}

/// What `semel tap` does not show.
pub(super) const TAP_LIMITS: &str = "Not shown: what was written more than 15 seconds before this began and is published without \
     ever failing, and states that last for less than --every. Of the events that wait for longer, \
     the newest 1000 are followed, 20 at each look; of those that failed or died, the oldest 1000 of \
     each. `semel events show ID` knows the life of any event.";

/// `semel tap`
#[derive(Args, Debug)]
pub(crate) struct TapOptions {
    #[command(flatten)]
    pub(crate) pipeline: PipelineOption,
    #[command(flatten)]
    pub(crate) filter: FilterOptions,

    /// Show payloads too
    #[arg(long)]
    pub(crate) payload: bool,

    /// End after so many lines
    #[arg(long, value_name = "N")]
    pub(crate) count: Option<usize>,

    /// How often it looks
    #[arg(long, value_name = "SPAN", value_parser = interval, default_value = "500ms")]
    pub(crate) every: Duration,
    #[command(flatten)]
    pub(crate) output: OutputOption,
}

/// `semel verify`
#[derive(Args, Debug)]
pub(crate) struct VerifyOptions {
    #[command(flatten)]
    pub(crate) pipeline: PipelineOption,

    /// Which sink is read, if there are several; nothing is taken out of it
    #[arg(long, value_name = "NAME", conflicts_with_all = ["received", "inbox"])]
    pub(crate) sink: Option<String>,

    /// What arrived, instead of what the sink has: one JSON object with an id per line; - for
    /// standard input, such as that of a broker's own client
    #[arg(long, value_name = "FILE")]
    pub(crate) received: Option<PathBuf>,

    /// The database of a consumer, whose inbox is compared instead; with --consumer
    #[arg(long, value_name = "URL", conflicts_with = "received", requires = "consumer")]
    pub(crate) inbox: Option<String>,

    /// Which consumer of that database
    #[arg(long, value_name = "NAME", requires = "inbox")]
    pub(crate) consumer: Option<String>,

    /// Only events made at this time or later, such as 2026-01-31T12:00:00Z
    #[arg(long, value_name = "TIME")]
    pub(crate) since: Option<Timestamp>,

    /// Only events made before this time
    #[arg(long, value_name = "TIME")]
    pub(crate) until: Option<Timestamp>,
    #[command(flatten)]
    pub(crate) output: OutputOption,
}

fn interval(text: &str) -> Result<Duration, String> {
    match humantime::parse_duration(text) {
        Ok(span) if span >= Duration::from_millis(100) => Ok(span),
        Ok(_) => Err("it looks ten times a second at most: 100ms".into()),
        Err(error) => Err(error.to_string()),
    }
}
