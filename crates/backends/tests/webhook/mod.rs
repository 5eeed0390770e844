//! The webhook sink against real HTTP servers: the shared suite, and what endpoints do.

#![expect(clippy::unwrap_used, clippy::panic, reason = "helpers of tests")]

mod answers;
mod endpoint;
mod engine;
mod lanes;
mod reach;
mod signing;
mod suite;
