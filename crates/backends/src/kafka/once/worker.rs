//! Whoever publishes waits here: one task takes what has gathered and sends it in one transaction,
//! together with what the journal has to say of it.

use std::time::Duration;

use rdkafka::error::KafkaError;
use rdkafka::types::RDKafkaErrorCode as Code;
use semel_core::{EventId, Failure, Message};
use tokio::sync::{mpsc, oneshot};
use tokio::time::timeout;

use super::super::error::{self, Blame};
use super::super::record::Record;
use super::super::session::{End, Landing};
use super::memory::{Draft, Memory};
use super::tenure::Tenure;
use super::transactor::{Ended, Load};

/// What the worker is asked for.
pub(super) enum Order {
    Publish(Parcel),
    Settled(Vec<EventId>),
    CaughtUp,
    Check(oneshot::Sender<Result<(), Failure>>),
}

/// Messages that are to be sent.
pub(super) struct Parcel {
    pub(super) messages: Vec<(Message, Record)>,
    pub(super) size: usize,
    /// With nothing beside them in their transaction.
    pub(super) alone: bool,
    pub(super) reply: oneshot::Sender<Landing>,
}

/// The task behind a sink.
pub(super) struct Worker {
    pub(super) orders: mpsc::UnboundedReceiver<Order>,
    pub(super) tenure: Tenure,
    pub(super) memory: Memory,
    /// How many bytes a transaction may have.
    pub(super) room: usize,
    /// A parcel that did not fit into the last transaction.
    pub(super) next: Option<Parcel>,
    /// The change of a transaction of which nobody knows yet whether it is committed.
    pub(super) unsure: Option<Draft>,
}

impl Worker {
    /// Works until the sink is dropped.
    pub(super) async fn run(mut self) {
        const IDLE: Duration = Duration::from_millis(500);
        loop {
            if let Some(parcel) = self.next.take() {
                self.publish(parcel).await;
                continue;
            }
            let order = if self.may_tidy() {
                match timeout(IDLE, self.orders.recv()).await {
                    Ok(order) => order,
                    Err(_) => {
                        self.tidy().await;
                        continue;
                    }
                }
            } else {
                self.orders.recv().await
            };
            match order {
                None => return,
                Some(order) => self.follow(order).await,
            }
        }
    }

    async fn follow(&mut self, order: Order) {
        match order {
            Order::Publish(parcel) => self.publish(parcel).await,
            Order::Settled(events) => self.memory.forget(&events),
            Order::CaughtUp => self.memory.forget_old(),
            Order::Check(reply) => {
                // Whoever asked may have gone.
                let _ = reply.send(self.check().await);
            }
        }
    }

    /// Sends this parcel and what has come meanwhile in one transaction.
    async fn publish(&mut self, first: Parcel) {
        let parcels = self.gather(first).await;
        if let Err(failure) = self.resume().await {
            return parcels.into_iter().for_each(|parcel| parcel.fail(&failure));
        }
        let (mut messages, mut waiting) = (Vec::new(), Vec::new());
        for parcel in parcels.into_iter().filter(|parcel| !parcel.reply.is_closed()) {
            let begin = messages.len();
            let is_new = |(message, _): &(Message, _)| !self.memory.knows(message.event.id);
            messages.extend(parcel.messages.into_iter().filter(is_new));
            let places = messages[begin..].iter().map(|(_, record)| record.place).collect();
            waiting.push(Waiting { places, reply: parcel.reply });
        }
        let ended = if messages.is_empty() { Ended::Committed } else { self.send(messages).await };
        match ended {
            Ended::Committed => waiting.into_iter().for_each(Waiting::confirm),
            Ended::Failed(failure) => {
                waiting.into_iter().for_each(|waiting| waiting.fail(&failure));
            }
            Ended::Aborted(lost) => {
                let mut lost = lost.into_iter().peekable();
                let mut begin = 0;
                for waiting in waiting {
                    let end = begin + waiting.places.len();
                    let own = std::iter::from_fn(|| lost.next_if(|(place, _)| *place < end));
                    let own = own.map(|(place, error)| (place - begin, error)).collect();
                    waiting.abort(own);
                    begin = end;
                }
            }
        }
    }

