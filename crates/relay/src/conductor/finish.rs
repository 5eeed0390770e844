//! What follows when work ends.

use std::time::Duration;

use futures_util::future::BoxFuture;
use semel_core::retry::Decision;
use semel_core::{Batch, Failure, Fault, Holding, Message, Outcome, Published, Source, Timestamp};
use tokio::task::{JoinError, JoinSet};
use tokio::time::Instant;

use super::{Amount, Asking, CatchingUp, Conductor, SinkWork, SourceWork, Unsettled};
use crate::circuit::Circuit;
use crate::lanes::{Held, LaneSet};
use crate::mutation::Mutation;
use crate::publish::Finished;
use crate::verdict::{Fate, Judge, StoppedLane};

impl Conductor {
    pub(super) fn finish_source_work(&mut self, work: SourceWork) {
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

    pub(super) fn finish_sink_work(&mut self, work: Result<SinkWork, JoinError>) {
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
                self.pace.found(batch.deliveries.len());
                self.asking = if batch.more {
                    Asking::Now
                } else {
                    self.idle(source.wakeup(), batch.next_due)
                };
                let all_is_here = !batch.more && batch.next_due.is_none();
                if all_is_here && self.catching_up == CatchingUp::Reading {
                    self.catching_up = CatchingUp::Settling;
                }
                self.take(batch);
                self.see_whether_caught_up();
                if source.is_lost() {
                    self.lose_source();
                }
            }
            Err(failure) => self.source_failed(&failure),
        }
        self.source = Some(source);
    }

    fn idle(&self, wakeup: BoxFuture<'static, ()>, next_due: Option<Timestamp>) -> Asking {
        let pause = self.pace.pause(self.settings.poll_interval);
        let wait = next_due.map_or(pause, |due| {
            let wait = due.duration_since(self.clock.now()).try_into().unwrap_or(Duration::ZERO);
            pause.min(wait)
        });
        let until = Instant::now() + wait;
        Asking::Idle { until, wakeup, retry_waits: next_due.is_some() }
    }

    fn take(&mut self, batch: Batch) {
        self.metrics.read(batch.deliveries.len());
        for delivery in batch.deliveries {
            let lane = self.sink.lane(&delivery.message);
            let held = Held::new(delivery, lane);
            self.held.events += 1;
            self.held.bytes += held.tag.bytes;
            if self.recalled.contains(&held.tag.lane) {
                self.release(&held);
            } else {
                self.lanes.admit(held);
            }
        }
    }

    fn finish_settle(&mut self, unsettled: Unsettled, recorded: Result<Holding, Failure>) {
        match recorded {
            Err(failure) => {
                self.unsettled.prepend(unsettled);
                self.source_failed(&failure);
            }
            Ok(Holding::Lost) => {
                self.source_answered();
                self.lose_source();
                self.asking = Asking::Now;
            }
            Ok(Holding::Held) => {
                self.source_answered();
                // A source may have held events back behind these: a drain must not miss them.
                let mut outcomes = unsettled.settlements.iter().map(|each| &each.outcome);
                if self.drains || outcomes.any(|outcome| !outcome.is_final()) {
                    self.asking = Asking::Now;
                }
                self.held.events = self.held.events.saturating_sub(unsettled.settlements.len());
                self.held.bytes = self.held.bytes.saturating_sub(unsettled.bytes);
                if !unsettled.delivered.is_empty() {
                    self.sink.settled(&unsettled.delivered);
                }
                self.see_whether_caught_up();
            }
        }
    }

    fn note_delivered(&mut self, messages: &[Message]) {
        if self.remembers {
            self.unsettled.delivered.extend(messages.iter().map(|message| message.event.id));
        }
    }

    fn see_whether_caught_up(&mut self) {
        if self.catching_up == CatchingUp::Settling && self.held.events == 0 {
            self.catching_up = CatchingUp::Done;
            self.sink.caught_up();
        }
    }

    /// Another relay took over: everything held here is its business now.
    fn lose_source(&mut self) {
        if self.held.events > 0 {
            self.drop_everything();
        }
        if self.ends_when_lost {
            let what = "another relay has the pipeline, or its place in the database is gone";
            self.give_up(Failure::transient("E-RELAY-LOST", what));
        }
    }

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
        if self.catching_up == CatchingUp::Settling {
            self.catching_up = CatchingUp::Reading;
        }
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
            self.note_delivered(&group.messages);
            for tag in &group.tags {
                self.unsettled.add(tag.receipt, Outcome::Delivered, tag.bytes);
            }
            self.lanes.finish(occupied);
            self.see_whether_reached();
            return;
        }
        let judge = Judge { settings: &self.settings, now, parking: self.guarantees.parking };
        let judgement = judge.judge(group, published);
        self.report.published += judgement.confirmed.len() as u64;
        self.metrics.published(&judgement.confirmed, now);
        self.note_delivered(&judgement.confirmed);
        if !judgement.confirmed.is_empty() {
            self.sink_circuit.succeeded();
        }
        for (settlement, bytes) in judgement.settled {
            self.unsettled.add(settlement.receipt, settlement.outcome, bytes);
        }
        for (message, failure, decision) in judgement.failures {
            self.note_failure(&message, failure, decision);
        }
        self.rearrange(judgement.stopped);
        self.lanes.finish(occupied);
        self.see_whether_reached();
    }

    /// A call that ended, well or not, while the circuit is closed: the outage is over.
    fn see_whether_reached(&self) {
        if self.sink_circuit.is_closed() {
            self.tell_outage(None);
        }
    }

    fn tell_outage(&self, why: Option<&Failure>) {
        if let Some(turning) = &self.turning {
            turning.waits_for_sink(why);
        }
    }

    fn note_failure(&mut self, message: &Message, failure: Failure, decision: Decision) {
        self.metrics.failed(failure.fault());
        self.report.failed += 1;
        match decision {
            Decision::Retry(_) => {
                let (event_id, trace_id) = (message.event.id, message.event.headers.trace_id());
                let (pipeline, code) = (&self.name, failure.code());
                tracing::debug!(pipeline, code, %event_id, trace_id, %failure, "will retry");
            }
            Decision::Dead => {
                self.report.dead += 1;
                self.metrics.dead();
                tracing::error!(
                    pipeline = self.name,
                    event_id = %message.event.id,
                    trace_id = message.event.headers.trace_id(),
                    lane = %message.event.lane(),
                    attempts = message.attempt,
                    code = failure.code(),
                    %failure,
                    "dead letter"
                );
                if let Some(alerts) = &self.alerts {
                    alerts.note(&self.name, message, &failure);
                }
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
                // Of a sink that answers probes and takes no events, only a call tells.
                if !self.lanes.has_ready() {
                    self.tell_outage(None);
                }
            }
            Err(failure) if matches!(failure.fault(), Fault::Misconfigured | Fault::Refused) => {
                self.give_up(failure);
            }
            Err(failure) => self.sink_failed(&failure),
        }
    }

    /// Nothing will get better by waiting: finish what is under way, then report why.
    fn give_up(&mut self, failure: Failure) {
        self.stop_by.get_or_insert(Instant::now() + self.settings.stop_timeout);
        self.fatal.get_or_insert(failure);
    }

    fn sink_failed(&mut self, failure: &Failure) {
        let now = Instant::now();
        if self.sink_circuit.trip(now) {
            let (pipeline, code) = (&self.name, failure.code());
            tracing::warn!(pipeline, code, %failure, "the sink cannot be reached; events wait");
        }
        if let Some(wait) = failure.retry_after() {
            self.sink_circuit.rest(now, wait);
        }
        self.metrics.sink_up(false);
        self.tell_outage(Some(failure));
    }

    fn source_failed(&mut self, failure: &Failure) {
        if matches!(failure.fault(), Fault::Misconfigured | Fault::Refused) {
            self.give_up(failure.clone());
        }
        if self.source_circuit.trip(Instant::now()) {
            let (pipeline, code) = (&self.name, failure.code());
            tracing::warn!(pipeline, code, %failure, "the source cannot be reached");
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
