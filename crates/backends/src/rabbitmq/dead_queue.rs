//! Dead letters in a queue, taken in hand one by one and given back in their order.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use lapin::Channel;
use lapin::options::{
    BasicAckOptions, BasicGetOptions, BasicNackOptions, BasicQosOptions, QueueDeclareOptions,
};
use lapin::types::{FieldTable, ShortString};
use semel_core::wire::{Binding, Inscription};
use semel_core::{Failure, Receipt};
use tokio::time::timeout;

use super::config::{Exchange, RabbitmqConfig, short};
use super::error::{failure, no_queue, timed_out, unroutable};
use super::link::{Dialler, Link};
use super::sink::trusted;
use super::subscription::arrived::Arrived;
use crate::dead_queue::{DeadLetter, DeadQueue};
use crate::hand::Hand;

impl RabbitmqConfig {
    /// The dead letters in a queue. They go back to queues, by the default exchange.
    ///
    /// # Errors
    /// `Unavailable` when the broker cannot be reached, `Misconfigured` when there is no such queue,
    /// or the user may not read it.
    pub async fn dead_letters(&self, queue: &str) -> Result<Box<dyn DeadQueue>, Failure> {
        let queue = short("the queue", queue)?;
        let tls = trusted(self).await?;
        // Whoever only looks declares nothing.
        let config = Arc::new(Self {
            exchange: Exchange::Named(ShortString::default()),
            declared_exchange: None,
            declared_queues: Vec::new(),
            ..self.clone()
        });
        let dialler = || Dialler::new(Arc::clone(&config), tls.clone());
        let link = dialler().link().await?;
        let opened = timeout(self.timeout, open(&link, &queue)).await;
        let (channel, count) = opened.unwrap_or_else(|_| Err(timed_out("read", self.timeout)))?;
        Ok(Box::new(RabbitmqDeadQueue {
            queue,
            channel,
            _link: link,
            sender: dialler(),
            count,
            unseen: count,
            to_the_end: false,
            hand: Hand::new(),
            limit: self.timeout,
        }))
    }
}

async fn open(link: &Link, queue: &ShortString) -> Result<(Channel, usize), Failure> {
    let channel = link.plain_channel().await?;
    let options = QueueDeclareOptions { passive: true, ..Default::default() };
    let found = channel.queue_declare(queue.clone(), options, FieldTable::default()).await;
    let found = found.map_err(|error| no_queue(queue.as_str(), error))?;
    let count = usize::try_from(found.message_count()).unwrap_or(usize::MAX);
    Ok((channel, count))
}

struct RabbitmqDeadQueue {
    queue: ShortString,
    channel: Channel,
    /// Without it the channel would end.
    _link: Arc<Link>,
    /// Another connection: a broker that is short of memory stops to read one that publishes.
    sender: Dialler,
    count: usize,
    /// How many are to be looked at.
    unseen: usize,
    /// Whether all of them are.
    to_the_end: bool,
    hand: Hand<Arrived>,
    limit: Duration,
}

/// Since RabbitMQ 4 a quorum queue throws away what it has given out 20 times, unless it is told
/// another limit. Letters that were looked at half as often are written anew.
const WORN: u64 = 10;

#[async_trait]
impl DeadQueue for RabbitmqDeadQueue {
    fn count(&self) -> usize {
        self.count
    }

    async fn next(&mut self, most: usize) -> Result<Vec<DeadLetter>, Failure> {
        let (mut some, mut again) = (Vec::new(), false);
        // A quorum queue puts what comes back behind all that came back before, and in front of the
        // rest: to keep the order, all of it is taken.
        while self.unseen > 0 && (some.len() < most || again || self.to_the_end) {
            let Some((arrived, redelivered)) = self.get().await? else {
                self.unseen = 0;
                break;
            };
            self.unseen -= 1;
            again = redelivered;
            self.to_the_end |= arrived.deliveries() >= WORN;
            some.push(self.letter(arrived));
        }
        Ok(some)
    }

    async fn send(&self, letter: &DeadLetter, to: &str) -> Result<(), Failure> {
        let arrived = self.hand.get(letter.receipt)?;
        let home = short("the queue", to)?;
        let sent = self.sender.publish_to(&home, &arrived.body, arrived.own_properties()).await?;
        if sent { Ok(()) } else { Err(unroutable("", to)) }
    }

    async fn remove(&mut self, letters: &[Receipt]) -> Result<(), Failure> {
        let tags: Vec<_> = self.hand.all(letters).map(|arrived| arrived.tag).collect();
        let acknowledge = async {
            for tag in tags {
                self.channel.basic_ack(tag, BasicAckOptions::default()).await?;
            }
            heard(&self.channel).await
        };
        let done = timeout(self.limit, acknowledge).await;
        let done = done.map_err(|_| timed_out("acknowledge", self.limit))?;
        done.map_err(failure("acknowledge"))?;
        self.hand.forget(letters);
        Ok(())
    }

    async fn close(&mut self) {
        const PATIENCE: Duration = Duration::from_secs(5);
        if self.to_the_end && self.write_anew().await.is_err() {
            tracing::warn!(queue = self.queue.as_str(), "letters are given back, not written anew");
        }
        let last = self.hand.rest().map(|arrived| arrived.tag).max();
        let give_back = async {
            if let Some(tag) = last {
                let all = BasicNackOptions { multiple: true, requeue: true };
                // Not by closing the channel: that would count as a failure of the letters.
                self.channel.basic_nack(tag, all).await?;
                heard(&self.channel).await?;
            }
            self.channel.close(200, "OK".into()).await
        };
        // Where that fails the broker has them back as soon as the connection is gone.
        let _ = timeout(PATIENCE, give_back).await;
        self.hand.clear();
    }
}

impl RabbitmqDeadQueue {
    /// The next message, and whether it was given out before.
    async fn get(&self) -> Result<Option<(Arrived, bool)>, Failure> {
        let what = format!("read the queue {:?}", self.queue.as_str());
        let getting = self.channel.basic_get(self.queue.clone(), BasicGetOptions::default());
        let got = timeout(self.limit, getting).await;
        let got = got.map_err(|_| timed_out(&what, self.limit))?.map_err(failure(&what))?;
        Ok(got.map(|got| {
            let redelivered = got.delivery.redelivered;
            (Arrived::new(got.delivery), redelivered)
        }))
    }

    fn letter(&mut self, arrived: Arrived) -> DeadLetter {
        let event = arrived.event().ok();
        let said = Inscription::read(Binding::Amqp, arrived.headers());
        let home = said.as_ref().map(|said| said.origin.clone());
        DeadLetter::new(self.hand.take(arrived), event, said, home)
    }

    /// Puts all that is in hand to the end of the queue, whose other letters it has in hand too.
    async fn write_anew(&mut self) -> Result<(), Failure> {
        for arrived in self.hand.rest() {
            let properties = arrived.same_properties();
            if !self.sender.publish_to(&self.queue, &arrived.body, properties).await? {
                return Err(unroutable("", self.queue.as_str()));
            }
            let acknowledged = self.channel.basic_ack(arrived.tag, BasicAckOptions::default());
            acknowledged.await.map_err(failure("acknowledge"))?;
        }
        self.hand.clear();
        heard(&self.channel).await.map_err(failure("acknowledge"))
    }
}

/// Acknowledgements have no answer, but whatever follows them on the channel has.
async fn heard(channel: &Channel) -> lapin::Result<()> {
    channel.basic_qos(1, BasicQosOptions::default()).await
}
