//! The pipelines that a relay runs, and how they change when the configuration does.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use futures_util::future::try_join_all;
use semel_relay::{Doing, Pulse, Report, Stop, Stopper};
use tokio::task::{AbortHandle, JoinError, JoinSet};
use tokio::time::{Instant, sleep};

use super::ready::Ready;
use super::relay::{EFFECT, crashed};
#[cfg(feature = "page")]
use super::views::{View, Views};
#[cfg(feature = "page")]
use crate::config::Http;
use crate::config::{Config, Pipeline, Retention};
use crate::exit::Problem;

const LONGEST_REST: Duration = Duration::from_secs(60);

/// Pipelines that run, that are about to, and that wait for their predecessor to end.
pub(super) struct Fleet {
    drain: bool,
    pulse: Pulse,
    stopping: bool,
    /// Those that are being connected.
    starting: JoinSet<(String, Result<Ready, Problem>)>,
    running: JoinSet<Ended>,
    members: BTreeMap<String, Member>,
    waiting: BTreeMap<String, Ready>,
    /// Those that failed, until they are tried again.
    resting: JoinSet<String>,
    /// The fingerprints of what the present configuration has, whether it runs or not. One that is
    /// revived may be newer: it belongs here once it runs.
    known: BTreeMap<String, u64>,
    failures: BTreeMap<String, Failures>,
    // Ends with the fleet: nobody waits for it.
    upkeep: JoinSet<()>,
    #[cfg(feature = "page")]
    views: Views,
}

/// What happens to a pipeline.
pub(super) enum News {
    Started,
    Ended(String, Report),
    /// It ended, or could not be started.
    Failed(String, Problem),
    /// It failed, and is to be tried again now.
    Rested(String),
}

type Ended = (String, Result<Report, Problem>);

struct Member {
    fingerprint: u64,
    stopper: Stopper,
    upkeep: Option<AbortHandle>,
    since: Instant,
    /// It was told to stop, once: twice would make it leave at once.
    leaving: bool,
}

/// How often in a row a pipeline has failed, and why the last time.
struct Failures {
    times: u32,
    last: Problem,
}

impl Fleet {
    pub(super) fn new(drain: bool, pulse: Pulse) -> Self {
        Self {
            drain,
            pulse,
            stopping: false,
            starting: JoinSet::new(),
            running: JoinSet::new(),
            members: BTreeMap::new(),
            waiting: BTreeMap::new(),
            resting: JoinSet::new(),
            known: BTreeMap::new(),
            failures: BTreeMap::new(),
            upkeep: JoinSet::new(),
            #[cfg(feature = "page")]
            views: Views::default(),
        }
    }

    /// What the present configuration has to show, if that is news: not before it is known of every
    /// pipeline whether it could be started.
    #[cfg(feature = "page")]
    pub(super) fn new_views(&mut self) -> Option<impl Iterator<Item = &View>> {
        if self.starting.is_empty() { self.views.news() } else { None }
    }

    /// The same, news or not.
    #[cfg(feature = "page")]
    pub(super) fn views(&mut self) -> impl Iterator<Item = &View> {
        self.views.all()
    }

    /// Whether it was tried to start every pipeline, and there is one that works.
    pub(super) fn has_started(&self) -> bool {
        self.starting.is_empty() && !self.stopping
    }

    /// What each pipeline does; nothing, when it failed and is to be tried again.
    pub(super) fn doing(&self) -> BTreeMap<String, Option<Doing>> {
        let told = self.pulse.pipelines();
        let running = self.members.keys();
        let starting = |name: &String| told.get(name).copied().unwrap_or(Doing::Starting);
        let running = running.map(|name| (name.clone(), Some(starting(name))));
        let failed = self.failures.keys().filter(|name| !self.members.contains_key(*name));
        failed.map(|name| (name.clone(), None)).chain(running).collect()
    }

    /// Begins to start all pipelines; none waits for another.
    pub(super) fn start(&mut self, config: Config) {
        for pipeline in config.pipelines {
            #[cfg(feature = "page")]
            self.views.expect(&pipeline);
            self.known.insert(pipeline.name.clone(), pipeline.fingerprint);
            self.begin(pipeline, config.retention);
        }
    }

    /// Lets what is in flight finish; the second time, leaves at once.
    pub(super) fn stop(&mut self) {
        let again = std::mem::replace(&mut self.stopping, true);
        self.starting = JoinSet::new();
        self.waiting.clear();
        for member in self.members.values_mut().filter(|member| again || !member.leaving) {
            member.leaving = true;
            member.stopper.stop();
        }
    }

