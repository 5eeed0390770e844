//! What must stay in order: a [`Lane`] is one aggregate, and its events never overtake each other.
//!
//! Lanes are independent: one that waits behind a failed event never holds another back.

use std::fmt;

use xxhash_rust::xxh3::xxh3_64_with_seed;

/// The aggregate an event belongs to.
///
/// ```
/// # use semel_core::Lane;
/// let lane = Lane { aggregate_type: "order", aggregate_id: "42" };
/// let other = Lane { aggregate_type: "order4", aggregate_id: "2" };
/// assert_ne!(lane.key(), other.key());
/// assert_eq!(lane.to_string(), "order/42");
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Lane<'a> {
    /// The kind of thing.
    pub aggregate_type: &'a str,
    /// Which one of that kind.
    pub aggregate_id: &'a str,
}

impl Lane<'_> {
    /// The lane as one number. Two lanes that share a number only wait for each other.
    #[must_use]
    pub fn key(&self) -> LaneKey {
        let kind = xxh3_64_with_seed(self.aggregate_type.as_bytes(), 0);
        LaneKey(xxh3_64_with_seed(self.aggregate_id.as_bytes(), kind))
    }

    /// The lane as a scope of [`Marks`](crate::Marks): no two lanes share one, and none is longer
    /// than 255 characters.
    ///
    /// ```
    /// # use semel_core::Lane;
    /// let lane = Lane { aggregate_type: "order", aggregate_id: "42" };
    /// assert_eq!(lane.scope(), "5:order/42");
    /// assert_eq!(Lane { aggregate_id: &"4".repeat(255), ..lane }.scope().len(), 64);
    /// ```
    #[must_use]
    pub fn scope(&self) -> String {
        let scope = format!("{}:{self}", self.aggregate_type.len());
        if scope.len() <= 255 { scope } else { blake3::hash(scope.as_bytes()).to_string() }
    }
}

impl fmt::Display for Lane<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.aggregate_type, self.aggregate_id)
    }
}

/// A lane as one number, the same in every process and version.
///
/// ```
/// # use semel_core::{Lane, LaneKey};
/// let key = Lane { aggregate_type: "order", aggregate_id: "42" }.key();
/// assert!(key.partition(8) < 8);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct LaneKey(pub u64);

impl LaneKey {
    /// All messages of a log as one lane.
    #[must_use]
    pub fn of_log(name: &str) -> Self {
        Self(xxh3_64_with_seed(name.as_bytes(), 1))
    }

    /// Which of `count` partitions the lane belongs to.
    #[must_use]
    pub fn partition(self, count: u32) -> u32 {
        let count = u64::from(count.max(1));
        u32::try_from(self.0 % count).unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_never_change() {
        let key = Lane { aggregate_type: "order", aggregate_id: "42" }.key();
        assert_eq!(key, Lane { aggregate_type: "order", aggregate_id: "42" }.key());
        assert_eq!(key.partition(0), 0);
    }
}
