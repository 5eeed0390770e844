//! Set-ups that are wrong and messages that cannot be carried, each provoked on a real server.

use redis::cmd;
use semel_backends::redis::RedisConfig;
use semel_core::{Failure, Fault, Secret, Sink};
use semel_testkit::workload::{event, events};
use tokio::time::timeout;

use super::server::OwnServer;
use super::{PATIENCE, Stream, connect, failure_of, publish, random_name};

fn assert_misconfigured(failure: &Failure, code: &str) {
    assert_eq!((failure.fault(), failure.code()), (Fault::Misconfigured, code), "{failure:?}");
    assert!(failure.fix().is_some(), "{failure:?}");
}

async fn connect_failure(config: RedisConfig) -> Failure {
    connect(config).await.expect_err("it must not connect")
}

#[test]
fn a_wrong_url_is_misconfigured_and_not_repeated() {
    let urls = [
        "",
        "http://u:secret@host",
        "redis://u:secret@host:port",
        "rediss://u:secret@host#insecure",
    ];
    for url in urls {
        let failure = RedisConfig::new(url).unwrap_err();
        assert_misconfigured(&failure, "E-REDIS-URL");
        assert!(!failure.to_string().contains("secret"), "{failure}");
    }
    let config = RedisConfig::new("redis://u:secret@host").unwrap();
    assert!(!format!("{config:?}").contains("secret"), "{config:?}");
}

#[tokio::test]
async fn nobody_listening_is_an_outage() {
    let unused = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let failure = connect_failure(RedisConfig::new(&format!("redis://{unused}")).unwrap()).await;
    assert_eq!((failure.fault(), failure.code()), (Fault::Unavailable, "E-REDIS-DOWN"));
}

#[tokio::test]
async fn a_name_that_is_no_stream_is_misconfigured() {
    let Some(stream) = Stream::fresh().await else { return };
    let taken = random_name("no-stream");
    stream.reader.ask::<()>(cmd("SET").arg(&taken).arg("a string").arg("EX").arg(60)).await;
    for count in [1, 2] {
        let failure = failure_of(publish(&stream.sink, &taken, events("a", 0..count)).await);
        assert_misconfigured(&failure, "E-REDIS-TYPE");
        assert!(failure.to_string().contains(&taken), "{failure}");
    }
    assert!(stream.publish([event("a", 0)]).await.all_confirmed());
}

/// The server would close the connection, so the sink asks for its limit.
#[tokio::test]
async fn what_is_too_large_is_refused_and_the_connection_stays() {
    let Some(server) = OwnServer::start(&["--proto-max-bulk-len", "1mb"]).await else { return };
    let sink = connect(server.config()).await.unwrap();
    let reader = server.reader().await;
    let connections = async || {
        let info: String = reader.ask(cmd("INFO").arg("stats")).await;
        info.lines().find(|line| line.starts_with("total_connections_received:")).map(str::to_owned)
    };
    let before = connections().await;
    assert!(before.is_some());
    let sized = |bytes| event("a", 0).with_bytes("application/octet-stream", vec![0; bytes]);
    let failure = failure_of(publish(&sink, "orders", [sized((1 << 20) + 1)]).await);
    assert_eq!((failure.fault(), failure.code()), (Fault::Refused, "E-REDIS-TOO-LARGE"));
    assert!(publish(&sink, "orders", [sized(1 << 20)]).await.all_confirmed());
    assert_eq!(connections().await, before);
}

#[tokio::test]
async fn wrong_logins_are_misconfigured() {
    let Some(server) = OwnServer::start(&["--requirepass", "secret"]).await else { return };
    assert_misconfigured(&connect_failure(server.config()).await, "E-REDIS-ACCESS");
    for (user, password) in [("default", "wrong"), ("nobody", "secret")] {
        let config = server.config().credentials(user, Secret::new(password));
        let failure = connect_failure(config).await;
        assert_misconfigured(&failure, "E-REDIS-ACCESS");
        assert!(!failure.to_string().contains("secret"), "{failure}");
    }
    let url = server.url().replace("redis://", "redis://:secret@");
    let sink = connect(RedisConfig::new(&url).unwrap()).await.unwrap();
    assert!(publish(&sink, "orders", [event("a", 0)]).await.all_confirmed());
}

#[tokio::test]
async fn a_password_for_a_server_without_one_is_misconfigured() {
    let Some(server) = OwnServer::start(&[]).await else { return };
    let url = server.url().replace("redis://", "redis://:secret@");
    let failure = connect_failure(RedisConfig::new(&url).unwrap()).await;
    assert_misconfigured(&failure, "E-REDIS-ACCESS");
}

