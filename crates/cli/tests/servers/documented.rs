//! Every semel command in a block of the documentation, run as it is written; where it names a server,
//! against one of ours.

use std::env;
use std::fs::{self, File};
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use semel_testkit::services::Service;

use crate::server::{Folder, Server};
use crate::shell;

/// Pages that are followed as a whole, or whose commands are run, by other tests.
const ELSEWHERE: &[(&str, &str)] = &[
    ("docs/quickstart/", "servers::quickstart, and page::newcomer"),
    ("docs/conformance.md", "proxy::conform"),
    ("README.md", "the test below"),
];

#[tokio::test]
async fn every_command_of_the_documentation_runs() {
    let Some(server) = Server::start(Service::Postgres, "documented").await else { return };
    prepare(&server);
    let event = fs::read_to_string(server.file("events.ndjson")).unwrap();
    let event: serde_json::Value = serde_json::from_str(event.lines().next().unwrap()).unwrap();
    let ours = [
        ("postgres://localhost/payments", "sqlite://shop.db"),
        ("postgres://payments@db/payments", "sqlite://shop.db"),
        ("redis://127.0.0.1:6379", "sqlite://shop.db"),
        ("0.0.0.0:8080", "127.0.0.1:0"),
        (" URL", &format!(" {}", server.url)),
        (" ID", &format!(" {}", event["id"].as_str().unwrap())),
        (" HASH", &format!(" {:064}", 0)),
    ];
    let mut count = 0;
    for (page, text) in shell::pages() {
        if ELSEWHERE.iter().any(|(begin, _)| page.starts_with(begin)) {
            continue;
        }
        for typed in shell::commands_of(&text) {
            let words = shell::words(&typed);
            // What asks a running relay is run by page::api.
            let asks = words.iter().any(|word| word == "--api");
            if words.first().is_none_or(|program| program != "semel") || asks {
                continue;
            }
            let typed =
                ours.iter().fold(typed, |typed, (theirs, ours)| typed.replace(theirs, ours));
            let goes_on = ["relay", "proxy"].contains(&words[1].as_str())
                && !words.iter().any(|word| word == "--drain");
            let (code, said) =
                if goes_on { run_for_a_while(&server, &typed) } else { run(&server, &typed) };
            // The key that stands for any other is free, and nobody has applied anything.
            let may_be =
                if words[1] == "keys" || words[1] == "verify" { &[0, 1][..] } else { &[0] };
            assert!(may_be.contains(&code), "{page}: {typed}\nended with {code}\n{said}");
            count += 1;
        }
    }
    assert!(count > 15, "only {count} commands were run");
    server.remove().await;
}

/// The outbox of any language, as the first page tells it.
#[test]
fn the_first_page_works_as_it_is_written() {
    let folder = Folder::new();
    let page = fs::read_to_string(shell::root().join("README.md")).unwrap();
    let configuration = shell::blocks(&page, &["toml"])[0];
    fs::write(folder.file("semel.toml"), configuration).unwrap();
    let script = shell::blocks(&page, &["sh"])[1];
    let (code, said) = run(&folder, script);
    assert_eq!(code, 0, "{said}");
    let published = fs::read_to_string(folder.file("events.ndjson")).unwrap();
    assert!(published.contains("\"OrderPlaced\"") && published.lines().count() == 1, "{published}");
}

/// A database with an event that is published, and one that is a dead letter.
fn prepare(folder: &Folder) {
    folder.configure("[limits]\npayload = \"1KiB\"");
    let url = "sqlite://shop.db";
    folder.expect(0, url, &["migrate", "up", "--database", url]);
    for (id, size) in [("42", 10), ("43", 2000)] {
        let payload = format!("\"{}\"", "x".repeat(size));
        let of = ["--aggregate-type", "order", "--aggregate-id", id, "--type", "OrderPlaced"];
        let send = [&["send", "--database", url, "--payload", &payload], &of[..]].concat();
        folder.expect(0, url, &send);
    }
    folder.expect(1, url, &["relay", "--drain"]);
}

fn run(folder: &Folder, typed: &str) -> (i32, String) {
    let output = shell_command(folder, typed).output().unwrap();
    let [out, err] = [&output.stdout, &output.stderr].map(|bytes| String::from_utf8_lossy(bytes));
    (output.status.code().unwrap_or(-1), format!("{out}{err}"))
}

/// Runs it until it says that it works, and then as long as it takes to end.
fn run_for_a_while(folder: &Folder, typed: &str) -> (i32, String) {
    let log = folder.file("log");
    let mut running = shell_command(folder, &format!("exec env {typed}"))
        .stdout(Stdio::null())
        .stderr(File::create(&log).unwrap())
        .spawn()
        .unwrap();
    let said = || fs::read_to_string(&log).unwrap();
    let deadline = Instant::now() + Duration::from_secs(60);
    while !said().contains("relay started") && !said().contains("listening on") {
        let ended = running.try_wait().unwrap();
        assert!(ended.is_none() && Instant::now() < deadline, "{typed}\n{}", said());
        sleep(Duration::from_millis(20));
    }
    (end(&mut running), said())
}

fn end(running: &mut Child) -> i32 {
    let id = running.id().to_string();
    assert!(Command::new("kill").args(["-s", "TERM", &id]).status().unwrap().success());
    running.wait().unwrap().code().unwrap_or(-1)
}

fn shell_command(folder: &Folder, typed: &str) -> Command {
    let semel = std::path::Path::new(env!("CARGO_BIN_EXE_semel")).parent().unwrap().to_owned();
    let path = env::var_os("PATH").unwrap_or_default();
    let path = env::join_paths([semel].into_iter().chain(env::split_paths(&path))).unwrap();
    let mut command = Command::new("sh");
    command.args(["-eu", "-c", typed]).current_dir(folder.file(""));
    command.env("PATH", path).env("DATABASE_URL", "sqlite://shop.db");
    command
}
