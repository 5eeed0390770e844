//! How long the layer takes beside a handler, with keys in memory, and how many replays one core
//! gives in a second. What it allocates is counted by the bench `allocations`: whoever counts takes
//! time for it.
//!
//! `./dev bench keys layer`. Argument: rounds (3).

#![expect(clippy::print_stdout, reason = "a program that prints figures")]
#![expect(clippy::cast_precision_loss, reason = "figures for people")]

mod requests;

use std::time::Instant;

use self::requests::{Measured, Meter};

struct Nanoseconds;

impl Meter for Nanoseconds {
    type Mark = Instant;

    fn begin() -> Instant {
        Instant::now()
    }

    fn end(begun: Instant) -> f64 {
        begun.elapsed().as_nanos() as f64
    }

    /// The median: some batches are interrupted on a busy machine.
    fn of_all(mut batches: Vec<f64>) -> f64 {
        batches.sort_by(f64::total_cmp);
        batches[batches.len() / 2]
    }
}

fn main() {
    let rounds = std::env::args().find_map(|argument| argument.parse().ok()).unwrap_or(3);
    for round in 1..=rounds {
        let Measured { bare, first, passed, replayed } = requests::measure::<Nanoseconds>();
        println!("round {round}:");
        println!("  bare handler: {:.2} µs", bare / 1e3);
        println!("  the layer adds to a first request: {:.2} µs", (first - bare) / 1e3);
        println!("  the layer adds to a request without a key: {:.2} µs", (passed - bare) / 1e3);
        println!("  a replay, with its request: {:.2} µs", replayed / 1e3);
        println!("  replays of one core: {:.0}/s", 1e9 / replayed);
    }
}
