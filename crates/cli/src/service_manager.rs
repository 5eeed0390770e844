//! What the service manager is told: ready, still alive, reloading, stopping. Where no systemd
//! listens, nothing is said.

use sd_notify::NotifyState;
use tokio::task::JoinSet;

/// Told that the program is ready; and, as often as it asks for, that it is alive, until this is
/// dropped.
pub(crate) struct ServiceManager {
    _alive: JoinSet<()>,
}

impl ServiceManager {
    pub(crate) fn ready() -> Self {
        tell(NotifyState::Ready);
        let mut alive = JoinSet::new();
        if let Some(patience) = sd_notify::watchdog_enabled() {
            alive.spawn(async move {
                let mut times = tokio::time::interval(patience / 3);
                loop {
                    times.tick().await;
                    tell(NotifyState::Watchdog);
                }
            });
        }
        Self { _alive: alive }
    }

    pub(crate) fn stopping(&self) {
        tell(NotifyState::Stopping);
    }
}

fn tell(state: NotifyState<'_>) {
    if let Err(error) = sd_notify::notify(&[state]) {
        tracing::warn!(%error, "the service manager could not be told");
    }
}
