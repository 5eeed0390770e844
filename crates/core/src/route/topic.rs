//! The topic of an event.

use std::collections::HashSet;
use std::fmt;
use std::str::FromStr;
use std::sync::{Mutex, PoisonError};

use super::{Route, Template};
use crate::delivery::{Message, Topic};
use crate::event::Event;
use crate::failure::Failure;

/// A [`Template`] for topics. As a [`Route`] it gives messages their topic and nothing else.
///
/// ```
/// use semel_core::{Event, TopicTemplate};
///
/// let template: TopicTemplate = "{aggregate_type}.{event_type}".parse()?;
/// let topic = template.topic(&Event::new("order", "42", "OrderPlaced"))?;
/// assert_eq!(topic.as_str(), "order.OrderPlaced");
/// # Ok::<(), semel_core::Failure>(())
/// ```
pub struct TopicTemplate {
    template: Template,
    known: Mutex<Known>,
}

/// Topics rendered before, so that an event of a known topic costs no allocation.
#[derive(Default)]
struct Known {
    buffer: String,
    topics: HashSet<Topic>,
}

impl TopicTemplate {
    const REMEMBERED: usize = 1024;

    /// The topic of an event.
    ///
    /// # Errors
    /// `Refused` when the event lacks what the template needs.
    pub fn topic(&self, event: &Event) -> Result<Topic, Failure> {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        let Known { buffer, topics } = &mut *known;
        buffer.clear();
        self.template.render_into(event, buffer)?;
        if let Some(topic) = topics.get(buffer.as_str()) {
            return Ok(topic.clone());
        }
        let topic = Topic::from(buffer.as_str());
        if topics.len() < Self::REMEMBERED {
            topics.insert(topic.clone());
        }
        Ok(topic)
    }

    /// The template itself.
    #[must_use]
    pub const fn template(&self) -> &Template {
        &self.template
    }
}

impl Route for TopicTemplate {
    fn route(&self, message: &Message) -> Result<Option<Message>, Failure> {
        let topic = self.topic(&message.event)?;
        Ok(Some(Message { topic, ..message.clone() }))
    }
}

impl Default for TopicTemplate {
    /// `{aggregate_type}.events`
    fn default() -> Self {
        Self { template: Template::usual_topic(), known: Mutex::default() }
    }
}

impl FromStr for TopicTemplate {
    type Err = Failure;

    fn from_str(text: &str) -> Result<Self, Failure> {
        Ok(Self { template: text.parse()?, known: Mutex::default() })
    }
}

impl fmt::Debug for TopicTemplate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("TopicTemplate").field(&self.template).finish()
    }
}
