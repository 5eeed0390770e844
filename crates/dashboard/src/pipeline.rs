//! What is known of one pipeline.

use std::fmt;
use std::sync::Arc;

use semel_core::idempotency::KeyAdmin;
use semel_core::{AdminStore, Insight};
use serde::Serialize;

/// A pipeline to show.
///
/// ```
/// use semel_core::memory::MemoryDatabase;
/// use semel_dashboard::Pipeline;
/// use std::sync::Arc;
///
/// let database = Arc::new(MemoryDatabase::new());
/// let orders = Pipeline::new("orders", database.clone())
///     .with_insight(database)
///     .from("memory")
///     .to("kafka", "kafka");
/// ```
#[derive(Clone)]
pub struct Pipeline {
    pub(crate) name: String,
    pub(crate) admin: Arc<dyn AdminStore>,
    pub(crate) insight: Option<Arc<dyn Insight>>,
    pub(crate) keys: Option<Arc<dyn KeyAdmin>>,
    pub(crate) from: String,
    pub(crate) mode: String,
    pub(crate) listening: Listening,
    pub(crate) to: Vec<SinkView>,
}

/// Whether the relays of a pipeline listen to the log.
#[derive(Clone, Debug, Default)]
pub(crate) enum Listening {
    /// If they can: they say so.
    #[default]
    Perhaps,
    /// For this reason.
    Never(String),
    /// Somebody else does.
    Elsewhere,
}

/// Where events of a pipeline go.
///
/// ```
/// # use semel_dashboard::SinkView;
/// let sink = SinkView { name: "out".into(), kind: "kafka".into() };
/// assert_eq!(sink.kind, "kafka");
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct SinkView {
    /// Its name.
    pub name: String,
    /// Its technology.
    pub kind: String,
}

impl Pipeline {
    /// A pipeline and its outbox.
    pub fn new(name: impl Into<String>, admin: Arc<dyn AdminStore>) -> Self {
        Self {
            name: name.into(),
            admin,
            insight: None,
            keys: None,
            from: String::new(),
            mode: String::new(),
            listening: Listening::default(),
            to: Vec::new(),
        }
    }

    /// What its database knows beside the events. Without it changes are logged, not kept.
    #[must_use]
    pub fn with_insight(mut self, insight: Arc<dyn Insight>) -> Self {
        self.insight = Some(insight);
        self
    }

    /// The idempotency keys of its database.
    #[must_use]
    pub fn with_keys(mut self, keys: Arc<dyn KeyAdmin>) -> Self {
        self.keys = Some(keys);
        self
    }

    /// What its source is called. It is shown: leave passwords out.
    #[must_use]
    pub fn from(mut self, source: impl Into<String>) -> Self {
        self.from = source.into();
        self
    }

    /// How its source learns of new events: `auto`, `poll` or `tail`.
    #[must_use]
    pub fn mode(mut self, mode: impl Into<String>) -> Self {
        self.mode = mode.into();
        self
    }

    /// Why its source never tails a log, if it does not. Otherwise its relays say how it is.
    #[must_use]
    pub fn polling(mut self, why: impl Into<String>) -> Self {
        self.listening = Listening::Never(why.into());
        self
    }

    /// Its events are messages of the log, which one carrier brings into the outbox for all pipelines:
    /// no relay of its own listens.
    #[must_use]
    pub fn of_messages(mut self) -> Self {
        self.listening = Listening::Elsewhere;
        self
    }

    /// A sink, by name and technology.
    #[must_use]
    pub fn to(mut self, name: impl Into<String>, kind: impl Into<String>) -> Self {
        self.to.push(SinkView { name: name.into(), kind: kind.into() });
        self
    }
}

impl fmt::Debug for Pipeline {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pipeline").field("name", &self.name).finish_non_exhaustive()
    }
}
