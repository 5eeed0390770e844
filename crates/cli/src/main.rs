//! The `semel` program: reads its arguments, runs one command, and ends with an exit code that a
//! script can rely on.

mod args;
mod commands;
mod config;
#[cfg(any(feature = "page", feature = "proxy"))]
mod counting;
mod exit;
mod json_lines;
mod logging;
mod output;
mod service_manager;
mod signals;
mod wiring;

use std::process::ExitCode;

use clap::FromArgMatches;

use crate::args::{Arguments, Command};
use crate::commands::change::Change;
use crate::exit::{Exit, Problem};

/// Events are made by one thread and freed by another, which the system's own allocator is slow at.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    let parsed = args::command().try_get_matches();
    let exit = match parsed.and_then(|matches| Arguments::from_arg_matches(&matches)) {
        Ok(arguments) => run(&arguments).unwrap_or_else(|problem| problem.report()),
        Err(error) => exit::report_usage(&error),
    };
    exit.into()
}

fn run(arguments: &Arguments) -> Result<Exit, Problem> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .map_err(Problem::no_runtime)?;
    runtime.block_on(async {
        match &arguments.command {
            Command::Demo(options) => commands::demo::run(options).await,
            Command::Migrate(command) => commands::migrate::run(command).await,
            Command::Init(options) => commands::init::run(options).await,
            Command::Config(command) => commands::config::run(command),
            Command::Check(options) => commands::check::run(options).await,
            Command::Grants(options) => commands::grants::run(options).await,
            Command::Relay(options) => commands::relay::run(options).await,
            #[cfg(feature = "proxy")]
            Command::Proxy(options) => commands::proxy::run(options).await,
            Command::Status(options) => commands::status::run(options).await,
            Command::Top(options) => commands::top::run(options).await,
            Command::Tap(options) => commands::tap::run(options).await,
            Command::Events(command) => commands::events::run(command).await,
            Command::Dead(command) => commands::dead::run(command).await,
            Command::Keys(command) => commands::keys::run(command).await,
            Command::Replay(options) => Change::Replay.run(options).await,
            Command::Clean(options) => commands::clean::run(options).await,
            Command::Verify(options) => commands::verify::run(options).await,
            Command::Send(options) => commands::send::run(options).await,
            Command::Explain(options) => commands::explain::run(options),
            Command::Completions(options) => Ok(commands::pages::completions(options.shell)),
            Command::Man => Ok(commands::pages::manual()),
        }
    })
}
