//! Stopping: once to finish what is in flight, twice to leave at once.

use tokio::sync::watch;

/// Asks relays to stop. Dropping it changes nothing.
///
/// ```
/// use semel_relay::{Stop, Stopper};
///
/// let (stopper, stop) = Stop::new();
/// stopper.stop(); // finish what is in flight
/// stopper.stop(); // leave at once
/// assert!(stop.is_immediate());
/// ```
#[derive(Clone, Debug)]
pub struct Stopper(watch::Sender<Level>);

/// Hears about a stop. Clones hear the same.
///
/// ```
/// # use semel_relay::Stop;
/// assert!(!Stop::never().is_immediate());
/// ```
#[derive(Clone, Debug)]
pub struct Stop {
    level: watch::Receiver<Level>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Level {
    Run,
    Finish,
    Leave,
}

impl Stopper {
    /// The first call lets what is in flight finish; the second leaves at once.
    pub fn stop(&self) {
        self.0.send_modify(|level| {
            *level = if *level == Level::Run { Level::Finish } else { Level::Leave };
        });
    }
}

impl Stop {
    /// A pair: one asks, the other hears.
    #[must_use]
    pub fn new() -> (Stopper, Self) {
        let (sender, level) = watch::channel(Level::Run);
        (Stopper(sender), Self { level })
    }

    /// A stop that never comes.
    #[must_use]
    pub fn never() -> Self {
        Self::new().1
    }

    /// Whether to leave at once.
    #[must_use]
    pub fn is_immediate(&self) -> bool {
        self.level() == Level::Leave
    }

    pub(crate) fn level(&self) -> Level {
        *self.level.borrow()
    }

    /// Resolves when the level rises above the one last seen here.
    pub(crate) async fn changed(&mut self) {
        if self.level.changed().await.is_err() {
            std::future::pending::<()>().await;
        }
    }
}
