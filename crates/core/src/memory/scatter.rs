//! Where a key falls in a table.

use std::hash::{BuildHasher, Hasher, RandomState};

/// Scatters keys that are hashes already, with one multiplication.
///
/// They are spread evenly by themselves. Only somebody who tries names until their hashes have the
/// same bits could aim them at one place of a table, and where that is depends on numbers that each
/// table draws by chance and nobody outside can see.
pub(super) struct Scatter([u64; 2]);

/// A key on its way to its place.
pub(super) struct Scattered {
    seeds: [u64; 2],
    place: u64,
}

impl Default for Scatter {
    fn default() -> Self {
        let chance = RandomState::new();
        Self([chance.hash_one(0), chance.hash_one(1)])
    }
}

impl BuildHasher for Scatter {
    type Hasher = Scattered;

    fn build_hasher(&self) -> Scattered {
        Scattered { seeds: self.0, place: 0 }
    }
}

impl Hasher for Scattered {
    fn write(&mut self, bytes: &[u8]) {
        // Half of a hash is enough: nobody finds two that agree in 128 bits.
        let (words, _) = bytes.as_chunks::<8>();
        let word = |number: usize| words.get(number).map_or(0, |word| u64::from_le_bytes(*word));
        let [one, other] = self.seeds;
        let product = u128::from(word(0) ^ one) * u128::from(word(1) ^ other);
        // The upper half depends on all bits, the lower half on few: a table looks at both ends.
        let [low, high] = [product as u64, (product >> 64) as u64];
        self.place ^= low ^ high;
    }

    /// All keys are of the same length.
    fn write_usize(&mut self, _: usize) {}

    fn finish(&self) -> u64 {
        self.place
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;
    use std::hash::{BuildHasherDefault, DefaultHasher};

    use super::*;
    use crate::idempotency::ScopedKey;

    /// Chance deals badly with one table in fifty, which is still spread over a quarter of its places.
    #[test]
    fn keys_are_spread_over_both_ends_of_the_number() {
        const TABLES: u64 = 200;
        let numbers = BuildHasherDefault::<DefaultHasher>::default();
        let mut even = 0;
        for table in 0..TABLES {
            let scatter = Scatter([numbers.hash_one(2 * table), numbers.hash_one(2 * table + 1)]);
            let places = places_of_aimed_keys(&scatter);
            let ends = [0, 57].map(|shift| {
                let ends: HashSet<u64> = places.iter().map(|place| place >> shift & 0x7f).collect();
                ends.len()
            });
            assert!(ends.iter().all(|end| *end > 32), "{ends:?} of 128");
            even += u64::from(ends.iter().all(|end| *end > 100));
            let all: HashSet<&u64> = places.iter().collect();
            assert!(all.len() > 4090, "{} places for 4096 keys", all.len());
        }
        assert!(even * 100 >= TABLES * 95, "{even} of {TABLES} tables are even");
    }

    /// As aimed at one place as somebody can make them who does not know the seeds.
    fn places_of_aimed_keys(scatter: &Scatter) -> Vec<u64> {
        let place = |number: u64| {
            let mut bytes = [0; 32];
            bytes[..8].copy_from_slice(&number.to_be_bytes());
            scatter.hash_one(ScopedKey::from_bytes(bytes))
        };
        (0..4096).map(place).collect()
    }

    #[test]
    fn every_table_has_its_own_places() {
        let key = ScopedKey::new(&["k1"]);
        let place = || Scatter::default().hash_one(key);
        assert_ne!((place(), place()), (place(), place()));
    }
}
