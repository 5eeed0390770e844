//! What a sink that delivers exactly once says of its messages, so that consumers can go by their
//! positions: `exactly-once CLUSTER/TOPIC`, or `replayed CLUSTER/TOPIC`.
//!
//! The place is part of it: a copy elsewhere, in a mirror or among dead letters, says nothing.

use semel_core::Publication;

pub(super) const HEADER: &str = "semel-delivery";

/// The stamps of one topic.
#[derive(Clone, Debug)]
pub(super) struct Stamps {
    first: String,
    again: String,
}

impl Stamps {
    pub(super) fn new(cluster: &str, topic: &str) -> Self {
        let (first, again) = (Publication::First, Publication::Again);
        let of = |publication| stamp(cluster, topic, publication).unwrap_or_default();
        Self { first: of(first), again: of(again) }
    }

    /// What a stamp says.
    pub(super) fn read(&self, stamp: &[u8]) -> Publication {
        if stamp == self.first.as_bytes() {
            Publication::First
        } else if stamp == self.again.as_bytes() {
            Publication::Again
        } else {
            Publication::Unknown
        }
    }
}

/// The stamp of a message, if there is something to say.
pub(super) fn stamp(cluster: &str, topic: &str, publication: Publication) -> Option<String> {
    let word = match publication {
        Publication::Unknown => return None,
        Publication::First => "exactly-once",
        Publication::Again => "replayed",
    };
    Some(format!("{word} {cluster}/{topic}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stamp_counts_in_its_place_alone() {
        for publication in [Publication::First, Publication::Again] {
            let stamp = stamp("c1", "orders", publication).unwrap();
            assert_eq!(Stamps::new("c1", "orders").read(stamp.as_bytes()), publication);
            for (cluster, topic) in [("c2", "orders"), ("c1", "orders.dead"), ("c1", "order")] {
                let read = Stamps::new(cluster, topic).read(stamp.as_bytes());
                assert_eq!(read, Publication::Unknown, "{cluster} {topic}");
            }
        }
        assert_eq!(stamp("c1", "orders", Publication::Unknown), None);
    }
}
