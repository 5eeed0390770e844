//! [`InboxStore`]: the messages each consumer has taken effect for, when the effect is in Redis.
//!
//! One string per consumer and message. It is the lock while a handler runs, and then the memory:
//!
//! | first byte | then | what |
//! |---|---|---|
//! | `L` | whose | a handler has it in hand; it expires with the lease |
//! | `D` | `1` and the result, or `0` | it took effect |
//! | `H` | the error | a command failed after others had taken effect |

use std::collections::HashSet;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::future::join_all;
use redis::{Arg, Cmd, RedisError, Value};
use semel_core::inbox::{InboxStore, Seen};
use semel_core::{EventId, Failure};
use tokio::runtime::Handle;
use tokio::time::{Instant, sleep};

use super::config::RedisConfig;
use super::error::{DOWN_CODE, busy, failure, half_an_effect, no_effect, strange_answer, too_late};
use super::keys::{PATIENCE, millis, risks};
use super::link::{Dialler, Link};
use super::script::Script;

/// How long an id is remembered unless the user says else.
const A_WEEK: Duration = Duration::from_secs(7 * 24 * 60 * 60);

/// As long as the engine waits for a handler, so that nobody is robbed of a message in hand.
const LEASE: Duration = Duration::from_secs(30);

/// Remembers in Redis which messages took effect there. Made by [`RedisConfig::connect_inbox`];
/// clones share the connection, which is made anew when it was lost.
///
/// The handler queues commands in a [`RedisTx`]; one script carries them out and remembers the id,
/// both or neither. **An effect anywhere else** (a table, a call to another service) is not part of
/// that: keep the inbox in the database that has the effect.
///
/// ```no_run
/// use semel_backends::redis::{RedisConfig, RedisTx, cmd};
/// use semel_core::Message;
/// use semel_relay::{Consumer, handler_fn};
///
/// # async fn run() -> Result<(), semel_core::Failure> {
/// let inbox = RedisConfig::new("redis://localhost:6379")?.key_prefix("{shop}:").connect_inbox().await?;
/// let count = handler_fn(|tx: &mut RedisTx, message: &Message| Box::pin(async move {
///     tx.queue(cmd("HINCRBY").arg("{shop}:orders").arg(&*message.event.aggregate_id).arg(1));
///     Ok(Default::default())
/// }));
/// let consumer = Consumer::new("statistics", inbox, count);
/// # let _ = consumer; Ok(()) }
/// ```
#[derive(Clone)]
pub struct RedisInbox {
    config: Arc<RedisConfig>,
    dialler: Arc<Dialler>,
    scripts: Arc<Scripts>,
    keep: Duration,
    lease: Duration,
}

struct Scripts {
    record: Script,
    commit: Script,
    forgo: Script,
}

impl RedisInbox {
    pub(super) async fn connect(config: RedisConfig) -> Result<Self, Failure> {
        crate::crypto::choose_provider();
        let config = Arc::new(config);
        let dialler = Arc::new(Dialler::new(Arc::clone(&config)));
        let load = async |link: &Link| {
            link.warn_of(risks).await?;
            Ok::<_, RedisError>(Scripts {
                record: Script::load(link, include_str!("scripts/record.lua")).await?,
                commit: Script::load(link, include_str!("scripts/commit.lua")).await?,
                forgo: Script::load(link, include_str!("scripts/forgo.lua")).await?,
            })
        };
        let load = async |link: &Link| {
            load(link).await.map_err(|error| failure("prepare the inbox", error))
        };
        let scripts = Arc::new(dialler.in_time(config.timeout, load).await?);
        Ok(Self { config, dialler, scripts, keep: A_WEEK, lease: LEASE })
    }

    /// How long a message is remembered after it took effect; 7 days unless set. One that comes
    /// again later than that takes effect again. It must be longer than the broker can repeat.
    #[must_use]
    pub fn keep(mut self, time: Duration) -> Self {
        self.keep = time;
        self
    }

    /// How long a handler may have a message in hand; 30 seconds unless set. Later its commit fails
    /// and nothing takes effect. After a crash a message is free again when this has passed.
    #[must_use]
    pub fn lease(mut self, time: Duration) -> Self {
        self.lease = time;
        self
    }

    fn name(&self, consumer: &str, id: EventId) -> String {
        format!("{}semel:inbox:{consumer}:{id}", self.config.key_prefix)
    }

