//! [`Sink`] for NATS JetStream.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use async_nats::connection::State;
use async_nats::jetstream::context::{ContextBuilder, PublishErrorKind};
use async_nats::jetstream::response::Response;
use async_nats::jetstream::stream::Config;
use async_nats::jetstream::{self, Context};
use async_nats::{Client, ConnectOptions};
use async_trait::async_trait;
use futures_util::future::join_all;
use semel_core::{Failure, Message, Published, Sink};
use tokio::time::{Instant, timeout_at};

use super::config::{Login, NatsConfig};
use super::error::{
    asking, connecting, declined, down, making, publishing, stream_missing, timed_out, unreadable,
};
use super::message::Outgoing;
use super::trouble::Bell;
use crate::waves::Waves;

/// Publishes to NATS JetStream. Made by [`NatsConfig::connect`]; clones share the connection, which
/// comes back by itself when it was lost.
///
/// A lane has one unacknowledged message at a time, many lanes are sent together: the stream can
/// turn down one message (too large, stream full) and take the next, and nothing sent can be taken
/// back.
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
            .build(client.clone());
        let sink = Self { config: Arc::new(config), client, context, bell };
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

    /// Sends wave after wave. Where it ends, on an error or because it is dropped, `waves` knows.
    async fn send(&self, batch: &[Message], waves: &mut Waves) -> Result<(), Failure> {
        while !waves.current().is_empty() {
            // What is sent without a connection would wait in the client, and come out of it late.
            if self.client.connection_state() != State::Connected {
                return Err(down("there is no connection"));
            }
            let wave = waves.current().iter().map(|place| self.send_one(&batch[*place]));
            let results = join_all(wave).await;
            waves.advance(results);
        }
        Ok(())
    }

    async fn send_one(&self, message: &Message) -> Result<(), Failure> {
        let Outgoing { subject, headers, body } = Outgoing::encode(message, self.config.format)?;
        let acknowledged = async {
            self.context.publish_with_headers(subject, headers, body).await?.await.map(drop)
        };
        let topic = message.topic.as_str();
        match acknowledged.await {
            Ok(()) => Ok(()),
            Err(error) if error.kind() == PublishErrorKind::StreamNotFound => {
                Err(self.why_nobody_answers(topic).await)
            }
            Err(error) => Err(publishing(topic, error)),
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
        let mut waves = Waves::new(batch);
        match self.in_time(deadline, limit, self.send(batch, &mut waves)).await {
            Ok(()) => waves.finish(),
            Err(failure) => waves.give_up(&failure),
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
