//! Lines on their way to a reader that may not take them for a while.
//!
//! A write that nobody awaits any more cannot be taken back: it ends when the reader goes on. Until
//! then the reader counts as away. Afterwards its lines are known, so that they are not written
//! again when their events come again.

use std::collections::{BTreeMap, HashMap};
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tokio::task::spawn_blocking;

/// One place that lines are written to, and what is under way to it.
#[derive(Default)]
pub(super) struct Outlet(Mutex<State>);

#[derive(Default)]
struct State {
    last: u64,
    writes: BTreeMap<u64, Write>,
    /// Written after nobody awaited it any more.
    late: HashMap<Vec<u8>, Instant>,
}

enum Write {
    Awaited,
    Abandoned,
    /// These lines were written.
    Done(Vec<u8>),
}

/// How long lines that were written late are known. Their events come again as soon as the reader is
/// back, or not at all.
const KNOWN_FOR: Duration = Duration::from_secs(60);

impl Outlet {
    /// Writes lines, except for those that an abandoned write has written.
    pub(super) async fn write(
        self: &Arc<Self>,
        lines: Vec<u8>,
        write: impl FnOnce(&[u8]) -> io::Result<()> + Send + 'static,
    ) -> io::Result<()> {
        let mut awaited = Awaited { outlet: Arc::clone(self), number: 0, known: Vec::new() };
        let lines = {
            let mut state = self.state();
            let lines = state.without_late(lines, &mut awaited.known);
            awaited.number = state.begin();
            lines
        };
        let (outlet, number) = (Arc::clone(self), awaited.number);
        let writing = spawn_blocking(move || {
            let written = if lines.is_empty() { Ok(()) } else { write(&lines) };
            outlet.state().end(number, written.is_ok().then_some(lines));
            written
        });
        let written = writing.await.map_err(io::Error::other).flatten();
        self.state().writes.remove(&number);
        if written.is_ok() {
            awaited.known.clear();
        }
        written
    }