    fn limit(&self) -> Duration {
        self.config.timeout.min(PATIENCE)
    }

    /// Takes the lock, if it is free or held by the caller already. A connection that turns out to
    /// be lost is replaced and the call made again, once.
    async fn take(&self, lock: &str, name: &str) -> Result<Value, Failure> {
        let lease = millis(self.lease);
        let call = async |link: &Link| {
            let arguments = [lock.as_bytes(), lease.as_bytes()];
            let answer = self.scripts.record.run(link, &[name], &arguments).await;
            answer.map_err(|error| failure("record a message", error))
        };
        match self.dialler.in_time(self.limit(), call).await {
            Err(failure) if failure.code() == DOWN_CODE => {
                self.dialler.in_time(self.limit(), call).await
            }
            answer => answer,
        }
    }

    /// Takes a lock, and waits for it while another has it.
    async fn lock(&self, tx: &mut RedisTx, name: &str) -> Result<Seen, Failure> {
        const LONGEST_PAUSE: Duration = Duration::from_millis(100);
        let (since, mut pause) = (Instant::now(), Duration::from_millis(5));
        loop {
            match self.take(&tx.lock, name).await? {
                Value::Int(1) => {
                    tx.held.push(Held { name: name.to_owned(), result: None });
                    return Ok(Seen::First);
                }
                Value::Int(0) if since.elapsed() < self.lease => sleep(pause).await,
                Value::Int(0) => return Err(busy(self.lease)),
                Value::BulkString(known) => return remembered(&known.into()),
                _ => return Err(strange_answer("record a message")),
            }
            pause = (pause * 2).min(LONGEST_PAUSE);
        }
    }

    /// The names whose lock was free; nothing, and none is held, when another has one of them.
    async fn take_all(
        &self,
        tx: &mut RedisTx,
        names: &[String],
    ) -> Result<Option<HashSet<String>>, Failure> {
        let answers = join_all(names.iter().map(|name| self.take(&tx.lock, name))).await;
        let before = tx.held.len();
        let (mut contended, mut outcome) = (false, Ok(()));
        for (name, answer) in names.iter().zip(answers) {
            match answer {
                Ok(Value::Int(1)) => tx.held.push(Held { name: name.clone(), result: None }),
                Ok(Value::Int(0)) => contended = true,
                Ok(Value::BulkString(known)) => {
                    outcome = outcome.and(remembered(&known.into()).map(drop));
                }
                Ok(_) => outcome = Err(strange_answer("record a message")),
                Err(failure) => outcome = Err(failure),
            }
        }
        outcome?;
        if contended {
            let taken = tx.held.split_off(before);
            self.forgo(&tx.lock, &taken).await;
            return Ok(None);
        }
        Ok(Some(tx.held[before..].iter().map(|held| held.name.clone()).collect()))
    }

    /// Lets others have what a transaction had in hand. Where that fails the lease ends it.
    async fn forgo(&self, lock: &str, held: &[Held]) {
        let names: Vec<_> = held.iter().map(|held| &*held.name).collect();
        let call = async |link: &Link| {
            let answer = self.scripts.forgo.run(link, &names, &[lock.as_bytes()]).await;
            answer.map_err(|error| failure("give a message up", error))
        };
        self.dialler.in_time(self.limit(), call).await.ok();
    }
}

/// Commands that take effect together with the memory of the messages they are for, or not at all.
///
/// Nothing is sent before the commit, so a command's answer cannot be had, and no command sees
/// those before it until then. What depends on a value is for one command that is atomic by itself
/// (`INCRBY`, `HSETNX`, `ZADD GT`). Scripts, transactions and blocking commands cannot be queued.
pub struct RedisTx {
    inbox: RedisInbox,
    lock: String,
    held: Vec<Held>,
    commands: Vec<Cmd>,
}

/// A message in hand, and what its handler returned.
struct Held {
    name: String,
    result: Option<Bytes>,
}

impl RedisTx {
    /// Adds a command to what the commit carries out, in this order.
    pub fn queue(&mut self, command: &Cmd) {
        self.commands.push(command.clone());
    }

    fn find(&mut self, name: &str) -> Option<&mut Held> {
        self.held.iter_mut().find(|held| held.name == name)
    }

