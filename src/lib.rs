#![cfg_attr(feature = "sqlite", doc = include_str!("../README.md"))]
//!
//! # The library
//!
//! One dependency line gives everything: `semel = { version = "0.1", features = ["sqlite"] }`.
//!
//! | you | use |
//! |---|---|
//! | write events | [`OutboxWriter`], [`Event`], a database in [`backends`] |
//! | relay them | [`relay::Relay`] with a [`Source`] and a [`Sink`] |
//! | consume them | [`relay::Consumer`] with an [`InboxStore`] |
//! | serve HTTP | [`http`] (feature `http`, and `axum` for its extractors) with an [`IdempotencyStore`] |
//! | operate it | [`AdminStore`], [`dashboard`] (feature `dashboard`) |
//! | test your service | [`memory`]: every contract without a server |

#[cfg(feature = "backends")]
pub use semel_backends as backends;
pub use semel_core::*;
#[cfg(feature = "dashboard")]
pub use semel_dashboard as dashboard;
#[cfg(feature = "http")]
pub use semel_http as http;
pub use semel_relay as relay;
