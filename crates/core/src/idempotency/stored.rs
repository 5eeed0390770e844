//! How an operation ended, written into a [`Record`].

use bytes::Bytes;

use super::Record;

/// What is kept of a finished operation: how it ended, and whatever its runner wants to say again.
///
/// ```
/// use semel_core::idempotency::{Ending, Record, Stored};
///
/// let record = Stored::record(Ending::Succeeded, b"paid".to_vec());
/// let stored = Stored::from(record);
/// assert_eq!((stored.ending, stored.payload.as_ref()), (Ending::Succeeded, &b"paid"[..]));
///
/// let of_a_later_release = Record { version: 200, body: "?".into() };
/// assert_eq!(Stored::from(of_a_later_release).ending, Ending::NotRetained);
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stored {
    /// How it ended.
    pub ending: Ending,
    /// The result in the words of the runner that wrote it.
    pub payload: Bytes,
}

/// How an operation ended.
///
/// ```
/// # use semel_core::idempotency::Ending;
/// assert_ne!(Ending::Uncertain, Ending::NotRetained);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Ending {
    /// It did what it was asked to, and this is its result.
    Succeeded = 1,
    /// It failed for good, and this is its error.
    Failed = 2,
    /// It ran, but its result was too large, was streamed, or cannot be read any more.
    NotRetained = 3,
    /// Whether it took effect is unknown: its runner died or panicked, and it must not run again.
    Uncertain = 4,
}

impl Stored {
    /// The version of [`Record`] written here: the payload, then one byte for the ending.
    pub const VERSION: u8 = 1;

    /// The record that says so. The payload is not copied if it has room for one more byte.
    #[must_use]
    pub fn record(ending: Ending, mut payload: Vec<u8>) -> Record {
        payload.push(ending as u8);
        Record { version: Self::VERSION, body: payload.into() }
    }

    fn not_retained() -> Self {
        Self { ending: Ending::NotRetained, payload: Bytes::new() }
    }
}

impl From<Record> for Stored {
    /// A record that cannot be read is a result that was not retained: the operation did run.
    fn from(record: Record) -> Self {
        let Record { version: Self::VERSION, mut body } = record else {
            return Self::not_retained();
        };
        let ending = match body.last() {
            Some(1) => Ending::Succeeded,
            Some(2) => Ending::Failed,
            Some(3) => Ending::NotRetained,
            Some(4) => Ending::Uncertain,
            _ => return Self::not_retained(),
        };
        body.truncate(body.len() - 1);
        Self { ending, payload: body }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_ending_survives_the_store() {
        for ending in [Ending::Succeeded, Ending::Failed, Ending::NotRetained, Ending::Uncertain] {
            let stored = Stored::from(Stored::record(ending, b"x\0\xff".to_vec()));
            assert_eq!(stored, Stored { ending, payload: Bytes::from_static(b"x\0\xff") });
        }
    }

    #[test]
    fn what_cannot_be_read_is_never_a_success() {
        for (version, body) in [(0, "\u{1}"), (2, "\u{1}"), (1, ""), (1, "\u{9}")] {
            let stored = Stored::from(Record { version, body: body.into() });
            assert_eq!(stored, Stored::not_retained(), "version {version}, body {body:?}");
        }
    }
}
