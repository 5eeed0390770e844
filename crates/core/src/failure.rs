//! What went wrong: a [`Failure`], and the one word the engine asks of it, its [`Fault`].
//!
//! Every contract reports errors as a `Failure`. Backends only classify; what follows from the
//! fault is decided in one place, [`crate::retry`].
//!
//! ```
//! use semel_core::{Failure, Fault};
//!
//! let failure = Failure::misconfigured("E-TOPIC-MISSING", "topic \"orders\" does not exist")
//!     .with_fix("create it, or set auto_create = true");
//! assert_eq!(failure.fault(), Fault::Misconfigured);
//! assert_eq!(failure.code(), "E-TOPIC-MISSING");
//! ```

use std::error::Error;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

/// What kind of trouble a failure is, and so what follows from it.
///
/// ```
/// # use semel_core::Fault;
/// assert!(Fault::Transient.burns_an_attempt());
/// assert!(!Fault::Unavailable.burns_an_attempt());
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Fault {
    /// The whole database or broker cannot be reached: back off, probe, count no attempt.
    Unavailable,
    /// This event, for good: no later attempt can succeed.
    Refused,
    /// This event, this time: try again by the schedule.
    Transient,
    /// The set-up is wrong: stop the pipeline and say what to change.
    Misconfigured,
}

impl Fault {
    /// Whether an event that met this fault has used up one of its attempts.
    #[must_use]
    pub const fn burns_an_attempt(self) -> bool {
        matches!(self, Self::Refused | Self::Transient)
    }

    /// The fault as a metric label.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Unavailable => "unavailable",
            Self::Refused => "refused",
            Self::Transient => "transient",
            Self::Misconfigured => "misconfigured",
        }
    }
}

/// An error of any contract: what happened, its [`Fault`], a stable code, and what to do about it.
#[derive(Clone)]
pub struct Failure(Box<Details>);

#[derive(Clone)]
struct Details {
    fault: Fault,
    code: &'static str,
    what: String,
    fix: Option<String>,
    retry_after: Option<Duration>,
    source: Option<Arc<dyn Error + Send + Sync>>,
}

impl Failure {
    /// A failure of the given kind. `code` is stable and can be looked up in the documentation.
    #[must_use]
    pub fn new(fault: Fault, code: &'static str, what: impl Into<String>) -> Self {
        let what = what.into();
        Self(Box::new(Details { fault, code, what, fix: None, retry_after: None, source: None }))
    }

    /// The whole database or broker cannot be reached.
    #[must_use]
    pub fn unavailable(code: &'static str, what: impl Into<String>) -> Self {
        Self::new(Fault::Unavailable, code, what)
    }

    /// This event is refused for good.
    #[must_use]
    pub fn refused(code: &'static str, what: impl Into<String>) -> Self {
        Self::new(Fault::Refused, code, what)
    }

    /// This event failed this time.
    #[must_use]
    pub fn transient(code: &'static str, what: impl Into<String>) -> Self {
        Self::new(Fault::Transient, code, what)
    }

    /// The set-up is wrong.
    #[must_use]
    pub fn misconfigured(code: &'static str, what: impl Into<String>) -> Self {
        Self::new(Fault::Misconfigured, code, what)
    }

    /// Adds what the user can run or change.
    #[must_use]
    pub fn with_fix(mut self, fix: impl Into<String>) -> Self {
        self.0.fix = Some(fix.into());
        self
    }

    /// Says where it happened, in front of what happened.
    ///
    /// ```
    /// # use semel_core::Failure;
    /// let failure = Failure::unavailable("E-DOWN", "no answer").at("sink audit");
    /// assert_eq!(failure.to_string(), "sink audit: no answer");
    /// ```
    #[must_use]
    pub fn at(mut self, place: &str) -> Self {
        self.0.what = format!("{place}: {}", self.0.what);
        self
    }

    /// Adds how long the other side asks to be left alone: the next attempt is made no earlier,
    /// whatever the schedule says. In an outage nothing is sent, and no probe made, for so long; after
    /// a minute a relay probes all the same.
    #[must_use]
    pub fn with_retry_after(mut self, wait: Duration) -> Self {
        self.0.retry_after = Some(wait);
        self
    }

    /// Adds the error this failure was made from.
    #[must_use]
    pub fn with_source(mut self, source: impl Error + Send + Sync + 'static) -> Self {
        self.0.source = Some(Arc::new(source));
        self
    }

    /// What kind of trouble it is.
    #[must_use]
    pub fn fault(&self) -> Fault {
        self.0.fault
    }

    /// The stable code.
    #[must_use]
    pub fn code(&self) -> &'static str {
        self.0.code
    }

    /// What to run or change, if known.
    #[must_use]
    pub fn fix(&self) -> Option<&str> {
        self.0.fix.as_deref()
    }

    /// How long the other side asks to be left alone, if it said so.
    #[must_use]
    pub fn retry_after(&self) -> Option<Duration> {
        self.0.retry_after
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut text = self.0.what.clone();
        let mut cause = self.source();
        while let Some(error) = cause {
            let why = error.to_string();
            // Many libraries repeat their cause in their own words.
            if !text.contains(&why) {
                text = format!("{text}: {why}");
            }
            cause = error.source();
        }
        f.write_str(&text)
    }
}

impl fmt::Debug for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} [{:?}] {self}", self.0.code, self.0.fault)
    }
}

impl Error for Failure {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        self.0.source.as_ref().map(|source| source.as_ref() as &(dyn Error + 'static))
    }
}

impl PartialEq for Failure {
    /// Two failures are equal when a user would read the same.
    fn eq(&self, other: &Self) -> bool {
        self.0.fault == other.0.fault
            && self.0.code == other.0.code
            && self.to_string() == other.to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_whole_chain_of_causes_is_shown() {
        let failure = Failure::unavailable("E-DB-DOWN", "cannot reach the database")
            .with_source(std::io::Error::other("connection refused"));
        assert_eq!(failure.to_string(), "cannot reach the database: connection refused");
    }

    #[test]
    fn a_cause_is_shown_once() {
        #[derive(Debug, thiserror::Error)]
        #[error("database: {0}")]
        struct Repeats(#[source] std::io::Error);

        let repeats = Repeats(std::io::Error::other("disk full"));
        let failure = Failure::unavailable("E-DB-DOWN", "cannot write").with_source(repeats);
        assert_eq!(failure.to_string(), "cannot write: database: disk full");
    }

    #[test]
    fn a_result_that_carries_a_failure_stays_one_word() {
        assert_eq!(size_of::<Result<(), Failure>>(), size_of::<usize>());
    }
}
