//! The connection, and what sink and subscription ask over it.

use std::sync::Arc;
use std::time::Duration;

use async_nats::connection::State;
use async_nats::jetstream::Context;
use async_nats::jetstream::context::{ContextBuilder, GetStreamByNameErrorKind};
use async_nats::jetstream::message::StreamMessage;
use async_nats::jetstream::response::Response;
use async_nats::jetstream::stream::{Config, RawMessageErrorKind, Stream};
use async_nats::{Client, ConnectOptions};
use semel_core::Failure;
use tokio::time::{Instant, timeout_at};

use super::config::{Login, NatsConfig};
use super::error::{
    asking, connecting, declined, down, making, reading, stream_missing, timed_out, unreadable,
};
use super::trouble::Bell;

/// A connection that comes back by itself when it was lost. Clones share it.
#[derive(Clone)]
pub(super) struct Link {
    pub(super) config: Arc<NatsConfig>,
    pub(super) client: Client,
    pub(super) context: Context,
    pub(super) bell: Bell,
}

/// How many messages may be without an answer. The client counts those of a lost connection until
/// they time out, so this is far more than the relay has under way.
const UNANSWERED: usize = 1 << 20;

impl Link {
    pub(super) async fn open(config: NatsConfig) -> Result<Self, Failure> {
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
        let link = Self { config: Arc::new(config), client, context, bell };
        link.in_time(deadline, link.config.timeout, link.set_up()).await?;
        Ok(link)
    }

    /// Whether there is a connection now.
    pub(super) fn check(&self) -> Result<(), Failure> {
        if self.client.connection_state() == State::Connected {
            Ok(())
        } else {
            Err(down("there is no connection"))
        }
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

    pub(super) async fn ask_account(&self) -> Result<(), Failure> {
        // The library's own type of the answer asks for more than older servers say.
        let account: Result<Response<serde_json::Value>, _> =
            self.context.request("INFO", &()).await;
        match account.map_err(|error| asking("ask JetStream", error))? {
            Response::Ok(_) => Ok(()),
            Response::Err { error } => Err(declined("ask JetStream", error)),
        }
    }

    /// Nobody listens to the subject: there is no stream for it, or its leader is away.
    pub(super) async fn why_nobody_answers(&self, subject: &str) -> Failure {
        match self.context.stream_by_subject(subject).await {
            Ok(stream) => down(&format!("the stream {stream:?} has no leader now")),
            Err(error) if error.kind() == GetStreamByNameErrorKind::NotFound => {
                stream_missing(subject)
            }
            Err(error) => down("cannot ask for the stream").with_source(error),
        }
    }

    /// The first message of a stream from this sequence on, under a subject that may have wildcards;
    /// none at the end. It stays where it is.
    pub(super) async fn message_from<I>(
        &self,
        stream: &Stream<I>,
        sequence: u64,
        subject: &str,
    ) -> Result<Option<StreamMessage>, Failure> {
        let limit = self.config.timeout;
        let asking = async {
            let question = stream.raw_message_builder().sequence(sequence);
            match question.next_by_subject(subject).send().await {
                Ok(message) => Ok(Some(message)),
                Err(error) if error.kind() == RawMessageErrorKind::NoMessageFound => Ok(None),
                Err(error) => Err(reading(subject, error)),
            }
        };
        self.in_time(Instant::now() + limit, limit, asking).await
    }

    pub(super) async fn in_time<T>(
        &self,
        deadline: Instant,
        limit: Duration,
        work: impl Future<Output = Result<T, Failure>>,
    ) -> Result<T, Failure> {
        let done = timeout_at(deadline, self.bell.unless_trouble(work)).await;
        done.unwrap_or_else(|_| Err(timed_out(limit)))
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
