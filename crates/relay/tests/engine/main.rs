//! The engine on memory edges, one behaviour at a time, in virtual time.

mod bounds;
mod consume;
mod contained;
mod numbers;
mod outage;
mod retry;
mod scripted;
mod stopping;
