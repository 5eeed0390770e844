//! All backends against the shared suites and against what is particular to each.

#[cfg(feature = "ndjson")]
mod ndjson;
#[cfg(feature = "postgres")]
mod postgres;
#[cfg(feature = "sqlite")]
mod sqlite;
