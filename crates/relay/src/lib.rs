//! The engine of semel: it takes deliveries from a [`Source`](semel_core::Source), keeps each lane
//! in order, publishes to a [`Sink`](semel_core::Sink), and settles what became of each one.
//!
//! The same engine relays an outbox to a broker and a broker to a consumer's effect: a consumer is
//! a sink that opens the inbox transaction.
//!
//! ```
//! use semel_core::memory::{MemoryBroker, MemoryDatabase};
//! use semel_core::{Event, OutboxWriter};
//! use semel_relay::{Relay, Routed, Stop};
//!
//! # tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap().block_on(async {
//! let (database, broker) = (MemoryDatabase::new(), MemoryBroker::new());
//! let mut tx = database.begin().await;
//! database.append(&mut tx, &[Event::new("order", "42", "OrderPlaced")]).await?;
//! tx.commit();
//!
//! let sink = Routed::new(broker.clone(), "{aggregate_type}.events".parse()?);
//! let report = Relay::new("orders", database.source(), sink).drain(Stop::never()).await?;
//! assert_eq!(report.published, 1);
//! assert_eq!(broker.messages()[0].topic.as_str(), "order.events");
//! # Ok::<(), Box<dyn std::error::Error>>(()) }).unwrap();
//! ```
//!
//! | file | what it does |
//! |---|---|
//! | `relay.rs` | the loop: fetch, publish, settle, wait |
//! | `lanes.rs` | order: which held events may be published now |
//! | `verdict.rs` | what each verdict of the sink means for the event and its lane |
//! | `publish.rs` | one publish call: time limit, panics, probe |
//! | `circuit.rs` | outages: stop sending, probe, go on |
//! | `alert.rs` | dead letters are told to somebody |
//! | `consume/` | handlers as a sink, inside the inbox transaction; dead letters of their own |
//! | `group/` | several relays for one pipeline |
//! | `pulse.rs` | whether the loops still turn, what they do, and why they wait |
//! | `routed.rs` | where each message goes |
//! | `fanout.rs` | several sinks as one |
//! | `settings.rs`, `stop.rs`, `metrics.rs` | knobs, shutdown, numbers |

mod alert;
mod circuit;
mod conductor;
mod consume;
mod fanout;
mod group;
mod lanes;
mod metrics;
mod mutation;
mod publish;
mod pulse;
mod relay;
mod routed;
mod settings;
#[cfg(feature = "trace")]
mod spans;
mod stop;
mod verdict;

pub use consume::{
    Consumer, ConsumerBuilder, EventFn, Handler, HandlerFn, Handlers, OutOfOrder, StatefulEventFn,
    Unknown, handler_fn,
};
pub use fanout::Fanout;
pub use group::Group;
#[cfg(feature = "mutants")]
pub use mutation::Mutation;
pub use pulse::{Doing, Pulse};
pub use relay::{Relay, Report};
pub use routed::Routed;
pub use settings::{OnDead, Settings};
pub use stop::{Stop, Stopper};
