//! Owning an inbox: taking it over, and going on with another producer when one has failed.

use std::sync::Arc;

use semel_core::{Failure, Sink};
use tokio::task::spawn_blocking;
use uuid::Uuid;

use super::super::error::{self, Blame};
use super::super::once::{Ended, Line, Load, Transactor};
use super::super::record::Record;
use super::super::sink::KafkaSink;
use super::config::KafkaInboxConfig;
use super::desk::Desk;
use super::log::{Found, Log, Mark, Until};
use super::topic;

/// The time in which a process owns an inbox.
pub(super) struct Tenure {
    config: KafkaInboxConfig,
    /// Says in the usual words what is wrong with the brokers or the user.
    probe: KafkaSink,
    pub(super) log: Log,
    desk: Arc<Desk>,
    /// Tells our marks from those of others.
    id: Uuid,
    /// None after a transaction that was not committed.
    transactor: Option<Transactor>,
    /// Behind our last mark; none before the first.
    positions: Vec<i64>,
    over: Option<Failure>,
    /// Whether each message goes in a request of its own.
    singly: bool,
}

/// What became of a transaction.
pub(super) enum Outcome {
    Committed,
    /// Nothing of it is there, or will be. Why, if it is because of what was in it.
    Undone(Option<Failure>),
    /// It may be committed, now or soon.
    Unknown(Failure),
}

impl Tenure {
    /// Takes an inbox over from its last owner, and tells the desk what is in it.
    ///
    /// # Errors
    /// `Unavailable` when nobody answers, `Misconfigured` when something is not allowed.
    pub(super) async fn begin(config: KafkaInboxConfig, desk: &Arc<Desk>) -> Result<Self, Failure> {
        let probe = KafkaSink::connect(config.connection.clone()).await?;
        let log = topic::open(&config).await?;
        let (desk, id) = (Arc::clone(desk), Uuid::now_v7());
        let (transactor, positions, over, singly) = (None, Vec::new(), None, false);
        let mut tenure = Self { config, probe, log, desk, id, transactor, positions, over, singly };
        tenure.take_over().await?;
        Ok(tenure)
    }

    /// Why it is over.
    pub(super) fn over(&self) -> Option<&Failure> {
        self.over.as_ref()
    }

    pub(super) fn is_ready(&self) -> bool {
        self.transactor.is_some()
    }

    /// From the next producer on, each message goes in a request of its own, or no longer does: the
    /// broker turns down a request as a whole.
    pub(super) fn send_singly(&mut self, singly: bool) {
        if self.singly != singly {
            self.singly = singly;
            self.transactor = None;
        }
    }

    /// Begins with another producer, which decides what the last one left open, and tells the desk
    /// what was committed.
    ///
    /// # Errors
    /// It cannot yet, or another process owns the inbox by now.
    pub(super) async fn renew(&mut self) -> Result<(), Failure> {
        if let Some(over) = &self.over {
            return Err(over.clone());
        }
        // Quicker, and with better words, than a producer that waits for a coordinator.
        self.probe.check().await?;
        // Whoever was replaced in an outage must not fence off the one that goes on.
        let found = self.read(Until::End).await?;
        self.look_for_others(&found)?;
        self.take_over().await
    }

    /// One transaction: messages, and what the log is to say of them.
    pub(super) async fn transact(
        &mut self,
        messages: Vec<(semel_core::Message, Record)>,
        lines: Vec<Line>,
    ) -> Outcome {
        let Some(transactor) = self.transactor.take() else {
            return Outcome::Undone(None);
        };
        let topics: Vec<_> = messages.iter().map(|(message, _)| message.topic.clone()).collect();
        let load = Load { messages, topic: self.log.topic.clone(), lines };
        match transactor.transact(load).await {
            Ended::Committed => {
                self.transactor = Some(transactor);
                Outcome::Committed
            }
            Ended::Failed(failure) if failure.code() == error::FENCED => {
                Outcome::Unknown(self.lose(Some(failure)))
            }
            Ended::Failed(failure) => Outcome::Unknown(failure),
            Ended::Aborted(lost) => {
                let blame = |(place, error): (usize, _)| match topics.get(place) {
                    Some(topic) => error::blame(topic.as_str(), error),
                    None => self.of_the_log(error),
                };
                Outcome::Undone(lost.into_iter().map(blame).find_map(|blame| match blame {
                    Blame::Clear(failure) | Blame::Record(failure) => Some(failure),
                    Blame::Session => None,
                }))
            }
        }
    }

    /// No message may suffer for what is wrong with the log.
    fn of_the_log(&self, error: rdkafka::error::KafkaError) -> Blame {
        match error::blame(&self.log.topic, error) {
            Blame::Record(failure) => {
                Blame::Clear(Failure::misconfigured(failure.code(), failure.to_string()))
            }
            blame => blame,
        }
    }

    /// Fences off whoever else may write for this inbox, marks the end of the log, and reads up to
    /// there: nothing can be committed before that mark any more.
    async fn take_over(&mut self) -> Result<(), Failure> {
        let (id, patience) = (self.config.topic(), self.config.connection.patience);
        let mut client = self.config.connection.transactional_client(&id);
        if self.singly {
            client.set("batch.num.messages", "1");
        }
        self.transactor = Some(Transactor::open(&client, &id, patience).await?);
        let taken = self.mark_and_read().await;
        // Or it would be used as if all were known.
        taken.inspect_err(|_| self.transactor = None)
    }

    async fn mark_and_read(&mut self) -> Result<(), Failure> {
        let mark = Mark { tenure: self.id, round: Uuid::now_v7() };
        match self.transact(Vec::new(), self.log.marks(mark)).await {
            Outcome::Committed => {}
            Outcome::Undone(failure) => return Err(failure.unwrap_or_else(error::producer_ended)),
            Outcome::Unknown(failure) => return Err(failure),
        }
        // Whoever came in between is fenced off by now, and all that it did is read.
        let found = self.read(Until::Mark(mark)).await?;
        self.desk.put_in_order();
        self.positions = found.positions;
        Ok(())
    }

    async fn read(&self, until: Until) -> Result<Found, Failure> {
        let (log, desk) = (self.log.clone(), Arc::clone(&self.desk));
        let (client, from) = (self.config.connection.connection(), self.positions.clone());
        let patience = self.config.connection.patience;
        let reading = spawn_blocking(move || log.read(&client, &from, until, patience, &desk));
        reading.await.unwrap_or_else(|_| Err(error::no_answer("")))
    }

    /// Another one's mark behind our last one.
    fn look_for_others(&mut self, found: &Found) -> Result<(), Failure> {
        if found.tenures.iter().all(|tenure| *tenure == self.id) {
            return Ok(());
        }
        Err(self.lose(None))
    }

    fn lose(&mut self, why: Option<Failure>) -> Failure {
        let failure = error::inbox_taken(&self.config.name);
        let failure = match why {
            Some(why) => failure.with_source(why),
            None => failure,
        };
        self.over = Some(failure.clone());
        failure
    }
}
