//! [`Source`] for Redis Streams: a member of a consumer group.

use std::collections::BTreeSet;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use futures_util::future::BoxFuture;
use semel_core::{
    Batch, EventId, Failure, Guarantees, Holding, Limit, Message, Outcome, Settlement, Source,
    Topic,
};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};

use super::SYSTEM;
use super::config::RedisConfig;
use super::group::{Entry, Fields, Group, Read, Stream, event_of, fields_of};
use super::watch::Watch;
use crate::subscription::Window;

/// Which streams a group reads, and how. Made by [`RedisConfig::subscribe`].
///
/// ```no_run
/// use semel_backends::redis::RedisConfig;
/// use std::time::Duration;
///
/// # async fn run() -> Result<(), semel_core::Failure> {
/// let subscription = RedisConfig::new("redis://localhost:6379")?
///     .subscribe("billing", ["orders"])
///     .claim_after(Duration::from_secs(60))
///     .open()
///     .await?;
/// # drop(subscription); Ok(()) }
/// ```
#[derive(Clone, Debug)]
pub struct RedisSubscriptionConfig {
    config: RedisConfig,
    group: String,
    topics: Vec<String>,
    dead_letters: Option<String>,
    claim_after: Duration,
    max_unsettled: usize,
    one_at_a_time: bool,
}

impl RedisSubscriptionConfig {
    pub(super) fn new(config: RedisConfig, group: String, topics: Vec<String>) -> Self {
        Self {
            config,
            group,
            topics,
            dead_letters: None,
            claim_after: Duration::from_secs(30),
            max_unsettled: 1_000,
            one_at_a_time: true,
        }
    }

    /// The stream of dead letters, after the key prefix; the topic and `.dead` unless set.
    #[must_use]
    pub fn dead_letters(mut self, topic: impl Into<String>) -> Self {
        self.dead_letters = Some(topic.into());
        self
    }

    /// When a member counts as gone: another takes over what it had in hand and has not cared for so
    /// long. A member that lives cares three times in that time, however slow its handler is. 30
    /// seconds unless set.
    #[must_use]
    pub fn claim_after(mut self, time: Duration) -> Self {
        self.claim_after = time;
        self
    }

    /// How many messages may be in hand before one is settled; 1,000 unless set.
    #[must_use]
    pub fn max_unsettled(mut self, messages: usize) -> Self {
        self.max_unsettled = messages.max(1);
        self
    }

    /// Lets all members work at the same time, without any order. Unless set, one member at a time
    /// has entries of a stream in hand, and the others wait: only that keeps a lane in its order.
    #[must_use]
    pub fn unordered(mut self) -> Self {
        self.one_at_a_time = false;
        self
    }

    /// Joins the group, and makes it (from the beginning of the stream) and the stream where there
    /// is none.
    ///
    /// # Errors
    /// `Unavailable` when the server cannot be reached, `Misconfigured` when it refuses the user.
    pub async fn open(self) -> Result<RedisSubscription, Failure> {
        let prefix = &self.config.key_prefix;
        let stream = |topic: &String| Stream {
            topic: Topic::from(topic.as_str()),
            key: format!("{prefix}{topic}"),
            dead: match &self.dead_letters {
                Some(dead) => format!("{prefix}{dead}"),
                None => format!("{prefix}{topic}.dead"),
            },
        };
        let streams: Vec<_> = self.topics.iter().map(stream).collect();
        let names = (self.group, format!("semel-{}", EventId::now()));
        let how = (self.claim_after, self.one_at_a_time);
        let group = Arc::new(Group::open(self.config, names, streams, how).await?);
        Ok(RedisSubscription::new(group, self.max_unsettled))
    }
}

/// A member of a consumer group. Made by [`RedisSubscriptionConfig::open`].
pub struct RedisSubscription {
    group: Arc<Group>,
    window: Window<Place>,
    held: Arc<Held>,
    watch: Watch,
    max_unsettled: usize,
    /// Where to go on claiming, for each stream, if all members work at the same time.
    cursors: Vec<String>,
    next_claim: Instant,
    /// The stream to begin with.
    turn: usize,
    /// Whether the server has more.
    more: bool,
    /// Whether asking at once again would bring nothing, whatever is new.
    waits: bool,
    _tasks: JoinSet<()>,
}

