//! The state of a running relay, and its turns.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use semel_core::retry::Decision;
use semel_core::{
    Batch, Clock, Failure, Fault, Guarantees, Holding, Limit, Message, Outcome, Published, Receipt,
    Settlement, Sink, Source, Timestamp,
};
use tokio::task::{JoinError, JoinSet};
use tokio::time::{Instant, sleep_until};

use crate::circuit::Circuit;
use crate::lanes::{Held, LaneSet, Lanes};
use crate::metrics::PipelineMetrics;
use crate::mutation::Mutation;
use crate::publish::{Finished, probe, publish};
use crate::relay::{Relay, Report};
use crate::settings::Settings;
use crate::stop::{Level, Stop};
use crate::verdict::{Fate, Judge, StoppedLane};

/// Owns everything a relay knows.
pub(crate) struct Conductor {
    name: String,
    settings: Settings,
    clock: Arc<dyn Clock>,
    metrics: PipelineMetrics,
    stop: Stop,
    stop_by: Option<Instant>,
    drains: bool,

    /// Away while it fetches or settles, in `source_work`.
    source: Option<Box<dyn Source>>,
    source_work: Option<BoxFuture<'static, SourceWork>>,
    guarantees: Guarantees,
    source_circuit: Circuit,
    asking: Asking,
    unsettled: Unsettled,
    /// Lanes given back since the last settle began: what a fetch brings of them is stale.
    recalled: LaneSet,

    sink: Arc<dyn Sink>,
    sink_circuit: Circuit,
    lanes: Lanes,
    publishing: usize,
    held: Amount,

    sink_work: JoinSet<SinkWork>,
    fatal: Option<Failure>,
    report: Report,
}

/// What the source did. It works on the conductor's own task: it mostly waits for its store, and
/// a task of its own would cost two wake-ups per batch.
enum SourceWork {
    Fetched(Box<dyn Source>, Result<Batch, Failure>),
    Settled(Box<dyn Source>, Unsettled, Result<Holding, Failure>),
    Panicked,
}

/// What the sink did, on a task of its own.
enum SinkWork {
    Published(Finished),
    Probed(Result<(), Failure>),
}

/// When to ask the source next.
enum Asking {
    Now,
    Idle { until: Instant, wakeup: BoxFuture<'static, ()>, retry_waits: bool },
}

/// Outcomes on their way to the source.
#[derive(Default)]
struct Unsettled {
    settlements: Vec<Settlement>,
    bytes: usize,
}

#[derive(Clone, Copy, Default)]
struct Amount {
    events: usize,
    bytes: usize,
}

impl Conductor {
    pub(crate) fn new(relay: Relay, stop: Stop, drains: bool) -> Self {
        let Relay { name, source, sink, settings, clock } = relay;
        let now = Instant::now();
        let mut source_circuit = Circuit::untested(now);
        source_circuit.close();
        Self {
            metrics: PipelineMetrics::new(&name),
            name,
            clock,
            stop,
            stop_by: None,
            drains,
            guarantees: source.guarantees(),
            source: Some(source),
            source_work: None,
            source_circuit,
            asking: Asking::Now,
            unsettled: Unsettled::default(),
            recalled: LaneSet::default(),
            sink,
            sink_circuit: Circuit::untested(now),
            lanes: Lanes::new(!settings.makes(Mutation::NoLaneExclusion)),
            publishing: 0,
            held: Amount::default(),
            sink_work: JoinSet::new(),
            fatal: None,
            report: Report::default(),
            settings,
        }
    }

    pub(crate) async fn run(mut self) -> Result<Report, Failure> {
        loop {
            let now = Instant::now();
            self.lanes.wake_due(self.clock.now());
            self.start_probe(now);
            self.start_publishing();
            self.start_with_source(now);
            if self.is_done(now) {
                break;
            }
            self.wait(now).await;
        }
        self.report.abandoned = self.held.events as u64;
        if let Some(mut source) = self.source.take() {
            source.close().await;
        }
        match self.fatal {
            Some(failure) => Err(failure),
            None => Ok(self.report),
        }
    }

    /// Whether nothing new is started: what is under way is finished and settled.
    fn is_finishing(&self) -> bool {
        self.fatal.is_some() || self.stop.level() != Level::Run
    }

    fn is_done(&self, now: Instant) -> bool {
        let at_rest =
            self.publishing == 0 && self.source.is_some() && self.unsettled.settlements.is_empty();
        if self.is_finishing() {
            let overdue = self.stop_by.is_some_and(|deadline| now >= deadline);
            return at_rest || overdue || self.stop.level() == Level::Leave;
        }
        let source_is_empty = matches!(self.asking, Asking::Idle { retry_waits: false, .. });
        self.drains && at_rest && self.held.events == 0 && source_is_empty
    }

