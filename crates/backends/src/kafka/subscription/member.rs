//! A member of a consumer group: a thread that keeps asking librdkafka, and what it was told.
//!
//! The thread runs whatever the engine does, so that a rebalance never waits for a slow handler and
//! a handler never costs the membership.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use rdkafka::client::ClientContext;
use rdkafka::config::{FromClientConfigAndContext, RDKafkaLogLevel};
use rdkafka::consumer::{BaseConsumer, CommitMode, Consumer, ConsumerContext};
use rdkafka::error::{KafkaError, KafkaResult};
use rdkafka::message::BorrowedMessage;
use rdkafka::types::{RDKafkaErrorCode as Code, RDKafkaRespErr};
use rdkafka::{Offset, TopicPartitionList};
use semel_core::{Batch, Failure, Fault, Limit};
use tokio::sync::{Notify, oneshot};

use super::arrived::{Arrived, Partition};
use super::beginning::{begin_at_end, list, without_position};
use super::config::{KafkaSubscriptionConfig, Start};
use super::log::PartitionLog;
use super::progress::Progress;
use super::state::State;
use crate::kafka::error;
use crate::kafka::session::lock;

/// What the thread and the source share.
pub(super) struct Member {
    state: Mutex<State>,
    /// Something came, or went wrong.
    pub(super) news: Arc<Notify>,
    stopped: AtomicBool,
    start: Start,
    most_unsettled: usize,
    /// Its id, if the brokers say one.
    cluster: Option<String>,
}

/// A consumer of librdkafka that reports here.
pub(super) type Client = BaseConsumer<Reports>;

/// What a member's source holds.
pub(super) struct Membership {
    pub(super) member: Arc<Member>,
    pub(super) client: Arc<Client>,
    /// Told when the group was left.
    pub(super) has_left: oneshot::Receiver<()>,
}

impl Member {
    /// Joins the group.
    ///
    /// # Errors
    /// `Misconfigured` when librdkafka does not take a setting.
    pub(super) fn join(
        config: &KafkaSubscriptionConfig,
        cluster: Option<String>,
    ) -> Result<Membership, Failure> {
        let member = Arc::new(Self {
            state: Mutex::new(State::new()),
            news: Arc::default(),
            stopped: AtomicBool::new(false),
            start: config.start,
            most_unsettled: config.most_unsettled,
            cluster,
        });
        let reports = Reports(Arc::clone(&member));
        let client = Client::from_config_and_context(&config.client(), reports)
            .map_err(|error| error::failure("start a consumer", error))?;
        let topics: Vec<_> = config.topics.iter().map(String::as_str).collect();
        client.subscribe(&topics).map_err(|error| error::failure("subscribe", error))?;
        let client = Arc::new(client);
        let (left, has_left) = oneshot::channel();
        let (listener, ears) = (Arc::clone(&member), Arc::clone(&client));
        std::thread::spawn(move || {
            listener.listen(&ears);
            // The last one: this leaves the group, and takes its time.
            drop(ears);
            let _ = left.send(());
        });
        Ok(Membership { member, client, has_left })
    }

    pub(super) fn state(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }

    /// Leaves the group, soon.
    pub(super) fn stop(&self) {
        self.stopped.store(true, Ordering::Release);
    }

    pub(super) fn hand_out(&self, limit: Limit) -> Batch {
        let mut state = self.state();
        let out = state.window.len() - state.window.waiting();
        let room = self.most_unsettled.saturating_sub(out);
        if room == 0 {
            return Batch::default();
        }
        state.window.hand_out(Limit { events: limit.events.min(room), ..limit })
    }

