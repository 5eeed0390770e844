//! One process in the group, while it runs: its turns, and the relays of the shares it holds.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use futures_util::future::BoxFuture;
use semel_core::coordination::{Coordination, Coordinator, Holder, Plan, Share, Standing};
use semel_core::{Failure, Fault};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep_until, timeout};

use super::{Group, OpenShare};
use crate::metrics::{Reach, Witness};
use crate::pulse::{Doing, Pulse, Turning};
use crate::relay::Report;
use crate::stop::{Level, Stop, Stopper};

/// One process in the group, while it runs.
pub(super) struct Member {
    name: String,
    coordination: Coordination,
    open: OpenShare,
    pulse: Option<Pulse>,
    turning: Option<Turning>,
    stop: Stop,
    drains: bool,
    lease: Duration,

    /// Away while a turn is taken.
    coordinator: Option<Box<dyn Coordinator>>,
    turn: Option<BoxFuture<'static, Turn>>,
    next_turn: Instant,
    /// When the turn began that last renewed the leases.
    renewed: Option<Instant>,
    began: Instant,

    work: JoinSet<Ended>,
    workers: BTreeMap<u32, Worker>,
    last_worker: u64,
    drained: BTreeSet<u32>,
    /// Finished with, to be given back at the next turn.
    finished: Vec<u32>,
    /// Of those that still work, the ones to be given back.
    giving_up: BTreeSet<u32>,
    /// Refused, which will not change soon: not to be opened before.
    resting: BTreeMap<u32, Instant>,
    leads: Option<bool>,
    /// Whether the last turn came to nothing.
    is_cut_off: bool,
    reach: Reach,
    /// A member reaches the source, or does not, whether it works on something or stands by.
    source: Witness,
    fatal: Option<Failure>,
    report: Report,
}

/// The relay of a share. One that was left may still be ending when the next one begins.
struct Worker {
    number: u64,
    stopper: Stopper,
}

/// What came of a worker.
struct Ended {
    worker: u64,
    share: u32,
    result: Result<Report, Failure>,
}

/// What came of a turn.
struct Turn {
    coordinator: Box<dyn Coordinator>,
    /// When it began, if it renewed the leases.
    renewed: Option<Instant>,
    result: Result<(Standing, Plan, Vec<u32>), Failure>,
}

impl Member {
    pub(super) fn new(group: Group, stop: Stop, drains: bool) -> Self {
        let Group { name, coordinator, coordination, open, pulse } = group;
        let (now, reach) = (Instant::now(), Reach::default());
        Self {
            source: reach.source(&name),
            reach,
            turning: pulse.as_ref().map(|pulse| pulse.begin(&name)),
            name,
            coordination,
            open,
            pulse,
            stop,
            drains,
            lease: coordinator.lease(),
            coordinator: Some(coordinator),
            turn: None,
            next_turn: now,
            renewed: None,
            began: now,
            work: JoinSet::new(),
            workers: BTreeMap::new(),
            last_worker: 0,
            drained: BTreeSet::new(),
            finished: Vec::new(),
            giving_up: BTreeSet::new(),
            resting: BTreeMap::new(),
            leads: None,
            is_cut_off: false,
            fatal: None,
            report: Report::default(),
        }
    }

    pub(super) async fn run(mut self) -> Result<Report, Failure> {
        while !self.is_done() {
            self.start_turn();
            self.show_life();
            self.wait().await;
        }
        // What is left is bounded in time.
        self.turning = None;
        self.work.shutdown().await;
        if let Some(turn) = self.turn.take() {
            self.coordinator = Some(turn.await.coordinator);
        }
        if let Some(mut coordinator) = self.coordinator.take()
            && let Ok(Err(failure)) = timeout(self.lease, coordinator.leave()).await
        {
            let (pipeline, code) = (&self.name, failure.code());
            tracing::warn!(pipeline, code, "leases end by themselves: {failure}");
        }
        match self.fatal {
            Some(failure) => Err(failure),
            None => Ok(self.report),
        }
    }

    fn show_life(&self) {
        let Some(turning) = &self.turning else { return };
        turning.turned(
            Instant::now(),
            match self.leads {
                _ if self.is_cut_off => Doing::WaitingForSource,
                Some(false) => Doing::StandingBy,
                Some(true) | None => Doing::Starting,
            },
        );
    }

    fn is_finishing(&self) -> bool {
        self.fatal.is_some() || self.stop.level() != Level::Run
    }

