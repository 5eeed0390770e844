//! The real engine, twice (outbox → broker, broker → effect), on memory edges, under random faults
//! and crashes, in virtual time: thousands of runs, each repeated exactly by its seed.
//!
//! `SEMEL_SIM_SEEDS` sets how many seeds are run, `SEMEL_SIM_SEED` runs one and says what happened.

#![allow(
    clippy::expect_used,
    clippy::panic,
    clippy::print_stdout,
    clippy::unwrap_used,
    reason = "test code: a panic is how it reports"
)]

mod check;
mod mutants;
mod plan;
mod world;

use std::io::Write;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use mutants::Mutant;
use plan::Plan;
use world::Outcome;

const SEEDS: u64 = 20_000;
const SEEDS_PER_MUTANT: u64 = 2_000;

#[test]
fn no_seed_loses_doubles_or_reorders() {
    if let Some(seed) = number_from("SEMEL_SIM_SEED") {
        let outcome = run(seed, None);
        println!("{outcome:#?}");
        assert!(outcome.violations.is_empty());
        return;
    }
    let seeds = number_from("SEMEL_SIM_SEEDS").unwrap_or(SEEDS);
    let start = Instant::now();
    let total = run_all(seeds);
    say(&format!(
        "simulation: {seeds} seeds in {:.0?}: {} events, {} crashes, {} faults {:?}",
        start.elapsed(),
        total.events,
        total.crashes,
        total.faults.total(),
        total.faults,
    ));
    assert!(total.violations.is_empty(), "{:#?}", total.violations);
    assert!(total.faults.total() > seeds, "the simulation hardly injected any fault");
}

#[test]
fn every_known_mistake_is_caught() {
    let mut escaped = Vec::new();
    for mutant in Mutant::ALL {
        let caught = (0..SEEDS_PER_MUTANT).find_map(|seed| {
            let violations = run(seed, Some(mutant)).violations;
            violations.into_iter().next().map(|violation| (seed, violation))
        });
        match caught {
            Some((seed, violation)) => {
                say(&format!("mutant {mutant:?}: caught by seed {seed}: {violation}"));
            }
            None => escaped.push(mutant),
        }
    }
    assert!(escaped.is_empty(), "not caught: {escaped:?}");
}

#[test]
fn a_seed_repeats_exactly() {
    for seed in 0..500 {
        let (first, second) = (run(seed, None), run(seed, None));
        assert_eq!(format!("{first:?}"), format!("{second:?}"));
    }
}

fn run(seed: u64, mutant: Option<Mutant>) -> Outcome {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .start_paused(true)
        .build()
        .expect("a runtime");
    runtime.block_on(world::run(Plan::of_seed(seed), mutant))
}

fn run_all(seeds: u64) -> Outcome {
    let next = AtomicU64::new(0);
    let total = Mutex::new(Outcome::default());
    let threads = std::thread::available_parallelism().map_or(2, usize::from);
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                loop {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    if seed >= seeds {
                        break;
                    }
                    let outcome = run(seed, None);
                    total.lock().expect("no thread panics").add(seed, outcome);
                }
            });
        }
    });
    total.into_inner().expect("no thread panics")
}

/// Past the test harness, which hides what a test that passes prints.
fn say(line: &str) {
    writeln!(std::io::stderr(), "{line}").expect("standard error");
}

fn number_from(variable: &str) -> Option<u64> {
    std::env::var(variable).ok()?.parse().ok()
}
