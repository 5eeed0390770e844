//! `[limits]` and `[retention]`.

use std::time::Duration;

use super::Section;

/// What a relay holds at most. What is not said is left to the relay.
#[derive(Debug, Default)]
pub(super) struct Limits {
    pub(super) in_flight_events: Option<usize>,
    pub(super) in_flight_bytes: Option<usize>,
    pub(super) payload: Option<usize>,
}

/// How long published events are kept, and how they are deleted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Retention {
    /// Events that were published or discarded longer ago are deleted.
    pub(crate) keep: Duration,
    pub(crate) when: Deletion,
    /// How many in one transaction.
    pub(crate) chunk: usize,
}

/// When events are deleted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Deletion {
    /// Again and again after so long.
    Every(Duration),
    /// As soon as they are published.
    OnPublish,
}

impl Default for Retention {
    fn default() -> Self {
        Self { keep: 7 * DAY, when: Deletion::Every(Duration::from_secs(60)), chunk: 1000 }
    }
}

const DAY: Duration = Duration::from_secs(86_400);
const KIB: usize = 1024;
const GIB: usize = 1024 * 1024 * KIB;

pub(super) fn read_limits(section: &mut Section<'_>) -> Option<Limits> {
    Some(Limits {
        in_flight_events: section.integer("in_flight_events", 1..=1_000_000),
        in_flight_bytes: section.size("in_flight_bytes", 64 * KIB..=64 * GIB),
        payload: section.size("payload", KIB..=GIB),
    })
}

pub(super) fn read_retention(section: &mut Section<'_>) -> Option<Retention> {
    let usual = Retention::default();
    let (second, ages) = (Duration::from_secs(1), 100 * 365 * DAY);
    let at_once = section.choice("delete", &[("on_publish", Deletion::OnPublish)]);
    for key in ["keep", "every"].iter().filter(|key| at_once.is_some() && section.has(key)) {
        section.wrong(key, "means nothing where delete = \"on_publish\"; leave one of them out");
    }
    let keep = section.duration("keep", Duration::ZERO..=ages);
    let every = section.duration("every", second..=7 * DAY).map(Deletion::Every);
    Some(Retention {
        keep: keep.unwrap_or(if at_once.is_some() { Duration::ZERO } else { usual.keep }),
        when: at_once.or(every).unwrap_or(usual.when),
        chunk: section.integer("chunk", 1..=100_000).unwrap_or(usual.chunk),
    })
}
