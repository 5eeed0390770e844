//! What a run does, from its seed.

use std::time::Duration;

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use semel_core::Schedule;
use semel_relay::{OnDead, Settings};
use semel_testkit::faults::Odds;

#[derive(Clone, Debug)]
pub(crate) struct Plan {
    pub(crate) seed: u64,
    pub(crate) lanes: u64,
    pub(crate) transactions: u64,
    pub(crate) odds: Odds,
    /// Whether the relays and consumers are killed, stopped and left behind as zombies.
    pub(crate) crashes: bool,
    /// How many events in a thousand the broker, or a handler, refuses.
    pub(crate) poison: u64,
    pub(crate) settings: Settings,
}

impl Plan {
    pub(crate) fn of_seed(seed: u64) -> Self {
        let mut random = StdRng::seed_from_u64(seed ^ 0x5e3e_1000);
        // One seed in eight is quiet, so that "nothing went wrong, so nothing came twice" is tested.
        let quiet = random.random_ratio(1, 8);
        let factor = [0.2, 1.0, 2.0][random.random_range(0..3)];
        let batch_events = random.random_range(1..=16);
        let attempts = std::iter::once(0).chain(std::iter::repeat_n(50, 24));
        Self {
            seed,
            lanes: random.random_range(1..=12),
            transactions: random.random_range(5..=45),
            odds: if quiet { Odds::none() } else { Odds::many().times(factor) },
            crashes: !quiet && random.random_ratio(3, 4),
            poison: if quiet { 0 } else { random.random_range(0..60) },
            settings: Settings {
                batch_events,
                in_flight_events: batch_events + random.random_range(0..32),
                in_flight_bytes: random.random_range(300..20_000),
                concurrency: Some(random.random_range(1..=4)),
                publish_timeout: Duration::from_secs(2),
                schedule: Schedule::new(attempts.map(Duration::from_millis).collect()),
                on_dead: if random.random() { OnDead::ParkLane } else { OnDead::SkipEvent },
                ..Settings::default()
            },
        }
    }

    pub(crate) fn is_quiet(&self) -> bool {
        self.odds.fails == 0.0
    }
}
