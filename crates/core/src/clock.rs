//! The only place that asks for the time.

use std::fmt::Debug;

use jiff::Timestamp;

/// Tells the time of this process. Leases and expiry use the *store's* clock instead.
///
/// ```
/// use semel_core::memory::ManualClock;
/// use semel_core::Clock;
/// use std::time::Duration;
///
/// let clock = ManualClock::default();
/// let before = clock.now();
/// clock.advance(Duration::from_secs(5));
/// assert_eq!(clock.now().duration_since(before).as_secs(), 5);
/// ```
pub trait Clock: Send + Sync + Debug {
    /// This moment. Later calls may answer earlier times: wall clocks are set back.
    fn now(&self) -> Timestamp;
}

/// The clock of the operating system.
///
/// ```
/// # use semel_core::{Clock, SystemClock};
/// assert!(SystemClock.now() > semel_core::Timestamp::UNIX_EPOCH);
/// ```
#[derive(Clone, Copy, Debug, Default)]
pub struct SystemClock;

impl Clock for SystemClock {
    fn now(&self) -> Timestamp {
        Timestamp::now()
    }
}
