//! What operators do: configure, look on, repair, prove; as they run it.

mod apart;
mod bulk;
#[cfg(all(feature = "mysql", feature = "page", feature = "postgres", feature = "webhook"))]
mod canary;
mod config;
mod drain;
mod init;
#[cfg(feature = "webhook")]
mod outages;
mod pages;
mod reload;
mod secrets;
#[cfg(unix)]
mod service;
mod start;
mod terminal;
#[cfg(any(feature = "otlp", feature = "page"))]
mod tokens;
mod verify;
mod watch;
mod wrong;