    /// Whether a write does not come to its end that nobody awaits any more.
    pub(super) fn is_blocked(&self) -> bool {
        self.state().writes.values().any(|write| matches!(write, Write::Abandoned))
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A call that awaits a write; dropped before the end of it, it has abandoned it.
struct Awaited {
    outlet: Arc<Outlet>,
    number: u64,
    /// Lines of the call that were written before: they come again unless it succeeds.
    known: Vec<u8>,
}

impl Drop for Awaited {
    fn drop(&mut self) {
        let mut state = self.outlet.state();
        state.know(&self.known);
        state.abandon(self.number);
    }
}

impl State {
    fn begin(&mut self) -> u64 {
        self.last += 1;
        self.writes.insert(self.last, Write::Awaited);
        self.last
    }

    fn end(&mut self, number: u64, lines: Option<Vec<u8>>) {
        match (self.writes.remove(&number), lines) {
            (Some(Write::Abandoned), Some(lines)) => self.know(&lines),
            (Some(Write::Awaited), Some(lines)) => {
                self.writes.insert(number, Write::Done(lines));
            }
            _ => {}
        }
    }

    fn abandon(&mut self, number: u64) {
        match self.writes.remove(&number) {
            Some(Write::Done(lines)) => self.know(&lines),
            Some(Write::Awaited) => {
                self.writes.insert(number, Write::Abandoned);
            }
            Some(Write::Abandoned) | None => {}
        }
    }

    fn know(&mut self, lines: &[u8]) {
        let now = Instant::now();
        let lines = lines.split_inclusive(|byte| *byte == b'\n');
        self.late.extend(lines.map(|line| (line.to_vec(), now)));
    }

    /// What is left to write; the rest is `known` to be written, and here no longer.
    fn without_late(&mut self, lines: Vec<u8>, known: &mut Vec<u8>) -> Vec<u8> {
        self.late.retain(|_, since| since.elapsed() < KNOWN_FOR);
        if self.late.is_empty() {
            return lines;
        }
        let mut left = Vec::new();
        for line in lines.split_inclusive(|byte| *byte == b'\n') {
            let place = if self.late.remove(line).is_some() { &mut *known } else { &mut left };
            place.extend_from_slice(line);
        }
        left
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use tokio::time::timeout;

    use super::*;

    const BRIEFLY: Duration = Duration::from_millis(20);

    /// A write that ends when it is told to, and says so.
    fn blocked() -> (impl FnOnce(&[u8]) -> io::Result<()> + Send, mpsc::Sender<()>) {
        let (go_on, told) = mpsc::channel();
        (move |_: &[u8]| told.recv().map_err(io::Error::other), go_on)
    }

    async fn until_free(outlet: &Outlet) {
        let free = async {
            while outlet.is_blocked() {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        };
        timeout(Duration::from_secs(60), free).await.unwrap();
    }

    async fn written(outlet: &Arc<Outlet>, lines: &str) -> String {
        let (written, heard) = mpsc::channel();
        let write = move |lines: &[u8]| written.send(lines.to_vec()).map_err(io::Error::other);
        outlet.write(lines.into(), write).await.unwrap();
        String::from_utf8(heard.try_iter().flatten().collect()).unwrap()
    }

    fn left_of(state: &mut State, lines: &str) -> Vec<u8> {
        state.without_late(lines.into(), &mut Vec::new())
    }

    #[tokio::test]
    async fn lines_that_were_written_late_are_left_out_once() {
        let outlet = Arc::new(Outlet::default());
        let (write, go_on) = blocked();
        let late = outlet.write("a\nb\n".into(), write);
        assert!(timeout(BRIEFLY, late).await.is_err());
        assert!(outlet.is_blocked());
        go_on.send(()).unwrap();
        until_free(&outlet).await;
        assert_eq!(written(&outlet, "b\nc\n").await, "c\n");
        assert_eq!(written(&outlet, "a\n").await, "");
        assert_eq!(written(&outlet, "a\nb\n").await, "a\nb\n");
    }

    #[tokio::test]
    async fn what_was_awaited_to_its_end_is_not_known() {
        let outlet = Arc::new(Outlet::default());
        assert_eq!(written(&outlet, "a\n").await, "a\n");
        assert_eq!(written(&outlet, "a\n").await, "a\n");
        assert!(outlet.state().writes.is_empty());
    }

    #[tokio::test]
    async fn a_late_write_that_failed_wrote_nothing() {
        let outlet = Arc::new(Outlet::default());
        let (write, go_on) = blocked();
        let late = outlet.write("a\n".into(), write);
        assert!(timeout(BRIEFLY, late).await.is_err());
        drop(go_on);
        until_free(&outlet).await;
        assert_eq!(written(&outlet, "a\n").await, "a\n");
    }

    #[tokio::test]
    async fn lines_stay_known_when_what_comes_with_them_fails() {
        let outlet = Arc::new(Outlet::default());
        outlet.state().know(b"a\n");
        let failing = |_: &[u8]| Err(io::Error::other("no"));
        assert!(outlet.write("a\nb\n".into(), failing).await.is_err());
        assert_eq!(written(&outlet, "a\nb\n").await, "b\n");
        assert_eq!(written(&outlet, "a\n").await, "a\n");
    }

    /// The answer was there, and the time was over in the same moment.
    #[test]
    fn what_is_abandoned_after_its_end_is_known_too() {
        let mut state = State::default();
        let number = state.begin();
        state.end(number, Some(b"a\n".to_vec()));
        state.abandon(number);
        assert!(left_of(&mut state, "a\n").is_empty());
    }

    #[test]
    fn what_never_comes_again_is_forgotten() {
        let mut state = State::default();
        let long_ago = Instant::now().checked_sub(KNOWN_FOR).unwrap();
        state.late.insert(b"a\n".to_vec(), long_ago);
        assert_eq!(left_of(&mut state, "a\n"), b"a\n");
        assert!(state.late.is_empty());
    }
}
