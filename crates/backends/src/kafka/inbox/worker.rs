//! Whoever commits waits here: one task takes what has gathered and commits it in one transaction,
//! together with the ids.

use std::sync::Arc;

use semel_core::{Failure, Message};
use tokio::sync::{mpsc, oneshot};

use super::super::error;
use super::super::record::Record;
use super::desk::{Desk, Hands, State};
use super::memory::Key;
use super::tenure::{Outcome, Tenure};

/// What the worker is asked for.
pub(super) enum Order {
    Commit(Parcel),
    Forget(Vec<Key>, oneshot::Sender<Result<(), Failure>>),
    /// Find out what became of all transactions.
    Resume(oneshot::Sender<Result<(), Failure>>),
}

/// What one transaction of a caller consists of.
pub(super) struct Parcel {
    pub(super) messages: Vec<(Message, Record)>,
    pub(super) hands: Hands,
    pub(super) reply: oneshot::Sender<Result<(), Failure>>,
}

/// The task behind an inbox.
pub(super) struct Worker {
    pub(super) orders: mpsc::UnboundedReceiver<Order>,
    pub(super) tenure: Tenure,
    pub(super) desk: Arc<Desk>,
    /// How many bytes a transaction may have.
    pub(super) room: usize,
    /// An order that did not fit to the last one.
    pub(super) next: Option<Order>,
    /// Messages of which nobody knows yet whether they took effect.
    pub(super) undecided: Vec<Hands>,
}

impl Worker {
    /// Works until the inbox is dropped.
    pub(super) async fn run(mut self) {
        loop {
            let order = match self.next.take() {
                Some(order) => Some(order),
                None => self.orders.recv().await,
            };
            // Whoever asked may have gone.
            match order {
                None => return,
                Some(Order::Resume(reply)) => {
                    let _ = reply.send(self.resume().await);
                }
                Some(Order::Forget(keys, reply)) => {
                    let _ = reply.send(self.forget(&keys).await);
                    self.clear_up().await;
                }
                Some(Order::Commit(parcel)) => {
                    let parcels = self.gather(parcel);
                    self.commit(parcels).await;
                    self.clear_up().await;
                }
            }
        }
    }

    /// What has come meanwhile, up to the room there is.
    fn gather(&mut self, first: Parcel) -> Vec<Parcel> {
        let mut size = first.size();
        let mut parcels = vec![first];
        while size < self.room {
            match self.orders.try_recv() {
                Ok(Order::Commit(parcel)) if size + parcel.size() <= self.room => {
                    size += parcel.size();
                    parcels.push(parcel);
                }
                Ok(order) => {
                    self.next = Some(order);
                    break;
                }
                Err(_) => break,
            }
        }
        parcels
    }

    async fn commit(&mut self, parcels: Vec<Parcel>) {
        if let Err(failure) = self.resume().await {
            return self.settle(parcels, &Outcome::Undone(Some(failure)));
        }
        let outcome = self.attempt(&parcels).await;
        let is_clear = match &outcome {
            Outcome::Undone(why) => {
                why.is_some() && matches!(&parcels[..], [only] if only.messages.len() <= 1)
            }
            Outcome::Committed | Outcome::Unknown(_) => true,
        };
        if is_clear {
            return self.settle(parcels, &outcome);
        }
        // One of them is to blame; the others only shared the transaction, or a request, with it.
        for parcel in parcels {
            self.tenure.send_singly(parcel.messages.len() > 1);
            let outcome = self.attempt_alone(&parcel).await;
            self.settle(vec![parcel], &outcome);
        }
        self.tenure.send_singly(false);
    }

    async fn attempt_alone(&mut self, parcel: &Parcel) -> Outcome {
        /// A transaction may end before it is told which message was to blame.
        const TRIES: usize = 3;
        for _ in 0..TRIES {
            if let Err(failure) = self.resume().await {
                return Outcome::Undone(Some(failure));
            }
            match self.attempt(std::slice::from_ref(parcel)).await {
                Outcome::Undone(None) => {}
                outcome => return outcome,
            }
        }
        Outcome::Undone(None)
    }

    async fn attempt(&mut self, parcels: &[Parcel]) -> Outcome {
        let messages = parcels.iter().flat_map(|parcel| parcel.messages.iter().cloned());
        let ids = parcels.iter().flat_map(|parcel| &parcel.hands.results);
        let lines = ids.map(|(key, result)| self.tenure.log.memory(key, result.as_ref()));
        let (messages, lines) = (messages.collect(), lines.collect());
        self.tenure.transact(messages, lines).await
    }

    fn settle(&mut self, parcels: Vec<Parcel>, outcome: &Outcome) {
        if matches!(outcome, Outcome::Unknown(_)) {
            self.doubt();
        }
        for Parcel { hands, reply, .. } in parcels {
            let answer = match outcome {
                Outcome::Committed => {
                    self.desk.keep(hands);
                    Ok(())
                }
                Outcome::Undone(why) => Err(why.clone().unwrap_or_else(error::producer_ended)),
                Outcome::Unknown(failure) => {
                    self.undecided.push(hands);
                    Err(failure.clone())
                }
            };
            let _ = reply.send(answer);
        }
    }

    async fn forget(&mut self, keys: &[Key]) -> Result<(), Failure> {
        self.resume().await?;
        let lines = keys.iter().map(|key| self.tenure.log.tombstone(key)).collect();
        match self.tenure.transact(Vec::new(), lines).await {
            Outcome::Committed => {
                self.desk.unlearn(keys);
                Ok(())
            }
            Outcome::Undone(why) => Err(why.unwrap_or_else(error::producer_ended)),
            Outcome::Unknown(failure) => {
                self.doubt();
                Err(failure)
            }
        }
    }

    /// Nothing is taken up before the log was read.
    fn doubt(&self) {
        self.desk.set(self.tenure.over().cloned().map_or(State::Unsure, State::Over));
    }

    /// Goes on after a transaction that was not committed; finds out what became of it.
    async fn resume(&mut self) -> Result<(), Failure> {
        if self.tenure.is_ready() {
            return Ok(());
        }
        // What is read once more is read from the past on, and for a while says less than was known.
        self.doubt();
        if let Err(failure) = self.tenure.renew().await {
            self.doubt();
            return Err(failure);
        }
        self.desk.set(State::Ready);
        self.undecided.clear();
        Ok(())
    }

    /// Whoever reads what is committed waits behind a transaction that is left open.
    async fn clear_up(&mut self) {
        if self.tenure.over().is_none()
            && let Err(failure) = self.resume().await
        {
            tracing::debug!(target: "semel::kafka", "the inbox waits: {failure}");
        }
    }
}

impl Parcel {
    /// An id is small, and a result seldom is large.
    fn size(&self) -> usize {
        const ID: usize = 128;
        let results = self.hands.results.values();
        let results = results.map(|result| ID + result.as_ref().map_or(0, bytes::Bytes::len));
        self.messages.iter().map(|(_, record)| record.size).chain(results).sum()
    }
}
