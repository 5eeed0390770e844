//! `[retention] delete = "on_publish"`: the outbox stays small while a relay works.

use std::fs;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use semel_testkit::services::Service;
use serde_json::Value;
use tokio::time::sleep;

use super::server::{Server, number};

const STATEMENTS: usize = 60;
const EACH: usize = 200;
const PATIENCE: Duration = Duration::from_secs(60);
const ALL: usize = STATEMENTS * EACH;

#[tokio::test]
async fn postgres_keeps_no_published_event() {
    keeps_no_published_event(Service::Postgres, "generate_series(1, 200) n").await;
}

#[tokio::test]
async fn mysql_keeps_no_published_event() {
    let numbers = "(WITH RECURSIVE n (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM n WHERE n < 200) \
                   SELECT n FROM n) n";
    keeps_no_published_event(Service::Mysql, numbers).await;
}

async fn keeps_no_published_event(service: Service, numbers: &str) {
    let Some(server) = Server::start(service, "on_publish").await else { return };
    server.configure("[retention]\ndelete = \"on_publish\"\nchunk = 500");
    server.expect(0, &server.url, &["migrate", "up", "--database", &server.url]);
    let relay = Relay::start(&server);
    let outbox = server.outbox();
    let rows = format!("SELECT count(*) FROM {outbox}");
    for statement in 0..STATEMENTS {
        server
            .run(&format!(
                "INSERT INTO {outbox} (aggregate_type, aggregate_id, event_type, payload) \
                 SELECT 'order', '42', 'Counted', n.n + {} FROM {numbers} ORDER BY n.n",
                statement * EACH
            ))
            .await;
        if statement % 20 == 19 {
            let deadline = Instant::now() + PATIENCE;
            while number(&server.url, &rows).await.unwrap() > 0 {
                assert!(Instant::now() < deadline, "events stay: {}", relay.log(&server));
                sleep(Duration::from_millis(10)).await;
            }
        }
    }
    let text = fs::read_to_string(server.file("events.ndjson")).unwrap();
    let payload = |line: &str| serde_json::from_str::<Value>(line).unwrap()["payload"].as_u64();
    let arrived: Vec<_> = text.lines().filter_map(payload).collect();
    assert_eq!(arrived, (1..=ALL as u64).collect::<Vec<_>>(), "each once, in order");
    drop(relay);
    server.remove().await;
}

/// A relay that runs until it is dropped.
struct Relay(Child);

impl Relay {
    fn start(server: &Server) -> Self {
        let log = fs::File::create(server.file("log")).unwrap();
        let mut command = Command::new(env!("CARGO_BIN_EXE_semel"));
        command.arg("relay").args(["--config".as_ref(), server.file("semel.toml").as_os_str()]);
        command.current_dir(server.file("")).env("DATABASE_URL", &server.url);
        Self(command.stdout(Stdio::null()).stderr(log).spawn().unwrap())
    }

    fn log(&self, server: &Server) -> String {
        fs::read_to_string(server.file("log")).unwrap()
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        self.0.kill().ok();
        self.0.wait().ok();
    }
}
