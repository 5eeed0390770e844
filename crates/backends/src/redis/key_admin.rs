//! [`KeyAdmin`]: what operators see of keys, and may do to them.

use std::collections::BTreeSet;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use futures_util::future::try_join_all;
use redis::{Cmd, FromRedisValue, Value, cmd, from_redis_value};
use semel_core::Failure;
use semel_core::idempotency::{KeyAdmin, KeyPage, KeyView, ScopedKey};

use super::error::{failure, strange_answer};
use super::keys::{PATIENCE, Question, RESULT_HEAD, RedisKeys};
use super::link::Dialler;

/// Longer than any claim.
const CLAIM_END: usize = 96;

impl RedisKeys {
    /// Asks the server that has a name.
    async fn ask<T: FromRedisValue>(
        &self,
        name: &str,
        doing: &str,
        command: &Cmd,
    ) -> Result<T, Failure> {
        let ask = self.on_the_right_node(name, doing, Question::Command(command));
        from_redis_value(ask.await?).map_err(|_| strange_answer(doing))
    }

    /// Asks this server.
    async fn ask_at<T: FromRedisValue>(
        &self,
        node: &Dialler,
        doing: &str,
        command: &Cmd,
    ) -> Result<T, Failure> {
        let ask = node.in_time(PATIENCE, async |link| {
            link.ask(command).await.map_err(|error| failure(doing, error))
        });
        from_redis_value(ask.await?).map_err(|_| strange_answer(doing))
    }

    /// The addresses of all servers that have keys; one that is empty stands for the server of the
    /// configuration, which is no part of a cluster.
    async fn addresses(&self) -> Result<Vec<String>, Failure> {
        const DOING: &str = "ask for the nodes of a cluster";
        let first = self.nodes.first();
        let slots = first.in_time(PATIENCE, async |link| {
            match link.ask(cmd("CLUSTER").arg("SLOTS")).await {
                Ok(slots) => Ok(Some(slots)),
                Err(error) if error.is_io_error() => Err(failure(DOING, error)),
                Err(_) => Ok(None),
            }
        });
        let Some(slots) = slots.await? else { return Ok(vec![String::new()]) };
        let ranges: Vec<Vec<Value>> = from_redis_value(slots).map_err(|_| strange_answer(DOING))?;
        let owner = |range: &Vec<Value>| -> Option<String> {
            let Value::Array(node) = range.get(2)? else { return None };
            let host: String = from_redis_value(node.first()?.clone()).ok()?;
            let port: u16 = from_redis_value(node.get(1)?.clone()).ok()?;
            Some(format!("{host}:{port}"))
        };
        let owners: BTreeSet<String> = ranges.iter().filter_map(owner).collect();
        Ok(owners.into_iter().collect())
    }

    /// What is stored under a name, at `now` in microseconds.
    async fn view(&self, key: ScopedKey, now: u64) -> Result<Option<KeyView>, Failure> {
        const DOING: &str = "look at a key";
        let name = self.name(&key);
        let head: Vec<u8> =
            self.ask(&name, DOING, cmd("GETRANGE").arg(&name).arg(0).arg(CLAIM_END)).await?;
        match head.first() {
            None => Ok(None),
            Some(b'D') => {
                let last: Vec<u8> =
                    self.ask(&name, DOING, cmd("GETRANGE").arg(&name).arg(-1).arg(-1)).await?;
                let length: usize = self.ask(&name, DOING, cmd("STRLEN").arg(&name)).await?;
                let life: i64 = self.ask(&name, DOING, cmd("PTTL").arg(&name)).await?;
                let Ok(life) = u64::try_from(life) else { return Ok(None) };
                let (version, bytes) = (head[RESULT_HEAD - 1], length.saturating_sub(RESULT_HEAD));
                let last = last.last().copied().filter(|_| bytes > 0);
                Ok(Some(KeyView::done(key, version, last, bytes, Duration::from_millis(life))))
            }
            Some(_) => {
                let digits = |range: &[u8]| std::str::from_utf8(range).ok()?.parse::<u64>().ok();
                let until = head.get(33..49).and_then(digits);
                let attempt = head.get(81..).and_then(digits);
                let (until, attempt) = until.zip(attempt).ok_or_else(|| strange_answer(DOING))?;
                let remaining = Duration::from_micros(until.saturating_sub(now));
                Ok(Some(KeyView::claimed(key, attempt.try_into().unwrap_or(u32::MAX), remaining)))
            }
        }
    }

