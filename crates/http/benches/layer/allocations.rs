//! How often the layer allocates beside a handler, with keys in memory.
//!
//! `./dev bench keys layer`

#![expect(clippy::print_stdout, reason = "a program that prints figures")]
#![expect(clippy::cast_precision_loss, reason = "figures for people")]

mod requests;

use std::alloc::System;

use stats_alloc::{INSTRUMENTED_SYSTEM, Region, StatsAlloc};

use self::requests::{Measured, Meter};

#[global_allocator]
static ALLOCATOR: &StatsAlloc<System> = &INSTRUMENTED_SYSTEM;

struct Allocations;

impl Meter for Allocations {
    type Mark = Region<'static, System>;

    fn begin() -> Self::Mark {
        Region::new(ALLOCATOR)
    }

    fn end(begun: Self::Mark) -> f64 {
        begun.change().allocations as f64
    }

    /// The mean: growing a table is part of it.
    fn of_all(batches: Vec<f64>) -> f64 {
        batches.iter().sum::<f64>() / batches.len() as f64
    }
}

fn main() {
    let Measured { bare, first, passed, replayed } = requests::measure::<Allocations>();
    println!("allocations:");
    println!("  bare handler: {bare:.1}");
    println!("  the layer adds to a first request: {:.1}", first - bare);
    println!("  the layer adds to a request without a key: {:.1}", passed - bare);
    println!("  a replay, with its request: {replayed:.1}");
}
