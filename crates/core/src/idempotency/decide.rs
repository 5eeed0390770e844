//! What follows from a claim: one pure function of the claim, the time waited, and the rules.

use std::time::Duration;

use bytes::Bytes;

use super::{Claim, Ending, Stored, Token};

/// What a runner does next.
///
/// `waited` is how long it has waited already for another runner to finish.
///
/// ```
/// use semel_core::idempotency::{Claim, Refusal, Rules, Step, Token, decide};
/// use std::time::Duration;
///
/// let rules = Rules::default();
/// let fresh = Claim::Fresh { token: Token(7), attempt: 1 };
/// assert_eq!(decide(fresh, Duration::ZERO, &rules), Step::Run { token: Token(7), attempt: 1 });
///
/// let busy = Claim::InFlight { remaining: Duration::from_secs(20) };
/// assert!(matches!(decide(busy.clone(), Duration::ZERO, &rules), Step::Wait(_)));
/// assert_eq!(decide(busy, rules.wait, &rules), Step::Refuse(Refusal::InProgress));
/// ```
#[must_use]
pub fn decide(claim: Claim, waited: Duration, rules: &Rules) -> Step {
    match claim {
        Claim::Fresh { token, attempt }
            if attempt > 1 && rules.after_crash == AfterCrash::Uncertain =>
        {
            Step::Condemn { token }
        }
        Claim::Fresh { token, attempt } => Step::Run { token, attempt },
        Claim::InFlight { .. } if waited >= rules.wait => Step::Refuse(Refusal::InProgress),
        Claim::InFlight { remaining } => Step::Wait(pause(waited, remaining, rules.wait)),
        Claim::Mismatch => Step::Refuse(Refusal::Mismatch),
        Claim::Done(record) => {
            let stored = Stored::from(record);
            match stored.ending {
                Ending::Succeeded | Ending::Failed => Step::Replay(stored),
                Ending::NotRetained => Step::Refuse(Refusal::NotRetained(stored.payload)),
                Ending::Uncertain => Step::Refuse(Refusal::Uncertain),
            }
        }
    }
}

/// How long until the store is asked again: half of what was waited so far, so that a short
/// operation is noticed at once and a long one costs few questions; but not past the end of the
/// wait or of the lease.
fn pause(waited: Duration, remaining: Duration, limit: Duration) -> Duration {
    const SHORTEST: Duration = Duration::from_millis(5);
    const LONGEST: Duration = Duration::from_millis(250);
    let pause = (waited / 2).clamp(SHORTEST, LONGEST);
    pause.min(limit.saturating_sub(waited)).min(remaining.max(SHORTEST))
}

/// How long things last, and what a crash means.
///
/// ```
/// # use semel_core::idempotency::{AfterCrash, Rules};
/// let payments = Rules { after_crash: AfterCrash::Uncertain, ..Rules::default() };
/// assert_eq!(payments.lease.as_secs(), 30);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rules {
    /// How long a claim lasts unless it is renewed. A crashed runner blocks its key for as long.
    pub lease: Duration,
    /// How long a result is kept.
    pub keep: Duration,
    /// How long a second caller waits for the first to finish; zero refuses it at once.
    pub wait: Duration,
    /// What follows when a runner died or panicked half-way.
    pub after_crash: AfterCrash,
}

impl Default for Rules {
    /// A lease of 30 s, results for 24 h, a wait of 1 s, run again after a crash.
    fn default() -> Self {
        Self {
            lease: Duration::from_secs(30),
            keep: Duration::from_secs(24 * 60 * 60),
            wait: Duration::from_secs(1),
            after_crash: AfterCrash::RunAgain,
        }
    }
}

/// What follows when a runner died or panicked half-way: nobody knows what it had done.
///
/// ```
/// # use semel_core::idempotency::AfterCrash;
/// assert_eq!(AfterCrash::default(), AfterCrash::RunAgain);
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum AfterCrash {
    /// The next caller runs it again and sees a higher attempt number, or, after a panic, starts
    /// afresh.
    #[default]
    RunAgain,
    /// Nobody runs it again: every caller is told that the outcome is unknown, until the key is
    /// released by hand or expires.
    Uncertain,
}

