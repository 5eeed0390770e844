//! Every command in a block of the documentation, run as it is written; where it names a server,
//! against one of ours.

#[cfg(all(feature = "mqtt", feature = "redis"))]
mod brokers;
mod elsewhere;

use std::env;
use std::fs::{self, File};
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use semel_testkit::services::{Service, service};

use crate::servers::server::{Folder, Server};
use crate::shell;

const DATABASE: &str = "sqlite://shop.db";

#[tokio::test]
async fn every_command_of_the_documentation_runs() {
    let Some(redis) = service(Service::Redis) else { return };
    let Some(server) = Server::start(Service::Postgres, "documented").await else { return };
    let Some(payments) = Server::start(Service::Postgres, "documented_payments").await else {
        return;
    };
    prepare(&server, &payments.url, &redis);
    let event = fs::read_to_string(server.file("events.ndjson")).unwrap();
    let event: serde_json::Value = serde_json::from_str(event.lines().next().unwrap()).unwrap();
    let ours = [
        ("postgres://localhost/payments", payments.url.as_str()),
        ("postgres://payments@db/payments", &payments.url),
        ("redis://127.0.0.1:6379", &redis),
        ("0.0.0.0:8080", "127.0.0.1:0"),
        (" URL", &format!(" {}", server.url)),
        (" ID", &format!(" {}", event["id"].as_str().unwrap())),
        (" HASH", &format!(" {:064}", 0)),
    ];
    let mut count = 0;
    for (page, typed) in elsewhere::commands_that_nobody_else_runs() {
        let words = shell::words(&typed);
        assert_eq!(words[0], "semel", "{page}: nobody runs {typed:?}");
        let typed = ours.iter().fold(typed, |typed, (theirs, ours)| typed.replace(theirs, ours));
        let (code, said) = follow(&server, &typed, &words);
        // The key that stands for any other is free, and nobody has applied anything.
        let may_be = if words[1] == "keys" || words[1] == "verify" { &[0, 1][..] } else { &[0] };
        assert!(may_be.contains(&code), "{page}: {typed}\nended with {code}\n{said}");
        count += 1;
    }
    assert!(count > 20, "only {count} commands were run");
    server.remove().await;
    payments.remove().await;
}

/// The outbox of any language, as the first page tells it.
#[test]
fn the_first_page_works_as_it_is_written() {
    let folder = Folder::new();
    let page = fs::read_to_string(shell::root().join("README.md")).unwrap();
    let configuration = shell::blocks(&page, &["toml"])[0];
    fs::write(folder.file("semel.toml"), configuration).unwrap();
    let script = shell::blocks(&page, &["sh"])[1];
    // Cargo has built and installed it already.
    let script: String = script.split_inclusive('\n').filter(|line| !is_cargo(line)).collect();
    let (code, said) = run(&folder, &script);
    assert_eq!(code, 0, "{said}");
    let published = fs::read_to_string(folder.file("events.ndjson")).unwrap();
    assert!(published.contains("\"OrderPlaced\"") && published.lines().count() == 1, "{published}");
}

fn is_cargo(line: &str) -> bool {
    line.starts_with("cargo install ")
}

/// A database with an event that is published, and one that is a dead letter; a relay that may be
/// asked with a token; the database of a consumer; and a broker.
fn prepare(folder: &Folder, consumer: &str, redis: &str) {
    let http = "[http]\nlisten = \"127.0.0.1:0\"\n";
    let access = "[http.access.ops]\nrole = \"admin\"\ntoken_file = \"token\"\n";
    let broker = format!("[sink.broker]\ntype = \"redis\"\nurl = \"{redis}\"\n");
    folder.configure(&format!("[limits]\npayload = \"1KiB\"\n{http}{access}{broker}"));
    fs::write(folder.file("token"), "the token of the operators\n").unwrap();
    for url in [DATABASE, consumer] {
        folder.expect(0, DATABASE, &["migrate", "up", "--database", url]);
    }
    for (id, size) in [("42", 10), ("43", 2000)] {
        let payload = format!("\"{}\"", "x".repeat(size));
        let of = ["--aggregate-type", "order", "--aggregate-id", id, "--type", "OrderPlaced"];
        let send = [&["send", "--database", DATABASE, "--payload", &payload], &of[..]].concat();
        folder.expect(0, DATABASE, &send);
    }
    folder.expect(1, DATABASE, &["relay", "--drain"]);
}

/// Runs a command to its end; one that goes on, until it works; one that asks a relay, beside one.
fn follow(folder: &Folder, typed: &str, words: &[String]) -> (i32, String) {
    let has = |option: &str| words.iter().any(|word| word == option);
    if ["relay", "proxy"].contains(&words[1].as_str()) && !has("--drain") {
        let mut running = Running::start(folder, typed);
        return (running.end(), running.said());
    }
    if !has("--api") {
        return run(folder, typed);
    }
    let mut relay = Running::start(folder, "semel relay");
    let said = relay.said();
    let (_, address) = said.split_once("metrics on ").unwrap();
    let address = address.lines().next().unwrap().trim();
    let outcome = run(folder, &typed.replace("http://127.0.0.1:9464", address));
    assert_eq!(relay.end(), 0, "{}", relay.said());
    outcome
}

fn run(folder: &Folder, typed: &str) -> (i32, String) {
    let output = shell_command(folder, typed).output().unwrap();
    let [out, err] = [&output.stdout, &output.stderr].map(|bytes| String::from_utf8_lossy(bytes));
    (output.status.code().unwrap_or(-1), format!("{out}{err}"))
}

/// A command that goes on, and its log.
struct Running {
    process: Child,
    log: std::path::PathBuf,
}

impl Running {
    /// Waits until it says that it works.
    fn start(folder: &Folder, typed: &str) -> Self {
        let log = folder.file("log");
        let process = shell_command(folder, &format!("exec env {typed}"))
            .stdout(Stdio::null())
            .stderr(File::create(&log).unwrap())
            .spawn()
            .unwrap();
        let mut running = Self { process, log };
        let deadline = Instant::now() + Duration::from_secs(60);
        while !["relay started", "listening on"].iter().any(|word| running.said().contains(word)) {
            let ended = running.process.try_wait().unwrap();
            assert!(ended.is_none() && Instant::now() < deadline, "{typed}\n{}", running.said());
            sleep(Duration::from_millis(20));
        }
        running
    }

    fn said(&self) -> String {
        fs::read_to_string(&self.log).unwrap()
    }

    /// Asks it to stop; its exit code.
    fn end(&mut self) -> i32 {
        let id = self.process.id().to_string();
        assert!(Command::new("kill").args(["-s", "TERM", &id]).status().unwrap().success());
        self.process.wait().unwrap().code().unwrap_or(-1)
    }
}

/// A shell that finds semel, and the tools of Kafka.
fn shell_command(folder: &Folder, typed: &str) -> Command {
    let semel = std::path::Path::new(env!("CARGO_BIN_EXE_semel")).parent().unwrap().to_owned();
    let tools = [semel, shell::root().join("scripts/kafka")];
    let path = env::var_os("PATH").unwrap_or_default();
    let path = env::join_paths(tools.into_iter().chain(env::split_paths(&path))).unwrap();
    let mut command = Command::new("sh");
    command.args(["-eu", "-c", typed]).current_dir(folder.file(""));
    command.env("PATH", path).env("DATABASE_URL", DATABASE);
    command
}
