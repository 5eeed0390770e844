//! Set-ups that are wrong and messages that cannot be carried, each provoked on a real server.

use std::process::{Child, Command, Stdio};
use std::time::Duration;

use async_nats::jetstream::stream::DiscardPolicy;
use semel_backends::nats::{NatsConfig, NatsStream};
use semel_core::wire::Format;
use semel_core::{Failure, Fault, Published, Secret, Sink, Verdict};
use semel_testkit::services::{Service, service};
use semel_testkit::workload::{event, events, numbers};
use tempfile::TempDir;
use tokio::time::{sleep, timeout};

use super::{PATIENCE, Reader, Stream, failure_of, publish, random_name};
use crate::certificates::Certificates;

async fn connect_failure(config: NatsConfig) -> Failure {
    timeout(PATIENCE, config.connect()).await.unwrap().expect_err("it must not connect")
}

fn assert_misconfigured(failure: &Failure, code: &str) {
    assert_eq!((failure.fault(), failure.code()), (Fault::Misconfigured, code), "{failure:?}");
    assert!(failure.fix().is_some(), "{failure:?}");
}

fn assert_refused(failure: &Failure, code: &str) {
    assert_eq!((failure.fault(), failure.code()), (Fault::Refused, code), "{failure:?}");
}

#[test]
fn a_wrong_url_is_misconfigured_and_not_repeated() {
    for url in ["", "nats://u:secret@host:port", "nats://u:secret@:4222,"] {
        let failure = NatsConfig::new(url).unwrap_err();
        assert_misconfigured(&failure, "E-NATS-URL");
        assert!(!failure.to_string().contains("secret"), "{failure}");
    }
}

#[tokio::test]
async fn nobody_listening_is_an_outage() {
    let unused = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let failure = connect_failure(NatsConfig::new(&unused.to_string()).unwrap()).await;
    assert_eq!((failure.fault(), failure.code()), (Fault::Unavailable, "E-NATS-DOWN"));
}

#[tokio::test]
async fn a_subject_without_a_stream_is_misconfigured() {
    let Some(stream) = Stream::fresh().await else { return };
    let failure = failure_of(publish(&stream.sink, "nobody.takes.this", [event("a", 0)]).await);
    assert_misconfigured(&failure, "E-NATS-STREAM-MISSING");
    assert!(failure.fix().unwrap().contains("nats stream add NOBODY"), "{:?}", failure.fix());
}

#[tokio::test]
async fn a_stream_is_made_when_asked_for_and_only_if_it_can_be() {
    let Some(url) = service(Service::Nats) else { return };
    let name = random_name("made");
    let stream = NatsStream::new(name.clone(), [format!("{name}.>")]);
    for _ in 0..2 {
        let config = NatsConfig::new(&url).unwrap().create_stream(stream.clone());
        let sink = timeout(PATIENCE, config.connect()).await.unwrap().unwrap();
        let topic = format!("{name}.placed");
        assert!(publish(&sink, &topic, [event("a", 0)]).await.all_confirmed());
    }
    let reader = Reader::open(&url).await;
    assert_eq!(reader.arrived(&name).await.len(), 2);
    // Two streams must not take the same subject.
    let overlapping = NatsStream::new(random_name("other"), [format!("{name}.placed")]);
    let config = NatsConfig::new(&url).unwrap().create_stream(overlapping);
    assert_misconfigured(&connect_failure(config).await, "E-NATS-STREAM");
    reader.context.delete_stream(&name).await.unwrap();
}

#[tokio::test]
async fn what_is_too_large_is_refused_and_the_connection_stays() {
    let Some(stream) = Stream::fresh().await else { return };
    let sizes = [("the stream", 300_000), ("the server", 1_100_000)];
    for (who, size) in sizes {
        let large = event("a", 0).with_bytes("application/octet-stream", vec![0; size]);
        let failure = failure_of(stream.publish([large]).await);
        assert_refused(&failure, "E-NATS-TOO-LARGE");
        assert!(stream.publish([event("a", 1)]).await.all_confirmed(), "{who}");
    }
}

