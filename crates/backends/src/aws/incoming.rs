//! A message of SQS as an event, and as a dead letter.

use std::collections::HashMap;

use aws_sdk_sqs::types::{Message as Received, MessageAttributeValue, MessageSystemAttributeName};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use semel_core::wire::{Binding, Epitaph, decode};
use semel_core::{Event, Failure};
use serde_json::{Map, Value};

use super::entry::{EMPTY, ENCODING, HEADERS, TYPE};
use super::error::impossible;

/// The attribute that says why a message died, as one JSON object: SQS takes ten attributes.
const EPITAPH: &str = "semel-epitaph";
const MOST_ATTRIBUTES: usize = 10;

/// A message as it was on the wire.
#[derive(Clone, Debug)]
pub(super) struct Incoming {
    /// The same whenever it is received.
    pub(super) id: String,
    pub(super) group: Option<String>,
    pub(super) body: String,
    attributes: HashMap<String, MessageAttributeValue>,
}

impl Incoming {
    /// The message and its receipt handle, which is another every time.
    pub(super) fn new(received: Received) -> Option<(Self, String)> {
        let group = MessageSystemAttributeName::MessageGroupId;
        let incoming = Self {
            id: received.message_id?,
            group: received.attributes.and_then(|mut all| all.remove(&group)),
            body: received.body.unwrap_or_default(),
            attributes: received.message_attributes.unwrap_or_default(),
        };
        Some((incoming, received.receipt_handle?))
    }

    /// The event that it carries.
    ///
    /// # Errors
    /// `Refused` when it carries none.
    pub(super) fn event(&self) -> Result<Event, Failure> {
        let wrong = |what: &str| {
            let what = format!("this message cannot be read as an event: {what}");
            Failure::refused("E-WIRE", what).with_fix("check what else publishes to this place")
        };
        let text = |name: &str| self.attributes.get(name).and_then(|value| value.string_value());
        let headers: HashMap<String, String> = match text(HEADERS) {
            Some(headers) => serde_json::from_str(headers)
                .map_err(|error| wrong(&format!("{HEADERS}: {error}")))?,
            None => HashMap::new(),
        };
        let body = match text(ENCODING) {
            None => self.body.clone().into_bytes(),
            Some(EMPTY) => Vec::new(),
            Some(_) => STANDARD.decode(&self.body).map_err(|error| wrong(&error.to_string()))?,
        };
        let ours = self
            .attributes
            .iter()
            .filter(|(name, _)| ![HEADERS, ENCODING, EPITAPH].contains(&name.as_str()))
            .filter_map(|(name, value)| Some((name.as_str(), value.string_value()?)));
        let pairs = ours.chain(headers.iter().map(|(name, value)| (&**name, &**value)));
        decode(Binding::Kafka, None, pairs, body.into())
    }

    /// Its attributes as a dead letter.
    pub(super) fn with_epitaph(
        &self,
        epitaph: &Epitaph<'_>,
    ) -> Result<HashMap<String, MessageAttributeValue>, Failure> {
        let mut said = Map::new();
        epitaph.headers(Binding::Kafka, &mut |name, value| {
            said.insert(name.to_owned(), value.into());
        });
        let mut attributes = self.attributes.clone();
        attributes.remove(EPITAPH);
        // One of somebody else may have no place left.
        if attributes.len() < MOST_ATTRIBUTES {
            let said = Value::Object(said).to_string();
            let value = MessageAttributeValue::builder().data_type(TYPE).string_value(said).build();
            attributes.insert(EPITAPH.to_owned(), value.map_err(impossible)?);
        }
        Ok(attributes)
    }
}
