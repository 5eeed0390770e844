//! What the broker answers to messages that are sent together.
//!
//! It returns a message that no queue takes, and then acknowledges it. The client library hands the
//! returned message out with whichever answer comes next, of any message.

use std::collections::HashSet;
use std::pin::Pin;

use futures_util::future::FusedFuture;
use futures_util::stream::FuturesUnordered;
use futures_util::{FutureExt, StreamExt};
use lapin::options::BasicPublishOptions;
use lapin::{Channel, Confirmation};
use semel_core::Failure;

use super::error::{failure, rejected, unroutable};
use super::message::{Address, Outgoing};

/// An answer, the place of its message in the batch, and where that was to go.
type Told = (usize, Address, lapin::Result<Confirmation>);

/// Sends a message, and waits for the answer.
pub(super) async fn send_one(channel: &Channel, place: usize, outgoing: Outgoing) -> Told {
    let Outgoing { address, properties, body } = outgoing;
    let (exchange, key) = (address.exchange.clone(), address.routing_key.clone());
    let options = BasicPublishOptions { mandatory: true, ..Default::default() };
    let sent = channel.basic_publish(exchange, key, options, &body, properties);
    let answer = async { sent.await?.await }.await;
    (place, address, answer)
}

/// The answers to messages that were sent together.
#[derive(Default)]
pub(super) struct Answers {
    heard: Vec<Answer>,
    /// The ids of the messages that no queue took.
    returned: HashSet<String>,
    has_gaps: bool,
}

struct Answer {
    place: usize,
    address: Address,
    is_ack: bool,
    has_return: bool,
}

impl Answers {
    /// Waits until all are answered. Where it ends, on an error or because it is dropped, what came
    /// is kept.
    pub(super) async fn hear(
        &mut self,
        sending: &mut FuturesUnordered<impl FusedFuture<Output = Told>>,
    ) -> Result<(), Failure> {
        while let Some(told) = sending.next().await {
            self.note(told).map_err(failure("publish"))?;
        }
        Ok(())
    }

    /// What became of the messages of which that is certain: of all, when all are answered.
    ///
    /// An acknowledgement does not say that a queue took the message: another answer may have brought
    /// it back, and an answer that brings one back may leave others behind it. One that brings none
    /// was given when none was left, so whoever brought this message back was answered before. It is
    /// heard here: answers come while they are looked for, so that is done until there are no more.
    pub(super) fn certain(
        mut self,
        mut sending: FuturesUnordered<impl FusedFuture<Output = Told>>,
    ) -> Vec<(usize, Result<(), Failure>)> {
        let (mut unanswered, mut before) = (sending.len(), usize::MAX);
        while unanswered < before {
            before = unanswered;
            for rest in Pin::new(&mut sending).iter_pin_mut() {
                if let Some(told) = rest.now_or_never() {
                    unanswered -= 1;
                    // An error leaves a gap, which is noted.
                    drop(self.note(told));
                }
            }
        }
        self.has_gaps |= unanswered > 0;
        let Self { heard, returned, has_gaps } = self;
        let judge = |Answer { place, address, is_ack, has_return }: Answer| {
            if returned.contains(address.id.as_str()) {
                let (exchange, key) = (address.exchange.as_str(), address.routing_key.as_str());
                Some((place, Err(unroutable(exchange, key))))
            } else if !is_ack {
                Some((place, Err(rejected())))
            } else if has_return && has_gaps {
                None
            } else {
                Some((place, Ok(())))
            }
        };
        heard.into_iter().filter_map(judge).collect()
    }

