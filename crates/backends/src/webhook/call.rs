//! One publish call: how long it may go on, and what its answers say about the endpoint.
//!
//! Answers such as 502, or none at all, can be the fault of the endpoint or of the event that it
//! stumbles over. So after one of them the call goes on with other lanes. If an event that is sent
//! later is confirmed, by this call or another, it was the event; if two in a row fail this way, it
//! is the endpoint, and the call sends nothing more. Suspected events are sent last the next time,
//! so that a few bad ones cannot keep the others from showing that the endpoint is well.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

use semel_core::{EventId, Failure, Message, Verdict};
use tokio::time::Instant;

use super::error::Suspicion;

/// Which requests an endpoint got and confirmed, by all calls together.
#[derive(Debug, Default)]
pub(super) struct Progress {
    sent: AtomicU64,
    last_confirmed: AtomicU64,
    suspects: Mutex<HashMap<EventId, Turn>>,
}

impl Progress {
    /// More than calls can leave behind at once; forgetting them only costs time.
    const MOST_SUSPECTS: usize = 1024;

    /// Puts the lanes of a batch last that begin with an event that failed before without showing
    /// why.
    pub(super) fn put_suspects_last(&self, batch: &[Message], lanes: &mut [Vec<usize>]) {
        let suspects = self.lock();
        if !suspects.is_empty() {
            lanes.sort_by_key(|places| suspects.contains_key(&batch[places[0]].event.id));
        }
    }

    /// Those sent after the turn will tell; if it was suspected before, those sent since then.
    fn suspect(&self, event: EventId, turn: Turn) -> Turn {
        let mut suspects = self.lock();
        if suspects.len() >= Self::MOST_SUSPECTS {
            suspects.clear();
        }
        *suspects.entry(event).or_insert(turn)
    }

    /// It is known what is wrong with the event, or that nothing is.
    fn acquit(&self, event: &EventId) {
        self.lock().remove(event);
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<EventId, Turn>> {
        self.suspects.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The place of a request among all, from 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Turn(u64);

/// What a call knows so far.
#[derive(Debug)]
pub(super) struct Call<'a> {
    /// Nothing is sent from here on.
    pub(super) until: Instant,
    progress: &'a Progress,
    suspicions: AtomicU32,
    over: OnceLock<Failure>,
}

/// Why a lane stopped.
#[derive(Debug)]
pub(super) enum Stopped {
    /// Known already.
    By(Failure),
    /// To be judged at the end, by what was sent after this turn.
    Suspected(Suspicion, EventId, Turn),
}

/// What became of a lane: so many events are confirmed, and then it stopped, or is through.
#[derive(Debug)]
pub(super) struct LaneEnd {
    /// Where its events are in the batch.
    pub(super) places: Vec<usize>,
    pub(super) confirmed: usize,
    pub(super) stopped: Option<Stopped>,
}

impl<'a> Call<'a> {
    const MOST_SUSPICIONS: u32 = 2;

    pub(super) fn until(until: Instant, progress: &'a Progress) -> Self {
        Self { until, progress, suspicions: AtomicU32::new(0), over: OnceLock::new() }
    }

    /// Why nothing more is sent, if so.
    pub(super) fn over(&self) -> Option<&Failure> {
        self.over.get()
    }

    /// Nothing more is sent.
    pub(super) fn end(&self, why: Failure) {
        self.over.get_or_init(|| why);
    }

    /// A request is sent.
    pub(super) fn send(&self) -> Turn {
        Turn(self.progress.sent.fetch_add(1, Ordering::Relaxed) + 1)
    }

    /// The request that was sent last.
    pub(super) fn latest(&self) -> Turn {
        Turn(self.progress.sent.load(Ordering::Relaxed))
    }

    /// The request of this turn was confirmed.
    pub(super) fn confirm(&self, event: &EventId, turn: Turn) {
        self.progress.last_confirmed.fetch_max(turn.0, Ordering::Relaxed);
        self.progress.acquit(event);
        self.suspicions.store(0, Ordering::Relaxed);
    }

    /// A request failed in a way that says nothing about why. Those sent after `turn` will tell.
    pub(super) fn suspect(&self, suspicion: Suspicion, event: EventId, turn: Turn) -> Stopped {
        if self.suspicions.fetch_add(1, Ordering::Relaxed) + 1 >= Self::MOST_SUSPICIONS {
            self.end(suspicion.of_the_endpoint());
        }
        Stopped::Suspected(suspicion, event, self.progress.suspect(event, turn))
    }

    /// The verdicts of a batch of `count`, in its order.
    pub(super) fn verdicts(&self, count: usize, ends: Vec<LaneEnd>) -> Vec<Verdict> {
        let mut verdicts = vec![Verdict::Behind; count];
        let last_confirmed = Turn(self.progress.last_confirmed.load(Ordering::Relaxed));
        for LaneEnd { places, confirmed, stopped } in ends {
            for place in &places[..confirmed] {
                verdicts[*place] = Verdict::Confirmed;
            }
            let failure = match stopped {
                None => continue,
                Some(Stopped::By(failure)) => failure,
                Some(Stopped::Suspected(suspicion, event, turn)) if turn < last_confirmed => {
                    self.progress.acquit(&event);
                    suspicion.of_the_event()
                }
                Some(Stopped::Suspected(suspicion, ..)) => suspicion.of_the_endpoint(),
            };
            if let Some(place) = places.get(confirmed) {
                verdicts[*place] = Verdict::Failed(failure);
            }
        }
        verdicts
    }
}
