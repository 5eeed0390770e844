//! How many messages took effect and how many came again: for metrics at once, for the consumer's
//! store now and then, where those who look find it whichever process counted.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use metrics::Counter;
use semel_core::inbox::Tally;
use semel_core::{Failure, Fault, InboxStore, telemetry};
use tokio::time::{Instant, timeout};

/// How often the store is told, at most. What was not told is lost when the process dies.
pub(super) const EVERY: Duration = Duration::from_secs(5);

/// How long that may take: nobody should wait for a number.
const PATIENCE: Duration = Duration::from_secs(2);

pub(super) struct Counting {
    applied: Counter,
    duplicates: Counter,
    kept: Mutex<Kept>,
}

struct Kept {
    /// What the store was not told yet.
    untold: Tally,
    told_at: Instant,
    /// The store does not take it.
    is_refused: bool,
}

impl Counting {
    pub(super) fn new(consumer: &str) -> Self {
        let name = || consumer.to_owned();
        let kept = Kept { untold: Tally::default(), told_at: Instant::now(), is_refused: false };
        Self {
            applied: metrics::counter!(telemetry::INBOX_APPLIED.name, "consumer" => name()),
            duplicates: metrics::counter!(telemetry::INBOX_DUPLICATES.name, "consumer" => name()),
            kept: Mutex::new(kept),
        }
    }

    pub(super) fn add(&self, tally: Tally) {
        self.applied.increment(tally.applied);
        self.duplicates.increment(tally.duplicates);
        self.keep(tally);
    }

    /// Tells the store, if it was not told for a while.
    pub(super) async fn tell_in_time(&self, store: &impl InboxStore, consumer: &str) {
        if self.kept().told_at.elapsed() >= EVERY {
            self.tell(store, consumer).await;
        }
    }

    /// Tells the store what it does not know yet.
    pub(super) async fn tell(&self, store: &impl InboxStore, consumer: &str) {
        let Some(tally) = self.take() else { return };
        match timeout(PATIENCE, store.count(consumer, tally)).await {
            Ok(Ok(())) => {}
            Ok(Err(failure)) if failure.fault() == Fault::Misconfigured => {
                self.kept().is_refused = true;
                warn(consumer, &failure);
            }
            // Whether it was added is unknown. Rather twice than not at all.
            Ok(Err(_)) | Err(_) => self.keep(tally),
        }
    }

    fn take(&self) -> Option<Tally> {
        let mut kept = self.kept();
        if kept.untold.is_empty() || kept.is_refused {
            return None;
        }
        kept.told_at = Instant::now();
        Some(std::mem::take(&mut kept.untold))
    }

    fn keep(&self, tally: Tally) {
        let untold = &mut self.kept().untold;
        untold.applied += tally.applied;
        untold.duplicates += tally.duplicates;
    }

    fn kept(&self) -> MutexGuard<'_, Kept> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn warn(consumer: &str, failure: &Failure) {
    tracing::warn!(
        consumer,
        %failure,
        "what is applied and dropped is not counted in the database: the page does not show it"
    );
}
