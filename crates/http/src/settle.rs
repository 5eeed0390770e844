//! Ends a claim: stores the result or releases the key, and keeps trying while the store is down.

use std::time::Duration;

use futures_util::FutureExt;
use semel_core::idempotency::{AfterCrash, Claim, Ending, Record, Rules, Stored, Token};
use semel_core::{Failure, Holding};
use tokio::time::{Instant, sleep};
use tracing::Instrument;

use crate::engine::{Engine, Job};
use crate::lease::Held;
use crate::tally::Outcome;

/// What to do with the claim of an operation that has ended.
#[derive(Clone, Debug)]
pub(crate) enum Settlement {
    Keep(Kept),
    /// Nothing: the next caller runs it.
    Release,
    /// Only that it was tried: the next caller runs it, as the next attempt.
    Abandon,
    /// The operation says that it has stored its result itself, and committed it.
    Recorded,
}

/// What to keep of an operation.
#[derive(Clone, Debug)]
pub(crate) struct Kept {
    ending: Ending,
    pub(crate) record: Record,
    pub(crate) keep: Duration,
}

impl Kept {
    pub(crate) fn new(ending: Ending, payload: Vec<u8>, keep: Duration) -> Self {
        Self { ending, record: Stored::record(ending, payload), keep }
    }
}

impl Settlement {
    pub(crate) fn keep(ending: Ending, payload: Vec<u8>, keep: Duration) -> Self {
        Self::Keep(Kept::new(ending, payload, keep))
    }

    /// What follows when nobody knows whether the operation took effect.
    pub(crate) fn unknown(rules: &Rules) -> Self {
        match rules.after_crash {
            AfterCrash::RunAgain => Self::Abandon,
            AfterCrash::Uncertain => Self::keep(Ending::Uncertain, Vec::new(), rules.keep),
        }
    }

    /// What is counted once it is done.
    pub(crate) fn outcome(&self) -> Outcome {
        match self {
            Self::Keep(Kept { ending: Ending::NotRetained, .. }) => Outcome::NotRetained,
            Self::Keep(Kept { ending: Ending::Uncertain, .. }) | Self::Abandon => Outcome::Unknown,
            Self::Keep(_) | Self::Recorded => Outcome::Executed,
            Self::Release => Outcome::Released,
        }
    }
}

/// What became of a claim.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Fate {
    /// The result is stored, or the key released, as asked.
    Settled,
    /// The operation returned something else than this, which it has committed itself.
    Recorded(Stored),
    /// The operation says that it has committed its result itself, and it has not. The key is free.
    NotCommitted,
    /// The store failed. It is tried again in the background; until then the key stays claimed.
    NotStored,
    /// The lease was lost, and the successor is still running.
    Fenced,
    /// The lease was lost, and this is the successor's result.
    Superseded(Stored),
}

impl Engine {
    /// Ends the claim. If the store fails, the lease is kept and a task tries again.
    pub(crate) async fn settle(&self, job: Job, held: Held, settlement: Settlement) -> Fate {
        let mut token = held.attempt().token();
        match self.try_settle(&job, &held, &mut token, &settlement).await {
            Ok(fate) => fate,
            Err(failure) => {
                tracing::warn!(key = %job.key, code = failure.code(), %failure, "cannot store a result, will try again");
                let later = self.clone().settle_later(job, held, token, settlement);
                tokio::spawn(later.in_current_span());
                Fate::NotStored
            }
        }
    }

    async fn settle_later(self, job: Job, held: Held, mut token: Token, settlement: Settlement) {
        const LONGEST_PAUSE: Duration = Duration::from_secs(5);
        let started = Instant::now();
        let mut pause = Duration::from_millis(100);
        while started.elapsed() < job.rules.keep {
            sleep(pause).await;
            if let Ok(fate) = self.try_settle(&job, &held, &mut token, &settlement).await {
                tracing::info!(key = %job.key, ?fate, "stored a result late");
                return;
            }
            pause = (pause * 2).min(LONGEST_PAUSE);
        }
        tracing::error!(key = %job.key, "gave up storing a result: a retry may run again");
    }

    async fn try_settle(
        &self,
        job: &Job,
        held: &Held,
        token: &mut Token,
        settlement: &Settlement,
    ) -> Result<Fate, Failure> {
        if let Some(written) = held.attempt().written()
            && let Some(stored) = self.committed(job, token).boxed().await?
        {
            return Ok(match settlement {
                _ if stored != written => Fate::Superseded(stored.into()),
                Settlement::Recorded => Fate::Settled,
                _ => Fate::Recorded(stored.into()),
            });
        }
        match settlement {
            // Not ours any more is as good as released.
            Settlement::Release => {
                self.store().release(&job.key, *token).await.map(|_: Holding| Fate::Settled)
            }
            Settlement::Abandon => {
                let ended = self.store().renew(&job.key, *token, Duration::ZERO);
                ended.await.map(|_: Holding| Fate::Settled)
            }
            Settlement::Keep(Kept { record, keep, .. }) => {
                let at_once = self.store().complete_at_once(&job.key, *token, record, *keep);
                let completed = match at_once {
                    Some(completed) => completed,
                    None => self.store().complete(&job.key, *token, record.clone(), *keep).await,
                };
                match completed? {
                    Holding::Held => Ok(Fate::Settled),
                    // Boxed: it is rare, and would make every task larger.
                    Holding::Lost => self.complete_anew(job, token, record, *keep).boxed().await,
                }
            }
            Settlement::Recorded => {
                self.store().release(&job.key, *token).await.map(|_: Holding| Fate::NotCommitted)
            }
        }
    }

    /// The result that is stored, after the operation has tried to store one in a transaction. None
    /// if that was not committed: the claim is then as it was, or anew.
    ///
    /// A transaction may still be open although the operation has given it up. Databases hold a
    /// renewal back until it has ended, and only then is the answer final.
    async fn committed(&self, job: &Job, token: &mut Token) -> Result<Option<Record>, Failure> {
        let ask = || self.store().claim(&job.key, &job.fingerprint, job.rules.lease);
        let mut claim = ask().await?;
        if matches!(claim, Claim::InFlight { .. }) {
            let renewed = self.store().renew(&job.key, *token, job.rules.lease).await?;
            if renewed == Holding::Held {
                return Ok(None);
            }
            claim = ask().await?;
        }
        match claim {
            Claim::Done(stored) => Ok(Some(stored)),
            Claim::Fresh { token: new, .. } => {
                *token = new;
                Ok(None)
            }
            Claim::InFlight { .. } | Claim::Mismatch => Ok(None),
        }
    }

    /// The token was refused. If nobody else took the key, the result can still be stored under a
    /// new claim, and must be: the operation did run.
    async fn complete_anew(
        &self,
        job: &Job,
        token: &mut Token,
        record: &Record,
        keep: Duration,
    ) -> Result<Fate, Failure> {
        match self.store().claim(&job.key, &job.fingerprint, job.rules.lease).await? {
            Claim::Fresh { token: new, .. } => {
                *token = new;
                match self.store().complete(&job.key, new, record.clone(), keep).await? {
                    Holding::Held => Ok(Fate::Settled),
                    Holding::Lost => Ok(Fate::Fenced),
                }
            }
            // Ours: it was stored by a call whose answer was lost.
            Claim::Done(stored) if stored == *record => Ok(Fate::Settled),
            Claim::Done(stored) => Ok(Fate::Superseded(Stored::from(stored))),
            Claim::InFlight { .. } | Claim::Mismatch => Ok(Fate::Fenced),
        }
    }
}
