//! The transactions that the log told of and no look has found yet.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use semel_core::Failure;
use tokio::sync::Notify;
use tokio::time::{Instant, sleep};

use super::super::types::Snapshot;

/// Written by the session, read by the source.
#[derive(Debug, Default)]
pub(super) struct Heard {
    state: Mutex<State>,
    changed: Notify,
}

#[derive(Debug, Default)]
struct State {
    transactions: VecDeque<Transaction>,
    ended: Option<Failure>,
}

#[derive(Clone, Copy, Debug)]
struct Transaction {
    id: u32,
    since: Instant,
    /// Whether it was looked for in vain.
    invisible: bool,
}

impl Heard {
    /// To forget one is only a delay.
    const MOST: usize = 4096;
    /// The log tells of a commit a moment before others can see it; with a synchronous standby,
    /// some moments.
    const MOMENT: Duration = Duration::from_millis(1);
    const LONGEST: Duration = Duration::from_secs(1);

    /// This transaction was committed and added to the outbox.
    pub(super) fn hear(&self, id: u32) {
        let mut state = self.state();
        if state.transactions.len() >= Self::MOST {
            state.transactions.pop_front();
        }
        state.transactions.push_back(Transaction { id, since: Instant::now(), invisible: false });
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

    /// How many transactions no look has found yet.
    #[cfg(test)]
    pub(super) fn count(&self) -> usize {
        self.state().transactions.len()
    }

    /// A look found all there was at `end`, and the one before all there was at `before`. Says
    /// whether the log had told of anything that the earlier look had not found.
    pub(super) fn looked(&self, before: Option<&Snapshot>, end: &Snapshot) -> bool {
        let mut state = self.state();
        let is_new = |heard: &Transaction| before.is_none_or(|before| !before.contains(heard.id));
        let told_more = state.transactions.iter().any(is_new);
        state
            .transactions
            .retain(|heard| !end.contains(heard.id) && heard.since.elapsed() < Self::LONGEST);
        state.transactions.iter_mut().for_each(|heard| heard.invisible = true);
        told_more
    }

    /// Resolves when there is something to look for.
    pub(super) async fn news(self: Arc<Self>) {
        loop {
            let changed = self.changed.notified();
            match self.wait() {
                Some(Duration::ZERO) => return,
                Some(moment) => return sleep(moment).await,
                None => changed.await,
            }
        }
    }

    /// How long to wait before the next look, if there is anything to look for.
    fn wait(&self) -> Option<Duration> {
        let state = self.state();
        if state.ended.is_some() || state.transactions.iter().any(|heard| !heard.invisible) {
            return Some(Duration::ZERO);
        }
        (!state.transactions.is_empty()).then_some(Self::MOMENT)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;

    use super::*;

    fn snapshot(text: &str) -> Snapshot {
        text.parse().unwrap()
    }

    fn is_news(heard: &Arc<Heard>) -> bool {
        Arc::clone(heard).news().now_or_never().is_some()
    }

    #[tokio::test]
    async fn a_commit_is_news_until_a_look_has_found_it() {
        let heard = Arc::new(Heard::default());
        assert!(!is_news(&heard));
        heard.hear(7);
        assert!(is_news(&heard) && is_news(&heard), "nobody has looked yet");
        assert!(heard.looked(Some(&snapshot("5:5:")), &snapshot("8:8:")));
        assert!(!is_news(&heard));
    }

    #[tokio::test(start_paused = true)]
    async fn what_is_not_visible_yet_is_looked_for_again_after_a_moment() {
        let heard = Arc::new(Heard::default());
        heard.hear(7);
        assert!(heard.looked(Some(&snapshot("5:5:")), &snapshot("7:9:7")));
        assert!(!is_news(&heard), "not at once");
        Arc::clone(&heard).news().await;
        heard.looked(Some(&snapshot("7:9:7")), &snapshot("9:9:"));
        assert!(!is_news(&heard));
    }

    #[tokio::test(start_paused = true)]
    async fn what_never_becomes_visible_is_given_up() {
        let heard = Arc::new(Heard::default());
        heard.hear(7);
        tokio::time::advance(Duration::from_secs(2)).await;
        heard.looked(None, &snapshot("7:9:7"));
        assert!(!is_news(&heard));
    }

    #[tokio::test]
    async fn a_late_word_tells_nothing_new() {
        let heard = Arc::new(Heard::default());
        heard.hear(7);
        assert!(!heard.looked(Some(&snapshot("8:8:")), &snapshot("9:9:")));
    }

    #[tokio::test]
    async fn the_end_is_news() {
        let heard = Arc::new(Heard::default());
        heard.end(Failure::unavailable("E-ONE", "first"));
        heard.end(Failure::unavailable("E-TWO", "second"));
        assert!(is_news(&heard));
        assert_eq!(heard.ended().unwrap().code(), "E-ONE");
    }
}
