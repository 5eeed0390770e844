//! What can be typed: commands, options and their help.

mod choice;
mod config;
mod dead;
#[cfg(all(test, feature = "mysql", feature = "postgres", feature = "proxy"))]
mod documented;
mod help;
mod keys;
#[cfg(all(test, feature = "mysql", feature = "postgres", feature = "proxy"))]
mod page;
#[cfg(feature = "proxy")]
mod proxy;
mod send;
mod watch;

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Parser, Subcommand, ValueEnum};
use semel_core::EventId;
use semel_core::admin::State;

pub(crate) use self::choice::{ChangeOptions, FilterOptions};
pub(crate) use self::config::{ConfigCommand, ConfigShowOptions, InitOptions};
pub(crate) use self::dead::{
    BuriedOption, DeadChangeOptions, DeadCommand, DeadListOptions, DeadRetryOptions,
    DeadShowOptions,
};
pub(crate) use self::help::command;
#[cfg(feature = "proxy")]
pub(crate) use self::keys::KeyConformOptions;
pub(crate) use self::keys::{KeyListOptions, KeyReleaseOptions, KeyShowOptions, KeysCommand};
#[cfg(feature = "proxy")]
pub(crate) use self::proxy::ProxyOptions;
pub(crate) use self::send::{PayloadOrigin, SendOptions};
use self::watch::TAP_LIMITS;
pub(crate) use self::watch::{TapOptions, TopOptions, VerifyOptions, WatchOption};
use crate::output::Format;
use crate::wiring::{DatabaseKind, sinks_in_words};

/// The whole command line.
#[derive(Debug, Parser)]
#[command(
    name = "semel",
    version,
    about = "A change committed once takes effect once, whatever crashes in between",
    after_help = "Exit codes: 0 done · 1 found problems · 64 usage · 69 unreachable · 75 try again\n\
                  \x20           77 denied · 78 configuration\n\
                  SEMEL_LOG=debug says more on standard error.",
    subcommand_required = true,
    arg_required_else_help = true,
    disable_help_subcommand = true
)]
pub(crate) struct Arguments {
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// The whole story in one process: orders, relay, consumers, crashes; needs no server
    Demo(DemoOptions),
    /// Write a commented configuration for the database and broker that are found
    Init(InitOptions),
    /// Create the tables, look at their version, print them as SQL, or drop them
    #[command(subcommand)]
    Migrate(MigrateCommand),
    /// Find mistakes of the set-up before they bite, and print what sets them right
    Check(CheckOptions),
    /// Print roles with least privileges as SQL: writer, poller, tailer, viewer
    Grants(GrantsOptions),
    /// Look at the configuration: check, show, test, schema
    #[command(subcommand)]
    Config(ConfigCommand),
    /// Publish what is in the outbox, by the pipelines of the configuration
    #[command(after_help = sinks_in_words())]
    Relay(RelayOptions),
    /// Stand in front of a service in any language, and give it idempotency keys
    #[cfg(feature = "proxy")]
    Proxy(ProxyOptions),
    /// How many events are in which state, and which sinks cannot be reached
    Status(StatusOptions),
    /// Rates of every pipeline, and of the aggregate types of events written just now
    Top(TopOptions),
    /// Events that are written from now on, and how each goes on; what fails, however old it is
    #[command(after_help = TAP_LIMITS)]
    Tap(TapOptions),
    /// Look at events
    #[command(subcommand)]
    Events(EventsCommand),
    /// Look at dead letters, try them again, or give them up
    #[command(subcommand)]
    Dead(DeadCommand),
    /// Look at idempotency keys, make them free by hand, or try how an endpoint treats them
    #[command(subcommand)]
    Keys(KeysCommand),
    /// Publish events again that were published before, with the same ids
    Replay(ChangeOptions),
    /// Delete events that every pipeline published or gave up long ago
    Clean(CleanOptions),
    /// Compare the outbox with what arrived: lost, doubled, out of order
    Verify(VerifyOptions),
    /// Write one event
    Send(SendOptions),
    /// What an error code means, what becomes of your events, and what to do
    Explain(ExplainOptions),
    /// Print completions for a shell
    Completions(CompletionsOptions),
    /// Print the manual page
    Man,
}

/// `semel completions`
#[derive(Args, Debug)]
pub(crate) struct CompletionsOptions {
    /// Which shell
    #[arg(value_enum)]
    pub(crate) shell: clap_complete::Shell,
}

/// `semel explain`
#[derive(Args, Debug)]
pub(crate) struct ExplainOptions {
    /// Such as E-KAFKA-TOPIC-MISSING; without one, all are listed
    #[arg(value_name = "CODE")]
    pub(crate) code: Option<String>,
    #[command(flatten)]
    pub(crate) output: OutputOption,
}

