//! Files of JSON lines: the shared suite, and what a crash or a stranger leaves in a file.

#![expect(clippy::unwrap_used, reason = "helpers of tests")]

mod line;

use std::fs;
use std::path::{Path, PathBuf};

use semel_backends::ndjson::FileSink;
use semel_core::{Event, Fault, Message, Published, Sink};
use semel_testkit::probe::{Probe, Ran, Skip};
use semel_testkit::suites::sink::SinkProbe;
use semel_testkit::{sink_suite, workload};
use tempfile::TempDir;

struct Lines {
    sink: FileSink,
    folder: TempDir,
}

impl Lines {
    fn inside(&self) -> PathBuf {
        self.folder.path().join("inside")
    }

    fn away(&self) -> PathBuf {
        self.folder.path().join("away")
    }
}

impl Probe for Lines {
    const BACKEND: &'static str = "file";
    const PATIENCE: std::time::Duration = std::time::Duration::ZERO;

    async fn fresh() -> Option<Self> {
        let folder = tempfile::tempdir().unwrap();
        let inside = folder.path().join("inside");
        fs::create_dir(&inside).unwrap();
        let sink = FileSink::open(inside.join("events.ndjson")).await.unwrap();
        Some(Self { sink, folder })
    }
}

impl SinkProbe for Lines {
    type Sink = FileSink;

    fn sink(&self) -> &FileSink {
        &self.sink
    }

    async fn arrived(&self) -> Result<Vec<Event>, Skip> {
        Ok(read(&self.inside().join("events.ndjson")))
    }

    async fn interrupt(&self) -> Ran {
        fs::rename(self.inside(), self.away()).unwrap();
        Ok(())
    }

    async fn restore(&self) {
        fs::rename(self.away(), self.inside()).unwrap();
    }
}

sink_suite!(Lines);

/// Every line as an event again.
fn read(path: &Path) -> Vec<Event> {
    let lines = fs::read_to_string(path).unwrap();
    lines.lines().map(line::event).collect()
}

fn message(number: u64) -> Message {
    Message::first("order.events", workload::event("a", number))
}

#[tokio::test]
async fn half_a_line_of_a_crashed_relay_is_removed() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("events.ndjson");
    let sink = FileSink::open(&path).await.unwrap();
    assert!(sink.publish(&[message(1)]).await.all_confirmed());
    let whole = fs::read_to_string(&path).unwrap();
    // However much of the second line was written, also across several blocks of the file.
    let second = format!("{{\"id\":\"{}", "x".repeat(10_000));
    for written in [1, 4, 7, 100, second.len()] {
        fs::write(&path, format!("{whole}{}", &second[..written])).unwrap();
        FileSink::open(&path).await.unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), whole, "after {written} bytes");
    }
    fs::write(&path, &second).unwrap();
    assert!(sink.publish(&[message(2)]).await.all_confirmed());
    assert_eq!(read(&path).len(), 1);
}

#[tokio::test]
async fn a_file_of_somebody_else_is_left_alone() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("notes.txt");
    fs::write(&path, "first\nno line break at the end").unwrap();
    let failure = FileSink::open(&path).await.unwrap_err();
    assert_eq!((failure.fault(), failure.code()), (Fault::Misconfigured, "E-FILE-FOREIGN"));
    assert_eq!(fs::read_to_string(&path).unwrap(), "first\nno line break at the end");
}

#[tokio::test]
async fn a_file_that_is_moved_away_is_followed_by_a_new_one() {
    let folder = tempfile::tempdir().unwrap();
    let (path, old) = (folder.path().join("events.ndjson"), folder.path().join("events.1"));
    let sink = FileSink::open(&path).await.unwrap();
    assert!(sink.publish(&[message(1)]).await.all_confirmed());
    fs::rename(&path, &old).unwrap();
    assert!(sink.publish(&[message(2)]).await.all_confirmed());
    assert_eq!((read(&old).len(), read(&path).len()), (1, 1));
}

#[tokio::test]
async fn a_folder_or_a_missing_folder_is_a_mistake_in_the_set_up() {
    let folder = tempfile::tempdir().unwrap();
    for path in [folder.path().to_owned(), folder.path().join("missing/events.ndjson")] {
        let failure = FileSink::open(path).await.unwrap_err();
        assert_eq!((failure.fault(), failure.code()), (Fault::Misconfigured, "E-FILE-OPEN"));
        assert!(failure.fix().unwrap().contains("folder"));
    }
}

#[cfg(target_os = "linux")]
#[tokio::test]
async fn a_full_disk_is_an_outage() {
    let sink = FileSink::open("/dev/full").await.unwrap();
    let Published::None(failure) = sink.publish(&[message(1)]).await else {
        panic!("the disk is full");
    };
    assert_eq!((failure.fault(), failure.code()), (Fault::Unavailable, "E-FILE-WRITE"));
}
