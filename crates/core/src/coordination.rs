//! Several relays for one pipeline: who works on which share of it.
//!
//! A pipeline is one share, or is split into several by lane. Each share has one owner at a time,
//! by a lease in the database that holds the outbox. Leases only decide who *should* work: that two
//! never settle the same event is the task of the source, which fences off its former owner.
//!
//! ```
//! use semel_core::coordination::{Coordination, Holder, Standing};
//!
//! // Two relays and four shares: this one has everything and gives half of it to the other.
//! let standing = Standing { members: 2, rank: 0, shares: vec![Holder::Me; 4] };
//! let plan = Coordination::Partitioned { shares: 4 }.plan(&standing);
//! assert_eq!((plan.claim, plan.give_up), (vec![], vec![2, 3]));
//! ```

use std::time::Duration;

use async_trait::async_trait;

use crate::failure::Failure;

/// One member of the group of relays that work on a pipeline.
///
/// **Time.** Leases are by the clock of the store alone. Whoever cannot reach the store for as long
/// as a lease must assume that everything is lost.
///
/// **Repetition.** Every call may be repeated after an error.
#[async_trait]
pub trait Coordinator: Send {
    /// How long what is held stays held without a beat.
    fn lease(&self) -> Duration;

    /// What the store calls this member where operators look at it.
    fn name(&self) -> &str {
        ""
    }

    /// Tells how things stand; if it `renews`, it says first that this member lives, and lengthens
    /// what it holds.
    ///
    /// # Errors
    /// `Unavailable` when the store cannot be reached, `Misconfigured` when others split the
    /// pipeline in another way.
    async fn beat(&mut self, renews: bool) -> Result<Standing, Failure>;

    /// Takes these shares, as far as nobody holds them; says which ones it got.
    ///
    /// # Errors
    /// `Unavailable` when the store cannot be reached.
    async fn claim(&mut self, shares: &[u32]) -> Result<Vec<u32>, Failure>;

    /// Gives these shares back, so that another can have them at once.
    ///
    /// # Errors
    /// `Unavailable` when the store cannot be reached; then they are free when the lease ends.
    async fn release(&mut self, shares: &[u32]) -> Result<(), Failure>;

    /// Leaves the group, and gives back everything.
    ///
    /// # Errors
    /// `Unavailable` when the store cannot be reached; then all is free when the lease ends.
    async fn leave(&mut self) -> Result<(), Failure>;
}

#[async_trait]
impl<C: Coordinator + ?Sized> Coordinator for Box<C> {
    fn lease(&self) -> Duration {
        self.as_ref().lease()
    }

    fn name(&self) -> &str {
        self.as_ref().name()
    }

    async fn beat(&mut self, renews: bool) -> Result<Standing, Failure> {
        self.as_mut().beat(renews).await
    }

    async fn claim(&mut self, shares: &[u32]) -> Result<Vec<u32>, Failure> {
        self.as_mut().claim(shares).await
    }

    async fn release(&mut self, shares: &[u32]) -> Result<(), Failure> {
        self.as_mut().release(shares).await
    }

    async fn leave(&mut self) -> Result<(), Failure> {
        self.as_mut().leave().await
    }
}

/// A part of a pipeline: the lanes whose hash falls to it.
///
/// ```
/// # use semel_core::coordination::Share;
/// assert_eq!(Share::WHOLE, Share::new(0, 1)?);
/// assert!(Share::new(4, 4).is_err());
/// # Ok::<(), semel_core::Failure>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Share {
    /// Which one, from 0 on.
    pub number: u32,
    /// How many there are.
    pub of: u32,
}

impl Share {
    /// All of a pipeline.
    pub const WHOLE: Self = Self { number: 0, of: 1 };
    /// How many shares there can be.
    pub const MOST: u32 = 64;

    /// Share `number` of `of`.
    ///
    /// # Errors
    /// `Misconfigured` when there is no such share.
    pub fn new(number: u32, of: u32) -> Result<Self, Failure> {
        if of == 0 || of > Self::MOST || number >= of {
            let what = format!("there is no share {number} of {of}");
            let fix = format!("there are 1 to {} shares, counted from 0", Self::MOST);
            return Err(Failure::misconfigured("E-SHARE", what).with_fix(fix));
        }
        Ok(Self { number, of })
    }
}

/// How several relays divide a pipeline among themselves.
///
/// In all three, the events of a lane stay in order: a lane belongs to one share, and a share has
/// one owner at a time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Coordination {
    /// One works, the others stand by.
    #[default]
    Leader,
    /// Everyone has the same number of shares, give or take one.
    Partitioned {
        /// How many shares there are.
        shares: u32,
    },
    /// Whoever comes first takes what is free, one share at a time.
    Competing {
        /// How many shares there are.
        shares: u32,
    },
}

/// How things stand in the group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Standing {
    /// How many members live, this one included.
    pub members: u32,
    /// How many of them come before this one in an order that all agree on.
    pub rank: u32,
    /// Who holds each share.
    pub shares: Vec<Holder>,
}

/// Who holds a share.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Holder {
    /// This member.
    Me,
    /// Another, whose lease runs.
    Other,
    /// Nobody: it is free to be claimed.
    Nobody,
}

