//! What follows from a failure: one pure function of fault, attempt, schedule and time.
//!
//! ```
//! use semel_core::retry::{Decision, Schedule, decide};
//! use semel_core::{Fault, Timestamp};
//!
//! let (schedule, now) = (Schedule::broker().without_jitter(), Timestamp::UNIX_EPOCH);
//! let after = |fault, attempt| decide(fault, attempt, &schedule, now, 0);
//! assert_eq!(after(Fault::Transient, 1), Decision::Retry("1970-01-01T00:00:01Z".parse().unwrap()));
//! assert_eq!(after(Fault::Transient, 5), Decision::Dead);
//! assert_eq!(after(Fault::Refused, 1), Decision::Dead);
//! assert_eq!(after(Fault::Unavailable, 1), Decision::Outage);
//! ```

use std::time::Duration;

use jiff::Timestamp;

use crate::failure::Fault;

/// What to do with an event whose attempt number `attempt` met `fault`.
///
/// `salt` spreads the jitter: give something that differs from event to event, such as its id. The
/// same arguments always give the same answer.
#[must_use]
pub fn decide(
    fault: Fault,
    attempt: u32,
    schedule: &Schedule,
    now: Timestamp,
    salt: u64,
) -> Decision {
    match fault {
        Fault::Unavailable => Decision::Outage,
        Fault::Misconfigured => Decision::Stop,
        Fault::Refused => Decision::Dead,
        Fault::Transient => match schedule.delay_after(attempt, salt) {
            Some(delay) => Decision::Retry(later(now, delay)),
            None => Decision::Dead,
        },
    }
}

/// What follows from a failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Decision {
    /// Offer it again at this time.
    Retry(Timestamp),
    /// It is a dead letter.
    Dead,
    /// Nothing can be sent to anybody: wait and probe; the attempt does not count.
    Outage,
    /// Stop the pipeline and tell the user what to change.
    Stop,
}

impl Decision {
    /// The same, with a retry no earlier than `time`: for a receiver that asks to be left alone. In
    /// an outage it is the next probe that waits, of whoever probes.
    ///
    /// ```
    /// # use semel_core::{Decision, Timestamp};
    /// let (soon, asked) = (Timestamp::UNIX_EPOCH, Timestamp::constant(60, 0));
    /// assert_eq!(Decision::Retry(soon).no_earlier_than(asked), Decision::Retry(asked));
    /// assert_eq!(Decision::Dead.no_earlier_than(asked), Decision::Dead);
    /// ```
    #[must_use]
    pub fn no_earlier_than(self, time: Timestamp) -> Self {
        match self {
            Self::Retry(at) => Self::Retry(at.max(time)),
            other => other,
        }
    }
}

/// When each attempt is made, and so how many there are.
///
/// ```
/// use semel_core::Schedule;
/// use std::time::Duration;
///
/// let twice = Schedule::new(vec![Duration::ZERO, Duration::from_secs(3)]);
/// assert_eq!(twice.attempts(), 2);
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct Schedule {
    waits: Vec<Duration>,
    jitter: f64,
}

impl Schedule {
    const JITTER: f64 = 0.1;

    /// One attempt per entry; each entry is the wait before it. An empty list means one attempt.
    #[must_use]
    pub fn new(mut waits: Vec<Duration>) -> Self {
        if waits.is_empty() {
            waits.push(Duration::ZERO);
        }
        Self { waits, jitter: Self::JITTER }
    }

    /// For brokers: at once, 1 s, 5 s, 30 s, 2 min; five attempts.
    #[must_use]
    pub fn broker() -> Self {
        Self::new([0, 1, 5, 30, 120].map(Duration::from_secs).to_vec())
    }

    /// For other people's endpoints: thirteen attempts that span three days.
    #[must_use]
    pub fn webhook() -> Self {
        const MINUTE: u64 = 60;
        const HOUR: u64 = 60 * MINUTE;
        let seconds = [
            0,
            5,
            30,
            2 * MINUTE,
            10 * MINUTE,
            30 * MINUTE,
            HOUR,
            2 * HOUR,
            4 * HOUR,
            8 * HOUR,
            12 * HOUR,
            20 * HOUR,
            24 * HOUR,
        ];
        Self::new(seconds.map(Duration::from_secs).to_vec())
    }

