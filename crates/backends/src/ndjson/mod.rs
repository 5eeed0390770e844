//! Standard output and files: one JSON object per line, for pipes, logs and first steps.
//!
//! Every line has `id`, `topic`, `key`, `aggregate_type`, `aggregate_id`, `event_type`, `payload`,
//! `headers` and `created_at`. A JSON payload is a JSON value, byte for byte as it was written
//! except for line breaks between its parts; other text is a string; anything else is in
//! `payload_base64` instead. `content_type` and `idempotency_key` are there when they are not the
//! usual ones, which are `application/json` and the id.
//!
//! | error | fault | code |
//! |---|---|---|
//! | the file cannot be opened or written later on: disk full, folder gone | unavailable | `E-FILE-WRITE` |
//! | it cannot be opened at the start: no such folder, no permission, a folder | misconfigured | `E-FILE-OPEN` |
//! | it ends in half a line that semel did not write | misconfigured | `E-FILE-FOREIGN` |
//! | nobody reads standard output any more | misconfigured | `E-STDOUT-CLOSED` |
//! | whoever reads standard output takes nothing | unavailable | `E-STDOUT-BLOCKED` |
//! | any other error of standard output | unavailable | `E-STDOUT-WRITE` |
//!
//! Nothing is ever refused: every event makes a line.
//!
//! ```
//! use semel_backends::ndjson::FileSink;
//! use semel_core::{Event, Message, Sink};
//!
//! # tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(async {
//! # let folder = tempfile::tempdir()?;
//! # let path = folder.path().join("events.ndjson");
//! let sink = FileSink::open(&path).await?;
//! let event = Event::new("order", "42", "OrderPlaced").with_json(&serde_json::json!({"n": 1}))?;
//! assert!(sink.publish(&[Message::first("order.events", event)]).await.all_confirmed());
//! assert!(std::fs::read_to_string(&path)?.contains(r#""payload":{"n":1}"#));
//! # Ok::<(), Box<dyn std::error::Error>>(()) }).unwrap();
//! ```

mod file;
mod line;
mod outlet;
mod stdout;

pub use file::FileSink;
pub use stdout::StdoutSink;
