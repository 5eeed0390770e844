//! [`InboxStore`]: the messages each consumer has taken effect for, when the effect is in Redis.
//!
//! One string per consumer and message. It is the lock while a handler runs, and then the memory:
//!
//! | first byte | then | what |
//! |---|---|---|
//! | `L` | whose | a handler has it in hand; it expires with the lease |
//! | `D` | `1` and the result, or `0` | it took effect |
//! | `H` | the error | a command failed after others of the same message had taken effect |

mod tx;

use std::collections::HashSet;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::future::join_all;
use redis::{RedisError, Value};
use semel_core::inbox::{InboxStore, Seen};
use semel_core::{EventId, Failure};
use tokio::time::{Instant, sleep};

use super::config::RedisConfig;
use super::error::{DOWN_CODE, busy, failure, half_an_effect, strange_answer};
use super::keys::{PATIENCE, millis, risks};
use super::link::{Dialler, Link};
use super::script::Script;

use self::tx::Held;
pub use self::tx::RedisTx;

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
/// let consumer = Consumer::builder("statistics", inbox).build_with(count);
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

impl InboxStore for RedisInbox {
    type Tx<'c> = RedisTx;

    /// Asks the server for nothing, but is connected to it afterwards.
    async fn begin(&self) -> Result<RedisTx, Failure> {
        self.dialler.in_time(self.limit(), async |_: &Link| Ok(())).await?;
        Ok(RedisTx::new(self.clone()))
    }

    /// Waits while another transaction has the same message in hand, as long as a lease at most.
    async fn record(
        &self,
        tx: &mut Self::Tx<'_>,
        consumer: &str,
        id: EventId,
    ) -> Result<Seen, Failure> {
        tx.attend(None);
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
        tx.attend(None);
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

    fn attend(&self, tx: &mut Self::Tx<'_>, consumer: &str, id: EventId) {
        tx.attend(Some(&self.name(consumer, id)));
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
        if tx.is_empty() {
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
