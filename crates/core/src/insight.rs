//! What a database knows about the work on it, beside the events themselves: the [`Insight`]
//! contract, and the log of what operators changed.
//!
//! A page that asks here shows the same whichever relay serves it, and whether or not one runs.

use std::collections::BTreeMap;
use std::time::Duration;

use async_trait::async_trait;
use jiff::Timestamp;
use serde::Serialize;

use crate::event::EventId;
use crate::failure::Failure;

/// Looks at the work on a database, and keeps the log of changes.
///
/// **Consistency.** Each call sees one state of the store. **Cost.** No call looks at more rows than
/// a page can wait for, however large the tables are.
///
/// **Repetition.** [`note`](Self::note) adds one entry each time; the others change nothing when
/// they are repeated, but that an outage holds for longer.
///
/// ```
/// use semel_core::insight::Insight;
/// use semel_core::memory::MemoryDatabase;
///
/// # tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(async {
/// let database = MemoryDatabase::new();
/// let entry = database.note("alice", "retry", "orders", "state:dead").await?;
/// database.conclude(entry, 3).await?;
/// let activity = database.activity(None, 10).await?;
/// assert_eq!((activity[0].who.as_str(), activity[0].events), ("alice", Some(3)));
/// # Ok::<(), semel_core::Failure>(()) }).unwrap();
/// ```
#[async_trait]
pub trait Insight: Send + Sync {
    /// How far a pipeline is, and who works on it.
    ///
    /// # Errors
    /// `Unavailable` when the store cannot be reached.
    async fn workings(&self, pipeline: &str) -> Result<Workings, Failure>;

    /// Why relays cannot reach the sinks of a pipeline, as they [tell](Self::tell_outage) themselves: those
    /// that said so lately. Nothing where the store keeps no such books, or the user may not look.
    ///
    /// # Errors
    /// `Unavailable` when the store cannot be reached.
    async fn outages(&self, pipeline: &str) -> Result<Vec<OutageView>, Failure> {
        let _ = pipeline;
        Ok(Vec::new())
    }

    /// Tells that a relay cannot reach a sink of a pipeline, or that it can. An outage that is not told of
    /// again is taken to be over after [`Outage::HOLDS`].
    ///
    /// # Errors
    /// `Unavailable` when the store cannot be reached, `Misconfigured` when the user may not. Nothing
    /// depends on it.
    async fn tell_outage(
        &self,
        pipeline: &str,
        relay: &str,
        outage: Option<&Outage>,
    ) -> Result<(), Failure> {
        let _ = (pipeline, relay, outage);
        Ok(())
    }

    /// Which consumers took effect here, by name: lately, of a large inbox only the newest messages
    /// are looked at, and by what they [counted](crate::InboxStore::count) themselves.
    ///
    /// # Errors
    /// `Unavailable` when the store cannot be reached, `Misconfigured` when the user may not look.
    async fn consumers(&self) -> Result<Vec<ConsumerView>, Failure>;

    /// Which consumers took effect here for an event, the earliest first.
    ///
    /// # Errors
    /// As of [`consumers`](Self::consumers).
    async fn effects(&self, id: EventId) -> Result<Vec<EffectView>, Failure>;

    /// Writes down, before it is done, who changes what. Gives the number of the entry.
    ///
    /// # Errors
    /// `Unavailable` when the store cannot be reached. The change must not be made then.
    async fn note(
        &self,
        who: &str,
        what: &str,
        pipeline: &str,
        filter: &str,
    ) -> Result<u64, Failure>;

    /// Writes down how many events a change was about, once it is done.
    ///
    /// # Errors
    /// `Unavailable` when the store cannot be reached. The change is made nevertheless.
    async fn conclude(&self, entry: u64, events: u64) -> Result<(), Failure>;

    /// Entries of the log of changes, newest first, before the one of this number.
    ///
    /// # Errors
    /// `Unavailable` when the store cannot be reached.
    async fn activity(&self, before: Option<u64>, limit: usize)
    -> Result<Vec<AuditEntry>, Failure>;
}

