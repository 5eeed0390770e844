//! Dead letters in a stream, read by `XRANGE` and taken out by `XDEL`: no group is made for it.

use std::str::from_utf8;
use std::sync::Arc;

use async_trait::async_trait;
use redis::{Cmd, FromRedisValue, cmd, from_redis_value};
use semel_core::wire::{Binding, Epitaph, Inscription};
use semel_core::{Failure, Receipt};

use super::arrivals::page;
use super::config::RedisConfig;
use super::error::{failure, strange_answer};
use super::group::{Fields, event_of};
use super::link::{Dialler, Link};
use crate::dead_queue::{DeadLetter, DeadQueue};
use crate::hand::Hand;

impl RedisConfig {
    /// The dead letters in a stream, whose name comes after the key prefix. They go back to streams
    /// with the same prefix. A stream that does not exist has none.
    ///
    /// # Errors
    /// `Unavailable` when the server cannot be reached, `Misconfigured` when it refuses the user.
    pub async fn dead_letters(&self, stream: &str) -> Result<Box<dyn DeadQueue>, Failure> {
        crate::crypto::choose_provider();
        let (config, key) = (Arc::new(self.clone()), format!("{}{stream}", self.key_prefix));
        let mut queue = RedisDeadQueue {
            dialler: Dialler::new(Arc::clone(&config)),
            config,
            count: 0,
            from: "-".to_owned(),
            last: None,
            hand: Hand::new(),
            key,
        };
        queue.count = queue.ask("count letters", cmd("XLEN").arg(&queue.key)).await?;
        let mut newest = cmd("XREVRANGE");
        newest.arg(&queue.key).arg("+").arg("-").arg("COUNT").arg(1);
        let newest: Vec<(String, Fields)> = queue.ask("look at letters", &newest).await?;
        queue.last = newest.into_iter().next().map(|(id, _)| id);
        Ok(Box::new(queue))
    }
}

struct RedisDeadQueue {
    config: Arc<RedisConfig>,
    dialler: Dialler,
    key: String,
    count: usize,
    /// Where to go on.
    from: String,
    /// The newest entry at the beginning, if there was one.
    last: Option<String>,
    hand: Hand<(String, Fields)>,
}

#[async_trait]
impl DeadQueue for RedisDeadQueue {
    fn count(&self) -> usize {
        self.count
    }

    async fn next(&mut self, most: usize) -> Result<Vec<DeadLetter>, Failure> {
        self.hand.clear();
        let Some(last) = &self.last else { return Ok(Vec::new()) };
        let (limit, between) = (self.config.timeout, (&*self.from, &**last));
        let some = page(&self.dialler, limit, &self.key, between, most).await?;
        if let Some((id, _)) = some.last() {
            self.from = format!("({id}");
        }
        Ok(some.into_iter().map(|entry| self.letter(entry)).collect())
    }

    async fn send(&self, letter: &DeadLetter, to: &str) -> Result<(), Failure> {
        let (_, fields) = self.hand.get(letter.receipt)?;
        let mut add = cmd("XADD");
        add.arg(format!("{}{to}", self.config.key_prefix)).arg("*");
        for (name, value) in fields {
            if !from_utf8(name).is_ok_and(Epitaph::has) {
                add.arg(name).arg(value);
            }
        }
        self.ask("send a letter back", &add).await.map(|_: String| ())
    }

    async fn remove(&mut self, letters: &[Receipt]) -> Result<(), Failure> {
        if letters.is_empty() {
            return Ok(());
        }
        let mut delete = cmd("XDEL");
        delete.arg(&self.key);
        for (id, _) in self.hand.all(letters) {
            delete.arg(id);
        }
        let _: usize = self.ask("delete letters", &delete).await?;
        self.hand.forget(letters);
        Ok(())
    }

    /// Nothing was taken from anybody.
    async fn close(&mut self) {
        self.hand.clear();
    }
}

impl RedisDeadQueue {
    fn letter(&mut self, entry: (String, Fields)) -> DeadLetter {
        let (_, fields) = &entry;
        let event = event_of(fields).ok();
        let text = fields
            .iter()
            .filter_map(|(name, value)| Some((from_utf8(name).ok()?, from_utf8(value).ok()?)));
        let said = Inscription::read(Binding::Redis, text);
        let home = said.as_ref().and_then(|said| said.origin.rsplit_once('@'));
        let home = home.map(|(stream, _)| stream.to_owned());
        DeadLetter::new(self.hand.take(entry), event, said, home)
    }

    async fn ask<T: FromRedisValue>(&self, doing: &str, command: &Cmd) -> Result<T, Failure> {
        let asking =
            async |link: &Link| link.ask(command).await.map_err(|error| failure(doing, error));
        let answer = self.dialler.in_time(self.config.timeout, asking).await?;
        from_redis_value(answer).map_err(|_| strange_answer(doing))
    }
}