    fn is_done(&self) -> bool {
        let all_drained = self.drains && self.drained.len() == self.coordination.shares() as usize;
        self.workers.is_empty() && (self.is_finishing() || all_drained)
    }

    fn start_turn(&mut self) {
        if Instant::now() < self.next_turn {
            return;
        }
        let Some(mut coordinator) = self.coordinator.take() else { return };
        let (coordination, limit) = (self.coordination, self.lease / 2);
        let renews = self.renewed.is_none_or(|at| at.elapsed() >= self.lease / 3);
        let wishes = Wishes { renews, claims: !self.is_finishing() };
        let finished = std::mem::take(&mut self.finished);
        self.turn = Some(Box::pin(async move {
            let began = Instant::now();
            let taken = take_turn(&mut *coordinator, coordination, &finished, wishes);
            let result = timeout(limit, taken).await.unwrap_or_else(|_| Err(too_slow()));
            Turn { coordinator, renewed: renews.then_some(began), result }
        }));
    }

    async fn wait(&mut self) {
        let look_up = self.turning.as_ref().map(|turning| turning.again_by(Instant::now()));
        let fenced_at = self.renewed.filter(|_| !self.workers.is_empty()).map(|at| at + self.lease);
        tokio::select! {
            biased;
            () = self.stop.changed() => self.stop_workers(),
            turn = resolve(self.turn.as_mut()) => self.finish_turn(turn),
            Some(ended) = self.work.join_next() => self.finish_work(ended),
            () = sleep_until(fenced_at.unwrap_or(self.next_turn)), if fenced_at.is_some() => {
                tracing::warn!(pipeline = self.name, "the leases could not be renewed in time");
                self.leave_at_once(|_| true);
            }
            () = sleep_until(self.next_turn), if self.coordinator.is_some() => {}
            () = sleep_until(look_up.unwrap_or(self.next_turn)), if look_up.is_some() => {}
        }
    }

    fn finish_turn(&mut self, turn: Turn) {
        const SHORT: Duration = Duration::from_millis(500);
        self.turn = None;
        self.coordinator = Some(turn.coordinator);
        self.next_turn = Instant::now() + SHORT.min(self.lease / 3);
        self.is_cut_off = turn.result.is_err();
        self.source.says(!self.is_cut_off);
        match turn.result {
            Ok((standing, plan, claimed)) => {
                self.renewed = turn.renewed.or(self.renewed);
                self.follow(&standing, &plan, &claimed);
            }
            Err(failure) if failure.fault() == Fault::Misconfigured => self.give_up_all(failure),
            Err(failure) => {
                let (pipeline, code) = (&self.name, failure.code());
                tracing::warn!(pipeline, code, "no turn taken: {failure}");
            }
        }
    }

    /// Brings the workers into line with what is held.
    fn follow(&mut self, standing: &Standing, plan: &Plan, claimed: &[u32]) {
        let held = |share: u32| {
            claimed.contains(&share)
                || standing.shares.get(share as usize).is_some_and(|holder| *holder == Holder::Me)
        };
        // What was claimed just now had been lost: whoever worked on it since knows nothing of that.
        self.leave_at_once(|share| !held(share) || claimed.contains(&share));
        for share in &plan.give_up {
            if let Some(worker) = self.workers.get(share)
                && self.giving_up.insert(*share)
            {
                worker.stopper.stop();
            } else if !self.workers.contains_key(share) {
                self.finished.push(*share);
            }
        }
        for share in (0..self.coordination.shares()).filter(|share| held(*share)) {
            let idle = !self.workers.contains_key(&share) && !plan.give_up.contains(&share);
            let rests = self.resting.get(&share).is_some_and(|until| Instant::now() < *until);
            if idle && !rests && !self.is_finishing() && !self.drained.contains(&share) {
                self.start_worker(share);
            }
        }
        self.tell_who_leads(standing, claimed);
        let busy = standing.shares.contains(&Holder::Other);
        if self.drains && busy && self.began.elapsed() > self.lease + Duration::from_secs(1) {
            self.give_up_all(others_work());
        }
    }

