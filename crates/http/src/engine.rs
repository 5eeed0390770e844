//! Claims a key, runs the operation in a task of its own that owns the claim, and settles it.
//!
//! Whoever asked may go away at any point. Before the operation starts, the claim is given back;
//! once it has started, it is finished and its result stored, whether or not anybody waits for it.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::{BoxFuture, ready};
use semel_core::Failure;
use semel_core::idempotency::{
    AfterCrash, Claim, Ending, Fingerprint, IdempotencyStore, Refusal, Rules, ScopedKey, Step,
    Stored, Token, decide,
};
use tokio::runtime::Handle;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep};
use tracing::Instrument;

use crate::attempt::Attempt;
use crate::lease::{Held, Leases};
use crate::settle::{Fate, Settlement};
use crate::tally::{Outcome, Running, Tally};

/// Runs operations once per key, on one store.
#[derive(Clone, Debug)]
pub(crate) struct Engine {
    pub(crate) leases: Arc<Leases>,
}

/// One request to run an operation.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Job {
    pub(crate) key: ScopedKey,
    pub(crate) fingerprint: Fingerprint,
    pub(crate) rules: Rules,
}

/// What a request may do.
pub(crate) enum Admission {
    /// Run the operation.
    Owner(Claimed),
    /// Answer with this, a success or a failure.
    Replay(Stored),
    Refused(Refusal),
    /// The store failed: nothing is known.
    Unavailable(Failure),
}

/// How a started operation ended.
pub(crate) enum Ended<R> {
    /// It returned this, and this became of its claim.
    Returned(R, Fate),
    Panicked,
    /// The runtime is being shut down.
    Interrupted,
}

impl Engine {
    pub(crate) fn new(store: Arc<dyn IdempotencyStore>) -> Self {
        Self { leases: Leases::new(store) }
    }

    pub(crate) fn store(&self) -> &dyn IdempotencyStore {
        &*self.leases.store
    }

    /// Claims the key, waiting for another runner as long as the rules say.
    ///
    /// The store is asked again and again rather than notified: the other runner may be anywhere.
    pub(crate) async fn admit(&self, job: &Job) -> Admission {
        let mut waiting_since = None;
        loop {
            let at_once = self.store().claim_at_once(&job.key, &job.fingerprint, job.rules.lease);
            let claim = match at_once {
                Some(claim) => claim,
                None => Claiming::new(Arc::clone(&self.leases), *job).await,
            };
            let claim = match claim {
                Ok(claim) => claim,
                Err(failure) => return Admission::Unavailable(failure),
            };
            // Most need not wait, and then nobody needs to know the time.
            let waited = match claim {
                Claim::InFlight { .. } => waiting_since.get_or_insert_with(Instant::now).elapsed(),
                _ => Duration::ZERO,
            };
            match decide(claim, waited, &job.rules) {
                Step::Run { token, attempt } => {
                    return Admission::Owner(Claimed::new(self.clone(), *job, token, attempt));
                }
                Step::Replay(stored) => {
                    tracing::info!(key = %job.key, "replaying a stored result");
                    return Admission::Replay(stored);
                }
                Step::Refuse(refusal) => return Admission::Refused(refusal),
                Step::Condemn { token } => return self.condemn(*job, token).boxed().await,
                Step::Wait(pause) => Box::pin(sleep(pause)).await,
            }
        }
    }

    /// Records that an owner vanished half-way and that nobody may take its place.
    async fn condemn(&self, job: Job, token: Token) -> Admission {
        tracing::warn!(key = %job.key, "an operation was abandoned half-way: outcome unknown");
        let record = Stored::record(Ending::Uncertain, Vec::new());
        match self.store().complete(&job.key, token, record, job.rules.keep).await {
            Ok(_) => Admission::Refused(Refusal::Uncertain),
            Err(failure) => Admission::Unavailable(failure),
        }
    }
}

/// A claim that is being made. Dropped before its answer is known, it is given back once it is.
struct Claiming {
    leases: Arc<Leases>,
    key: ScopedKey,
    claim: Option<BoxFuture<'static, Result<Claim, Failure>>>,
}

impl Claiming {
    fn new(leases: Arc<Leases>, job: Job) -> Self {
        let store = Arc::clone(&leases.store);
        let claim =
            async move { store.claim(&job.key, &job.fingerprint, job.rules.lease).await }.boxed();
        Self { leases, key: job.key, claim: Some(claim) }
    }
}

