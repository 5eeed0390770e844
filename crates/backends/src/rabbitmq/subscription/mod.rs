//! A queue as a source.

pub(super) mod arrived;
mod config;
mod inflow;

use std::collections::BTreeSet;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use futures_util::future::BoxFuture;
use semel_core::wire::Epitaph;
use semel_core::{Batch, Failure, Fault, Guarantees, Holding, Limit, Outcome, Settlement, Source};
use tokio::task::JoinHandle;
use tokio::time::timeout;

pub use config::RabbitmqSubscriptionConfig;

use self::arrived::Arrived;
use self::inflow::{Inbox, Inflow};
use super::error::{failure, not_buried, timed_out};
use super::link::{Dialler, declare_bare_queue};
use super::sink::trusted;

/// Reads a queue. Made by [`RabbitmqSubscriptionConfig::connect`].
///
/// A message is acknowledged by `settle`, after the effect. Dead letters and messages that are no
/// events are published to a queue of their own, with a confirm, before they are acknowledged. When
/// the connection breaks, the broker gives out again what was not acknowledged, and receipts from
/// before are void.
///
/// ```no_run
/// use semel_backends::rabbitmq::RabbitmqConfig;
/// use semel_core::{Limit, Source};
///
/// # tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(async {
/// let mut orders = RabbitmqConfig::new("amqp://guest:guest@localhost:5672/%2f")?
///     .subscription("billing")?
///     .connect()
///     .await?;
/// let batch = orders.next_batch(Limit::default()).await?;
/// # let _ = batch;
/// # Ok::<(), semel_core::Failure>(()) }).unwrap();
/// ```
pub struct RabbitmqSubscription {
    config: RabbitmqSubscriptionConfig,
    inbox: Inbox,
    dialler: Dialler,
    /// Another connection: a broker that is short of memory stops to read one that publishes.
    graves: Dialler,
    inflow: Option<Inflow>,
    /// Goes on when the call that began it is dropped.
    acknowledging: Option<JoinHandle<Result<(), Failure>>>,
}

impl RabbitmqSubscription {
    async fn connect(config: RabbitmqSubscriptionConfig) -> Result<Self, Failure> {
        config.connection.check()?;
        let tls = trusted(&config.connection).await?;
        let dialler = || Dialler::new(Arc::new(config.connection.clone()), tls.clone());
        let (dialler, graves) = (dialler(), dialler());
        let (inbox, inflow, acknowledging) = (Inbox::new(), None, None);
        let mut subscription = Self { config, inbox, dialler, graves, inflow, acknowledging };
        subscription.flow().await?;
        Ok(subscription)
    }

    /// Opens the flow, unless it is open and well.
    async fn flow(&mut self) -> Result<(), Failure> {
        let ended = self.inbox.state().ended.clone();
        match (&self.inflow, ended) {
            (Some(_), None) => return Ok(()),
            (Some(_), Some(why)) => {
                self.end();
                if why.fault() == Fault::Misconfigured {
                    return Err(why);
                }
            }
            (None, _) => {}
        }
        let limit = self.config.connection.timeout;
        let opened = timeout(limit, self.open()).await;
        self.inflow = Some(opened.unwrap_or_else(|_| Err(timed_out("read", limit)))?);
        Ok(())
    }

    /// Gives up the channel, and with it every receipt.
    fn end(&mut self) {
        self.inflow = None;
        self.inbox.state().begin();
    }

    async fn open(&self) -> Result<Inflow, Failure> {
        let RabbitmqSubscriptionConfig { queue, dead_queue, prefetch, .. } = &self.config;
        let link = self.dialler.link().await?;
        let opened = async {
            let channel = link.plain_channel().await?;
            let what = format!("declare the queue {:?}", dead_queue.name.as_str());
            declare_bare_queue(&channel, dead_queue).await.map_err(failure(&what))?;
            let _ = channel.close(200, "OK".into()).await;
            Inflow::open(Arc::clone(&link), queue, *prefetch, &self.inbox).await
        };
        opened.await.inspect_err(|_| self.dialler.abandon(&link))
    }

    /// Puts messages that are no events to the dead letters.
    async fn put_strangers_aside(&mut self) -> Result<(), Failure> {
        let strangers = self.inbox.state().strangers.clone();
        let (mut buried, mut wrong) = (BTreeSet::new(), None);
        for (arrived, why) in &strangers {
            if let Err(failure) = self.bury(arrived, why, 0).await {
                wrong = Some(failure);
                break;
            }
            tracing::warn!(queue = self.config.queue.as_str(), %why, "no event");
            buried.insert(arrived.tag);
        }
        self.inbox.state().strangers.retain(|(arrived, _)| !buried.contains(&arrived.tag));
        self.acknowledge(buried).await?;
        wrong.map_or(Ok(()), Err)
    }

