//! Owning a share: taking it over, and going on with another producer when one has failed.

use std::collections::{BTreeSet, HashSet};
use std::time::Duration;

use semel_core::coordination::Share;
use semel_core::{Failure, Sink};
use tokio::task::spawn_blocking;
use uuid::Uuid;

use super::super::config::KafkaConfig;
use super::super::error::{self, Blame};
use super::super::sink::KafkaSink;
use super::journal::{Contents, Journal, Kind, Line};
use super::memory::{Memory, slots};
use super::transactor::{Ended, Load, Transactor};

/// The time in which a sink owns a share.
pub(super) struct Tenure {
    config: KafkaConfig,
    /// Says in the usual words what is wrong with the brokers or the user.
    probe: KafkaSink,
    pub(super) journal: Journal,
    /// None after a transaction that failed.
    transactor: Option<Transactor>,
    /// What this tenure wrote last into the journal: whoever takes over writes another one.
    mark: Option<Uuid>,
    over: Option<Failure>,
}

impl Tenure {
    /// Takes a share over from its last owner, with what is to be remembered of it.
    ///
    /// # Errors
    /// `Unavailable` when nobody answers, `Misconfigured` when something is not allowed.
    pub(super) async fn begin(
        config: KafkaConfig,
        id: &str,
        share: Share,
    ) -> Result<(Self, Memory), Failure> {
        let probe = KafkaSink::connect(config.clone()).await?;
        let journal = Journal::open(&config.connection(), id, share, config.patience).await?;
        let (transactor, mark, over) = (None, None, None);
        let mut tenure = Self { config, probe, journal, transactor, mark, over };
        let contents = tenure.take_over().await?;
        let Contents { own, others, live_slots, mut old_slots, .. } = contents;
        if live_slots > 0 {
            let (mut entries, needed) = slots(Kind::Old, &own, old_slots);
            entries.extend(slots(Kind::Live, &HashSet::new(), live_slots).0);
            let lines = entries.iter().map(|entry| tenure.journal.line(entry)).collect();
            tenure.write(lines).await?;
            old_slots = needed;
        }
        let old = own.into_iter().chain(others).collect();
        Ok((tenure, Memory::inherit(old, old_slots)))
    }

    /// Which cluster it is.
    pub(super) async fn cluster(&self) -> Result<Option<String>, Failure> {
        self.probe.cluster().await
    }

    /// Why it is over.
    pub(super) fn over(&self) -> Option<&Failure> {
        self.over.as_ref()
    }

    pub(super) fn is_ready(&self) -> bool {
        self.transactor.is_some()
    }

    /// Asks any broker for anything.
    pub(super) async fn ask(&self, patience: Duration) -> Result<(), Failure> {
        match &self.transactor {
            Some(transactor) => transactor.ask(patience).await,
            None => self.probe.check().await,
        }
    }

    /// Begins with another producer if the last one has failed; then says what the journal says.
    ///
    /// # Errors
    /// It cannot yet, or somebody else owns the share by now.
    pub(super) async fn renew(&mut self) -> Result<Option<Contents>, Failure> {
        if let Some(over) = &self.over {
            return Err(over.clone());
        }
        if self.is_ready() {
            return Ok(None);
        }
        // Quicker, and with better words, than a producer that waits for a coordinator.
        self.probe.check().await?;
        self.take_over().await.map(Some)
    }

    /// One transaction.
    pub(super) async fn transact(&mut self, load: Load) -> Ended {
        let Some(transactor) = self.transactor.take() else {
            return Ended::Failed(error::no_answer("there is no producer"));
        };
        let ended = transactor.transact(load).await;
        match &ended {
            Ended::Committed => self.transactor = Some(transactor),
            Ended::Failed(failure) if failure.code() == error::FENCED => {
                self.over = Some(failure.clone());
            }
            Ended::Failed(_) | Ended::Aborted(_) => {}
        }
        ended
    }

    /// Fences off whoever else may write for this share, and reads the journal.
    async fn take_over(&mut self) -> Result<Contents, Failure> {
        let share = self.journal.share;
        let id = self.journal.transactional_id((share.number, share.of));
        self.transactor = Some(self.open(&id).await?);
        let mut fenced = BTreeSet::new();
        loop {
            let contents = self.read_to_the_end().await;
            let contents = contents.inspect_err(|_| self.transactor = None)?;
            let others: Vec<_> = contents.divisions.difference(&fenced).copied().collect();
            if others.is_empty() {
                return Ok(contents);
            }
            for other in others {
                let opened = self.open(&self.journal.transactional_id(other)).await;
                opened.inspect_err(|_| self.transactor = None)?;
                // Or he would begin with another producer, fence us off, and go on.
                self.write(self.journal.marks_of(other, Uuid::now_v7())).await?;
                fenced.insert(other);
            }
        }
    }

    /// Marks the end of the journal, and reads up to there. Whoever divides the pipeline in another
    /// way finds the mark and fences us off; or we find his.
    async fn read_to_the_end(&mut self) -> Result<Contents, Failure> {
        let round = Uuid::now_v7();
        self.write(self.journal.marks(round)).await?;
        let (journal, connection) = (self.journal.clone(), self.config.connection());
        let patience = self.config.patience;
        let reading = spawn_blocking(move || journal.read(&connection, round, patience));
        let contents = reading.await.unwrap_or_else(|_| Err(error::no_answer("")))?;
        if self.mark.is_some() && contents.mark_before != self.mark {
            let failure = error::taken_over(&self.journal.topic);
            self.over = Some(failure.clone());
            return Err(failure);
        }
        self.mark = Some(round);
        Ok(contents)
    }

    async fn write(&mut self, lines: Vec<Line>) -> Result<(), Failure> {
        let topic = self.journal.topic.clone();
        match self.transact(Load { messages: Vec::new(), topic, lines }).await {
            Ended::Committed => Ok(()),
            Ended::Failed(failure) => Err(failure),
            Ended::Aborted(lost) => {
                let lost = lost.into_iter().next();
                let blame = lost.map(|(_, error)| error::blame(&self.journal.topic, error));
                Err(match blame {
                    Some(Blame::Clear(failure) | Blame::Record(failure)) => failure,
                    Some(Blame::Session) | None => error::no_answer("the journal was not written"),
                })
            }
        }
    }

    async fn open(&self, id: &str) -> Result<Transactor, Failure> {
        Transactor::open(&self.config.transactional_client(id), id, self.config.patience).await
    }
}
