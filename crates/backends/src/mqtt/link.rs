//! The connection: what is under way on it, and its end.
//!
//! A connection that ends is never continued: what was not acknowledged has failed, and nothing of
//! it is sent again but by the caller. So a message has one sender, and order is the caller's alone.

use std::collections::{HashMap, VecDeque};
use std::io;
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use std::vec;

use semel_core::Failure;
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinHandle;
use tokio::time::{Instant, Interval, MissedTickBehavior, interval_at};
use tokio_rustls::TlsConnector;

use super::config::MqttConfig;
use super::error::{declined, down, ended_by_broker, is_taken, lacking, lost};
use super::packet::{Incoming, Publish, Terms, write_connect, write_goodbye, write_ping};
use super::wire::Wire;

/// An open connection. When this is dropped, it sends what it was given, and ends.
pub(super) struct Link {
    jobs: mpsc::UnboundedSender<Run>,
    pings: mpsc::UnboundedSender<oneshot::Sender<()>>,
    /// The largest packet that the broker takes.
    pub(super) largest: usize,
    end: Arc<OnceLock<Failure>>,
    task: JoinHandle<()>,
}

/// Messages of one lane: each is sent when the broker has taken the one before. That is done where
/// the answer comes in, because with few lanes a detour costs more than the message.
pub(super) struct Run {
    /// With their places in the batch.
    pub(super) messages: vec::IntoIter<(usize, Publish)>,
    pub(super) answers: mpsc::UnboundedSender<Answer>,
}

/// What the broker says to a message.
pub(super) struct Answer {
    pub(super) place: usize,
    pub(super) reason: u8,
}

impl Link {
    pub(super) async fn open(
        config: &MqttConfig,
        encryption: Option<&TlsConnector>,
    ) -> Result<Self, Failure> {
        const KEEP_ALIVE: u16 = 20;
        let mut wire = Wire::open(config, encryption).await?;
        let terms = greet(&mut wire, config, KEEP_ALIVE).await?;
        let limit = terms.max_packet_size.map_or(usize::MAX, |size| size as usize);
        let window = terms.receive_max.unwrap_or(u16::MAX).min(config.max_in_flight);
        let keep_alive = terms.server_keep_alive.unwrap_or(KEEP_ALIVE).clamp(1, KEEP_ALIVE);
        let (jobs, new) = mpsc::unbounded_channel();
        let (pings, asked) = mpsc::unbounded_channel();
        let exchange = Exchange {
            wire,
            new,
            waiting: VecDeque::new(),
            asked,
            window: usize::from(window.max(1)),
            require_subscriber: config.require_subscriber,
            under_way: HashMap::new(),
            last_number: 0,
            pings: Vec::new(),
            pinged_at: None,
            // A dead peer is noticed after two of these; after three, if a probe came between.
            pulse: pulse(Duration::from_secs(u64::from(keep_alive)) / 2),
        };
        let end = Arc::new(OnceLock::new());
        let task = tokio::spawn(run(exchange, Arc::clone(&end)));
        Ok(Self { jobs, pings, largest: limit.min(config.max_message_bytes), end, task })
    }

    pub(super) fn is_open(&self) -> bool {
        !self.jobs.is_closed()
    }

    /// Sends a lane, beside those that are under way. Its answers end when one is a refusal, or with
    /// the connection, which drops the lane.
    pub(super) fn publish(&self, run: Run) {
        let _ = self.jobs.send(run);
    }

    /// Asks whether the broker is there, however much is under way.
    pub(super) async fn ping(&self) -> Result<(), Failure> {
        let (answer, answered) = oneshot::channel();
        let _ = self.pings.send(answer);
        answered.await.map_err(|_| self.end())
    }

    /// Why there are no more answers.
    pub(super) fn end(&self) -> Failure {
        let given_up = || down("the connection was given up");
        self.end.get().cloned().unwrap_or_else(given_up)
    }

    /// Closes the connection now, whatever is under way.
    pub(super) fn close(&self) {
        self.task.abort();
    }
}

async fn greet(wire: &mut Wire, config: &MqttConfig, keep_alive: u16) -> Result<Terms, Failure> {
    let failed = |error| lost("the broker did not answer the greeting", error);
    write_connect(config, keep_alive, &mut wire.output).map_err(failed)?;
    wire.flush().await.map_err(failed)?;
    let terms = match wire.next().await.map_err(failed)? {
        Incoming::Connected(terms) => terms,
        Incoming::Declined(reason) => return Err(declined(config.version, reason)),
        Incoming::Goodbye(reason) => return Err(ended_by_broker(reason)),
        _ => return Err(failed(io::Error::other("this is no MQTT"))),
    };
    if terms.max_qos == Some(0) {
        return Err(lacking("QoS 1, by which it acknowledges messages"));
    }
    if config.retain && terms.retain_available == Some(0) {
        return Err(lacking("retained messages"));
    }
    Ok(terms)
}

fn pulse(period: Duration) -> Interval {
    let mut pulse = interval_at(Instant::now() + period, period);
    pulse.set_missed_tick_behavior(MissedTickBehavior::Delay);
    pulse
}

