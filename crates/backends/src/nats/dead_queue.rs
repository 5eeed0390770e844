//! Dead letters in a stream, read message by message: no consumer is made for it.

use async_nats::header::NATS_MESSAGE_ID;
use async_nats::jetstream::context::PublishErrorKind;
use async_nats::jetstream::message::StreamMessage;
use async_nats::jetstream::stream::Stream;
use async_trait::async_trait;
use futures_util::future::try_join_all;
use semel_core::wire::{Binding, Inscription};
use semel_core::{Failure, Receipt};
use tokio::time::Instant;

use super::config::NatsConfig;
use super::error::{deleting, finding, publishing, stored};
use super::link::Link;
use super::message::{check_subject, event_of, own_headers, pairs};
use crate::dead_queue::{DeadLetter, DeadQueue};
use crate::hand::Hand;

impl NatsConfig {
    /// The dead letters in a stream. They go back to their subjects.
    ///
    /// # Errors
    /// `Unavailable` when the server cannot be reached, `Misconfigured` when there is no such
    /// stream, or the user may not look at it.
    pub async fn dead_letters(&self, stream: &str) -> Result<Box<dyn DeadQueue>, Failure> {
        // Whoever only looks makes no stream.
        let link = Link::open(Self { stream: None, ..self.clone() }).await?;
        let limit = self.timeout;
        let found = async {
            let found = link.context.get_stream(stream).await;
            found.map_err(|error| finding(stream, error))
        };
        let stream = link.in_time(Instant::now() + limit, limit, found).await?;
        let next = stream.cached_info().state.first_sequence;
        Ok(Box::new(NatsDeadQueue { link, stream, next, hand: Hand::new() }))
    }
}

struct NatsDeadQueue {
    link: Link,
    /// As it was at the beginning.
    stream: Stream,
    next: u64,
    hand: Hand<StreamMessage>,
}

#[async_trait]
impl DeadQueue for NatsDeadQueue {
    fn count(&self) -> usize {
        usize::try_from(self.stream.cached_info().state.messages).unwrap_or(usize::MAX)
    }

    async fn next(&mut self, most: usize) -> Result<Vec<DeadLetter>, Failure> {
        self.hand.clear();
        let (mut some, last) = (Vec::new(), self.stream.cached_info().state.last_sequence);
        while some.len() < most && self.next <= last {
            let found = self.link.message_from(&self.stream, self.next, ANY).await?;
            let Some(message) = found.filter(|message| message.sequence <= last) else {
                self.next = last + 1;
                break;
            };
            self.next = message.sequence + 1;
            some.push(self.letter(message));
        }
        Ok(some)
    }

    async fn send(&self, letter: &DeadLetter, to: &str) -> Result<(), Failure> {
        check_subject(to)?;
        let message = self.hand.get(letter.receipt)?;
        let mut headers = own_headers(&message.headers);
        // Not the id that the event had: the stream may remember it, and drop the message. This one
        // is dropped only if it comes again because the outcome was not known. A stream that is made
        // again has the same numbers.
        let stream = &self.stream.cached_info().config.name;
        let (sequence, kept) = (message.sequence, message.time.unix_timestamp_nanos());
        headers.insert(NATS_MESSAGE_ID, format!("semel-dead-{stream}@{sequence}-{kept}"));
        let (subject, body) = (to.to_owned(), message.payload.clone());
        let sending = async {
            let sent = self.link.context.publish_with_headers(subject, headers, body).await;
            let error = match sent {
                Ok(answer) => match answer.await {
                    Ok(ack) => return stored(to, &ack),
                    Err(error) => error,
                },
                Err(error) => error,
            };
            Err(match error.kind() {
                PublishErrorKind::StreamNotFound => self.link.why_nobody_answers(to).await,
                _ => publishing(to, error),
            })
        };
        let limit = self.link.config.timeout;
        self.link.in_time(Instant::now() + limit, limit, sending).await
    }

    async fn remove(&mut self, letters: &[Receipt]) -> Result<(), Failure> {
        let limit = self.link.config.timeout;
        let deleting = try_join_all(self.hand.all(letters).map(|message| self.delete(message)));
        self.link.in_time(Instant::now() + limit, limit, deleting).await?;
        self.hand.forget(letters);
        Ok(())
    }

    /// Nothing was taken from anybody.
    async fn close(&mut self) {
        self.hand.clear();
    }
}

/// Every subject.
const ANY: &str = ">";

impl NatsDeadQueue {
    fn letter(&mut self, message: StreamMessage) -> DeadLetter {
        let event = event_of(&message.headers, message.payload.clone()).ok();
        let said = Inscription::read(Binding::Nats, pairs(&message.headers));
        let home = said.as_ref().and_then(|said| subject_of(&said.origin)).map(str::to_owned);
        DeadLetter::new(self.hand.take(message), event, said, home)
    }

    async fn delete(&self, message: &StreamMessage) -> Result<(), Failure> {
        match self.stream.delete_message(message.sequence).await {
            Ok(_) => Ok(()),
            Err(error) => deleting(&self.stream.cached_info().config.name, error),
        }
    }
}

/// The subject in `stream/subject@sequence`. The name of a stream has no slash.
fn subject_of(origin: &str) -> Option<&str> {
    let (_, rest) = origin.split_once('/')?;
    rest.rsplit_once('@').map(|(subject, _)| subject)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_subject_may_have_any_character() {
        assert_eq!(subject_of("ORDERS/a/b@c.d@17"), Some("a/b@c.d"));
        assert_eq!(subject_of("ORDERS@17"), None);
    }
}
