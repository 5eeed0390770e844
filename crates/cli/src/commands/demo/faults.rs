//! What goes wrong on purpose: processes are killed at bad moments, confirmations are lost, and
//! deliveries come twice.
//!
//! A kill is as sudden as in real life: the future of the process is dropped where it stands, and
//! with it everything it had in memory. The seed decides after how many messages, and at which
//! moment; what else happens at that moment is up to the machine.

use std::collections::VecDeque;
use std::fmt;
use std::future::{Future, pending};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use futures_util::future::BoxFuture;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use semel_core::{
    Batch, Delivery, Failure, Guarantees, Holding, Limit, Message, Published, Receipt, Settlement,
    Sink, Source,
};
use tokio::sync::Notify;
use tokio::time::{sleep, timeout};

use crate::args::FaultLevel;

/// The bad luck of one process.
pub(super) struct Mishaps {
    process: &'static str,
    luck: Mutex<Luck>,
    killed: Notify,
    kills: AtomicU64,
    last: Arc<LastMishap>,
}

/// The last thing that went wrong anywhere, for people to read.
#[derive(Debug, Default)]
pub(super) struct LastMishap(Mutex<String>);

/// Where a process is hit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Mishap {
    /// Killed just before it does its work.
    KilledBefore,
    /// Killed in the middle of it.
    KilledDuring(Duration),
    /// Killed when the work is done and nobody knows it yet.
    KilledAfter,
    /// It lives, and never hears that the work is done.
    ReplyLost,
}

struct Luck {
    random: StdRng,
    kill: Countdown,
    lost_reply: Countdown,
    repeat: Countdown,
}

/// Strikes at random, once in `mean` messages.
struct Countdown {
    mean: Option<u64>,
    left: u64,
}

impl Mishaps {
    pub(super) fn new(
        process: &'static str,
        level: FaultLevel,
        seed: u64,
        last: &Arc<LastMishap>,
    ) -> Self {
        let salt = process.bytes().fold(seed, |salt, byte| salt.rotate_left(7) ^ u64::from(byte));
        let mut random = StdRng::seed_from_u64(salt);
        let mut every = |some: u64, many: u64| {
            let mean = match level {
                FaultLevel::None => None,
                FaultLevel::Some => Some(some),
                FaultLevel::Many => Some(many),
            };
            Countdown::new(mean, &mut random)
        };
        let (kill, lost_reply, repeat) = (every(300, 80), every(400, 160), every(60, 12));
        Self {
            process,
            luck: Mutex::new(Luck { random, kill, lost_reply, repeat }),
            killed: Notify::new(),
            kills: AtomicU64::new(0),
            last: Arc::clone(last),
        }
    }

    pub(super) fn process(&self) -> &'static str {
        self.process
    }

    /// How often the process was killed.
    pub(super) fn kills(&self) -> u64 {
        self.kills.load(Ordering::Relaxed)
    }

    /// What happens to the process in a call with so many messages.
    ///
    /// A large batch counts as a few messages only: a process that is behind must get somewhere
    /// between two kills.
    pub(super) fn strike(&self, messages: usize) -> Option<Mishap> {
        const LARGE: usize = 8;
        let messages = messages.min(LARGE);
        let mut luck = self.luck();
        let Luck { random, kill, lost_reply, .. } = &mut *luck;
        let (dies, goes_deaf) =
            (kill.passes(messages, random), lost_reply.passes(messages, random));
        match (dies, goes_deaf) {
            (true, _) => Some(match random.random_range(0..3) {
                0 => Mishap::KilledBefore,
                1 => Mishap::KilledDuring(Duration::from_micros(random.random_range(0..3000))),
                _ => Mishap::KilledAfter,
            }),
            (false, true) => Some(Mishap::ReplyLost),
            (false, false) => None,
        }
    }

    /// Ends the life of the process at this line.
    pub(super) async fn kill(&self, moment: &str) -> ! {
        self.kills.fetch_add(1, Ordering::Relaxed);
        self.last.note(format!("{} was killed {moment}", self.process));
        self.killed.notify_one();
        loop {
            pending::<()>().await;
        }
    }

    fn repeats(&self) -> bool {
        let mut luck = self.luck();
        let Luck { random, repeat, .. } = &mut *luck;
        repeat.passes(1, random)
    }

    fn luck(&self) -> MutexGuard<'_, Luck> {
        self.luck.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for Mishaps {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Mishaps").field("process", &self.process).finish_non_exhaustive()
    }
}