    fn start_probe(&mut self, now: Instant) {
        let due = self.sink_circuit.probe_at().is_some_and(|at| at <= now);
        if due && !self.is_finishing() {
            self.sink_circuit.start_probe();
            let (sink, limit) = (Arc::clone(&self.sink), self.settings.publish_timeout);
            self.sink_work.spawn(async move { SinkWork::Probed(probe(sink, limit).await) });
        }
    }

    fn start_publishing(&mut self) {
        while self.publishing < self.settings.concurrency
            && self.sink_circuit.is_closed()
            && self.lanes.has_ready()
            && !self.is_finishing()
        {
            let Some(group) = self.lanes.next_group(self.settings.batch_events) else { return };
            if self.settings.makes(Mutation::MarkBeforeConfirm) {
                for tag in &group.tags {
                    self.unsettled.add(tag.receipt, Outcome::Delivered, tag.bytes);
                }
            }
            self.publishing += 1;
            let (sink, limit) = (Arc::clone(&self.sink), self.settings.publish_timeout);
            self.sink_work
                .spawn(async move { SinkWork::Published(publish(sink, group, limit).await) });
        }
    }

    /// Settles first, so that a fetch reflects it; then fetches, if there is room.
    fn start_with_source(&mut self, now: Instant) {
        if self.source_circuit.probe_at().is_some_and(|at| at > now) {
            return;
        }
        let settles = !self.unsettled.settlements.is_empty();
        if !settles && !self.may_fetch(now) {
            return;
        }
        let Some(mut source) = self.source.take() else { return };
        self.source_circuit.start_probe();
        let work = if settles {
            self.recalled.clear();
            let unsettled = std::mem::take(&mut self.unsettled);
            async move {
                let recorded = source.settle(&unsettled.settlements).await;
                SourceWork::Settled(source, unsettled, recorded)
            }
            .boxed()
        } else {
            let limit = Limit {
                events: self.settings.batch_events,
                bytes: self.settings.in_flight_bytes.saturating_sub(self.held.bytes),
            };
            async move {
                let batch = source.next_batch(limit).await;
                SourceWork::Fetched(source, batch)
            }
            .boxed()
        };
        let contained = AssertUnwindSafe(work).catch_unwind();
        self.source_work = Some(contained.map(|work| work.unwrap_or(SourceWork::Panicked)).boxed());
    }

    fn may_fetch(&self, now: Instant) -> bool {
        let Settings { batch_events, in_flight_events, in_flight_bytes, .. } = self.settings;
        let room = self.held.events + batch_events <= in_flight_events
            && self.held.bytes < in_flight_bytes;
        let asks = match &self.asking {
            Asking::Now => true,
            Asking::Idle { until, .. } => *until <= now,
        };
        room && asks && !self.is_finishing()
    }

    /// Waits until some work ends, the source wakes up, a timer fires, or a stop is asked for.
    async fn wait(&mut self, now: Instant) {
        let timer = self.next_timer(now);
        let wakes = self.source.is_some() && !self.is_finishing();
        let wakeup = match &mut self.asking {
            Asking::Idle { wakeup, .. } if wakes => Some(wakeup),
            _ => None,
        };
        tokio::select! {
            biased;
            () = self.stop.changed() => {
                self.stop_by.get_or_insert(Instant::now() + self.settings.stop_timeout);
            }
            work = resolve(self.source_work.as_mut()) => self.finish_source_work(work),
            Some(work) = self.sink_work.join_next() => self.finish_sink_work(work),
            () = resolve(wakeup) => self.asking = Asking::Now,
            () = sleep_until(timer) => {}
        }
    }

    fn next_timer(&self, now: Instant) -> Instant {
        const FAR: Duration = Duration::from_secs(3600);
        let retry = self.lanes.next_due().map(|due| {
            let wait = due.duration_since(self.clock.now());
            now + wait.try_into().unwrap_or(Duration::ZERO)
        });
        let ask = match &self.asking {
            Asking::Idle { until, .. } if self.source.is_some() => Some(*until),
            _ => None,
        };
        let timers = if self.is_finishing() {
            [self.stop_by, self.source_circuit.probe_at(), None, None]
        } else {
            [self.sink_circuit.probe_at(), self.source_circuit.probe_at(), ask, retry]
        };
        // A timer in the past belongs to something that cannot start now; its end is the signal.
        timers.into_iter().flatten().filter(|at| *at > now).min().unwrap_or(now + FAR)
    }

