//! Where an event goes: which topic, under which key, with which headers, and whether at all.
//!
//! ```
//! use semel_core::{Event, Message, Route, Routing};
//!
//! let routing = Routing::new("{aggregate_type|kebab}.{event_type}".parse()?)
//!     .with_key("{header.tenant|default:none}/{aggregate_id}".parse()?)
//!     .with_header("origin", "shop".parse()?)
//!     .only_event_types(["Order*".parse()?]);
//!
//! let event = Event::new("SalesOrder", "42", "OrderPlaced");
//! let message = routing.route(&Message::first("outbox", event))?.expect("OrderPlaced is wanted");
//! assert_eq!(message.topic.as_str(), "sales-order.OrderPlaced");
//! assert_eq!(message.key(), "none/42");
//! assert_eq!(message.event.headers.get("origin"), Some("shop"));
//!
//! let other = Event::new("SalesOrder", "42", "InvoiceSent");
//! assert!(routing.route(&Message::first("outbox", other))?.is_none());
//! # Ok::<(), semel_core::Failure>(())
//! ```

mod pattern;
mod routing;
mod template;
mod topic;

pub use pattern::Pattern;
pub use routing::Routing;
pub use template::Template;
pub use topic::TopicTemplate;

use std::sync::Arc;

use crate::delivery::Message;
use crate::failure::Failure;

/// Addresses messages. Pure: the same event always goes to the same place.
pub trait Route: Send + Sync {
    /// The message as the sink gets it, or `None` if it is not meant for the sink: it counts as
    /// published then. The id and the lane stay what they are.
    ///
    /// # Errors
    /// `Refused` when the event lacks what the route needs; it becomes a dead letter.
    fn route(&self, message: &Message) -> Result<Option<Message>, Failure>;
}

impl<R: Route + ?Sized> Route for Arc<R> {
    fn route(&self, message: &Message) -> Result<Option<Message>, Failure> {
        self.as_ref().route(message)
    }
}
