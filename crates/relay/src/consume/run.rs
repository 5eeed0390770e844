//! Running a consumer: on its subscription, on its own letters, and against oblivion.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use futures_util::future::{BoxFuture, FutureExt, try_join};
use semel_core::{
    Batch, DeadLetters, Delivery, EventId, Failure, Guarantees, Holding, InboxStore, Limit,
    Message, Published, Receipt, Settlement, Sink, Source,
};
use tokio::sync::Notify;
use tokio::time::sleep;

use super::in_place::calls_for;
use super::patience::in_time;
use super::{Consumer, Handler, Origin, counting};
use crate::relay::{Relay, Report};
use crate::settings::Settings;
use crate::stop::Stop;

/// How often old ids are forgotten.
const FORGETTING: Duration = Duration::from_secs(60);

/// How many at a time.
const FORGOTTEN: usize = 1000;

/// How often the consumer looks whether an operator wants a letter tried again.
const LOOKING: Duration = Duration::from_secs(1);

/// How many letters are tried, or wait for their next attempt, at the same time: all of them are read
/// whenever more are asked for.
const MOST_OUT: usize = 5_000;

impl<S, H> Consumer<S, H>
where
    S: InboxStore + 'static,
    S::Tx<'static>: 'static,
    H: Handler<S::Tx<'static>> + 'static,
{
    /// Takes effect for what the subscription brings, until it is stopped.
    ///
    /// Lanes run in parallel, each in order; no more is taken from the subscription than fits the
    /// settings. A stop lets handlers that are under way finish, and acknowledges what they did.
    /// Beside that it takes up dead letters that an operator wants tried again, forgets ids that are
    /// old, and tells its store every few seconds how much it applied and dropped.
    ///
    /// # Errors
    /// `Misconfigured` when the subscription, the database or the consumer cannot work as they are
    /// set up. Outages are not errors: it waits for their end.
    pub async fn run(
        self,
        subscription: impl Source + 'static,
        stop: Stop,
    ) -> Result<Report, Failure> {
        let letters = async {
            match self.letters() {
                Some(relay) => relay.run(stop.clone()).await,
                None => Ok(Report::default()),
            }
        };
        let both = try_join(self.relay(subscription).run(stop.clone()), letters);
        let ended = tokio::select! {
            reports = both => reports,
            never = self.forget_the_old() => match never {},
            never = self.count_up() => match never {},
        };
        self.tell_counts().await;
        let (mut report, letters) = ended?;
        report += letters;
        Ok(report)
    }

    /// Takes effect for all that is there and due, and ends.
    ///
    /// # Errors
    /// As of [`run`](Self::run).
    pub async fn drain(
        self,
        subscription: impl Source + 'static,
        stop: Stop,
    ) -> Result<Report, Failure> {
        let mut report = self.relay(subscription).drain(stop.clone()).await?;
        if let Some(letters) = self.letters() {
            report += letters.drain(stop).await?;
        }
        self.tell_counts().await;
        Ok(report)
    }

    /// The engine between a subscription and this consumer: to add an alert, say.
    pub fn relay(&self, subscription: impl Source + 'static) -> Relay {
        self.engine(self.parts.name.clone(), subscription, self.clone(), Duration::ZERO)
    }

    fn letters(&self) -> Option<Relay> {
        let source = DueLetters {
            letters: Arc::clone(self.parts.options.letters.as_ref()?),
            consumer: self.parts.name.clone(),
            out: HashMap::new(),
            receipts: 0,
            settled: Arc::default(),
            patience: self.parts.options.settings.publish_timeout,
        };
        let name = format!("{}.letters", self.parts.name);
        Some(self.engine(name, source, FromLetters(self.clone()), LOOKING))
    }

    fn engine(
        &self,
        name: String,
        source: impl Source + 'static,
        sink: impl Sink + 'static,
        poll_interval: Duration,
    ) -> Relay {
        let options = &self.parts.options;
        let settings = options.settings.clone();
        let calls = calls_for(settings.batch_events);
        let settings = Settings {
            publish_timeout: settings
                .publish_timeout
                .saturating_add(options.handler_timeout.saturating_mul(calls)),
            poll_interval: settings.poll_interval.max(poll_interval),
            ..settings
        };
        Relay::new(name, source, sink)
            .with_settings(settings)
            .with_clock(Arc::clone(&options.clock))
    }

    /// Also when no message comes that would bring it about.
    async fn count_up(&self) -> std::convert::Infallible {
        loop {
            sleep(counting::EVERY).await;
            self.tell_counts().await;
        }
    }

    async fn tell_counts(&self) {
        self.parts.counting.tell(&self.parts.store, &self.parts.name).await;
    }

    async fn forget_the_old(&self) -> std::convert::Infallible {
        let Some(retention) = self.parts.options.retention else {
            return std::future::pending().await;
        };
        loop {
            sleep(FORGETTING).await;
            loop {
                match self.parts.store.forget(retention, FORGOTTEN).await {
                    Ok(count) if count >= FORGOTTEN => {}
                    Ok(_) => break,
                    Err(failure) => {
                        let consumer = &self.parts.name;
                        tracing::warn!(consumer, code = failure.code(), %failure, "old ids are not forgotten");
                        break;
                    }
                }
            }
        }
    }
}