/// `semel demo`
#[derive(Args, Clone, Debug)]
pub(crate) struct DemoOptions {
    /// How many orders are placed
    #[arg(long, value_name = "N", default_value_t = 1000)]
    #[arg(value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) orders: u64,

    /// Chooses the orders, and who is killed when
    #[arg(long, value_name = "S", default_value_t = 1)]
    pub(crate) seed: u64,

    /// How much goes wrong on purpose
    #[arg(long, value_enum, default_value_t = FaultLevel::Some)]
    pub(crate) faults: FaultLevel,

    /// Go on after the orders until ctrl-C, and leave the database files behind
    #[arg(long)]
    pub(crate) keep: bool,
}

/// How much goes wrong on purpose.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum FaultLevel {
    None,
    Some,
    Many,
}

impl FaultLevel {
    pub(crate) const fn as_str(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Some => "some",
            Self::Many => "many",
        }
    }
}

#[derive(Debug, Subcommand)]
pub(crate) enum MigrateCommand {
    /// Create the tables, or bring them up to date; safe to repeat
    Up(TablesOptions),
    /// Which migrations are missing; ends with 1 if any is
    Status(DatabaseOption),
    /// Print the tables as SQL, for a migration tool of your own
    Sql(TablesOptions),
    /// Drop the tables and all events in them
    Down(DownOptions),
}

/// `semel migrate up` and `sql`
#[derive(Args, Debug)]
pub(crate) struct TablesOptions {
    #[command(flatten)]
    pub(crate) database: DatabaseOption,

    /// Divide the outbox into partitions of so much time, such as 1d, which are dropped when they
    /// are old; PostgreSQL only
    #[arg(long, value_name = "SPAN", value_parser = parse_span)]
    pub(crate) partitioned: Option<Duration>,

    /// Divide the inbox of consumers in the same way; PostgreSQL only
    #[arg(long, value_name = "SPAN", value_parser = parse_span)]
    pub(crate) partitioned_inbox: Option<Duration>,

    /// Make the replication slot that keeps events which are written as messages into the log;
    /// PostgreSQL only
    #[arg(long)]
    pub(crate) messages: bool,
}

fn parse_span(text: &str) -> Result<Duration, String> {
    match humantime::parse_duration(text) {
        Ok(span) if span >= Duration::from_secs(60) => Ok(span),
        Ok(_) => Err("a partition covers a minute at least".into()),
        Err(error) => Err(error.to_string()),
    }
}

/// `semel migrate down`
#[derive(Args, Debug)]
pub(crate) struct DownOptions {
    #[command(flatten)]
    pub(crate) database: DatabaseOption,

    /// Do not ask
    #[arg(long)]
    pub(crate) yes: bool,

    /// Even if what is nowhere else is lost: events not published, letters of consumers, messages not carried
    #[arg(long)]
    pub(crate) force: bool,

    /// Only print the SQL
    #[arg(long)]
    pub(crate) dry_run: bool,
}

/// `semel check`
#[derive(Args, Debug)]
pub(crate) struct CheckOptions {
    /// Where the database is, with the user of the relay; otherwise the configuration says so
    #[arg(long = "database", value_name = "URL", conflicts_with = "path")]
    pub(crate) url: Option<String>,
    #[command(flatten)]
    pub(crate) config: ConfigOption,

    /// Only print the SQL that sets things right
    #[arg(long, conflicts_with = "format")]
    pub(crate) fix_sql: bool,
    #[command(flatten)]
    pub(crate) output: OutputOption,
}

/// `semel grants`
#[derive(Args, Debug)]
pub(crate) struct GrantsOptions {
    /// Where the database is; its tables have to be there
    #[arg(long = "database", value_name = "URL", required_unless_present = "kind")]
    pub(crate) url: Option<String>,

    /// What kind of database it is, without a connection
    #[arg(long, value_name = "KIND", conflicts_with = "url", value_parser = choice::database_kinds())]
    pub(crate) kind: Option<&'static DatabaseKind>,

    /// How the names of the roles begin
    #[arg(long = "role", value_name = "PREFIX", default_value = "semel")]
    pub(crate) prefix: String,
}

#[derive(Args, Clone, Debug)]
pub(crate) struct DatabaseOption {
    /// Where the database is, such as sqlite://shop.db
    #[arg(long = "database", value_name = "URL")]
    pub(crate) url: String,
}

#[derive(Args, Debug)]
pub(crate) struct ConfigOption {
    /// The configuration: a file, or a folder whose *.toml are taken together
    #[arg(long = "config", value_name = "FILE", default_value = "semel.toml")]
    pub(crate) path: PathBuf,
}

