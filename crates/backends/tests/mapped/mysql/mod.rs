//! Mapped tables in MySQL and MariaDB.

mod check;
mod classic;
mod large;
mod suites;

use crate::mysql::Database;
