//! What the coordinators of all databases have in common.

#[cfg(any(feature = "mysql", feature = "sqlite"))]
use std::collections::BTreeMap;
use std::time::Duration;

use semel_core::coordination::{Holder, Share, Standing, divided_differently};
#[cfg(any(feature = "mysql", feature = "sqlite"))]
use semel_core::insight::RelayView;
use semel_core::{EventId, Failure};

/// What a member knows about itself.
#[derive(Debug)]
pub(crate) struct Membership {
    pub(crate) pipeline: String,
    /// For operators: which process it is.
    pub(crate) member: String,
    pub(crate) shares: u32,
    pub(crate) lease: Duration,
}

impl Membership {
    pub(crate) fn new(pipeline: &str, shares: u32, lease: Duration) -> Result<Self, Failure> {
        Share::new(0, shares)?;
        let member = format!("{} process {}", EventId::now(), std::process::id());
        Ok(Self { pipeline: pipeline.to_owned(), member, shares, lease })
    }

    /// How things stand, from the other members that live, with their numbers of shares, and from
    /// the shares whose lease runs or that are this member's.
    pub(crate) fn standing(
        &self,
        others: &[(String, u32)],
        held: &[(u32, String)],
    ) -> Result<Standing, Failure> {
        if others.iter().any(|(_, shares)| *shares != self.shares) {
            return Err(divided_differently(&self.pipeline, self.shares));
        }
        let count = |number: usize| u32::try_from(number).unwrap_or(u32::MAX);
        let rank = others.iter().filter(|(member, _)| *member < self.member).count();
        let mut shares = vec![Holder::Nobody; self.shares as usize];
        for (share, owner) in held {
            if let Some(holder) = shares.get_mut(*share as usize) {
                *holder = if *owner == self.member { Holder::Me } else { Holder::Other };
            }
        }
        Ok(Standing { members: count(others.len() + 1), rank: count(rank), shares })
    }
}

/// The members as operators see them, those with shares first. There is a row for each share that
/// one holds, or one without: its name, how many shares there are, and what is left of its lease.
#[cfg(any(feature = "mysql", feature = "sqlite"))]
pub(crate) fn relays(
    rows: impl IntoIterator<Item = (String, u32, Duration, Option<u32>)>,
) -> Vec<RelayView> {
    let mut relays = BTreeMap::new();
    for (name, of, lease_left, share) in rows {
        let new = || RelayView { name: name.clone(), shares: vec![], of, lease_left };
        let relay: &mut RelayView = relays.entry(name.clone()).or_insert_with(new);
        relay.shares.extend(share);
    }
    let mut relays: Vec<RelayView> = relays.into_values().collect();
    relays.sort_by_key(|relay| relay.shares.is_empty());
    relays
}
