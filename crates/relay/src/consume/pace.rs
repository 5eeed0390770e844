//! How many messages are recorded at once.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

/// How many messages a consumer takes up before it looks at the time: few at first, and as many as
/// it has lately done well within a turn.
pub(super) struct Pace(AtomicUsize);

/// How many at first.
const FIRST: usize = 4;

impl Default for Pace {
    fn default() -> Self {
        Self(AtomicUsize::new(FIRST))
    }
}

impl Pace {
    /// How many to take up now.
    pub(super) fn chunk(&self) -> usize {
        self.0.load(Ordering::Relaxed)
    }

    /// So many took so long, of a turn of this length.
    pub(super) fn learn(&self, messages: usize, took: Duration, turn: Duration) {
        if took > turn / 2 {
            self.0.store((messages / 2).max(1), Ordering::Relaxed);
        } else if took < turn / 8 && messages >= self.chunk() {
            self.0.store(messages.saturating_mul(2), Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_grows_while_all_goes_well_and_shrinks_at_once() {
        const TURN: Duration = Duration::from_secs(1);
        let pace = Pace::default();
        for expected in [FIRST, 2 * FIRST, 4 * FIRST] {
            assert_eq!(pace.chunk(), expected);
            pace.learn(expected, Duration::from_millis(10), TURN);
        }
        pace.learn(3, Duration::from_millis(10), TURN);
        assert_eq!(pace.chunk(), 8 * FIRST, "few messages say nothing of many");
        pace.learn(8 * FIRST, Duration::from_millis(300), TURN);
        assert_eq!(pace.chunk(), 8 * FIRST);
        pace.learn(6, Duration::from_millis(600), TURN);
        assert_eq!(pace.chunk(), 3);
        pace.learn(1, TURN, TURN);
        assert_eq!(pace.chunk(), 1);
    }
}
