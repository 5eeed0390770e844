//! What happens behind the back of a subscription: messages are taken in, and kept while they wait.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_nats::datetime::DateTime;
use async_nats::header::NATS_MESSAGE_ID;
use async_nats::jetstream::consumer::PullConsumer;
use async_nats::jetstream::message::Message as Incoming;
use async_nats::{HeaderMap, HeaderName, HeaderValue, Request, Subject};
use bytes::Bytes;
use futures_util::StreamExt;
use semel_core::wire::{Binding, Epitaph};
use semel_core::{Failure, Message};
use tokio::time::sleep;

use super::error::{acknowledging, down, is_too_large, missing, publishing, stored};
use super::link::Link;
use super::message::{event_of, own_headers};
use crate::brevity::{in_brief, less_and_less};
use crate::intake::Intake;

/// A member of a consumer.
pub(super) struct Puller {
    pub(super) link: Link,
    pub(super) consumer: PullConsumer,
    pub(super) stream: String,
    pub(super) name: String,
    /// The subject of dead letters.
    pub(super) dead: String,
    pub(super) intake: Arc<Intake<Place>>,
    pub(super) settled: Mutex<Settled>,
    /// The highest number that came.
    pub(super) newest: AtomicU64,
}

/// What was settled lately. The server may have given it out again just before it was told.
#[derive(Default)]
pub(super) struct Settled(VecDeque<Number>);

impl Settled {
    const MOST: usize = 4_096;

    fn add(&mut self, number: Number) {
        if self.0.len() == Self::MOST {
            self.0.pop_front();
        }
        self.0.push_back(number);
    }
}

/// A stream that was made again, or has lost its end, gives numbers again: only with the time at
/// which it was published is a message the same.
type Number = (u64, DateTime);

/// What the server recognises a message by, and the message as it was on the wire.
#[derive(Clone)]
pub(super) struct Place {
    /// None when the stream has given its number to another message: the server would take what is
    /// said of this one for that.
    reply: Option<Subject>,
    number: Number,
    subject: Subject,
    headers: HeaderMap,
    body: Bytes,
}

impl Puller {
    pub(super) fn held(&self) -> Vec<Place> {
        self.intake.with(|window| window.places().cloned().collect())
    }

    /// Remembers that a message is settled.
    pub(super) fn settle(&self, place: &Place) {
        self.settled.lock().unwrap_or_else(PoisonError::into_inner).add(place.number);
    }

    fn has_in_hand(&self, number: Number) -> bool {
        self.intake.with(|window| window.places().any(|place| place.number == number))
    }

    /// What is in hand from before a stream was made again, or lost its end, is settled without the
    /// server, which knows of it no more. Its numbers are not below those that come now, and it is older.
    fn outlive(&self, (sequence, published): Number) {
        self.intake.with(|window| {
            let places = window.places_mut();
            for place in places.filter(|it| it.number.0 >= sequence && it.number.1 < published) {
                place.reply = None;
            }
        });
    }

    fn settled_lately(&self, number: Number) -> bool {
        self.settled.lock().unwrap_or_else(PoisonError::into_inner).0.contains(&number)
    }

    /// Tells the server what became of a message, and waits until it knows.
    pub(super) async fn answer(&self, place: &Place, word: &'static [u8]) -> Result<(), Failure> {
        let Some(reply) = place.reply.clone() else { return Ok(()) };
        // What is left of the time of a call is for the question after it.
        let limit = self.link.config.timeout / 2;
        let request = Request::new().payload(word.into()).timeout(Some(limit));
        let Err(error) = self.link.client.send_request(reply, request).await else {
            return Ok(());
        };
        let consumer = self.consumer.get_info().await.map_err(missing)?;
        // Of what it has not given out yet a server says nothing, whoever had it before.
        if place.number.0 > consumer.delivered.stream_sequence {
            return Ok(());
        }
        Err(acknowledging(error))
    }

    /// Publishes a dead letter, and then takes the message from the consumer. A letter that comes
    /// again, because the outcome was not known, is dropped by its id.
    pub(super) async fn bury(
        &self,
        place: &Place,
        failure: &Failure,
        attempts: u32,
    ) -> Result<(), Failure> {
        let (sequence, _) = place.number;
        let origin = format!("{}/{}@{sequence}", self.stream, place.subject);
        let epitaph = Epitaph { failure, attempts, consumer: &self.name, origin: &origin };
        let brief = in_brief(failure);
        for epitaph in less_and_less(epitaph, &brief) {
            match self.publish_letter(place, epitaph.as_ref()).await {
                Err(failure) if epitaph.is_some() && is_too_large(&failure) => {}
                sent => {
                    sent?;
                    break;
                }
            }
        }
        self.answer(place, b"+TERM").await
    }

