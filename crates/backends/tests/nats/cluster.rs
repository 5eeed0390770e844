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

use super::{PATIENCE, Reader, publish};

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