/// How far a pipeline is, and who works on it.
///
/// ```
/// # use semel_core::insight::Workings;
/// assert!(Workings::default().relays.is_empty());
/// ```
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Workings {
    /// A number that grows by about one with every event that is written.
    pub written: Option<u64>,
    /// The same of the last event that left the log, published or parked.
    pub settled: Option<u64>,
    /// When the pipeline moved last.
    pub moved_at: Option<Timestamp>,
    /// How much room the events take, as far as the store knows.
    pub bytes: Option<u64>,
    /// The relays, those that work first.
    pub relays: Vec<RelayView>,
    /// What the log is held back by, where it is read.
    pub log: Option<LogView>,
    /// Why relays cannot reach its sinks.
    pub outages: Vec<OutageView>,
}

impl Workings {
    /// Why the log tells nobody of new events now, in words; nothing when it does.
    ///
    /// ```
    /// # use semel_core::insight::{LogView, Workings};
    /// let log = Some(LogView { active: true, ..LogView::default() });
    /// assert_eq!(Workings { log, ..Workings::default() }.why_polling(), None);
    /// assert!(Workings::default().why_polling().unwrap().contains("no relay runs"));
    /// ```
    #[must_use]
    pub fn why_polling(&self) -> Option<String> {
        let log = self.log.as_ref();
        if log.is_some_and(|log| log.active) {
            return None;
        }
        let why = log.and_then(|log| log.polling.as_deref());
        Some(match (why, self.relays.is_empty()) {
            (Some(why), false) => why.to_owned(),
            (Some(why), true) => format!("no relay runs; the last one: {why}"),
            (None, false) => "the relay works off its backlog first".to_owned(),
            (None, true) => "no relay runs".to_owned(),
        })
    }
}

/// A relay that works on a pipeline, or stands by.
///
/// ```
/// # use semel_core::insight::RelayView;
/// let standby = RelayView { name: "r1".into(), shares: vec![], of: 1, lease_left: Default::default() };
/// assert!(standby.shares.is_empty());
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct RelayView {
    /// Which one it is.
    pub name: String,
    /// The shares it works on; none when it stands by.
    pub shares: Vec<u32>,
    /// Into how many shares the pipeline is divided.
    pub of: u32,
    /// How long it is taken to be alive without saying so again.
    pub lease_left: Duration,
}

/// Why a relay cannot reach a sink. It is shown to whoever may look: it says what logs say, no more.
///
/// ```
/// # use semel_core::{Failure, insight::Outage};
/// let down = Failure::unavailable("E-DOWN", "no answer").with_fix("look after the broker");
/// let outage = Outage::of(&down.at("sink audit"), &["out", "audit"]);
/// assert_eq!((outage.sink.as_deref(), outage.code.as_str()), (Some("audit"), "E-DOWN"));
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Outage {
    /// Which one, if that is known.
    pub sink: Option<String>,
    /// The code of what happened.
    pub code: String,
    /// What happened.
    pub error: String,
    /// What to run or change, if known.
    pub fix: Option<String>,
}

impl Outage {
    /// How long it holds without being told of again: a relay that was killed says nothing.
    pub const HOLDS: Duration = Duration::from_secs(30);

    /// From the failure of a pipeline with these sinks: where there are several, it names one.
    #[must_use]
    pub fn of(failure: &Failure, sinks: &[impl AsRef<str>]) -> Self {
        let error = failure.to_string();
        let is_named = |name: &&str| error.starts_with(&format!("sink {name}: "));
        let mut names = sinks.iter().map(AsRef::as_ref);
        let sink = if sinks.len() == 1 { names.next() } else { names.find(is_named) };
        Self {
            sink: sink.map(str::to_owned),
            code: failure.code().to_owned(),
            fix: failure.fix().map(str::to_owned),
            error,
        }
    }
}

/// An outage that a relay tells of.
///
/// ```
/// # use semel_core::{Failure, Timestamp, insight::{Outage, OutageView}};
/// let outage = Outage::of(&Failure::unavailable("E-DOWN", "no answer"), &["out"]);
/// let view = OutageView { relay: "r1".into(), outage, since: Timestamp::UNIX_EPOCH };
/// assert_eq!(view.outage.sink.as_deref(), Some("out"));
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct OutageView {
    /// Which relay, by its name among the [relays](RelayView).
    pub relay: String,
    /// Why.
    #[serde(flatten)]
    pub outage: Outage,
    /// When it was told of first, by the clock of the store.
    pub since: Timestamp,
}

