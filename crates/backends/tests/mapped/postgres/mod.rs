//! Mapped tables in PostgreSQL.

mod check;
mod classic;
mod ids;
mod large;
mod plans;
mod suites;

use crate::postgres::Database;