    fn finish_source_work(&mut self, work: SourceWork) {
        self.source_work = None;
        match work {
            SourceWork::Fetched(source, batch) => self.finish_fetch(source, batch),
            SourceWork::Settled(source, unsettled, recorded) => {
                self.source = Some(source);
                self.finish_settle(unsettled, recorded);
            }
            SourceWork::Panicked => {
                self.give_up(Failure::misconfigured("E-SOURCE-PANIC", "the source panicked"));
                self.stop_by = Some(Instant::now());
            }
        }
        self.metrics.in_flight(self.held.events, self.held.bytes);
    }

    fn finish_sink_work(&mut self, work: Result<SinkWork, JoinError>) {
        match work {
            Ok(SinkWork::Published(finished)) => self.finish_publish(finished),
            Ok(SinkWork::Probed(answer)) => self.finish_probe(answer),
            // Panics of a sink are contained (see publish.rs) and nobody cancels its tasks but the
            // runtime, when it shuts down.
            Err(error) => {
                self.give_up(
                    Failure::unavailable("E-RUNTIME", "the runtime is shutting down")
                        .with_source(error),
                );
                self.stop_by = Some(Instant::now());
            }
        }
    }

    fn finish_fetch(&mut self, mut source: Box<dyn Source>, batch: Result<Batch, Failure>) {
        match batch {
            Ok(batch) => {
                self.source_answered();
                self.asking = if batch.more {
                    Asking::Now
                } else {
                    self.idle(source.wakeup(), batch.next_due)
                };
                self.take(batch);
            }
            Err(failure) => self.source_failed(&failure),
        }
        self.source = Some(source);
    }

    fn idle(&self, wakeup: BoxFuture<'static, ()>, next_due: Option<Timestamp>) -> Asking {
        let wait = next_due.map_or(self.settings.poll_interval, |due| {
            let wait = due.duration_since(self.clock.now()).try_into().unwrap_or(Duration::ZERO);
            self.settings.poll_interval.min(wait)
        });
        let until = Instant::now() + wait;
        Asking::Idle { until, wakeup, retry_waits: next_due.is_some() }
    }

    fn take(&mut self, batch: Batch) {
        self.metrics.read(batch.deliveries.len());
        for held in batch.deliveries.into_iter().map(Held::from) {
            self.held.events += 1;
            self.held.bytes += held.tag.bytes;
            if self.recalled.contains(&held.tag.lane) {
                self.release(&held);
            } else {
                self.lanes.admit(held);
            }
        }
    }

    fn finish_settle(&mut self, mut unsettled: Unsettled, recorded: Result<Holding, Failure>) {
        match recorded {
            Err(failure) => {
                unsettled.settlements.append(&mut self.unsettled.settlements);
                unsettled.bytes += self.unsettled.bytes;
                self.unsettled = unsettled;
                self.source_failed(&failure);
            }
            Ok(Holding::Lost) => {
                self.source_answered();
                self.drop_everything();
            }
            Ok(Holding::Held) => {
                self.source_answered();
                if unsettled.settlements.iter().any(|settlement| !settlement.outcome.is_final()) {
                    self.asking = Asking::Now;
                }
                self.held.events = self.held.events.saturating_sub(unsettled.settlements.len());
                self.held.bytes = self.held.bytes.saturating_sub(unsettled.bytes);
            }
        }
    }

    /// Another relay took over: everything held here is its business now.
    fn drop_everything(&mut self) {
        tracing::warn!(pipeline = self.name, events = self.held.events, "another relay took over");
        self.metrics.ownership_lost();
        self.sink_work = JoinSet::new();
        self.publishing = 0;
        self.sink_circuit = Circuit::untested(Instant::now());
        self.lanes.clear();
        self.unsettled = Unsettled::default();
        self.recalled.clear();
        self.held = Amount::default();
        self.asking = Asking::Now;
    }