    /// Publishes a dead letter, and waits until its queue has it.
    async fn bury(&self, arrived: &Arrived, why: &Failure, attempts: u32) -> Result<(), Failure> {
        let RabbitmqSubscriptionConfig { queue, dead_queue, consumer, .. } = &self.config;
        let epitaph = Epitaph { failure: why, attempts, consumer, origin: queue.as_str() };
        let grave = &dead_queue.name;
        let buried = async {
            let frame = self.graves.link().await?.limits.frame_bytes;
            let properties = arrived.properties_with(epitaph, frame);
            self.graves.publish_to(grave, &arrived.body, properties).await
        };
        if buried.await? { Ok(()) } else { Err(not_buried(grave.as_str())) }
    }

    /// Tells the broker to forget messages.
    async fn acknowledge(&mut self, tags: BTreeSet<u64>) -> Result<(), Failure> {
        let earlier = self.acknowledged().await;
        if tags.is_empty() || earlier.is_err() {
            return earlier;
        }
        let Some(inflow) = &self.inflow else { return Ok(()) };
        let acks = self.inbox.state().acknowledge(&tags);
        self.acknowledging = Some(tokio::spawn(inflow.acknowledge(acks)));
        self.acknowledged().await
    }

    /// Waits until the last acknowledgement is with the broker. If it does not come there, the
    /// channel is given up, and with it every receipt.
    async fn acknowledged(&mut self) -> Result<(), Failure> {
        let Some(acknowledging) = &mut self.acknowledging else { return Ok(()) };
        let limit = self.config.connection.timeout;
        let done = match timeout(limit, acknowledging).await {
            Ok(Ok(done)) => done,
            Ok(Err(_)) | Err(_) => Err(timed_out("acknowledge", limit)),
        };
        self.acknowledging = None;
        if done.is_err() {
            self.end();
        }
        done.map_err(|failure| match failure.fault() {
            Fault::Unavailable => failure,
            // A channel that ended: another one will do.
            _ => Failure::unavailable(failure.code(), failure.to_string()),
        })
    }

    /// Publishes the dead letters among these. Each is settled before the next: what is buried is not
    /// buried again when another has to wait.
    async fn bury_dead(&mut self, settlements: &[Settlement]) -> Result<(), Failure> {
        for Settlement { receipt, outcome } in settlements {
            let Outcome::Dead { attempts, failure, .. } = outcome else { continue };
            let kept = self.inbox.state().window.get(*receipt).map(|kept| Arc::clone(&kept.place));
            let Some(arrived) = kept else { continue };
            self.bury(&arrived, failure, *attempts).await?;
            self.inbox.state().window.settle(*receipt);
            self.acknowledge(BTreeSet::from([arrived.tag])).await?;
        }
        Ok(())
    }
}

#[async_trait]
impl Source for RabbitmqSubscription {
    fn guarantees(&self) -> Guarantees {
        Guarantees { lane_order: self.config.keeps_lanes_in_order(), parking: false }
    }

    async fn next_batch(&mut self, limit: Limit) -> Result<Batch, Failure> {
        self.flow().await?;
        self.put_strangers_aside().await?;
        Ok(self.inbox.state().window.hand_out(limit))
    }

    fn wakeup(&mut self) -> BoxFuture<'static, ()> {
        let news = Arc::clone(&self.inbox.news);
        Box::pin(async move { news.notified().await })
    }

    async fn settle(&mut self, settlements: &[Settlement]) -> Result<Holding, Failure> {
        self.bury_dead(settlements).await?;
        let mut tags = BTreeSet::new();
        {
            let mut state = self.inbox.state();
            for Settlement { receipt, outcome } in settlements {
                if !outcome.is_final() {
                    state.window.release(*receipt);
                } else if let Some(kept) = state.window.settle(*receipt) {
                    tags.insert(kept.place.tag);
                }
            }
        }
        self.acknowledge(tags).await?;
        Ok(Holding::Held)
    }

    /// Ends the channel: the broker gives what is left to others at once.
    async fn close(&mut self) {
        const PATIENCE: Duration = Duration::from_secs(5);
        let _ = self.acknowledged().await;
        if let Some(inflow) = self.inflow.take() {
            let _ = timeout(PATIENCE, inflow.channel.close(200, "OK".into())).await;
        }
        self.end();
    }
}

impl fmt::Debug for RabbitmqSubscription {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RabbitmqSubscription").field("config", &self.config).finish_non_exhaustive()
    }
}
