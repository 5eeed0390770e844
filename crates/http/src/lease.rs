//! Keeps the leases of running operations alive, from a task of its own, so that an operation that
//! never yields does not lose its claim.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use semel_core::idempotency::IdempotencyStore;
use semel_core::{Failure, Holding};
use tokio::sync::Notify;
use tokio::time::{Instant, sleep, timeout};

use crate::attempt::Attempt;

/// A lease is renewed when this part of it has passed.
const RENEW_AFTER: u32 = 3;

/// The leases this process holds, and the store that granted them.
pub(crate) struct Leases {
    pub(crate) store: Arc<dyn IdempotencyStore>,
    book: Mutex<Book>,
    /// A lease shorter than all before it came in: the supervisor must look more often.
    shorter: Notify,
    emptied: Notify,
}

#[derive(Default)]
struct Book {
    /// In the order they came in.
    entries: BTreeMap<u64, Entry>,
    /// Whether somebody waits until there is none.
    is_awaited: bool,
    last_id: u64,
    shortest: Option<Duration>,
    supervisor: Option<u64>,
}

struct Entry {
    attempt: Attempt,
    lease: Duration,
    renewed: Instant,
    renewing: bool,
}

/// A lease that is renewed until this is dropped.
///
/// Dropping it does not release the key: what a half-run operation did is unknown, and that is for
/// the rules to judge when the lease ends.
pub(crate) struct Held {
    leases: Arc<Leases>,
    id: u64,
    attempt: Attempt,
}

impl Leases {
    pub(crate) fn new(store: Arc<dyn IdempotencyStore>) -> Arc<Self> {
        let (shorter, emptied) = (Notify::new(), Notify::new());
        Arc::new(Self { store, book: Mutex::default(), shorter, emptied })
    }

    /// Renews the lease of `attempt` from now on.
    pub(crate) fn hold(self: &Arc<Self>, attempt: Attempt, lease: Duration) -> Held {
        let mut book = self.book();
        book.last_id += 1;
        let id = book.last_id;
        let entry =
            Entry { attempt: attempt.clone(), lease, renewed: Instant::now(), renewing: false };
        book.entries.insert(id, entry);
        if book.shortest.is_none_or(|shortest| lease < shortest) {
            book.shortest = Some(lease);
            self.shorter.notify_one();
        }
        let unsupervised = book.supervisor.is_none();
        if unsupervised {
            book.supervisor = Some(id);
        }
        drop(book);
        if unsupervised {
            tokio::spawn(supervise(Supervision { leases: Arc::clone(self), id }));
        }
        Held { leases: Arc::clone(self), id, attempt }
    }

    /// Frees a claim whose operation never started. A claim taken over from a crashed owner stays
    /// as it is until its lease ends: freeing it would forget that the operation was tried.
    pub(crate) async fn give_back(&self, attempt: &Attempt) {
        if attempt.number() == 1
            && let Err(failure) = self.store.release(attempt.key(), attempt.token()).await
        {
            let key = attempt.key();
            tracing::warn!(%key, code = failure.code(), %failure, "cannot give back a claim, its lease will end");
        }
    }

    /// Resolves when no lease is held.
    pub(crate) async fn emptied(&self) {
        loop {
            let mut emptied = std::pin::pin!(self.emptied.notified());
            emptied.as_mut().enable();
            {
                let mut book = self.book();
                if book.entries.is_empty() {
                    return;
                }
                book.is_awaited = true;
            }
            emptied.await;
        }
    }

    fn book(&self) -> MutexGuard<'_, Book> {
        self.book.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// That a supervisor is at work, until it is dropped: at its end, or with its runtime.
struct Supervision {
    leases: Arc<Leases>,
    id: u64,
}

/// Renews what is due, and ends when a round found nothing to watch.
async fn supervise(supervision: Supervision) {
    let leases = &supervision.leases;
    while let Some(pause) = pause(leases) {
        tokio::select! {
            () = sleep(pause) => {}
            () = leases.shorter.notified() => continue,
        }
        for (id, attempt, lease) in due(leases) {
            tokio::spawn(renew(Arc::clone(leases), id, attempt, lease));
        }
        if retire(leases) {
            return;
        }
    }
}

fn pause(leases: &Leases) -> Option<Duration> {
    leases.book().shortest.map(|shortest| shortest / (2 * RENEW_AFTER))
}

fn due(leases: &Leases) -> Vec<(u64, Attempt, Duration)> {
    let now = Instant::now();
    let mut book = leases.book();
    let due = book.entries.iter_mut().filter(|(_, entry)| {
        !entry.renewing && now.duration_since(entry.renewed) >= entry.lease / RENEW_AFTER
    });
    due.map(|(id, entry)| {
        entry.renewing = true;
        (*id, entry.attempt.clone(), entry.lease)
    })
    .collect()
}

/// Ends the supervision if there is nothing to watch. One step, so that a lease that comes in at
/// this moment sees either a supervisor that stays or none.
fn retire(leases: &Leases) -> bool {
    let mut book = leases.book();
    let idle = book.entries.is_empty();
    if idle {
        book.shortest = None;
        book.supervisor = None;
    }
    idle
}

impl Drop for Supervision {
    fn drop(&mut self) {
        let mut book = self.leases.book();
        // A successor may be at work already.
        if book.supervisor == Some(self.id) {
            book.supervisor = None;
        }
    }
}

async fn renew(leases: Arc<Leases>, id: u64, attempt: Attempt, lease: Duration) {
    let asked = Instant::now();
    let renewal = leases.store.renew(attempt.key(), attempt.token(), lease);
    let answer = timeout(lease / RENEW_AFTER, renewal).await.unwrap_or_else(|_| Err(slow()));
    let mut book = leases.book();
    let Some(entry) = book.entries.get_mut(&id) else { return };
    entry.renewing = false;
    match answer {
        // Counted from the question: the store may have answered late.
        Ok(Holding::Held) => entry.renewed = asked,
        // Done, if the transaction it was written in is committed; whoever settles it will know.
        Ok(Holding::Lost) if attempt.written().is_some() => entry.renewing = true,
        Ok(Holding::Lost) => {
            attempt.mark_lost();
            // Never again: the successor's lease is not ours to renew.
            entry.renewing = true;
            tracing::warn!(key = %attempt.key(), "lost the lease of a running operation");
        }
        Err(failure) => {
            tracing::warn!(key = %attempt.key(), code = failure.code(), %failure, "cannot renew a lease, will try again");
        }
    }
}

fn slow() -> Failure {
    Failure::unavailable("E-KEY-RENEW-SLOW", "the store did not answer a renewal in time")
}

impl Held {
    pub(crate) fn attempt(&self) -> &Attempt {
        &self.attempt
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        let mut book = self.leases.book();
        book.entries.remove(&self.id);
        if book.entries.is_empty() && std::mem::take(&mut book.is_awaited) {
            self.leases.emptied.notify_waiters();
        }
    }
}

impl fmt::Debug for Leases {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Leases").field("held", &self.book().entries.len()).finish_non_exhaustive()
    }
}
