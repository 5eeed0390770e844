//! A member of a consumer group: a thread that keeps asking librdkafka, and what it was told.
//!
//! The thread runs whatever the engine does, so that a rebalance never waits for a slow handler and
//! a handler never costs the membership.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use rdkafka::client::ClientContext;
use rdkafka::config::{FromClientConfigAndContext, RDKafkaLogLevel};
use rdkafka::consumer::{BaseConsumer, CommitMode, Consumer, ConsumerContext, Rebalance};
use rdkafka::error::KafkaError;
use rdkafka::message::BorrowedMessage;
use rdkafka::types::RDKafkaErrorCode as Code;
use rdkafka::{Offset, TopicPartitionList};
use semel_core::{Batch, Failure, Fault, Limit};
use tokio::sync::{Notify, oneshot};

use super::arrived::{Arrived, Partition};
use super::config::KafkaSubscriptionConfig;
use super::log::PartitionLog;
use super::progress::Progress;
use crate::kafka::session::lock;
use crate::kafka::{SYSTEM, error};
use crate::subscription::Window;

/// What the thread and the source share.
pub(super) struct Member {
    state: Mutex<State>,
    /// Something came, or went wrong.
    pub(super) news: Arc<Notify>,
    stopped: AtomicBool,
    most_unsettled: usize,
    /// Its id, if the brokers say one.
    cluster: Option<String>,
}

/// What is known of the group's messages.
pub(super) struct State {
    pub(super) window: Window<Arc<Arrived>>,
    /// No events: on their way to the dead letters.
    pub(super) strangers: Vec<(Arc<Arrived>, Failure)>,
    /// Those assigned to this member; without progress until something came.
    partitions: BTreeMap<Partition, Option<Progress>>,
    /// What was ever assigned, as logs.
    logs: BTreeMap<Partition, Arc<PartitionLog>>,
    paused: BTreeSet<Partition>,
    /// Nothing will get better by waiting.
    pub(super) fatal: Option<Failure>,
    /// librdkafka complained; whether it still has reason to must be asked.
    pub(super) complaint: Option<String>,
}

/// How many messages are kept beside those that are handed out.
const MOST_WAITING: usize = 2_000;

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
            state: Mutex::new(State {
                window: Window::new(SYSTEM),
                strangers: Vec::new(),
                partitions: BTreeMap::new(),
                logs: BTreeMap::new(),
                paused: BTreeSet::new(),
                fatal: None,
                complaint: None,
            }),
            news: Arc::default(),
            stopped: AtomicBool::new(false),
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
        let mut crowded_since = None;
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
        state.partitions.retain(|partition, _| !revoked.contains(partition));
        state.paused.retain(|partition| !revoked.contains(partition));
        state.window.retain(|arrived| !revoked.contains(&arrived.partition));
        state.strangers.retain(|(arrived, _)| !revoked.contains(&arrived.partition));
    }

    fn fail(&self, failure: Failure) {
        self.state().fatal.get_or_insert(failure);
        self.news.notify_one();
    }
}

impl State {
    /// How many partitions are this member's.
    pub(super) fn assigned(&self) -> usize {
        self.partitions.len()
    }

    /// Whether the broker knows how far the group is.
    pub(super) fn is_committed(&self) -> bool {
        let uncommitted = |progress: &Option<Progress>| {
            progress.as_ref().is_some_and(|progress| progress.uncommitted().is_some())
        };
        !self.partitions.values().any(uncommitted)
    }

    pub(super) fn settle(&mut self, arrived: &Arrived) {
        if let Some(Some(progress)) = self.partitions.get_mut(&arrived.partition) {
            progress.settle(arrived.offset);
        }
    }

    /// The positions that the broker does not know yet.
    fn uncommitted(&self, of: impl Fn(&Partition) -> bool) -> TopicPartitionList {
        let mut positions = TopicPartitionList::new();
        for (partition, progress) in self.partitions.iter().filter(|(partition, _)| of(partition)) {
            if let Some(offset) = progress.as_ref().and_then(Progress::uncommitted) {
                let topic = partition.topic.as_str();
                let added =
                    positions.add_partition_offset(topic, partition.number, Offset::Offset(offset));
                debug_assert!(added.is_ok(), "a position is a legal offset");
            }
        }
        positions
    }

    fn waiting(&self) -> usize {
        self.window.waiting() + self.strangers.len()
    }

    fn is_crowded(&self) -> bool {
        self.waiting() >= MOST_WAITING
    }

    /// What to pause and what to resume.
    fn steer(&mut self, most_unsettled: usize) -> (TopicPartitionList, TopicPartitionList) {
        let crowded = self.is_crowded();
        // What was paused is resumed only when there is room again for a good deal.
        let roomy = self.waiting() < MOST_WAITING / 2;
        let far = i64::try_from(most_unsettled).unwrap_or(i64::MAX);
        let (mut pause, mut resume) = (TopicPartitionList::new(), TopicPartitionList::new());
        for (partition, progress) in &self.partitions {
            let ahead = progress.as_ref().map_or(0, Progress::ahead);
            let (topic, number) = (partition.topic.as_str(), partition.number);
            if self.paused.contains(partition) {
                if roomy && ahead <= far / 2 {
                    self.paused.remove(partition);
                    resume.add_partition(topic, number);
                }
            } else if crowded || ahead > far {
                self.paused.insert(partition.clone());
                pause.add_partition(topic, number);
            }
        }
        (pause, resume)
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
        let code = error.rdkafka_error_code().unwrap_or(Code::Unknown);
        match error::of_consumer(code, reason) {
            Some(failure) if failure.fault() == Fault::Misconfigured => self.0.fail(failure),
            // What was wrong with the last of them says more.
            _ if code == Code::AllBrokersDown => {
                self.0.state().complaint.get_or_insert_with(|| reason.to_owned());
            }
            _ => self.0.state().complaint = Some(reason.to_owned()),
        }
        self.0.news.notify_one();
    }
}

impl ConsumerContext for Reports {
    fn pre_rebalance(&self, client: &BaseConsumer<Self>, rebalance: &Rebalance<'_>) {
        match rebalance {
            Rebalance::Revoke(revoked) => self.0.revoke(client, revoked),
            // Before anything of them can come.
            Rebalance::Assign(assigned) => {
                let mut state = self.0.state();
                for partition in partitions(assigned) {
                    state.partitions.insert(partition, None);
                }
            }
            Rebalance::Error(error) => {
                self.0.state().complaint = Some(error.to_string());
            }
        }
    }
}