    fn listen(&self, client: &Arc<Client>) {
        const PATIENCE: Duration = Duration::from_millis(50);
        const BRIEFLY: Duration = Duration::from_millis(100);
        const AGAIN: Duration = Duration::from_secs(1);
        let (mut crowded_since, mut place_at) = (None, Instant::now());
        for turn in 0_u64.. {
            if self.stopped.load(Ordering::Acquire) {
                return;
            }
            if self.state().is_crowded() {
                // A pause throws away what was fetched ahead, not to ask does not; but a rebalance
                // must not wait for long.
                if crowded_since.get_or_insert_with(Instant::now).elapsed() < BRIEFLY {
                    std::thread::sleep(Duration::from_millis(1));
                    continue;
                }
            } else {
                crowded_since = None;
            }
            if crowded_since.is_some() || turn.is_multiple_of(32) {
                self.steer(client);
            }
            if Instant::now() >= place_at
                && let Err(error) = self.place(client)
            {
                tracing::warn!(%error, "partitions wait until the group has a position of them");
                self.complain(&error, &format!("no position for the group: {error}"));
                place_at = Instant::now() + AGAIN;
            }
            match client.poll(PATIENCE) {
                Some(Ok(message)) => self.receive(&message, client),
                // What is wrong was reported in words already.
                Some(Err(_)) => {}
                None => self.steer(client),
            }
        }
    }

    fn receive(&self, message: &BorrowedMessage<'_>, client: &Arc<Client>) {
        let arrived = Arc::new(Arrived::new(message));
        let log = self.log(&arrived.partition, client);
        let decoded = arrived.message(log.as_ref());
        let mut state = self.state();
        let Some(progress) = state.partitions.get_mut(&arrived.partition) else {
            return;
        };
        progress
            .get_or_insert_with(|| Progress::starting_at(arrived.offset))
            .receive(arrived.offset);
        match decoded {
            Ok(message) => state.window.receive(message, arrived),
            Err(failure) => state.strangers.push((arrived, failure)),
        }
        drop(state);
        self.news.notify_one();
    }

    fn log(&self, partition: &Partition, client: &Arc<Client>) -> Option<Arc<PartitionLog>> {
        let cluster = self.cluster.as_deref()?;
        let mut state = self.state();
        if let Some(log) = state.logs.get(partition) {
            return Some(Arc::clone(log));
        }
        let log = Arc::new(PartitionLog::new(cluster, partition, client));
        state.logs.insert(partition.clone(), Arc::clone(&log));
        Some(log)
    }

    /// Tells the broker how far the group is, and waits until it knows: up to the timeout of a
    /// session, if it cannot be reached.
    pub(super) fn commit(&self, client: &Client) -> Result<(), Code> {
        self.commit_of(client, |_| true)
    }

    fn commit_of(&self, client: &Client, of: impl Fn(&Partition) -> bool) -> Result<(), Code> {
        let positions = self.state().uncommitted(of);
        if positions.count() == 0 {
            return Ok(());
        }
        let committed = client.commit(&positions, CommitMode::Sync);
        committed.map_err(|error| error.rdkafka_error_code().unwrap_or(Code::Unknown))?;
        let mut state = self.state();
        for each in positions.elements() {
            let partition = Partition::new(each.topic(), each.partition());
            let progress = state.partitions.get_mut(&partition);
            if let (Some(Some(progress)), Offset::Offset(offset)) = (progress, each.offset()) {
                progress.commit(offset);
            }
        }
        Ok(())
    }

    /// Partitions are this member's now.
    fn assign(&self, client: &Client, assigned: &TopicPartitionList) {
        let assigned = partitions(assigned).collect();
        let (at_once, later) = match self.start {
            Start::Earliest => (assigned, BTreeSet::new()),
            Start::Latest => (BTreeSet::new(), assigned),
        };
        self.state().unplaced.extend(later);
        // Also if there are none: librdkafka waits for the call.
        if let Err(error) = self.read(client, &at_once) {
            self.complain(&error, &error.to_string());
        }
    }

    /// Reads what the group has a position of, and sees to it that it has one of the rest.
    fn place(&self, client: &Client) -> KafkaResult<()> {
        let unplaced = self.state().unplaced.clone();
        if unplaced.is_empty() {
            return Ok(());
        }
        let without = without_position(client, &unplaced)?;
        let placed: BTreeSet<_> = unplaced.difference(&without).cloned().collect();
        if !placed.is_empty() {
            self.read(client, &placed)?;
        }
        // These are read when the broker says next time that it knows.
        if without.is_empty() { Ok(()) } else { begin_at_end(client, &without) }
    }

