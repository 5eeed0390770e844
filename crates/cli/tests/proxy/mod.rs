//! `semel proxy`, as its users run it: the real program in front of a small service, with clients
//! that speak plain HTTP.

#![cfg(feature = "proxy")]

pub(crate) mod client;
mod conform;
mod crashes;
mod many;
mod operators;
mod passing;
pub(crate) mod program;
mod rules;
mod secured;
mod silence;
mod smuggling;
mod stripe;
mod upstream;

use std::time::Duration;

/// Long enough for anything that must happen; a test that waits longer has failed.
const PATIENCE: Duration = Duration::from_secs(60);
