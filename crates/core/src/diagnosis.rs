//! What a set-up lacks, or has too much of: the [`Diagnose`] contract of `semel check`.

use std::time::Duration;

use async_trait::async_trait;
use serde::Serialize;

use crate::failure::Failure;

/// Looks at a database with the eyes of a relay that is about to work there.
///
/// **Effects.** Nothing is changed and nothing is taken over; it is safe while relays run.
///
/// **Completeness.** All findings come at once, also those of things that are all right, so that a
/// reader knows what was looked at.
///
/// ```
/// use async_trait::async_trait;
/// use semel_core::Failure;
/// use semel_core::diagnosis::{Diagnose, Finding, Needs, Severity};
///
/// struct Shelf;
///
/// #[async_trait]
/// impl Diagnose for Shelf {
///     async fn diagnose(&self, _: &Needs) -> Result<Vec<Finding>, Failure> {
///         Ok(vec![Finding::good("board", "it is level")])
///     }
/// }
///
/// # tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(async {
/// let findings = Shelf.diagnose(&Needs::default()).await?;
/// assert_eq!(findings[0].severity, Severity::Good);
/// # Ok::<(), Failure>(()) }).unwrap();
/// ```
#[async_trait]
pub trait Diagnose: Send + Sync {
    /// Everything that was looked at, and what is wrong with it.
    ///
    /// # Errors
    /// `Unavailable` when the store cannot be reached. What is wrong with the set-up is no error but
    /// a finding.
    async fn diagnose(&self, needs: &Needs) -> Result<Vec<Finding>, Failure>;
}

/// What the relays of a database are going to do there.
///
/// ```
/// # use semel_core::diagnosis::{Log, Needs};
/// let needs = Needs { pipelines: vec!["orders".into()], ..Needs::default() };
/// assert_eq!(needs.log, Log::WherePossible);
/// ```
#[derive(Clone, Debug)]
pub struct Needs {
    /// Whether they read the log of the server.
    pub log: Log,
    /// The pipelines that do; when none is known, one is assumed.
    pub pipelines: Vec<String>,
    /// Whether writers write messages into the log instead of rows into the outbox.
    pub messages: bool,
    /// How many bytes of log may be kept for one that reads it, if that was said.
    pub log_budget: Option<u64>,
    /// From when on a transaction counts as forgotten.
    pub long: Duration,
}

impl Default for Needs {
    fn default() -> Self {
        let long = Duration::from_secs(5 * 60);
        Self {
            log: Log::WherePossible,
            pipelines: Vec::new(),
            messages: false,
            log_budget: None,
            long,
        }
    }
}

/// Whether relays read the log of the server.
///
/// ```
/// # use semel_core::diagnosis::{Log, Severity};
/// assert_eq!(Log::Required.lack(), Severity::Problem);
/// assert_eq!(Log::WherePossible.lack(), Severity::Advice);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Log {
    /// They poll.
    Unread,
    /// They do where they may, and poll otherwise.
    WherePossible,
    /// They must.
    Required,
}

impl Log {
    /// How bad it is when it cannot be read.
    #[must_use]
    pub const fn lack(self) -> Severity {
        match self {
            Self::Unread => Severity::Good,
            Self::WherePossible => Severity::Advice,
            Self::Required => Severity::Problem,
        }
    }
}

/// How bad something is.
///
/// ```
/// # use semel_core::diagnosis::Severity;
/// assert!(Severity::Good < Severity::Advice && Severity::Advice < Severity::Problem);
/// assert_eq!(Severity::Good.as_str(), "ok");
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Severity {
    /// It was looked at, and is all right.
    #[serde(rename = "ok")]
    Good,
    /// Events are published; it would be better otherwise.
    Advice,
    /// Something has to be done.
    Problem,
}

impl Severity {
    /// As it is shown.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Good => "ok",
            Self::Advice => "advice",
            Self::Problem => "problem",
        }
    }
}

/// One thing that was looked at.
///
/// ```
/// use semel_core::diagnosis::{Finding, Severity};
///
/// let finding = Finding::new(Severity::Advice, "wal-level", "wal_level is replica")
///     .means("events are polled for")
///     .fixed_by("restart the server after this")
///     .with_sql("alter system set wal_level = logical;");
/// assert_eq!(finding.code, "wal-level");
/// assert!(finding.sql.is_some());
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Finding {
    /// What was looked at: a stable name, which the page of the backend explains.
    pub code: &'static str,
    /// How bad it is.
    pub severity: Severity,
    /// What was found.
    pub what: String,
    /// What it means for the user's events; empty when it is all right.
    pub effect: String,
    /// What to do, in words.
    pub fix: Option<String>,
    /// What to run, as it is: whole statements.
    pub sql: Option<String>,
}

impl Finding {
    /// Something that was looked at.
    #[must_use]
    pub fn new(severity: Severity, code: &'static str, what: impl Into<String>) -> Self {
        Self { code, severity, what: what.into(), effect: String::new(), fix: None, sql: None }
    }

    /// Something that is all right.
    #[must_use]
    pub fn good(code: &'static str, what: impl Into<String>) -> Self {
        Self::new(Severity::Good, code, what)
    }

    /// Something that could be better.
    #[must_use]
    pub fn advice(code: &'static str, what: impl Into<String>) -> Self {
        Self::new(Severity::Advice, code, what)
    }

    /// Something that has to be done about.
    #[must_use]
    pub fn problem(code: &'static str, what: impl Into<String>) -> Self {
        Self::new(Severity::Problem, code, what)
    }

    /// What follows for the user's events.
    #[must_use]
    pub fn means(mut self, effect: impl Into<String>) -> Self {
        self.effect = effect.into();
        self
    }

    /// What to do about it.
    #[must_use]
    pub fn fixed_by(mut self, fix: impl Into<String>) -> Self {
        self.fix = Some(fix.into());
        self
    }

    /// What to run about it. Only what can do no harm to others: the rest is said in words.
    #[must_use]
    pub fn with_sql(mut self, sql: impl Into<String>) -> Self {
        self.sql = Some(sql.into());
        self
    }

    /// A failure that says what is wrong with the set-up, as a finding.
    #[must_use]
    pub fn of_failure(severity: Severity, code: &'static str, failure: &Failure) -> Self {
        let fix = failure.fix().map(str::to_owned);
        Self { fix, ..Self::new(severity, code, failure.to_string()) }
    }

    /// Which version of the tables is there, which one this program needs, and what makes them.
    ///
    /// ```
    /// # use semel_core::diagnosis::{Finding, Severity};
    /// let finding = Finding::schema(0, 1, || "create table outbox (id uuid);".into());
    /// assert_eq!(finding.severity, Severity::Problem);
    /// assert!(finding.sql.is_some());
    /// ```
    #[must_use]
    pub fn schema(present: usize, latest: usize, create: impl FnOnce() -> String) -> Self {
        const CODE: &str = "schema";
        if present == latest {
            return Self::good(CODE, format!("the tables have version {present}, the latest"));
        }
        if present > latest {
            let what =
                format!("the tables have version {present}, this semel knows up to {latest}");
            return Self::problem(CODE, what)
                .means("no relay of this version starts; events wait in the outbox")
                .fixed_by("use the semel that migrated this database, or a later one");
        }
        let what = match present {
            0 => "there are no tables of semel".into(),
            _ => format!("the tables have version {present}, this semel needs {latest}"),
        };
        let finding = Self::problem(CODE, what)
            .means("events can be neither written nor published")
            .fixed_by("run `semel migrate up --database URL`");
        if present == 0 { finding.with_sql(create()) } else { finding }
    }
}
