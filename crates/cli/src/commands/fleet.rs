//! The pipelines that a relay runs, and how they change when the configuration does.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use semel_relay::{Doing, Group, Pulse, Report, Stop, Stopper};
use tokio::task::{AbortHandle, JoinSet};
use tokio::time::{Instant, sleep};

#[cfg(feature = "page")]
use super::page::View;
use super::relay::{EFFECT, connect, crashed, open};
#[cfg(feature = "page")]
use crate::config::Http;
use crate::config::{Config, Pipeline, Retention};
use crate::exit::Problem;

const LONGEST_REST: Duration = Duration::from_secs(60);

/// Pipelines that run, and those that wait for their predecessor to end.
pub(super) struct Fleet {
    drain: bool,
    pulse: Pulse,
    stopping: bool,
    running: JoinSet<Ended>,
    members: BTreeMap<String, Member>,
    waiting: BTreeMap<String, Ready>,
    /// Those that failed, until they are tried again, and how often in a row.
    resting: JoinSet<String>,
    failures: BTreeMap<String, u32>,
    // Ends with the fleet: nobody waits for it.
    upkeep: JoinSet<()>,
    #[cfg(feature = "page")]
    views: BTreeMap<String, View>,
}

/// What happens to a pipeline.
pub(super) enum News {
    Ended(String, Result<Report, Problem>),
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

/// Connected, and ready to start.
struct Ready {
    name: String,
    place: String,
    fingerprint: u64,
    group: Group,
    upkeep: Option<AbortHandle>,
    #[cfg(feature = "page")]
    view: View,
}

impl Fleet {
    pub(super) fn new(drain: bool, pulse: Pulse) -> Self {
        Self {
            drain,
            pulse,
            stopping: false,
            running: JoinSet::new(),
            members: BTreeMap::new(),
            waiting: BTreeMap::new(),
            resting: JoinSet::new(),
            failures: BTreeMap::new(),
            upkeep: JoinSet::new(),
            #[cfg(feature = "page")]
            views: BTreeMap::new(),
        }
    }

