//! Things that go wrong, by a seed: wrappers that make a source, a sink or an inbox fail, hesitate,
//! do it and report failure, do it twice, or never answer.
//!
//! One [`Chaos`] is shared by all wrappers of a run. It decides everything from its seed, so that a
//! run under tokio's paused clock on one thread is repeated exactly by the same seed.
//!
//! ```
//! use semel_core::memory::MemoryBroker;
//! use semel_testkit::faults::{Chaos, FaultySink, Odds};
//! use std::sync::Arc;
//!
//! let chaos = Arc::new(Chaos::new(42, Odds::many()));
//! let sink = FaultySink::new(MemoryBroker::new(), Arc::clone(&chaos));
//! chaos.calm(); // from now on nothing goes wrong
//! assert_eq!(chaos.tally().total(), 0);
//! # drop(sink);
//! ```

mod chaos;
mod inbox;
mod sink;
mod source;

pub use chaos::{Chaos, Odds, Tally};
pub use inbox::FaultyInbox;
pub use sink::FaultySink;
pub use source::FaultySource;
