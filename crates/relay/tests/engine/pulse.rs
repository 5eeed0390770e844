//! Who feels the pulse knows a loop that stands still from one that waits.

use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use semel_core::coordination::Coordination;
use semel_core::memory::{MemoryBroker, MemoryDatabase, MemoryGroup};
use semel_core::{Batch, Failure, Guarantees, Holding, Limit, Published, Settlement, Source};
use semel_relay::{Doing, Group, Pulse, Relay, Settings, Stop};
use semel_testkit::clock::VirtualClock;
use tokio::time::sleep;

use crate::scripted::{Bench, Scripted};

const BEAT: Duration = Duration::from_secs(1);

/// For an hour, with nothing to do but to wait.
async fn lives_on(pulse: &Pulse, doing: Doing) {
    sleep(BEAT).await;
    for _ in 0..1800 {
        sleep(2 * BEAT).await;
        assert!(pulse.still_for(BEAT).is_empty());
        assert_eq!(pulse.pipelines(), [("orders".to_owned(), doing)].into());
    }
}

fn seldom() -> Settings {
    Settings { poll_interval: Duration::from_secs(3600), ..Settings::default() }
}

#[tokio::test(start_paused = true)]
async fn a_loop_with_nothing_to_do_is_alive() {
    let pulse = Pulse::every(BEAT);
    let relay = Relay::new("orders", MemoryDatabase::new().source(), MemoryBroker::new());
    let (stopper, stop) = Stop::new();
    let relay = relay.with_settings(seldom()).with_pulse(pulse.clone());
    let running = tokio::spawn(relay.run(stop));
    lives_on(&pulse, Doing::Working).await;
    stopper.stop();
    running.await.unwrap().unwrap();
    assert!(pulse.pipelines().is_empty() && pulse.still_for(Duration::ZERO).is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_loop_that_waits_for_the_end_of_an_outage_is_alive() {
    let (pulse, sink) = (Pulse::every(BEAT), Scripted::confirming());
    sink.set_reachable(Err(Failure::unavailable("E-TEST", "down")));
    let relay = Relay::new("orders", MemoryDatabase::new().source(), sink.clone());
    let _running = tokio::spawn(relay.with_pulse(pulse.clone()).run(Stop::never()));
    lives_on(&pulse, Doing::WaitingForSink).await;
    assert_eq!(pulse.outages()["orders"].code(), "E-TEST");
    sink.set_reachable(Ok(()));
    lives_on(&pulse, Doing::Working).await;
    assert!(pulse.outages().is_empty());
}

/// It is known why, whatever the probes say, until an event goes through.
#[tokio::test(start_paused = true)]
async fn a_sink_that_answers_probes_and_takes_no_events_is_an_outage() {
    let (pulse, is_full) = (Pulse::every(BEAT), Arc::new(Mutex::new(true)));
    let full = Arc::clone(&is_full);
    let sink = Scripted::new(move |_| {
        let is_full = *full.lock().unwrap();
        async move {
            match is_full {
                true => Published::None(Failure::unavailable("E-FULL", "no room")),
                false => Published::All,
            }
        }
    });
    let bench = Bench::with(&["a:1"]).await;
    let _running = tokio::spawn(bench.relay(&sink).with_pulse(pulse.clone()).run(Stop::never()));
    sleep(BEAT).await;
    for _ in 0..1000 {
        sleep(Duration::from_millis(7)).await;
        assert_eq!(pulse.outages()["test"].code(), "E-FULL");
    }
    *is_full.lock().unwrap() = false;
    sleep(BEAT).await;
    assert!(pulse.outages().is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_loop_whose_source_does_not_answer_is_alive() {
    let pulse = Pulse::every(BEAT);
    let relay = Relay::new("orders", Asked(|| None), MemoryBroker::new());
    let _running = tokio::spawn(relay.with_pulse(pulse.clone()).run(Stop::never()));
    lives_on(&pulse, Doing::Working).await;
}

#[tokio::test(start_paused = true)]
async fn a_loop_that_cannot_ask_its_source_says_so() {
    let pulse = Pulse::every(BEAT);
    let down = || Some(Err(Failure::unavailable("E-TEST", "down")));
    let relay = Relay::new("orders", Asked(down), MemoryBroker::new());
    let _running = tokio::spawn(relay.with_pulse(pulse.clone()).run(Stop::never()));
    lives_on(&pulse, Doing::WaitingForSource).await;
}

#[tokio::test(start_paused = true)]
async fn of_two_in_a_group_one_works_and_one_stands_by() {
    let group = MemoryGroup::new().with_clock(Arc::new(VirtualClock::start()));
    let database = MemoryDatabase::new();
    let start = || {
        let (pulse, database) = (Pulse::every(BEAT), database.clone());
        let member = group.join("orders", 1, Duration::from_secs(10));
        let member = Group::new("orders", member, Coordination::Leader, move |_| {
            let source = database.source();
            async move { Ok(Relay::new("orders", source, MemoryBroker::new())) }
        });
        let (stopper, stop) = Stop::new();
        (tokio::spawn(member.with_pulse(pulse.clone()).run(stop)), pulse, stopper)
    };
    let (first, works, stopper) = start();
    sleep(BEAT).await;
    let (_second, waits, _stopper) = start();
    lives_on(&works, Doing::Working).await;
    lives_on(&waits, Doing::StandingBy).await;
    stopper.stop();
    first.await.unwrap().unwrap();
    assert!(works.pipelines().is_empty());
    lives_on(&waits, Doing::Working).await;
}

/// Held for as long as the loop is to stand still.
static GATE: (Mutex<bool>, Condvar) = (Mutex::new(false), Condvar::new());

/// A timer on another thread of the runtime would still tick: that is what must not be mistaken.
#[tokio::test(flavor = "multi_thread", worker_threads = 3)]
async fn a_loop_that_stands_still_is_found_out_and_is_alive_when_it_goes_on() {
    let pulse = Pulse::every(Duration::from_millis(20));
    let stands = || {
        let (gate, opened) = &GATE;
        drop(opened.wait_while(gate.lock().unwrap(), |open| !*open).unwrap());
        Some(Ok(Batch::default()))
    };
    let relay = Relay::new("orders", Asked(stands), MemoryBroker::new());
    let (stopper, stop) = Stop::new();
    let running = tokio::spawn(relay.with_pulse(pulse.clone()).run(stop));
    let limit = Duration::from_millis(500);
    let is_still = || pulse.still_for(limit).contains("orders");
    let until = async |wanted: bool| {
        while is_still() != wanted {
            sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(60), until(true)).await.unwrap();
    *GATE.0.lock().unwrap() = true;
    GATE.1.notify_all();
    tokio::time::timeout(Duration::from_secs(60), until(false)).await.unwrap();
    stopper.stop();
    running.await.unwrap().unwrap();
}

/// A source that answers what it is told to, or never.
struct Asked<A>(A);

#[async_trait]
impl<A> Source for Asked<A>
where
    A: Fn() -> Option<Result<Batch, Failure>> + Send + Sync,
{
    fn guarantees(&self) -> Guarantees {
        MemoryDatabase::new().source().guarantees()
    }

    async fn next_batch(&mut self, _: Limit) -> Result<Batch, Failure> {
        match (self.0)() {
            Some(answer) => answer,
            None => std::future::pending().await,
        }
    }

    async fn settle(&mut self, _: &[Settlement]) -> Result<Holding, Failure> {
        Ok(Holding::Held)
    }
}