    fn finish_publish(&mut self, finished: Finished) {
        let Finished { mut group, published, took } = finished;
        self.publishing -= 1;
        self.metrics.publish_took(took);
        let occupied = group.take_occupied();
        let now = self.clock.now();
        if published == Published::All {
            self.sink_circuit.succeeded();
            self.report.published += group.messages.len() as u64;
            self.metrics.published(&group.messages, now);
            for tag in &group.tags {
                self.unsettled.add(tag.receipt, Outcome::Delivered, tag.bytes);
            }
            self.lanes.finish(occupied);
            return;
        }
        let judge = Judge { settings: &self.settings, now, parking: self.guarantees.parking };
        let judgement = judge.judge(group, published);
        self.report.published += judgement.confirmed.len() as u64;
        self.metrics.published(&judgement.confirmed, now);
        for (settlement, bytes) in judgement.settled {
            self.unsettled.add(settlement.receipt, settlement.outcome, bytes);
        }
        for (message, failure, decision) in judgement.failures {
            self.note_failure(&message, failure, decision);
        }
        self.rearrange(judgement.stopped);
        self.lanes.finish(occupied);
    }

    fn note_failure(&mut self, message: &Message, failure: Failure, decision: Decision) {
        self.metrics.failed(failure.fault());
        self.report.failed += 1;
        match decision {
            Decision::Retry(_) => {
                tracing::debug!(pipeline = self.name, event = %message.event.id, %failure, "will retry");
            }
            Decision::Dead => {
                self.report.dead += 1;
                self.metrics.dead();
                tracing::error!(
                    pipeline = self.name,
                    event = %message.event.id,
                    lane = %message.event.lane(),
                    attempts = message.attempt,
                    code = failure.code(),
                    %failure,
                    "dead letter"
                );
            }
            Decision::Outage => self.sink_failed(&failure),
            Decision::Stop => self.give_up(failure),
        }
    }

    /// Puts the events of stopped lanes where they belong.
    fn rearrange(&mut self, stopped: Vec<StoppedLane>) {
        let mut recalled = LaneSet::default();
        for StoppedLane { lane, events, fate } in stopped {
            match fate {
                Fate::Again if self.settings.makes(Mutation::RequeueAtEnd) => {
                    events.into_iter().for_each(|held| self.lanes.admit(held));
                }
                Fate::Recalled if self.settings.makes(Mutation::ForgetLaneOnRetry) => {
                    self.lanes.put_back(lane, events);
                }
                Fate::Again => self.lanes.put_back(lane, events),
                Fate::Delayed(due) => self.lanes.delay(lane, events, due),
                Fate::Recalled => {
                    events.iter().for_each(|held| self.release(held));
                    recalled.insert(lane);
                }
            }
        }
        if !recalled.is_empty() {
            for held in self.lanes.recall(&recalled) {
                self.release(&held);
            }
            self.recalled.extend(recalled);
        }
    }

    fn release(&mut self, held: &Held) {
        self.metrics.released(1);
        self.unsettled.add(held.tag.receipt, Outcome::Released, held.tag.bytes);
    }

    fn finish_probe(&mut self, answer: Result<(), Failure>) {
        match answer {
            Ok(()) => {
                self.sink_circuit.close();
                self.metrics.sink_up(true);
                tracing::info!(pipeline = self.name, "the sink can be reached");
            }
            Err(failure) if failure.fault() == Fault::Misconfigured => self.give_up(failure),
            Err(failure) => self.sink_failed(&failure),
        }
    }

    /// Nothing will get better by waiting: finish what is under way, then report why.
    fn give_up(&mut self, failure: Failure) {
        self.stop_by.get_or_insert(Instant::now() + self.settings.stop_timeout);
        self.fatal.get_or_insert(failure);
    }

    fn sink_failed(&mut self, failure: &Failure) {
        if self.sink_circuit.trip(Instant::now()) {
            tracing::warn!(pipeline = self.name, %failure, "the sink cannot be reached; events wait");
        }
        self.metrics.sink_up(false);
    }

    fn source_failed(&mut self, failure: &Failure) {
        if matches!(failure.fault(), Fault::Misconfigured | Fault::Refused) {
            self.give_up(failure.clone());
        }
        if self.source_circuit.trip(Instant::now()) {
            tracing::warn!(pipeline = self.name, %failure, "the source cannot be reached");
        }
        self.metrics.source_up(false);
    }

    fn source_answered(&mut self) {
        if !self.source_circuit.is_closed() {
            tracing::info!(pipeline = self.name, "the source can be reached again");
        }
        self.source_circuit.close();
        self.source_circuit.succeeded();
        self.metrics.source_up(true);
    }
}

impl Unsettled {
    fn add(&mut self, receipt: Receipt, outcome: Outcome, bytes: usize) {
        self.settlements.push(Settlement { receipt, outcome });
        self.bytes += bytes;
    }
}

async fn resolve<T>(future: Option<&mut BoxFuture<'static, T>>) -> T {
    match future {
        Some(future) => future.await,
        None => std::future::pending().await,
    }
}