impl LastMishap {
    fn note(&self, what: String) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = what;
    }

    pub(super) fn read(&self) -> String {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

impl Countdown {
    fn new(mean: Option<u64>, random: &mut StdRng) -> Self {
        let mut countdown = Self { mean, left: 0 };
        countdown.restart(random);
        countdown
    }

    fn restart(&mut self, random: &mut StdRng) {
        if let Some(mean) = self.mean {
            self.left = random.random_range(1..=2 * mean);
        }
    }

    fn passes(&mut self, messages: usize, random: &mut StdRng) -> bool {
        if self.mean.is_none() {
            return false;
        }
        self.left = self.left.saturating_sub(messages as u64);
        let strikes = self.left == 0;
        if strikes {
            self.restart(random);
        }
        strikes
    }
}

/// Runs a process until it ends by itself; starts it again whenever it is killed.
pub(super) async fn survive<F>(mishaps: &Mishaps, start: impl Fn() -> F) -> Result<(), Failure>
where
    F: Future<Output = Result<(), Failure>>,
{
    /// What a restart takes.
    const RESTART: Duration = Duration::from_millis(15);
    loop {
        tokio::select! {
            ended = start() => return ended,
            () = mishaps.killed.notified() => sleep(RESTART).await,
        }
    }
}

/// A sink whose process is killed before, during or after a call, or does not hear its reply.
#[derive(Debug)]
pub(super) struct Unreliable<S> {
    sink: S,
    mishaps: Arc<Mishaps>,
    work: &'static str,
}

impl<S: Sink> Unreliable<S> {
    /// `work` completes "killed while it …".
    pub(super) fn new(sink: S, mishaps: Arc<Mishaps>, work: &'static str) -> Self {
        Self { sink, mishaps, work }
    }

    fn lose_reply(&self) -> Published {
        let what = format!("{} did not hear that its work was done", self.mishaps.process);
        self.mishaps.last.note(what.clone());
        Published::None(Failure::unavailable("E-DEMO-REPLY-LOST", what))
    }
}

#[async_trait]
impl<S: Sink> Sink for Unreliable<S> {
    async fn publish(&self, batch: &[Message]) -> Published {
        let work = self.work;
        match self.mishaps.strike(batch.len()) {
            None => self.sink.publish(batch).await,
            Some(Mishap::KilledBefore) => self.mishaps.kill(&format!("before it {work}")).await,
            Some(Mishap::KilledDuring(moment)) => {
                // Whether it had finished by then is what nobody can know.
                timeout(moment, self.sink.publish(batch)).await.ok();
                self.mishaps.kill(&format!("while it {work}")).await
            }
            Some(Mishap::KilledAfter) => {
                self.sink.publish(batch).await;
                self.mishaps.kill(&format!("after it {work}, before it could note that")).await
            }
            Some(Mishap::ReplyLost) => {
                self.sink.publish(batch).await;
                self.lose_reply()
            }
        }
    }

    async fn check(&self) -> Result<(), Failure> {
        self.sink.check().await
    }

    fn system(&self) -> Option<&'static str> {
        self.sink.system()
    }
}

/// A source that hands some messages out again later.
#[derive(Debug)]
pub(super) struct Repeating<S> {
    source: S,
    mishaps: Arc<Mishaps>,
    again: VecDeque<Message>,
    copies: u64,
}

impl<S: Source> Repeating<S> {
    /// Marks the receipts of copies, which the source does not know.
    const COPY: u64 = 1 << 63;

    pub(super) fn new(source: S, mishaps: Arc<Mishaps>) -> Self {
        Self { source, mishaps, again: VecDeque::new(), copies: 0 }
    }

    fn copy_of(&mut self, message: Message) -> Delivery {
        self.copies += 1;
        Delivery { message, receipt: Receipt(Self::COPY | self.copies) }
    }
}

#[async_trait]
impl<S: Source> Source for Repeating<S> {
    fn guarantees(&self) -> Guarantees {
        self.source.guarantees()
    }

    async fn next_batch(&mut self, limit: Limit) -> Result<Batch, Failure> {
        let mut batch = self.source.next_batch(limit).await?;
        let room = limit.events.saturating_sub(batch.deliveries.len()).min(self.again.len());
        let due: Vec<Message> = self.again.drain(..room).collect();
        for delivery in &batch.deliveries {
            if self.mishaps.repeats() {
                self.again.push_back(delivery.message.clone());
            }
        }
        for message in due {
            let copy = self.copy_of(message);
            batch.deliveries.push(copy);
        }
        batch.more |= !self.again.is_empty();
        Ok(batch)
    }

    fn wakeup(&mut self) -> BoxFuture<'static, ()> {
        self.source.wakeup()
    }

    async fn settle(&mut self, settlements: &[Settlement]) -> Result<Holding, Failure> {
        let originals: Vec<Settlement> = settlements
            .iter()
            .filter(|settlement| settlement.receipt.0 & Self::COPY == 0)
            .cloned()
            .collect();
        self.source.settle(&originals).await
    }

    async fn close(&mut self) {
        self.source.close().await;
    }
}