#[tokio::test]
async fn a_topic_that_is_no_subject_is_refused() {
    let Some(stream) = Stream::fresh().await else { return };
    for topic in ["", "a b", "orders.*", "$JS.API.STREAM.LIST", "a\r\nPUB b 0\r\n"] {
        let failure = failure_of(publish(&stream.sink, topic, [event("a", 0)]).await);
        assert_refused(&failure, "E-NATS-SUBJECT");
    }
    assert!(stream.publish([event("a", 1)]).await.all_confirmed());
}

#[tokio::test]
async fn a_full_stream_is_an_outage_and_holds_its_lane_back() {
    let full = |config: &mut async_nats::jetstream::stream::Config| {
        config.max_messages = 2;
        config.discard = DiscardPolicy::New;
    };
    let Some(stream) = Stream::with(full, Format::Plain).await else { return };
    let published = stream.publish(events("a", 0..5)).await;
    let Published::Each(verdicts) = published else { panic!("{published:?}") };
    assert_eq!(verdicts[..2], [Verdict::Confirmed, Verdict::Confirmed]);
    let Verdict::Failed(failure) = &verdicts[2] else { panic!("{verdicts:?}") };
    assert_eq!((failure.fault(), failure.code()), (Fault::Unavailable, "E-NATS-STREAM-FULL"));
    assert_eq!(verdicts[3..], [Verdict::Behind, Verdict::Behind]);
    assert_eq!(numbers(&stream.arrived().await), [0, 1]);
    let made = stream.reader.context.get_stream(&stream.name).await.unwrap();
    made.purge().await.unwrap();
    assert!(stream.publish(events("a", 2..4)).await.all_confirmed());
    assert_eq!(numbers(&stream.arrived().await), [0, 1, 2, 3]);
}

/// The server's storage is used up, not the stream's: whatever is sent fails until there is room.
#[tokio::test]
async fn a_server_without_room_is_an_outage_and_passes() {
    const LITTLE: &str = r#"jetstream { store_dir: "STORE", max_mem: 1MB, max_file: 1MB }"#;
    let Some(server) = OwnServer::start(LITTLE).await else { return };
    let config = server.config().create_stream(NatsStream::new("ORDERS", ["orders"]));
    let sink = timeout(PATIENCE, config.connect()).await.unwrap().unwrap();
    let large = |number| event("a", number).with_bytes("text/plain", vec![b'x'; 100_000]);
    let mut number = 0;
    let failure = loop {
        let published = publish(&sink, "orders", [large(number)]).await;
        if !published.all_confirmed() {
            break failure_of(published);
        }
        number += 1;
        assert!(number < 20, "2 MB in 1 MB");
    };
    assert_eq!(
        (failure.fault(), failure.code()),
        (Fault::Unavailable, "E-NATS-DOWN"),
        "{failure:?}"
    );
    let reader = Reader::open(&server.address).await;
    reader.context.get_stream("ORDERS").await.unwrap().purge().await.unwrap();
    assert!(publish(&sink, "orders", [large(number)]).await.all_confirmed());
}

#[tokio::test]
async fn a_missing_file_is_misconfigured() {
    let Some(url) = service(Service::Nats) else { return };
    let config = || NatsConfig::new(&url).unwrap();
    let failure = connect_failure(config().credentials_file("/no/such/file.creds")).await;
    assert_misconfigured(&failure, "E-NATS-TLS");
    let failure = connect_failure(config().ca_file("/no/such/file.pem")).await;
    assert_misconfigured(&failure, "E-NATS-TLS");
}

