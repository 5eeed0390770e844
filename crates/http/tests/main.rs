//! What clients see of the layer, over axum and the store in memory.

#![allow(missing_docs, clippy::unwrap_used, clippy::panic, clippy::expect_used)]

mod support;

mod concurrency;
mod crash;
mod grpc;
mod kept;
mod keys;
mod limits;
mod metrics;
mod misuse;
mod outage;
mod purge;
mod replay;
mod run;
mod scope;

#[cfg(feature = "axum")]
mod axum;
#[cfg(feature = "client")]
mod client;
