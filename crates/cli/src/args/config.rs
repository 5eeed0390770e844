//! `semel config` and `semel init`.

use std::path::PathBuf;

use clap::{Args, Subcommand};

use super::{ConfigOption, OutputOption};

#[derive(Debug, Subcommand)]
pub(crate) enum ConfigCommand {
    /// Find all mistakes, without connecting to anything
    Check(ConfigOption),
    /// What holds for every key, and where it was said; secrets are hidden
    Show(ConfigShowOptions),
    /// Run the [[test]] cases: where events would go; ends with 1 if one is not as expected
    Test(ConfigShowOptions),
    /// Print the JSON Schema of the configuration, for editors
    Schema,
}

#[derive(Args, Debug)]
pub(crate) struct ConfigShowOptions {
    #[command(flatten)]
    pub(crate) config: ConfigOption,
    #[command(flatten)]
    pub(crate) output: OutputOption,
}

/// `semel init`
#[derive(Args, Debug)]
pub(crate) struct InitOptions {
    /// Where to write it; a file that exists is left alone
    #[arg(long = "config", value_name = "FILE", default_value = "semel.toml")]
    pub(crate) path: PathBuf,

    /// Convert the outbox configuration of Debezium Server in this file
    #[arg(long, value_name = "PROPERTIES")]
    pub(crate) from: Option<PathBuf>,

    /// Only print what would be written
    #[arg(long)]
    pub(crate) dry_run: bool,
}
