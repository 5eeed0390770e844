//! Three brokers that know each other, killed one after the other under a quorum queue.
//!
//! They take a while to start, so there is one test for everything that is done to them.

use std::cell::Cell;
use std::thread;
use std::time::{Duration, Instant};

use semel_backends::rabbitmq::{QueueKind, RabbitmqConfig, RabbitmqQueue, RabbitmqSink};
use semel_core::{Event, Failure, Fault, Schedule};
use semel_testkit::services::{Private, Service};
use semel_testkit::workload::{event, events, numbers};
use tokio::time::{sleep, timeout};

use super::outages::{control, until_confirmed};
use super::{PATIENCE, Reader, failure_of, publish};

/// How soon events flow when there is a leader again, on a machine with much else to do.
const SOON: Duration = Duration::from_secs(10);
const BATCH: u64 = 10;
const QUEUE: &str = "orders";
/// On one node alone.
const CLASSIC: &str = "ledger";

#[tokio::test]
async fn a_cluster_that_loses_its_leader_and_then_its_majority_loses_no_event() {
    let Some(cluster) = Cluster::start() else { return };
    let making = config(cluster.address(1)).declare_queue(queue()).connect();
    drop(timeout(PATIENCE, making).await.unwrap().unwrap());
    let leader = cluster.leader();
    assert_ne!(leader, Cluster::STAYS, "the queue is led where it was made");
    let beside = connect(config(cluster.address(Cluster::STAYS))).await;
    let there = connect(config(cluster.address(leader)).timeout(Duration::from_secs(3))).await;
    assert!(publish(&there, QUEUE, events("b", 0..3)).await.all_confirmed());
    let classic = RabbitmqQueue::new(CLASSIC).unwrap().kind(QueueKind::Classic);
    drop(connect(config(cluster.address(leader)).declare_queue(classic)).await);
    assert!(publish(&beside, CLASSIC, events("c", 0..3)).await.all_confirmed());

    let count = publish_while_the_leader_is_killed(&cluster, &beside, leader).await;
    let failure = failure_of(publish(&there, QUEUE, [event("b", 3)]).await);
    assert_eq!((failure.fault(), failure.code()), (Fault::Unavailable, "E-RABBITMQ-DOWN"));

    for queue in [CLASSIC, "no queue at all"] {
        let failure = failure_of(publish(&beside, queue, [event("c", 3)]).await);
        let expected = match queue {
            CLASSIC => (Fault::Unavailable, "E-RABBITMQ-DOWN"),
            _ => (Fault::Refused, "E-RABBITMQ-UNROUTABLE"),
        };
        assert_eq!((failure.fault(), failure.code()), expected, "{queue}: {failure:?}");
    }

    let last = (0..3).find(|node| ![leader, Cluster::STAYS].contains(node)).unwrap();
    cluster.make_leader(last).await;
    cluster.nodes[last].kill();
    let hasty =
        connect(config(cluster.address(Cluster::STAYS)).timeout(Duration::from_secs(3))).await;
    // More often than an event is tried: none of it may count.
    for _ in 0..=Schedule::default().attempts() {
        let failure = failure_of(publish(&hasty, QUEUE, [event("b", 3)]).await);
        assert!(is_without_majority(&failure), "{failure:?}");
    }
    cluster.nodes[leader].restart();
    let back = Instant::now();
    until_taken(&hasty, QUEUE, events("b", 3..6)).await;
    until_taken(&there, QUEUE, events("b", 6..9)).await;
    assert!(back.elapsed() < SOON, "{:?}", back.elapsed());
    until_taken(&beside, CLASSIC, events("c", 3..6)).await;

    let reader = Reader::open(cluster.address(Cluster::STAYS)).await;
    let arrived = reader.arrived(QUEUE).await;
    for (lane, count) in [("a", count), ("b", 9)] {
        let arrived = arrived.iter().filter(|event| event.aggregate_id == lane);
        let mut first = Vec::new();
        for number in numbers(arrived) {
            if !first.contains(&number) {
                first.push(number);
            }
        }
        assert_eq!(first, (0..count).collect::<Vec<_>>(), "{lane}: all, the first ones in order");
    }
    cluster.end();
}

