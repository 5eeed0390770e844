//! What flows in from the broker on one channel, until it ends.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use futures_util::StreamExt;
use lapin::options::{BasicAckOptions, BasicConsumeOptions, BasicQosOptions};
use lapin::types::{FieldTable, ShortString};
use lapin::{Channel, Consumer};
use semel_core::Failure;
use tokio::sync::Notify;
use tokio::task::JoinHandle;

use super::arrived::Arrived;
use crate::rabbitmq::SYSTEM;
use crate::rabbitmq::error::{cancelled, failure};
use crate::rabbitmq::link::Link;
use crate::subscription::Window;

/// A channel with a consumer, and the task that listens to it.
pub(super) struct Inflow {
    pub(super) channel: Channel,
    /// Without it the channel would end.
    _link: Arc<Link>,
    listening: JoinHandle<()>,
    prefetch: u16,
}

/// What came on the present channel. Receipts of former ones are never given out again.
pub(super) struct State {
    /// The number of the present channel.
    channel: u64,
    pub(super) window: Window<Arc<Arrived>>,
    /// No events: on their way to the dead letters.
    pub(super) strangers: Vec<(Arc<Arrived>, Failure)>,
    /// What the broker has not been told to forget.
    unacknowledged: BTreeSet<u64>,
    /// Nothing more comes.
    pub(super) ended: Option<Failure>,
}

impl Inflow {
    /// Begins to read a queue; what came before is the broker's again.
    ///
    /// # Errors
    /// As for a connection; `Misconfigured` when there is no such queue.
    pub(super) async fn open(
        link: Arc<Link>,
        queue: &ShortString,
        prefetch: u16,
        inbox: &Inbox,
    ) -> Result<Self, Failure> {
        let channel = link.plain_channel().await?;
        channel.basic_qos(prefetch, BasicQosOptions::default()).await.map_err(failure("read"))?;
        let (tag, options) = (ShortString::default(), BasicConsumeOptions::default());
        let consumer = channel
            .basic_consume(queue.clone(), tag, options, FieldTable::default())
            .await
            .map_err(failure(&format!("read the queue {:?}", queue.as_str())))?;
        let number = inbox.state().begin();
        let listening = tokio::spawn(listen(consumer, queue.to_string(), number, inbox.clone()));
        Ok(Self { channel, _link: link, listening, prefetch })
    }

    /// Tells the broker to forget messages, and waits until it has heard: acknowledgements have no
    /// answer, but whatever follows them on the channel has.
    pub(super) fn acknowledge(
        &self,
        acks: Vec<(u64, bool)>,
    ) -> impl Future<Output = Result<(), Failure>> + Send + 'static {
        let (channel, prefetch) = (self.channel.clone(), self.prefetch);
        async move {
            let acknowledge = async {
                for (tag, multiple) in acks {
                    channel.basic_ack(tag, BasicAckOptions { multiple }).await?;
                }
                channel.basic_qos(prefetch, BasicQosOptions::default()).await
            };
            acknowledge.await.map_err(failure("acknowledge"))
        }
    }
}

impl Drop for Inflow {
    fn drop(&mut self) {
        self.listening.abort();
    }
}

/// What the task that listens and the source share.
#[derive(Clone)]
pub(super) struct Inbox {
    state: Arc<Mutex<State>>,
    /// Something came, or went wrong.
    pub(super) news: Arc<Notify>,
}

impl Inbox {
    pub(super) fn new() -> Self {
        Self { state: Arc::new(Mutex::new(State::new())), news: Arc::default() }
    }

    pub(super) fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn new() -> Self {
        Self {
            channel: 0,
            window: Window::new(SYSTEM),
            strangers: Vec::new(),
            unacknowledged: BTreeSet::new(),
            ended: None,
        }
    }

    /// Another channel, or none: what came on the one before is the broker's again. The number of
    /// the new one.
    pub(super) fn begin(&mut self) -> u64 {
        self.channel += 1;
        self.window.clear();
        self.strangers.clear();
        self.unacknowledged.clear();
        self.ended = None;
        self.channel
    }

    /// Tags to acknowledge, and which of them stand for all before them as well.
    pub(super) fn acknowledge(&mut self, tags: &BTreeSet<u64>) -> Vec<(u64, bool)> {
        self.unacknowledged.retain(|tag| !tags.contains(tag));
        let first_open = self.unacknowledged.first().copied().unwrap_or(u64::MAX);
        let together = tags.range(..first_open).next_back().copied();
        let alone = tags.range(first_open..).map(|tag| (*tag, false));
        together.map(|tag| (tag, true)).into_iter().chain(alone).collect()
    }
}

async fn listen(mut consumer: Consumer, queue: String, channel: u64, inbox: Inbox) {
    loop {
        let next = consumer.next().await;
        let mut state = inbox.state();
        if state.channel != channel {
            return;
        }
        let ended = match next {
            Some(Ok(delivery)) => {
                let arrived = Arc::new(Arrived::new(delivery));
                state.unacknowledged.insert(arrived.tag);
                match arrived.message(&queue) {
                    Ok(message) => state.window.receive(message, arrived),
                    Err(failure) => state.strangers.push((arrived, failure)),
                }
                false
            }
            Some(Err(error)) => {
                state.ended = Some(failure(&format!("read the queue {queue:?}"))(error));
                true
            }
            None => {
                state.ended = Some(cancelled(&queue));
                true
            }
        };
        drop(state);
        inbox.news.notify_one();
        if ended {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_settled_without_a_gap_is_acknowledged_together() {
        let mut state = State { unacknowledged: (1..=8).collect(), ..State::new() };
        assert_eq!(state.acknowledge(&[2, 4].into()), [(2, false), (4, false)]);
        assert_eq!(state.acknowledge(&[1, 3, 6].into()), [(3, true), (6, false)]);
        assert_eq!(state.acknowledge(&[5, 7, 8].into()), [(8, true)]);
        assert_eq!(state.acknowledge(&BTreeSet::new()), []);
    }
}
