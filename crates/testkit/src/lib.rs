//! What every backend of semel must pass, and the tools to test with. For tests only: nothing may
//! depend on it except as a dev-dependency.
//!
//! | module | what it holds |
//! |---|---|
//! | [`suites`] | one suite per contract of `semel-core`, a macro for each |
//! | [`probe`] | what a backend's test implements so that the suites can drive it |
//! | [`workload`] | numbered events in lanes, and what came out of a source |
//! | [`services`] | where the servers are that tests need |
//! | [`proxy`] | a TCP proxy that cuts connections and loses replies |
//! | [`faults`] | things that go wrong, by a seed |
//! | [`fuzz`] | examples, changed at random |
//! | [`clock`] | a clock that follows tokio's, which can be paused |
//!
//! A backend's test is one type that implements [`probe::Probe`] and the probe of each contract the
//! backend fills, and one macro call per contract:
//!
//! ```
//! use semel_core::memory::MemoryKeys;
//! use semel_testkit::{probe::Probe, suites::idempotency::IdempotencyProbe};
//!
//! struct Keys(MemoryKeys);
//!
//! impl Probe for Keys {
//!     const BACKEND: &'static str = "memory keys";
//!
//!     async fn fresh() -> Option<Self> {
//!         Some(Self(MemoryKeys::new()))
//!     }
//! }
//!
//! impl IdempotencyProbe for Keys {
//!     type Store = MemoryKeys;
//!
//!     fn store(&self) -> &MemoryKeys {
//!         &self.0
//!     }
//! }
//!
//! semel_testkit::idempotency_suite!(Keys);
//! # fn main() {}
//! ```
//!
//! Each scenario becomes one test with its own [`Probe::fresh`](probe::Probe::fresh) instance.
//! What a backend cannot do is skipped and printed as one line:
//! `SKIPPED source::a_dead_event_parks_its_lane for memory subscription: it does not park lanes`.

#![expect(
    clippy::expect_used,
    clippy::panic,
    reason = "this crate is test code: a panic is how it reports"
)]

pub mod clock;
pub mod faults;
pub mod fuzz;
pub mod made;
pub mod probe;
pub mod proxy;
pub mod services;
pub mod suites;
pub mod workload;
