//! Streams with replicas: three servers that know each other.

use std::net::TcpListener;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use async_nats::jetstream::stream::Config;
use semel_backends::nats::NatsConfig;
use semel_core::{Event, Fault, Published, Verdict};
use semel_testkit::services::{Service, service};
use semel_testkit::workload::{event, events, numbers};
use tempfile::TempDir;
use tokio::time::{sleep, timeout};

use super::outages::until_confirmed;
use super::{PATIENCE, Reader, failure_of, publish};

/// Gone with this value.
struct Cluster {
    servers: Vec<Child>,
    addresses: Vec<String>,
    _folder: TempDir,
}

impl Cluster {
    fn start() -> Option<Self> {
        service(Service::Nats)?;
        let folder = tempfile::tempdir().unwrap();
        // Held together until all are known, so that all are different.
        let free: Vec<_> = (0..6).map(|_| TcpListener::bind("127.0.0.1:0").unwrap()).collect();
        let free: Vec<_> = free.iter().map(|port| port.local_addr().unwrap().to_string()).collect();
        let (addresses, routes) = free.split_at(3);
        let known: Vec<_> = routes.iter().map(|route| format!("\"nats://{route}\"")).collect();
        let start = |place: usize| {
            let file = folder.path().join(format!("{place}.conf"));
            let store = folder.path().join(place.to_string());
            let settings = format!(
                "listen: \"{}\"\nserver_name: \"s{place}\"\njetstream {{ store_dir: {store:?} }}\n\
                 cluster {{ name: \"semel\", listen: \"{}\", routes: [{}] }}\n",
                addresses[place],
                routes[place],
                known.join(", ")
            );
            std::fs::write(&file, settings).unwrap();
            Command::new("nats-server")
                .arg("--config")
                .arg(file)
                .stderr(Stdio::null())
                .spawn()
                .expect("nats-server starts")
        };
        let servers = (0..3).map(start).collect();
        Some(Self { servers, addresses: addresses.to_vec(), _folder: folder })
    }

    /// A look into it, once it has a stream on all of its servers.
    async fn with_stream(&self, name: &str) -> Reader {
        let made = async {
            loop {
                if let Ok(client) = async_nats::connect(&self.addresses[0]).await {
                    let config = Config {
                        name: name.to_owned(),
                        num_replicas: 3,
                        max_message_size: 10_000,
                        ..Config::default()
                    };
                    let context = async_nats::jetstream::new(client);
                    if context.create_stream(config).await.is_ok() {
                        return;
                    }
                }
                sleep(Duration::from_millis(200)).await;
            }
        };
        timeout(PATIENCE, made).await.expect("the servers find each other");
        Reader::open(&self.addresses[0]).await
    }

    /// Which server leads a stream.
    async fn leader_of(&self, stream: &str) -> usize {
        let reader = Reader::open(&self.addresses[0]).await;
        let led = async {
            loop {
                let stream = reader.context.get_stream(stream).await.unwrap();
                let leader =
                    stream.cached_info().cluster.as_ref().and_then(|all| all.leader.clone());
                if let Some(name) = leader {
                    return name.trim_start_matches('s').parse().unwrap();
                }
                sleep(Duration::from_millis(100)).await;
            }
        };
        timeout(PATIENCE, led).await.expect("it has a leader")
    }

    fn kill(&mut self, place: usize) {
        self.servers[place].kill().unwrap();
        self.servers[place].wait().unwrap();
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        for server in &mut self.servers {
            server.kill().ok();
            server.wait().ok();
        }
    }
}

fn too_large(lane: &str, number: u64) -> Event {
    event(lane, number).with_bytes("text/plain", vec![b'x'; 20_000])
}

/// A stream with replicas may know the ids of what it has turned down, and acknowledge what it knows:
/// what stands behind a refused event must not be lost when it comes again. Not every version does so;
/// but on none is the stream made to turn anything down.
#[tokio::test]
async fn what_is_behind_a_refused_event_arrives_on_a_stream_with_replicas() {
    let Some(cluster) = Cluster::start() else { return };
    let reader = cluster.with_stream("orders").await;
    let config = NatsConfig::new(&cluster.addresses[1]).unwrap().timeout(Duration::from_secs(20));
    let sink = timeout(PATIENCE, config.connect()).await.unwrap().unwrap();
    let mut expected = Vec::new();
    for (lane, first) in [("a", 0), ("b", 10)] {
        let mut batch = events(lane, first..first + 5);
        batch[2] = too_large(lane, first + 2);
        let published = publish(&sink, "orders", batch.clone()).await;
        let Published::Each(verdicts) = published else { panic!("{published:?}") };
        assert_eq!(verdicts[..2], [Verdict::Confirmed, Verdict::Confirmed], "{verdicts:?}");
        let Verdict::Failed(failure) = &verdicts[2] else { panic!("{verdicts:?}") };
        assert_eq!(failure.fault(), Fault::Refused, "{failure:?}");
        assert_eq!(verdicts[3..], [Verdict::Behind, Verdict::Behind]);
        // It has become a dead letter, and the lane goes on without it.
        let published = publish(&sink, "orders", batch.split_off(3)).await;
        assert!(published.all_confirmed(), "{published:?}");
        expected.extend([first, first + 1, first + 3, first + 4]);
        assert_eq!(numbers(&reader.arrived("orders").await), expected);
    }
    assert_eq!(reader.in_runs("orders").await, 0, "each on its own");
}

/// The other two elect one of them; until then nobody answers.
#[tokio::test]
async fn a_stream_that_loses_its_leader_is_an_outage_and_passes() {
    let Some(mut cluster) = Cluster::start() else { return };
    drop(cluster.with_stream("orders").await);
    let leader = cluster.leader_of("orders").await;
    let survivor = cluster.addresses[(leader + 1) % 3].clone();
    let config = NatsConfig::new(&survivor).unwrap().timeout(Duration::from_secs(3));
    let sink = timeout(PATIENCE, config.connect()).await.unwrap().unwrap();
    assert!(publish(&sink, "orders", events("a", 0..10)).await.all_confirmed());

    cluster.kill(leader);
    let next = events("a", 10..20);
    let failure = failure_of(publish(&sink, "orders", next.clone()).await);
    assert_eq!(failure.fault(), Fault::Unavailable, "{failure:?}");
    until_confirmed(&sink, "orders", next).await;
    assert!(publish(&sink, "orders", events("a", 20..30)).await.all_confirmed());
    let arrived = numbers(&Reader::open(&survivor).await.arrived("orders").await);
    assert_eq!(arrived, (0..30).collect::<Vec<_>>(), "each once, in order");
}
