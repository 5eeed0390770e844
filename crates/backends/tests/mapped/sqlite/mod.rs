//! Mapped tables in SQLite.

mod classic;
mod suites;

use crate::sqlite::Database;