/// What the server recognises a message by.
#[derive(Clone, Debug)]
struct Place {
    stream: usize,
    id: String,
}

/// The ids in hand, stream by stream.
struct Held(Vec<Mutex<BTreeSet<String>>>);

impl Held {
    fn of(&self, stream: usize) -> MutexGuard<'_, BTreeSet<String>> {
        self.0[stream].lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn ids(&self, stream: usize) -> Vec<String> {
        self.of(stream).iter().cloned().collect()
    }
}

impl RedisSubscription {
    fn new(group: Arc<Group>, max_unsettled: usize) -> Self {
        let held = Arc::new(Held(group.streams.iter().map(|_| Mutex::default()).collect()));
        let mut tasks = JoinSet::new();
        tasks.spawn(care(Arc::clone(&group), Arc::clone(&held)));
        let watch = Watch::start(Arc::clone(&group), &mut tasks);
        Self {
            cursors: vec![START.to_owned(); group.streams.len()],
            group,
            window: Window::new(SYSTEM),
            held,
            watch,
            max_unsettled,
            next_claim: Instant::now(),
            turn: 0,
            more: false,
            waits: false,
            _tasks: tasks,
        }
    }

    /// Asks the server for what is abandoned and what is new.
    async fn fetch(&mut self, limit: Limit) -> Result<(), Failure> {
        self.more = false;
        let wanted = limit.events.saturating_sub(self.window.waiting());
        let room = self.window.room(self.max_unsettled);
        self.waits = room == 0;
        if wanted.min(room) == 0 {
            return Ok(());
        }
        let enough = self.window.waiting() + wanted.min(room);
        self.claim(wanted.min(room)).await?;
        let streams = self.group.streams.len();
        let mut busy = false;
        let turn = self.turn;
        for place in (0..streams).map(|step| (turn + step) % streams) {
            let missing = enough.saturating_sub(self.window.waiting());
            if missing == 0 {
                self.more = true;
                break;
            }
            busy |= self.read(place, missing).await?;
        }
        self.turn = (self.turn + 1) % streams.max(1);
        self.waits = busy;
        Ok(())
    }

    /// Takes over what other members left behind.
    async fn claim(&mut self, count: usize) -> Result<(), Failure> {
        if Instant::now() < self.next_claim {
            return Ok(());
        }
        let mut finished = true;
        for place in 0..self.group.streams.len() {
            finished &= self.take_over(place, count.min(MOST_CLAIMED)).await?;
        }
        if finished {
            self.next_claim = Instant::now() + (self.group.claim_after / 2).min(CLAIM_PAUSE);
        }
        Ok(())
    }

    /// Whether that was all, for now.
    async fn take_over(&mut self, place: usize, count: usize) -> Result<bool, Failure> {
        let group = Arc::clone(&self.group);
        let stream = &group.streams[place];
        if group.one_at_a_time {
            let held = self.held.of(place).len();
            let entries = group.inherit(stream, held, count).await?;
            let is_all = entries.is_empty();
            self.receive(place, entries).await?;
            return Ok(is_all);
        }
        let (cursor, entries) = group.claim(stream, &self.cursors[place], count).await?;
        let is_all = cursor == START;
        self.cursors[place] = cursor;
        self.receive(place, entries).await?;
        Ok(is_all)
    }

    /// Whether another member has the stream.
    async fn read(&mut self, place: usize, count: usize) -> Result<bool, Failure> {
        let group = Arc::clone(&self.group);
        let held = self.held.of(place).len();
        match group.read(&group.streams[place], held, count).await? {
            Read::Busy => Ok(true),
            Read::Entries { entries, more } => {
                self.receive(place, entries).await?;
                self.more |= more;
                Ok(false)
            }
        }
    }