/// What a member should do next.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Plan {
    /// Shares to claim.
    pub claim: Vec<u32>,
    /// Shares to finish and then give back.
    pub give_up: Vec<u32>,
}

impl Coordination {
    /// How many shares the pipeline has.
    #[must_use]
    pub const fn shares(self) -> u32 {
        match self {
            Self::Leader => 1,
            Self::Partitioned { shares } | Self::Competing { shares } => shares,
        }
    }

    /// What follows from how things stand.
    #[must_use]
    pub fn plan(self, standing: &Standing) -> Plan {
        let held_by = |holder| {
            let all = (0..).zip(&standing.shares);
            all.filter(move |(_, held)| **held == holder).map(|(share, _)| share)
        };
        let mine = held_by(Holder::Me).count();
        match self {
            Self::Leader => Plan { claim: held_by(Holder::Nobody).collect(), give_up: vec![] },
            Self::Partitioned { .. } => {
                let target = standing.target();
                Plan {
                    claim: held_by(Holder::Nobody).take(target.saturating_sub(mine)).collect(),
                    give_up: held_by(Holder::Me).skip(target).collect(),
                }
            }
            Self::Competing { .. } => {
                Plan { claim: held_by(Holder::Nobody).take(1).collect(), give_up: vec![] }
            }
        }
    }
}

impl Standing {
    /// How many shares this member should have: all members' targets together are all shares.
    fn target(&self) -> usize {
        let (members, rank) = (self.members.max(1) as usize, self.rank as usize);
        self.shares.len() / members + usize::from(rank < self.shares.len() % members)
    }
}

/// What a member is told that divides a pipeline in another way than those who work on it.
#[must_use]
pub fn divided_differently(pipeline: &str, shares: u32) -> Failure {
    let what = format!(
        "other relays work on pipeline {pipeline:?} and do not divide it into {shares} shares"
    );
    Failure::misconfigured("E-SHARES-DIFFER", what)
        .with_fix("give all relays of the pipeline the same coordination and shares; to change them, stop all of them first")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Shares and who holds them, as members with a number each.
    struct Group {
        holders: Vec<Option<u32>>,
        members: Vec<u32>,
    }

    impl Group {
        fn standing(&self, me: u32) -> Standing {
            let holder = |held: &Option<u32>| match held {
                Some(member) if *member == me => Holder::Me,
                Some(member) if self.members.contains(member) => Holder::Other,
                _ => Holder::Nobody,
            };
            Standing {
                members: u32::try_from(self.members.len()).unwrap(),
                rank: u32::try_from(self.members.iter().position(|each| *each == me).unwrap())
                    .unwrap(),
                shares: self.holders.iter().map(holder).collect(),
            }
        }

        fn turn(&mut self, coordination: Coordination, me: u32) {
            let plan = coordination.plan(&self.standing(me));
            for share in plan.give_up {
                self.holders[share as usize] = None;
            }
            for share in plan.claim {
                self.holders[share as usize] = Some(me);
            }
        }

        fn settle(&mut self, coordination: Coordination) -> Vec<usize> {
            for _ in 0..40 {
                for me in self.members.clone() {
                    self.turn(coordination, me);
                }
            }
            let count = |me: &u32| self.holders.iter().filter(|held| **held == Some(*me)).count();
            self.members.iter().map(count).collect()
        }
    }

    #[test]
    fn shares_are_divided_evenly_whoever_comes_and_goes() {
        let coordination = Coordination::Partitioned { shares: 16 };
        let mut group = Group { holders: vec![None; 16], members: vec![7] };
        assert_eq!(group.settle(coordination), [16]);
        group.members = vec![3, 7, 9];
        assert_eq!(group.settle(coordination), [6, 5, 5]);
        group.members = vec![3, 9];
        assert_eq!(group.settle(coordination), [8, 8]);
        group.members = (0..20).collect();
        let few = group.settle(coordination);
        assert_eq!((few.iter().sum::<usize>(), few.iter().max()), (16, Some(&1)));
    }

    #[test]
    fn nothing_moves_once_it_is_even() {
        let coordination = Coordination::Partitioned { shares: 7 };
        let mut group = Group { holders: vec![None; 7], members: vec![1, 2, 3] };
        group.settle(coordination);
        let before = group.holders.clone();
        group.settle(coordination);
        assert_eq!(group.holders, before);
    }

    #[test]
    fn of_leaders_there_is_one_and_the_next_takes_over() {
        let mut group = Group { holders: vec![None], members: vec![1, 2] };
        assert_eq!(group.settle(Coordination::Leader), [1, 0]);
        group.members = vec![2];
        assert_eq!(group.settle(Coordination::Leader), [1]);
    }

    #[test]
    fn competitors_take_turns_in_taking() {
        let coordination = Coordination::Competing { shares: 8 };
        let mut group = Group { holders: vec![None; 8], members: vec![1, 2] };
        assert_eq!(group.settle(coordination), [4, 4]);
        group.members = vec![2];
        assert_eq!(group.settle(coordination), [8]);
    }
}
