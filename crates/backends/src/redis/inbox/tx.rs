//! A transaction of the inbox: the commands of handlers, until one script carries them out.

use std::fmt;

use bytes::Bytes;
use redis::{Arg, Cmd, Value};
use semel_core::{EventId, Failure};
use tokio::runtime::Handle;

use super::super::error::{failure, half_an_effect, no_effect, strange_answer, too_late};
use super::super::keys::millis;
use super::super::link::Link;
use super::super::script::MOST_WORDS;
use super::{RedisInbox, text};

/// Commands that take effect together with the memory of the messages they are for, or not at all.
///
/// Nothing is sent before the commit, so a command's answer cannot be had, and no command sees
/// those before it until then. What depends on a value is for one command that is atomic by itself
/// (`INCRBY`, `HSETNX`, `ZADD GT`). Scripts, transactions and blocking commands cannot be queued.
pub struct RedisTx {
    inbox: RedisInbox,
    pub(super) lock: String,
    pub(super) held: Vec<Held>,
    /// Which of the held messages commands are for; unless that is known, for all of them.
    attended: Option<usize>,
    commands: Vec<(Option<usize>, Cmd)>,
}

/// A message in hand, and what its handler returned.
pub(super) struct Held {
    pub(super) name: String,
    pub(super) result: Option<Bytes>,
}

impl RedisTx {
    pub(super) fn new(inbox: RedisInbox) -> Self {
        let lock = format!("L{}", EventId::now());
        Self { inbox, lock, held: Vec::new(), attended: None, commands: Vec::new() }
    }

    /// Adds a command to what the commit carries out, in this order.
    pub fn queue(&mut self, command: &Cmd) {
        self.commands.push((self.attended, command.clone()));
    }

    pub(super) fn is_empty(&self) -> bool {
        self.held.is_empty() && self.commands.is_empty()
    }

    pub(super) fn find(&mut self, name: &str) -> Option<&mut Held> {
        self.held.iter_mut().find(|held| held.name == name)
    }

    /// Commands are for this message from now on, or for all that are held.
    pub(super) fn attend(&mut self, name: Option<&str>) {
        self.attended = name.and_then(|name| self.held.iter().position(|held| held.name == name));
    }

    /// Lua stops a script in the middle that has too many words for one command.
    fn refuse_long_commands(&self) -> Result<(), Failure> {
        let longest = self.commands.iter().map(|(_, command)| command.args_iter().count()).max();
        match longest {
            Some(words) if words > MOST_WORDS => Err(too_many_words(words)),
            _ => Ok(()),
        }
    }

    /// Everything at once, on the server.
    pub(super) async fn carry_out(&self) -> Result<(), Failure> {
        self.refuse_long_commands()?;
        let keep = millis(self.inbox.keep);
        let memories: Vec<_> = self.held.iter().map(Held::memory).collect();
        let mut words = vec![self.lock.as_bytes(), keep.as_bytes()];
        words.extend(memories.iter().map(Vec::as_slice));
        let number = |(place, command): &(Option<usize>, Cmd)| {
            let place = place.map_or(0, |place| place + 1);
            (place.to_string(), command.args_iter().count().to_string())
        };
        let numbers: Vec<_> = self.commands.iter().map(number).collect();
        for ((_, command), (place, count)) in self.commands.iter().zip(&numbers) {
            words.extend([place.as_bytes(), count.as_bytes()]);
            words.extend(command.args_iter().map(|word| match word {
                Arg::Simple(word) => word,
                // The place of a cursor, for commands that scan; none of them has an effect.
                _ => b"0",
            }));
        }
        let names: Vec<_> = self.held.iter().map(|held| &*held.name).collect();
        let call = async |link: &Link| {
            let answer = self.inbox.scripts.commit.run(link, &names, &words).await;
            answer.map_err(|error| failure("commit", error))
        };
        let answer = self.inbox.dialler.in_time(self.inbox.limit(), call).await?;
        self.read(answer)
    }

    fn read(&self, answer: Value) -> Result<(), Failure> {
        match answer {
            Value::Int(1) => Ok(()),
            Value::Int(0) => Err(too_late(self.inbox.lease)),
            Value::Array(failed) => match &failed[..] {
                [Value::Int(0), Value::BulkString(error)] => Err(no_effect(&text(error))),
                [Value::Int(_), Value::BulkString(error)] => Err(half_an_effect(&text(error))),
                _ => Err(strange_answer("commit")),
            },
            _ => Err(strange_answer("commit")),
        }
    }
}

impl Held {
    fn memory(&self) -> Vec<u8> {
        match &self.result {
            Some(result) => [b"D1", result.as_ref()].concat(),
            None => b"D0".to_vec(),
        }
    }
}

impl Drop for RedisTx {
    fn drop(&mut self) {
        let held = std::mem::take(&mut self.held);
        if held.is_empty() {
            return;
        }
        if let Ok(runtime) = Handle::try_current() {
            let (inbox, lock) = (self.inbox.clone(), std::mem::take(&mut self.lock));
            runtime.spawn(async move { inbox.forgo(&lock, &held).await });
        }
    }
}

fn too_many_words(words: usize) -> Failure {
    let what = format!(
        "Redis: a command of the handler has {words} words, and a script can give it {MOST_WORDS}; \
         nothing took effect"
    );
    Failure::refused("E-REDIS-EFFECT-LONG", what)
        .with_fix("queue several commands of fewer words, then retry the dead letter")
}

impl fmt::Debug for RedisTx {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RedisTx").field("commands", &self.commands.len()).finish_non_exhaustive()
    }
}
