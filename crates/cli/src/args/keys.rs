//! `semel keys`.

use clap::{Args, Subcommand};
use semel_core::idempotency::ScopedKey;

use super::OutputOption;

#[derive(Debug, Subcommand)]
pub(crate) enum KeysCommand {
    /// A page of keys that are running, abandoned or done; never what they returned
    List(KeyListOptions),
    /// One key
    Show(KeyShowOptions),
    /// Make keys free, whatever their state: the next request with one of them runs
    Release(KeyReleaseOptions),
    /// Find out how an HTTP endpoint treats keys; what it must offer is in docs/conformance.md
    #[cfg(feature = "proxy")]
    Conform(KeyConformOptions),
}

#[derive(Args, Debug)]
pub(crate) struct StoreOption {
    /// Where the keys are kept, such as redis://127.0.0.1:6379 or postgres://…
    #[arg(long = "store", value_name = "URL")]
    pub(crate) url: String,
}

/// `semel keys list`
#[derive(Args, Debug)]
pub(crate) struct KeyListOptions {
    #[command(flatten)]
    pub(crate) store: StoreOption,

    /// About so many
    #[arg(long, value_name = "N", default_value_t = 50)]
    pub(crate) limit: usize,

    /// Go on after the page that ended here
    #[arg(long, value_name = "PLACE")]
    pub(crate) after: Option<String>,
    #[command(flatten)]
    pub(crate) output: OutputOption,
}

/// `semel keys show`
#[derive(Args, Debug)]
pub(crate) struct KeyShowOptions {
    /// The hash of the key: 64 digits, as in log lines and as "operation" in refusals
    #[arg(value_name = "HASH", value_parser = hash)]
    pub(crate) key: ScopedKey,
    #[command(flatten)]
    pub(crate) store: StoreOption,
    #[command(flatten)]
    pub(crate) output: OutputOption,
}

/// `semel keys release`
#[derive(Args, Debug)]
pub(crate) struct KeyReleaseOptions {
    /// The hashes of the keys
    #[arg(value_name = "HASH", value_parser = hash, required = true)]
    pub(crate) keys: Vec<ScopedKey>,
    #[command(flatten)]
    pub(crate) store: StoreOption,

    /// Only say which are not free
    #[arg(long)]
    pub(crate) dry_run: bool,
    #[command(flatten)]
    pub(crate) output: OutputOption,
}

/// `semel keys conform`
#[cfg(feature = "proxy")]
#[derive(Args, Debug)]
pub(crate) struct KeyConformOptions {
    /// Where the endpoint is; several instances on one store, if it has them
    #[arg(value_name = "URL", required = true)]
    pub(crate) urls: Vec<String>,

    /// Only these behaviours, by number
    #[arg(long, value_name = "N,N", value_delimiter = ',')]
    pub(crate) only: Vec<u8>,
    #[command(flatten)]
    pub(crate) output: OutputOption,
}

fn hash(text: &str) -> Result<ScopedKey, String> {
    text.parse().map_err(|failure: semel_core::Failure| failure.to_string())
}
