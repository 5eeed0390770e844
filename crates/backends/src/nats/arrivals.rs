//! What is in streams, read message by message: no consumer is made, nothing is acknowledged.

use std::collections::BTreeSet;

use async_nats::jetstream::context::GetStreamByNameErrorKind;
use async_nats::jetstream::stream::Stream;
use semel_core::{Failure, Topic};
use tokio::time::Instant;

use super::config::NatsConfig;
use super::error::{finding, looking};
use super::link::Link;
use super::message::event_of;
use crate::arrival::Arrival;

impl NatsConfig {
    /// The events that streams keep under these subjects now. Nothing is consumed, whatever the
    /// retention of a stream is; what is no event is passed over, and so is a subject that no stream
    /// takes. One message is asked for at a time.
    ///
    /// # Errors
    /// `Unavailable` when the server cannot be reached or does not answer in time, `Misconfigured`
    /// when the user may not read.
    pub async fn arrivals(&self, topics: &BTreeSet<Topic>) -> Result<Vec<Arrival>, Failure> {
        // Whoever only looks makes no stream.
        let link = Link::open(Self { stream: None, ..self.clone() }).await?;
        let (mut arrivals, mut streams) = (Vec::new(), Vec::new());
        for topic in topics {
            let Some(name) = stream_of(&link, topic.as_str()).await? else { continue };
            let known = streams.iter().position(|(known, _): &(String, Stream<()>)| *known == name);
            let queue = match known {
                Some(queue) => queue,
                None => {
                    let stream = link.context.get_stream_no_info(&name).await;
                    streams.push((name.clone(), stream.map_err(|error| finding(&name, error))?));
                    streams.len() - 1
                }
            };
            read(&link, &streams[queue].1, topic.as_str(), queue, &mut arrivals).await?;
        }
        Ok(arrivals)
    }
}

async fn stream_of(link: &Link, subject: &str) -> Result<Option<String>, Failure> {
    let limit = link.config.timeout;
    let asking = async {
        match link.context.stream_by_subject(subject).await {
            Ok(name) => Ok(Some(name)),
            Err(error) if error.kind() == GetStreamByNameErrorKind::NotFound => Ok(None),
            Err(error) => Err(looking(subject, error)),
        }
    };
    link.in_time(Instant::now() + limit, limit, asking).await
}

async fn read(
    link: &Link,
    stream: &Stream<()>,
    subject: &str,
    queue: usize,
    arrivals: &mut Vec<Arrival>,
) -> Result<(), Failure> {
    let mut next = 1;
    while let Some(message) = link.message_from(stream, next, subject).await? {
        if let Ok(event) = event_of(&message.headers, message.payload) {
            let place = i64::try_from(message.sequence).unwrap_or(i64::MAX);
            arrivals.push(Arrival { id: event.id, queue, place });
        }
        next = message.sequence + 1;
    }
    Ok(())
}
