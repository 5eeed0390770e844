//! A sink that refuses and goes away, and the same with flaws.

use std::collections::HashSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use semel_core::memory::MemoryBroker;
use semel_core::{Event, Failure, Headers, LaneKey, Message, Published, Sink, Verdict};
use semel_testkit::probe::{Probe, Ran, Skip};
use semel_testkit::suites::sink::SinkProbe;

use super::{NONE, caught};

semel_testkit::sink_suite!(Flawed<NONE>);

const CONFIRMS_BEHIND_A_FAILURE: u8 = 1;
const SENDS_BEHIND_A_FAILURE: u8 = 2;
const ONE_REFUSAL_FAILS_ALL: u8 = 3;
const REFUSAL_IS_TRANSIENT: u8 = 4;
const OUTAGE_IS_TRANSIENT: u8 = 5;
const ALWAYS_READY: u8 = 6;
const DROPS_HEADERS: u8 = 7;
const CONFIRMS_WITHOUT_SENDING: u8 = 8;
const ONE_VERDICT_TOO_FEW: u8 = 9;
const REVERSES_BATCHES: u8 = 10;

#[test]
fn confirming_behind_a_failure() {
    caught!(
        Flawed<CONFIRMS_BEHIND_A_FAILURE>,
        sink::a_refusal_holds_back_the_rest_of_its_lane_alone,
        "is behind a refusal"
    );
}

#[test]
fn sending_behind_a_failure() {
    caught!(
        Flawed<SENDS_BEHIND_A_FAILURE>,
        sink::a_refusal_holds_back_the_rest_of_its_lane_alone,
        "left == right"
    );
}

#[test]
fn a_refusal_that_fails_all_lanes() {
    caught!(
        Flawed<ONE_REFUSAL_FAILS_ALL>,
        sink::a_refusal_holds_back_the_rest_of_its_lane_alone,
        "right: Confirmed"
    );
}

#[test]
fn a_refusal_that_looks_like_bad_luck() {
    caught!(
        Flawed<REFUSAL_IS_TRANSIENT>,
        sink::a_refusal_holds_back_the_rest_of_its_lane_alone,
        "right: Refused"
    );
}

#[test]
fn an_outage_that_counts_attempts() {
    caught!(
        Flawed<OUTAGE_IS_TRANSIENT>,
        sink::an_outage_is_unavailable_and_passes,
        "right: Unavailable"
    );
}

#[test]
fn readiness_that_is_not_true() {
    caught!(Flawed<ALWAYS_READY>, sink::an_outage_is_unavailable_and_passes, "not ready");
}

#[test]
fn headers_that_are_lost() {
    caught!(Flawed<DROPS_HEADERS>, sink::messages_arrive_intact, "headers of headers");
}

#[test]
fn confirming_what_was_not_sent() {
    caught!(Flawed<CONFIRMS_WITHOUT_SENDING>, sink::a_batch_arrives_in_order, "left == right");
}

#[test]
fn verdicts_that_do_not_match_the_batch() {
    caught!(
        Flawed<ONE_VERDICT_TOO_FEW>,
        sink::a_lane_goes_on_after_a_refusal,
        "one verdict per message"
    );
}

#[test]
fn batches_out_of_order() {
    caught!(Flawed<REVERSES_BATCHES>, sink::a_batch_arrives_in_order, "left == right");
}

struct Flawed<const FLAW: u8>(FlawedSink<FLAW>);

impl<const FLAW: u8> Probe for Flawed<FLAW> {
    const BACKEND: &'static str = "memory broker that refuses";
    const PATIENCE: Duration = Duration::ZERO;

    async fn fresh() -> Option<Self> {
        Some(Self(FlawedSink { broker: MemoryBroker::new(), away: AtomicBool::new(false) }))
    }
}

impl<const FLAW: u8> SinkProbe for Flawed<FLAW> {
    type Sink = FlawedSink<FLAW>;

    fn sink(&self) -> &FlawedSink<FLAW> {
        &self.0
    }

    async fn arrived(&self) -> Result<Vec<Event>, Skip> {
        let messages = self.0.broker.messages();
        Ok(messages.iter().map(|message| Event::clone(&message.event)).collect())
    }

    fn refused(&self, event: Event) -> Result<Message, Skip> {
        Ok(Message::first("nowhere", event))
    }

    async fn interrupt(&self) -> Ran {
        self.0.away.store(true, Ordering::SeqCst);
        Ok(())
    }

    async fn restore(&self) {
        self.0.away.store(false, Ordering::SeqCst);
    }
}

struct FlawedSink<const FLAW: u8> {
    broker: MemoryBroker,
    away: AtomicBool,
}

#[async_trait]
impl<const FLAW: u8> Sink for FlawedSink<FLAW> {
    async fn publish(&self, batch: &[Message]) -> Published {
        if let Err(failure) = self.reach() {
            return Published::None(failure);
        }
        let mut batch = batch.to_vec();
        if FLAW == REVERSES_BATCHES {
            batch.reverse();
        }
        let mut failed = HashSet::new();
        let mut verdicts = Vec::new();
        for message in batch {
            verdicts.push(self.send(message, &mut failed).await);
        }
        if FLAW == ONE_VERDICT_TOO_FEW {
            verdicts.pop();
        }
        if verdicts.iter().all(|verdict| *verdict == Verdict::Confirmed) {
            Published::All
        } else {
            Published::Each(verdicts)
        }
    }

    async fn check(&self) -> Result<(), Failure> {
        if FLAW == ALWAYS_READY { Ok(()) } else { self.reach() }
    }
}

impl<const FLAW: u8> FlawedSink<FLAW> {
    fn reach(&self) -> Result<(), Failure> {
        let away = self.away.load(Ordering::SeqCst);
        match FLAW {
            _ if !away => Ok(()),
            OUTAGE_IS_TRANSIENT => Err(Failure::transient("E-AWAY", "the broker is away")),
            _ => Err(Failure::unavailable("E-AWAY", "the broker is away")),
        }
    }

    async fn send(&self, mut message: Message, failed: &mut HashSet<LaneKey>) -> Verdict {
        let lane = match FLAW {
            ONE_REFUSAL_FAILS_ALL => LaneKey(0),
            _ => message.event.lane_key(),
        };
        let behind = failed.contains(&lane);
        if message.topic.as_str() == "nowhere" {
            failed.insert(lane);
            return Verdict::Failed(match FLAW {
                REFUSAL_IS_TRANSIENT => Failure::transient("E-NOWHERE", "no such topic"),
                _ => Failure::refused("E-NOWHERE", "no such topic"),
            });
        }
        if FLAW == DROPS_HEADERS {
            let mut event = Event::clone(&message.event);
            event.headers = Headers::default();
            message.event = event.into();
        }
        let sends = FLAW != CONFIRMS_WITHOUT_SENDING
            && (!behind || matches!(FLAW, CONFIRMS_BEHIND_A_FAILURE | SENDS_BEHIND_A_FAILURE));
        if sends {
            assert!(self.broker.publish(&[message]).await.all_confirmed());
        }
        if behind && FLAW != CONFIRMS_BEHIND_A_FAILURE {
            Verdict::Behind
        } else {
            Verdict::Confirmed
        }
    }
}
