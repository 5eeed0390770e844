//! What the coordinators of all databases have in common.

use std::time::Duration;

use semel_core::coordination::{Holder, Share, Standing, divided_differently};
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
