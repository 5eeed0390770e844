//! Appending an event with any driver: the SQL and its parameters, for the caller to run.
//!
//! Each database has a function `append_statement` that makes a [`Statement`]. It is one plain
//! INSERT, to be run in the transaction that the event belongs to. It needs no right but to insert.
//! How it looks with tokio-postgres, diesel and sea-orm is in `docs/drivers.md`.
//!
#![cfg_attr(feature = "postgres", doc = "```")]
#![cfg_attr(not(feature = "postgres"), doc = "```ignore")]
//! use semel_backends::postgres::append_statement;
//! use semel_backends::statement::Parameter;
//! use semel_core::Event;
//!
//! let event = Event::new("order", "42", "OrderPlaced");
//! let append = append_statement(&event, &Default::default())?;
//! assert!(append.sql.starts_with("insert into semel.outbox"));
//! assert_eq!(append.parameters[2], Parameter::Text(Some("42".into())));
//! # Ok::<(), semel_core::Failure>(())
//! ```

#[cfg(any(feature = "mysql", feature = "postgres"))]
use semel_core::Timestamp;

/// A statement and its parameters, in the order of their places.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Statement {
    /// The statement. Always the same for one database, so it can be kept prepared.
    pub sql: &'static str,
    /// What stands at its places.
    pub parameters: Vec<Parameter>,
}

/// A value that every driver can bind. It has a kind also when it is null, because some drivers ask
/// for one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Parameter {
    /// A text. Ids, times and headers are texts as well; the statement converts them.
    Text(Option<String>),
    /// Bytes.
    Bytes(Option<Vec<u8>>),
}

impl Parameter {
    pub(crate) fn text(text: impl Into<String>) -> Self {
        Self::Text(Some(text.into()))
    }
}

/// A time as text, to the microsecond, which is what the databases store: `2026-01-31T12:00:00.5Z`.
#[cfg(any(feature = "mysql", feature = "postgres"))]
pub(crate) fn time(time: Timestamp) -> String {
    Timestamp::from_microsecond(time.as_microsecond()).unwrap_or(time).to_string()
}
