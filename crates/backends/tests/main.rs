//! All backends against the shared suites and against what is particular to each.

#[cfg(feature = "sqlite")]
mod sqlite;
