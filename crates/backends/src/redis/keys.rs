//! [`IdempotencyStore`]: who runs an operation, and what it returned.
//!
//! One string per key, changed by one script each, so that every call is one round trip and all of
//! it happens in one slot of a cluster:
//!
//! | bytes | of a claim | of a result |
//! |---|---|---|
//! | 1 | `R` | `D` |
//! | 2–33 | fingerprint | fingerprint |
//! | 34–49 | when the lease ends, in microseconds, as digits | version (one byte), then the body |
//! | 50–65 | token, as digits | |
//! | 66–81 | claimant | |
//! | from 82 | attempt, as digits | |
//!
//! A node of a cluster that does not have the slot of a key says who does, and is believed.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use redis::{Cmd, RedisError, Value};
use semel_core::idempotency::{Claim, Fingerprint, IdempotencyStore, Record, ScopedKey, Token};
use semel_core::{Failure, Holding};
use uuid::Uuid;

use super::config::RedisConfig;
use super::error::{DOWN_CODE, failure, strange_answer};
use super::link::{Link, Settings};
use super::nodes::{Moved, Nodes};
use super::script::Script;

/// Idempotency keys in Redis. Made by [`RedisConfig::connect_keys`]; clones share the connection,
/// which is made anew when it was lost.
///
/// Leases and expiry are measured by the server's clock, and tokens are made from it. What is
/// expired the server deletes by itself.
///
/// ```no_run
/// use semel_backends::redis::RedisConfig;
/// use semel_core::idempotency::{Claim, Fingerprint, IdempotencyStore, ScopedKey};
/// use std::time::Duration;
///
/// # async fn run() -> Result<(), semel_core::Failure> {
/// let keys = RedisConfig::new("redis://localhost:6379")?.connect_keys().await?;
/// let (key, print) = (ScopedKey::new(&["acme", "charge", "k1"]), Fingerprint::new(&[b"99"]));
/// let claim = keys.claim(&key, &print, Duration::from_secs(30)).await?;
/// assert!(matches!(claim, Claim::Fresh { attempt: 1, .. }));
/// # Ok(()) }
/// ```
#[derive(Clone)]
pub struct RedisKeys {
    config: Arc<RedisConfig>,
    pub(super) nodes: Arc<Nodes>,
    scripts: Arc<Scripts>,
}

/// How long it is remembered that an operation was tried and abandoned.
const ABANDONED_FOR: Duration = Duration::from_secs(24 * 60 * 60);

/// Times are exact numbers in the server's scripts as long as they stay below 2^53 microseconds.
const LONGEST: Duration = Duration::from_secs(100 * 365 * 24 * 60 * 60);

/// Somebody waits for every answer; a server that hangs is found out soon.
pub(super) const PATIENCE: Duration = Duration::from_secs(5);

/// How long a result is before its body begins.
pub(super) const RESULT_HEAD: usize = 34;

macro_rules! if_held {
    ($change:literal) => {
        concat!(include_str!("scripts/held.lua"), include_str!(concat!("scripts/", $change)))
    };
}

const CLAIM: &str = include_str!("scripts/claim.lua");
const COMPLETE: &str = if_held!("complete.lua");
const RENEW: &str = if_held!("renew.lua");
const RELEASE: &str = if_held!("release.lua");

