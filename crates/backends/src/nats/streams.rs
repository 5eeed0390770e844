//! What is known of the streams that take messages: which of them may get a lane in one piece.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_nats::jetstream::stream::Config;
use tokio::time::Instant;

/// The streams that a sink has met, by their names.
#[derive(Default)]
pub(super) struct Streams(Mutex<State>);

#[derive(Default)]
struct State {
    known: BTreeMap<String, Known>,
    strangers: BTreeSet<String>,
}

struct Known {
    /// What it takes, if it has no replicas.
    subjects: Vec<String>,
    since: Instant,
}

/// Replicas are added to a stream while it is used.
const KNOWN_FOR: Duration = Duration::from_secs(60);

impl Streams {
    /// A stream has acknowledged a message.
    pub(super) fn meet(&self, stream: &str) {
        let mut state = self.state();
        let is_known = |known: &Known| known.since.elapsed() < KNOWN_FOR;
        if !state.known.get(stream).is_some_and(is_known) {
            state.known.remove(stream);
            state.strangers.insert(stream.to_owned());
        }
    }

    /// Those whose settings are to be asked for.
    pub(super) fn strangers(&self) -> BTreeSet<String> {
        std::mem::take(&mut self.state().strangers)
    }

    /// Notes the settings of a stream, or that they cannot be had.
    pub(super) fn learn(&self, stream: String, config: Option<&Config>) {
        let single = config.filter(|config| config.num_replicas <= 1);
        let subjects = single.map(|config| config.subjects.clone()).unwrap_or_default();
        self.state().known.insert(stream, Known { subjects, since: Instant::now() });
    }

    /// The subjects of all streams without replicas.
    pub(super) fn single(&self) -> Subjects {
        let state = self.state();
        let fresh = state.known.values().filter(|known| known.since.elapsed() < KNOWN_FOR);
        Subjects(fresh.flat_map(|known| known.subjects.iter().cloned()).collect())
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Subjects that may have wildcards.
pub(super) struct Subjects(Vec<String>);

impl Subjects {
    /// Whether a subject is one of them.
    pub(super) fn contain(&self, subject: &str) -> bool {
        self.0.iter().any(|pattern| covers(pattern, subject))
    }
}

fn covers(pattern: &str, subject: &str) -> bool {
    let (mut wanted, mut parts) = (pattern.split('.'), subject.split('.'));
    loop {
        match (wanted.next(), parts.next()) {
            (None, None) | (Some(">"), Some(_)) => return true,
            (Some(want), Some(part)) if want == "*" || want == part => {}
            _ => return false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(subjects: &[&str], replicas: usize) -> Config {
        let subjects = subjects.iter().map(ToString::to_string).collect();
        Config { subjects, num_replicas: replicas, ..Config::default() }
    }

    #[test]
    fn wildcards_are_those_of_nats() {
        let cases = [
            ("order", "order", true),
            ("order", "order.placed", false),
            ("order.>", "order", false),
            ("order.>", "order.placed.eu", true),
            ("order.*", "order.placed", true),
            ("order.*", "order.placed.eu", false),
            ("*.placed", "order.placed", true),
            ("*.placed", "order.paid", false),
            (">", "order", true),
        ];
        for (pattern, subject, expected) in cases {
            assert_eq!(covers(pattern, subject), expected, "{pattern} {subject}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn only_streams_that_are_known_to_have_no_replicas_get_runs() {
        let streams = Streams::default();
        for name in ["ONE", "THREE", "ELSEWHERE"] {
            streams.meet(name);
        }
        assert!(!streams.single().contain("one.a"), "nothing is known yet");
        assert_eq!(streams.strangers().len(), 3);
        streams.learn("ONE".into(), Some(&config(&["one.*"], 1)));
        streams.learn("THREE".into(), Some(&config(&["three.*"], 3)));
        streams.learn("ELSEWHERE".into(), None);
        streams.meet("ONE");
        streams.meet("ELSEWHERE");
        assert!(streams.strangers().is_empty(), "once is enough");
        let single = streams.single();
        assert!(single.contain("one.a") && !single.contain("three.a") && !single.contain("x"));

        tokio::time::advance(KNOWN_FOR).await;
        assert!(!streams.single().contain("one.a"), "it may have replicas by now");
        streams.meet("ONE");
        assert_eq!(streams.strangers(), BTreeSet::from(["ONE".to_owned()]));
    }
}
