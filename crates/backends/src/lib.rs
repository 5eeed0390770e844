//! What semel writes to, reads from and publishes to.
//!
//! One technology, one folder, one cargo feature; nothing is built unless it is asked for. Every
//! folder uses the same file names for the same roles, so that whoever knows one knows them all:
//!
//! | file | role |
//! |---|---|
//! | `config`, `store` | settings and connections |
//! | `schema`, `migrations/` | the tables and their versions |
//! | `outbox`, `row` | [`OutboxWriter`](semel_core::OutboxWriter), and reading a row back |
//! | `poll`, `round`, `settle` | [`Source`](semel_core::Source): a look at the tables, and the way back |
//! | `parking` | what left the straight path of a source |
//! | `inbox`, `keys`, `admin`, `view` | the other stores of `semel-core` |
//! | `sink`, `subscription` | the two ends of a broker |
//! | `error` | which error of the client library is which [`Fault`](semel_core::Fault) |

#[cfg(feature = "mysql")]
pub mod mysql;
#[cfg(feature = "ndjson")]
pub mod ndjson;
#[cfg(feature = "postgres")]
pub mod postgres;
#[cfg(feature = "sqlite")]
pub mod sqlite;
#[cfg(any(feature = "mysql", feature = "sqlite"))]
mod watermark;