impl Future for Claiming {
    type Output = Result<Claim, Failure>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let Some(claim) = self.claim.as_mut() else { return Poll::Pending };
        let answer = std::task::ready!(claim.as_mut().poll(context));
        self.claim = None;
        Poll::Ready(answer)
    }
}

impl Drop for Claiming {
    fn drop(&mut self) {
        let Some(claim) = self.claim.take() else { return };
        // Without a runtime there is nobody to do it, and the lease ends by itself.
        let Ok(runtime) = Handle::try_current() else { return };
        let (leases, key) = (Arc::clone(&self.leases), self.key);
        runtime.spawn(async move {
            if let Ok(Claim::Fresh { token, attempt }) = claim.await {
                leases.give_back(&Attempt::new(key, token, attempt)).await;
            }
        });
    }
}

/// A claim whose operation has not started.
pub(crate) struct Claimed {
    engine: Engine,
    job: Job,
    held: Held,
}

impl Claimed {
    fn new(engine: Engine, job: Job, token: Token, number: u32) -> Self {
        let attempt = Attempt::new(job.key, token, number);
        let held = engine.leases.hold(attempt, job.rules.lease);
        Self { engine, job, held }
    }

    /// Starts the operation. It says what it returned, and what to keep of it.
    ///
    /// One that is done at once needs no task: whoever asked cannot go away in between.
    pub(crate) fn start<R, F, O>(self, tally: Tally, operation: F) -> Started<R>
    where
        R: Send + 'static,
        F: FnOnce(Attempt) -> O,
        O: Future<Output = (R, Settlement)> + Send + 'static,
    {
        let (running, attempt) = (Running::new(), self.held.attempt().clone());
        // The operation's own state is not looked at again after a panic.
        let begun = match catch_unwind(AssertUnwindSafe(|| operation(attempt))) {
            Ok(begun) => AssertUnwindSafe(begun).catch_unwind().left_future(),
            Err(panic) => ready(Err(panic)).right_future(),
        };
        let run = begun.then(move |ended| end(self, tally, running, ended));
        let mut run = Box::pin(run.in_current_span());
        // Nobody needs to be woken: a task polls it again as its first act.
        match run.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(ended) => Started::Ended(ended),
            Poll::Pending => Started::Running(tokio::spawn(run)),
        }
    }
}

/// An operation that has ended already, or runs in a task of its own. Dropping this does not stop it.
pub(crate) enum Started<R> {
    Ended(Ended<R>),
    Running(JoinHandle<Ended<R>>),
}

impl<R> Started<R> {
    pub(crate) async fn end(self) -> Ended<R> {
        match self {
            Self::Ended(ended) => ended,
            Self::Running(task) => task.await.unwrap_or(Ended::Interrupted),
        }
    }
}

/// Settles the claim of an operation that returned or panicked.
async fn end<R>(
    claimed: Claimed,
    tally: Tally,
    _running: Running,
    ended: std::thread::Result<(R, Settlement)>,
) -> Ended<R> {
    let Claimed { engine, job, held } = claimed;
    let (result, settlement) = match ended {
        Ok((result, settlement)) => (Some(result), settlement),
        Err(_) => {
            tracing::error!(key = %job.key, "an operation panicked");
            (None, after_panic(&job.rules))
        }
    };
    let when_settled = settlement.outcome();
    let fate = engine.settle(job, held, settlement).await;
    match result {
        Some(result) => {
            tally.is(outcome(when_settled, &fate));
            Ended::Returned(result, fate)
        }
        None => {
            tally.is(Outcome::Panicked);
            Ended::Panicked
        }
    }
}

fn after_panic(rules: &Rules) -> Settlement {
    match rules.after_crash {
        AfterCrash::RunAgain => Settlement::Release,
        AfterCrash::Uncertain => Settlement::keep(Ending::Uncertain, Vec::new(), rules.keep),
    }
}

fn outcome(when_settled: Outcome, fate: &Fate) -> Outcome {
    match fate {
        Fate::Settled => when_settled,
        Fate::Recorded(_) => Outcome::Executed,
        Fate::NotCommitted => Outcome::Released,
        Fate::NotStored => Outcome::NotStored,
        Fate::Fenced | Fate::Superseded(_) => Outcome::Fenced,
    }
}
