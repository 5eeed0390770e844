//! A message of SQS as an event, and as a dead letter.

use std::collections::HashMap;

use aws_sdk_sqs::operation::send_message::SendMessageInput;
use aws_sdk_sqs::operation::send_message::builders::SendMessageInputBuilder;
use aws_sdk_sqs::types::{Message as Received, MessageAttributeValue, MessageSystemAttributeName};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use semel_core::wire::{Binding, Epitaph, Inscription, decode_keyed};
use semel_core::{Event, Failure};
use serde_json::{Map, Value};

use super::entry::{EMPTY, ENCODING, HEADERS, TYPE};
use super::error::impossible;
use super::hold::is_fifo;

/// The attribute that says why a message died, as one JSON object: SQS takes ten attributes.
const EPITAPH: &str = "semel-epitaph";
const MOST_ATTRIBUTES: usize = 10;

/// A message as it was on the wire.
#[derive(Clone, Debug)]
pub(super) struct Incoming {
    /// The same whenever it is received.
    pub(super) id: String,
    group: Option<String>,
    /// When it came into the queue, in milliseconds, by the clock of SQS.
    pub(super) sent_at: i64,
    body: String,
    attributes: HashMap<String, MessageAttributeValue>,
}

impl Incoming {
    /// The message and its receipt handle, which is another every time.
    pub(super) fn new(received: Received) -> Option<(Self, String)> {
        let mut told = received.attributes.unwrap_or_default();
        let sent_at = told.remove(&MessageSystemAttributeName::SentTimestamp);
        let incoming = Self {
            id: received.message_id?,
            group: told.remove(&MessageSystemAttributeName::MessageGroupId),
            sent_at: sent_at.and_then(|time| time.parse().ok()).unwrap_or(0),
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
        decode_keyed(Binding::Kafka, None, self.group.as_deref(), pairs, body.into())
    }

    /// What is said of its death, if it is a dead letter.
    pub(super) fn inscription(&self) -> Option<Inscription> {
        let said = self.attributes.get(EPITAPH)?.string_value()?;
        let said: HashMap<String, String> = serde_json::from_str(said).ok()?;
        let pairs = said.iter().map(|(name, value)| (&**name, &**value));
        Inscription::read(Binding::Kafka, pairs)
    }

    /// The same message on its way to a queue, as a dead letter or without what is said of its death.
    /// In a FIFO queue it is known by `id`.
    pub(super) fn letter(
        &self,
        url: &str,
        epitaph: Option<&Epitaph<'_>>,
        id: &str,
    ) -> Result<SendMessageInputBuilder, Failure> {
        let mut attributes = self.attributes.clone();
        attributes.remove(EPITAPH);
        // One of somebody else may have no place left.
        if let Some(epitaph) = epitaph.filter(|_| attributes.len() < MOST_ATTRIBUTES) {
            attributes.insert(EPITAPH.to_owned(), attribute(epitaph)?);
        }
        let letter = SendMessageInput::builder()
            .queue_url(url)
            .message_body(&self.body)
            .set_message_attributes(Some(attributes));
        if !is_fifo(url) {
            return Ok(letter);
        }
        let group = self.group.as_deref().unwrap_or(&self.id);
        Ok(letter.message_group_id(group).message_deduplication_id(id))
    }
}

fn attribute(epitaph: &Epitaph<'_>) -> Result<MessageAttributeValue, Failure> {
    let mut said = Map::new();
    epitaph.headers(Binding::Kafka, &mut |name, value| {
        said.insert(name.to_owned(), value.into());
    });
    let said = Value::Object(said).to_string();
    let value = MessageAttributeValue::builder().data_type(TYPE).string_value(said).build();
    value.map_err(impossible)
}
