//! How everything is, in one sentence.

use std::time::Duration;

use semel_core::admin::State;
use semel_core::insight::OutageView;
use serde::Serialize;

use crate::sampler::{Sample, Track};

/// One sentence, and how serious it is.
#[derive(Debug, PartialEq, Eq, Serialize)]
pub(crate) struct Health {
    pub(crate) level: Level,
    pub(crate) sentence: String,
}

/// How serious something is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Level {
    Unknown,
    Good,
    Warn,
    Bad,
}

/// The worst that can be said of one of the pipelines, or that all is well.
pub(crate) fn health<'a>(tracks: impl Iterator<Item = (&'a str, &'a Track)>) -> Health {
    let all: Vec<_> = tracks.collect();
    let complaints: Vec<_> =
        all.iter().filter_map(|(name, track)| complaint(name, track)).collect();
    let others = match complaints.len() {
        0 | 1 => ".".to_owned(),
        2 => "; one more pipeline needs a look.".to_owned(),
        n => format!("; {} more pipelines need a look.", n - 1),
    };
    let worst = complaints.into_iter().max_by_key(|(level, _)| *level);
    if let Some((level, sentence)) = worst {
        let sentence = format!("{}{others}", sentence.trim_end_matches('.'));
        return Health { level, sentence };
    }
    let last: Vec<&Sample> =
        all.iter().filter_map(|(_, track)| track.last()).map(AsRef::as_ref).collect();
    if last.len() < all.len() || all.is_empty() {
        return Health { level: Level::Unknown, sentence: "Looking…".into() };
    }
    let who = match all.len() {
        1 => format!("{} keeps up", all[0].0),
        n => format!("All {n} pipelines keep up"),
    };
    let oldest = last.iter().filter_map(|sample| sample.stats.oldest_pending).max();
    let sentence = match oldest {
        Some(age) => format!("{who}; the oldest waiting event is {} old.", rough(age)),
        None => format!("{who}; nothing waits."),
    };
    Health { level: Level::Good, sentence }
}

/// What is wrong with a pipeline.
pub(crate) fn complaint(name: &str, track: &Track) -> Option<(Level, String)> {
    /// An event that waits for so long is news.
    const LATE: Duration = Duration::from_secs(60);
    if let Some(trouble) = &track.trouble {
        let (error, code) = (&trouble.error, trouble.code);
        return Some((Level::Bad, format!("{name} cannot be looked at: {error} ({code}).")));
    }
    let sample = track.last()?;
    let count = |state| sample.stats.count(state);
    let waits = count(State::Pending) + count(State::Publishing);
    let age = sample.stats.oldest_pending.filter(|age| *age > LATE);
    // Whoever shows no members has no way to.
    let is_led = sample.workings.written.is_none() || !sample.workings.relays.is_empty();
    if !is_led && waits > 0 {
        return Some((Level::Bad, format!("No relay works on {name}, and {waits} events wait.")));
    }
    if let Some(OutageView { outage, since, .. }) = sample.workings.outages.first() {
        let sink = match &outage.sink {
            Some(sink) => format!("its sink {sink}"),
            None => "its sink".to_owned(),
        };
        let lasts = sample.at.duration_since(*since).try_into().unwrap_or_default();
        let (code, error, lasts) = (&outage.code, &outage.error, rough(lasts));
        let what = format!("{name} cannot reach {sink}: {error} ({code}), for {lasts}");
        let behind = match waits {
            0 => "nothing waits".to_owned(),
            1 => "1 event waits and is not lost".to_owned(),
            waits => format!("{waits} events wait, none is lost"),
        };
        return Some((Level::Bad, format!("{what}; {behind}.")));
    }
    if count(State::Dead) > 0 {
        let (dead, parked) = (count(State::Dead), sample.stats.parked_lanes);
        let letters =
            if dead == 1 { "1 dead letter".into() } else { format!("{dead} dead letters") };
        let behind = match parked {
            0 => String::new(),
            1 => "; 1 aggregate waits for an operator".into(),
            n => format!("; {n} aggregates wait"),
        };
        return Some((Level::Warn, format!("{name} has {letters}{behind}.")));
    }
    if let Some(age) = age {
        return Some((
            Level::Warn,
            format!("{name} is behind: an event waits for {}.", rough(age)),
        ));
    }
    let failed = count(State::Failed);
    (failed > 0).then(|| {
        let events = if failed == 1 { "1 event".into() } else { format!("{failed} events") };
        (Level::Warn, format!("{name} has {events} that failed and will be tried again."))
    })
}

