//! Outages: when nothing can be sent, stop sending, probe, and go on when the probe succeeds.

use std::time::Duration;

use tokio::time::Instant;

/// Whether the other side can be reached.
#[derive(Debug)]
pub(crate) struct Circuit {
    state: State,
    backoff: Duration,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Closed,
    Open { probe_at: Instant },
    Probing,
}

impl Circuit {
    const FIRST_WAIT: Duration = Duration::from_millis(50);
    /// Short, so that events flow again soon after the other side is back.
    const LONGEST_WAIT: Duration = Duration::from_millis(500);

    /// The longest rest that the other side can ask for: one probe a minute is no burden, and what it
    /// asked for may be over before.
    const LONGEST_REST: Duration = Duration::from_secs(60);

    /// Nothing is known yet: a probe comes first.
    pub(crate) fn untested(now: Instant) -> Self {
        Self { state: State::Open { probe_at: now }, backoff: Self::FIRST_WAIT }
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.state == State::Closed
    }

    /// The other side cannot be reached. Says whether that is news.
    pub(crate) fn trip(&mut self, now: Instant) -> bool {
        let news = self.is_closed();
        if !matches!(self.state, State::Open { .. }) {
            self.state = State::Open { probe_at: now + self.backoff };
            self.backoff = (self.backoff * 2).min(Self::LONGEST_WAIT);
        }
        news
    }

    /// The other side asked to be left alone for so long: while open, no probe comes earlier.
    pub(crate) fn rest(&mut self, now: Instant, wait: Duration) {
        if let State::Open { probe_at } = &mut self.state {
            *probe_at = (*probe_at).max(now + wait.min(Self::LONGEST_REST));
        }
    }

    /// When to probe, while open.
    pub(crate) fn probe_at(&self) -> Option<Instant> {
        match self.state {
            State::Open { probe_at } => Some(probe_at),
            State::Closed | State::Probing => None,
        }
    }

    /// A call is made that will tell. Changes nothing while closed.
    pub(crate) fn start_probe(&mut self) {
        if !self.is_closed() {
            self.state = State::Probing;
        }
    }

    /// The probe succeeded. The wait grows again if the very next call fails.
    pub(crate) fn close(&mut self) {
        self.state = State::Closed;
    }

    /// A real call succeeded: the next outage starts with the shortest wait.
    pub(crate) fn succeeded(&mut self) {
        self.backoff = Self::FIRST_WAIT;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn waits_grow_while_probes_fail_and_shrink_after_a_success() {
        let start = Instant::now();
        let mut circuit = Circuit::untested(start);
        let mut waits = Vec::new();
        for _ in 0..7 {
            circuit.start_probe();
            circuit.trip(start);
            waits.push((circuit.probe_at().unwrap() - start).as_millis());
        }
        assert_eq!(waits, [50, 100, 200, 400, 500, 500, 500]);
        circuit.start_probe();
        circuit.close();
        circuit.succeeded();
        assert!(circuit.trip(start), "an outage after a success is news");
        assert_eq!((circuit.probe_at().unwrap() - start).as_millis(), 50);
    }

    #[tokio::test(start_paused = true)]
    async fn many_failures_of_one_outage_count_once() {
        let start = Instant::now();
        let mut circuit = Circuit::untested(start);
        circuit.close();
        assert!(circuit.trip(start));
        let probe_at = circuit.probe_at();
        assert!(!circuit.trip(start + Duration::from_secs(9)));
        assert_eq!(circuit.probe_at(), probe_at);
    }
    #[tokio::test(start_paused = true)]
    async fn who_asks_to_be_left_alone_is_for_a_minute_at_most() {
        let start = Instant::now();
        let mut circuit = Circuit::untested(start);
        circuit.close();
        circuit.rest(start, Duration::from_secs(7));
        assert!(circuit.is_closed(), "asking is no outage by itself");
        circuit.trip(start);
        let mut waits = Vec::new();
        for seconds in [7, 0, 3, 3600] {
            circuit.rest(start, Duration::from_secs(seconds));
            waits.push((circuit.probe_at().unwrap() - start).as_secs());
        }
        assert_eq!(waits, [7, 7, 7, 60]);
        circuit.start_probe();
        circuit.trip(start);
        assert_eq!((circuit.probe_at().unwrap() - start).as_millis(), 100, "asked for once");
    }
}
