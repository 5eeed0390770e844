//! [`Sink`] for NATS JetStream.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use async_nats::connection::State;
use async_nats::jetstream::context::{
    ContextBuilder, PublishAckFuture, PublishError, PublishErrorKind,
};
use async_nats::jetstream::response::Response;
use async_nats::jetstream::stream::Config;
use async_nats::jetstream::{self, Context};
use async_nats::{Client, ConnectOptions};
use async_trait::async_trait;
use semel_core::{Failure, Message, Published, Sink};
use tokio::sync::Mutex;
use tokio::time::{Instant, timeout_at};

use super::config::{Login, NatsConfig};
use super::error::{
    asking, connecting, declined, down, making, publishing, stream_missing, timed_out, unreadable,
};
use super::message::Outgoing;
use super::runs::{Answer, Pace, Runs, Step};
use super::trouble::Bell;

/// Publishes to NATS JetStream. Made by [`NatsConfig::connect`]; clones share the connection, which
/// comes back by itself when it was lost.
///
/// All of a batch is sent together, lane by lane. Each message names the one of its lane that the
/// stream must have got just before, so that the stream turns down what is behind one that it did
/// not take.
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
    config: Arc<NatsConfig>,
    client: Client,
    context: Context,
    bell: Bell,
    pace: Arc<Pace>,
    turn: Arc<Mutex<()>>,
}

/// How many messages may be without an answer. The client counts those of a lost connection until
/// they time out, so this is far more than the relay has under way.
const UNANSWERED: usize = 1 << 20;

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
        crate::crypto::choose_provider();
        let deadline = Instant::now() + config.timeout;
        let bell = Bell::new();
        let options = options(&config, &bell).await?;
        let connect = options.connect(config.servers.clone());
        let client = timeout_at(deadline, connect)
            .await
            .map_err(|_| timed_out(config.timeout))?
            .map_err(connecting)?;
        let context = ContextBuilder::new()
            .timeout(config.timeout)
            .ack_timeout(config.timeout)
            .max_ack_inflight(UNANSWERED)
            .build(client.clone());
        let (pace, turn) = (Arc::new(Pace::new()), Arc::default());
        let sink = Self { config: Arc::new(config), client, context, bell, pace, turn };
        sink.in_time(deadline, sink.config.timeout, sink.set_up()).await?;
        Ok(sink)
    }

    /// Makes the stream, or only checks that there is JetStream.
    async fn set_up(&self) -> Result<(), Failure> {
        let Some(stream) = &self.config.stream else {
            return self.ask_account().await;
        };
        let config = Config {
            name: stream.name.clone(),
            subjects: stream.subjects.clone(),
            num_replicas: stream.replicas,
            ..Config::default()
        };
        let made = self.context.get_or_create_stream(config).await;
        made.map(drop).map_err(|error| making(&stream.name, error))
    }

    async fn ask_account(&self) -> Result<(), Failure> {
        // The library's own type of the answer asks for more than older servers say.
        let account: Result<Response<serde_json::Value>, _> =
            self.context.request("INFO", &()).await;
        match account.map_err(|error| asking("ask JetStream", error))? {
            Response::Ok(_) => Ok(()),
            Response::Err { error } => Err(declined("ask JetStream", error)),
        }
    }

    /// Sends round after round. Where it ends, on an error or because it is dropped, `runs` knows.
    async fn send(&self, batch: &[Message], runs: &mut Runs) -> Result<(), Failure> {
        loop {
            let round = runs.next_round(&self.pace);
            if round.is_empty() {
                return Ok(());
            }
            // What is sent without a connection would wait in the client, and come out of it late.
            if self.client.connection_state() != State::Connected {
                return Err(down("there is no connection"));
            }
            for (step, sent) in self.send_round(batch, round).await {
                if runs.waits_for(step) {
                    let answer = self.answer(sent, &batch[step.place], step).await;
                    runs.note(step, answer);
                }
            }
        }
    }

    /// Sends a round in one piece: the messages of other calls would break its runs.
    async fn send_round(&self, batch: &[Message], round: Vec<Step>) -> Vec<(Step, Sent)> {
        let _turn = self.turn.lock().await;
        let mut sent = Vec::with_capacity(round.len());
        for step in round {
            let behind = step.behind.map(|place| &batch[place].event.id);
            let ack = match Outgoing::encode(&batch[step.place], behind, self.config.format) {
                Ok(Outgoing { subject, headers, body }) => {
                    let sending = self.context.publish_with_headers(subject, headers, body);
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
                Ok(_) => return Answer::Taken,
                Err(error) => error,
            },
        };
        match error.kind() {
            PublishErrorKind::WrongLastMessageId if step.behind.is_some() => Answer::Broken,
            PublishErrorKind::StreamNotFound => {
                Answer::Failed(self.why_nobody_answers(topic).await)
            }
            _ => Answer::Failed(publishing(topic, error)),
        }
    }

    /// Nobody listens to the subject: there is no stream for it, or its leader is away.
    async fn why_nobody_answers(&self, subject: &str) -> Failure {
        use jetstream::context::GetStreamByNameErrorKind::NotFound;
        match self.context.stream_by_subject(subject).await {
            Ok(stream) => down(&format!("the stream {stream:?} has no leader now")),
            Err(error) if error.kind() == NotFound => stream_missing(subject),
            Err(error) => down("cannot ask for the stream").with_source(error),
        }
    }

    async fn in_time<T>(
        &self,
        deadline: Instant,
        limit: Duration,
        work: impl Future<Output = Result<T, Failure>>,
    ) -> Result<T, Failure> {
        let done = timeout_at(deadline, self.bell.unless_trouble(work)).await;
        done.unwrap_or_else(|_| Err(timed_out(limit)))
    }
}

