//! The program as its users run it. What takes a machine for itself is apart: `outage`, `storm`.

#![expect(
    clippy::expect_used,
    clippy::panic,
    clippy::unwrap_used,
    reason = "helpers of tests may panic"
)]

mod databases;
mod dead;
mod demo;
mod emitted;
mod mysql;
mod operate;
mod page;
mod pipelines;
mod postgres;
mod proxy;
mod relay;
mod servers;
mod settings;
mod shell;
mod shop;
mod traces;
mod upkeep;