    /// Begins to read partitions: at the group's position, or else with the oldest message.
    fn read(&self, client: &Client, of: &BTreeSet<Partition>) -> KafkaResult<()> {
        let mut state = self.state();
        for partition in of {
            state.unplaced.remove(partition);
            // Before anything of it can come.
            state.partitions.insert(partition.clone(), None);
        }
        drop(state);
        client.incremental_assign(&list(of, Offset::Stored)?)
    }

    /// Stops reading what there is no room for, and reads on where there is.
    fn steer(&self, client: &Client) {
        let (pause, resume) = self.state().steer(self.most_unsettled);
        for (partitions, pauses) in [(pause, true), (resume, false)] {
            if partitions.count() == 0 {
                continue;
            }
            let done = if pauses { client.pause(&partitions) } else { client.resume(&partitions) };
            if let Err(error) = done {
                tracing::debug!(target: "semel::kafka", %error, pauses, "flow control");
            }
        }
    }

    /// Partitions go to somebody else. What is settled is committed before they do; the rest is
    /// theirs, and what was handed out of it is settled in vain.
    fn revoke(&self, client: &Client, revoked: &TopicPartitionList) {
        let revoked: BTreeSet<_> = partitions(revoked).collect();
        if !client.assignment_lost()
            && let Err(error) = self.commit_of(client, |partition| revoked.contains(partition))
        {
            tracing::debug!(target: "semel::kafka", %error, "commit before a rebalance");
        }
        let mut state = self.state();
        let read = state.partitions.keys().filter(|partition| revoked.contains(partition));
        let read = list(&read.cloned().collect(), Offset::Invalid);
        state.unplaced.retain(|partition| !revoked.contains(partition));
        state.partitions.retain(|partition, _| !revoked.contains(partition));
        state.paused.retain(|partition| !revoked.contains(partition));
        state.window.retain(|arrived| !revoked.contains(&arrived.partition));
        state.strangers.retain(|(arrived, _)| !revoked.contains(&arrived.partition));
        drop(state);
        if let Err(error) = read.and_then(|read| client.incremental_unassign(&read)) {
            self.complain(&error, &error.to_string());
        }
    }

    /// Something is wrong; if it is not for good, whether it still is must be asked.
    fn complain(&self, error: &KafkaError, reason: &str) {
        let code = error.rdkafka_error_code().unwrap_or(Code::Unknown);
        match error::of_consumer(code, reason) {
            Some(failure) if failure.fault() == Fault::Misconfigured => self.fail(failure),
            // What was wrong with the last of them says more.
            _ if code == Code::AllBrokersDown => {
                self.state().complaint.get_or_insert_with(|| reason.to_owned());
            }
            _ => self.state().complaint = Some(reason.to_owned()),
        }
        self.news.notify_one();
    }

    fn fail(&self, failure: Failure) {
        self.state().fatal.get_or_insert(failure);
        self.news.notify_one();
    }
}

fn partitions(list: &TopicPartitionList) -> impl Iterator<Item = Partition> {
    list.elements().into_iter().map(|each| Partition::new(each.topic(), each.partition()))
}

/// What librdkafka tells, on the thread of the member.
pub(super) struct Reports(Arc<Member>);

impl ClientContext for Reports {
    fn log(&self, _level: RDKafkaLogLevel, facility: &str, line: &str) {
        tracing::debug!(target: "semel::kafka", facility, "{line}");
    }

    fn error(&self, error: KafkaError, reason: &str) {
        self.0.complain(&error, reason);
    }
}

impl ConsumerContext for Reports {
    fn rebalance(
        &self,
        client: &BaseConsumer<Self>,
        change: RDKafkaRespErr,
        list: &mut TopicPartitionList,
    ) {
        if change == RDKafkaRespErr::RD_KAFKA_RESP_ERR__ASSIGN_PARTITIONS {
            self.0.assign(client, list);
        } else {
            self.0.revoke(client, list);
        }
    }
}