    /// The same waits, exactly: for tests.
    #[must_use]
    pub fn without_jitter(mut self) -> Self {
        self.jitter = 0.0;
        self
    }

    /// How many attempts there are.
    #[must_use]
    pub fn attempts(&self) -> u32 {
        u32::try_from(self.waits.len()).unwrap_or(u32::MAX)
    }

    /// The wait between attempt `attempt` (counted from 1) and the next; none after the last.
    #[must_use]
    pub fn delay_after(&self, attempt: u32, salt: u64) -> Option<Duration> {
        let wait = *self.waits.get(usize::try_from(attempt).ok()?)?;
        Some(wait.mul_f64(1.0 + self.jitter * spread(salt ^ u64::from(attempt))))
    }
}

impl Default for Schedule {
    fn default() -> Self {
        Self::broker()
    }
}

/// `now + wait`, at the end of time if it does not fit.
pub fn later(now: Timestamp, wait: Duration) -> Timestamp {
    now.checked_add(wait).unwrap_or(Timestamp::MAX)
}

/// A number in -1..1 that looks random and depends on `salt` alone.
fn spread(salt: u64) -> f64 {
    let mixed = xxhash_rust::xxh3::xxh3_64(&salt.to_le_bytes());
    #[expect(clippy::cast_precision_loss, reason = "32 bits fit a double")]
    let unit = (mixed >> 32) as f64 / f64::from(u32::MAX);
    unit * 2.0 - 1.0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_broker_preset_makes_five_attempts() {
        let schedule = Schedule::broker().without_jitter();
        let waits: Vec<_> = (1..=5).map(|n| schedule.delay_after(n, 0)).collect();
        let seconds = |n| Some(Duration::from_secs(n));
        assert_eq!(waits, [seconds(1), seconds(5), seconds(30), seconds(120), None]);
        assert_eq!(schedule.attempts(), 5);
    }

    #[test]
    fn the_webhook_preset_spans_three_days() {
        let schedule = Schedule::webhook().without_jitter();
        let total: Duration =
            (1..schedule.attempts()).filter_map(|n| schedule.delay_after(n, 0)).sum();
        let days = total.as_secs_f64() / 86_400.0;
        assert!((2.9..=3.1).contains(&days), "{days} days");
    }

    #[test]
    fn jitter_stays_within_a_tenth_and_differs() {
        let schedule = Schedule::broker();
        let waits: Vec<f64> = (0..1000)
            .filter_map(|salt| schedule.delay_after(3, salt))
            .map(|d| d.as_secs_f64())
            .collect();
        assert!(waits.iter().all(|wait| (27.0..=33.0).contains(wait)));
        assert!(waits.iter().any(|wait| *wait < 28.0) && waits.iter().any(|wait| *wait > 32.0));
    }

    #[test]
    fn an_outage_never_becomes_a_dead_letter() {
        let schedule = Schedule::broker();
        for attempt in 0..1000 {
            let decision = decide(Fault::Unavailable, attempt, &schedule, Timestamp::UNIX_EPOCH, 9);
            assert_eq!(decision, Decision::Outage);
        }
    }

    #[test]
    fn what_the_receiver_asks_for_only_ever_makes_a_retry_later() {
        let (early, late) = (Timestamp::UNIX_EPOCH, Timestamp::constant(90, 0));
        assert_eq!(Decision::Retry(early).no_earlier_than(late), Decision::Retry(late));
        assert_eq!(Decision::Retry(late).no_earlier_than(early), Decision::Retry(late));
        for other in [Decision::Dead, Decision::Outage, Decision::Stop] {
            assert_eq!(other.no_earlier_than(late), other);
        }
    }

    #[test]
    fn time_does_not_overflow() {
        assert_eq!(later(Timestamp::MAX, Duration::from_secs(1)), Timestamp::MAX);
    }
}
