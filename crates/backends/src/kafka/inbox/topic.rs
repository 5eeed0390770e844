//! The topic of the ids: made if it is missing, and refused if it would forget at the wrong time.

use std::sync::Arc;
use std::time::Duration;

use rdkafka::admin::{AdminOptions, ConfigResource, NewTopic, ResourceSpecifier, TopicReplication};
use rdkafka::error::KafkaError;
use rdkafka::types::RDKafkaErrorCode as Code;
use semel_core::Failure;

use super::super::error;
use super::super::topic::{Admin, count_partitions, until_it_appears};
use super::config::KafkaInboxConfig;
use super::log::Log;

/// The topic of this inbox, if it keeps ids as it must. It is made if it does not exist.
///
/// # Errors
/// `Misconfigured` when it may not be made, or does not; `Unavailable` when nobody answers.
pub(super) async fn open(config: &KafkaInboxConfig) -> Result<Log, Failure> {
    let (topic, patience) = (config.topic(), config.connection.patience);
    let client = config.connection.connection();
    let admin: Admin = client
        .create()
        .map_err(|error| error::failure("look for the topic of the inbox", error))?;
    let admin = Arc::new(admin);
    let mut partitions = count_partitions(&admin, &topic, patience).await?;
    let is_ours = partitions == 0 && create(&admin, config, &topic).await?;
    if partitions == 0 {
        partitions = until_it_appears(&admin, &topic, patience).await?;
    }
    if !is_ours {
        check(&admin, config, &topic).await?;
    }
    Ok(Log { topic, partitions, keep: config.keep })
}

/// Makes it, unless another was quicker; whether it did.
async fn create(admin: &Admin, config: &KafkaInboxConfig, topic: &str) -> Result<bool, Failure> {
    let keep = millis(config.keep).to_string();
    // What is over is deleted by whole segments: one of them is a small part of what is kept.
    let segment = millis(config.keep / 8).max(60_000).to_string();
    let largest = config.connection.max_message_bytes.to_string();
    let new = NewTopic::new(topic, 1, TopicReplication::Fixed(-1))
        .set("cleanup.policy", "compact,delete")
        .set("retention.ms", &keep)
        .set("retention.bytes", "-1")
        .set("segment.ms", &segment)
        .set("max.message.bytes", &largest);
    let options = AdminOptions::new().operation_timeout(Some(config.connection.patience));
    let answer = admin.create_topics([&new], &options).await;
    let answer = answer.map_err(|error| error::failure("make the topic of the inbox", error))?;
    match answer.into_iter().next() {
        Some(Err((_, Code::TopicAuthorizationFailed | Code::ClusterAuthorizationFailed))) => {
            let fix = format!(
                "create it: kafka-topics.sh --create --topic {topic} --partitions 1 --config \
                 cleanup.policy=compact,delete --config retention.ms={keep} --config \
                 retention.bytes=-1"
            );
            Err(error::inbox_forbidden(topic, &fix))
        }
        Some(Err((_, Code::TopicAlreadyExists))) => Ok(false),
        Some(Err((_, code))) => {
            Err(error::failure("make the topic of the inbox", KafkaError::AdminOp(code)))
        }
        _ => Ok(true),
    }
}

async fn check(admin: &Admin, config: &KafkaInboxConfig, topic: &str) -> Result<(), Failure> {
    let options = AdminOptions::new().request_timeout(Some(config.connection.patience));
    let described = admin.describe_configs([&ResourceSpecifier::Topic(topic)], &options).await;
    let asking = "look at the settings of the inbox's topic";
    let described = described.map_err(|error| error::failure(asking, error))?.into_iter().next();
    match described {
        // Why nothing is told is not told either, and this is the only known reason.
        Some(Ok(settings)) if settings.entries.is_empty() => {
            Err(error::inbox_forbidden(topic, "allow the user DescribeConfigs on the topic"))
        }
        Some(Ok(settings)) => judge(&settings, config.keep, topic),
        Some(Err(code)) => Err(error::failure(asking, KafkaError::AdminOp(code))),
        None => Err(error::no_answer("the settings of the inbox's topic are not told")),
    }
}

/// Whether a topic with these settings remembers ids for that time, and then forgets them.
fn judge(settings: &ConfigResource, keep: Duration, topic: &str) -> Result<(), Failure> {
    let setting = |name| settings.get(name).and_then(|entry| entry.value.as_deref()).unwrap_or("");
    let policy = setting("cleanup.policy");
    let has = |wanted: &str| policy.split(',').any(|it| it.trim() == wanted);
    let retention = setting("retention.ms").parse::<i64>().unwrap_or(0);
    let is_long_enough = retention < 0 || retention.unsigned_abs() >= millis(keep);
    let wrong = if !has("compact") || !has("delete") {
        format!("cleanup.policy={policy}")
    } else if !is_long_enough {
        format!("retention.ms={retention}")
    } else if setting("retention.bytes") != "-1" {
        format!("retention.bytes={}", setting("retention.bytes"))
    } else {
        return Ok(());
    };
    Err(error::inbox_topic(topic, &wrong, millis(keep)))
}

fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use rdkafka::admin::{ConfigEntry, ConfigSource, OwnedResourceSpecifier};

    use super::*;

    fn settings(settings: &[(&str, &str)]) -> ConfigResource {
        let entry = |(name, value): &(&str, &str)| ConfigEntry {
            name: (*name).to_owned(),
            value: Some((*value).to_owned()),
            source: ConfigSource::DynamicTopic,
            is_read_only: false,
            is_default: false,
            is_sensitive: false,
        };
        let specifier = OwnedResourceSpecifier::Topic("billing-inbox".into());
        ConfigResource { specifier, entries: settings.iter().map(entry).collect() }
    }

    #[test]
    fn a_topic_forgets_after_what_is_kept_and_for_no_other_reason() {
        let cases = [
            ("compact,delete", "1000", "-1", true),
            ("delete,compact", "-1", "-1", true),
            ("delete, compact", "2000", "-1", true),
            ("compact", "1000", "-1", false),
            ("delete", "1000", "-1", false),
            ("compact,delete", "999", "-1", false),
            ("compact,delete", "1000", "1073741824", false),
            ("", "", "", false),
        ];
        for (policy, age, bytes, is_right) in cases {
            let settings = settings(&[
                ("cleanup.policy", policy),
                ("retention.ms", age),
                ("retention.bytes", bytes),
            ]);
            let judged = judge(&settings, Duration::from_secs(1), "billing-inbox");
            let code = judged.as_ref().err().map_or("", Failure::code);
            let expected = if is_right { "" } else { "E-KAFKA-INBOX-TOPIC" };
            assert_eq!(code, expected, "{policy} {age} {bytes}");
        }
    }
}