    fn start_worker(&mut self, number: u32) {
        let of = self.coordination.shares();
        let share = match Share::new(number, of) {
            Ok(share) => share,
            Err(failure) => return self.give_up_all(failure),
        };
        match of {
            1 => tracing::info!(pipeline = self.name, "this relay has the pipeline now"),
            _ => tracing::info!(
                pipeline = self.name,
                "this relay has share {} of {of} now",
                number + 1
            ),
        }
        let (stopper, mut stop) = Stop::new();
        let (opening, drains, pulse) = ((self.open)(share), self.drains, self.pulse.clone());
        let reach = self.reach.clone();
        self.last_worker += 1;
        let worker = self.last_worker;
        self.workers.insert(number, Worker { number: worker, stopper });
        self.work.spawn(async move {
            let opened = tokio::select! {
                opened = opening => opened.map(|relay| Some(match pulse {
                    Some(pulse) => relay.of_group(reach).with_pulse(pulse),
                    None => relay.of_group(reach),
                })),
                () = stop.changed() => Ok(None),
            };
            let result = match opened {
                Ok(Some(relay)) if drains => relay.drain(stop).await,
                Ok(Some(relay)) => relay.run(stop).await,
                Ok(None) => Ok(Report::default()),
                Err(failure) => Err(failure),
            };
            Ended { worker, share: number, result }
        });
    }

    fn finish_work(&mut self, ended: Result<Ended, tokio::task::JoinError>) {
        let Ended { worker, share, result } = match ended {
            Ok(ended) => ended,
            Err(error) => {
                let what = "a relay ended in a way nobody foresaw";
                return self
                    .give_up_all(Failure::misconfigured("E-RELAY", what).with_source(error));
            }
        };
        let current = self.workers.get(&share).is_some_and(|known| known.number == worker);
        if current {
            self.workers.remove(&share);
        }
        let given_up = current && self.giving_up.remove(&share);
        if given_up {
            self.finished.push(share);
            self.next_turn = Instant::now();
        }
        match result {
            Ok(report) => {
                self.report += report;
                if self.drains && current && !given_up && !self.is_finishing() {
                    self.drained.insert(share);
                }
            }
            Err(failure) if failure.fault() == Fault::Misconfigured => self.give_up_all(failure),
            // It is opened again at the next turn, or when something may have changed.
            Err(failure) => {
                const REST: Duration = Duration::from_secs(30);
                if failure.fault() == Fault::Refused {
                    self.resting.insert(share, Instant::now() + REST);
                }
                let (pipeline, code) = (&self.name, failure.code());
                tracing::warn!(pipeline, code, "share {} waits: {failure}", share + 1);
            }
        }
    }

    /// Stops the workers of shares that are somebody else's business now.
    fn leave_at_once(&mut self, is_lost: impl Fn(u32) -> bool) {
        let lost: Vec<_> = self.workers.keys().copied().filter(|share| is_lost(*share)).collect();
        for share in lost {
            self.giving_up.remove(&share);
            if let Some(worker) = self.workers.remove(&share) {
                tracing::warn!(pipeline = self.name, "lost share {}", share + 1);
                worker.stopper.stop();
                worker.stopper.stop();
            }
        }
    }

    fn stop_workers(&self) {
        self.workers.values().for_each(|worker| worker.stopper.stop());
    }

    fn give_up_all(&mut self, failure: Failure) {
        self.fatal.get_or_insert(failure);
        self.stop_workers();
    }

    fn tell_who_leads(&mut self, standing: &Standing, claimed: &[u32]) {
        let leads = !claimed.is_empty() || standing.shares.contains(&Holder::Me);
        if self.leads != Some(leads) && !leads {
            tracing::info!(pipeline = self.name, "standing by: another relay has the pipeline");
        }
        self.leads = Some(leads);
    }
}

/// What a turn is for.
#[derive(Clone, Copy)]
struct Wishes {
    renews: bool,
    claims: bool,
}

/// Gives back, renews, claims.
async fn take_turn(
    coordinator: &mut dyn Coordinator,
    coordination: Coordination,
    finished: &[u32],
    wishes: Wishes,
) -> Result<(Standing, Plan, Vec<u32>), Failure> {
    if !finished.is_empty() {
        coordinator.release(finished).await?;
    }
    let standing = coordinator.beat(wishes.renews).await?;
    let plan = coordination.plan(&standing);
    let claimed = if wishes.claims && !plan.claim.is_empty() {
        coordinator.claim(&plan.claim).await?
    } else {
        Vec::new()
    };
    Ok((standing, plan, claimed))
}

fn too_slow() -> Failure {
    Failure::unavailable("E-LEASE-SLOW", "the database did not answer for half a lease")
}

fn others_work() -> Failure {
    Failure::transient("E-RELAY-BUSY", "another relay works on this pipeline, and goes on")
        .with_fix("stop it first, or leave the rest to it")
}

async fn resolve<T>(future: Option<&mut BoxFuture<'static, T>>) -> T {
    match future {
        Some(future) => future.await,
        None => std::future::pending().await,
    }
}
