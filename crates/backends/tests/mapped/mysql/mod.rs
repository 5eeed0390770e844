//! Mapped tables in MySQL and MariaDB.

mod classic;
mod suites;

use crate::mysql::Database;