    async fn publish_letter(
        &self,
        place: &Place,
        epitaph: Option<&Epitaph<'_>>,
    ) -> Result<(), Failure> {
        let (sequence, published) = place.number;
        let published = published.unix_timestamp_nanos();
        let id = format!("{}-{}@{sequence}-{published}", self.name, self.stream);
        let mut headers = own_headers(&place.headers);
        headers.insert(NATS_MESSAGE_ID, id);
        if let Some(epitaph) = epitaph {
            epitaph.headers(Binding::Nats, &mut |name, value| {
                // All that would not fit is escaped.
                if let Ok(value) = value.parse::<HeaderValue>() {
                    headers.insert(HeaderName::from_static(name), value);
                }
            });
        }
        let (unsent, body) = (|error| publishing(&self.dead, error), place.body.clone());
        let sent = self.link.context.publish_with_headers(self.dead.clone(), headers, body).await;
        stored(&self.dead, &sent.map_err(unsent)?.await.map_err(unsent)?)
    }

    /// Keeps a message for the engine, or puts it aside when it is no event.
    async fn receive(&self, incoming: Incoming) {
        let Ok(info) = incoming.info() else { return };
        let number = (info.stream_sequence, info.published);
        let Some(reply) = incoming.reply.clone() else { return };
        let place = Place {
            reply: Some(reply.clone()),
            number,
            subject: incoming.subject.clone(),
            headers: incoming.headers.clone().unwrap_or_default(),
            body: incoming.payload.clone(),
        };
        // What is beyond all that came is nothing that was here, and need not be looked for.
        if number.0 <= self.newest.fetch_max(number.0, Ordering::Relaxed) {
            self.outlive(number);
            // What was in hand for too long, because of an outage, is given out again.
            if self.has_in_hand(number) {
                return;
            }
            // The server gave it out before it was told, or has forgotten that: it would come for ever.
            if self.settled_lately(number) {
                self.link.client.publish(reply, Bytes::from_static(b"+ACK")).await.ok();
                return;
            }
        }
        match event_of(&place.headers, place.body.clone()) {
            Ok(event) => {
                let message = Message::first(place.subject.as_str(), event);
                self.intake.receive(message, place);
            }
            Err(why) => match self.bury(&place, &why, 0).await {
                Ok(()) => {
                    let (stream, subject, sequence) = (&self.stream, &place.subject, number.0);
                    tracing::warn!(%stream, %subject, sequence, %why, "no event");
                }
                // What cannot be put aside now comes again.
                Err(failure) => self.intake.fail(failure),
            },
        }
    }
}

/// Asks for messages, for ever, as long as there is room.
pub(super) async fn pull(puller: Arc<Puller>, most: usize) {
    const AT_ONCE: usize = 100;
    const PAUSE: Duration = Duration::from_millis(200);
    loop {
        let room = puller.intake.room(most).await;
        if puller.link.check().is_err() {
            sleep(PAUSE).await;
            continue;
        }
        if let Err(failure) = ask(&puller, room.min(AT_ONCE)).await {
            puller.intake.fail(failure);
            sleep(PAUSE).await;
        }
    }
}

/// One question, and all its answers.
async fn ask(puller: &Puller, count: usize) -> Result<(), Failure> {
    /// How long the server waits for messages to come.
    const WAIT: Duration = Duration::from_secs(5);
    let consumer = &puller.consumer;
    let asked = consumer.batch().max_messages(count).expires(WAIT).messages();
    let mut messages =
        asked.await.map_err(|error| down("cannot ask for messages").with_source(error))?;
    let mut came = 0;
    loop {
        let next = async { Ok(messages.next().await) };
        match puller.link.bell.unless_trouble(next).await? {
            // A consumer that was deleted answers nothing.
            None if came == 0 => return consumer.get_info().await.map(drop).map_err(missing),
            None => return Ok(()),
            Some(Ok(message)) => {
                came += 1;
                puller.receive(message).await;
            }
            Some(Err(error)) => {
                consumer.get_info().await.map_err(missing)?;
                return Err(down(&format!("cannot get messages: {error}")));
            }
        }
    }
}

/// Tells the server, as long as the subscription lives, that it has not forgotten what it has.
pub(super) async fn care(puller: Arc<Puller>, ack_wait: Duration) {
    loop {
        sleep(ack_wait / 3).await;
        if puller.link.check().is_err() {
            continue;
        }
        for reply in puller.held().into_iter().filter_map(|place| place.reply) {
            // Where that fails the next call of the subscription says so.
            puller.link.client.publish(reply, Bytes::from_static(b"+WPI")).await.ok();
        }
    }
}