    fn note(&mut self, (place, address, answer): Told) -> lapin::Result<()> {
        let answer = answer.inspect_err(|_| self.has_gaps = true)?;
        let is_ack = answer.is_ack();
        let returned = answer.take_message();
        let has_return = returned.is_some();
        let id = returned.and_then(|message| {
            message.delivery.properties.message_id().as_ref().map(ToString::to_string)
        });
        self.returned.extend(id);
        self.heard.push(Answer { place, address, is_ack, has_return });
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::future::{pending, ready};
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::task::Poll;

    use futures_util::future::{BoxFuture, Fuse, poll_fn};
    use lapin::message::{BasicReturnMessage, Delivery};
    use lapin::{BasicProperties, ErrorKind};

    use super::*;

    type Sent = Fuse<BoxFuture<'static, Told>>;

    fn sent(place: usize, answer: lapin::Result<Confirmation>) -> Sent {
        let id = place.to_string().into();
        let address = Address { exchange: "".into(), routing_key: "orders".into(), id };
        ready((place, address, answer)).boxed().fuse()
    }

    fn never() -> Sent {
        pending().boxed().fuse()
    }

    fn acknowledged(place: usize) -> Sent {
        sent(place, Ok(Confirmation::Ack(None)))
    }

    /// The acknowledgement of one message, with another one that no queue took.
    fn brings_back(place: usize, returned: usize) -> Sent {
        let mut delivery = Delivery::mock(0, "".into(), "orders".into(), false, Vec::new());
        delivery.properties =
            BasicProperties::default().with_message_id(returned.to_string().into());
        let message =
            BasicReturnMessage { delivery, reply_code: 312, reply_text: "NO_ROUTE".into() };
        sent(place, Ok(Confirmation::Ack(Some(message))))
    }

    /// What is certain after this, by the codes of failures.
    async fn certain(sent: impl IntoIterator<Item = Sent>) -> Vec<(usize, &'static str)> {
        let mut sending: FuturesUnordered<_> = sent.into_iter().collect();
        let mut answers = Answers::default();
        let _ = answers.hear(&mut sending).now_or_never();
        let verdict = |result: Result<(), Failure>| result.err().map_or("", |why| why.code());
        let told = answers.certain(sending).into_iter();
        let mut told: Vec<_> = told.map(|(place, result)| (place, verdict(result))).collect();
        told.sort_unstable();
        told
    }

    const UNROUTABLE: &str = "E-RABBITMQ-UNROUTABLE";

    #[tokio::test]
    async fn when_all_are_answered_everything_is_certain() {
        let nack = sent(3, Ok(Confirmation::Nack(None)));
        let told = certain([acknowledged(0), brings_back(1, 2), acknowledged(2), nack]).await;
        assert_eq!(told, [(0, ""), (1, ""), (2, UNROUTABLE), (3, "E-RABBITMQ-NACK")]);
    }

    /// The answer that brings 2 back may have left 1 behind it.
    #[tokio::test]
    async fn an_answer_that_brings_another_message_back_is_no_word_about_its_own() {
        let told = certain([acknowledged(0), brings_back(1, 2), never()]).await;
        assert_eq!(told, [(0, "")]);
        let told = certain([brings_back(1, 2), acknowledged(2), never()]).await;
        assert_eq!(told, [(2, UNROUTABLE)]);
    }

    #[tokio::test]
    async fn an_error_is_no_answer() {
        let lost = || sent(3, Err(ErrorKind::FutureCompleted.into()));
        let expected = [(0, ""), (2, UNROUTABLE)];
        let told = certain([lost(), acknowledged(0), brings_back(1, 2), acknowledged(2)]).await;
        assert_eq!(told, expected);
        let told = certain([acknowledged(0), brings_back(1, 2), acknowledged(2), lost()]).await;
        assert_eq!(told, expected);
    }

    /// The broker goes on while its answers are gone through.
    #[tokio::test]
    async fn what_comes_while_answers_are_looked_for_is_heard() {
        let is_given = Arc::new(AtomicBool::new(false));
        let given = Arc::clone(&is_given);
        let mut first = brings_back(0, 1);
        let comes_first = poll_fn(move |context| match given.load(Ordering::Relaxed) {
            true => first.poll_unpin(context),
            false => Poll::Pending,
        });
        let mut second = acknowledged(1);
        let comes_next = poll_fn(move |context| {
            // Both have come by now; nobody has heard of the first.
            is_given.store(true, Ordering::Relaxed);
            second.poll_unpin(context)
        });
        // Those that were added last are looked at first.
        let sending: FuturesUnordered<Sent> =
            [comes_next.boxed().fuse(), comes_first.boxed().fuse(), never()].into_iter().collect();
        let told = Answers::default().certain(sending);
        assert!(matches!(&told[..], [(1, Err(why))] if why.code() == UNROUTABLE), "{told:?}");
    }

    /// As when the deadline comes before the answers were looked at.
    #[tokio::test]
    async fn what_is_there_unheard_counts() {
        let sending: FuturesUnordered<_> =
            [acknowledged(2), brings_back(1, 2), never()].into_iter().collect();
        let told = Answers::default().certain(sending);
        assert!(matches!(&told[..], [(2, Err(why))] if why.code() == UNROUTABLE), "{told:?}");
    }
}
