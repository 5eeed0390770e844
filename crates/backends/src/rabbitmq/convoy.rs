//! Calls with few lanes go together.
//!
//! A lane waits for each confirmation, so a call with few lanes has few messages under way, and the
//! broker writes to its disk for each handful. One task per connection sends what all such calls have
//! to send now as one wave on one channel. A lane is in one call at a time, so order is theirs still.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use semel_core::{Failure, Fault, Message};
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinHandle;

use super::config::RabbitmqConfig;
use super::error::given_up;
use super::link::Link;
use super::message::{Limits, Outgoing};
use super::wave::send_wave;
use crate::waves::Waves;

/// Where calls join. Ends with the link it belongs to.
pub(super) struct Convoy {
    joining: mpsc::UnboundedSender<Traveller>,
    task: JoinHandle<()>,
}

impl Convoy {
    pub(super) fn start(link: Weak<Link>, config: Arc<RabbitmqConfig>) -> Self {
        let (joining, joined) = mpsc::unbounded_channel();
        let guide = Guide { link, config, joined, aboard: Vec::new(), alone: Vec::new() };
        Self { joining, task: tokio::spawn(guide.run()) }
    }

    /// Until all of this call is answered, or the channel ends.
    pub(super) async fn carry(&self, seat: &Seat) -> Result<(), Failure> {
        let (reply, answer) = oneshot::channel();
        // At the end of the link the traveller is dropped, and with it the answer.
        let _ = self.joining.send(Traveller { call: Arc::clone(&seat.0), reply });
        answer.await.unwrap_or_else(|_| Err(given_up()))
    }
}

impl Drop for Convoy {
    /// Whatever it waits for will not come.
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// A call in the convoy. When this is dropped, nothing more of it is sent.
pub(super) struct Seat(Arc<Call>);

struct Call {
    batch: Vec<Message>,
    /// Taken by whoever leaves.
    waves: Mutex<Option<Waves>>,
}

impl Seat {
    pub(super) fn new(batch: &[Message], waves: Waves) -> Self {
        Self(Arc::new(Call { batch: batch.to_vec(), waves: Mutex::new(Some(waves)) }))
    }

    /// Ends the journey, wherever it is.
    pub(super) fn leave(&self) -> Waves {
        self.0.waves().take().unwrap_or_else(|| Waves::new(&[]))
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        self.0.waves().take();
    }
}

impl Call {
    fn waves(&self) -> MutexGuard<'_, Option<Waves>> {
        self.waves.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A call, and whom to tell when it is done.
struct Traveller {
    call: Arc<Call>,
    reply: oneshot::Sender<Result<(), Failure>>,
}

impl Traveller {
    /// What it has to send now.
    fn current(&self, config: &RabbitmqConfig, limits: Limits) -> Vec<Result<Outgoing, Failure>> {
        let encode = |place: &usize| {
            Outgoing::encode(&self.call.batch[*place], &config.exchange, config.format, limits)
        };
        let waves = self.call.waves();
        waves.iter().flat_map(|waves| waves.current().iter().map(encode)).collect()
    }

    /// Notes the answers; gives itself back if it has more to send.
    fn advance(self, results: Vec<Result<(), Failure>>) -> Option<Self> {
        let goes_on = self.call.waves().as_mut().is_some_and(|waves| {
            waves.advance(results);
            !waves.current().is_empty()
        });
        if goes_on {
            return Some(self);
        }
        self.end(Ok(()));
        None
    }

    fn end(self, how: Result<(), Failure>) {
        // It may have left.
        let _ = self.reply.send(how);
    }
}

/// The task behind a convoy.
struct Guide {
    /// Not held while a wave is under way, so that it can end.
    link: Weak<Link>,
    config: Arc<RabbitmqConfig>,
    joined: mpsc::UnboundedReceiver<Traveller>,
    aboard: Vec<Traveller>,
    /// Those whose wave was ended by the fault of one of them, nobody knows whose.
    alone: Vec<Traveller>,
}

impl Guide {
    async fn run(mut self) {
        loop {
            if self.aboard.is_empty() && self.alone.is_empty() {
                match self.joined.recv().await {
                    Some(traveller) => self.aboard.push(traveller),
                    None => return,
                }
            }
            while let Ok(traveller) = self.joined.try_recv() {
                self.aboard.push(traveller);
            }
            let going = match self.alone.pop() {
                Some(traveller) => vec![traveller],
                None => std::mem::take(&mut self.aboard),
            };
            self.travel(going).await;
        }
    }

    async fn travel(&mut self, going: Vec<Traveller>) {
        match self.send(&going).await {
            Ok(results) => {
                let pairs = going.into_iter().zip(results);
                self.aboard.extend(pairs.filter_map(|(one, results)| one.advance(results)));
            }
            Err(failure) if going.len() > 1 && failure.fault() != Fault::Unavailable => {
                self.alone.extend(going);
            }
            Err(failure) => going.into_iter().for_each(|one| one.end(Err(failure.clone()))),
        }
    }

    /// One wave; the answers of each traveller.
    async fn send(&self, going: &[Traveller]) -> Result<Vec<Vec<Result<(), Failure>>>, Failure> {
        let link = self.link.upgrade().ok_or_else(given_up)?;
        let limits = link.limits;
        let waves: Vec<_> = going.iter().map(|one| one.current(&self.config, limits)).collect();
        let counts: Vec<_> = waves.iter().map(Vec::len).collect();
        let channel = link.channel().await?;
        drop(link);
        let mut results = send_wave(&channel, waves.into_iter().flatten()).await?.into_iter();
        if let Some(link) = self.link.upgrade() {
            link.give_back(channel);
        }
        Ok(counts.into_iter().map(|count| results.by_ref().take(count).collect()).collect())
    }
}