/// What is kept of the log for a pipeline.
///
/// ```
/// # use semel_core::insight::LogView;
/// assert!(!LogView::default().active);
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct LogView {
    /// The replication slot, where there is one.
    pub slot: Option<String>,
    /// Whether somebody reads it now.
    pub active: bool,
    /// How many bytes of log the server keeps for it.
    pub retained_bytes: Option<u64>,
    /// How many it may be.
    pub limit_bytes: Option<u64>,
    /// Why the last relay that read it does not any more, as it said itself: a code, what happened, and
    /// what to run.
    pub polling: Option<String>,
}

/// A consumer and what took effect for it.
///
/// ```
/// # use semel_core::{Timestamp, insight::ConsumerView};
/// let seen = [("payments".to_owned(), 2, Timestamp::UNIX_EPOCH)];
/// let counted = [("payments".to_owned(), 5, 1), ("stock".to_owned(), 7, 0)];
/// let views = ConsumerView::all(seen, counted);
/// assert_eq!((views[0].name.as_str(), views[0].applied, views[0].duplicates), ("payments", 5, 1));
/// assert_eq!((views[1].name.as_str(), views[1].last), ("stock", None));
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ConsumerView {
    /// Its name.
    pub name: String,
    /// Messages that took effect: as many as the consumer counted, or as are remembered among those
    /// that were looked at, whichever is more.
    pub applied: u64,
    /// Messages that came again and were dropped, as far as the consumer counted.
    pub duplicates: u64,
    /// When the last one took effect; unknown when it is not remembered by its id.
    pub last: Option<Timestamp>,
}

impl ConsumerView {
    /// From what an inbox remembers of each consumer, how many and when last, and from what each
    /// counted, applied and duplicates; by name.
    #[must_use]
    pub fn all(
        remembered: impl IntoIterator<Item = (String, u64, Timestamp)>,
        counted: impl IntoIterator<Item = (String, u64, u64)>,
    ) -> Vec<Self> {
        let mut all = BTreeMap::new();
        for (name, applied, last) in remembered {
            let view = Self { name: name.clone(), applied, duplicates: 0, last: Some(last) };
            all.insert(name, view);
        }
        for (name, applied, duplicates) in counted {
            let new = || Self { name: name.clone(), applied: 0, duplicates: 0, last: None };
            let view = all.entry(name.clone()).or_insert_with(new);
            view.applied = view.applied.max(applied);
            view.duplicates = duplicates;
        }
        all.into_values().collect()
    }
}

/// A consumer for which an event took effect.
///
/// ```
/// # use semel_core::{Timestamp, insight::EffectView};
/// let effect = EffectView { consumer: "payments".into(), at: Timestamp::UNIX_EPOCH };
/// assert_eq!(effect.at.as_second(), 0);
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct EffectView {
    /// Its name.
    pub consumer: String,
    /// When, by the clock of the store.
    pub at: Timestamp,
}

/// A change that an operator made.
///
/// ```
/// # use semel_core::{Timestamp, insight::AuditEntry};
/// let entry = AuditEntry {
///     id: 1,
///     at: Timestamp::UNIX_EPOCH,
///     who: "alice".into(),
///     what: "discard".into(),
///     pipeline: "orders".into(),
///     filter: "state:dead".into(),
///     events: None,
/// };
/// assert!(entry.events.is_none(), "nobody knows how it ended");
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct AuditEntry {
    /// Its number; later ones are greater.
    pub id: u64,
    /// When, by the store's clock.
    pub at: Timestamp,
    /// Who.
    pub who: String,
    /// What was done.
    pub what: String,
    /// To which pipeline.
    pub pipeline: String,
    /// Which events were chosen, in words.
    pub filter: String,
    /// How many there were; unknown when the change was begun and not concluded.
    pub events: Option<u64>,
}
