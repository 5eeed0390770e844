//! Options that describe an event.

use std::convert::Infallible;
use std::path::PathBuf;
use std::str::FromStr;

use clap::Args;
use semel_core::{Payload, Timestamp};

use super::{DatabaseOption, OutputOption};

/// `semel send`
#[derive(Args, Debug)]
pub(crate) struct SendOptions {
    #[command(flatten)]
    pub(crate) database: DatabaseOption,

    /// The kind of thing it is about, such as order
    #[arg(long, value_name = "TYPE")]
    pub(crate) aggregate_type: String,

    /// Which one of that kind; events of one aggregate keep their order
    #[arg(long, value_name = "ID")]
    pub(crate) aggregate_id: String,

    /// What happened, such as OrderPlaced
    #[arg(long = "type", value_name = "TYPE")]
    pub(crate) event_type: String,

    /// The content: itself, @FILE, or - for standard input; JSON unless --content-type says else
    #[arg(long, value_name = "PAYLOAD", default_value = "null", allow_negative_numbers = true)]
    pub(crate) payload: PayloadOrigin,

    /// What kind of content the payload is
    #[arg(long, value_name = "TYPE", default_value = Payload::JSON, requires = "payload")]
    pub(crate) content_type: String,

    /// A value that travels with it, such as tenant=acme; may be repeated
    #[arg(long = "header", value_name = "NAME=VALUE", value_parser = header)]
    pub(crate) headers: Vec<(String, String)>,

    /// Refuse it if an event with this idempotency key exists already
    #[arg(long, value_name = "KEY")]
    pub(crate) key: Option<String>,

    /// Do not publish it before this time, such as 2026-01-31T12:00:00Z
    #[arg(long, value_name = "TIME")]
    pub(crate) at: Option<Timestamp>,

    /// Only check it, and print it as JSON
    #[arg(long)]
    pub(crate) dry_run: bool,
    #[command(flatten)]
    pub(crate) output: OutputOption,
}

/// Where the payload comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum PayloadOrigin {
    CommandLine(String),
    File(PathBuf),
    StandardInput,
}

impl FromStr for PayloadOrigin {
    type Err = Infallible;

    fn from_str(text: &str) -> Result<Self, Infallible> {
        Ok(match text.strip_prefix('@') {
            Some(path) => Self::File(path.into()),
            None if text == "-" => Self::StandardInput,
            None => Self::CommandLine(text.to_owned()),
        })
    }
}

fn header(text: &str) -> Result<(String, String), &'static str> {
    match text.split_once('=') {
        Some((name, value)) if !name.is_empty() => Ok((name.to_owned(), value.to_owned())),
        _ => Err("it must be NAME=VALUE"),
    }
}