    /// Keeps events in hand; what is none becomes a dead letter.
    async fn receive(&mut self, place: usize, entries: Vec<Entry>) -> Result<(), Failure> {
        let group = Arc::clone(&self.group);
        let stream = &group.streams[place];
        let mut unreadable: Vec<(String, Fields, Failure)> = Vec::new();
        let mut trimmed = Vec::new();
        for (id, fields) in entries {
            match fields.map(|fields| (event_of(&fields), fields)) {
                None => trimmed.push(id),
                Some((Err(failure), fields)) => unreadable.push((id, fields, failure)),
                Some((Ok(event), _)) => {
                    if self.held.of(place).insert(id.clone()) {
                        let message = Message::first(stream.topic.clone(), event);
                        self.window.receive(message, Place { stream: place, id });
                    }
                }
            }
        }
        if !trimmed.is_empty() {
            group.acknowledge(stream, &trimmed).await?;
        }
        for (id, fields, failure) in unreadable {
            group.bury(stream, &id, (&failure, 0), &fields).await?;
        }
        Ok(())
    }

    /// Tells the server what is done for good.
    async fn record(&self, settlements: &[Settlement]) -> Result<(), Failure> {
        for (place, stream) in self.group.streams.iter().enumerate() {
            let known = settlements.iter().filter_map(|settled| {
                let kept = self.window.get(settled.receipt)?;
                (kept.place.stream == place).then_some((kept, &settled.outcome))
            });
            let mut done = Vec::new();
            for (kept, outcome) in known {
                match outcome {
                    Outcome::Delivered => done.push(kept.place.id.clone()),
                    Outcome::Dead { attempts, failure, .. } => {
                        let (why, fields) = ((failure, *attempts), fields_of(&kept.message));
                        self.group.bury(stream, &kept.place.id, why, &fields).await?;
                    }
                    Outcome::Retry { .. } | Outcome::Released => {}
                }
            }
            if !done.is_empty() {
                self.group.acknowledge(stream, &done).await?;
            }
        }
        Ok(())
    }
}

#[async_trait]
impl Source for RedisSubscription {
    fn guarantees(&self) -> Guarantees {
        Guarantees { lane_order: self.group.one_at_a_time, parking: false }
    }

    async fn next_batch(&mut self, limit: Limit) -> Result<Batch, Failure> {
        match self.fetch(limit).await {
            Err(failure) if failure.to_string().contains("NOGROUP") => {
                self.group.make().await?;
                self.fetch(limit).await?;
            }
            fetched => fetched?,
        }
        let mut batch = self.window.hand_out(limit);
        batch.more |= self.more && !batch.deliveries.is_empty();
        Ok(batch)
    }

    fn wakeup(&mut self) -> BoxFuture<'static, ()> {
        if self.waits {
            return Box::pin(sleep(BUSY_PAUSE));
        }
        self.watch.next()
    }

    async fn settle(&mut self, settlements: &[Settlement]) -> Result<Holding, Failure> {
        self.record(settlements).await?;
        for Settlement { receipt, outcome } in settlements {
            if !outcome.is_final() {
                self.window.release(*receipt);
            } else if let Some(kept) = self.window.settle(*receipt) {
                self.held.of(kept.place.stream).remove(&kept.place.id);
            }
        }
        Ok(Holding::Held)
    }

    /// Lets others take over at once what is in hand, and leaves the group.
    async fn close(&mut self) {
        self._tasks.abort_all();
        for (place, stream) in self.group.streams.iter().enumerate() {
            let ids = self.held.ids(place);
            self.group.keep(stream, &ids, self.group.claim_after).await.ok();
        }
        self.group.leave().await.ok();
    }
}

/// Where claiming begins, and that it has seen everything.
const START: &str = "0-0";

/// How much is taken over at once: a script can name so many.
const MOST_CLAIMED: usize = 1_000;

/// How often it is looked for abandoned entries at least.
const CLAIM_PAUSE: Duration = Duration::from_secs(1);

/// How long to wait while another member works.
const BUSY_PAUSE: Duration = Duration::from_millis(100);

/// Tells the server, as long as the subscription lives, that it has not forgotten what it has.
async fn care(group: Arc<Group>, held: Arc<Held>) {
    loop {
        sleep(group.claim_after / 3).await;
        for (place, stream) in group.streams.iter().enumerate() {
            let ids = held.ids(place);
            // Where that fails the next call of the subscription says so.
            group.keep(stream, &ids, Duration::ZERO).await.ok();
        }
    }
}

impl fmt::Debug for RedisSubscription {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RedisSubscription")
            .field("group", &self.group.name)
            .field("member", &self.group.member)
            .field("streams", &self.group.streams)
            .finish_non_exhaustive()
    }
}
