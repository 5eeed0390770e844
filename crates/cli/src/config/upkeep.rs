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
    /// How often.
    pub(crate) every: Duration,
    /// How many in one transaction.
    pub(crate) chunk: usize,
}

impl Default for Retention {
    fn default() -> Self {
        Self { keep: 7 * DAY, every: Duration::from_secs(60), chunk: 1000 }
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
    Some(Retention {
        keep: section.duration("keep", Duration::ZERO..=ages).unwrap_or(usual.keep),
        every: section.duration("every", second..=7 * DAY).unwrap_or(usual.every),
        chunk: section.integer("chunk", 1..=100_000).unwrap_or(usual.chunk),
    })
}