/// A channel that the queue does not know yet is told no at once, as by a full queue. It must not be
/// used again: it is told so for ever.
fn is_without_majority(failure: &Failure) -> bool {
    failure.fault() == Fault::Unavailable
        && ["E-RABBITMQ-TIMEOUT", "E-RABBITMQ-NACK"].contains(&failure.code())
}

async fn until_taken(sink: &RabbitmqSink, queue: &str, events: Vec<Event>) {
    let taken = async {
        loop {
            let published = publish(sink, queue, events.clone()).await;
            if published.all_confirmed() {
                return;
            }
            let failure = failure_of(published);
            assert_eq!(failure.fault(), Fault::Unavailable, "{failure:?}");
            sleep(Duration::from_millis(50)).await;
        }
    };
    timeout(PATIENCE, taken).await.expect("they are confirmed");
}

/// From a connection to another node. How many were confirmed.
async fn publish_while_the_leader_is_killed(
    cluster: &Cluster,
    sink: &RabbitmqSink,
    leader: usize,
) -> u64 {
    let (confirmed, enough) = (Cell::new(0), Cell::new(false));
    let writing = async {
        while !enough.get() {
            let first = confirmed.get();
            until_confirmed(sink, QUEUE, events("a", first..first + BATCH)).await;
            confirmed.set(first + BATCH);
        }
    };
    let reaches = async |count: u64| {
        while confirmed.get() < count {
            sleep(Duration::from_millis(10)).await;
        }
    };
    let killing = async {
        reaches(5 * BATCH).await;
        cluster.nodes[leader].kill();
        let killed = Instant::now();
        // What was under way may have been confirmed before.
        reaches(confirmed.get() + 3 * BATCH).await;
        assert!(killed.elapsed() < SOON, "{:?}", killed.elapsed());
        enough.set(true);
    };
    let both = async { tokio::join!(writing, killing) };
    timeout(PATIENCE, both).await.expect("it goes on");
    confirmed.get()
}

struct Cluster {
    nodes: Vec<Private>,
}

impl Cluster {
    /// The one with the port mapper of all.
    const STAYS: usize = 0;

    fn start() -> Option<Self> {
        let first = Private::start(Service::Rabbitmq)?;
        let folder = first.folder();
        let joining = [("SEMEL_RABBITMQ_JOINS", folder.to_str().unwrap())];
        let others = thread::scope(|scope| {
            let start = || Private::start_in(Service::Rabbitmq, &joining);
            [(); 2].map(|()| scope.spawn(start)).map(|node| node.join().unwrap())
        });
        let nodes = [Some(first)].into_iter().chain(others);
        Some(Self { nodes: nodes.collect::<Option<_>>()? })
    }

    fn address(&self, node: usize) -> &str {
        self.nodes[node].address()
    }

    /// Which node leads the queue.
    fn leader(&self) -> usize {
        let arguments = ["list_queues", "--quiet", "--no-table-headers", "leader"];
        let leader = control(&self.nodes[Self::STAYS], &arguments);
        let leads = |node| self.name(node) == leader.trim();
        (0..3).find(|node| leads(*node)).unwrap_or_else(|| unreachable!("{leader:?} leads"))
    }

    async fn make_leader(&self, node: usize) {
        let made = async {
            loop {
                let leader = self.leader();
                if leader == node {
                    return;
                }
                let member = |node| format!("{{'%2F_{QUEUE}', '{}'}}", self.name(node));
                let eval = format!("ra:transfer_leadership({}, {}).", member(leader), member(node));
                control(&self.nodes[Self::STAYS], &["eval", &eval]);
                sleep(Duration::from_millis(200)).await;
            }
        };
        timeout(PATIENCE, made).await.expect("it leads");
    }

    fn name(&self, node: usize) -> String {
        let name = std::fs::read_to_string(self.nodes[node].folder().join("node_name")).unwrap();
        name.trim().to_owned()
    }

    /// Each would take its time to say good-bye to the others.
    fn end(self) {
        self.nodes.iter().for_each(Private::kill);
    }
}

fn queue() -> RabbitmqQueue {
    RabbitmqQueue::new(QUEUE).unwrap().kind(QueueKind::Quorum)
}

fn config(address: &str) -> RabbitmqConfig {
    RabbitmqConfig::new(address).unwrap()
}

async fn connect(config: RabbitmqConfig) -> RabbitmqSink {
    timeout(PATIENCE, config.connect()).await.unwrap().unwrap()
}