/// The consumer, for messages that come from its own letters.
struct FromLetters<S: InboxStore, H>(Consumer<S, H>);

#[async_trait]
impl<S, H> Sink for FromLetters<S, H>
where
    S: InboxStore,
    H: Handler<S::Tx<'static>>,
{
    async fn publish(&self, batch: &[Message]) -> Published {
        self.0.parts.take(batch, Origin::Letters).await
    }

    async fn check(&self) -> Result<(), Failure> {
        self.0.parts.check().await
    }

    fn system(&self) -> Option<&'static str> {
        None
    }
}

/// Letters that are due, as a source. What becomes of them the consumer writes down itself, in the
/// transaction of the effect.
struct DueLetters<Tx> {
    letters: Arc<dyn DeadLetters<Tx>>,
    consumer: String,
    out: HashMap<Receipt, EventId>,
    receipts: u64,
    /// The next of a lane may be due then.
    settled: Arc<Notify>,
    /// How long the store may take.
    patience: Duration,
}

#[async_trait]
impl<Tx> Source for DueLetters<Tx> {
    fn guarantees(&self) -> Guarantees {
        Guarantees { lane_order: true, parking: false }
    }

    async fn next_batch(&mut self, limit: Limit) -> Result<Batch, Failure> {
        let out: HashSet<EventId> = self.out.values().copied().collect();
        let room = limit.events.min(MOST_OUT.saturating_sub(out.len()));
        let mut batch = Batch::default();
        if room == 0 {
            return Ok(batch);
        }
        let due = self.letters.due(&self.consumer, room + out.len());
        for message in in_time(self.patience, due).await? {
            let id = message.event.id;
            if batch.deliveries.len() < room && !out.contains(&id) {
                self.receipts += 1;
                let receipt = Receipt(self.receipts);
                self.out.insert(receipt, id);
                // It has left its place, and goes by its id from now on.
                let message = Message { position: None, ..message };
                batch.deliveries.push(Delivery { message, receipt });
            }
        }
        Ok(batch)
    }

    fn wakeup(&mut self) -> BoxFuture<'static, ()> {
        let settled = Arc::clone(&self.settled);
        async move { settled.notified().await }.boxed()
    }

    async fn settle(&mut self, settlements: &[Settlement]) -> Result<Holding, Failure> {
        for settlement in settlements {
            self.out.remove(&settlement.receipt);
        }
        self.settled.notify_one();
        Ok(Holding::Held)
    }
}
