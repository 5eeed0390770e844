//! That the log told of events which no look has found yet.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use semel_core::Failure;
use tokio::sync::Notify;
use tokio::time::{Instant, sleep};

/// Rung by the session, heard by the source.
#[derive(Debug, Default)]
pub(in super::super) struct Bell {
    state: Mutex<State>,
    changed: Notify,
}

#[derive(Debug, Default)]
struct State {
    rings: u64,
    /// How many of them need no further look.
    answered: u64,
    last: Option<Instant>,
    /// Looks since the last ring that found nothing.
    in_vain: u32,
    ended: Option<Failure>,
}

/// The rings before a look began.
#[derive(Clone, Copy, Debug)]
pub(in super::super) struct Rings {
    count: u64,
    pub(in super::super) is_news: bool,
}

impl Bell {
    /// The server writes a transaction to its log before others can see it. After a look in vain it
    /// is looked for again after a moment, and then after twice as long each time.
    const MOMENT: Duration = Duration::from_millis(1);
    const LONGEST: Duration = Duration::from_secs(1);

    /// A transaction was committed that added to the outbox.
    pub(super) fn ring(&self) {
        let mut state = self.state();
        state.rings += 1;
        state.last = Some(Instant::now());
        state.in_vain = 0;
        drop(state);
        self.changed.notify_one();
    }

    /// Nothing more will be heard.
    pub(super) fn end(&self, why: Failure) {
        self.state().ended.get_or_insert(why);
        self.changed.notify_one();
    }

    /// Why nothing more will be heard.
    pub(super) fn ended(&self) -> Option<Failure> {
        self.state().ended.clone()
    }

    /// A look begins.
    pub(in super::super) fn rings(&self) -> Rings {
        let state = self.state();
        Rings { count: state.rings, is_news: state.rings > state.answered }
    }

    /// A look that began after these rings found something or nothing.
    pub(in super::super) fn looked(&self, rings: Rings, found: bool) {
        let mut state = self.state();
        let given_up = state.last.is_none_or(|last| last.elapsed() >= Self::LONGEST);
        if found || given_up {
            state.answered = state.answered.max(rings.count);
        } else if rings.is_news && rings.count == state.rings {
            state.in_vain += 1;
        }
    }

    /// Resolves when there is something to look for.
    pub(super) async fn news(self: Arc<Self>) {
        loop {
            let changed = self.changed.notified();
            match self.wait() {
                Some(Duration::ZERO) => return,
                Some(moment) => {
                    tokio::select! {
                        () = sleep(moment) => return,
                        () = changed => {}
                    }
                }
                None => changed.await,
            }
        }
    }

    /// How long to wait before the next look, if there is anything to look for.
    fn wait(&self) -> Option<Duration> {
        let state = self.state();
        if state.ended.is_some() {
            return Some(Duration::ZERO);
        }
        (state.rings > state.answered).then(|| match state.in_vain.checked_sub(1) {
            None => Duration::ZERO,
            Some(doublings) => (Self::MOMENT * (1 << doublings.min(9))).min(Self::LONGEST),
        })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;

    use super::*;

    fn is_news(bell: &Arc<Bell>) -> bool {
        Arc::clone(bell).news().now_or_never().is_some()
    }

    #[tokio::test]
    async fn a_ring_is_news_until_a_look_has_found_something() {
        let bell = Arc::new(Bell::default());
        assert!(!is_news(&bell) && !bell.rings().is_news);
        bell.ring();
        assert!(is_news(&bell) && is_news(&bell), "nobody has looked yet");
        let rings = bell.rings();
        assert!(rings.is_news);
        bell.looked(rings, true);
        assert!(!is_news(&bell) && !bell.rings().is_news);
    }

    #[tokio::test]
    async fn a_ring_during_a_look_asks_for_another() {
        let bell = Arc::new(Bell::default());
        bell.ring();
        let rings = bell.rings();
        bell.ring();
        bell.looked(rings, true);
        assert!(is_news(&bell));
        bell.looked(rings, false);
        assert!(is_news(&bell), "a look that began before it says nothing of it");
    }

    #[tokio::test(start_paused = true)]
    async fn what_is_not_visible_yet_is_looked_for_ever_more_rarely_and_then_given_up() {
        let bell = Arc::new(Bell::default());
        bell.ring();
        let (began, mut looks) = (Instant::now(), 0);
        while bell.rings().is_news {
            Arc::clone(&bell).news().await;
            bell.looked(bell.rings(), false);
            looks += 1;
        }
        assert!((8..=12).contains(&looks), "{looks} looks");
        let took = began.elapsed();
        assert!((Bell::LONGEST..Bell::LONGEST * 2).contains(&took), "{took:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn another_ring_ends_the_waiting() {
        let bell = Arc::new(Bell::default());
        bell.ring();
        for _ in 0..8 {
            bell.looked(bell.rings(), false);
        }
        assert!(!is_news(&bell), "not at once");
        bell.ring();
        assert!(is_news(&bell));
    }

    #[tokio::test]
    async fn the_end_is_news() {
        let bell = Arc::new(Bell::default());
        bell.end(Failure::unavailable("E-ONE", "first"));
        bell.end(Failure::unavailable("E-TWO", "second"));
        assert!(is_news(&bell));
        assert_eq!(bell.ended().unwrap().code(), "E-ONE");
    }
}