/// A user with the least rights can work; each right that is missing is named.
#[tokio::test]
async fn missing_rights_are_misconfigured() {
    let Some(server) = OwnServer::start(&[]).await else { return };
    let reader = server.reader().await;
    let mut user = cmd("ACL");
    user.arg("SETUSER").arg("shop").arg("on").arg(">secret").arg("~shop:*");
    user.arg("+ping").arg("+xadd").arg("+multi").arg("+exec");
    reader.ask::<()>(&user).await;
    let config = || server.config().credentials("shop", Secret::new("secret"));
    let sink = connect(config()).await.unwrap();
    assert!(publish(&sink, "shop:orders", events("a", 0..2)).await.all_confirmed());
    timeout(PATIENCE, sink.check()).await.unwrap().expect("the probe's name is no right to miss");
    for count in [1, 2] {
        let failure = failure_of(publish(&sink, "other", events("a", 0..count)).await);
        assert_misconfigured(&failure, "E-REDIS-ACCESS");
        assert!(failure.to_string().contains("NOPERM"), "{failure}");
    }
    reader.ask::<()>(cmd("ACL").arg("SETUSER").arg("shop").arg("-xadd")).await;
    for count in [1, 2] {
        let failure = failure_of(publish(&sink, "shop:orders", events("a", 0..count)).await);
        assert_misconfigured(&failure, "E-REDIS-ACCESS");
        assert!(failure.to_string().contains("xadd"), "{failure}");
    }
    let failure = timeout(PATIENCE, sink.check()).await.unwrap().unwrap_err();
    assert_misconfigured(&failure, "E-REDIS-ACCESS");
    reader.ask::<()>(cmd("ACL").arg("SETUSER").arg("shop").arg("+xadd").arg("-multi")).await;
    let failure = failure_of(publish(&sink, "shop:orders", events("a", 2..4)).await);
    assert_misconfigured(&failure, "E-REDIS-ACCESS");
}

#[tokio::test]
async fn a_slot_on_another_node_is_misconfigured() {
    let settings = ["--cluster-enabled", "yes", "--cluster-require-full-coverage", "no"];
    let Some(here) = OwnServer::start(&settings).await else { return };
    let Some(there) = OwnServer::start(&settings).await else { return };
    let slots = |from: u16, to: u16| {
        let mut command = cmd("CLUSTER");
        command.arg("ADDSLOTSRANGE").arg(from).arg(to);
        command
    };
    let reader = here.reader().await;
    // {a} is in slot 15495, {b} in 3300.
    reader.ask::<()>(&slots(8192, 16383)).await;
    there.reader().await.ask::<()>(&slots(0, 8191)).await;
    reader.ask::<()>(&there.meeting()).await;
    let sink = connect(here.config().key_prefix("{a}:")).await.unwrap();
    let known = async {
        loop {
            let slots: String = reader.ask(cmd("CLUSTER").arg("INFO")).await;
            if slots.contains("cluster_slots_assigned:16384") && slots.contains("state:ok") {
                return;
            }
            tokio::time::sleep(std::time::Duration::from_millis(20)).await;
        }
    };
    timeout(PATIENCE, known).await.expect("the nodes meet");
    assert!(publish(&sink, "orders", events("a", 0..2)).await.all_confirmed());
    let elsewhere = connect(here.config().key_prefix("{b}:")).await.unwrap();
    for count in [1, 2] {
        let failure = failure_of(publish(&elsewhere, "orders", events("a", 0..count)).await);
        assert_misconfigured(&failure, "E-REDIS-CLUSTER");
        assert!(failure.to_string().contains("MOVED"), "{failure}");
    }
}

#[tokio::test]
async fn a_missing_command_or_database_is_misconfigured() {
    let settings = ["--rename-command", "XADD", "", "--databases", "2"];
    let Some(server) = OwnServer::start(&settings).await else { return };
    let sink = connect(server.config()).await.unwrap();
    for count in [1, 2] {
        let failure = failure_of(publish(&sink, "orders", events("a", 0..count)).await);
        assert_misconfigured(&failure, "E-REDIS-SERVER");
    }
    let url = format!("{}/9", server.url());
    assert_misconfigured(&connect_failure(RedisConfig::new(&url).unwrap()).await, "E-REDIS-SERVER");
}

#[tokio::test]
async fn a_file_that_cannot_be_read_is_misconfigured() {
    let Some(server) = OwnServer::start(&[]).await else { return };
    let failure = connect_failure(server.config().ca_file("/no/such/file.pem")).await;
    assert_misconfigured(&failure, "E-REDIS-TLS");
}