    /// Everything at once, on the server.
    async fn carry_out(&self) -> Result<(), Failure> {
        let keep = millis(self.inbox.keep);
        let memories: Vec<_> = self.held.iter().map(Held::memory).collect();
        let mut words = vec![self.lock.as_bytes(), keep.as_bytes()];
        words.extend(memories.iter().map(Vec::as_slice));
        let counts: Vec<_> =
            self.commands.iter().map(|command| command.args_iter().count().to_string()).collect();
        for (command, count) in self.commands.iter().zip(&counts) {
            words.push(count.as_bytes());
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

impl InboxStore for RedisInbox {
    type Tx<'c> = RedisTx;

    /// Asks the server for nothing, but is connected to it afterwards.
    async fn begin(&self) -> Result<RedisTx, Failure> {
        self.dialler.in_time(self.limit(), async |_: &Link| Ok(())).await?;
        let (held, commands) = (Vec::new(), Vec::new());
        Ok(RedisTx { inbox: self.clone(), lock: format!("L{}", EventId::now()), held, commands })
    }

    /// Waits while another transaction has the same message in hand, as long as a lease at most.
    async fn record(
        &self,
        tx: &mut Self::Tx<'_>,
        consumer: &str,
        id: EventId,
    ) -> Result<Seen, Failure> {
        let name = self.name(consumer, id);
        match tx.find(&name) {
            Some(held) => Ok(Seen::Duplicate { result: held.result.clone() }),
            None => self.lock(tx, &name).await,
        }
    }

    /// Asks for all locks in one round trip. When another has one of them it gives back what it got
    /// and takes them one by one in the order of their names: who locks in the same order as all
    /// others does not wait in a circle.
    async fn record_all(
        &self,
        tx: &mut Self::Tx<'_>,
        consumer: &str,
        ids: &[EventId],
    ) -> Result<Vec<bool>, Failure> {
        let mut names: Vec<_> = ids.iter().map(|id| self.name(consumer, *id)).collect();
        names.sort_unstable();
        names.dedup();
        names.retain(|name| tx.find(name).is_none());
        let mut new: HashSet<String> = if let Some(taken) = self.take_all(tx, &names).await? {
            taken
        } else {
            let mut taken = HashSet::new();
            for name in names {
                if self.lock(tx, &name).await? == Seen::First {
                    taken.insert(name);
                }
            }
            taken
        };
        Ok(ids.iter().map(|id| new.remove(&self.name(consumer, *id))).collect())
    }

    async fn store_result(
        &self,
        tx: &mut Self::Tx<'_>,
        consumer: &str,
        id: EventId,
        result: Bytes,
    ) -> Result<(), Failure> {
        let name = self.name(consumer, id);
        if let Some(held) = tx.find(&name) {
            held.result = Some(result);
        }
        Ok(())
    }

    async fn commit(&self, mut tx: RedisTx) -> Result<(), Failure> {
        if tx.held.is_empty() && tx.commands.is_empty() {
            return Ok(());
        }
        let done = tx.carry_out().await;
        if done.is_ok() {
            tx.held.clear();
        }
        done
    }

    async fn rollback(&self, mut tx: RedisTx) {
        if !tx.held.is_empty() {
            self.forgo(&tx.lock, &tx.held).await;
            tx.held.clear();
        }
    }

    /// The server does it, when [`keep`](RedisInbox::keep) has passed.
    async fn forget(&self, _: Duration, _: usize) -> Result<usize, Failure> {
        Ok(0)
    }

    fn retention(&self) -> Option<Duration> {
        Some(self.keep)
    }
}

fn remembered(known: &Bytes) -> Result<Seen, Failure> {
    match known.get(..2) {
        Some(b"D0") => Ok(Seen::Duplicate { result: None }),
        Some(b"D1") => Ok(Seen::Duplicate { result: Some(known.slice(2..)) }),
        Some([b'H', _]) => Err(half_an_effect(&text(&known[1..]))),
        _ => Err(strange_answer("record a message")),
    }
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

impl fmt::Debug for RedisInbox {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RedisInbox")
            .field("config", &self.config)
            .field("keep", &self.keep)
            .field("lease", &self.lease)
            .finish_non_exhaustive()
    }
}

impl fmt::Debug for RedisTx {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RedisTx").field("commands", &self.commands.len()).finish_non_exhaustive()
    }
}
