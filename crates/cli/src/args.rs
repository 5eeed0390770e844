//! What can be typed: commands, options and their help.

use clap::{Args, Parser, Subcommand, ValueEnum};

/// The whole command line.
#[derive(Debug, Parser)]
#[command(
    name = "semel",
    version,
    about = "A change committed once takes effect once, whatever crashes in between",
    after_help = "Exit codes: 0 done · 1 found problems · 64 usage · 69 unreachable · 75 try again · \
                  78 configuration",
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
}

/// `semel demo`
#[derive(Args, Clone, Debug)]
pub(crate) struct DemoOptions {
    /// How many orders are placed
    #[arg(long, value_name = "N", default_value_t = 1000, value_parser = clap::value_parser!(u64).range(1..))]
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
    /// Nothing
    None,
    /// A crash or a repetition now and then
    Some,
    /// All the time
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

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_definition_is_consistent() {
        Arguments::command().debug_assert();
    }
}