#[derive(Args, Debug)]
pub(crate) struct OutputOption {
    /// How the result is printed
    #[arg(long = "output", value_enum, default_value_t = Format::Text)]
    pub(crate) format: Format,
}

/// `semel relay`
#[derive(Args, Debug)]
pub(crate) struct RelayOptions {
    #[command(flatten)]
    pub(crate) config: ConfigOption,

    /// End when nothing is left to publish; with 1 if a dead letter was made
    #[arg(long)]
    pub(crate) drain: bool,
}

/// A running relay instead of its database.
#[cfg(feature = "page")]
#[derive(Args, Debug)]
pub(crate) struct ApiOption {
    /// Ask the relay whose page is here, such as http://127.0.0.1:9464, instead of its database
    #[arg(long, value_name = "URL", conflicts_with = "path")]
    pub(crate) api: Option<String>,

    /// The file with the token for it; otherwise $SEMEL_API_TOKEN
    #[arg(long, value_name = "FILE", requires = "api")]
    pub(crate) token_file: Option<PathBuf>,
}

/// `semel status`
#[derive(Args, Debug)]
pub(crate) struct StatusOptions {
    #[command(flatten)]
    pub(crate) config: ConfigOption,
    #[cfg(feature = "page")]
    #[command(flatten)]
    pub(crate) api: ApiOption,
    #[command(flatten)]
    pub(crate) watch: WatchOption,
    #[command(flatten)]
    pub(crate) output: OutputOption,
}

/// Which pipeline a command is about.
#[derive(Args, Debug)]
pub(crate) struct PipelineOption {
    #[command(flatten)]
    pub(crate) config: ConfigOption,

    /// Which pipeline, if there are several
    #[arg(long = "pipeline", value_name = "NAME")]
    pub(crate) name: Option<String>,
}

/// Whose events a command is about: those of a pipeline, or the dead letters of a consumer.
#[derive(Args, Debug)]
pub(crate) struct OwnerOption {
    #[command(flatten)]
    pub(crate) pipeline: PipelineOption,

    /// The dead letters of this consumer, and what waits behind them, instead of a pipeline
    #[arg(long, value_name = "NAME", requires = "database", conflicts_with = "name")]
    pub(crate) consumer: Option<String>,

    /// Where the database of the consumer is
    #[arg(long, value_name = "URL", requires = "consumer")]
    pub(crate) database: Option<String>,
}

#[derive(Debug, Subcommand)]
pub(crate) enum EventsCommand {
    /// A page of events, oldest first
    List(ListOptions),
    /// One event and what became of it
    Show(ShowOptions),
}

/// `semel events list`
#[derive(Args, Debug)]
pub(crate) struct ListOptions {
    /// Only in this state
    #[arg(long, value_name = "STATE", value_parser = choice::states())]
    pub(crate) state: Option<State>,
    #[command(flatten)]
    pub(crate) rest: PageOptions,
}

/// A page of events.
#[derive(Args, Debug)]
pub(crate) struct PageOptions {
    #[command(flatten)]
    pub(crate) owner: OwnerOption,
    #[command(flatten)]
    pub(crate) filter: FilterOptions,

    /// At most so many
    #[arg(long, value_name = "N", default_value_t = 50)]
    pub(crate) limit: usize,

    /// Go on after the page that ended here
    #[arg(long, value_name = "PLACE")]
    pub(crate) after: Option<u64>,
    #[command(flatten)]
    pub(crate) output: OutputOption,
}

#[derive(Args, Debug)]
pub(crate) struct ShowOptions {
    /// Which event
    pub(crate) id: EventId,

    /// Show its payload too
    #[arg(long)]
    pub(crate) payload: bool,

    /// Also look into the inbox of this consumer's database: who has applied it; may be repeated
    #[arg(long = "inbox", value_name = "URL")]
    pub(crate) inboxes: Vec<String>,
    #[command(flatten)]
    pub(crate) owner: OwnerOption,
    #[command(flatten)]
    pub(crate) output: OutputOption,
}

/// `semel clean`
#[derive(Args, Debug)]
pub(crate) struct CleanOptions {
    /// How long ago they were published or given up, such as 7d, 12h or 100ms
    #[arg(long, value_name = "AGE", value_parser = humantime::parse_duration)]
    pub(crate) older_than: Duration,

    /// Delete at most so many; the oldest go first
    #[arg(long, value_name = "N")]
    pub(crate) limit: Option<usize>,

    /// Only say how many it would be at most
    #[arg(long)]
    pub(crate) dry_run: bool,
    #[command(flatten)]
    pub(crate) pipeline: PipelineOption,
    #[command(flatten)]
    pub(crate) output: OutputOption,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_definition_is_consistent() {
        command().debug_assert();
    }
}
