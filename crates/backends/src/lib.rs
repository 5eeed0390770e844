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
//! | `statement` | the same append for drivers that semel does not know |
//! | `poll`, `round`, `settle` | [`Source`](semel_core::Source): a look at the tables, and the way back |
//! | `tail/` | what tells a source of commits before its next look |
//! | `parking` | what left the straight path of a source |
//! | `coordination` | [`Coordinator`](semel_core::coordination::Coordinator): leases for several relays |
//! | `mapped` | tables of somebody else's shape |
//! | `inbox`, `letters`, `marks`, `keys`, `key_admin`, `admin`, `view` | the other stores of `semel-core` |
//! | `sink`, `subscription` | the two ends of a broker |
//! | `dead_queue` | [`DeadQueue`]: dead letters that consumers left with a broker |
//! | `error` | which error of the client library is which [`Fault`](semel_core::Fault) |

#[cfg(any(feature = "mysql", feature = "postgres", feature = "sqlite"))]
mod applied;
mod arrival;
#[cfg(feature = "aws")]
pub mod aws;
#[cfg(any(feature = "aws", feature = "nats", feature = "rabbitmq"))]
mod brevity;
#[cfg(any(feature = "mysql", feature = "postgres"))]
mod connecting;
#[cfg(any(feature = "mysql", feature = "postgres", feature = "sqlite"))]
mod coordination;
#[cfg(any(feature = "mysql", feature = "nats", feature = "postgres", feature = "redis"))]
mod crypto;
mod dead_queue;
#[cfg(any(
    feature = "aws",
    feature = "kafka",
    feature = "nats",
    feature = "rabbitmq",
    feature = "redis"
))]
#[allow(dead_code, reason = "not every broker needs all of it")]
mod hand;
#[cfg(any(feature = "aws", feature = "nats"))]
mod intake;
#[cfg(feature = "kafka")]
pub mod kafka;
#[cfg(any(feature = "mysql", feature = "postgres", feature = "sqlite"))]
mod key_page;
#[cfg(any(feature = "aws", feature = "mqtt", feature = "nats", feature = "rabbitmq"))]
mod lanes;
#[cfg(any(feature = "mysql", feature = "postgres", feature = "sqlite"))]
mod letters;
#[cfg(any(feature = "mysql", feature = "postgres", feature = "sqlite"))]
pub mod mapped;
#[cfg(feature = "mqtt")]
pub mod mqtt;
#[cfg(feature = "mysql")]
pub mod mysql;
#[cfg(feature = "nats")]
pub mod nats;
#[cfg(feature = "ndjson")]
pub mod ndjson;
#[cfg(any(feature = "mysql", feature = "postgres", feature = "sqlite"))]
pub mod once;
#[cfg(feature = "postgres")]
pub mod postgres;
#[cfg(feature = "rabbitmq")]
pub mod rabbitmq;
#[cfg(feature = "redis")]
pub mod redis;
#[cfg(any(feature = "mysql", feature = "postgres", feature = "sqlite"))]
mod row;
#[cfg(any(feature = "mysql", feature = "sqlite"))]
mod settle;
#[cfg(feature = "sqlite")]
pub mod sqlite;
#[cfg(any(feature = "mysql", feature = "postgres", feature = "sqlite"))]
pub mod statement;
#[cfg(any(
    feature = "aws",
    feature = "kafka",
    feature = "nats",
    feature = "rabbitmq",
    feature = "redis"
))]
#[allow(dead_code, reason = "not every broker needs all of it")]
mod subscription;
mod sweep;
#[cfg(any(feature = "mysql", feature = "postgres"))]
mod tailing;
#[cfg(any(feature = "mysql", feature = "postgres", feature = "sqlite"))]
mod versions;
#[cfg(any(feature = "mysql", feature = "sqlite"))]
mod watermark;
#[cfg(any(feature = "aws", feature = "rabbitmq"))]
mod waves;
#[cfg(feature = "webhook")]
pub mod webhook;

pub use arrival::Arrival;
pub use dead_queue::{DeadLetter, DeadQueue};
pub use sweep::{Fate, Sweep, sweep};
