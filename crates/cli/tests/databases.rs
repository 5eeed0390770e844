//! The same commands against whichever database server.

#![cfg(any(feature = "mysql", feature = "postgres"))]

use std::fs;
use std::path::Path;
use std::process::{Command, Output};

pub(crate) fn semel(folder: &Path, url: &str, arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_semel"));
    command.args(arguments).current_dir(folder).env("DATABASE_URL", url).output().unwrap()
}

pub(crate) fn expect(code: i32, output: &Output) -> String {
    let (out, err) =
        (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert_eq!(output.status.code(), Some(code), "{out}{err}");
    format!("{out}{err}")
}

/// Into a file beside it.
pub(crate) const CONFIG: &str = "[source.orders]
url = \"${DATABASE_URL}\"
[sink.out]
type = \"file\"
path = \"events.ndjson\"
[pipeline.orders]
from = \"orders\"
to = \"out\"
";

/// A database without tables, into which five orders are written once it has them.
pub(crate) async fn events_are_published_sent_replayed_and_cleaned(
    url: &str,
    insert_five: impl AsyncFnOnce(),
) {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    fs::write(folder.join("semel.toml"), CONFIG).unwrap();

    let message = expect(78, &semel(folder, url, &["relay", "--drain"]));
    assert!(message.contains("semel migrate up"), "{message}");
    expect(1, &semel(folder, url, &["migrate", "status", "--database", url]));
    expect(0, &semel(folder, url, &["migrate", "up", "--database", url]));
    expect(0, &semel(folder, url, &["migrate", "status", "--database", url]));
    insert_five().await;
    for _ in 0..2 {
        expect(0, &semel(folder, url, &["relay", "--drain"]));
    }
    let lines = fs::read_to_string(folder.join("events.ndjson")).unwrap();
    let payloads: Vec<i64> = lines
        .lines()
        .map(|line| serde_json::from_str::<serde_json::Value>(line).unwrap())
        .map(|event| event["payload"].as_i64().unwrap())
        .collect();
    assert_eq!(payloads, [1, 2, 3, 4, 5]);
    let status = expect(0, &semel(folder, url, &["status", "--output", "json"]));
    assert!(status.contains("\"published\": 5"), "{status}");

    let send = ["send", "--database", url, "--aggregate-type", "order", "--aggregate-id", "42"];
    let send = [&send[..], &["--type", "OrderPlaced", "--payload", "6", "--key", "k"]].concat();
    expect(0, &semel(folder, url, &send));
    assert!(expect(1, &semel(folder, url, &send)).contains("idempotency key k exists already"));
    expect(0, &semel(folder, url, &["relay", "--drain"]));
    let replay = ["replay", "--all", "--yes", "--until", "2999-01-01T00:00:00Z"];
    let dry = semel(folder, url, &[&replay[..], &["--dry-run"]].concat());
    assert_eq!(expect(0, &dry), "6 events would be replayed\n");
    assert_eq!(expect(0, &semel(folder, url, &replay)), "6 events replayed\n");
    expect(0, &semel(folder, url, &["relay", "--drain"]));
    let lines = fs::read_to_string(folder.join("events.ndjson")).unwrap();
    assert_eq!(lines.lines().count(), 12);
    let clean = ["clean", "--older-than", "0s"];
    let dry = semel(folder, url, &[&clean[..], &["--dry-run"]].concat());
    assert_eq!(expect(0, &dry), "at most 6 events would be deleted\n");
    assert_eq!(expect(0, &semel(folder, url, &clean)), "6 events deleted\n");
}

pub(crate) fn a_server_that_is_not_there_is_unreachable_and_its_password_stays_secret(
    scheme: &str,
) {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("semel.toml"), CONFIG).unwrap();
    let url = format!("{scheme}://me:hunter2@127.0.0.1:1/shop");
    let message = expect(69, &semel(folder.path(), &url, &["status"]));
    assert!(message.contains(&format!("{scheme}://127.0.0.1:1/shop")), "{message}");
    assert!(message.contains("no event is lost"), "{message}");
    assert!(!message.contains("hunter2"), "{message}");
}
