//! SNS: the topic is an ARN, or the last part of one.

use async_trait::async_trait;
use aws_config::SdkConfig;
use aws_sdk_sns::Client;
use aws_sdk_sns::types::{MessageAttributeValue, PublishBatchRequestEntry};
use semel_core::Failure;
use semel_core::wire::Format;

use super::entry::{Entry, TYPE};
use super::error::{Expiry, failure, impossible, no_arn, only_about_the_probe, refused_entry};
use super::sink::{Answers, Service};

pub(super) struct Sns {
    client: Client,
    arn_prefix: Option<String>,
    expiry: Expiry,
}

impl Sns {
    pub(super) fn new(sdk: &SdkConfig, arn_prefix: Option<String>, expiry: Expiry) -> Self {
        Self { client: Client::new(sdk), arn_prefix, expiry }
    }

    fn arn(&self, topic: &str) -> Result<String, Failure> {
        match &self.arn_prefix {
            _ if topic.starts_with("arn:") => Ok(topic.to_owned()),
            Some(prefix) => Ok(format!("{prefix}{topic}")),
            None => Err(no_arn(topic)),
        }
    }
}

#[async_trait]
impl Service for Sns {
    fn system(&self) -> &'static str {
        "aws.sns"
    }

    fn defaults(&self) -> (Format, usize) {
        (Format::Plain, 256 * 1024)
    }

    async fn send(&self, topic: &str, batch: &[Entry<'_>]) -> Result<Answers, Failure> {
        let arn = self.arn(topic)?;
        let entries = batch.iter().enumerate().map(|(place, entry)| request(place, entry));
        let entries = entries.collect::<Result<Vec<_>, _>>()?;
        let publish = self.client.publish_batch().topic_arn(arn);
        let sent = publish.set_publish_batch_request_entries(Some(entries)).send().await;
        let what = format!("publish to the topic {topic:?}");
        let said = sent.map_err(|error| failure(&what, self.expiry, error))?;
        let mut answers: Answers =
            vec![Err(impossible("a message without an answer")); batch.len()];
        for taken in said.successful() {
            let place = taken.id().and_then(|id| id.parse::<usize>().ok());
            if let Some(answer) = place.and_then(|place| answers.get_mut(place)) {
                *answer = Ok(());
            }
        }
        for failed in said.failed() {
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
        let prefix = self.arn_prefix.as_deref().unwrap_or("arn:aws:sns:us-east-1:000000000000:");
        let asked = self.client.get_topic_attributes().topic_arn(format!("{prefix}semel-probe"));
        only_about_the_probe(asked.send().await, self.expiry)
    }
}

fn request(place: usize, entry: &Entry<'_>) -> Result<PublishBatchRequestEntry, Failure> {
    let mut request =
        PublishBatchRequestEntry::builder().id(place.to_string()).message(entry.body.clone());
    for (name, value) in &entry.attributes {
        let value = MessageAttributeValue::builder().data_type(TYPE).string_value(value).build();
        request = request.message_attributes(name, value.map_err(impossible)?);
    }
    if entry.is_fifo() {
        request = request
            .message_group_id(entry.group())
            .message_deduplication_id(entry.deduplication_id());
    }
    request.build().map_err(impossible)
}
