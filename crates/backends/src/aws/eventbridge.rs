//! EventBridge: the topic is the name or ARN of the bus, the event type is the detail type.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use aws_config::SdkConfig;
use aws_sdk_eventbridge::Client;
use aws_sdk_eventbridge::primitives::DateTime;
use aws_sdk_eventbridge::types::PutEventsRequestEntry;
use semel_core::wire::Format;
use semel_core::{Failure, Fault};
use serde_json::Value;
use tokio::time::Instant;

use super::entry::{Entry, x_ray};
use super::error::{
    Expiry, bad_detail, failure, impossible, is_forbidden, only_about_the_probe, refused_event,
};
use super::sink::{Answers, Service};

pub(super) struct EventBridge {
    client: Client,
    source: Option<String>,
    expiry: Expiry,
    /// Until when buses are known to exist: EventBridge takes events for those that do not, and drops them.
    known: Mutex<HashMap<String, Instant>>,
}

/// A bus is deleted while it is used: so long events go to where it was.
const KNOWN_FOR: Duration = Duration::from_secs(60);
/// So long a bus that was there is believed to be there when nobody can say.
const BELIEVED_FOR: Duration = Duration::from_secs(5);

/// What a detail type may have.
const LONGEST_TYPE: usize = 128;

impl EventBridge {
    pub(super) fn new(sdk: &SdkConfig, source: Option<String>, expiry: Expiry) -> Self {
        Self { client: Client::new(sdk), source, expiry, known: Mutex::default() }
    }

    async fn look_for(&self, bus: &str) -> Result<(), Failure> {
        let lock = || self.known.lock().unwrap_or_else(PoisonError::into_inner);
        let (now, known) = (Instant::now(), lock().get(bus).copied());
        if known.is_some_and(|until| now < until) {
            return Ok(());
        }
        let until = match self.client.describe_event_bus().name(bus).send().await {
            // Whoever may put events need not be allowed to look.
            Err(error) if !is_forbidden(&error) => {
                let failure = failure(&format!("find the bus {bus:?}"), self.expiry, error);
                if known.is_none() || failure.fault() != Fault::Unavailable {
                    return Err(failure);
                }
                now + BELIEVED_FOR
            }
            _ => now + KNOWN_FOR,
        };
        lock().insert(bus.to_owned(), until);
        Ok(())
    }

    fn source<'a>(&'a self, entry: &'a Entry<'_>) -> &'a str {
        self.source.as_deref().unwrap_or(&entry.message.event.aggregate_type)
    }

    fn request(&self, bus: &str, entry: &Entry<'_>) -> PutEventsRequestEntry {
        let event = &entry.message.event;
        let detail_type: String = event.event_type.chars().take(LONGEST_TYPE).collect();
        PutEventsRequestEntry::builder()
            .event_bus_name(bus)
            .source(self.source(entry))
            .detail_type(detail_type)
            .detail(entry.body.clone())
            .time(DateTime::from_millis(event.created_at.as_millisecond()))
            .resources(format!("semel:event:{}", event.id))
            .resources(format!("semel:lane:{}", event.lane()))
            .set_trace_header(x_ray(event))
            .build()
    }
}

#[async_trait]
impl Service for EventBridge {
    fn system(&self) -> &'static str {
        "aws_eventbridge"
    }

    fn defaults(&self) -> (Format, usize) {
        (Format::CloudEventsStructured, 1_000_000)
    }

    /// As EventBridge counts: time, source, type, detail and resources.
    fn size(&self, entry: &Entry<'_>) -> usize {
        const TIME: usize = 14;
        const RESOURCES: usize = "semel:event:".len() + 36 + "semel:lane:".len();
        let event = &entry.message.event;
        let names = event.event_type.len() + event.lane().to_string().len();
        TIME + RESOURCES + self.source(entry).len() + names + entry.body.len()
    }

    fn check(&self, entry: &Entry<'_>) -> Result<(), Failure> {
        let event = &entry.message.event;
        // In a CloudEvent the whole type is in the detail.
        let is_cut = event.event_type.chars().count() > LONGEST_TYPE;
        match serde_json::from_str(&entry.body) {
            Ok(Value::Object(detail)) if is_cut && !detail.contains_key("specversion") => {
                Err(bad_detail("the event type has more than 128 characters"))
            }
            Ok(Value::Object(_)) => Ok(()),
            _ => Err(bad_detail("the payload is no JSON object")),
        }
    }

    async fn send(&self, bus: &str, batch: &[Entry<'_>]) -> Result<Answers, Failure> {
        self.look_for(bus).await?;
        let entries = batch.iter().map(|entry| self.request(bus, entry)).collect();
        let sent = self.client.put_events().set_entries(Some(entries)).send().await;
        let said =
            sent.map_err(|error| failure(&format!("put to the bus {bus:?}"), self.expiry, error))?;
        if said.entries().len() != batch.len() {
            return Err(impossible("not one answer for each event"));
        }
        let answers = said.entries().iter().map(|answer| match answer.error_code() {
            None => Ok(()),
            Some(code) => Err(refused_event(
                bus,
                code,
                answer.error_message().unwrap_or_default(),
                self.expiry,
            )),
        });
        Ok(answers.collect())
    }

    async fn probe(&self) -> Result<(), Failure> {
        let asked = self.client.describe_event_bus().name("semel-probe").send().await;
        only_about_the_probe(asked, self.expiry)
    }
}