    /// Lets what is in flight finish, unless somebody wanted that already.
    pub(super) fn end(&mut self) {
        if !self.stopping {
            self.stop();
        }
    }

    /// What happens next; nothing when no pipeline is left.
    pub(super) async fn next(&mut self) -> Option<News> {
        if self.running.is_empty() && self.starting.is_empty() {
            return None;
        }
        tokio::select! {
            Some(ended) = self.running.join_next() => Some(self.note_end(ended)),
            Some(started) = self.starting.join_next() => Some(self.note_start(started)),
            Some(Ok(name)) = self.resting.join_next() => Some(News::Rested(name)),
        }
    }

    fn note_end(&mut self, ended: Result<Ended, JoinError>) -> News {
        let (name, ended) = ended.unwrap_or_else(|gone| (String::new(), Err(crashed(gone))));
        if let Some(Member { upkeep, since, .. }) = self.members.remove(&name) {
            upkeep.inspect(AbortHandle::abort);
            if since.elapsed() > LONGEST_REST {
                self.failures.remove(&name);
            }
        }
        let successor = self.waiting.remove(&name);
        match (successor, ended) {
            (None, Ok(report)) => News::Ended(name, report),
            (None, Err(problem)) => News::Failed(name, problem),
            (Some(successor), ended) => {
                self.launch(successor);
                let report = ended.unwrap_or_else(|problem| {
                    let summary = problem.summary();
                    tracing::error!(pipeline = name, "the old one failed: {summary}");
                    Report::default()
                });
                News::Ended(name, report)
            }
        }
    }

    fn note_start(&mut self, started: Result<(String, Result<Ready, Problem>), JoinError>) -> News {
        let (name, started) = started.unwrap_or_else(|gone| (String::new(), Err(crashed(gone))));
        match started {
            Ok(ready) => {
                #[cfg(feature = "page")]
                self.views.connected(ready.view.clone());
                self.launch(ready);
                News::Started
            }
            Err(problem) => {
                #[cfg(feature = "page")]
                self.views.failed(&name, problem.failure());
                News::Failed(name, problem)
            }
        }
    }

    /// Lets the others go on without one that failed, which is tried again after a while. When there
    /// are no others, gives what the relay ends with.
    pub(super) fn go_on_without(&mut self, name: &str, problem: Problem) -> Result<(), Problem> {
        if self.drain || self.stopping {
            return Err(problem);
        }
        if self.members.is_empty() && self.starting.is_empty() {
            return Err(self.last_word(name, problem));
        }
        let times = self.failures.get(name).map_or(0, |failures| failures.times);
        let rest = Duration::from_secs(1 << times.min(6)).min(LONGEST_REST);
        let others = match self.members.is_empty() {
            true => ", unless no other pipeline can be started",
            false => "; the other pipelines go on",
        };
        let message = problem.message();
        tracing::error!(
            pipeline = name,
            "it stopped and is tried again in {rest:?}{others}\n{message}"
        );
        self.failures.insert(name.to_owned(), Failures { times: times + 1, last: problem });
        let name = name.to_owned();
        self.resting.spawn(async move {
            sleep(rest).await;
            name
        });
        Ok(())
    }

    /// Of all that do not run, rather one that may find what it needs with the next start: whoever
    /// starts the relay again must not be told that this is of no use.
    fn last_word(&mut self, name: &str, problem: Problem) -> Problem {
        self.failures.remove(name);
        if problem.may_pass() {
            return problem;
        }
        let mut others = std::mem::take(&mut self.failures).into_values();
        others.find(|failures| failures.last.may_pass()).map_or(problem, |failures| failures.last)
    }

    /// Begins to start one that failed, as the configuration has it now.
    pub(super) fn revive(&mut self, name: &str, path: &Path) -> Result<(), Problem> {
        if self.stopping || self.members.contains_key(name) {
            return Ok(());
        }
        match Config::load(path) {
            Ok(Config { pipelines, retention, .. }) => {
                let mut pipelines = pipelines.into_iter();
                if let Some(pipeline) = pipelines.find(|pipeline| pipeline.name == name) {
                    self.begin(pipeline, retention);
                }
                Ok(())
            }
            Err(problem) => self.go_on_without(name, problem),
        }
    }

    fn begin(&mut self, pipeline: Pipeline, retention: Option<Retention>) {
        let name = pipeline.name.clone();
        let connecting = Ready::new(pipeline, retention, self.drain, self.pulse.clone());
        self.starting.spawn(async move { (name, alone(connecting).await) });
    }

