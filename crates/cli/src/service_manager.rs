//! What the service manager is told: ready, still alive, what it does, reloading, stopping. Where no
//! systemd listens, nothing is said.

use std::collections::{BTreeMap, BTreeSet};
use std::env;
use std::time::Duration;

use sd_notify::NotifyState;
use semel_relay::{Doing, Pulse};
use tokio::task::JoinSet;
use tokio::time::{Instant, Interval, MissedTickBehavior, interval};

const LOOKS: Duration = Duration::from_secs(1);

/// Told that the program is ready, what its pipelines do, and, as often as it asks for, that their
/// loops turn; until this is dropped.
pub(crate) struct ServiceManager {
    /// How long it waits for a sign of life.
    patience: Option<Duration>,
    pulse: Pulse,
    /// When to look what there is to tell.
    looks: Option<Interval>,
    told: String,
    is_stopping: bool,
    alive: JoinSet<()>,
}

impl ServiceManager {
    pub(crate) fn new() -> Self {
        let patience = sd_notify::watchdog_enabled();
        let beat = patience.map_or(LOOKS, |patience| LOOKS.min(patience / 6));
        Self {
            patience,
            pulse: Pulse::every(beat),
            looks: env::var_os("NOTIFY_SOCKET").map(|_| seldom_enough(LOOKS)),
            told: String::new(),
            is_stopping: false,
            alive: JoinSet::new(),
        }
    }

    /// What the loops are to be felt by.
    pub(crate) fn pulse(&self) -> Pulse {
        self.pulse.clone()
    }

    /// For the first time, or with another configuration.
    pub(crate) fn ready(&mut self) {
        tell(&[NotifyState::Ready]);
        if let Some(patience) = self.patience
            && self.alive.is_empty()
        {
            self.alive.spawn(show_life(self.pulse.clone(), patience));
        }
    }

    /// Until it is ready again.
    pub(crate) fn reloading(&self) {
        match NotifyState::monotonic_usec_now() {
            Ok(now) => tell(&[NotifyState::Reloading, now]),
            Err(error) => untold(&error),
        }
    }

    pub(crate) fn stopping(&mut self) {
        self.is_stopping = true;
        let status = "stopping: what is in flight is finished";
        tell(&[NotifyState::Stopping, NotifyState::Status(status)]);
    }

    /// Comes back when it is time to say what the pipelines do.
    pub(crate) async fn wants_news(&mut self) {
        match &mut self.looks {
            Some(looks) if !self.is_stopping => drop::<Instant>(looks.tick().await),
            _ => std::future::pending().await,
        }
    }

    /// Says what the pipelines do, if that is news.
    pub(crate) fn describe(&mut self, pipelines: &BTreeMap<String, Option<Doing>>) {
        let status = in_words(pipelines);
        if self.told != status {
            tell(&[NotifyState::Status(&status)]);
            self.told = status;
        }
    }
}

/// A timer alone would only show that the process has a timer: it speaks while every loop turns.
async fn show_life(pulse: Pulse, patience: Duration) {
    let mut times = seldom_enough(patience / 3);
    let mut known = BTreeSet::new();
    loop {
        times.tick().await;
        let still = pulse.still_for(patience / 3);
        if still.is_empty() {
            tell(&[NotifyState::Watchdog]);
        } else if still != known {
            tracing::error!(pipelines = ?still, "a loop stands still: no sign of life is given");
        }
        known = still;
    }
}

fn seldom_enough(period: Duration) -> Interval {
    let mut times = interval(period);
    times.set_missed_tick_behavior(MissedTickBehavior::Delay);
    times
}

fn in_words(pipelines: &BTreeMap<String, Option<Doing>>) -> String {
    let each = pipelines.iter().map(|(name, doing)| {
        let doing = match doing {
            Some(Doing::StandingBy) => "standing by",
            Some(Doing::Working) => "working",
            Some(Doing::WaitingForSink) => "waiting for the broker",
            Some(Doing::WaitingForSource) => "waiting for the database",
            Some(_) => "starting",
            None => "failed, to be tried again",
        };
        format!("{name} {doing}")
    });
    let plural = if pipelines.len() == 1 { "" } else { "s" };
    let each = each.collect::<Vec<_>>().join("; ");
    format!("{} pipeline{plural}: {each}", pipelines.len())
}

fn tell(states: &[NotifyState<'_>]) {
    if let Err(error) = sd_notify::notify(states) {
        untold(&error);
    }
}

fn untold(error: &std::io::Error) {
    tracing::warn!(%error, "the service manager could not be told");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_status_names_every_pipeline_and_what_it_does() {
        let one = BTreeMap::from([("orders".to_owned(), Some(Doing::Working))]);
        assert_eq!(in_words(&one), "1 pipeline: orders working");
        let two = BTreeMap::from([
            ("orders".to_owned(), Some(Doing::WaitingForSink)),
            ("bills".to_owned(), None),
        ]);
        let told = "2 pipelines: bills failed, to be tried again; orders waiting for the broker";
        assert_eq!(in_words(&two), told);
    }
}