#[async_trait]
impl Sink for NatsSink {
    async fn publish(&self, batch: &[Message]) -> Published {
        let limit = self.config.timeout;
        let deadline = Instant::now() + limit;
        let mut runs = Runs::new(batch);
        match self.in_time(deadline, limit, self.send(batch, &mut runs)).await {
            Ok(()) => runs.finish(),
            Err(failure) => runs.give_up(&failure),
        }
    }

    async fn check(&self) -> Result<(), Failure> {
        const LIMIT: Duration = Duration::from_secs(5);
        if self.client.connection_state() != State::Connected {
            return Err(down("there is no connection"));
        }
        self.in_time(Instant::now() + LIMIT, LIMIT, self.ask_account()).await
    }
}

async fn options(config: &NatsConfig, bell: &Bell) -> Result<ConnectOptions, Failure> {
    let bell = bell.clone();
    let mut options = ConnectOptions::new()
        .name("semel")
        .connection_timeout(config.timeout)
        // A dead peer is noticed after two of these.
        .ping_interval(Duration::from_secs(10))
        .reconnect_delay_callback(|attempts| {
            Duration::from_millis((50 << attempts.min(5)).min(1_000))
        })
        .event_callback(move |event| {
            bell.hear(&event);
            std::future::ready(())
        });
    if let Some(path) = &config.ca_file {
        options = options.add_root_certificates(path.clone()).require_tls(true);
    }
    match &config.login {
        None => Ok(options),
        Some(Login::User(user, password)) => {
            Ok(options.user_and_password(user.clone(), password.reveal().to_owned()))
        }
        Some(Login::Token(token)) => Ok(options.token(token.reveal().to_owned())),
        Some(Login::File(path)) => options
            .credentials_file(path)
            .await
            .map_err(|error| unreadable(&format!("credentials_file {}", path.display()), error)),
    }
}

impl fmt::Debug for NatsSink {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("NatsSink").field("config", &self.config).finish_non_exhaustive()
    }
}
