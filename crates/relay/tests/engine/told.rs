//! What the engine tells a sink that remembers what it has confirmed.

use std::sync::{Arc, Mutex};

use async_trait::async_trait;
use semel_core::memory::MemoryBroker;
use semel_core::{EventId, Failure, Fault, Message, Published, Sink};
use semel_relay::{Relay, Routed, Settings, Stop};

use crate::scripted::{Bench, Scripted, settings};

#[derive(Clone, Default)]
struct Noting {
    broker: MemoryBroker,
    notes: Arc<Mutex<Vec<Note>>>,
}

#[derive(Clone, Debug, PartialEq)]
enum Note {
    Published(Vec<EventId>),
    Settled(Vec<EventId>),
    CaughtUp,
}

impl Noting {
    fn note(&self, note: Note) {
        self.notes.lock().unwrap().push(note);
    }

    fn notes(&self) -> Vec<Note> {
        std::mem::take(&mut self.notes.lock().unwrap())
    }
}

#[async_trait]
impl Sink for Noting {
    async fn publish(&self, batch: &[Message]) -> Published {
        self.note(Note::Published(batch.iter().map(|message| message.event.id).collect()));
        self.broker.publish(batch).await
    }

    async fn check(&self) -> Result<(), Failure> {
        Ok(())
    }

    fn remembers(&self) -> bool {
        true
    }

    fn settled(&self, events: &[EventId]) {
        self.note(Note::Settled(events.to_vec()));
    }

    fn caught_up(&self) {
        self.note(Note::CaughtUp);
    }
}

fn relay(bench: &Bench, sink: &Noting) -> Relay {
    let routed = Routed::new(sink.clone(), "t".parse().unwrap());
    let settings = Settings { batch_events: 2, in_flight_events: 2, ..settings() };
    Relay::new("test", bench.database.source(), routed)
        .with_clock(bench.clock.clone())
        .with_settings(settings)
}

#[tokio::test(start_paused = true)]
async fn a_sink_is_told_what_is_settled_and_once_that_all_of_it_is() {
    let bench = Bench::with(&["a:1", "b:1", "c:1", "d:1"]).await;
    let sink = Noting::default();
    relay(&bench, &sink).drain(Stop::never()).await.unwrap();
    let notes = sink.notes();
    let published = notes.iter().filter(|note| matches!(note, Note::Published(_)));
    assert_eq!(published.count(), 2, "{notes:?}");
    for pair in notes.windows(2) {
        if let [Note::Published(sent), after] = pair {
            assert_eq!(*after, Note::Settled(sent.clone()), "{notes:?}");
        }
    }
    assert_eq!(notes.iter().filter(|note| **note == Note::CaughtUp).count(), 1);
    assert_eq!(notes.last(), Some(&Note::CaughtUp), "not before the last is settled");
}

#[tokio::test(start_paused = true)]
async fn a_relay_with_nothing_to_do_has_caught_up() {
    let bench = Bench::with(&[]).await;
    let sink = Noting::default();
    relay(&bench, &sink).drain(Stop::never()).await.unwrap();
    assert_eq!(sink.notes(), [Note::CaughtUp]);
}

#[tokio::test(start_paused = true)]
async fn a_sink_at_its_end_ends_the_relay() {
    let bench = Bench::with(&["a:1"]).await;
    let sink = Scripted::confirming();
    sink.set_reachable(Err(Failure::refused("E-TEST", "another relay took over")));
    let failure = bench.relay(&sink).run(Stop::never()).await.unwrap_err();
    assert_eq!(failure.fault(), Fault::Refused);
    assert!(sink.calls().is_empty());
}
