//! SQS: the topic is the name of the queue, or its URL.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

use async_trait::async_trait;
use aws_config::SdkConfig;
use aws_sdk_sqs::Client;
use aws_sdk_sqs::operation::send_message::builders::SendMessageInputBuilder;
use aws_sdk_sqs::types::{
    MessageAttributeValue, MessageSystemAttributeNameForSends, MessageSystemAttributeValue,
    SendMessageBatchRequestEntry,
};
use semel_core::Failure;
use semel_core::wire::Format;

use super::SYSTEM;
use super::entry::{Entry, TYPE, x_ray};
use super::error::{Expiry, failure, impossible, only_about_the_probe, refused_entry};
use super::sink::{Answers, Service};

pub(super) struct Sqs {
    pub(super) client: Client,
    pub(super) expiry: Expiry,
    /// The URLs of queues that were asked for.
    urls: Mutex<HashMap<String, String>>,
}

impl Sqs {
    pub(super) fn new(sdk: &SdkConfig, expiry: Expiry) -> Self {
        Self { client: Client::new(sdk), expiry, urls: Mutex::default() }
    }

    pub(super) async fn url(&self, topic: &str) -> Result<String, Failure> {
        if topic.starts_with("https://") || topic.starts_with("http://") {
            return Ok(topic.to_owned());
        }
        let lock = || self.urls.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(url) = lock().get(topic) {
            return Ok(url.clone());
        }
        let what = format!("find the queue {topic:?}");
        let asked = self.client.get_queue_url().queue_name(topic).send().await;
        let found = asked.map_err(|error| failure(&what, self.expiry, error))?;
        let url = found.queue_url.ok_or_else(|| impossible("no URL in an answer"))?;
        lock().insert(topic.to_owned(), url.clone());
        Ok(url)
    }

    /// Sends one message, and waits until its queue has it.
    pub(super) async fn send_one(
        &self,
        what: &str,
        message: SendMessageInputBuilder,
    ) -> Result<(), Failure> {
        let sent = message.send_with(&self.client).await;
        sent.map(drop).map_err(|error| failure(what, self.expiry, error))
    }

    /// A queue may be deleted and made again elsewhere.
    fn forget(&self, topic: &str) {
        self.urls.lock().unwrap_or_else(PoisonError::into_inner).remove(topic);
    }
}

#[async_trait]
impl Service for Sqs {
    fn system(&self) -> &'static str {
        SYSTEM
    }

    fn defaults(&self) -> (Format, usize) {
        (Format::Plain, 1024 * 1024)
    }

    async fn send(&self, topic: &str, batch: &[Entry<'_>]) -> Result<Answers, Failure> {
        let url = self.url(topic).await?;
        let entries = batch.iter().enumerate().map(|(place, entry)| request(place, entry));
        let entries = entries.collect::<Result<Vec<_>, _>>()?;
        let sent =
            self.client.send_message_batch().queue_url(url).set_entries(Some(entries)).send().await;
        let said = sent.map_err(|error| {
            self.forget(topic);
            failure(&format!("send to the queue {topic:?}"), self.expiry, error)
        })?;
        let mut answers: Answers =
            vec![Err(impossible("a message without an answer")); batch.len()];
        for taken in &said.successful {
            if let Some(answer) =
                taken.id.parse().ok().and_then(|place: usize| answers.get_mut(place))
            {
                *answer = Ok(());
            }
        }
        for failed in &said.failed {
            if let Some(answer) =
                failed.id.parse().ok().and_then(|place: usize| answers.get_mut(place))
            {
                let why = failed.message.as_deref().unwrap_or_default();
                let (code, sender_fault) = (&failed.code, failed.sender_fault);
                *answer = Err(refused_entry(topic, code, why, sender_fault, self.expiry));
            }
        }
        Ok(answers)
    }

    async fn probe(&self) -> Result<(), Failure> {
        let asked = self.client.get_queue_url().queue_name("semel-probe").send().await;
        only_about_the_probe(asked, self.expiry)
    }
}

fn request(place: usize, entry: &Entry<'_>) -> Result<SendMessageBatchRequestEntry, Failure> {
    let mut request = SendMessageBatchRequestEntry::builder()
        .id(place.to_string())
        .message_body(entry.body.clone());
    for (name, value) in &entry.attributes {
        let value = MessageAttributeValue::builder().data_type(TYPE).string_value(value).build();
        request = request.message_attributes(name, value.map_err(impossible)?);
    }
    if let Some(trace) = x_ray(&entry.message.event) {
        let value =
            MessageSystemAttributeValue::builder().data_type(TYPE).string_value(trace).build();
        let name = MessageSystemAttributeNameForSends::AwsTraceHeader;
        request = request.message_system_attributes(name, value.map_err(impossible)?);
    }
    if entry.is_fifo() {
        request = request
            .message_group_id(entry.group())
            .message_deduplication_id(entry.deduplication_id());
    }
    request.build().map_err(impossible)
}
