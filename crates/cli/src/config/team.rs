//! `coordination`: how several relays divide a pipeline.

use std::time::Duration;

use semel_core::coordination::{Coordination, Share};

use super::Section;

/// How several relays divide a pipeline, and how long one may be silent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Team {
    pub(crate) coordination: Coordination,
    pub(crate) lease: Duration,
}

/// `coordination`, `shares` and `lease`.
pub(super) fn read_team(section: &mut Section<'_>) -> Option<Team> {
    const USUAL_SHARES: u32 = 8;
    const USUAL_LEASE: Duration = Duration::from_secs(5);
    type Way = fn(u32) -> Coordination;
    let ways: [(&str, Way); 3] = [
        ("leader", |_| Coordination::Leader),
        ("partitioned", |shares| Coordination::Partitioned { shares }),
        ("competing", |shares| Coordination::Competing { shares }),
    ];
    let way = section.choice("coordination", &ways);
    let shares = section.integer("shares", 1..=Share::MOST);
    let bounds = Duration::from_secs(1)..=Duration::from_secs(300);
    let lease = section.duration("lease", bounds).unwrap_or(USUAL_LEASE);
    let coordination =
        way.map_or_else(Coordination::default, |way| way(shares.unwrap_or(USUAL_SHARES)));
    if coordination == Coordination::Leader && shares.is_some() {
        section.wrong("shares", "a leader has everything; write coordination = \"partitioned\"");
    }
    Some(Team { coordination, lease })
}