    /// What the present configuration has to show.
    #[cfg(feature = "page")]
    pub(super) fn views(&self) -> impl Iterator<Item = &View> {
        self.views.values()
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

    /// Starts all pipelines, or none of them.
    pub(super) async fn start(&mut self, config: Config) -> Result<(), Problem> {
        for pipeline in config.pipelines {
            let ready = self.connect(pipeline, config.retention).await?;
            #[cfg(feature = "page")]
            self.views.insert(ready.name.clone(), ready.view.clone());
            self.launch(ready);
        }
        Ok(())
    }

    /// Lets what is in flight finish; the second time, leaves at once.
    pub(super) fn stop(&mut self) {
        let again = std::mem::replace(&mut self.stopping, true);
        self.forget_waiting();
        for member in self.members.values_mut().filter(|member| again || !member.leaving) {
            member.leaving = true;
            member.stopper.stop();
        }
    }

    /// What happens next; nothing when no pipeline is left.
    pub(super) async fn next(&mut self) -> Option<News> {
        let ended = tokio::select! {
            ended = self.running.join_next() => ended?,
            Some(Ok(name)) = self.resting.join_next() => return Some(News::Rested(name)),
        };
        let (name, ended) = ended.unwrap_or_else(|gone| (String::new(), Err(crashed(gone))));
        if let Some(Member { upkeep, since, .. }) = self.members.remove(&name) {
            upkeep.inspect(AbortHandle::abort);
            if since.elapsed() > LONGEST_REST {
                self.failures.remove(&name);
            }
        }
        let Some(successor) = self.waiting.remove(&name) else {
            return Some(News::Ended(name, ended));
        };
        self.launch(successor);
        let report = ended.unwrap_or_else(|problem| {
            tracing::error!(pipeline = name, "the old one failed: {}", problem.summary());
            Report::default()
        });
        Some(News::Ended(name, Ok(report)))
    }

    /// Lets the others go on without one that failed, which is tried again after a while. Says no when
    /// there are no others.
    pub(super) fn goes_on_without(&mut self, name: &str, problem: &Problem) -> bool {
        if self.drain || self.stopping || self.members.is_empty() {
            return false;
        }
        let failures = self.failures.entry(name.to_owned()).or_default();
        let rest = Duration::from_secs(1 << (*failures).min(6)).min(LONGEST_REST);
        *failures += 1;
        let message = problem.message();
        tracing::error!(
            pipeline = name,
            "it stopped and is tried again in {rest:?}; the other pipelines go on\n{message}"
        );
        let name = name.to_owned();
        self.resting.spawn(async move {
            sleep(rest).await;
            name
        });
        true
    }

    /// Starts one that failed, as the configuration has it now.
    pub(super) async fn revive(&mut self, name: &str, path: &Path) {
        if self.stopping || self.members.contains_key(name) {
            return;
        }
        if let Err(problem) = self.start_again(name, path).await {
            self.goes_on_without(name, &problem);
        }
    }

    async fn start_again(&mut self, name: &str, path: &Path) -> Result<(), Problem> {
        let Config { pipelines, retention, .. } = Config::load(path)?;
        if let Some(pipeline) = pipelines.into_iter().find(|pipeline| pipeline.name == name) {
            let ready = self.connect(pipeline, retention).await?;
            self.launch(ready);
        }
        Ok(())
    }

    /// Connects what is new or different, before anything is stopped; nothing, when it stops anyway.
    pub(super) async fn prepare(&mut self, path: &Path) -> Result<Option<Changes>, Problem> {
        if self.stopping || self.drain {
            return Ok(None);
        }
        let config = Config::load(path)?;
        let mut changes = Changes {
            kept: Vec::new(),
            ready: Vec::new(),
            #[cfg(feature = "page")]
            http: config.http,
        };
        for pipeline in config.pipelines {
            let member = self.members.get(&pipeline.name);
            let stays =
                |member: &Member| member.fingerprint == pipeline.fingerprint && !member.leaving;
            if member.is_some_and(stays) {
                changes.kept.push(pipeline.name);
            } else {
                let ready = self.connect(pipeline, config.retention).await;
                changes.ready.push(ready.inspect_err(|_| changes.give_up())?);
            }
        }
        Ok(Some(changes))
    }

    /// Goes over to a new configuration: what did not change goes on, the rest is stopped as by
    /// SIGTERM and started again where it was. Gives how many were kept, stopped and started.
    pub(super) fn apply(&mut self, changes: Changes) -> [usize; 3] {
        let (kept, started) = (changes.kept.len(), changes.ready.len());
        self.failures.retain(|name, _| changes.names().any(|known| known == name));
        self.forget_waiting();
        let mut stopped = 0;
        for (name, member) in &mut self.members {
            if !changes.kept.contains(name) && !member.leaving {
                member.leaving = true;
                member.stopper.stop();
                stopped += 1;
            }
        }
        #[cfg(feature = "page")]
        self.views.retain(|name, _| changes.kept.contains(name));
        for ready in changes.ready {
            #[cfg(feature = "page")]
            self.views.insert(ready.name.clone(), ready.view.clone());
            if self.members.contains_key(&ready.name) {
                self.waiting.insert(ready.name.clone(), ready);
            } else {
                self.launch(ready);
            }
        }
        [kept, stopped, started]
    }

    /// Those that will never start.
    fn forget_waiting(&mut self) {
        let forgotten = std::mem::take(&mut self.waiting);
        forgotten.values().filter_map(|ready| ready.upkeep.as_ref()).for_each(AbortHandle::abort);
    }

    async fn connect(
        &mut self,
        pipeline: Pipeline,
        retention: Option<Retention>,
    ) -> Result<Ready, Problem> {
        let (name, place) = (pipeline.name.clone(), pipeline.place());
        let (fingerprint, retention) = (pipeline.fingerprint, retention.filter(|_| !self.drain));
        let problem = |failure| Problem::new(failure, &place, EFFECT);
        let database = open(&pipeline).await.map_err(problem)?;
        #[cfg(feature = "page")]
        let view = View::of(&pipeline, &database);
        let connected = connect(pipeline, database, retention, self.drain, &mut self.upkeep).await;
        let (group, upkeep) = connected.map_err(problem)?;
        Ok(Ready {
            name,
            place,
            fingerprint,
            group: group.with_pulse(self.pulse.clone()),
            upkeep,
            #[cfg(feature = "page")]
            view,
        })
    }

    fn launch(&mut self, ready: Ready) {
        let Ready { name, place, fingerprint, group, upkeep, .. } = ready;
        tracing::info!(pipeline = name, "relay started: {place}");
        let (stopper, stop) = Stop::new();
        let drain = self.drain;
        let since = Instant::now();
        let member = Member { fingerprint, stopper, upkeep, since, leaving: false };
        self.members.insert(name.clone(), member);
        // A task of its own, so that one that panics is known by its name.
        let run =
            async move { if drain { group.drain(stop).await } else { group.run(stop).await } };
        self.running.spawn(async move {
            let ended = match tokio::spawn(run).await {
                Ok(ended) => ended.map_err(|failure| Problem::new(failure, place, EFFECT)),
                Err(panicked) => Err(crashed(panicked)),
            };
            (name, ended)
        });
    }
}

/// What a new configuration keeps and brings.
pub(super) struct Changes {
    kept: Vec<String>,
    ready: Vec<Ready>,
    #[cfg(feature = "page")]
    pub(super) http: Option<Http>,
}

impl Changes {
    /// All that is to run.
    fn names(&self) -> impl Iterator<Item = &String> {
        self.kept.iter().chain(self.ready.iter().map(|ready| &ready.name))
    }

    /// Nothing of it will run.
    pub(super) fn give_up(&self) {
        self.ready.iter().filter_map(|ready| ready.upkeep.as_ref()).for_each(AbortHandle::abort);
    }
}