    /// Connects what is new or different, before anything is stopped; nothing, when it stops anyway.
    /// One that could not be started so far is neither: it must not keep the others from changing.
    /// Whoever does not want to wait for it any more drops it.
    pub(super) async fn prepare(&self, path: &Path) -> Result<Option<Changes>, Problem> {
        if self.stopping || self.drain {
            return Ok(None);
        }
        let config = Config::load(path)?;
        let mut changes = Changes {
            kept: Vec::new(),
            again: Vec::new(),
            retention: config.retention,
            ready: Vec::new(),
            #[cfg(feature = "page")]
            http: config.http,
        };
        let mut connecting = Vec::new();
        for pipeline in config.pipelines {
            let fingerprint = pipeline.fingerprint;
            match self.members.get(&pipeline.name) {
                Some(member) if member.fingerprint == fingerprint && !member.leaving => {
                    changes.kept.push(pipeline.name);
                }
                None if self.known.get(&pipeline.name) == Some(&fingerprint) => {
                    changes.kept.push(pipeline.name.clone());
                    changes.again.push(pipeline);
                }
                _ => {
                    let (retention, pulse) = (config.retention, self.pulse.clone());
                    connecting.push(Ready::new(pipeline, retention, false, pulse));
                }
            }
        }
        changes.ready = try_join_all(connecting).await?;
        Ok(Some(changes))
    }

    /// Goes over to a new configuration: what did not change goes on, the rest is stopped as by
    /// SIGTERM and started again where it was. Gives how many were kept, stopped and started.
    pub(super) fn apply(&mut self, changes: Changes) -> [usize; 3] {
        let (kept, started) = (changes.kept.len(), changes.ready.len());
        self.failures.retain(|name, _| changes.names().any(|known| known == name));
        self.known.retain(|name, _| changes.names().any(|known| known == name));
        self.waiting.clear();
        // Whatever was to be started is among what is ready, or is tried again.
        (self.starting, self.resting) = (JoinSet::new(), JoinSet::new());
        let mut stopped = 0;
        for (name, member) in &mut self.members {
            if !changes.kept.contains(name) && !member.leaving {
                member.leaving = true;
                member.stopper.stop();
                stopped += 1;
            }
        }
        #[cfg(feature = "page")]
        let views = changes.ready.iter().map(|ready| ready.view.clone()).collect();
        #[cfg(feature = "page")]
        self.views.replace(&changes.kept, views);
        for pipeline in changes.again {
            self.begin(pipeline, changes.retention);
        }
        for ready in changes.ready {
            if self.members.contains_key(&ready.name) {
                self.waiting.insert(ready.name.clone(), ready);
            } else {
                self.launch(ready);
            }
        }
        [kept, stopped, started]
    }

    fn launch(&mut self, ready: Ready) {
        let Ready { name, place, fingerprint, group, outages, upkeep, .. } = ready;
        tracing::info!(pipeline = name, "relay started: {place}");
        let (stopper, stop) = Stop::new();
        let (drain, since) = (self.drain, Instant::now());
        self.known.insert(name.clone(), fingerprint);
        let upkeep = upkeep.map(|upkeep| self.upkeep.spawn(upkeep));
        let member = Member { fingerprint, stopper, upkeep, since, leaving: false };
        self.members.insert(name.clone(), member);
        let run = async move {
            let work =
                async { if drain { group.drain(stop).await } else { group.run(stop).await } };
            let ended = outages.during(work).await;
            ended.map_err(|failure| Problem::new(failure, place, EFFECT))
        };
        self.running.spawn(async move { (name, alone(run).await) });
    }
}

/// In a task of its own, so that one that panics is known by its name.
async fn alone<T: Send + 'static>(
    work: impl Future<Output = Result<T, Problem>> + Send + 'static,
) -> Result<T, Problem> {
    tokio::spawn(work).await.unwrap_or_else(|panicked| Err(crashed(panicked)))
}

/// What a new configuration keeps and brings.
pub(super) struct Changes {
    kept: Vec<String>,
    /// Of those that are kept, the ones that do not run so far.
    again: Vec<Pipeline>,
    retention: Option<Retention>,
    ready: Vec<Ready>,
    #[cfg(feature = "page")]
    pub(super) http: Option<Http>,
}

impl Changes {
    /// All that is to run.
    fn names(&self) -> impl Iterator<Item = &String> {
        self.kept.iter().chain(self.ready.iter().map(|ready| &ready.name))
    }
}
