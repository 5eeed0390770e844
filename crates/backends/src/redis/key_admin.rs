//! [`KeyAdmin`]: what operators see of keys, and may do to them.

use std::time::Duration;

use async_trait::async_trait;
use futures_util::future::try_join_all;
use redis::{Cmd, FromRedisValue, cmd, from_redis_value};
use semel_core::Failure;
use semel_core::idempotency::{KeyAdmin, KeyPage, KeyView, ScopedKey};

use super::error::{failure, strange_answer};
use super::keys::{PATIENCE, RESULT_HEAD, RedisKeys};

/// Longer than any claim.
const CLAIM_END: usize = 80;

impl RedisKeys {
    async fn ask<T: FromRedisValue>(&self, doing: &str, command: &Cmd) -> Result<T, Failure> {
        let ask = self.dialler.in_time(PATIENCE, async |link| {
            link.ask(command).await.map_err(|error| failure(doing, error))
        });
        from_redis_value(ask.await?).map_err(|_| strange_answer(doing))
    }

    /// What is stored under a name, at `now` in microseconds.
    async fn view(&self, key: ScopedKey, now: u64) -> Result<Option<KeyView>, Failure> {
        const DOING: &str = "look at a key";
        let name = self.name(&key);
        let head: Vec<u8> =
            self.ask(DOING, cmd("GETRANGE").arg(&name).arg(0).arg(CLAIM_END)).await?;
        match head.first() {
            None => Ok(None),
            Some(b'D') => {
                let last: Vec<u8> =
                    self.ask(DOING, cmd("GETRANGE").arg(&name).arg(-1).arg(-1)).await?;
                let length: usize = self.ask(DOING, cmd("STRLEN").arg(&name)).await?;
                let life: i64 = self.ask(DOING, cmd("PTTL").arg(&name)).await?;
                let Ok(life) = u64::try_from(life) else { return Ok(None) };
                let (version, bytes) = (head[RESULT_HEAD - 1], length.saturating_sub(RESULT_HEAD));
                let last = last.last().copied().filter(|_| bytes > 0);
                Ok(Some(KeyView::done(key, version, last, bytes, Duration::from_millis(life))))
            }
            Some(_) => {
                let digits = |range: &[u8]| std::str::from_utf8(range).ok()?.parse::<u64>().ok();
                let until = head.get(33..49).and_then(digits);
                let attempt = head.get(65..).and_then(digits);
                let (until, attempt) = until.zip(attempt).ok_or_else(|| strange_answer(DOING))?;
                let remaining = Duration::from_micros(until.saturating_sub(now));
                Ok(Some(KeyView::claimed(key, attempt.try_into().unwrap_or(u32::MAX), remaining)))
            }
        }
    }

    async fn now(&self) -> Result<u64, Failure> {
        let (seconds, micros): (u64, u64) = self.ask("ask for the time", &cmd("TIME")).await?;
        Ok(seconds * 1_000_000 + micros)
    }
}

#[async_trait]
impl KeyAdmin for RedisKeys {
    /// In the server's own order; a page may be larger than asked for.
    async fn list(&self, after: Option<&str>, limit: usize) -> Result<KeyPage, Failure> {
        let (prefix, now) = (self.name_start(), self.now().await?);
        // What has a meaning in a pattern stands for itself.
        let escaped: String = prefix
            .chars()
            .flat_map(|c| "*?[]\\^-".contains(c).then_some('\\').into_iter().chain([c]))
            .collect();
        let mut place = after.unwrap_or("0").to_owned();
        loop {
            let mut scan = cmd("SCAN");
            scan.arg(&place).arg("MATCH").arg(format!("{escaped}*")).arg("COUNT").arg(limit.max(1));
            let (next, names): (String, Vec<String>) = self.ask("list keys", &scan).await?;
            let keys = names.iter().filter_map(|name| {
                name.strip_prefix(&prefix)?.strip_suffix('}')?.parse::<ScopedKey>().ok()
            });
            let views = try_join_all(keys.map(|key| self.view(key, now))).await?;
            let keys: Vec<_> = views.into_iter().flatten().collect();
            let is_last = next == "0";
            if is_last || !keys.is_empty() {
                return Ok(KeyPage { keys, next: (!is_last).then_some(next) });
            }
            place = next;
        }
    }

    async fn look(&self, key: &ScopedKey) -> Result<Option<KeyView>, Failure> {
        self.view(*key, self.now().await?).await
    }

    async fn free(&self, key: &ScopedKey) -> Result<bool, Failure> {
        self.ask("free a key", cmd("DEL").arg(self.name(key))).await
    }
}
