//! [`Sink`] for MQTT.

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use semel_core::{EventId, Failure, Fault, Message, Published, Sink};
use tokio::sync::{Mutex, mpsc};
use tokio::time::{Instant, timeout_at};
use tokio_rustls::TlsConnector;

use super::config::MqttConfig;
use super::error::{judge, timed_out};
use super::link::{Answer, Link, Run};
use super::message::encode;
use super::wire::encryption;
use crate::lanes::Lanes;

/// Publishes to an MQTT broker. Made by [`MqttConfig::connect`]; clones share the connection.
///
/// A lane has one unacknowledged message at a time, many lanes are sent together: in MQTT 5 the
/// broker can turn down one message and take the next, and nothing sent can be taken back.
///
/// ```no_run
/// use semel_backends::mqtt::MqttConfig;
/// use semel_core::Sink;
///
/// # tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(async {
/// let sink = MqttConfig::new("mqtt://localhost:1883")?.connect().await?;
/// sink.check().await?;
/// # Ok::<(), semel_core::Failure>(()) }).unwrap();
/// ```
#[derive(Clone)]
pub struct MqttSink {
    config: Arc<MqttConfig>,
    encryption: Option<TlsConnector>,
    link: Arc<Mutex<Option<Arc<Link>>>>,
}

impl MqttSink {
    pub(super) async fn connect(mut config: MqttConfig) -> Result<Self, Failure> {
        // Not before: sinks of one configuration would end each other's connections.
        config.client_id.get_or_insert_with(|| format!("semel-{}", EventId::now()));
        let encryption = encryption(&config)?;
        let limit = config.timeout;
        let sink = Self { config: Arc::new(config), encryption, link: Arc::default() };
        in_time(Instant::now() + limit, limit, sink.open_link()).await?;
        Ok(sink)
    }

    /// The open connection, or a new one. The broker ends the old one when the new one comes, for it
    /// knows both by the same name: what is still under way there cannot arrive after what is sent
    /// here.
    async fn open_link(&self) -> Result<Arc<Link>, Failure> {
        let mut current = self.link.lock().await;
        if let Some(link) = current.as_ref().filter(|link| link.is_open()) {
            return Ok(Arc::clone(link));
        }
        let link = Arc::new(Link::open(&self.config, self.encryption.as_ref()).await?);
        *current = Some(Arc::clone(&link));
        Ok(link)
    }

    /// Sends all lanes side by side.
    fn send<'a>(&self, link: &Link, batch: &'a [Message]) -> Call<'a> {
        let (answers, answered) = mpsc::unbounded_channel();
        let (mut lanes, mut unfit) = (Lanes::new(batch), HashMap::new());
        for first in lanes.first().to_vec() {
            let mut messages = Vec::new();
            for place in lanes.from(first) {
                match encode(&batch[place], &self.config, link.largest) {
                    Ok(publish) => messages.push((place, publish)),
                    Err(failure) => {
                        unfit.insert(place, failure);
                        break;
                    }
                }
            }
            if let Some(failure) = unfit.remove(&first) {
                lanes.settle(first, Err(failure));
            }
            link.publish(Run { messages: messages.into_iter(), answers: answers.clone() });
        }
        Call { batch, lanes, unfit, answered, require_subscriber: self.config.require_subscriber }
    }
}

/// A batch that was handed over.
struct Call<'a> {
    batch: &'a [Message],
    lanes: Lanes,
    /// What MQTT cannot carry is refused when its turn comes.
    unfit: HashMap<usize, Failure>,
    answered: mpsc::UnboundedReceiver<Answer>,
    require_subscriber: bool,
}

impl Call<'_> {
    /// Waits for the answers; may be dropped at any time.
    async fn hear(&mut self) {
        while let Some(answer) = self.answered.recv().await {
            self.note(answer);
        }
    }

    /// Lanes go on where the answers come in: what has come and was not looked at is as good.
    fn hear_what_has_come(&mut self) {
        while let Ok(answer) = self.answered.try_recv() {
            self.note(answer);
        }
    }

    fn note(&mut self, Answer { place, reason }: Answer) {
        let topic = self.batch[place].topic.as_str();
        let verdict = judge(reason, topic, self.require_subscriber);
        if let Some(next) = self.lanes.settle(place, verdict)
            && let Some(failure) = self.unfit.remove(&next)
        {
            self.lanes.settle(next, Err(failure));
        }
    }
}

#[async_trait]
impl Sink for MqttSink {
    async fn publish(&self, batch: &[Message]) -> Published {
        let limit = self.config.timeout;
        let deadline = Instant::now() + limit;
        if batch.is_empty() {
            return Published::All;
        }
        let link = match in_time(deadline, limit, self.open_link()).await {
            Ok(link) => link,
            Err(failure) => return Published::None(failure),
        };
        let mut call = self.send(&link, batch);
        if timeout_at(deadline, call.hear()).await.is_err() {
            link.close();
            call.hear_what_has_come();
            return call.lanes.give_up(&timed_out(limit));
        }
        if link.is_open() { call.lanes.finish() } else { call.lanes.give_up(&link.end()) }
    }

    async fn check(&self) -> Result<(), Failure> {
        const LIMIT: Duration = Duration::from_secs(5);
        let deadline = Instant::now() + LIMIT;
        let link = in_time(deadline, LIMIT, self.open_link()).await?;
        let answer = in_time(deadline, LIMIT, link.ping()).await;
        answer.inspect_err(|failure| {
            if failure.fault() == Fault::Unavailable {
                link.close();
            }
        })
    }

    fn system(&self) -> Option<&'static str> {
        Some(super::SYSTEM)
    }
}

async fn in_time<T>(
    deadline: Instant,
    limit: Duration,
    work: impl Future<Output = Result<T, Failure>>,
) -> Result<T, Failure> {
    timeout_at(deadline, work).await.unwrap_or_else(|_| Err(timed_out(limit)))
}

impl fmt::Debug for MqttSink {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MqttSink").field("config", &self.config).finish_non_exhaustive()
    }
}
