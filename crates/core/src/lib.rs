//! The words and contracts of semel.
//!
//! This crate says what an event, a delivery, an outcome and a claim *are*, what a source, a sink
//! and a store must do, and how a failure becomes a decision. It does no I/O, starts no task, and
//! asks for the time only through [`Clock`]. Everything else in semel depends on it, and on
//! nothing beside it.
//!
//! Reading order:
//!
//! | module | what it holds |
//! |---|---|
//! | [`event`] | [`Event`], [`EventId`], [`Payload`], [`Headers`] |
//! | [`lane`] | [`Lane`]: the events that must stay in order |
//! | [`failure`] | [`Failure`] and its one-word verdict, [`Fault`] |
//! | [`delivery`] | [`Message`], [`Delivery`], [`Receipt`], [`Outcome`], [`Settlement`] |
//! | [`source`], [`sink`] | where deliveries come from, where they go |
//! | [`outbox`], [`inbox`] | the two contracts that share the caller's transaction |
//! | [`handling`], [`letters`], [`marks`] | what a consumer's handler answers; its dead letters; how far it got |
//! | [`idempotency`] | keys, claims with a fencing token, stored results |
//! | [`admin`] | what the command line and the page may ask and change |
//! | [`insight`] | what a database knows about the work on it, and who changed what |
//! | [`diagnosis`] | what `semel check` finds in a set-up |
//! | [`retry`] | the pure decision: fault, attempt, schedule, now → what follows |
//! | [`route`] | which topic an event goes to |
//! | [`coordination`] | several relays for one pipeline: leases, shares, and who takes what |
//! | [`wire`] | how an event looks in a broker, and how it is read back |
//! | [`clock`], [`secret`], [`telemetry`] | time, strings that cannot be printed, metric names |
//! | [`memory`] | every contract in memory, for tests, demos and quick starts |

pub mod admin;
pub mod clock;
pub mod coordination;
pub mod delivery;
pub mod diagnosis;
pub mod event;
pub mod failure;
pub mod handling;
pub mod idempotency;
pub mod inbox;
pub mod insight;
pub mod lane;
pub mod letters;
pub mod marks;
pub mod memory;
pub mod outbox;
pub mod retry;
pub mod route;
pub mod secret;
pub mod sink;
pub mod source;
pub mod telemetry;
pub mod wire;

pub use admin::AdminStore;
pub use clock::{Clock, SystemClock};
pub use delivery::{
    Delivery, Holding, Message, Outcome, Position, Publication, Receipt, Settlement, Topic,
};
pub use event::{Event, EventId, Headers, Payload};
pub use failure::{Failure, Fault};
pub use handling::HandlerError;
pub use idempotency::IdempotencyStore;
pub use inbox::InboxStore;
pub use insight::Insight;
pub use jiff::Timestamp;
pub use lane::{Lane, LaneKey};
pub use letters::DeadLetters;
pub use marks::Marks;
pub use outbox::OutboxWriter;
pub use retry::{Decision, Schedule};
pub use route::{Route, Routing, TopicTemplate};
pub use secret::Secret;
pub use sink::{Published, Sink, Verdict};
pub use source::{Batch, Guarantees, Limit, Source};