    /// What has come meanwhile, up to the room there is.
    async fn gather(&mut self, first: Parcel) -> Vec<Parcel> {
        let (mut size, alone) = (first.size, first.alone);
        let mut parcels = vec![first];
        while !alone && size < self.room {
            match self.orders.try_recv() {
                Ok(Order::Publish(parcel)) if parcel.alone || size + parcel.size > self.room => {
                    self.next = Some(parcel);
                    break;
                }
                Ok(Order::Publish(parcel)) => {
                    size += parcel.size;
                    parcels.push(parcel);
                }
                Ok(Order::Settled(events)) => self.memory.forget(&events),
                Ok(Order::CaughtUp) => self.memory.forget_old(),
                Ok(Order::Check(reply)) => {
                    let _ = reply.send(self.check().await);
                }
                Err(_) => break,
            }
        }
        parcels
    }

    /// One transaction: these messages, and that they are sent.
    async fn send(&mut self, messages: Vec<(Message, Record)>) -> Ended {
        let count = messages.len();
        let draft =
            self.memory.draft(messages.iter().map(|(message, _)| message.event.id).collect());
        let lines = draft.entries.iter().map(|entry| self.tenure.journal.line(entry)).collect();
        let topic = self.tenure.journal.topic.clone();
        self.unsure = Some(draft);
        let ended = self.tenure.transact(Load { messages, topic, lines }).await;
        match ended {
            Ended::Committed => self.keep(),
            Ended::Aborted(_) => self.unsure = None,
            // It may be committed yet.
            Ended::Failed(_) => {}
        }
        match ended {
            Ended::Aborted(mut lost) => {
                lost.sort_unstable_by_key(|(place, _)| *place);
                let of_journal = lost.iter().position(|(place, _)| *place >= count);
                let of_journal = of_journal.map(|at| lost.split_off(at)).unwrap_or_default();
                match of_journal.into_iter().find_map(|(_, error)| self.blame(error)) {
                    Some(failure) => Ended::Failed(failure),
                    None => Ended::Aborted(lost),
                }
            }
            ended => ended,
        }
    }

    /// Why the journal could not be written, if it is the journal's fault.
    fn blame(&self, error: KafkaError) -> Option<Failure> {
        match error::blame(&self.tenure.journal.topic, error) {
            Blame::Session => None,
            Blame::Clear(failure) => Some(failure),
            // No event may suffer for it.
            Blame::Record(failure) => {
                Some(Failure::misconfigured(failure.code(), failure.to_string()))
            }
        }
    }

    /// Goes on after a transaction that failed; finds out what became of it.
    async fn resume(&mut self) -> Result<(), Failure> {
        if let Some(contents) = self.tenure.renew().await? {
            self.memory.find_out(self.unsure.take(), &contents);
        }
        Ok(())
    }

    fn keep(&mut self) {
        if let Some(draft) = self.unsure.take() {
            self.memory.keep(draft);
        }
    }

    async fn check(&mut self) -> Result<(), Failure> {
        const PATIENCE: Duration = Duration::from_secs(5);
        if let Err(failure) = self.resume().await {
            return Err(match self.tenure.over() {
                Some(over) => error::at_its_end(over),
                None => failure,
            });
        }
        self.tenure.ask(PATIENCE).await
    }

    fn may_tidy(&self) -> bool {
        self.memory.is_untidy() && self.tenure.is_ready()
    }

    /// Clears the journal of what is settled, so that whoever comes next has less to remember.
    async fn tidy(&mut self) {
        if let Ended::Failed(failure) = self.send(Vec::new()).await {
            tracing::debug!(target: "semel::kafka", "the journal waits: {failure}");
        }
    }
}

/// Somebody who waits for a transaction.
struct Waiting {
    /// The places of the messages that are in it.
    places: Vec<usize>,
    reply: oneshot::Sender<Landing>,
}

impl Waiting {
    fn confirm(self) {
        let _ = self.reply.send(Landing { lost: Vec::new(), end: None });
    }

    fn fail(self, failure: &Failure) {
        let lost = |place| (place, KafkaError::MessageProduction(Code::PurgeInflight));
        let lost = self.places.into_iter().map(lost).collect();
        let end = Some(End::Failed(failure.clone()));
        let _ = self.reply.send(Landing { lost, end });
    }

    /// Nothing is there; these are to blame, the others only shared the transaction with them.
    fn abort(self, blamed: Vec<(usize, KafkaError)>) {
        let mut errors = vec![KafkaError::MessageProduction(Code::PurgeQueue); self.places.len()];
        for (place, error) in blamed {
            errors[place] = error;
        }
        let lost = self.places.into_iter().zip(errors).collect();
        let _ = self.reply.send(Landing { lost, end: None });
    }
}

impl Parcel {
    fn fail(self, failure: &Failure) {
        let places = self.messages.iter().map(|(_, record)| record.place).collect();
        Waiting { places, reply: self.reply }.fail(failure);
    }
}
