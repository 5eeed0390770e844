//! [`Sink`] for Redis Streams.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use futures_util::future::join_all;
use redis::{RedisError, cmd, from_redis_value};
use semel_core::{Failure, Fault, Message, Published, Sink};
use tokio::time::{Instant, timeout_at};

use super::config::RedisConfig;
use super::entry::Entries;
use super::error::{failure, timed_out};
use super::link::{Dialler, Link};
use super::rounds::Rounds;

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
}

impl RedisSink {
    pub(super) async fn connect(config: RedisConfig) -> Result<Self, Failure> {
        crate::crypto::choose_provider();
        let config = Arc::new(config);
        let dialler = Arc::new(Dialler::new(Arc::clone(&config)));
        let sink = Self { config, dialler };
        let limit = sink.config.timeout;
        sink.in_time(limit, async |link| {
            warn_of_loss(link).await.map_err(|error| failure("ask for settings", error))
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
            let results = join_all(round.iter_mut().map(|part| link.run(part))).await;
            let mut failures = results.iter().filter_map(|result| result.as_ref().err());
            let outage = failures.find(|failure| failure.fault() == Fault::Unavailable).cloned();
            rounds.note(round.into_iter().zip(results));
            if let Some(failure) = outage {
                return Err(failure);
            }
        }
    }

    /// Does something over the link. After an outage it is not used again: it was lost or hangs, or
    /// after a failover the address leads to another server.
    async fn in_time(
        &self,
        limit: Duration,
        work: impl AsyncFnOnce(&Link) -> Result<(), Failure>,
    ) -> Result<(), Failure> {
        let deadline = Instant::now() + limit;
        let link =
            timeout_at(deadline, self.dialler.link()).await.map_err(|_| timed_out(limit))??;
        let done = timeout_at(deadline, work(&link)).await;
        let done = done.unwrap_or_else(|_| Err(timed_out(limit)));
        if done.as_ref().is_err_and(|failure| failure.fault() == Fault::Unavailable) {
            self.dialler.abandon(&link);
        }
        done
    }
}

#[async_trait]
impl Sink for RedisSink {
    async fn publish(&self, batch: &[Message]) -> Published {
        let mut rounds = Rounds::new(batch);
        let send = async |link: &Link| self.send(link, &mut rounds).await;
        match self.in_time(self.config.timeout, send).await {
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
        self.in_time(LIMIT, async |link| match link.ask(&probe).await {
            Err(error) if !is_about_the_probe(&error) => Err(failure("check", error)),
            _ => Ok(()),
        })
        .await
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

/// Says so when the server may lose what it confirmed. Without the right to ask, it says nothing.
async fn warn_of_loss(link: &Link) -> Result<(), RedisError> {
    let info = match link.ask(&cmd("INFO")).await {
        Ok(answer) => from_redis_value::<String>(answer).unwrap_or_default(),
        Err(error) if error.is_io_error() => return Err(error),
        Err(_) => return Ok(()),
    };
    let risks = risks(&info);
    if !risks.is_empty() {
        tracing::warn!("Redis may lose events that it confirmed: {}", risks.join("; "));
    }
    Ok(())
}

fn risks(info: &str) -> Vec<&'static str> {
    let says = |line: &str| info.lines().any(|known| known.trim() == line);
    let policy = info.lines().find_map(|line| line.trim().strip_prefix("maxmemory_policy:"));
    let mut risks = Vec::new();
    if policy.is_some_and(|policy| policy.starts_with("allkeys-")) {
        risks.push("it evicts streams when memory is short (set maxmemory-policy noeviction)");
    }
    if says("aof_enabled:0") {
        risks.push("a crash loses all since the last snapshot (set appendonly yes)");
    }
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
        let safe = "# Memory\r\nmaxmemory_policy:noeviction\r\naof_enabled:1\r\n";
        assert!(risks(safe).is_empty());
        // Only keys with an expiry are evicted, and streams have none.
        assert!(risks("maxmemory_policy:volatile-lru\r\n").is_empty());
        assert_eq!(risks("maxmemory_policy:allkeys-lru\r\naof_enabled:0\r\n").len(), 2);
    }
}
