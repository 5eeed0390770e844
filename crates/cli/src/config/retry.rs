//! `retry`: when an event is tried again, how often, and what follows when it is given up.

use std::time::Duration;

use semel_core::Schedule;
use semel_relay::OnDead;

use super::{Section, values};

/// When an event is tried again, and what follows from a dead letter.
pub(super) struct Retry {
    pub(super) schedule: Schedule,
    pub(super) on_dead: OnDead,
}

type Preset = fn() -> Schedule;
const PRESETS: &[(&str, Preset)] = &[("broker", Schedule::broker), ("webhook", Schedule::webhook)];

const MOST_ATTEMPTS: u32 = 1000;

/// `retry = "broker"`, or a table with `schedule`, `attempts` and `on_dead`.
pub(super) fn read_retry(section: &mut Section<'_>, usual: Preset) -> Option<Retry> {
    if section.holds_table("retry") {
        return section.table("retry", |table| read_table(table, usual));
    }
    let preset = section.choice("retry", PRESETS).unwrap_or(usual);
    Some(Retry { schedule: preset(), on_dead: OnDead::default() })
}

fn read_table(section: &mut Section<'_>, usual: Preset) -> Option<Retry> {
    let waits = if section.holds_list("schedule") {
        read_waits(section)
    } else {
        section.choice("schedule", PRESETS).or(Some(usual)).map(|preset| waits_of(&preset()))
    };
    let attempts = section.integer("attempts", 1..=MOST_ATTEMPTS);
    let words = [("park", OnDead::ParkLane), ("skip", OnDead::SkipEvent)];
    let on_dead = section.choice("on_dead", &words).unwrap_or_default();
    Some(Retry { schedule: Schedule::new(stretched(waits?, attempts)), on_dead })
}

fn read_waits(section: &mut Section<'_>) -> Option<Vec<Duration>> {
    let texts = section.list("schedule")?;
    let waits: Result<Vec<_>, _> = texts.iter().map(|text| values::duration(text)).collect();
    let waits = waits.and_then(|waits| match waits.first() {
        Some(&Duration::ZERO) => Ok(waits),
        Some(_) => Err("the first attempt is made at once: begin with \"0s\"".into()),
        None => Err("needs one wait for each attempt, such as [\"0s\", \"1s\", \"5s\"]".into()),
    });
    waits.map_err(|why| section.wrong("schedule", &why)).ok()
}

/// As many waits as attempts; the last one is repeated.
fn stretched(mut waits: Vec<Duration>, attempts: Option<u32>) -> Vec<Duration> {
    if let Some(attempts) = attempts.and_then(|attempts| usize::try_from(attempts).ok()) {
        let last = waits.last().copied().unwrap_or_default();
        waits.resize(attempts, last);
    }
    waits
}

fn waits_of(schedule: &Schedule) -> Vec<Duration> {
    let exact = schedule.clone().without_jitter();
    let later = (1..exact.attempts()).filter_map(|attempt| exact.delay_after(attempt, 0));
    std::iter::once(Duration::ZERO).chain(later).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_preset_can_be_shortened_and_stretched() {
        let waits = waits_of(&Schedule::broker());
        assert_eq!(Schedule::new(waits.clone()), Schedule::broker());
        assert_eq!(stretched(waits.clone(), Some(2)), [0, 1].map(Duration::from_secs));
        let long = stretched(waits, Some(7));
        assert_eq!(long[4..], [120; 3].map(Duration::from_secs));
    }
}
