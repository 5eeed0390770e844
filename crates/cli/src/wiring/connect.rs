//! How a sink that was configured is connected, and what else can be asked of its broker.

use std::collections::BTreeSet;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use semel_backends::{Arrival, DeadQueue};
use semel_core::coordination::Share;
use semel_core::{Failure, Fault, Sink, Topic};
use tokio::time::timeout;

use super::later::Later;
use super::shared::{Identity, shared};
use super::{Connecting, ReadSink};

/// Connects a sink that was configured.
#[derive(Clone)]
pub(crate) struct ConnectSink {
    /// What it is connected with; without secrets.
    pub(super) settings: String,
    pub(super) connect: Arc<dyn Fn() -> Connecting<Arc<dyn Sink>> + Send + Sync>,
    pub(super) share: Option<ConnectShare>,
    /// Whoever has the same one shares the connection.
    pub(crate) identity: Option<Identity>,
    /// How long a publish call may take by its own settings, where they say so.
    pub(super) longest_call: Option<Duration>,
    /// Why no topic of a template can be one of it, and what to do about it.
    pub(crate) no_topic: NoTopic,
    /// Why it can carry no header of this name with this text in its value, and what to do about it.
    pub(crate) no_header: NoHeader,
    /// Where what is there can be read without taking it out.
    pub(crate) read: Option<ReadSink>,
    /// Where consumers leave dead letters: opens a queue of them.
    pub(crate) letters: Option<OpenLetters>,
}

/// Why no topic of a template can be one of a sink.
pub(super) type NoTopic = Arc<dyn Fn(&str) -> Option<&'static str> + Send + Sync>;

/// Why a sink can carry no header of this name with this text in its value.
pub(super) type NoHeader = Arc<dyn Fn(&str, &str) -> Option<&'static str> + Send + Sync>;

/// Opens a queue of dead letters.
pub(crate) type OpenLetters = Arc<dyn Fn(String) -> Connecting<Box<dyn DeadQueue>> + Send + Sync>;

/// Connects a sink for one share of the pipeline of this name, and for no other.
pub(super) type ConnectShare = Arc<dyn Fn(&str, Share) -> Connecting<Arc<dyn Sink>> + Send + Sync>;

impl fmt::Debug for ConnectSink {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.settings)
    }
}

impl ConnectSink {
    /// The same, and what is there can be read.
    pub(super) fn readable<F>(
        self,
        read: impl Fn(BTreeSet<Topic>) -> F + Send + Sync + 'static,
    ) -> Self
    where
        F: Future<Output = Result<Vec<Arrival>, Failure>> + Send + 'static,
    {
        let read = move |topics: BTreeSet<Topic>| Box::pin(read(topics)) as Connecting<_>;
        Self { read: Some(Arc::new(read)), ..self }
    }