async fn run(mut exchange: Exchange, end: Arc<OnceLock<Failure>>) {
    let failure = exchange.carry().await;
    // Before the answers are dropped: whoever waits for one looks for the reason here.
    let _ = end.set(failure);
}

/// What is under way on a connection.
struct Exchange {
    wire: Wire,
    new: mpsc::UnboundedReceiver<Run>,
    /// Lanes that gave way to others, and those behind them.
    waiting: VecDeque<Run>,
    asked: mpsc::UnboundedReceiver<oneshot::Sender<()>>,
    window: usize,
    require_subscriber: bool,
    /// What is behind each message of which nothing was heard.
    under_way: HashMap<u16, (usize, Run)>,
    last_number: u16,
    pings: Vec<oneshot::Sender<()>>,
    /// When a ping was sent, of those that are not answered the first.
    pinged_at: Option<Instant>,
    pulse: Interval,
}

impl Exchange {
    /// Carries jobs and answers until the connection ends.
    async fn carry(&mut self) -> Failure {
        loop {
            let step = self.step().await;
            match step.map_err(|error| lost("the connection was lost", error)) {
                Ok(Step::Next) => {}
                Ok(Step::Done) => return down("the connection is closed"),
                Ok(Step::Ended(reason)) => return ended_by_broker(reason),
                Err(failure) => return failure,
            }
        }
    }

    async fn step(&mut self) -> io::Result<Step> {
        while self.under_way.len() < self.window
            && let Some(run) = self.next_in_turn()
        {
            self.go_on(run)?;
        }
        self.wire.flush().await?;
        let has_room = self.under_way.len() < self.window;
        tokio::select! {
            run = self.new.recv(), if has_room => match run {
                Some(run) => self.go_on(run)?,
                None => {
                    write_goodbye(&mut self.wire.output);
                    self.wire.flush().await?;
                    return Ok(Step::Done);
                }
            },
            Some(answer) = self.asked.recv() => {
                self.pings.push(answer);
                self.ping(Instant::now());
            }
            packet = self.wire.next() => return self.take(packet?),
            now = self.pulse.tick() => {
                // A probe may have asked a moment ago.
                let silent = self.pinged_at.map(|at| now.saturating_duration_since(at));
                if silent.is_some_and(|silent| silent >= self.pulse.period()) {
                    return Err(io::ErrorKind::TimedOut.into());
                }
                self.ping(now);
            }
        }
        Ok(Step::Next)
    }

    fn next_in_turn(&mut self) -> Option<Run> {
        while let Ok(run) = self.new.try_recv() {
            self.waiting.push_back(run);
        }
        self.waiting.pop_front()
    }

    /// Gives the room of a lane to the one that waits longest: long lanes keep nobody's out.
    fn take_turns(&mut self, run: Run) -> io::Result<()> {
        if run.messages.as_slice().is_empty() {
            return Ok(());
        }
        match self.next_in_turn() {
            Some(other) => {
                self.waiting.push_back(run);
                self.go_on(other)
            }
            None => self.go_on(run),
        }
    }

    /// Sends the next of a lane, unless nobody waits for it any more: it would come after what is
    /// sent meanwhile.
    fn go_on(&mut self, mut run: Run) -> io::Result<()> {
        if !run.answers.is_closed()
            && let Some((place, publish)) = run.messages.next()
        {
            let number = self.free_number();
            publish.write(number, &mut self.wire.output)?;
            self.under_way.insert(number, (place, run));
        }
        Ok(())
    }

    /// The window is smaller than the numbers, so one is free.
    fn free_number(&mut self) -> u16 {
        loop {
            self.last_number = self.last_number.checked_add(1).unwrap_or(1);
            if !self.under_way.contains_key(&self.last_number) {
                return self.last_number;
            }
        }
    }

    fn ping(&mut self, now: Instant) {
        self.pinged_at.get_or_insert(now);
        write_ping(&mut self.wire.output);
    }

    /// Takes a packet, and those that came with it.
    fn take(&mut self, first: Incoming) -> io::Result<Step> {
        let mut next = Some(first);
        while let Some(packet) = next {
            match packet {
                Incoming::Acknowledged { number, reason } => {
                    if let Some((place, run)) = self.under_way.remove(&number) {
                        let _ = run.answers.send(Answer { place, reason });
                        if is_taken(reason, self.require_subscriber) {
                            self.take_turns(run)?;
                        }
                    }
                }
                Incoming::Pong => {
                    self.pinged_at = None;
                    for answer in self.pings.drain(..) {
                        let _ = answer.send(());
                    }
                }
                Incoming::Goodbye(reason) => return Ok(Step::Ended(reason)),
                Incoming::Connected(_) | Incoming::Declined(_) | Incoming::Other => {}
            }
            next = self.wire.next_received()?;
        }
        Ok(Step::Next)
    }
}

enum Step {
    Next,
    /// Nobody has anything more to send.
    Done,
    /// The broker ended it.
    Ended(u8),
}
