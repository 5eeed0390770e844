//! [`Sink`] for Redis Streams.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use futures_util::future::join_all;
use redis::{RedisError, cmd};
use semel_core::{Failure, Fault, Message, Published, Sink};

use super::config::RedisConfig;
use super::entry::Entries;
use super::error::{CLUSTER_CODE, failure, gave_away};
use super::link::{Dialler, Link, Settings};
use super::nodes::slot;
use super::owned::Owned;
use super::rounds::{Rounds, Transaction};

/// Publishes to Redis Streams. Made by [`RedisConfig::connect`]; clones share the connection, which
/// is made anew when it was lost.
///
/// What goes to one stream goes in one transaction (`MULTI` … `EXEC`): the server carries it out as
/// a whole or not at all, so that nothing of a lane is visible before what it follows. A lane whose
/// events go to several streams waits for each to be confirmed.
///
/// ```no_run
/// use semel_backends::redis::RedisConfig;
/// use semel_core::Sink;
///
/// # tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(async {
/// let sink = RedisConfig::new("redis://localhost:6379")?.connect().await?;
/// sink.check().await?;
/// # Ok::<(), semel_core::Failure>(()) }).unwrap();
/// ```
#[derive(Clone)]
pub struct RedisSink {
    config: Arc<RedisConfig>,
    dialler: Arc<Dialler>,
    owned: Arc<Owned>,
}

impl RedisSink {
    pub(super) async fn connect(config: RedisConfig) -> Result<Self, Failure> {
        crate::crypto::choose_provider();
        let config = Arc::new(config);
        let dialler = Arc::new(Dialler::new(Arc::clone(&config)));
        let sink = Self { config, dialler, owned: Arc::default() };
        let limit = sink.config.timeout;
        sink.dialler
            .in_time(limit, async |link| {
                link.warn_of(risks).await.map_err(|error| failure("ask for settings", error))
            })
            .await?;
        Ok(sink)
    }

    /// Sends round after round. Where it ends, on an error or because it is dropped, `rounds` knows.
    async fn send(&self, link: &Link, rounds: &mut Rounds<'_>) -> Result<(), Failure> {
        let entries = Entries {
            key_prefix: &self.config.key_prefix,
            max_len: self.config.max_len,
            max_field_bytes: link.max_field_bytes,
            format: self.config.format,
        };
        loop {
            let mut round = rounds.next(|message| entries.add(message));
            if round.is_empty() {
                return Ok(());
            }
            let results = join_all(round.iter_mut().map(|part| self.run(link, part))).await;
            let mut failures = results.iter().filter_map(|result| result.as_ref().err());
            let outage = failures.find(|failure| failure.fault() == Fault::Unavailable).cloned();
            rounds.note(round.into_iter().zip(results));
            if let Some(failure) = outage {
                return Err(failure);
            }
        }
    }

    /// A node that had the stream and does not have it any more was demoted: the address may lead to
    /// its successor.
    async fn run(&self, link: &Link, part: &mut Transaction<'_>) -> Result<(), Failure> {
        let slot = slot(&[self.config.key_prefix.as_str(), part.topic].concat());
        let done = link.run(part).await;
        match &done {
            Ok(()) => self.owned.note(slot),
            Err(failure) if failure.code() != CLUSTER_CODE => {}
            Err(_) if self.owned.was_just_lost(slot) => return done.map_err(gave_away),
            Err(_) => {}
        }
        done
    }
}

#[async_trait]
impl Sink for RedisSink {
    async fn publish(&self, batch: &[Message]) -> Published {
        let mut rounds = Rounds::new(batch);
        let send = async |link: &Link| self.send(link, &mut rounds).await;
        match self.dialler.in_time(self.config.timeout, send).await {
            Ok(()) => rounds.finish(),
            Err(failure) => rounds.give_up(&failure),
        }
    }

    /// Asks for a write that has no effect, because there is no such stream: it fails on all that
    /// would make a publish fail.
    async fn check(&self) -> Result<(), Failure> {
        const LIMIT: Duration = Duration::from_secs(5);
        let mut probe = cmd("XADD");
        probe.arg(format!("{}semel:probe", self.config.key_prefix)).arg("NOMKSTREAM");
        probe.arg("*").arg("probe").arg("");
        self.dialler
            .in_time(LIMIT, async |link| match link.ask(&probe).await {
                Err(error) if !is_about_the_probe(&error) => Err(failure("check", error)),
                _ => Ok(()),
            })
            .await
    }

    fn system(&self) -> Option<&'static str> {
        Some(super::SYSTEM)
    }
}

/// A user may be limited to names, and a node of a cluster to slots, that are not the probe's.
fn is_about_the_probe(error: &RedisError) -> bool {
    match error.code() {
        Some("NOPERM") => error.detail().is_some_and(|detail| detail.contains("key")),
        Some("MOVED" | "ASK" | "TRYAGAIN") => true,
        _ => false,
    }
}

/// What may lose events that the server confirmed.
fn risks(settings: &Settings) -> Vec<&'static str> {
    let mut risks = Vec::new();
    if settings.eviction.starts_with("allkeys-") {
        risks.push("it evicts streams when memory is short (set maxmemory-policy noeviction)");
    }
    risks.extend(settings.forgetful());
    risks
}

impl fmt::Debug for RedisSink {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RedisSink").field("config", &self.config).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_may_lose_events_is_known() {
        let risks = |info| risks(&Settings::read(info));
        let safe = "# Memory\r\nmaxmemory_policy:noeviction\r\naof_enabled:1\r\n";
        assert!(risks(safe).is_empty());
        // Only keys with an expiry are evicted, and streams have none.
        assert!(risks("maxmemory_policy:volatile-lru\r\n").is_empty());
        assert_eq!(risks("maxmemory_policy:allkeys-lru\r\naof_enabled:0\r\n").len(), 2);
    }
}