    /// The same, and consumers leave dead letters there.
    #[cfg(any(
        feature = "aws",
        feature = "kafka",
        feature = "nats",
        feature = "rabbitmq",
        feature = "redis"
    ))]
    pub(super) fn with_letters<C, F>(
        self,
        config: C,
        open: impl Fn(C, String) -> F + Send + Sync + 'static,
    ) -> Self
    where
        C: Clone + Send + Sync + 'static,
        F: Future<Output = Result<Box<dyn DeadQueue>, Failure>> + Send + 'static,
    {
        let open = move |queue| Box::pin(open(config.clone(), queue)) as Connecting<_>;
        Self { letters: Some(Arc::new(open)), ..self }
    }

    /// Whether an event is there once, as long as nobody else can have it offered again.
    pub(crate) fn is_exactly_once(&self) -> bool {
        self.share.is_some()
    }

    /// The same, and not every template can be a topic of it.
    #[cfg(any(
        feature = "aws",
        feature = "kafka",
        feature = "mqtt",
        feature = "nats",
        feature = "rabbitmq"
    ))]
    pub(super) fn with_topics(
        self,
        no_topic: impl Fn(&str) -> Option<&'static str> + Send + Sync + 'static,
    ) -> Self {
        Self { no_topic: Arc::new(no_topic), ..self }
    }

    /// The same, and not every header can be carried to it.
    #[cfg(any(feature = "mqtt", feature = "rabbitmq"))]
    pub(super) fn with_headers(
        self,
        no_header: impl Fn(&str, &str) -> Option<&'static str> + Send + Sync + 'static,
    ) -> Self {
        Self { no_header: Arc::new(no_header), ..self }
    }

    /// The same, and a publish call may take so long.
    #[cfg(feature = "sinks")]
    pub(super) fn with_longest_call(self, longest_call: Option<Duration>) -> Self {
        Self { longest_call, ..self }
    }

    /// How long a publish call may take before the relay gives it up: longer than the sink does, for only
    /// the sink knows whether silence is an outage.
    pub(crate) fn publish_limit(&self, usual: Duration) -> Duration {
        const SPARE: Duration = Duration::from_secs(5);
        self.longest_call.map_or(usual, |longest| usual.max(longest + SPARE))
    }

    /// For everyone: all who use the same sink of this process have the same connection.
    pub(crate) fn connect(&self) -> Connecting<Arc<dyn Sink>> {
        let connecting = (self.connect)();
        match self.identity.clone() {
            Some(identity) => Box::pin(shared(identity, connecting)),
            None => connecting,
        }
    }

    /// For the shares of a pipeline: one for all of them, unless each must have its own. Of a sink that
    /// is away each share waits for its own, so that the other pipelines need not.
    pub(crate) async fn for_shares(&self, drain: bool) -> Result<ShareSinks, Failure> {
        if let Some(connect) = &self.share {
            return Ok(ShareSinks::Each(Arc::clone(connect)));
        }
        Ok(match self.unless_away(drain).await? {
            Some(sink) => ShareSinks::Same(sink),
            None => {
                let later = self.clone();
                ShareSinks::Each(Arc::new(move |_, _| later.connect()))
            }
        })
    }

    /// For alerts, which hold up nobody: one that is away, or says nothing for a second, is connected when
    /// there is something to tell.
    pub(crate) async fn for_alerts(&self, drain: bool) -> Result<Arc<dyn Sink>, Failure> {
        const AT_MOST: Duration = Duration::from_secs(1);
        if drain {
            return self.connect().await;
        }
        let sink = timeout(AT_MOST, self.unless_away(drain)).await.unwrap_or(Ok(None))?;
        Ok(sink.unwrap_or_else(|| Arc::new(Later::new(self.clone()))))
    }

    /// Nothing while it is away, unless somebody drains, who waits for nobody.
    async fn unless_away(&self, drain: bool) -> Result<Option<Arc<dyn Sink>>, Failure> {
        match self.connect().await {
            Err(failure) if failure.fault() == Fault::Unavailable && !drain => Ok(None),
            connected => connected.map(Some),
        }
    }
}

/// The sinks of the shares of a pipeline.
pub(crate) enum ShareSinks {
    Same(Arc<dyn Sink>),
    Each(ConnectShare),
}

impl ShareSinks {
    /// That of one share.
    pub(crate) fn open(&self, pipeline: &str, share: Share) -> Connecting<Arc<dyn Sink>> {
        match self {
            Self::Same(sink) => Box::pin(std::future::ready(Ok(Arc::clone(sink)))),
            Self::Each(connect) => connect(pipeline, share),
        }
    }
}

/// Remembers how a sink is connected, and with what.
pub(super) fn sink<C, S, F>(
    config: C,
    connect: impl Fn(C) -> F + Send + Sync + 'static,
) -> ConnectSink
where
    C: Clone + fmt::Debug + Send + Sync + 'static,
    S: Sink + 'static,
    F: Future<Output = Result<S, Failure>> + Send + 'static,
{
    let settings = format!("{config:?}");
    let connect = Arc::new(move || {
        let connecting = connect(config.clone());
        Box::pin(async move { Ok(Arc::new(connecting.await?) as Arc<dyn Sink>) }) as Connecting<_>
    });
    ConnectSink {
        settings,
        connect,
        share: None,
        identity: None,
        longest_call: None,
        no_topic: Arc::new(|_: &str| None),
        no_header: Arc::new(|_: &str, _: &str| None),
        read: None,
        letters: None,
    }
}