    async fn now(&self) -> Result<u64, Failure> {
        let first = self.nodes.first();
        let (seconds, micros): (u64, u64) =
            self.ask_at(first, "ask for the time", &cmd("TIME")).await?;
        Ok(seconds * 1_000_000 + micros)
    }
}

#[async_trait]
impl KeyAdmin for RedisKeys {
    /// In the server's own order, one node of a cluster after the other; a page may be larger than
    /// asked for.
    async fn list(&self, after: Option<&str>, limit: usize) -> Result<KeyPage, Failure> {
        let (prefix, now) = (self.name_start(), self.now().await?);
        // What has a meaning in a pattern stands for itself.
        let escaped: String = prefix
            .chars()
            .flat_map(|c| "*?[]\\^-".contains(c).then_some('\\').into_iter().chain([c]))
            .collect();
        let addresses = self.addresses().await?;
        let mut place = after.map_or_else(|| Place::first_of(&addresses), Place::read);
        loop {
            let node = match place.address.as_str() {
                "" => Arc::clone(self.nodes.first()),
                address => self.nodes.at(address),
            };
            let mut scan = cmd("SCAN");
            scan.arg(&place.cursor)
                .arg("MATCH")
                .arg(format!("{escaped}*"))
                .arg("COUNT")
                .arg(limit.max(1));
            let (cursor, names): (String, Vec<String>) =
                self.ask_at(&node, "list keys", &scan).await?;
            let keys = names.iter().filter_map(|name| {
                name.strip_prefix(&prefix)?.strip_suffix('}')?.parse::<ScopedKey>().ok()
            });
            let views = try_join_all(keys.map(|key| self.view(key, now))).await?;
            let keys: Vec<_> = views.into_iter().flatten().collect();
            let next = place.next(cursor, &addresses);
            match next {
                Some(next) if keys.is_empty() => place = next,
                next => return Ok(KeyPage { keys, next: next.map(|next| next.to_string()) }),
            }
        }
    }

    async fn look(&self, key: &ScopedKey) -> Result<Option<KeyView>, Failure> {
        self.view(*key, self.now().await?).await
    }

    async fn free(&self, key: &ScopedKey) -> Result<bool, Failure> {
        let name = self.name(key);
        self.ask(&name, "free a key", cmd("DEL").arg(&name)).await
    }
}

/// Where a list of keys goes on: at which node, and where there.
struct Place {
    address: String,
    cursor: String,
}

impl Place {
    fn first_of(addresses: &[String]) -> Self {
        Self { address: addresses.first().cloned().unwrap_or_default(), cursor: "0".into() }
    }

    /// Reads what `Display` writes.
    fn read(text: &str) -> Self {
        let (address, cursor) = text.rsplit_once('/').unwrap_or(("", text));
        Self { address: address.into(), cursor: cursor.into() }
    }

    /// What follows, if anything does.
    fn next(&self, cursor: String, addresses: &[String]) -> Option<Self> {
        if cursor != "0" {
            return Some(Self { address: self.address.clone(), cursor });
        }
        let after = addresses.iter().find(|address| **address > self.address);
        after.map(|address| Self { address: address.clone(), cursor })
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if !self.address.is_empty() {
            write!(f, "{}/", self.address)?;
        }
        f.write_str(&self.cursor)
    }
}
