//! What arrived, against what was committed.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

/// What arrived in each lane, in its order. A number below zero was never to arrive.
pub(crate) struct Ledger {
    lanes: BTreeMap<String, Vec<i64>>,
}

#[derive(Debug, Default, PartialEq, Eq)]
struct Findings {
    committed: u64,
    lost: u64,
    phantom: u64,
    reordered: u64,
    duplicates: usize,
}

impl Ledger {
    pub(crate) fn read(events: Vec<Value>) -> Self {
        let mut lanes: BTreeMap<String, Vec<i64>> = BTreeMap::new();
        for event in events {
            let lane = event["aggregate_id"].as_str().unwrap().to_owned();
            lanes.entry(lane).or_default().push(event["payload"].as_i64().unwrap());
        }
        Self { lanes }
    }

    pub(crate) fn summary(&self, written: &BTreeMap<String, u64>) -> String {
        format!("{:?}{}", self.findings(written), self.example(written))
    }

    /// What of the first lane with a loss is not there: the end of it, or a piece?
    fn example(&self, written: &BTreeMap<String, u64>) -> String {
        let missing = |(lane, count): (&String, &u64)| {
            let there = self.lanes.get(lane).map_or(&[][..], Vec::as_slice);
            let is_there = |number: &u64| i64::try_from(*number).is_ok_and(|n| there.contains(&n));
            let numbers: Vec<_> = (1..=*count).filter(|number| !is_there(number)).collect();
            (!numbers.is_empty())
                .then(|| format!("; of the {count} of lane {lane} these are missing: {numbers:?}"))
        };
        written.iter().find_map(missing).unwrap_or_default()
    }

    pub(crate) fn check(&self, written: &BTreeMap<String, u64>, duplicates: usize) {
        let found = self.findings(written);
        assert!(found.committed > 100, "too little was written: {found:?}");
        assert_eq!(
            (found.lost, found.phantom, found.reordered),
            (0, 0, 0),
            "{}",
            self.summary(written)
        );
        assert!(found.duplicates <= duplicates, "more than {duplicates} repeated: {found:?}");
    }

    fn findings(&self, written: &BTreeMap<String, u64>) -> Findings {
        let mut found = Findings { committed: written.values().sum(), ..Findings::default() };
        for (lane, count) in written {
            let arrived = self.lanes.get(lane).map_or(&[][..], Vec::as_slice);
            let mut seen = BTreeSet::new();
            let mut last = 0;
            for number in arrived {
                let Ok(number) = u64::try_from(*number) else {
                    found.phantom += 1;
                    continue;
                };
                if !seen.insert(number) {
                    found.duplicates += 1;
                    continue;
                }
                found.phantom += u64::from(number > *count);
                found.reordered += u64::from(number < last);
                last = number;
            }
            found.lost += (1..=*count).filter(|number| !seen.contains(number)).count() as u64;
        }
        found
    }
}

#[test]
fn the_ledger_finds_what_is_wrong() {
    let written = BTreeMap::from([("a".to_owned(), 3)]);
    let found = |numbers: &[i64]| {
        let lanes = BTreeMap::from([("a".to_owned(), numbers.to_vec())]);
        let Findings { lost, phantom, reordered, duplicates, .. } =
            Ledger { lanes }.findings(&written);
        (lost, phantom, reordered, duplicates)
    };
    assert_eq!(found(&[1, 2, 3]), (0, 0, 0, 0));
    assert_eq!(found(&[1, 2, 1, 2, 3]), (0, 0, 0, 2));
    assert_eq!(found(&[1, 3, 2]), (0, 0, 1, 0));
    assert_eq!(found(&[1, 2]), (1, 0, 0, 0));
    assert_eq!(found(&[1, 2, 3, 4]), (0, 1, 0, 0));
    assert_eq!(found(&[1, -2, 2, 3]), (0, 1, 0, 0), "rolled back");
}