/// What a server is asked about a name.
#[derive(Clone, Copy)]
pub(super) enum Question<'a> {
    Script(&'a Script, &'a [&'a [u8]]),
    Command(&'a Cmd),
}

impl Question<'_> {
    async fn put(self, link: &Link, name: &str) -> Result<Value, RedisError> {
        match self {
            Self::Script(script, arguments) => script.run(link, &[name], arguments).await,
            Self::Command(command) => link.ask(command).await,
        }
    }
}

struct Scripts {
    claim: Script,
    complete: Script,
    renew: Script,
    release: Script,
}

impl RedisKeys {
    pub(super) async fn connect(config: RedisConfig) -> Result<Self, Failure> {
        crate::crypto::choose_provider();
        let config = Arc::new(config);
        let nodes = Arc::new(Nodes::new(Arc::clone(&config)));
        let load = async |link: &Link| {
            link.warn_of(risks).await?;
            Ok::<_, RedisError>(Scripts {
                claim: Script::load(link, CLAIM).await?,
                complete: Script::load(link, COMPLETE).await?,
                renew: Script::load(link, RENEW).await?,
                release: Script::load(link, RELEASE).await?,
            })
        };
        let load = async |link: &Link| {
            load(link).await.map_err(|error| failure("prepare to keep keys", error))
        };
        let scripts = Arc::new(nodes.first().in_time(config.timeout, load).await?);
        Ok(Self { config, nodes, scripts })
    }

    /// In braces: the part of the name that decides the slot.
    pub(super) fn name(&self, key: &ScopedKey) -> String {
        format!("{}{key}}}", self.name_start())
    }

    pub(super) fn name_start(&self) -> String {
        format!("{}semel:key:{{", self.config.key_prefix)
    }

    /// Runs a script on a key. A connection that turns out to be lost is replaced and the call
    /// made again, once: whoever repeats a call that did get through finds its own claim or result.
    async fn run(
        &self,
        doing: &str,
        script: &Script,
        key: &ScopedKey,
        arguments: &[&[u8]],
    ) -> Result<Value, Failure> {
        let name = self.name(key);
        self.on_the_right_node(&name, doing, Question::Script(script, arguments)).await
    }

    /// Asks the server that has a name.
    pub(super) async fn on_the_right_node(
        &self,
        name: &str,
        doing: &str,
        question: Question<'_>,
    ) -> Result<Value, Failure> {
        const REFERRALS: usize = 5;
        let limit = self.config.timeout.min(PATIENCE);
        let (mut node, mut may_repeat, mut referrals) = (self.nodes.of(name), true, 0);
        loop {
            let answer = node.in_time(limit, async |link: &Link| {
                question.put(link, name).await.map_or_else(
                    |error| match Moved::read(&error).filter(|_| referrals < REFERRALS) {
                        Some(moved) => Ok(Err(moved)),
                        None => Err(failure(doing, error)),
                    },
                    |value| Ok(Ok(value)),
                )
            });
            node = match answer.await {
                Ok(Ok(value)) => return Ok(value),
                Ok(Err(moved)) => self.nodes.follow(&moved),
                Err(failure) if may_repeat && failure.code() == DOWN_CODE => {
                    may_repeat = false;
                    self.nodes.instead_of(&node)
                }
                Err(failure) => return Err(failure),
            };
            referrals += 1;
        }
    }

    /// Runs a script that only the owner of a live claim may.
    async fn change(
        &self,
        doing: &str,
        script: &Script,
        key: &ScopedKey,
        token: Token,
        arguments: [&[u8]; 2],
    ) -> Result<Holding, Failure> {
        let token = format!("{:016}", token.0);
        let arguments = [token.as_bytes(), arguments[0], arguments[1]];
        match self.run(doing, script, key, &arguments).await? {
            Value::Int(1) => Ok(Holding::Held),
            Value::Int(0) => Ok(Holding::Lost),
            _ => Err(strange_answer(doing)),
        }
    }
}

#[async_trait]
impl IdempotencyStore for RedisKeys {
    async fn claim(
        &self,
        key: &ScopedKey,
        fingerprint: &Fingerprint,
        lease: Duration,
    ) -> Result<Claim, Failure> {
        const DOING: &str = "claim a key";
        let (lease, life) = (micros(lease), millis(lease.saturating_add(ABANDONED_FOR)));
        let claimant = Uuid::now_v7();
        let arguments: [&[u8]; 4] =
            [fingerprint.as_bytes(), lease.as_bytes(), life.as_bytes(), claimant.as_bytes()];
        let answer = self.run(DOING, &self.scripts.claim, key, &arguments).await?;
        read_claim(answer).ok_or_else(|| strange_answer(DOING))
    }

    async fn complete(
        &self,
        key: &ScopedKey,
        token: Token,
        record: Record,
        keep: Duration,
    ) -> Result<Holding, Failure> {
        let result = [&[record.version], record.body.as_ref()].concat();
        let life = millis(keep);
        let arguments = [result.as_slice(), life.as_bytes()];
        self.change("store a result", &self.scripts.complete, key, token, arguments).await
    }

    async fn renew(
        &self,
        key: &ScopedKey,
        token: Token,
        lease: Duration,
    ) -> Result<Holding, Failure> {
        let (lease, life) = (micros(lease), millis(lease.saturating_add(ABANDONED_FOR)));
        let arguments = [lease.as_bytes(), life.as_bytes()];
        self.change("renew a lease", &self.scripts.renew, key, token, arguments).await
    }

    async fn release(&self, key: &ScopedKey, token: Token) -> Result<Holding, Failure> {
        self.change("release a key", &self.scripts.release, key, token, [&[], &[]]).await
    }

    /// The server does it.
    async fn forget_expired(&self, _: usize) -> Result<usize, Failure> {
        Ok(0)
    }
}

fn read_claim(answer: Value) -> Option<Claim> {
    Some(match answer {
        Value::Nil => Claim::Mismatch,
        Value::Int(micros) => {
            let remaining = Duration::from_micros(micros.try_into().ok()?);
            Claim::InFlight { remaining }
        }
        Value::BulkString(held) if held.len() >= RESULT_HEAD => {
            let held = Bytes::from(held);
            let version = held[RESULT_HEAD - 1];
            Claim::Done(Record { version, body: held.slice(RESULT_HEAD..) })
        }
        Value::Array(fresh) => match fresh[..] {
            [Value::Int(token), Value::Int(attempt)] => Claim::Fresh {
                token: Token(token.try_into().ok()?),
                attempt: attempt.try_into().ok()?,
            },
            _ => return None,
        },
        _ => return None,
    })
}

fn micros(span: Duration) -> String {
    span.min(LONGEST).as_micros().to_string()
}

/// At least one: the server knows no shorter life.
pub(super) fn millis(span: Duration) -> String {
    span.min(LONGEST).as_micros().div_ceil(1000).max(1).to_string()
}

/// What may lose keys: a lost key looks like one that was never used.
pub(super) fn risks(settings: &Settings) -> Vec<&'static str> {
    let mut risks = Vec::new();
    if !settings.eviction.is_empty() && settings.eviction != "noeviction" {
        risks.push("it evicts keys when memory is short (set maxmemory-policy noeviction)");
    }
    risks.extend(settings.forgetful());
    risks
}

impl fmt::Debug for RedisKeys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RedisKeys").field("config", &self.config).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spans_stay_within_what_the_server_can_count() {
        assert_eq!((micros(Duration::ZERO), millis(Duration::ZERO)), ("0".into(), "1".into()));
        assert_eq!(millis(Duration::from_micros(1001)), "2");
        let longest: u64 = micros(Duration::MAX).parse().unwrap();
        assert!(longest < 1 << 53);
    }

    #[test]
    fn every_policy_that_evicts_may_lose_a_key() {
        let risks = |info| risks(&Settings::read(info)).len();
        assert_eq!(risks("maxmemory_policy:noeviction\r\naof_enabled:1\r\n"), 0);
        assert_eq!(risks("maxmemory_policy:volatile-ttl\r\naof_enabled:0\r\n"), 2);
        assert_eq!(risks(""), 0, "without the right to ask, it says nothing");
    }
}
