//! [`Sink`] for NATS JetStream.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use async_nats::jetstream::context::{PublishAckFuture, PublishError, PublishErrorKind};
use async_trait::async_trait;
use semel_core::{EventId, Failure, Message, Published, Sink};
use tokio::sync::Mutex;
use tokio::time::Instant;

use super::config::NatsConfig;
use super::error::{publishing, stored};
use super::link::Link;
use super::message::Outgoing;
use super::runs::{Answer, Pace, Runs, Step};
use super::streams::Streams;

/// Publishes to NATS JetStream. Made by [`NatsConfig::connect`]; clones share the connection, which
/// comes back by itself when it was lost.
///
/// All of a batch is sent together, lane by lane. Each message names the one of its lane that the
/// stream must have got just before, so that the stream turns down what is behind one that it did
/// not take. To a stream with replicas a lane goes message by message.
///
/// ```no_run
/// use semel_backends::nats::NatsConfig;
/// use semel_core::Sink;
///
/// # tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(async {
/// let sink = NatsConfig::new("nats://localhost:4222")?.connect().await?;
/// sink.check().await?;
/// # Ok::<(), semel_core::Failure>(()) }).unwrap();
/// ```
#[derive(Clone)]
pub struct NatsSink {
    link: Link,
    pace: Arc<Pace>,
    streams: Arc<Streams>,
    turn: Arc<Mutex<()>>,
}

/// A message on its way.
type Sent = Result<PublishAckFuture, NotTaken>;

/// Why a message did not leave.
enum NotTaken {
    /// NATS cannot carry it.
    Unfit(Failure),
    /// The client did not send it.
    Said(PublishError),
}

impl NatsSink {
    pub(super) async fn connect(config: NatsConfig) -> Result<Self, Failure> {
        let link = Link::open(config).await?;
        let (pace, streams, turn) = (Arc::new(Pace::new()), Arc::default(), Arc::default());
        Ok(Self { link, pace, streams, turn })
    }

    /// Sends round after round. Where it ends, on an error or because it is dropped, `runs` knows.
    async fn send(&self, batch: &[Message], runs: &mut Runs) -> Result<(), Failure> {
        let call = EventId::now();
        while !runs.is_over() {
            // What is sent without a connection would wait in the client, and come out of it late.
            self.link.check()?;
            self.get_to_know_streams().await;
            let single = self.streams.single();
            let may_follow = |place: usize| single.contain(batch[place].topic.as_str());
            let round = runs.next_round(&self.pace, may_follow);
            for (step, sent) in self.send_round(batch, round, call).await {
                if runs.waits_for(step) {
                    let answer = self.answer(sent, &batch[step.place], step).await;
                    runs.note(step, answer);
                }
            }
        }
        Ok(())
    }

    /// Nothing depends on it but how much is sent together.
    async fn get_to_know_streams(&self) {
        for stream in self.streams.strangers() {
            let found = self.link.context.get_stream(&stream).await;
            let config = found.as_ref().ok().map(|stream| &stream.cached_info().config);
            self.streams.learn(stream, config);
        }
    }

    /// Sends a round in one piece: the messages of other calls would break its runs.
    async fn send_round(
        &self,
        batch: &[Message],
        round: Vec<Step>,
        call: EventId,
    ) -> Vec<(Step, Sent)> {
        let format = self.link.config.format;
        let _turn = self.turn.lock().await;
        let mut sent = Vec::with_capacity(round.len());
        for step in round {
            let behind = step.behind.map(|place| &batch[place]);
            let ack = match Outgoing::encode(&batch[step.place], behind, format, call) {
                Ok(Outgoing { subject, headers, body }) => {
                    let sending = self.link.context.publish_with_headers(subject, headers, body);
                    sending.await.map_err(NotTaken::Said)
                }
                Err(failure) => Err(NotTaken::Unfit(failure)),
            };
            sent.push((step, ack));
        }
        sent
    }

    async fn answer(&self, sent: Sent, message: &Message, step: Step) -> Answer {
        let topic = message.topic.as_str();
        let error = match sent {
            Err(NotTaken::Unfit(failure)) => return Answer::Failed(failure),
            Err(NotTaken::Said(error)) => error,
            Ok(ack) => match ack.await {
                Ok(ack) => {
                    self.streams.meet(&ack.stream);
                    return stored(topic, &ack).map_or_else(Answer::Failed, |()| Answer::Taken);
                }
                Err(error) => error,
            },
        };
        match error.kind() {
            PublishErrorKind::WrongLastMessageId if step.behind.is_some() => Answer::Broken,
            PublishErrorKind::StreamNotFound => {
                Answer::Failed(self.link.why_nobody_answers(topic).await)
            }
            _ => Answer::Failed(publishing(topic, error)),
        }
    }
}

#[async_trait]
impl Sink for NatsSink {
    async fn publish(&self, batch: &[Message]) -> Published {
        let limit = self.link.config.timeout;
        let deadline = Instant::now() + limit;
        let mut runs = Runs::new(batch);
        match self.link.in_time(deadline, limit, self.send(batch, &mut runs)).await {
            Ok(()) => runs.finish(),
            Err(failure) => runs.give_up(&failure),
        }
    }

    async fn check(&self) -> Result<(), Failure> {
        const LIMIT: Duration = Duration::from_secs(5);
        self.link.check()?;
        self.link.in_time(Instant::now() + LIMIT, LIMIT, self.link.ask_account()).await
    }

    fn system(&self) -> Option<&'static str> {
        Some(super::SYSTEM)
    }
}

impl fmt::Debug for NatsSink {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("NatsSink").field("config", &self.link.config).finish_non_exhaustive()
    }
}
