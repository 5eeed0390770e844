//! How a handler says that it did not take effect: [`HandlerError`].

use std::error::Error;
use std::fmt;
use std::time::Duration;

use crate::failure::Failure;
use crate::outbox::AppendError;

/// Why a handler did not take effect, and so what follows.
///
/// Any error becomes one by `?`. A [`Failure`] keeps its fault; of other errors the inbox knows
/// those of its own database, so that an outage costs no attempt, and whatever nobody knows is
/// tried again by the schedule.
///
/// ```
/// use semel_core::handling::HandlerError;
///
/// fn charge(cents: i64, limit: &str) -> Result<(), HandlerError> {
///     let limit: i64 = limit.parse()?; // tried again, and a dead letter in the end
///     if cents < 0 {
///         return Err(HandlerError::reject("a negative amount")); // a dead letter at once
///     }
///     if cents > limit {
///         return Err(HandlerError::retry("above the limit of the day"));
///     }
///     Ok(())
/// }
/// assert!(matches!(charge(1, "10"), Ok(())));
/// assert_eq!(charge(-1, "10").unwrap_err().to_string(), "a negative amount");
/// assert!(matches!(charge(1, "ten"), Err(HandlerError::Other(_))));
/// ```
#[derive(Debug)]
#[non_exhaustive]
pub enum HandlerError {
    /// The effect is there already, by other means than the memory of the inbox: a version that is
    /// as new, a row with the same unique id. Whatever the handler did this time is undone, and the
    /// message counts as taken effect for.
    AlreadyApplied,
    /// The fault says what follows.
    Failed(Failure),
    /// An error of something else.
    Other(Box<dyn Error + Send + Sync>),
}

impl HandlerError {
    /// Try again by the schedule; a dead letter once the attempts are spent.
    pub fn retry(why: impl Into<String>) -> Self {
        Self::Failed(Failure::transient("E-HANDLER", why))
    }

    /// Try again, no earlier than in this time.
    pub fn retry_after(wait: Duration, why: impl Into<String>) -> Self {
        Self::Failed(Failure::transient("E-HANDLER", why).with_retry_after(wait))
    }

    /// A dead letter at once: no later attempt can succeed.
    pub fn reject(why: impl Into<String>) -> Self {
        Self::Failed(Failure::refused("E-HANDLER-REJECTED", why))
    }

    /// [`AlreadyApplied`](Self::AlreadyApplied) if a statement that would have changed something
    /// did not: `insert … on conflict do nothing`, `update … where version < …`.
    ///
    /// `INSERT IGNORE` of MySQL is no such statement: it ignores a foreign key that is violated too,
    /// and the message would be acknowledged without its effect. There a plain INSERT fails, and
    /// `or_already_applied` of the backends names the key that says so.
    ///
    /// # Errors
    /// When no row was changed.
    ///
    /// ```
    /// # use semel_core::handling::HandlerError;
    /// assert!(HandlerError::unless_changed(1).is_ok());
    /// assert!(matches!(HandlerError::unless_changed(0), Err(HandlerError::AlreadyApplied)));
    /// ```
    pub fn unless_changed(rows: u64) -> Result<(), Self> {
        if rows == 0 { Err(Self::AlreadyApplied) } else { Ok(()) }
    }
}

impl<E: Error + Send + Sync + 'static> From<E> for HandlerError {
    fn from(error: E) -> Self {
        let error: Box<dyn Error + Send + Sync> = Box::new(error);
        let error = match error.downcast::<Failure>() {
            Ok(failure) => return Self::Failed(*failure),
            Err(error) => error,
        };
        match error.downcast::<AppendError>().map(|error| *error) {
            Ok(AppendError::Invalid(failure) | AppendError::Store(failure)) => {
                Self::Failed(failure)
            }
            Ok(duplicate) => Self::Other(Box::new(duplicate)),
            Err(error) => Self::Other(error),
        }
    }
}

impl fmt::Display for HandlerError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::AlreadyApplied => f.write_str("the effect is there already"),
            Self::Failed(failure) => failure.fmt(f),
            Self::Other(error) => error.fmt(f),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::failure::Fault;

    #[test]
    fn a_failure_keeps_its_fault() {
        let down = Failure::unavailable("E-DOWN", "no answer");
        let cases = [HandlerError::from(down.clone()), AppendError::Store(down).into()];
        for error in cases {
            let HandlerError::Failed(failure) = error else { panic!("{error:?}") };
            assert_eq!(failure.fault(), Fault::Unavailable);
        }
        let again = AppendError::Duplicate { key: None, transaction_usable: true };
        assert!(matches!(HandlerError::from(again), HandlerError::Other(_)));
    }
}
