//! The state of a running relay, and its turns. What follows when work ends is in `finish.rs`.

mod finish;

use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use semel_core::{
    Batch, Clock, EventId, Failure, Guarantees, Holding, Limit, Outcome, Receipt, Settlement, Sink,
    Source,
};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep_until};

use crate::alert::Alerts;
use crate::circuit::Circuit;
use crate::lanes::{LaneSet, Lanes};
use crate::metrics::PipelineMetrics;
use crate::mutation::Mutation;
use crate::publish::{Finished, probe, publish};
use crate::pulse::{Doing, Turning};
use crate::relay::{Relay, Report};
use crate::settings::Settings;
use crate::stop::{Level, Stop};

/// Owns everything a relay knows.
pub(crate) struct Conductor {
    name: String,
    settings: Settings,
    clock: Arc<dyn Clock>,
    metrics: PipelineMetrics,
    alerts: Option<Alerts>,
    turning: Option<Turning>,
    stop: Stop,
    stop_by: Option<Instant>,
    drains: bool,
    ends_when_lost: bool,

    /// Away while it fetches or settles, in `source_work`.
    source: Option<Box<dyn Source>>,
    source_work: Option<BoxFuture<'static, SourceWork>>,
    guarantees: Guarantees,
    source_circuit: Circuit,
    asking: Asking,
    pace: Pace,
    catching_up: CatchingUp,
    unsettled: Unsettled,
    /// Lanes given back since the last settle began: what a fetch brings of them is stale.
    recalled: LaneSet,

    sink: Arc<dyn Sink>,
    /// Whether the sink wants to know what is settled.
    remembers: bool,
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

/// Whether all that was unsettled when the relay began has been settled, so that a sink that
/// remembers may forget it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum CatchingUp {
    /// The source has more.
    Reading,
    /// It had no more: before it is asked again, what is held is settled.
    Settling,
    Done,
}

/// How soon an idle source is asked again: soon while it brings something, ever later while it does
/// not.
#[derive(Default)]
struct Pace {
    /// Empty answers since the last that was not.
    empty: u32,
}

impl Pace {
    fn found(&mut self, events: usize) {
        self.empty = if events == 0 { self.empty.saturating_add(1) } else { 0 };
    }

    /// At most `longest`, and a thirty-second of it after something came.
    fn pause(&self, longest: Duration) -> Duration {
        longest / 32_u32.checked_shr(self.empty).unwrap_or(1).max(1)
    }
}

/// Outcomes on their way to the source.
#[derive(Default)]
struct Unsettled {
    settlements: Vec<Settlement>,
    bytes: usize,
    /// Which of them the sink confirmed.
    delivered: Vec<EventId>,
    /// Whether one of them changes what a fetch brings.
    urgent: bool,
}

#[derive(Clone, Copy, Default)]
struct Amount {
    events: usize,
    bytes: usize,
}

impl Conductor {
    pub(crate) fn new(relay: Relay, stop: Stop, drains: bool) -> Self {
        let Relay { name, source, sink, settings, clock, alert, pulse, reach, ends_when_lost } =
            relay;
        let now = Instant::now();
        let mut source_circuit = Circuit::untested(now);
        source_circuit.close();
        Self {
            metrics: PipelineMetrics::new(&name, &reach),
            alerts: alert.map(|sink| Alerts::start(&name, sink, settings.publish_timeout)),
            turning: pulse.map(|pulse| pulse.begin(&name)),
            name,
            clock,
            stop,
            stop_by: None,
            drains,
            ends_when_lost,
            guarantees: source.guarantees(),
            source: Some(source),
            source_work: None,
            source_circuit,
            asking: Asking::Now,
            pace: Pace::default(),
            catching_up: if sink.remembers() { CatchingUp::Reading } else { CatchingUp::Done },
            remembers: sink.remembers(),
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
            if let Some(turning) = &self.turning {
                turning.turned(now, self.doing());
            }
            self.wait(now).await;
        }
        self.turning = None;
        self.report.abandoned = self.held.events as u64;
        if let Some(mut source) = self.source.take() {
            source.close().await;
        }
        if let Some(alerts) = self.alerts.take()
            && !self.stop.is_immediate()
        {
            alerts.close().await;
        }
        match self.fatal {
            Some(failure) => Err(failure),
            None => Ok(self.report),
        }
    }

    fn doing(&self) -> Doing {
        match (self.source_circuit.is_closed(), self.sink_circuit.is_closed()) {
            (false, _) => Doing::WaitingForSource,
            (true, false) => Doing::WaitingForSink,
            (true, true) => Doing::Working,
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
        while self.publishing < self.settings.calls_at_once()
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

    /// Settles, or fetches if there is room. What was delivered may wait for a fetch: to settle costs
    /// as much for many as for one. All else is settled first, so that a fetch reflects it.
    fn start_with_source(&mut self, now: Instant) {
        if self.source_circuit.probe_at().is_some_and(|at| at > now) {
            return;
        }
        let fetches = self.may_fetch(now);
        let waits = fetches && self.unsettled.may_wait(self.settings.in_flight_events);
        let settles = !self.unsettled.settlements.is_empty() && !waits;
        if !settles && !fetches {
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
        // What a source that does not park leaves with us behind a retry takes no room from other
        // lanes, however much it is: only its bytes count.
        let aside = if self.guarantees.parking { 0 } else { self.lanes.behind_retries() };
        let room = self.held.events.saturating_sub(aside) + batch_events <= in_flight_events
            && self.held.bytes < in_flight_bytes;
        let asks = match &self.asking {
            Asking::Now => true,
            Asking::Idle { until, .. } => *until <= now,
        };
        // Only briefly: a source that does not park leaves what waits for a retry with us.
        let catches_up = self.catching_up == CatchingUp::Settling && self.guarantees.parking;
        room && asks && !catches_up && !self.is_finishing()
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
        let look_up = self.turning.as_ref().map_or(now + FAR, |turning| turning.again_by(now));
        // A timer in the past belongs to something that cannot start now; its end is the signal.
        timers.into_iter().flatten().filter(|at| *at > now).fold(look_up, Instant::min)
    }
}

impl Unsettled {
    fn add(&mut self, receipt: Receipt, outcome: Outcome, bytes: usize) {
        self.urgent |= outcome != Outcome::Delivered;
        self.settlements.push(Settlement { receipt, outcome });
        self.bytes += bytes;
    }

    /// These came first.
    fn prepend(&mut self, mut earlier: Self) {
        earlier.settlements.append(&mut self.settlements);
        earlier.delivered.append(&mut self.delivered);
        earlier.bytes += self.bytes;
        earlier.urgent |= self.urgent;
        *self = earlier;
    }

    /// Until they are half of what may be in flight: the other half is on its way to the sink.
    fn may_wait(&self, in_flight: usize) -> bool {
        !self.urgent && self.settlements.len() < in_flight / 2
    }
}

async fn resolve<T>(future: Option<&mut BoxFuture<'static, T>>) -> T {
    match future {
        Some(future) => future.await,
        None => std::future::pending().await,
    }
}
