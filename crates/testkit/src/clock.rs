//! A clock for deterministic tests: it follows tokio's, which a test can pause.

use semel_core::retry::later;
use semel_core::{Clock, Timestamp};
use tokio::time::Instant;

/// Starts at a fixed time and moves as tokio's time does.
///
/// In a runtime whose time is paused, sleeping moves this clock and nothing else does.
///
/// ```
/// use semel_core::Clock;
/// use semel_testkit::clock::VirtualClock;
/// use std::time::Duration;
///
/// # tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap()
/// # .block_on(async {
/// let clock = VirtualClock::start();
/// tokio::time::sleep(Duration::from_secs(3600)).await;
/// assert_eq!(clock.now(), "2026-01-01T01:00:00Z".parse().unwrap());
/// # });
/// ```
#[derive(Clone, Copy, Debug)]
pub struct VirtualClock {
    began: Instant,
    start: Timestamp,
}

impl VirtualClock {
    /// The beginning of 2026, as for [`ManualClock`](semel_core::memory::ManualClock).
    pub const START: Timestamp = Timestamp::constant(1_767_225_600, 0);

    /// A clock that shows [`Self::START`] now.
    #[must_use]
    pub fn start() -> Self {
        Self::starting_at(Self::START)
    }

    /// A clock that shows `start` now.
    #[must_use]
    pub fn starting_at(start: Timestamp) -> Self {
        Self { began: Instant::now(), start }
    }
}

impl Clock for VirtualClock {
    fn now(&self) -> Timestamp {
        later(self.start, self.began.elapsed())
    }
}
