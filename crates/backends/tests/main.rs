//! All backends against the shared suites and against what is particular to each.

#![allow(clippy::expect_used, clippy::unwrap_used, reason = "a test reports by panicking")]

#[cfg(feature = "mysql")]
mod mysql;
#[cfg(feature = "ndjson")]
mod ndjson;
#[cfg(feature = "postgres")]
mod postgres;
#[cfg(feature = "sqlite")]
mod sqlite;