/// A span of time in one or two units.
fn rough(span: Duration) -> String {
    let span = match span.as_secs() {
        0 => Duration::from_millis(u64::try_from(span.as_millis()).unwrap_or(0).max(1)),
        seconds if seconds < 3600 => Duration::from_secs(seconds),
        seconds => Duration::from_secs(seconds / 60 * 60),
    };
    humantime::format_duration(span).to_string()
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use semel_core::admin::Stats;
    use semel_core::insight::{Outage, Workings};
    use semel_core::{Failure, Timestamp};

    use super::*;
    use crate::asked::Explanation;

    fn track(change: impl FnOnce(&mut Stats)) -> Track {
        let mut stats = Stats::default();
        change(&mut stats);
        let at = Timestamp::UNIX_EPOCH;
        let workings = Workings::default();
        let sample = Sample { at, stats, workings, written: None, settled: None, latency: None };
        let mut track = Track::default();
        track.samples.push_back(Arc::new(sample));
        track
    }

    fn sentence(track: &Track) -> (Level, String) {
        let health = health([("orders", track)].into_iter());
        (health.level, health.sentence)
    }

    #[test]
    fn the_worst_is_said() {
        let good = track(|_| ());
        assert_eq!(sentence(&good), (Level::Good, "orders keeps up; nothing waits.".into()));
        let busy = track(|stats| stats.oldest_pending = Some(Duration::from_millis(140)));
        assert!(sentence(&busy).1.ends_with("event is 140ms old."));
        let dead = track(|stats| {
            stats.counts[State::Dead as usize] = 2;
            stats.parked_lanes = 1;
        });
        let expected = "orders has 2 dead letters; 1 aggregate waits for an operator.";
        assert_eq!(sentence(&dead), (Level::Warn, expected.into()));
        let late = track(|stats| stats.oldest_pending = Some(Duration::from_secs(7300)));
        assert!(sentence(&late).1.contains("2h 1m"), "{}", sentence(&late).1);
        let mut down = track(|_| ());
        down.trouble = Some(Explanation { code: "E-DOWN", error: "gone".into(), fix: None });
        assert_eq!(sentence(&down).0, Level::Bad);
        let both = health([("a", &dead), ("b", &down)].into_iter());
        assert!(both.sentence.starts_with("b cannot be looked at"), "{}", both.sentence);
        assert!(both.sentence.ends_with("; one more pipeline needs a look."), "{}", both.sentence);
        assert_eq!(sentence(&Track::default()).0, Level::Unknown);
    }

    #[test]
    fn a_backlog_without_a_relay_is_bad() {
        let mut alone = track(|stats| stats.counts[State::Pending as usize] = 5);
        let mut sample = Sample::clone(&alone.samples[0]);
        sample.workings.written = Some(5);
        alone.samples = [Arc::new(sample)].into();
        assert_eq!(sentence(&alone).1, "No relay works on orders, and 5 events wait.");
    }

    #[test]
    fn a_sink_that_is_away_is_bad_and_says_why() {
        let mut away = track(|stats| stats.counts[State::Pending as usize] = 5);
        let mut sample = Sample::clone(&away.samples[0]);
        let outage = Outage::of(&Failure::unavailable("E-NATS-DOWN", "NATS: refused"), &["out"]);
        let since = sample.at - Duration::from_secs(130);
        sample.workings.outages = vec![OutageView { relay: "r1".into(), outage, since }];
        away.samples = [Arc::new(sample)].into();
        let expected = "orders cannot reach its sink out: NATS: refused (E-NATS-DOWN), for 2m 10s; \
                        5 events wait, none is lost.";
        assert_eq!(sentence(&away), (Level::Bad, expected.into()));
    }
}