/// What a runner does next.
///
/// ```
/// # use semel_core::idempotency::{Refusal, Step};
/// assert_ne!(Step::Refuse(Refusal::Mismatch), Step::Refuse(Refusal::InProgress));
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// Run the operation as the owner of this claim.
    Run {
        /// Proof of the claim.
        token: Token,
        /// Which attempt it is.
        attempt: u32,
    },
    /// The owner before vanished and nobody may take its place: complete the claim as
    /// [`Ending::Uncertain`], and refuse.
    Condemn {
        /// Proof of the claim.
        token: Token,
    },
    /// Answer with what is stored, a success or a failure.
    Replay(Stored),
    /// Claim again after this long.
    Wait(Duration),
    /// Say no.
    Refuse(Refusal),
}

/// Why an operation is neither run nor replayed.
///
/// ```
/// # use semel_core::idempotency::Refusal;
/// assert!(Refusal::Mismatch.to_string().contains("another request"));
/// ```
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// Somebody else is running it.
    #[error("the operation is still running")]
    InProgress,
    /// The key belongs to another request.
    #[error("the key was used for another request")]
    Mismatch,
    /// It ran, but its result is not there to be repeated; the runner's own note on it.
    #[error("the operation ran, but its result was not retained")]
    NotRetained(Bytes),
    /// Whether it took effect is unknown.
    #[error("whether the operation took effect is unknown")]
    Uncertain,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::idempotency::Record;

    const SECOND: Duration = Duration::from_secs(1);

    fn after(claim: Claim, rules: &Rules) -> Step {
        decide(claim, Duration::ZERO, rules)
    }

    #[test]
    fn an_abandoned_claim_is_run_again_or_condemned_as_the_rules_say() {
        let rules = Rules::default();
        let careful = Rules { after_crash: AfterCrash::Uncertain, ..rules };
        let (token, first, second) = (
            Token(3),
            Claim::Fresh { token: Token(3), attempt: 1 },
            Claim::Fresh { token: Token(3), attempt: 2 },
        );
        assert_eq!(after(second.clone(), &rules), Step::Run { token, attempt: 2 });
        assert_eq!(after(first, &careful), Step::Run { token, attempt: 1 });
        assert_eq!(after(second, &careful), Step::Condemn { token });
    }

    #[test]
    fn only_successes_and_failures_are_replayed() {
        let done = |ending| Claim::Done(Stored::record(ending, b"note".to_vec()));
        let rules = Rules::default();
        let stored = |ending| Stored { ending, payload: Bytes::from_static(b"note") };
        let cases = [
            (Ending::Succeeded, Step::Replay(stored(Ending::Succeeded))),
            (Ending::Failed, Step::Replay(stored(Ending::Failed))),
            (Ending::NotRetained, Step::Refuse(Refusal::NotRetained("note".into()))),
            (Ending::Uncertain, Step::Refuse(Refusal::Uncertain)),
        ];
        for (ending, expected) in cases {
            assert_eq!(after(done(ending), &rules), expected);
        }
        let unreadable = Claim::Done(Record { version: 9, body: "\u{1}".into() });
        assert_eq!(after(unreadable, &rules), Step::Refuse(Refusal::NotRetained(Bytes::new())));
    }

    #[test]
    fn a_wait_of_zero_refuses_at_once() {
        let rules = Rules { wait: Duration::ZERO, ..Rules::default() };
        let busy = Claim::InFlight { remaining: SECOND };
        assert_eq!(after(busy, &rules), Step::Refuse(Refusal::InProgress));
    }

    #[test]
    fn waiting_ends_with_the_limit_and_asks_few_questions() {
        let rules = Rules::default();
        let (mut waited, mut questions) = (Duration::ZERO, 0);
        loop {
            let busy = Claim::InFlight { remaining: 20 * SECOND };
            match decide(busy, waited, &rules) {
                Step::Wait(pause) => waited += pause,
                step => break assert_eq!(step, Step::Refuse(Refusal::InProgress)),
            }
            questions += 1;
        }
        assert_eq!(waited, rules.wait);
        assert!((8..=20).contains(&questions), "{questions} questions");
    }

    #[test]
    fn the_end_of_a_lease_is_not_slept_through() {
        let rules = Rules { wait: 60 * SECOND, ..Rules::default() };
        let dying = Claim::InFlight { remaining: Duration::from_millis(40) };
        let Step::Wait(pause) = decide(dying, 10 * SECOND, &rules) else { panic!() };
        assert_eq!(pause, Duration::from_millis(40));
    }
}
