//! A file as a sink: lines are appended, and on the disk before they are confirmed.

use std::fs::{File, OpenOptions};
use std::io::{self, ErrorKind, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use async_trait::async_trait;
use semel_core::{Failure, Fault, Message, Published, Sink};
use tokio::task::spawn_blocking;

use super::line::{PREFIX, lines};

/// Appends to a file.
///
/// The file is opened for each batch, so it may be moved away at any time (by a log rotation, say):
/// the next batch makes a new one. A lock keeps the batches of several relays apart. A crash in the
/// middle of a batch leaves half a line at most, which the next batch removes: it was never
/// confirmed, so its event comes again.
///
/// ```
/// use semel_backends::ndjson::FileSink;
///
/// # tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(async {
/// let failure = FileSink::open("/no/such/folder/events.ndjson").await.unwrap_err();
/// assert_eq!(failure.code(), "E-FILE-OPEN");
/// # });
/// ```
#[derive(Clone, Debug)]
pub struct FileSink {
    path: Arc<Path>,
}

impl FileSink {
    /// Checks that the file can be written, and makes it if it does not exist.
    ///
    /// # Errors
    /// `Misconfigured` when it cannot be opened, or is no file of semel.
    pub async fn open(path: impl Into<PathBuf>) -> Result<Self, Failure> {
        let sink = Self { path: path.into().into() };
        match sink.append(Vec::new()).await {
            Ok(()) => Ok(sink),
            Err(error) if error.kind() == ErrorKind::InvalidData => Err(sink.foreign(error)),
            Err(error) => Err(sink
                .failure(Fault::Misconfigured, "E-FILE-OPEN", "open", error)
                .with_fix("check that the folder exists and that this user may write to the file")),
        }
    }

    async fn append(&self, lines: Vec<u8>) -> io::Result<()> {
        let path = Arc::clone(&self.path);
        spawn_blocking(move || append(&path, &lines)).await.map_err(io::Error::other)?
    }

    fn later_failure(&self, error: io::Error) -> Failure {
        if error.kind() == ErrorKind::InvalidData {
            return self.foreign(error);
        }
        self.failure(Fault::Unavailable, "E-FILE-WRITE", "write to", error)
            .with_fix("check the disk (space, quota) and that the folder is still there")
    }

    fn foreign(&self, error: io::Error) -> Failure {
        self.failure(Fault::Misconfigured, "E-FILE-FOREIGN", "append to", error)
            .with_fix("give another path, or end the file with a line break")
    }

    fn failure(&self, fault: Fault, code: &'static str, what: &str, error: io::Error) -> Failure {
        let what = format!("file sink: cannot {what} {}", self.path.display());
        Failure::new(fault, code, what).with_source(error)
    }
}

#[async_trait]
impl Sink for FileSink {
    async fn publish(&self, batch: &[Message]) -> Published {
        let appended = match lines(batch) {
            Ok(lines) => self.append(lines).await,
            Err(error) => Err(error.into()),
        };
        match appended {
            Ok(()) => Published::All,
            Err(error) => Published::None(self.later_failure(error)),
        }
    }

    async fn check(&self) -> Result<(), Failure> {
        self.append(Vec::new()).await.map_err(|error| self.later_failure(error))
    }

    fn system(&self) -> Option<&'static str> {
        Some("file")
    }
}

/// Appends all of `lines` or nothing, and waits until the disk has them. If it never says so they stay, and their
/// events come again.
fn append(path: &Path, lines: &[u8]) -> io::Result<()> {
    let mut file = OpenOptions::new().read(true).append(true).create(true).open(path)?;
    lock(&file)?;
    if !file.metadata()?.is_file() {
        // A pipe or a device: it can be neither mended nor synchronised.
        return file.write_all(lines);
    }
    let end = remove_half_line(&mut file)?;
    if let Err(error) = file.write_all(lines) {
        // If this fails too, the next batch removes what is left of the last line.
        file.set_len(end).ok();
        return Err(error);
    }
    // A disk takes its time. A relay that is stopped meanwhile must not keep its successor out.
    file.unlock().ok();
    if end == 0 {
        make_durable_entry(path)?;
    }
    file.sync_data()
}

/// Keeps other relays out until it is unlocked or closed, where the file system can do that.
fn lock(file: &File) -> io::Result<()> {
    match file.lock() {
        Err(error) if error.kind() == ErrorKind::Unsupported => Ok(()),
        locked => locked,
    }
}

/// A new file is only there after a crash of the machine if its folder was written too.
fn make_durable_entry(path: &Path) -> io::Result<()> {
    if !cfg!(unix) {
        return Ok(());
    }
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
    File::open(folder.unwrap_or(Path::new(".")))?.sync_all()
}

/// Removes what a crash left behind the last line break; says where the file ends then.
fn remove_half_line(file: &mut File) -> io::Result<u64> {
    let length = file.seek(SeekFrom::End(0))?;
    let end = end_of_last_line(file, length)?;
    if end == length {
        return Ok(end);
    }
    let mut beginning = vec![0; PREFIX.len()];
    file.seek(SeekFrom::Start(end))?;
    let read = file.take(length - end).read(&mut beginning)?;
    if !PREFIX.starts_with(&beginning[..read]) {
        let why = "it ends in the middle of a line that semel did not write";
        return Err(io::Error::new(ErrorKind::InvalidData, why));
    }
    file.set_len(end)?;
    Ok(end)
}

/// Looks for the last line break, from the end.
fn end_of_last_line(file: &mut File, length: u64) -> io::Result<u64> {
    const STEP: u64 = 4096;
    let mut end = length;
    while end > 0 {
        let start = end.saturating_sub(STEP);
        let mut part = Vec::new();
        file.seek(SeekFrom::Start(start))?;
        file.take(end - start).read_to_end(&mut part)?;
        if let Some(place) = part.iter().rposition(|byte| *byte == b'\n') {
            return Ok(start + place as u64 + 1);
        }
        end = start;
    }
    Ok(0)
}
