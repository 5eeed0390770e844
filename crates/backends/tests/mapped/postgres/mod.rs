//! Mapped tables in PostgreSQL.

mod check;
mod classic;
mod plans;
mod suites;

use crate::postgres::Database;
