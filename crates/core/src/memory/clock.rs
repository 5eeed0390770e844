//! A clock that moves when it is told to.

use std::sync::Mutex;
use std::time::Duration;

use jiff::Timestamp;

use super::lock;
use crate::clock::Clock;
use crate::retry::later;

/// A clock for tests: it stands still until [`ManualClock::advance`] is called.
///
/// ```
/// use semel_core::memory::ManualClock;
/// use semel_core::Clock;
/// use std::time::Duration;
///
/// let clock = ManualClock::default();
/// let start = clock.now();
/// assert_eq!(clock.now(), start);
/// clock.advance(Duration::from_millis(1));
/// assert!(clock.now() > start);
/// ```
#[derive(Debug)]
pub struct ManualClock(Mutex<Timestamp>);

impl ManualClock {
    /// A clock that stands at `start`.
    #[must_use]
    pub const fn new(start: Timestamp) -> Self {
        Self(Mutex::new(start))
    }

    /// Moves the clock forward.
    pub fn advance(&self, by: Duration) {
        let mut now = lock(&self.0);
        *now = later(*now, by);
    }
}

impl Default for ManualClock {
    /// Stands at the beginning of 2026.
    fn default() -> Self {
        Self::new(Timestamp::constant(1_767_225_600, 0))
    }
}

impl Clock for ManualClock {
    fn now(&self) -> Timestamp {
        *lock(&self.0)
    }
}
