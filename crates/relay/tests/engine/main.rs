//! The engine on memory edges, one behaviour at a time, in virtual time.

#![allow(
    clippy::expect_used,
    clippy::panic,
    clippy::print_stdout,
    clippy::unwrap_used,
    reason = "test code: a panic is how it reports"
)]

mod alert;
mod bounds;
mod consume;
mod consumer;
mod contained;
mod fanout;
mod gauges;
mod group;
mod numbers;
mod outage;
mod pace;
mod pulse;
mod retry;
mod routed;
mod scripted;
mod stopping;
mod told;
