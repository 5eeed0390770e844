//! HTTP endpoints of other people: one POST per event, signed after Standard Webhooks.
//!
//! Only an answer of the 2xx range confirms. The events of a lane go one after another, lanes side
//! by side, and never more at once than the endpoint is said to bear. Addresses of private networks
//! are refused unless they are listed, and no redirect is followed. Which answer means what is in
//! the table of `docs/backends/webhook.md`, and in `error.rs`.
//!
//! ```
//! use semel_backends::webhook::WebhookConfig;
//! use semel_core::Secret;
//!
//! let config = WebhookConfig::new("https://partner.example/hooks")?
//!     .secret(&Secret::new("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"))?
//!     .concurrency(8);
//! assert!(!format!("{config:?}").contains("MfKQ9r8"));
//! # Ok::<(), semel_core::Failure>(())
//! ```

mod address;
mod call;
mod client;
mod config;
mod error;
mod signature;
mod sink;

pub use config::WebhookConfig;
pub use sink::WebhookSink;

/// What OpenTelemetry calls it.
const SYSTEM: &str = "webhook";
