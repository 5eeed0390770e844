//! What is kept of a finished operation.

use bytes::Bytes;

/// The stored result of an operation, opaque to the store.
///
/// ```
/// # use semel_core::idempotency::Record;
/// let record = Record { version: 1, body: "done".into() };
/// assert_eq!(record.body.as_ref(), b"done");
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    /// Which codec wrote the body. A reader that does not know it must answer "result not
    /// retained", never run the operation again.
    pub version: u8,
    /// The encoded result.
    pub body: Bytes,
}
