//! A sink that does what a test says, and the small words the tests share.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use futures_util::future::BoxFuture;
use semel_core::memory::MemoryDatabase;
use semel_core::{Event, Failure, Message, OutboxWriter, Published, Schedule, Sink};
use semel_relay::{Relay, Settings};
use semel_testkit::clock::VirtualClock;

type Script = dyn Fn(Vec<Message>) -> BoxFuture<'static, Published> + Send + Sync;

/// Answers as its script says, and remembers what was confirmed as a whole.
#[derive(Clone)]
pub(crate) struct Scripted {
    script: Arc<Script>,
    reachable: Arc<Mutex<Result<(), Failure>>>,
    calls: Arc<Mutex<Vec<Vec<String>>>>,
}

impl Scripted {
    pub(crate) fn new<F, A>(script: F) -> Self
    where
        F: Fn(Vec<Message>) -> A + Send + Sync + 'static,
        A: Future<Output = Published> + Send + 'static,
    {
        Self {
            script: Arc::new(move |batch| Box::pin(script(batch))),
            reachable: Arc::new(Mutex::new(Ok(()))),
            calls: Arc::default(),
        }
    }

    pub(crate) fn confirming() -> Self {
        Self::new(|_| async { Published::All })
    }

    /// What `check` answers from now on.
    pub(crate) fn set_reachable(&self, answer: Result<(), Failure>) {
        *self.reachable.lock().unwrap() = answer;
    }

    /// The events of each publish call, as `lane:number`.
    pub(crate) fn calls(&self) -> Vec<Vec<String>> {
        self.calls.lock().unwrap().clone()
    }

    pub(crate) fn sent(&self) -> Vec<String> {
        self.calls().concat()
    }
}

#[async_trait]
impl Sink for Scripted {
    async fn publish(&self, batch: &[Message]) -> Published {
        self.calls.lock().unwrap().push(batch.iter().map(name).collect());
        (self.script)(batch.to_vec()).await
    }

    async fn check(&self) -> Result<(), Failure> {
        self.reachable.lock().unwrap().clone()
    }
}

pub(crate) fn name(message: &Message) -> String {
    String::from_utf8(message.event.payload.bytes().to_vec()).unwrap()
}

/// Commits events given as `lane:number`, one transaction each.
pub(crate) async fn commit(database: &MemoryDatabase, names: &[&str]) {
    for name in names {
        let (lane, _) = name.split_once(':').unwrap();
        let event =
            Event::new("order", lane, "Changed").with_bytes("text/plain", (*name).to_owned());
        let mut tx = database.begin().await;
        database.append(&mut tx, &[event]).await.unwrap();
        tx.commit();
    }
}

pub(crate) struct Bench {
    pub(crate) clock: Arc<VirtualClock>,
    pub(crate) database: MemoryDatabase,
}

impl Bench {
    pub(crate) async fn with(names: &[&str]) -> Self {
        let clock = Arc::new(VirtualClock::start());
        let database = MemoryDatabase::with_clock(clock.clone());
        commit(&database, names).await;
        Self { clock, database }
    }

    pub(crate) fn relay(&self, sink: &Scripted) -> Relay {
        self.relay_to(sink.clone())
    }

    pub(crate) fn relay_to(&self, sink: impl Sink + 'static) -> Relay {
        Relay::new("test", self.database.source(), sink)
            .with_clock(self.clock.clone())
            .with_settings(settings())
    }
}

pub(crate) fn settings() -> Settings {
    Settings {
        schedule: Schedule::broker().without_jitter(),
        publish_timeout: Duration::from_secs(5),
        ..Settings::default()
    }
}