#[tokio::test]
async fn tls_is_verified() {
    let certificates = Certificates::new();
    let (_, other) = certificates.of("other.example");
    let (key, trusted) = certificates.of("localhost");
    let settings = format!(
        "jetstream {{ store_dir: \"STORE\" }}\ntls {{ cert_file: {trusted:?}, key_file: {key:?} }}"
    );
    let Some(server) = OwnServer::start(&settings).await else { return };
    let port = server.address.rsplit_once(':').unwrap().1;
    let config = |host: &str| {
        let config = NatsConfig::new(&format!("tls://{host}:{port}")).unwrap();
        config.timeout(Duration::from_secs(3))
    };

    let stream = NatsStream::new("ORDERS", ["orders"]);
    let trusting = config("localhost").ca_file(&trusted).create_stream(stream);
    let sink = timeout(PATIENCE, trusting.connect()).await.unwrap().unwrap();
    assert!(publish(&sink, "orders", events("a", 0..3)).await.all_confirmed());

    let wrong = [
        ("no ca_file", config("localhost")),
        ("another certificate", config("localhost").ca_file(&other)),
        ("another host", config("127.0.0.1").ca_file(&trusted)),
    ];
    for (what, config) in wrong {
        let connected = timeout(PATIENCE, config.connect()).await.unwrap();
        assert_misconfigured(&connected.expect_err(what), "E-NATS-TLS");
    }
}

#[tokio::test]
async fn wrong_logins_and_missing_rights_are_misconfigured() {
    const USERS: &str = r#"
        jetstream { store_dir: "STORE" }
        authorization { users: [
            { user: "all", password: "secret" }
            { user: "some", password: "secret", permissions: {
                publish: ["$JS.API.>", "allowed"], subscribe: "_INBOX.>" } }
        ] }"#;
    let Some(server) = OwnServer::start(USERS).await else { return };
    let login =
        |user: &str, password: &str| server.config().credentials(user, Secret::new(password));
    assert_misconfigured(&connect_failure(login("all", "wrong")).await, "E-NATS-ACCESS");

    let stream = NatsStream::new("ORDERS", ["allowed", "forbidden"]);
    let config = login("some", "secret").create_stream(stream);
    let sink = timeout(PATIENCE, config.connect()).await.unwrap().unwrap();
    assert!(publish(&sink, "allowed", [event("a", 0)]).await.all_confirmed());
    let failure = failure_of(publish(&sink, "forbidden", [event("a", 1)]).await);
    assert_misconfigured(&failure, "E-NATS-ACCESS");
    assert!(failure.to_string().contains("forbidden"), "{failure}");
    assert!(publish(&sink, "allowed", [event("a", 1)]).await.all_confirmed());
}

#[tokio::test]
async fn a_server_without_jetstream_is_misconfigured() {
    let Some(server) = OwnServer::start("").await else { return };
    assert_misconfigured(&connect_failure(server.config()).await, "E-NATS-STREAM");
}

#[tokio::test]
async fn a_sealed_stream_is_misconfigured() {
    let Some(stream) = Stream::fresh().await else { return };
    let mut made = stream.reader.context.get_stream(&stream.name).await.unwrap();
    let mut config = made.info().await.unwrap().config.clone();
    config.sealed = true;
    stream.reader.context.update_stream(config).await.unwrap();
    let failure = failure_of(stream.publish([event("a", 0)]).await);
    assert_misconfigured(&failure, "E-NATS-STREAM");
    timeout(PATIENCE, stream.sink.check()).await.unwrap().unwrap();
}

/// A server with a configuration of the test's own.
struct OwnServer {
    process: Child,
    address: String,
    _folder: TempDir,
}

impl OwnServer {
    async fn start(configuration: &str) -> Option<Self> {
        service(Service::Nats)?;
        let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("nats.conf");
        let store = folder.path().join("store").display().to_string();
        let configuration = configuration.replace("STORE", &store);
        std::fs::write(&file, format!("listen: \"{free}\"\n{configuration}")).unwrap();
        let process = Command::new("nats-server")
            .arg("--config")
            .arg(file)
            .stderr(Stdio::null())
            .spawn()
            .expect("nats-server starts");
        let server = Self { process, address: free.to_string(), _folder: folder };
        let up = async {
            while tokio::net::TcpStream::connect(&server.address).await.is_err() {
                sleep(Duration::from_millis(20)).await;
            }
        };
        timeout(PATIENCE, up).await.expect("it listens");
        Some(server)
    }

    fn config(&self) -> NatsConfig {
        NatsConfig::new(&self.address).unwrap().timeout(Duration::from_secs(3))
    }
}

impl Drop for OwnServer {
    fn drop(&mut self) {
        self.process.kill().ok();
        self.process.wait().ok();
    }
}
